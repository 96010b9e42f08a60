"""The supported image formats, so that profiles, preprocess and predict accept and refuse the same files."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Collection
from typing import Literal

ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".avif", ".jp2", ".ppm", ".pgm", ".dib")
"""Endings of image names, in any case."""

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "DIB", "WEBP", "TIFF", "AVIF", "JPEG2000", "PPM")
"""Formats that Pillow may open: not EPS, which starts Ghostscript, nor ICO, whose header does not tell the size."""

KEPT_MODES = {"JPEG": {"L", "RGB"}, "PNG": {"1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I"}}
"""The modes by format that TensorFlow decodes as Pillow does."""

EVAL_SPLITS = ("val", "validation", "test")
"""Names of the folders whose images evaluate a model; the first that exists is used."""

Role = Literal["train", "eval", "test"]

ORIENTATION = 0x0112  # the EXIF tag

JPEG_MAGIC = b"\xff\xd8\xff"
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"

PNG_BITS = 24
"""The offset of the bits per channel in a PNG; the color type follows."""

BROKEN = (OSError, SyntaxError, ValueError, EOFError, IndexError, OverflowError, struct.error, zlib.error)
"""Errors of Pillow's decoders on broken input, from a corpus of truncated and flipped files."""

_SPLIT = re.compile(r"(?:.*[-_])?(train|val|validation|test|training|valid|testing)", re.IGNORECASE | re.DOTALL)
_OTHER_NAMES = {"training": "train", "valid": "val", "testing": "test"}


def split_of(folder: str) -> str | None:
    """Return the split that a folder name stands for: train, val, validation or test.

    >>> split_of("ILSVRC2012_img_train"), split_of("val"), split_of("Testing"), split_of("cats")
    ('train', 'val', 'test', None)
    """
    match = _SPLIT.fullmatch(folder)
    name = match[1].lower() if match else ""
    return _OTHER_NAMES.get(name, name) or None


def split_roles(labeled: Collection[str]) -> dict[str, Role]:
    """Return the role of each split whose images have classes, by its name; none if nothing trains or evaluates.

    >>> split_roles(["train", "val"]), split_roles(["train", "val", "test"])
    ({'train': 'train', 'val': 'test'}, {'train': 'train', 'val': 'eval', 'test': 'test'})
    """
    judges = [name for name in EVAL_SPLITS if name in labeled]
    if "train" not in labeled or not judges:
        return {}
    is_pair = "test" in judges[1:]
    return {"train": "train", judges[0]: "eval", "test": "test"} if is_pair else {"train": "train", judges[0]: "test"}
