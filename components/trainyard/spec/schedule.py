"""The retraining schedule: the conditions that the first step of a scheduled run checks."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from trainyard.spec.documents import Strict

LABEL = "label"
"""The name of the classes among the features."""

Shift = Annotated[float, Field(gt=0, le=1e6)]
Change = Annotated[float, Field(gt=0, le=1)]
Index = Annotated[float, Field(gt=0, le=100)]


class FeatureBounds(Strict):
    """Bounds of one feature. Default: those of all features."""

    max_mean_shift: Shift | None = Field(None, description="As in drift.")
    max_frequency_change: Change | None = Field(None, description="As in drift.")
    max_missing_change: Change | None = Field(None, description="As in drift.")
    max_jensen_shannon: Change | None = Field(None, description="As in drift.")
    max_psi: Index | None = Field(None, description="As in drift.")


class Bounds(Strict):
    """Bounds for the difference between the training split and the champion's; more is drift."""

    max_mean_shift: Shift = Field(
        0.25, description="Numbers: absolute difference of the means, in the champion's standard deviations."
    )
    max_frequency_change: Change = Field(
        0.1, description="Categories and classes: largest change of a value's share (L-infinity)."
    )
    max_missing_change: Change = Field(0.05, description="Change of the share of missing values.")
    max_jensen_shannon: Change | None = Field(
        None, description="Jensen-Shannon divergence, 0 to 1; numbers in the champion's deciles."
    )
    max_psi: Index | None = Field(None, description="Population stability index, likewise; 0.25 counts as large.")
    features: dict[Annotated[str, Field(max_length=256)], FeatureBounds] = Field(
        default_factory=dict,
        max_length=10_000,
        description="Bounds of single features, or of the classes as `label`.",
    )
    refuse: bool = Field(
        False,
        description="Refuse a model whose data have drifted, instead of a warning.",
    )

    def for_feature(self, feature: str) -> Bounds:
        """Return the bounds of `feature`."""
        override = self.features.get(feature)
        return self.model_copy(update=override.model_dump(exclude_none=True)) if override else self


class When(Strict):
    """Conditions for a scheduled run to train; one is enough. Without a champion it always trains."""

    new_data: bool = Field(
        False,
        description="This data, recipe and code were neither pushed nor refused before.",
    )
    drift: bool = Field(False, description="The data are new and exceed the recipe's drift bounds.")
    served_drift: Annotated[str, Field(max_length=1024, pattern=r"^(gs://|s3://|/).+")] | None = Field(
        None,
        description="Folder of `serve --log`: the champion's newest answers, at least 1,000, exceed the recipe's drift "
        "bounds, and the data are new.",
    )
    champion_older_than: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,4}[hd]$")] | None = Field(
        None, description="The champion was pushed or confirmed longer ago, such as 12h or 7d."
    )

    @model_validator(mode="after")
    def _ever(self) -> Self:
        if not (self.new_data or self.drift or self.served_drift or self.champion_older_than):
            raise ValueError("nothing is named, so no run would train. Name a condition, or leave when out")
        return self

    @property
    def hours(self) -> float | None:
        """champion_older_than in hours."""
        if self.champion_older_than is None:
            return None
        return int(self.champion_older_than[:-1]) * (24.0 if self.champion_older_than.endswith("d") else 1.0)
