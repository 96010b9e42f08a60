"""Judges one encoded image, from its header first, and makes the record that the shards store, as `data.store` says.

JPEG is judged by libjpeg-turbo and PNG by its chunks. Pillow and TensorFlow are asked only for what these two refuse or
do not know; their verdict alone sets an image aside.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import simplejpeg
import tensorflow as tf
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from trainyard.contract.image_formats import BROKEN, FORMATS, JPEG_MAGIC, KEPT_MODES, ORIENTATION, PNG_MAGIC
from trainyard.data.images import decode_png
from trainyard.quality.decoding import (
    PixelForm,
    UnscaledImageError,
    depth_of,
    in_eight_bits,
    is_constant,
    is_opaque,
)
from trainyard.readers import jpeg, png
from trainyard.spec.recipe import Data
from trainyard.steps.preprocess.readers.files import image_limit, too_many_bytes
from trainyard.steps.preprocess.readers.records import BadRecord, Record, content_digest

# The rest of a training-size image is for crops: 256 pixels for 224, as ImageNet's usual evaluation has it.
_MARGIN = 8 / 7
_QUALITY, _SUBSAMPLING = 90, "420"  # chosen; docs/how-to/own-images.md says what was measured
_PNG_LEVEL = 3  # measured: half the time of zlib's usual 6, and a tenth more bytes
_JPEG_SIDE = 65_500  # pixels; libjpeg writes no larger width or height
_LOSSY = frozenset(("JPEG", "MPO", "WEBP", "AVIF", "JPEG2000"))


@dataclass(frozen=True)
class Store:
    """`kind` of `data.store`, and the model's (height, width), which original does not need."""

    kind: Literal["original", "training_size", "raw"] = "original"
    image_size: tuple[int, int] | None = None

    def size(self, height: int, width: int) -> tuple[int, int] | None:
        """Return the height and width at which an image is stored; None if it stays as it is. Only raw enlarges."""
        if self.image_size is None or self.kind == "original":
            return None
        if self.kind == "raw":
            return self.image_size
        least = [math.ceil(side * _MARGIN) for side in self.image_size]
        scale = max(least[0] / height, least[1] / width)
        if scale >= 1:
            return None
        return max(least[0], round(height * scale)), max(least[1], round(width * scale))

    def resized(self, pixels: Image.Image, height: int, width: int) -> Image.Image:
        """Return `pixels` at this size, antialiased: raw as `decode_image` does, otherwise sharper."""
        if pixels.size == (width, height):
            return pixels
        if self.kind == "raw":
            return pixels.resize((width, height), Image.Resampling.BILINEAR)
        return pixels.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=1.0)

    def encoded(self, pixels: Image.Image, source: str, channels: int) -> bytes:
        """Encode `pixels`, L or RGB, for storage; `source` is the format of the original image.

        Raw: height x width x channels bytes. Otherwise a JPEG if the source is lossy too and no side is too long for
        it, or a PNG.
        """
        if self.kind == "raw":
            return pixels.convert("L" if channels == 1 else "RGB").tobytes()
        if source not in _LOSSY or max(pixels.size) > _JPEG_SIDE:
            stream = io.BytesIO()
            pixels.save(stream, "PNG", compress_level=_PNG_LEVEL)
            return stream.getvalue()
        if pixels.mode == "L":
            gray = np.asarray(pixels)[..., np.newaxis]
            return bytes(simplejpeg.encode_jpeg(gray, _QUALITY, colorspace="GRAY", colorsubsampling="Gray"))
        return bytes(simplejpeg.encode_jpeg(np.asarray(pixels), _QUALITY, colorsubsampling=_SUBSAMPLING))


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
_GRAY = ("1", "L", "LA", "I", "I;16")


@dataclass(frozen=True)
class CheckedImage:
    """An image that TensorFlow decodes as docs/reference/images.md says (or its pixels), and its own size.

    constant: all its pixels are alike. level: of one of more than 8 bits without a white level, its largest value after
    decoding, 0 to 255; None of all others.
    """

    encoded: bytes
    height: int
    width: int
    constant: bool = False
    level: int | None = None


@dataclass(frozen=True)
class ImageLimits:
    """max_pixels: of an image, by its header. form: the pixels that the model takes."""

    max_pixels: int
    form: PixelForm
    store: Store = field(default_factory=Store)


def check_image(encoded: bytes, limits: ImageLimits) -> CheckedImage:
    """Return the image as it is stored: its bytes as they came unless they would not come out the same in training.

    At its own size it is re-encoded, as PNG, only for an EXIF orientation other than upright, CMYK, transparent pixels,
    a white level, an animation (its first frame), and formats other than JPEG and PNG. Raises `BadRecord`: zero_bytes,
    not_an_image, too_many_pixels (judged from the header, before any pixel is decoded), truncated_image or
    unscaled_image.
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
        raise BadRecord("not_an_image", f"{len(encoded):,} bytes that begin with {encoded[:8]!r}") from error
    except UnscaledImageError as error:
        raise BadRecord("unscaled_image", str(error)) from error
    except BROKEN as error:
        raise BadRecord("truncated_image", str(error)) from error


def _check_size(height: int, width: int, limits: ImageLimits) -> None:
    if width * height > limits.max_pixels:
        raise BadRecord("too_many_pixels", f"{width} x {height} pixels, at most {limits.max_pixels} are taken")


def _plain_jpeg(encoded: bytes, limits: ImageLimits) -> CheckedImage | None:
    header = jpeg.read_header(encoded) if encoded.startswith(JPEG_MAGIC) else None
    if header is None or not header.plain:
        return None
    _check_size(header.height, header.width, limits)
    return _by_libjpeg(encoded, header, 1, limits)


def _turned_jpeg(encoded: bytes, image: Image.Image, limits: ImageLimits) -> CheckedImage | None:
    """Judge a JPEG whose header holds more, such as EXIF, by what Pillow read in it."""
    header = jpeg.read_header(encoded) if image.format == "JPEG" else None
    if header is None or image.mode not in KEPT_MODES["JPEG"] or getattr(image, "n_frames", 1) != 1:
        return None
    return _by_libjpeg(encoded, header, image.getexif().get(ORIENTATION, 1), limits)


def _by_libjpeg(encoded: bytes, header: jpeg.JpegHeader, orientation: int, limits: ImageLimits) -> CheckedImage | None:
    on_its_side = orientation in _ON_ITS_SIDE
    height, width = (header.width, header.height) if on_its_side else (header.height, header.width)
    size = limits.store.size(height, width)
    if size is None:
        eighth = jpeg.decode_eighth(encoded) if orientation == 1 else None
        if eighth is None:
            return None
        constant = _is_constant(eighth) and _is_constant(_decoded(encoded, header, (height, width), limits))
        return CheckedImage(encoded, height, width, constant)
    smallest = size[::-1] if on_its_side else size
    pixels = _decoded(encoded, header, smallest, limits)
    if pixels is None:
        return None
    small = limits.store.resized(Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels), *smallest)
    upright = small.transpose(_TURNS[orientation]) if orientation in _TURNS else small
    stored = limits.store.encoded(upright, "JPEG", limits.form.channels)
    return CheckedImage(stored, height, width, _is_constant(pixels))


def _decoded(
    encoded: bytes, header: jpeg.JpegHeader, smallest: tuple[int, int], limits: ImageLimits
) -> NDArray[np.uint8] | None:
    return jpeg.decode(encoded, header, smallest=smallest, channels=limits.form.channels)


def _is_constant(pixels: NDArray[np.uint8] | None) -> bool:
    if pixels is None or pixels[0, 0].tolist() != pixels[-1, -1].tolist():  # measured: a fifth of NumPy's time
        return False
    return bool((pixels == pixels[0, 0]).all())


def _plain_png(encoded: bytes, limits: ImageLimits) -> CheckedImage | None:
    """Judge an opaque PNG of at most 8 bits a channel that keeps its size."""
    header = png.read_header(encoded) if encoded.startswith(PNG_MAGIC) else None
    if header is None or header.height * header.width > limits.max_pixels or header.bits > 8:
        return None
    if limits.store.size(header.height, header.width) is not None:
        return None
    rows = png.opaque_rows(encoded, header)
    if rows is None or png.may_be_constant(rows):  # Pillow decodes what may be constant
        return None
    return CheckedImage(encoded, header.height, header.width)


def _by_pillow(encoded: bytes, image: Image.Image, limits: ImageLimits) -> CheckedImage:
    depth = depth_of(image, encoded)
    image.load()
    orientation = image.getexif().get(ORIENTATION, 1)  # Pillow has turned a TIFF by now
    pixels = _pixels(encoded, image, depth, limits.form)
    upright = pixels.transpose(_TURNS[orientation]) if orientation in _TURNS else pixels
    level = int(np.asarray(pixels).max()) if depth > 8 and limits.form.white_level is None else None
    size = limits.store.size(upright.height, upright.width)
    if size is None and _is_stored_as_it_came(encoded, image, depth, limits.form):
        return CheckedImage(encoded, upright.height, upright.width, is_constant(pixels), level)
    longest = max(size or (upright.height, upright.width))
    if longest > png.MAX_SIDE and limits.store.kind != "raw":
        raise BadRecord("too_many_pixels", f"{longest} pixels on a side, at most {png.MAX_SIDE} can be stored")
    if size is not None:
        # Gray images are resized in one channel.
        gray = image.mode in _GRAY and upright.mode != "L"
        small = limits.store.resized(upright.convert("L") if gray else upright, *size)
        stored = limits.store.encoded(small, image.format or "", limits.form.channels)
    else:
        stored = _as_png(upright)
    return CheckedImage(stored, upright.height, upright.width, is_constant(pixels), level)


def _pixels(encoded: bytes, image: Image.Image, depth: int, form: PixelForm) -> Image.Image:
    if image.format == "PNG" and getattr(image, "n_frames", 1) == 1 and (depth > 8 or not is_opaque(image)):
        try:
            pixels = decode_png(tf.constant(encoded), form.channels, form.white_level).numpy()
            return Image.fromarray(pixels[..., 0] if form.channels == 1 else pixels)
        except tf.errors.InvalidArgumentError:  # libpng refuses what Pillow reads
            pass
    return in_eight_bits(image, form, depth)


def _is_stored_as_it_came(encoded: bytes, image: Image.Image, depth: int, form: PixelForm) -> bool:
    if not _is_plain(image) or not is_opaque(image) or (depth > 8 and form.white_level is not None):
        return False
    return _tensorflow_decodes(encoded, form.channels)


def _is_plain(image: Image.Image) -> bool:
    upright = image.getexif().get(ORIENTATION, 1) == 1
    return upright and image.mode in KEPT_MODES.get(image.format or "", ()) and getattr(image, "n_frames", 1) == 1


def _tensorflow_decodes(encoded: bytes, channels: int) -> bool:
    try:
        tf.io.decode_image(tf.constant(encoded), channels=channels, expand_animations=False)
    except tf.errors.InvalidArgumentError:
        return False
    return True


def _as_png(upright: Image.Image) -> bytes:
    stream = io.BytesIO()
    upright.save(stream, "PNG")
    return stream.getvalue()


def image_limits(data: Data) -> ImageLimits:
    """Return the limits of all images of `data`."""
    form, store = PixelForm(data.channels, data.white_level), Store(data.stored, data.image_size)
    return ImageLimits(data.max_image_pixels, form, store)


def image_record(encoded: bytes, label: str, source: str, limits: ImageLimits, split_by: str = "") -> Record:
    """Return the record of one image, as `check_image` judges it and `data.store` keeps it. Raises `BadRecord`.

    content and measures are those of the image as it came; raw holds what is stored of it.
    """
    if len(encoded) > image_limit(limits.max_pixels):
        raise too_many_bytes(len(encoded), image_limit(limits.max_pixels))
    image = check_image(encoded, limits)
    measures = {
        "height": float(image.height),
        "width": float(image.width),
        "bytes": float(len(encoded)),
        "constant": float(image.constant),
        "level": math.nan if image.level is None else float(image.level),
    }
    return Record(source, label, {"image": image.encoded}, content_digest({"image": encoded}), measures, split_by)
