"""The supported image formats, so that profiles, preprocess and predict accept and refuse the same files."""

from __future__ import annotations

import re
import struct
import zlib

ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".avif", ".jp2", ".ppm", ".pgm", ".dib")
"""Endings of image names, in any case."""

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "DIB", "WEBP", "TIFF", "AVIF", "JPEG2000", "PPM")
"""Formats that Pillow may open: not EPS, which starts Ghostscript, nor ICO, whose header does not tell the size."""

KEPT_MODES = {"JPEG": {"L", "RGB"}, "PNG": {"1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I"}}
"""The modes by format that TensorFlow decodes as Pillow does."""

EVAL_SPLITS = ("val", "validation", "test")
"""Names of the folders whose images evaluate a model; the first that exists is used."""

ORIENTATION = 0x0112  # the EXIF tag

JPEG_MAGIC = b"\xff\xd8\xff"
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"

PNG_BITS = 24
"""The offset of the bits per channel in a PNG; the color type follows."""

BROKEN = (OSError, SyntaxError, ValueError, EOFError, IndexError, OverflowError, struct.error, zlib.error)
"""Errors of Pillow's decoders on broken input, from a corpus of truncated and flipped files."""

_SPLIT = re.compile(r"(?:.*[-_])?(train|val|validation|test)", re.IGNORECASE | re.DOTALL)


def split_of(folder: str) -> str | None:
    """Return the split that a folder name stands for: train, val, validation or test.

    >>> split_of("ILSVRC2012_img_train"), split_of("val"), split_of("cats")
    ('train', 'val', None)
    """
    match = _SPLIT.fullmatch(folder)
    return match[1].lower() if match else None
