"""PNG without a decoder: every byte is checked and inflated, and no pixel is made of it."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

MAX_SIDE = 1_000_000  # pixels; libpng, and so TensorFlow, refuses a larger width or height

_LARGEST_WINDOW = 1 << 15  # bytes: RFC 1950
_MAX_BYTES = 1 << 29  # beyond this TensorFlow's decoder refuses
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # a pixel, by type of color
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_PALETTE = 3
_ALPHA = (4, 6)
_PREFIX = 1024  # measured: most images have more values in their first rows
_FEW = 16  # five filters, and of three channels the value, its half, and their differences
_LENGTHS = {b"gAMA": 4, b"cHRM": 32, b"sRGB": 1, b"pHYs": 9, b"tIME": 7}  # what is read over
_KEYWORDS = frozenset(
    b"Software Title Author Description Copyright Comment Source date:create date:modify date:timestamp".split()
)


_TEXTS = (b"tEXt", b"zTXt", b"iTXt")


@dataclass(frozen=True)
class PngHeader:
    """The fields of the first chunk."""

    height: int
    width: int
    bits: int
    color: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, the one that names its filter included."""
        return 1 + (self.width * self.bits * _CHANNELS[self.color] + 7) // 8


def read_header(encoded: bytes) -> PngHeader | None:
    """Return the header of a PNG that is not interlaced; None if it is another kind, or broken.

    Source: https://www.w3.org/TR/png-3/.
    """
    if len(encoded) < 33 or encoded[8:16] != b"\0\0\0\x0dIHDR" or not _is_chunk_whole(encoded, 8, 13):
        return None
    width, height, bits, color, compression, filters, interlace = struct.unpack(">IIBBBBB", encoded[16:29])
    known = bits in _DEPTHS.get(color, ()) and not (compression or filters or interlace)
    if not known or not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and width * height * 4 < _MAX_BYTES):
        return None
    return PngHeader(height, width, bits, color)


def opaque_rows(encoded: bytes, header: PngHeader) -> bytes | None:
    """Return the filtered rows of a PNG without transparency, exactly those that the header promises.

    None if there are others, or if its chunks are harmed or of unusual kinds.
    """
    data = _image_data(encoded, header) if header.color not in _ALPHA else None
    if data is None:
        return None
    expected, stream = header.height * header.row_bytes, zlib.decompressobj()
    if not data or 1 << ((data[0] >> 4) + 8) < min(expected, _LARGEST_WINDOW):
        return None  # libpng refuses a match before the window that the data name, which zlib allows
    try:
        rows = stream.decompress(data, expected + 1)
    except zlib.error:
        return None
    whole = stream.eof and not stream.unused_data and len(rows) == expected
    return rows if whole and max(rows[:: header.row_bytes]) <= 4 else None


def is_still_and_upright(encoded: bytes) -> bool:
    """Return True if a PNG has no chunk that animates or turns it; one of EXIF or XMP may stand behind the pixels."""
    position = 33
    while position + 8 <= len(encoded):
        length, name = struct.unpack_from(">I4s", encoded, position)
        if name in (b"acTL", b"eXIf"):
            return False
        if name in _TEXTS and encoded[position + 8 : position + 88].partition(b"\0")[0] not in _KEYWORDS:
            return False
        position += 12 + int(length)
    return True


def may_be_constant(rows: bytes) -> bool:
    """Return True if the filtered rows may be of an image of one color: they hold few different bytes."""
    return len(set(rows[:_PREFIX])) <= _FEW and len(set(rows)) <= _FEW


def _image_data(encoded: bytes, header: PngHeader) -> bytes | None:
    """Return the compressed rows, None if a chunk is broken or of a kind that needs a decoder's opinion."""
    position, last = 33, b"IHDR"
    data: list[bytes] = []
    seen: set[bytes] = set()
    while position + 12 <= len(encoded):
        length, name = int.from_bytes(encoded[position : position + 4], "big"), encoded[position + 4 : position + 8]
        if not _is_chunk_whole(encoded, position, length):
            return None
        body = encoded[position + 8 : position + 8 + length]
        if name == b"IEND":
            return b"".join(data) if data and not length else None
        if name == b"IDAT":
            if (data and last != name) or (header.color == _PALETTE and b"PLTE" not in seen):
                return None
            data.append(body)
        elif data or (name in seen and name != b"tEXt") or not _is_plain(name, body, header, seen):
            return None
        seen.add(name)
        position, last = position + 12 + length, name
    return None


def _is_chunk_whole(encoded: bytes, position: int, length: int) -> bool:
    end = position + 8 + length
    return zlib.crc32(memoryview(encoded)[position + 4 : end]) == int.from_bytes(encoded[end : end + 4], "big") and (
        end + 4 <= len(encoded)
    )


def _is_plain(name: bytes, body: bytes, header: PngHeader, seen: set[bytes]) -> bool:
    """Return True if no decoder here makes anything of the chunk, or all of them the same."""
    if name == b"PLTE":
        return header.color == _PALETTE and len(body) % 3 == 0 and 0 < len(body) // 3 <= 1 << header.bits
    if name == b"tEXt":
        return body.partition(b"\0")[0] in _KEYWORDS and len(body) < 1 << 16
    return len(body) == _LENGTHS.get(name) and b"PLTE" not in seen
