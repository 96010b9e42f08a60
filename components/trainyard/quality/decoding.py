"""Decodes an image with Pillow to 8 bits a channel, composited on white, as docs/reference/images.md defines it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image

from trainyard.contract.image_formats import PNG_BITS

FULL_SCALE = 65535.0
_BITS_PER_SAMPLE, _PLANES = 258, 284  # tags of TIFF; 2 planes are apart


@dataclass(frozen=True)
class PixelForm:
    """The pixels of a decoded image. white_level: the value of white in images of more than 8 bits, if known."""

    channels: Literal[1, 3]
    white_level: float | None = None


class UnscaledImageError(Exception):
    """The image has no white level: its numbers cannot become 8 bits."""


def depth_of(image: Image.Image, encoded: bytes) -> int:
    """Return the bits a channel of the image that Pillow opened in `encoded`: 8 for fewer; 32 for int32 and float.

    Raises `UnscaledImageError` for a TIFF of which Pillow takes other pixels than it holds.
    """
    if image.mode == "F" or (image.mode == "I" and image.format == "TIFF"):
        return 32
    if image.format == "PNG":
        return max(8, encoded[PNG_BITS])
    if image.format == "TIFF":
        samples: tuple[int, ...] = image.tag_v2.get(_BITS_PER_SAMPLE, (8,))  # type: ignore[attr-defined]
        if max(samples) > 8 and image.tag_v2.get(_PLANES) == 2:  # type: ignore[attr-defined] # seen with Pillow 12
            raise UnscaledImageError(
                f"its colors of {max(samples)} bits are in separate planes. Write them pixel by pixel, or as PNG"
            )
        return max(8, *samples)
    return 16 if image.mode.startswith("I") else 8


def in_eight_bits(image: Image.Image, form: PixelForm, depth: int) -> Image.Image:
    """Return the loaded `image` of `depth` bits as L or RGB, like `trainyard.data.images.decode_png` for a PNG.

    Raises `UnscaledImageError` if it has 32 bits and no white level is known, or has 16 bits in colors, which Pillow
    cannot scale, and one is.
    """
    white_level = form.white_level
    if depth > 16 and white_level is None:
        pixels = np.asarray(image)
        kind = "floating-point" if image.mode == "F" else "32-bit"
        raise UnscaledImageError(
            f"its pixels are {kind} numbers from {np.nanmin(pixels):g} to {np.nanmax(pixels):g}. Set "
            "data.white_level to the number that stands for white, such as 1.0 for 0 to 1"
        )
    if image.mode == "F" or image.mode.startswith("I"):
        if white_level is None:
            levels = np.clip(np.asarray(image), 0, FULL_SCALE) // 256
        else:
            values = np.nan_to_num(np.asarray(image, np.float32), nan=0.0)
            levels = np.clip(np.rint(values * np.float32(255) / np.float32(white_level)), 0, 255)
        if (transparent := image.info.get("transparency")) is not None:  # of which Pillow makes no alpha channel
            levels[np.asarray(image) == transparent] = 255
        image = Image.fromarray(levels.astype(np.uint8))
    elif depth > 8 and white_level is not None:
        raise UnscaledImageError(
            f"it has {depth} bits a channel in colors, which data.white_level scales in PNG only. Convert it to PNG"
        )
    return on_white(image).convert("L" if form.channels == 1 else "RGB")


def on_white(image: Image.Image) -> Image.Image:
    """Return `image` composited on white, or as it is if it has no alpha channel and no transparent color."""
    if not image.has_transparency_data:
        return image
    pixels = np.asarray(image.convert("RGBA"), np.int32)
    values, alpha = pixels[..., :3], pixels[..., 3:]
    return Image.fromarray(((values * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8))


def is_opaque(image: Image.Image) -> bool:
    """Return True if no pixel of the loaded `image` is transparent; a transparent color may occur in it."""
    if "transparency" in image.info:  # of 2 and 4 bits, Pillow does not find the color
        return False
    if not image.has_transparency_data:
        return True
    return image.convert("RGBA").getchannel("A").getextrema() == (255, 255)


def is_constant(image: Image.Image) -> bool:
    """Return True if all pixels of `image`, L or RGB, are alike: it holds nothing to learn from."""
    ends = image.getextrema()
    return all(low == high for low, high in (ends if isinstance(ends[0], tuple) else (ends,)))
