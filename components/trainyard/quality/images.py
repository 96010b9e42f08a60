"""Profiles images by their headers, and by their content; finds those that look the same without comparing each pair.

A perceptual hash is two difference hashes: is each of 8 x 8 patches brighter than its right neighbor, and than the one
below. Source: Krawetz (2013), Kind of Like That, https://www.hackerfactor.com/blog/index.php?/archives/529-.html
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from trainyard.contract.image_formats import BROKEN, FORMATS
from trainyard.errors import DataError
from trainyard.quality import findings
from trainyard.quality.decoding import (
    PixelForm,
    UnscaledImageError,
    depth_of,
    in_eight_bits,
    is_constant,
)
from trainyard.quality.profile import ColumnProfile, ImageProfile, Profile, Repeats, SheetImage
from trainyard.quality.source import SourceFiles
from trainyard.quality.tables.cells import cells
from trainyard.quality.tables.columns import ColumnCounter, numbers_profile
from trainyard.quality.tables.hashes import mixed
from trainyard.quality.tables.tables import why_target
from trainyard.storage.listing import SourceFile, copy_advice

SAMPLED = 20_000
"""Images that are decoded, drawn by their place, of more. Chosen: half a minute of one core."""

_MOST_PIXELS = 50_000_000  # chosen, as data.max_image_pixels
_SHEET, _SIDE = 48, 96  # images of the contact sheet, and their longer side in pixels; chosen
_SUCH_AS = 5
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


@dataclass
class _ImageCounters:
    white_level: float | None = None
    formats: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    broken_such_as: dict[str, str] = field(default_factory=dict)  # the first file with each fault, by the fault
    heights: list[int] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    first: dict[bytes, tuple[str, str]] = field(default_factory=dict)
    repeats: int = 0
    repeated: list[list[str]] = field(default_factory=list)
    conflicts: int = 0
    conflicting: list[list[str]] = field(default_factory=list)
    constant: list[str] = field(default_factory=list)
    level: int = -1
    cells: dict[str, str] = field(default_factory=dict)  # the label of each image that can be read, '' if it has none
    names: list[str] = field(default_factory=list)
    hashes: list[PerceptualHash] = field(default_factory=list)
    sheet: dict[str, list[SheetImage]] = field(default_factory=dict)


def profile_images(source: SourceFiles, white_level: float | None = None, *, is_number: bool | None = None) -> Profile:
    """Return the profile of the images; the class of each is the first folder that it lies in.

    white_level: `data.white_level` of the recipe. is_number: as of `profile_table`, of labels in a file.

    Raises `DataError` if none of the files is an image.
    """
    counts = _ImageCounters(white_level)
    draws = mixed(np.arange(1, len(source.files) + 1, dtype=np.uint64))
    limit = np.partition(draws, SAMPLED)[SAMPLED] if len(draws) > SAMPLED else np.uint64(2**64 - 1)
    per_class = max(1, _SHEET // max(1, len({source.label(file.name) for file in source.files})))
    for file, draw in zip(source.files, draws, strict=True):
        _count(counts, source, file, bool(draw <= limit), per_class)
    broken_such_as = [f"{name} ({detail})" for detail, name in counts.broken_such_as.items()]
    if not counts.heights:
        raise DataError(
            f"{source.path}: none of the {len(source.files):,} files is an image that can be read, such as "
            f"{'; '.join(broken_such_as)}. Name another folder."
            + copy_advice((file.reason for file in source.files), source.path)
        )
    near, near_count = near_duplicate_pairs(counts.names, counts.hashes)
    measures = {"height": counts.heights, "width": counts.widths, "bytes": counts.sizes}
    columns = [numbers_profile(name, np.array(values, np.float64)) for name, values in measures.items()]
    label = _label_column(source, counts.cells)
    if label is not None and (bool(why_target(label, counts.labels)) if is_number is None else is_number):
        columns.append(label)
        counts.labels.clear()
    profile = Profile(
        source=source.path,
        kind="image_folder",
        files=len(source.files),
        bytes=sum(file.bytes for file in source.files),
        rows=len(counts.heights),
        label=label.name if label else "folder" if counts.labels else None,
        labels_file=source.labels.file if source.labels else "",
        delimiter=source.dialect.delimiter or ",",
        encoding=source.dialect.encoding,
        skip_rows=source.dialect.skip_rows,
        comment=source.dialect.comment,
        decimal="," if source.dialect.comma_numbers else ".",
        classes=dict(sorted(counts.labels.items(), key=lambda item: (-item[1], item[0]))),
        columns=columns,
        repeated=Repeats(
            repeats=counts.repeats,
            such_as=counts.repeated,
            conflicts=counts.conflicts,
            conflicts_such_as=counts.conflicting,
        ),
        images=ImageProfile(
            formats=dict(counts.formats.most_common()),
            modes=dict(counts.modes.most_common()),
            broken=dict(counts.broken.most_common()),
            broken_such_as=broken_such_as,
            constant=len(counts.constant),
            constant_such_as=counts.constant[:_SUCH_AS],
            level=counts.level,
            hashed=len(counts.hashes),
            near=near,
            near_count=near_count,
            sheet=[image for label in sorted(counts.sheet) for image in counts.sheet[label]][:_SHEET],
        ),
        other_files=source.other_files,
        hidden=source.hidden,
        splits=source.splits,
        deeper_folders=source.deeper_folders,
    )
    return profile.model_copy(update={"findings": findings.image_findings(profile)})


def _label_column(source: SourceFiles, labels: dict[str, str]) -> ColumnProfile | None:
    """Return the profile of the column with the `labels` by image, None if there is no such column."""
    if source.labels is None or not any(labels.values()):
        return None
    names, counter = [*labels], ColumnCounter(source.labels.columns[0])
    counter.add(cells(pa.array(labels.values(), pa.string())), names.__getitem__, 0)
    return counter.profile()


@dataclass(frozen=True)
class SizedImage:
    """One image by its header: its name below the root, its class, and its size in pixels."""

    name: str
    label: str
    height: int
    width: int


def measure(source: SourceFiles, file: SourceFile) -> SizedImage | str:
    """Return the size of the image in `file` by its header, or why it has none."""
    try:
        if file.reason:
            return file.detail
        with source.open(file) as stream, Image.open(stream, formats=FORMATS) as image:
            return SizedImage(file.name, source.label(file.name) or "", image.height, image.width)
    except UnidentifiedImageError:
        return "no image"
    except (*BROKEN, Image.DecompressionBombError) as error:
        return str(error)


def _count(counts: _ImageCounters, source: SourceFiles, file: SourceFile, sampled: bool, per_class: int) -> None:
    try:
        if file.reason:
            raise OSError(file.detail)
        with source.open(file) as stream:
            encoded = stream.read()
        if not encoded:
            raise OSError("the file is empty")
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise OSError(f"{image.width} x {image.height} pixels")
            height, width, mode, kind = image.height, image.width, image.mode, image.format or "?"
            label = source.label(file.name)
            if sampled:
                depth = depth_of(image, encoded)
                image_hash = _perceptual_hash(counts, image, encoded, file.name, depth)
                sheet = counts.sheet.setdefault(label or "", [])
                if len(sheet) < per_class and len(counts.sheet) <= _SHEET:
                    sheet.append(_thumbnail(encoded, file.name, label or "", PixelForm(3, counts.white_level)))
                counts.hashes.append(image_hash)
                counts.names.append(file.name)
    except Image.DecompressionBombError as error:
        _broken(counts, "too_many_pixels", file.name, str(error))
        return
    except UnidentifiedImageError:
        _broken(counts, "not_an_image", file.name, "is no image")
        return
    except UnscaledImageError as error:
        _broken(counts, "unscaled_image", file.name, str(error))
        return
    except BROKEN as error:
        _broken(counts, "truncated_or_unreadable", file.name, str(error))
        return
    counts.formats[kind] += 1
    counts.modes[mode] += 1
    counts.heights.append(height)
    counts.widths.append(width)
    counts.sizes.append(len(encoded))
    counts.cells[file.name] = label or ""
    if label is not None:
        counts.labels[label] += 1
    _compare(counts, encoded, file.name, label or "")


def _perceptual_hash(
    counts: _ImageCounters, image: Image.Image, encoded: bytes, name: str, depth: int
) -> PerceptualHash:
    """Return the perceptual hash of an image, and note the image if all its pixels are the same."""
    form = PixelForm(3, counts.white_level)
    if depth == 8:
        image.draft("L", (4 * SIDE, 4 * SIDE))  # a JPEG is decoded in gray and small
    image.load()
    small = in_eight_bits(image, replace(form, channels=1), depth)
    if depth > 8 and counts.white_level is None:
        counts.level = max(counts.level, int(np.asarray(small).max()))
    image_hash = hash_gray(small)
    if not any(image_hash):
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as whole:
            whole.load()
            if is_constant(in_eight_bits(whole, form, depth)):
                counts.constant.append(name)
    return image_hash


def _compare(counts: _ImageCounters, encoded: bytes, name: str, label: str) -> None:
    digest = hashlib.blake2b(encoded, digest_size=16).digest()
    first = counts.first.setdefault(digest, (name, label))
    if first[0] == name:
        return
    counts.repeats += 1
    if len(counts.repeated) < _SUCH_AS:
        counts.repeated.append([first[0], name])
    if first[1] != label:
        counts.conflicts += 1
        if len(counts.conflicting) < _SUCH_AS:
            counts.conflicting.append([first[0], name])


def _broken(counts: _ImageCounters, reason: str, name: str, detail: str) -> None:
    counts.broken[reason] += 1
    if len(counts.broken_such_as) < _SUCH_AS:
        counts.broken_such_as.setdefault(detail, name)


def _thumbnail(encoded: bytes, name: str, label: str, form: PixelForm) -> SheetImage:
    stream = io.BytesIO()
    with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
        height, width, depth = image.height, image.width, depth_of(image, encoded)
        image.draft("RGB", (2 * _SIDE, 2 * _SIDE))  # a JPEG is decoded small
        image.load()
        small = in_eight_bits(image, form, depth)
        small.thumbnail((_SIDE, _SIDE))
        small.getexif().update(image.getexif())
        ImageOps.exif_transpose(small).save(stream, "JPEG", quality=80)
    thumbnail = base64.b64encode(stream.getvalue()).decode()
    return SheetImage(name=name, label=label, height=height, width=width, thumbnail=thumbnail)


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
