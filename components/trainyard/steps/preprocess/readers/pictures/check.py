"""Judges one encoded picture, from its header first, and makes of it what is stored.

JPEG is judged by libjpeg-turbo and PNG by its chunks. Pillow and TensorFlow are asked only for what these two refuse or
do not know; their verdict alone sets a picture aside.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field

import tensorflow as tf
from PIL import Image, ImageOps, UnidentifiedImageError

from trainyard.contract.pictures import BROKEN, FORMATS, KEPT_MODES, ORIENTATION
from trainyard.quality.pictures.look import in_eight_bits
from trainyard.steps.preprocess.readers.pictures import jpeg, png
from trainyard.steps.preprocess.readers.pictures.store import Store
from trainyard.steps.preprocess.readers.records import BadRecord

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ON_ITS_SIDE = (5, 6, 7, 8)
_GREY = ("1", "L", "LA", "I", "I;16")


@dataclass(frozen=True)
class CheckedImage:
    """A picture that TensorFlow decodes as Pillow shows it (or its pixels), and its own size, however it is stored."""

    encoded: bytes
    height: int
    width: int


@dataclass(frozen=True)
class PictureLimits:
    """max_pixels: of a picture, by its header. channels: 1 or 3, as the model takes them."""

    max_pixels: int
    channels: int
    store: Store = field(default_factory=Store)


def check_image(encoded: bytes, limits: PictureLimits) -> CheckedImage:
    """Return the picture as it is stored: its bytes as they came unless they would not come out the same in training.

    At its own size it is re-encoded, as PNG, only for an EXIF orientation other than upright, CMYK, an animation (its
    first frame), and formats other than JPEG and PNG. Raises `BadRecord`: zero_bytes, not_an_image, too_many_pixels
    (judged from the header, before any pixel is decoded) or truncated_image.
    """
    if not encoded:
        raise BadRecord("zero_bytes", "the file is empty")
    if checked := _plain_jpeg(encoded, limits) or _plain_png(encoded, limits):
        return checked
    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            _check_size(image.height, image.width, limits)
            return _turned_jpeg(encoded, image, limits) or _by_pillow(encoded, image, limits)
    except Image.DecompressionBombError as error:
        raise BadRecord("too_many_pixels", str(error)) from error
    except UnidentifiedImageError as error:
        raise BadRecord("not_an_image", f"{len(encoded)} bytes that begin with {encoded[:8]!r}") from error
    except BROKEN as error:
        raise BadRecord("truncated_image", str(error)) from error


def _check_size(height: int, width: int, limits: PictureLimits) -> None:
    if width * height > limits.max_pixels:
        raise BadRecord("too_many_pixels", f"{width} x {height} pixels, at most {limits.max_pixels} are taken")


def _plain_jpeg(encoded: bytes, limits: PictureLimits) -> CheckedImage | None:
    header = jpeg.read_header(encoded) if encoded.startswith(jpeg.MAGIC) else None
    if header is None or not header.plain:
        return None
    _check_size(header.height, header.width, limits)
    return _by_libjpeg(encoded, header, 1, limits)


def _turned_jpeg(encoded: bytes, image: Image.Image, limits: PictureLimits) -> CheckedImage | None:
    """Judge a JPEG whose header holds more, such as EXIF, by what Pillow read in it."""
    header = jpeg.read_header(encoded) if image.format == "JPEG" else None
    if header is None or image.mode not in KEPT_MODES["JPEG"] or getattr(image, "n_frames", 1) != 1:
        return None
    return _by_libjpeg(encoded, header, image.getexif().get(ORIENTATION, 1), limits)


def _by_libjpeg(
    encoded: bytes, header: jpeg.JpegHeader, orientation: int, limits: PictureLimits
) -> CheckedImage | None:
    on_its_side = orientation in _ON_ITS_SIDE
    height, width = (header.width, header.height) if on_its_side else (header.height, header.width)
    size = limits.store.size(height, width)
    if size is None:
        as_stored = orientation == 1 and jpeg.is_whole(encoded)
        return CheckedImage(encoded, height, width) if as_stored else None
    smallest = size[::-1] if on_its_side else size
    pixels = jpeg.decode(encoded, header, smallest=smallest, channels=limits.channels)
    if pixels is None:
        return None
    small = limits.store.resized(Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels), *smallest)
    upright = small.transpose(_TURNS[orientation]) if orientation in _TURNS else small
    return CheckedImage(limits.store.encoded(upright, "JPEG", limits.channels), height, width)


def _plain_png(encoded: bytes, limits: PictureLimits) -> CheckedImage | None:
    header = png.read_header(encoded) if encoded.startswith(png.MAGIC) else None
    if header is None or header.height * header.width > limits.max_pixels:
        return None
    stays = limits.store.size(header.height, header.width) is None
    return CheckedImage(encoded, header.height, header.width) if stays and png.is_whole(encoded, header) else None


def _by_pillow(encoded: bytes, image: Image.Image, limits: PictureLimits) -> CheckedImage:
    image.load()
    plain = _is_plain(image)
    upright = image if plain else ImageOps.exif_transpose(image)
    size = limits.store.size(upright.height, upright.width)
    if size is None and plain and _tensorflow_decodes(encoded, limits.channels):
        return CheckedImage(encoded, image.height, image.width)
    if size is None:
        return CheckedImage(_as_png(upright, limits.channels), upright.height, upright.width)
    channels = 1 if upright.mode in _GREY else limits.channels
    pixels = limits.store.resized(_in_eight_bits(upright, channels), *size)
    stored = limits.store.encoded(pixels, image.format or "", limits.channels)
    return CheckedImage(stored, upright.height, upright.width)


def _is_plain(image: Image.Image) -> bool:
    upright = image.getexif().get(ORIENTATION, 1) == 1
    return upright and image.mode in KEPT_MODES.get(image.format or "", ()) and getattr(image, "n_frames", 1) == 1


def _tensorflow_decodes(encoded: bytes, channels: int) -> bool:
    try:
        tf.io.decode_image(tf.constant(encoded), channels=channels, expand_animations=False)
    except tf.errors.InvalidArgumentError:
        return False
    return True


def _as_png(upright: Image.Image, channels: int) -> bytes:
    stream = io.BytesIO()
    _in_eight_bits(upright, channels).save(stream, "PNG")
    return stream.getvalue()


def _in_eight_bits(upright: Image.Image, channels: int) -> Image.Image:
    return in_eight_bits(upright, "L" if channels == 1 else "RGB")
