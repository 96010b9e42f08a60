"""When a recipe is trained again: the part of a schedule that the pipeline's first step decides by."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from trainyard.spec.documents import Strict


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
