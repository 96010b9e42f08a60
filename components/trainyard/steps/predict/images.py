"""Reads encoded images from files and TFRecord files, upright and in a format that the model decodes."""

from __future__ import annotations

import io
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa
from PIL import Image, ImageOps, UnidentifiedImageError

from trainyard.contract.image_formats import BROKEN, FORMATS, JPEG_MAGIC, KEPT_MODES, ORIENTATION, PNG_MAGIC
from trainyard.errors import DataError
from trainyard.quality.decoding import PixelForm, UnscaledImageError, depth_of, in_eight_bits
from trainyard.readers import jpeg, png
from trainyard.readers.rows import BadRow, batched
from trainyard.readers.table_file import Dialect
from trainyard.readers.tf_examples import read_image_examples
from trainyard.spec.recipe import Data
from trainyard.steps.predict.source import InputBatch, InputFiles, Items
from trainyard.storage.listing import SourceFile

IMAGES = 128
"""Of a batch; chosen."""

_NAME = "image"  # of the input in the serving signature
_BATCH_BYTES = 64 << 20  # of a batch of more than one image; chosen
_READERS = 8  # chosen: of a bucket, a request takes longer than its bytes
_FILES = 16  # that a reader takes at once; chosen
_AHEAD = _READERS + 1
_MAX_PIXELS: int = Data.model_fields["max_image_pixels"].default
_MAX_BYTES = 4 * _MAX_PIXELS

_EncodedImage = tuple[str, bytes] | BadRow


def read_images(source: InputFiles, form: PixelForm) -> Items:
    """Yield the images in batches, each named by its file, or by the file and the number of its record."""
    return batches(_source_images(source, form))


def read_all(sources: Iterable[InputFiles], form: PixelForm) -> Items:
    """Yield the images of several sources as `read_images`, each named by the path or URI of its file."""

    def renamed(source: InputFiles, item: _EncodedImage) -> _EncodedImage:
        if isinstance(item, BadRow):
            return replace(item, file=source.path_of(item.file))
        return source.path_of(item[0]), item[1]

    return batches(renamed(source, item) for source in sources for item in _source_images(source, form))


def batches(images: Iterable[_EncodedImage]) -> Items:
    """Yield images in batches, and those that are set aside."""
    for batch in batched(images, tuple, lambda image: len(image[1]), IMAGES, _BATCH_BYTES):
        yield _batch(batch) if isinstance(batch, list) else batch


def checked(key: str, encoded: bytes, form: PixelForm) -> _EncodedImage:
    """Return the image unchanged if the model decodes it as Pillow does, otherwise as PNG.

    A JPEG or PNG is judged by its header alone: what is wrong behind it, the model finds.
    """
    if not encoded:
        return BadRow(key, None, "zero_bytes", "the file is empty")
    if (size := _plain_size(encoded)) and size[0] * size[1] <= _MAX_PIXELS:
        return key, encoded
    return _by_pillow(key, encoded, form, keep_plain=True)


def decoded_by_pillow(batch: InputBatch, form: PixelForm) -> InputBatch | BadRow:
    """Return the one image of the batch, which the model refuses, as a PNG of the pixels that Pillow reads in it."""
    image = _by_pillow(batch.keys[0].as_py(), batch.inputs[_NAME][0], form, keep_plain=False)
    return image if isinstance(image, BadRow) else _batch([image])


def _by_pillow(key: str, encoded: bytes, form: PixelForm, *, keep_plain: bool) -> _EncodedImage:
    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            if image.width * image.height > _MAX_PIXELS:
                detail = f"{image.width} x {image.height} pixels, at most {_MAX_PIXELS} are taken"
                return BadRow(key, None, "too_many_pixels", detail)
            return key, encoded if keep_plain and _is_plain(image) else _as_png(image, encoded, form)
    except Image.DecompressionBombError as error:
        return BadRow(key, None, "too_many_pixels", str(error))
    except UnidentifiedImageError:
        return BadRow(key, None, "not_an_image", f"{len(encoded):,} bytes that begin with {encoded[:8]!r}")
    except UnscaledImageError as error:
        return BadRow(key, None, "unscaled_image", str(error))
    except BROKEN as error:
        return BadRow(key, None, "truncated_image", str(error))


def _batch(images: list[tuple[str, bytes]]) -> InputBatch:
    keys, encoded = zip(*images, strict=True)
    return InputBatch(pa.array(keys, pa.string()), {_NAME: np.array(encoded, object)})


def _source_images(source: InputFiles, form: PixelForm) -> Iterator[_EncodedImage]:
    return _file_images(source, form) if source.kind == "images" else _record_images(source, form)


def _file_images(source: InputFiles, form: PixelForm) -> Iterator[_EncodedImage]:
    with ThreadPoolExecutor(_READERS) as readers:
        waiting: deque[Future[list[_EncodedImage]]] = deque()
        for start in range(0, len(source.files), _FILES):
            files = source.files[start : start + _FILES]
            waiting.append(readers.submit(lambda files: [_read(source, file, form) for file in files], files))
            if len(waiting) == _AHEAD:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _read(source: InputFiles, file: SourceFile, form: PixelForm) -> _EncodedImage:
    if file.reason:
        return BadRow(file.name, None, file.reason, file.detail)
    if file.bytes > _MAX_BYTES:
        return BadRow(file.name, None, "too_many_bytes", f"{file.bytes:,} bytes, at most {_MAX_BYTES:,} are taken")
    try:
        with source.open(file) as stream:
            encoded = stream.read(_MAX_BYTES)  # compressed, a few bytes may stand for many
    except (OSError, EOFError, zlib.error) as error:
        return BadRow(file.name, None, "unreadable_file", str(error))
    return checked(file.name, encoded, form)


def _record_images(source: InputFiles, form: PixelForm) -> Iterator[_EncodedImage]:
    for file in source.files:
        if file.reason:
            yield BadRow(file.name, None, file.reason, file.detail)
            continue
        try:
            for item in read_image_examples(source.table(file, Dialect()), _MAX_BYTES):
                if isinstance(item, BadRow):
                    yield item
                    continue
                for row, encoded in zip(item[0].names.to_pylist(), item[1], strict=True):
                    yield encoded if isinstance(encoded, BadRow) else checked(row, encoded, form)
        except (DataError, OSError, EOFError, zlib.error) as error:
            yield BadRow(file.name, None, "unreadable_file", str(error))


def _plain_size(encoded: bytes) -> tuple[int, int] | None:
    """Return the size of a PNG or JPEG that every decoder shows alike; None if Pillow must look at it."""
    if encoded.startswith(JPEG_MAGIC):
        header = jpeg.read_header(encoded)
        return (header.height, header.width) if header and header.plain else None
    png_header = png.read_header(encoded) if encoded.startswith(PNG_MAGIC) else None
    return (png_header.height, png_header.width) if png_header and png.is_still_and_upright(encoded) else None


def _is_plain(image: Image.Image) -> bool:
    as_stored = image.mode in KEPT_MODES.get(image.format or "", ()) and getattr(image, "n_frames", 1) == 1
    return as_stored and image.getexif().get(ORIENTATION, 1) == 1


def _as_png(image: Image.Image, encoded: bytes, form: PixelForm) -> bytes:
    depth = depth_of(image, encoded)
    image.load()
    stream = io.BytesIO()
    ImageOps.exif_transpose(in_eight_bits(image, form, depth)).save(stream, "PNG", compress_level=1)
    return stream.getvalue()
