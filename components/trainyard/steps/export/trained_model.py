"""A trained model as files for servers and devices, each compared with the model it came from."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard import events
from trainyard.contract.artifacts.evaluate import thresholds_by_id
from trainyard.contract.artifacts.export import Exports
from trainyard.contract.statistics.drift import Statistics
from trainyard.data import trained
from trainyard.data.examples import open_examples
from trainyard.data.trained import Replicas
from trainyard.errors import ConfigurationError
from trainyard.spec import devices as registered
from trainyard.spec import trees
from trainyard.spec.networks import TREES
from trainyard.spec.recipe import Format, Recipe
from trainyard.steps.export import calling, demo, device, devices, edge_tpu, parity, skew
from trainyard.steps.export.formats import FORMATS, TrainedFiles, keras_predictor
from trainyard.steps.export.on_device.timing import machine
from trainyard.storage import storage

if TYPE_CHECKING:
    import keras


def export_trained(recipe: Recipe, examples: str, model: str, output: Path, thresholds: dict[str, float]) -> None:
    """Write what `run` writes of a model that was trained on the examples.

    thresholds: of decisions, by class.
    """
    start = time.monotonic()
    if recipe.export.demo:
        demo.runtime_files()  # a missing one is reported before the formats are written
    folder = open_examples(examples)
    network = trained.load(model)
    float32 = trained.in_float32(network)
    written, left_out = _write(recipe, TrainedFiles(recipe, folder, model, network, float32, thresholds), output)
    events.emit("exported", formats=",".join(written), seconds=round(time.monotonic() - start, 2))

    start = time.monotonic()
    document = folder.document

    def compared(replica: keras.Model, exact: keras.Model) -> parity.Compared:
        candidates = [FORMATS[name].open(name, output / FORMATS[name].path, document) for name in written]
        reference = keras_predictor(replica, document)
        return parity.Compared(
            candidates, reference, reference if exact is replica else keras_predictor(exact, document)
        )

    def load() -> parity.Compared:
        replica = trained.load(model)
        return compared(replica, trained.in_float32(replica))

    replicas = Replicas(compared(network, float32), load)
    measured = parity.measure(replicas, folder, thresholds_by_id(thresholds, document.labels or []))
    are_exact = [name for name in written if FORMATS[name].exact]
    verdict = parity.judge(measured, recipe.task, recipe.export.max_accuracy_drop, are_exact)
    for name in filter(recipe.export.is_optional, written):
        if failed := [item for item in verdict.thresholds if item.name.startswith(f"{name} ") and not item.passed]:
            left_out[name] = f"it is too far from the trained model ({failed[0].name}, is {failed[0].value:.4g})"
            (output / FORMATS[name].path).unlink()
    if left_out:
        measured = [file for file in measured if file.export.format not in left_out]
        verdict = parity.judge(measured, recipe.task, recipe.export.max_accuracy_drop, are_exact)
    for name, reason in left_out.items():
        message = f"{name} is left out: {reason}. Name it in export.formats to have the run refuse instead."
        events.emit("warning", message=message)
    files = {name: FORMATS[name].path for name in written if name not in left_out}
    exports = [file.export for file in measured]
    for index, file in enumerate(exports):
        if file.format == "litert_int8":
            mapping = edge_tpu.map_file(output / file.path, output / edge_tpu.FOLDER)
            exports[index] = file.model_copy(update={"edge_tpu": mapping})
            if recipe.export.min_mapped_share:
                verdict = parity.extend(verdict, parity.judge_mapping(mapping, recipe.export.min_mapped_share))
        for device_name, limits in recipe.export.devices.items():
            if limits.format == file.format and verdict.verdict == "blessed":  # otherwise nothing is pushed
                timed = devices.measure(device_name, registered.find(device_name), output / file.path)
                exports[index] = exports[index].model_copy(update={"devices": [*exports[index].devices, timed]})
                verdict = parity.extend(verdict, *devices.judge(device_name, limits, file, timed))
    borders = {path: border(output / path) for name, path in files.items() if (border := FORMATS[name].border)}
    device.write(recipe, document, examples, borders, output, thresholds)
    calling.write(recipe, document, examples, files, borders, output, thresholds)
    if recipe.export.demo:
        demo.write(recipe, document, output)
    shutil.copyfile(storage.join(examples, Statistics.file), output / Statistics.file)
    events.emit("compared", verdict=verdict.verdict, seconds=round(time.monotonic() - start, 2))
    start = time.monotonic()
    left = [candidate for candidate in replicas.first.candidates if candidate.format in files]
    # A model that is refused already is not pushed, so no server needs to start.
    paths = skew.compare_paths(output, recipe, folder, left, replicas.first.float32, verdict.verdict == "blessed")
    same = skew.threshold(paths)
    verdict = parity.extend(verdict, same)
    events.emit("proved", verdict="blessed" if same.passed else "refused", seconds=round(time.monotonic() - start, 2))
    Exports(
        exports=exports,
        gate=verdict,
        skew=paths,
        left_out=dict(left_out),
        thresholds=thresholds,
        machine=machine(),
    ).write(output)


def _write(recipe: Recipe, files: TrainedFiles, output: Path) -> tuple[list[Format], dict[Format, str]]:
    """Write the recipe's formats; return those, and why one that the recipe does not name is left out."""
    formats, written = recipe.export.files, list[Format]()
    left_out: dict[Format, str] = {}
    for done, name in enumerate(formats):
        events.progress(done, len(formats), "files", format=name)
        if recipe.model.name == TREES and name not in trees.FORMATS:
            left_out[name] = "boosted_trees compares in float32, and fewer bits would change the branches"
            continue
        try:
            FORMATS[name].write(files, output / FORMATS[name].path)
            written.append(name)
        except ConfigurationError as error:
            if not recipe.export.is_optional(name):
                raise
            left_out[name] = str(error).removeprefix(f"export.formats: {name}: ").partition(". ")[0]
    events.progress(len(formats), len(formats), "files")
    return written, left_out
