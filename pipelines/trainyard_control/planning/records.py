"""The runs that an environment's storage remembers, as observations of the planner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from trainyard.contract.artifacts.train import Training
from trainyard.contract.document import Document
from trainyard.errors import TrainyardError
from trainyard.spec.hardware.catalog import named
from trainyard.storage import storage
from trainyard_control.planning import sites
from trainyard_control.planning.learning import Observation
from trainyard_control.planning.roofline import ExampleCost, Site, communication_seconds, step_seconds

_Document = TypeVar("_Document", bound=Document)

MOST = 200  # chosen: recorded runs of one recipe that are read, the last by name


def observations(root: str, one_machine: bool) -> Iterator[Observation]:
    """Yield what the trainings committed below the storage `root` teach. Raises if a bucket cannot be read.

    one_machine: the workers of a gang shared the cores that each of them saw.
    """
    for recipe in storage.children(root):
        for training in trainings(root, recipe):
            yield from _observed(training, one_machine)


def outputs(root: str, recipe: str, step: str) -> list[str]:
    """Return where the outputs of `step` are, the newest last; those of a bucket by name."""
    folder = storage.join(root, recipe, step)
    uris = [storage.join(folder, key) for key in storage.children(folder)]
    return uris if "://" in root else sorted(uris, key=lambda uri: Path(uri).stat().st_mtime)


def readable(document: type[_Document], uris: Iterable[str]) -> Iterator[_Document]:
    """Yield the documents of the committed outputs `uris`, without those of other versions of Trainyard."""
    for uri in uris:
        with suppress(TrainyardError):
            yield document.read(uri)


def trainings(root: str, recipe: str) -> Iterator[Training]:
    """Yield the trainings of `recipe` that are committed below the storage `root`."""
    folder = storage.join(root, recipe, "train")
    yield from readable(Training, (storage.join(folder, key) for key in storage.children(folder)[-MOST:]))


def _observed(training: Training, one_machine: bool) -> Iterator[Observation]:
    """Yield what one training teaches; nothing if it is unfinished, or of a time before it recorded its cost."""
    site = _site(training, one_machine)
    if site is None or not training.flops_per_example or not training.finished:
        return
    activations = training.activations_per_example
    # A training of an earlier version did not count what is kept; then about what all layers put out is.
    saved = training.saved_activations_per_example or activations
    work = ExampleCost(
        training.parameters, training.flops_per_example, activations, saved, backbone_share=training.backbone_share
    )
    batch = round(training.examples_per_second * training.step_ms / 1000)
    predicted = step_seconds(work, batch, site) - communication_seconds(work, site)
    measured = (training.step_ms - training.all_reduce_ms) / 1000
    if measured > 0:
        yield Observation(site.hardware, training.model, measured / predicted, training.finished, training.xla)


def _site(training: Training, one_machine: bool) -> Site | None:
    """Return where it ran, None if the catalog does not know the device, or if no pool trains so: JAX on CPUs."""
    if training.hardware == "CPU":
        if training.engine != "tensorflow":
            return None
        return sites.cpu(training.cores / (training.workers if one_machine else 1), training.workers, None)
    name = named(training.hardware)
    if name is None:
        return None
    precision = "float32" if training.precision == "float32" else "auto"
    return sites.device(precision, name, training.replicas // training.workers, training.workers, training.cores, None)
