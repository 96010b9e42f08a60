"""How far data may drift before that is a reason to train again."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainyard.spec.documents import Strict


class Bounds(Strict):
    """How far the training split may move from the one that the champion learnt from before that counts as drift."""

    max_mean_shift: Annotated[float, Field(gt=0, le=1e6)] = Field(
        0.25, description="numbers: |difference of the means| / standard deviation before."
    )
    max_frequency_change: Annotated[float, Field(gt=0, le=1)] = Field(
        0.1, description="categories and classes: largest change of any one value's share of the examples."
    )
    max_missing_change: Annotated[float, Field(gt=0, le=1)] = Field(
        0.05, description="Change of the share of examples without a value."
    )
