"""Finds images that look the same, whatever their size and encoding, without comparing each with each.

A perceptual hash is two difference hashes: is each of 8 x 8 patches brighter than its right neighbor, and than the one
below. Source: Krawetz (2013), Kind of Like That, https://www.hackerfactor.com/blog/index.php?/archives/529-.html
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from trainyard.quality.images.decoding import PixelForm, UnscaledImageError, depth_of, in_eight_bits

NEAR = 7
"""Bits of the 128 in which the hashes of the same image differ at most.

Chosen: by the pigeonhole principle such hashes have at least one of 8 bands of 16 bits in common.
"""

_BANDS = 8
_PLAIN = 12  # chosen: with fewer bits set (or unset) the image is plain, and looks like any other plain one
_CROWD = 500  # chosen: of a larger group with a band in common, only neighbors by the rest of the bits are compared
_MAX_PAIRS = 1_000_000  # chosen: pairs that are compared, in some 200 MB; with more of them the rest is not looked for
_SHOWN = 20
SIDE = 9
"""Patches of a hash, one more than its bits a row."""

PerceptualHash = bytes
Hashes = NDArray[np.uint8]


def hash_encoded(encoded: bytes) -> PerceptualHash:
    """Return the perceptual hash of an encoded image, that of a plain image if it is broken."""
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            depth = depth_of(image, encoded)
            image.draft("L", (4 * SIDE, 4 * SIDE))  # a JPEG is decoded in gray and small
            image.load()
            return hash_gray(in_eight_bits(image, PixelForm(1), depth))
    except (OSError, SyntaxError, ValueError, UnscaledImageError, Image.DecompressionBombError):
        return bytes(16)


def hash_gray(image: Image.Image) -> PerceptualHash:
    """Return the perceptual hash of an image in mode L, 16 bytes."""
    pixels = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX), np.int16)
    bits = np.concatenate([(pixels[:-1, 1:] > pixels[:-1, :-1]).ravel(), (pixels[1:, :-1] > pixels[:-1, :-1]).ravel()])
    return np.packbits(bits).tobytes()


def near_duplicate_pairs(names: Sequence[str], hashes: Sequence[PerceptualHash]) -> tuple[list[list[str]], int]:
    """Return up to 20 pairs of names of near duplicates, the nearest first, and the number of all pairs."""
    distances = near_duplicates(np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, 16))
    order = sorted(distances, key=lambda pair: (distances[pair], names[pair[0]], names[pair[1]]))
    return [sorted((names[first], names[second])) for first, second in order[:_SHOWN]], len(distances)


def near_duplicates(hashes: Hashes) -> dict[tuple[int, int], int]:
    """Return the bits in which the near duplicates among `hashes` (n, 16) differ, by their two indices.

    Plain images are left out. Beyond a million pairs the rest is not looked for. If more than 500 images have a
    band in common, some pairs among them may be missed.
    """
    ones = np.bitwise_count(hashes).sum(axis=1)
    indices = np.flatnonzero((ones >= _PLAIN) & (ones <= 128 - _PLAIN))
    words = np.ascontiguousarray(hashes[indices]).view(np.uint64)
    bands = np.ascontiguousarray(hashes[indices]).view(np.uint16)
    distances: dict[tuple[int, int], int] = {}
    for band in range(_BANDS):
        for first, second in _candidates(bands, band):
            apart = np.bitwise_count(words[first] ^ words[second]).sum(axis=1)
            for index in np.flatnonzero(apart <= NEAR):
                a, b = int(indices[first[index]]), int(indices[second[index]])
                distances[min(a, b), max(a, b)] = int(apart[index])
            if len(distances) > _MAX_PAIRS:
                return distances
    return distances


def _candidates(bands: NDArray[np.uint16], band: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield pairs of places with the same `band`, those one, two, three ... places apart in an order by all bands."""
    order = np.lexsort([*(bands[:, other] for other in range(_BANDS) if other != band), bands[:, band]])
    values = bands[order, band]
    for offset in range(1, min(_CROWD, len(order))):
        same = np.flatnonzero(values[offset:] == values[:-offset])
        if not len(same):
            return
        yield order[same], order[same + offset]
