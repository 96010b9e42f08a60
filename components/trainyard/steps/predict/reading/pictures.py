"""Reads encoded pictures from files and TFRecord files, upright and in a format that the model decodes."""

from __future__ import annotations

import io
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from PIL import Image, ImageOps, UnidentifiedImageError

from trainyard.contract.batches import batched
from trainyard.contract.pictures import BROKEN, FORMATS, KEPT_MODES, ORIENTATION
from trainyard.quality.pictures.decoding import PixelForm, UnscaledImageError, depth_of, in_eight_bits
from trainyard.spec.recipe import Data
from trainyard.steps.predict.reading.batches import InputBatch, Items, Rejected
from trainyard.steps.predict.reading.picture_header import plain_size
from trainyard.steps.predict.reading.source import InputFiles
from trainyard.steps.predict.reading.tables import numbered_records
from trainyard.storage.listing import SourceFile

PICTURES = 128
"""Of a batch; chosen."""

_NAME = "image"  # of the input in the serving signature
_RECORD_NAMES = ("image/encoded", "image")  # of the feature in an example
_BATCH_BYTES = 64 << 20  # of a batch of more than one picture; chosen
_READERS = 8  # chosen: of a bucket, a request takes longer than its bytes
_FILES = 16  # that a reader takes at once; chosen
_AHEAD = _READERS + 1
_MAX_PIXELS: int = Data.model_fields["max_image_pixels"].default
_MAX_BYTES = 4 * _MAX_PIXELS

_Picture = tuple[str, bytes] | Rejected


def read_pictures(source: InputFiles, form: PixelForm) -> Items:
    """Yield the pictures in batches, each named by its file, or by the file and the number of its record."""
    return batches(_of(source, form))


def read_all(sources: Iterable[InputFiles], form: PixelForm) -> Items:
    """Yield the pictures of several sources as `read_pictures`, each named by the path or URI of its file."""

    def renamed(source: InputFiles, item: _Picture) -> _Picture:
        if isinstance(item, Rejected):
            return replace(item, key=source.path_of(item.key))
        return source.path_of(item[0]), item[1]

    return batches(renamed(source, item) for source in sources for item in _of(source, form))


def batches(pictures: Iterable[_Picture]) -> Items:
    """Yield pictures in batches, and those that are set aside."""
    for batch in batched(pictures, tuple, lambda picture: len(picture[1]), PICTURES, _BATCH_BYTES):
        yield _batch(batch) if isinstance(batch, list) else batch


def checked(key: str, encoded: bytes, form: PixelForm) -> _Picture:
    """Return the picture as it came if the model decodes it as Pillow shows it, else as PNG.

    A JPEG or PNG is judged by its header alone: what is wrong behind it, the model finds.
    """
    if not encoded:
        return Rejected(key, "zero_bytes", "the file is empty")
    if (size := plain_size(encoded)) and size[0] * size[1] <= _MAX_PIXELS:
        return key, encoded
    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            if image.width * image.height > _MAX_PIXELS:
                detail = f"{image.width} x {image.height} pixels, at most {_MAX_PIXELS} are taken"
                return Rejected(key, "too_many_pixels", detail)
            return key, encoded if _is_plain(image) else _as_png(image, encoded, form)
    except Image.DecompressionBombError as error:
        return Rejected(key, "too_many_pixels", str(error))
    except UnidentifiedImageError:
        return Rejected(key, "not_an_image", f"{len(encoded)} bytes that begin with {encoded[:8]!r}")
    except UnscaledImageError as error:
        return Rejected(key, "unscaled_image", str(error))
    except BROKEN as error:
        return Rejected(key, "truncated_image", str(error))


def _batch(pictures: list[tuple[str, bytes]]) -> InputBatch:
    keys, encoded = zip(*pictures, strict=True)
    return InputBatch(pa.array(keys, pa.string()), {_NAME: np.array(encoded, object)})


def _of(source: InputFiles, form: PixelForm) -> Iterator[_Picture]:
    return _of_files(source, form) if source.kind == "pictures" else _of_records(source, form)


def _of_files(source: InputFiles, form: PixelForm) -> Iterator[_Picture]:
    with ThreadPoolExecutor(_READERS) as readers:
        waiting: deque[Future[list[_Picture]]] = deque()
        for start in range(0, len(source.files), _FILES):
            files = source.files[start : start + _FILES]
            waiting.append(readers.submit(lambda files: [_read(source, file, form) for file in files], files))
            if len(waiting) == _AHEAD:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _read(source: InputFiles, file: SourceFile, form: PixelForm) -> _Picture:
    if file.reason:
        return Rejected(file.name, file.reason, file.detail)
    if file.bytes > _MAX_BYTES:
        return Rejected(file.name, "too_many_bytes", f"{file.bytes} bytes, at most {_MAX_BYTES} are taken")
    try:
        with source.open(file) as stream:
            encoded = stream.read(_MAX_BYTES) if file.name.endswith(".gz") else stream.read()
    except (OSError, EOFError, zlib.error) as error:
        return Rejected(file.name, "unreadable_file", str(error))
    return checked(file.name, encoded, form)


def _of_records(source: InputFiles, form: PixelForm) -> Iterator[_Picture]:
    for file in source.files:
        for item in numbered_records(source, file):
            if isinstance(item, Rejected):
                yield item
                continue
            key = f"{file.name}:{item[0]}"
            encoded = _image_of(item[1])
            if isinstance(encoded, str):
                yield Rejected(key, "not_an_image", encoded)
            else:
                yield checked(key, encoded, form)


def _image_of(record: bytes) -> bytes | str:
    """Return the picture in a tf.Example, or why there is none."""
    import tensorflow as tf

    from trainyard.data import examples  # noqa: F401 - first: sets what TensorFlow reads while it is imported

    try:
        features = tf.train.Example.FromString(record).features.feature
    except DecodeError:
        return f"{len(record)} bytes are no tf.Example"
    for name in _RECORD_NAMES:
        if name in features and features[name].bytes_list.value:
            return bytes(features[name].bytes_list.value[0])
    return f"no bytes in {' or '.join(_RECORD_NAMES)}; the example has {', '.join(sorted(features))[:80]}"


def _is_plain(image: Image.Image) -> bool:
    as_stored = image.mode in KEPT_MODES.get(image.format or "", ()) and getattr(image, "n_frames", 1) == 1
    return as_stored and image.getexif().get(ORIENTATION, 1) == 1


def _as_png(image: Image.Image, encoded: bytes, form: PixelForm) -> bytes:
    depth = depth_of(image, encoded)
    image.load()
    stream = io.BytesIO()
    ImageOps.exif_transpose(in_eight_bits(image, form, depth)).save(stream, "PNG", compress_level=1)
    return stream.getvalue()
