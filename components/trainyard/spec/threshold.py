"""The aim of the decision threshold."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from trainyard.spec.documents import Strict
from trainyard.spec.gates import class_text

Share = Annotated[float, Field(gt=0, le=1)]


class ThresholdAim(Strict):
    """The aim that a class meets on the eval split, from which its decision threshold follows."""

    model_config = ConfigDict(serialize_by_alias=True)

    maximize: Literal["f1"] | None = Field(None, description="Choose the threshold with the highest F1 of the class.")
    recall: Share | None = Field(
        None, description="Minimum recall of the class; of the thresholds that reach it, the one of highest precision."
    )
    precision: Share | None = Field(
        None, description="Minimum precision of the class; of the thresholds that reach it, the one of highest recall."
    )
    class_name: Annotated[str, BeforeValidator(class_text), Field(max_length=512)] | None = Field(
        None,
        alias="class",
        description="Class that is predicted if its probability is above the threshold. Required for a "
        "classification, whose other classes are predicted otherwise; multi_label: default each class.",
    )

    @model_validator(mode="after")
    def _one_aim(self) -> Self:
        if [self.maximize, self.recall, self.precision].count(None) != 2:
            raise ValueError("give exactly one of maximize, recall, precision")
        return self

    @property
    def name(self) -> str:
        """The metric of the aim."""
        return self.maximize or ("recall" if self.recall is not None else "precision")
