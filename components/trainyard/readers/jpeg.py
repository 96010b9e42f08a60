"""JPEG by libjpeg-turbo: the header without a decoder, then as much decoding as the purpose needs.

What this module accepts, every decoder in use here shows alike: it refuses all that libjpeg so much as warns of. What
it refuses may still be good; Pillow and TensorFlow say so then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

_MAX_BYTES = 1 << 29  # of pixels: TensorFlow takes less than this, and Pillow's own limit is the same
_SOF, _DHT, _SOS, _DQT, _DRI, _COM = (0xC0, 0xC1, 0xC2), 0xC4, 0xDA, 0xDB, 0xDD, 0xFE
_JFIF, _METADATA, _PROFILE, _ADOBE = 0xE0, 0xE1, 0xE2, 0xEE
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_SCALES = (8, 4, 2)  # those that libjpeg-turbo computes with vector instructions
_OVER = 1.25  # measured: 41 to 42 dB from here on against a resize of the whole image, 33 from once the size


@dataclass(frozen=True)
class JpegHeader:
    """Size in pixels as stored, channels (1 or 3), and whether the image is upright and alone beyond doubt."""

    height: int
    width: int
    channels: int
    plain: bool


def read_header(encoded: bytes) -> JpegHeader | None:
    """Return the header of a Huffman-coded JPEG of 8 bits, gray or in colors; None if it is, or may be, another kind.

    Source: ITU-T T.81, annex B.
    """
    position, size, plain, tables, last = 2, None, True, set(), len(encoded)
    while position + 4 <= last and encoded[position] == 0xFF:
        marker, length = encoded[position + 1], encoded[position + 2] << 8 | encoded[position + 3]
        body, end = position + 4, position + 2 + length
        if length < 2 or end > last:
            return None
        if marker == _SOS:
            return JpegHeader(*size, plain) if size and tables == {_DHT, _DQT} else None
        if marker in _SOF:
            if size is not None or (size := _frame(encoded[body:end])) is None:
                return None
        elif marker in (_DHT, _DQT):
            tables.add(marker)
            if marker == _DQT and not _is_plain_table(encoded[body:end]):
                return None
        elif marker not in (_DRI, _COM):
            if not 0xE0 <= marker <= 0xEF:
                return None
            plain = plain and _is_plain_segment(marker, encoded[body:end])
        position = end
    return None


def _frame(body: bytes) -> tuple[int, int, int] | None:
    if len(body) < 6 or body[0] != 8 or body[5] not in (1, 3) or len(body) != 6 + 3 * body[5]:
        return None
    height, width = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
    return (height, width, body[5]) if 0 < height * width * 3 < _MAX_BYTES else None


def _is_plain_table(body: bytes) -> bool:
    return len(body) % 65 == 0 and max(body[::65], default=0) <= 3


def _is_plain_segment(marker: int, body: bytes) -> bool:
    """Return True if Pillow makes nothing of the segment: no rotation, no second image, no error."""
    if marker == _JFIF:
        return len(body) >= 14 and body.startswith(b"JFIF\0")
    if marker == _METADATA:
        return body.startswith(_XMP) and b"tiff:Orientation" not in body
    if marker == _PROFILE:
        return len(body) >= 14 and body.startswith(b"ICC_PROFILE\0")
    return marker == _ADOBE and len(body) >= 12 and body.startswith(b"Adobe") and body[11] == 1


def decode_eighth(encoded: bytes) -> NDArray[np.uint8] | None:
    """Return gray pixels at an eighth of the size, None if libjpeg warns of anything up to the image's end.

    No more is computed than the entropy decoder needs.
    """
    return _decode(encoded, colorspace="GRAY", min_height=1, min_width=1, min_factor=8)


def decode(encoded: bytes, header: JpegHeader, *, smallest: tuple[int, int], channels: int) -> NDArray[np.uint8] | None:
    """Return the pixels (height, width, 1 or 3), None if libjpeg warns of anything.

    It is shrunk by 2, 4 or 8 while it is decoded if it stays larger than (height, width) `smallest` by a quarter.
    """
    height, width = header.height, header.width
    fits = (scale for scale in _SCALES if min(height / smallest[0], width / smallest[1]) >= scale * _OVER)
    scale = next(fits, 1)
    colorspace = "GRAY" if 1 in (channels, header.channels) else "RGB"
    return _decode(
        encoded, colorspace=colorspace, min_height=-(-height // scale), min_width=-(-width // scale), min_factor=scale
    )


def _decode(encoded: bytes, **options: Any) -> NDArray[np.uint8] | None:
    try:
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(encoded, strict=True, **options)
    except ValueError:
        return None
    return pixels
