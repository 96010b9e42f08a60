"""Image augmentation in a recipe."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from trainyard.spec.documents import Strict

Fraction = Annotated[float, Field(ge=0, le=1)]
_Area = Annotated[float, Field(ge=0.01, le=1)]
_Aspect = Annotated[float, Field(ge=0.1, le=10)]
_Alpha = Annotated[float, Field(ge=0, le=100)]


class Crop(Strict):
    """Random crop of the stored image, resized to the image size.

    Source: C. Szegedy et al., Going Deeper with Convolutions, arXiv:1409.4842, section 6.
    """

    scale: Annotated[tuple[_Area, _Area], Field(strict=False)] = Field(
        (0.08, 1.0), description="Minimum and maximum area, as a share of the image."
    )
    ratio: Annotated[tuple[_Aspect, _Aspect], Field(strict=False)] = Field(
        (0.75, 1.3333), description="Minimum and maximum width relative to the height."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for name, (least, greatest) in (("scale", self.scale), ("ratio", self.ratio)):
            if least > greatest:
                raise ValueError(f"{name}: the least, {least:g}, is above the greatest, {greatest:g}")
        return self


class RandAugment(Strict):
    """Random operations out of fourteen: color, sharpness, shear, rotation, shift.

    Source: E. Cubuk et al., RandAugment, arXiv:1909.13719.
    """

    operations: Annotated[int, Field(ge=1, le=10)] = Field(2, description="Operations per image.")
    magnitude: Annotated[float, Field(ge=0, le=10)] = Field(
        9.0, description="Strength of each operation; 10 is the maximum."
    )


class Augment(Strict):
    """Random augmentation of training images, from (seed, step, position in the batch)."""

    crop: Crop | None = Field(None, description="Random crop instead of the whole image.")
    shift: Fraction = Field(0.0, description="Maximum shift, as a share of the image size.")
    flip: bool = Field(False, description="Random horizontal flip.")
    rotate: Annotated[float, Field(ge=0, le=180)] = Field(0.0, description="Maximum rotation in degrees.")
    zoom: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="Maximum zoom, as a share.")
    rand_augment: RandAugment | None = Field(None, description="Random operations out of fourteen.")
    brightness: Fraction = Field(0.0, description="Maximum change of brightness, as a share.")
    contrast: Fraction = Field(0.0, description="Maximum change of contrast, as a share.")
    saturation: Fraction = Field(0.0, description="Maximum change of saturation, as a share; color images only.")
    hue: Annotated[float, Field(ge=0, le=0.5)] = Field(
        0.0, description="Maximum change of hue, as a share of the color circle; color images only."
    )
    cutout: Fraction = Field(0.0, description="Side of a gray square over the image, as a share of the shorter side.")
    mixup: _Alpha = Field(
        0.0,
        description="classification: blend pairs of images and labels by a share from Beta(mixup, mixup). 0 disables"
        " it.",
    )
    cutmix: _Alpha = Field(
        0.0,
        description="classification: swap a window between pairs of images, and the same share of labels. With "
        "mixup, each pair gets one of the two.",
    )

    @property
    def resamples(self) -> bool:
        """True if pixels are interpolated."""
        return bool(self.shift or self.rotate or self.zoom)

    @property
    def mixes(self) -> bool:
        """True if images and their labels are mixed in pairs."""
        return bool(self.mixup or self.cutmix)

    @property
    def on_device(self) -> bool:
        """True if some augmentation runs on the device."""
        return bool(self.brightness or self.contrast or self.saturation or self.hue or self.cutout or self.mixes)
