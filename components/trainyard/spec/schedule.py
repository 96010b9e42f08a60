"""The retraining schedule: the conditions that the first step of a scheduled run checks."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from trainyard.spec.documents import Strict

Shift = Annotated[float, Field(gt=0, le=1e6)]
Change = Annotated[float, Field(gt=0, le=1)]
Index = Annotated[float, Field(gt=0, le=100)]


class FeatureBounds(Strict):
    """Bounds of one feature. What is left out is as for all features."""

    max_mean_shift: Shift | None = Field(None, description="As in drift.")
    max_frequency_change: Change | None = Field(None, description="As in drift.")
    max_missing_change: Change | None = Field(None, description="As in drift.")
    max_jensen_shannon: Change | None = Field(None, description="As in drift.")
    max_psi: Index | None = Field(None, description="As in drift.")


class Bounds(Strict):
    """How far the training split may move from the one that the champion learnt from before that counts as drift."""

    max_mean_shift: Shift = Field(
        0.25, description="Numbers: absolute difference of the means, in standard deviations before."
    )
    max_frequency_change: Change = Field(
        0.1, description="Categories and classes: largest change of any one value's share of the examples (L-infinity)."
    )
    max_missing_change: Change = Field(0.05, description="Change of the share of examples without a value.")
    max_jensen_shannon: Change | None = Field(
        None, description="Jensen-Shannon divergence of the values, 0 to 1; numbers in tenths of those before."
    )
    max_psi: Index | None = Field(
        None, description="Population stability index of the values, likewise; by a rule of thumb 0.25 is much."
    )
    features: dict[Annotated[str, Field(max_length=256)], FeatureBounds] = Field(
        default_factory=dict,
        max_length=10_000,
        description="Other bounds for some features, or for the classes by `label`.",
    )
    refuse: bool = Field(
        False,
        description="Whether evaluate refuses a model whose data have drifted from the champion's. Else it warns.",
    )

    def of(self, feature: str) -> Bounds:
        """Return the bounds of `feature`."""
        own = self.features.get(feature)
        return self.model_copy(update=own.model_dump(exclude_none=True)) if own else self


class When(Strict):
    """What must hold for a scheduled run to train; any one is enough. A recipe without a champion is always trained."""

    new_data: bool = Field(
        False,
        description="What would be trained from the data as they are now, by this recipe and code, is not there yet.",
    )
    drift: bool = Field(
        False, description="The data are new, and have left the recipe's drift bounds around those of the champion."
    )
    champion_older_than: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,4}[hd]$")] | None = Field(
        None, description="The champion was pushed, or confirmed by an equal one, longer ago: 12h, 7d."
    )

    @model_validator(mode="after")
    def _ever(self) -> Self:
        if not (self.new_data or self.drift or self.champion_older_than):
            raise ValueError("nothing is named, so no run would train. Name a condition, or leave when out")
        return self

    @property
    def hours(self) -> float | None:
        """champion_older_than in hours."""
        if self.champion_older_than is None:
            return None
        return int(self.champion_older_than[:-1]) * (24.0 if self.champion_older_than.endswith("d") else 1.0)
