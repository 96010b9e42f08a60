"""Stored images in the shards: unchanged, at training size, or as pixels (`data.store` of the recipe)."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import simplejpeg
from PIL import Image

# The rest of a training-size image is for crops: 256 pixels for 224, as ImageNet's usual evaluation has it.
_MARGIN = 8 / 7
_QUALITY, _SUBSAMPLING = 90, "420"  # chosen; docs/how-to/own-images.md says what was measured
_PNG_LEVEL = 3  # measured: half the time of zlib's usual 6, and a tenth more bytes
_JPEG_SIDE = 65_500  # pixels; libjpeg writes no larger width or height
_LOSSY = frozenset(("JPEG", "MPO", "WEBP", "AVIF", "JPEG2000"))


@dataclass(frozen=True)
class Store:
    """`kind` of `data.store`, and the model's (height, width), which original does not need."""

    kind: Literal["original", "training_size", "raw"] = "original"
    image_size: tuple[int, int] | None = None

    def size(self, height: int, width: int) -> tuple[int, int] | None:
        """Return the height and width at which an image is stored; None if it stays as it is. Only raw enlarges."""
        if self.image_size is None or self.kind == "original":
            return None
        if self.kind == "raw":
            return self.image_size
        least = [math.ceil(side * _MARGIN) for side in self.image_size]
        scale = max(least[0] / height, least[1] / width)
        if scale >= 1:
            return None
        return max(least[0], round(height * scale)), max(least[1], round(width * scale))

    def resized(self, pixels: Image.Image, height: int, width: int) -> Image.Image:
        """Return `pixels` at this size, antialiased: raw as `decode_image` does, otherwise sharper."""
        if pixels.size == (width, height):
            return pixels
        if self.kind == "raw":
            return pixels.resize((width, height), Image.Resampling.BILINEAR)
        return pixels.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=1.0)

    def encoded(self, pixels: Image.Image, source: str, channels: int) -> bytes:
        """Encode `pixels`, L or RGB, for storage; `source` is the format of the original image.

        Raw: height x width x channels bytes. Otherwise a JPEG if the source is lossy too and no side is too long for
        it, or a PNG.
        """
        if self.kind == "raw":
            return pixels.convert("L" if channels == 1 else "RGB").tobytes()
        if source not in _LOSSY or max(pixels.size) > _JPEG_SIDE:
            stream = io.BytesIO()
            pixels.save(stream, "PNG", compress_level=_PNG_LEVEL)
            return stream.getvalue()
        if pixels.mode == "L":
            gray = np.asarray(pixels)[..., np.newaxis]
            return bytes(simplejpeg.encode_jpeg(gray, _QUALITY, colorspace="GRAY", colorsubsampling="Gray"))
        return bytes(simplejpeg.encode_jpeg(np.asarray(pixels), _QUALITY, colorsubsampling=_SUBSAMPLING))
