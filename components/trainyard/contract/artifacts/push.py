"""The files in the folder of push, and the metadata of a pushed version."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from trainyard.contract.artifacts.evaluate import SliceMetrics
from trainyard.contract.artifacts.export import ExportedFile
from trainyard.contract.artifacts.gate import Approval, Interval, Override, Verdict
from trainyard.contract.document import Document, FrozenModel, Split, Time


class Pushed(Document):
    """Output of push: where the model went.

    already is true if this very model was there before. override: of a model that a gate refused. waits: it serves when
    a person has approved it.
    """

    file = "pushed.json"
    made_by = "push"

    path: str
    version: int
    digest: str
    already: bool
    override: Override | None = Field(None, exclude_if=lambda override: override is None)
    waits: bool = Field(False, exclude_if=lambda waits: not waits)


class GateRecord(Verdict):
    """A gate of a pushed model. name: model or exports. split: what it was measured on, None for reported metrics."""

    name: str
    split: Split | None


class _Gate(BaseModel):
    metric: str


class _Evaluate(BaseModel):
    gates: list[_Gate] | None = None


class _Recipe(BaseModel):
    """The values of a recipe that are read from a record."""

    name: str = ""
    task: str = ""
    evaluate: _Evaluate | None = None


def _readable(recipe: dict[str, Any]) -> dict[str, Any]:
    _Recipe.model_validate(recipe)
    return recipe


class VersionRecord(FrozenModel):
    """The origin of a version, in its manifest, so that it outlives its run. Empty fields are unknown.

    number: the version, also in a copy of its folder. recipe: with every default. run: the folder of the run. pushed:
    when, in UTC; by: the user's name on that machine. restored: the version that a rollback copied. approval: who let
    it serve. examples: by split; fingerprint: of the data. metrics, intervals and slices are those of the evaluation.
    exports: their paths are those in the folder of export. thresholds: of decisions, by class.
    """

    number: int | None = None
    recipe: Annotated[dict[str, Any], AfterValidator(_readable)] = {}
    run: str = ""
    pushed: Time = ""
    by: str = ""
    override: Override | None = None
    restored: int | None = None
    approval: Approval | None = None
    examples: dict[str, int] = {}
    fingerprint: str = ""
    metrics: dict[str, float] = {}
    intervals: dict[str, Interval] = {}
    slices: list[SliceMetrics] = []
    gates: list[GateRecord] = []
    exports: list[ExportedFile] = []
    thresholds: dict[str, float] = {}
    devices: list[str] = []
    training_seconds: float | None = None
