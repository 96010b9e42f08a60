"""Profiles a folder of images: reads each header, and hashes small decoded copies to find near duplicates."""

from __future__ import annotations

import base64
import hashlib
import io
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from trainyard.contract.image_formats import BROKEN, FORMATS
from trainyard.errors import DataError
from trainyard.quality import findings
from trainyard.quality.hashes import mixed
from trainyard.quality.images.decoding import (
    PixelForm,
    UnscaledImageError,
    depth_of,
    in_eight_bits,
    is_constant,
)
from trainyard.quality.images.perceptual_hash import SIDE, PerceptualHash, hash_gray, near_duplicate_pairs
from trainyard.quality.profile import ImageProfile, Profile, Repeats, SheetImage
from trainyard.quality.source import SourceFiles
from trainyard.quality.tables.columns import numbers_profile
from trainyard.storage.listing import SourceFile

SAMPLED = 20_000
"""Images that are decoded, drawn by their place, of more. Chosen: half a minute of one core."""

_MOST_PIXELS = 50_000_000  # chosen, as data.max_image_pixels
_SHEET, _SIDE = 48, 96  # images of the contact sheet, and their longer side in pixels; chosen
_SUCH_AS = 5


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
    names: list[str] = field(default_factory=list)
    hashes: list[PerceptualHash] = field(default_factory=list)
    sheet: dict[str, list[SheetImage]] = field(default_factory=dict)


def profile_images(source: SourceFiles, white_level: float | None = None) -> Profile:
    """Return the profile of the images; the class of each is the first folder that it lies in.

    white_level: `data.white_level` of the recipe.

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
        )
    near, near_count = near_duplicate_pairs(counts.names, counts.hashes)
    measures = {"height": counts.heights, "width": counts.widths, "bytes": counts.sizes}
    profile = Profile(
        source=source.path,
        kind="image_folder",
        files=len(source.files),
        bytes=sum(file.bytes for file in source.files),
        rows=len(counts.heights),
        ragged=0,
        ragged_such_as=[],
        label="folder" if counts.labels else None,
        label_is_guessed=False,
        classes=dict(sorted(counts.labels.items(), key=lambda item: (-item[1], item[0]))),
        columns=[numbers_profile(name, np.array(values, np.float64)) for name, values in measures.items()],
        first=[],
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
        findings=[],
        other_files=source.other_files,
        hidden=source.hidden,
    )
    return profile.model_copy(update={"findings": findings.image_findings(profile)})


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
