"""The folder of a training's model, and its initial weights."""

from __future__ import annotations

from trainyard.contract import keys
from trainyard.contract.artifacts.train import Training
from trainyard.contract.champion import Champion
from trainyard.contract.document import FrozenModel
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage

_DIGEST = 16


class TrainingPlan(FrozenModel):
    """The folder of the model to be, and the version of the champion that it begins with: '' for first weights.

    maker: as `task.Task.maker`.
    """

    model: str
    start: str = ""
    maker: str = ""


def plan(model: str, recipe: Recipe, best: Champion | None, again: bool = False) -> TrainingPlan:
    """Return the recipe to train while `best` is the champion; `model` is the folder of initial weights.

    With a warm start the folder is named after the champion too. A model that this recipe and code have made of these
    examples is the answer whichever champion it began with, unless `again`: it becomes the champion itself, and would
    otherwise be trained on by each run without an end.
    """
    if recipe.train.warm_start is None:
        return TrainingPlan(model=model)
    folder, name = keys.split(model)
    models = [storage.join(folder, child) for child in storage.children(folder) if child.startswith(name)]
    done = [uri for uri in models if storage.committed(uri) is not None]
    if done and not again:
        newest = max(done, key=lambda uri: Training.read(uri).finished)
        return TrainingPlan(model=newest, start=Training.read(newest).warm_start)
    if best is None:
        return TrainingPlan(model=model)
    return TrainingPlan(model=f"{model}-from-{best.digest[:_DIGEST]}", start=best.path)
