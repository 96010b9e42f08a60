"""The steps of one run as `trainyard.graph` describes them: where outputs belong, what steps take, how gates end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from trainyard.contract import keys, weights
from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.artifacts.export import Exports
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.artifacts.push import Pushed
from trainyard.contract.artifacts.train import Training
from trainyard.contract.document import Document, FrozenModel
from trainyard.contract.version import Champion, champion
from trainyard.graph import OUTPUTS, STEPS
from trainyard.spec import selection
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage

_KINDS: tuple[type[Document], ...] = (Examples, Training, Evaluation, Exports, Pushed)
DOCUMENTS = {kind.made_by: kind for kind in _KINDS}
"""The document of each step's output, by step."""


class Placed(NamedTuple):
    """The folder of a step's output, and the arguments of its program that follow from the run."""

    output: str
    arguments: dict[str, str]


@dataclass
class Pipeline:
    """The steps of `recipe` over the storage `root`.

    outputs: the folders of the steps that are done. day: as `window.day_of` reads it. decisions: as those of
    `Evaluation`; default those of the model's evaluation among the `outputs`.
    """

    root: str
    recipe: Recipe
    outputs: dict[str, str] = field(default_factory=dict)
    day: str = ""
    decisions: str = ""

    @cached_property
    def best(self) -> Champion | None:
        """The champion at the first access; set it to compare with another model, or with None."""
        return champion(self.destination)

    @property
    def destination(self) -> str:
        """The folder of model versions that a server polls."""
        return keys.models_folder(self.root, self.recipe)

    @property
    def thresholds(self) -> str:
        """The decision thresholds as `Evaluation.decisions`, '' if the recipe has no aim for them."""
        if self.recipe.threshold is None:
            return ""
        return self.decisions or Evaluation.read(self.outputs[Evaluation.made_by]).decisions

    def place(self, step: str, again: bool = False) -> Placed:
        """Return the folder of `step`'s output and its arguments, from the `outputs` that it reads.

        again: as `training_plan`. Raises what finding out raises: `keys.fingerprint`, `champion`, `weights.digest`.
        """
        spec = STEPS[step]
        read = {STEPS[name].argument: self.outputs[name] for name in spec.reads}
        parts = [*read.values(), *(_KEYS[name](self) for name in spec.keyed_by)]
        output, start = keys.output_uri(self.root, self.recipe, step, *filter(None, parts)), ""
        if "start" in spec.inputs:
            plan = training_plan(output, self.recipe, self.best if self.recipe.train.warm_start else None, again)
            output, start = plan.model, plan.start
        known: dict[str, Callable[[], str]] = {
            "champion": lambda: self.best.path if self.best else "",
            "checkpoints": lambda: keys.checkpoints(output),
            "day": lambda: self.day,
            "destination": lambda: self.destination,
            "start": lambda: start,
            "thresholds": lambda: self.thresholds,
        }
        return Placed(output, read | {name: known[name]() for name in spec.inputs if name in known})

    def reaches(self, step: str) -> bool:
        """Return True if all steps before `step` are done and none of their gates refused."""
        before = OUTPUTS[: OUTPUTS.index(step)]
        return all(name in self.outputs and is_blessed(name, self.outputs[name]) for name in before)


_KEYS: dict[str, Callable[[Pipeline], str]] = {
    "fingerprint": lambda pipeline: keys.fingerprint(pipeline.recipe, pipeline.day),
    "weights": lambda pipeline: weights.digest(pipeline.recipe),
    "selection": lambda pipeline: selection.digest(pipeline.recipe),
    "champion": lambda pipeline: pipeline.best.digest if pipeline.best else "",
    "destination": lambda pipeline: pipeline.destination,
    "thresholds": lambda pipeline: pipeline.thresholds,
}
"""The values of `StepSpec.keyed_by`; an empty one is no part of a key."""


def is_blessed(step: str, output: str) -> bool:
    """Return True if later steps may run: the gate of `step`, if any, blessed its committed `output`.

    Raises as `Document.read`.
    """
    if not STEPS[step].judges:
        return True
    document = DOCUMENTS[step].read(output)
    return isinstance(document, Evaluation | Exports) and document.gate.verdict == "blessed"


class TrainingPlan(FrozenModel):
    """The folder of the model to be, and the version of the champion that it begins with: '' for first weights.

    maker: as `task.Task.maker`.
    """

    model: str
    start: str = ""
    maker: str = ""


def training_plan(model: str, recipe: Recipe, best: Champion | None, again: bool = False) -> TrainingPlan:
    """Return the folder and the start of a training while `best` is the champion.

    model: the folder of a training with initial weights. With a warm start the folder is named after the champion too.
    A model that this recipe and code have made of these examples is the answer whichever champion it began with, unless
    `again`: it becomes the champion itself, and would otherwise be trained on by each run without an end.
    """
    if recipe.train.warm_start is None:
        return TrainingPlan(model=model)
    folder, name = keys.split(model)
    models = [storage.join(folder, child) for child in storage.children(folder) if child.startswith(name)]
    done = [uri for uri in models if storage.committed(uri) is not None]
    if done and not again:
        newest = max(done, key=lambda uri: Training.read(uri).finished)
        return TrainingPlan(model=newest, start=Training.read(newest).start.warm_start)
    if best is None:
        return TrainingPlan(model=model)
    return TrainingPlan(model=f"{model}-from-{best.digest[:16]}", start=best.path)
