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
    """A window at a random place of the stored picture, resized to the image's size.

    Source: C. Szegedy et al., Going Deeper with Convolutions, arXiv:1409.4842, section 6.
    """

    scale: Annotated[tuple[_Area, _Area], Field(strict=False)] = Field(
        (0.08, 1.0), description="Least and greatest area of the window, as a share of the picture's."
    )
    ratio: Annotated[tuple[_Aspect, _Aspect], Field(strict=False)] = Field(
        (0.75, 1.3333), description="Least and greatest width of the window for its height."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for name, (least, greatest) in (("scale", self.scale), ("ratio", self.ratio)):
            if least > greatest:
                raise ValueError(f"{name}: the least, {least:g}, is above the greatest, {greatest:g}")
        return self


class RandAugment(Strict):
    """Some operations out of fourteen at random: colours, sharpness, shear, turn, shift.

    Source: E. Cubuk et al., RandAugment, arXiv:1909.13719.
    """

    operations: Annotated[int, Field(ge=1, le=10)] = Field(2, description="Operations an image, one after another.")
    magnitude: Annotated[float, Field(ge=0, le=10)] = Field(9.0, description="Strength of each: 10 is the greatest.")


class Augment(Strict):
    """Random changes to training images, each drawn from (seed, step, position in the batch)."""

    crop: Crop | None = Field(None, description="Take a random window of the picture instead of the whole.")
    shift: Fraction = Field(0.0, description="Largest shift as a share of the image's size.")
    flip: bool = Field(False, description="Mirror left and right.")
    rotate: Annotated[float, Field(ge=0, le=180)] = Field(0.0, description="Largest rotation in degrees.")
    zoom: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="Largest change of scale, as a share.")
    rand_augment: RandAugment | None = Field(None, description="Some operations out of fourteen at random.")
    brightness: Fraction = Field(0.0, description="Largest change of brightness, as a share.")
    contrast: Fraction = Field(0.0, description="Largest change of contrast, as a share.")
    saturation: Fraction = Field(0.0, description="Largest change of saturation, as a share; of colour images.")
    hue: Annotated[float, Field(ge=0, le=0.5)] = Field(
        0.0, description="Largest turn of the hue, as a share of the colour circle; of colour images."
    )
    cutout: Fraction = Field(
        0.0, description="Side of a grey square that hides a part, as a share of the shorter side."
    )
    mixup: _Alpha = Field(
        0.0,
        description="classification: blend images in pairs, and their labels likewise, by a share drawn from "
        "Beta(mixup, mixup). 0 does not.",
    )
    cutmix: _Alpha = Field(
        0.0,
        description="classification: swap a window of such an area between the images of a pair, and the labels' "
        "shares likewise. With mixup as well, each pair has one of the two.",
    )

    @property
    def resamples(self) -> bool:
        """Whether pixels are interpolated."""
        return bool(self.shift or self.rotate or self.zoom)

    @property
    def mixes(self) -> bool:
        """Whether images and their labels are mixed in pairs."""
        return bool(self.mixup or self.cutmix)

    @property
    def on_device(self) -> bool:
        """Whether some augmentation runs on the device."""
        return bool(self.brightness or self.contrast or self.saturation or self.hue or self.cutout or self.mixes)
