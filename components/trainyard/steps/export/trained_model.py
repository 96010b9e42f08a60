"""A trained model as files for servers and devices, each compared with the model it came from."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import trainyard.data  # noqa: F401 - first: sets what TensorFlow reads while it is imported

# isort: split
import keras
import tensorflow as tf

from trainyard import events
from trainyard.child_process import LOST, ChildProcess, describe_exit
from trainyard.contract.artifacts.export import Exports
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.statistics.drift import Statistics
from trainyard.data import trained
from trainyard.data.examples import ExampleFolder, load_transform, open_examples
from trainyard.errors import ConfigurationError, TrainyardError, TransientError, failure_fields, from_code
from trainyard.spec.recipe import Format, Recipe
from trainyard.steps.export import device, gate, parity, signature
from trainyard.steps.export.lite import LiteConverter, LiteModel
from trainyard.steps.export.parity import ExportedModel, Predictor
from trainyard.storage import storage

_PATHS: dict[Format, str] = {
    "saved_model": "saved_model",
    "keras": "model.keras",
    "litert_float32": "model_float32.tflite",
    "litert_float16": "model_float16.tflite",
    "litert_int8": "model_int8.tflite",
}


def export_trained(recipe: Recipe, examples: str, model: str, output: Path) -> None:
    """Write what `run` writes of a model that was trained on the examples."""
    start = time.monotonic()
    folder = open_examples(examples)
    network = trained.load(model)
    float32 = trained.in_float32(network)
    written, left_out = _write(recipe, folder, model, network, float32, output)
    events.emit("exported", formats=",".join(written), seconds=round(time.monotonic() - start, 2))

    start = time.monotonic()
    document = folder.document
    reference = _keras_predictor(network, document)
    exact = reference if float32 is network else _keras_predictor(float32, document)
    candidates = [_candidate(format, output / _PATHS[format], document) for format in written]
    measured = parity.measure(candidates, reference, exact, folder)
    verdict = gate.judge(measured, recipe.task, recipe.export.max_accuracy_drop)
    for format in filter(recipe.export.is_optional, written):
        if failed := [item for item in verdict.thresholds if item.name.startswith(f"{format} ") and not item.passed]:
            left_out[format] = f"it is too far from the trained model ({failed[0].name}, is {failed[0].value:.4g})"
            (output / _PATHS[format]).unlink()
    if left_out:
        measured = [file for file in measured if file.export.format not in left_out]
        verdict = gate.judge(measured, recipe.task, recipe.export.max_accuracy_drop)
    for format, reason in left_out.items():
        message = f"{format} is left out: {reason}. Name it in export.formats to have the run refuse instead"
        events.emit("warning", message=f"{message}.")
    lite = [output / _PATHS[format] for format in written if format.startswith("litert") and format not in left_out]
    device.write(recipe, document, examples, lite, output)
    shutil.copyfile(storage.join(examples, Statistics.file), output / Statistics.file)
    events.emit("compared", verdict=verdict.verdict, seconds=round(time.monotonic() - start, 2))
    Exports(exports=[file.export for file in measured], gate=verdict, left_out=left_out).write(output)


def _write(
    recipe: Recipe, folder: ExampleFolder, model: str, network: keras.Model, float32: keras.Model, output: Path
) -> tuple[list[Format], dict[str, str]]:
    """Write the recipe's formats; return those, and of those that the recipe does not name why one is left out."""
    formats, written = recipe.export.files, list[Format]()
    left_out: dict[str, str] = {}
    converter: LiteConverter | None = None
    for done, format in enumerate(formats):
        events.progress(done, len(formats), "files", format=format)
        path = output / _PATHS[format]
        if format == "saved_model":
            signature.save(float32, load_transform(folder.uri), folder.document, path, recipe.data)
        elif format == "keras" and float32 is network:
            shutil.copyfile(storage.join(model, trained.FILE), path)
        elif format == "keras":
            float32.save(path)
        else:
            converter = converter or LiteConverter(float32, folder, recipe.export.calibration_examples)
            try:
                if format == "litert_int8" and converter.has_loops:
                    _convert_apart(model, folder.uri, recipe.export.calibration_examples, path)
                else:
                    path.write_bytes(converter.convert(format))
            except ConfigurationError as error:
                if not recipe.export.is_optional(format):
                    raise
                left_out[format] = str(error).removeprefix(f"export.formats: {format}: ").partition(". ")[0]
                continue
        written.append(format)
    events.progress(len(formats), len(formats), "files")
    return written, left_out


def _convert_apart(model: str, examples: str, calibration_examples: int, path: Path) -> None:
    """Write the int8 file of the trained `model` to `path` from a process of its own.

    TensorFlow 2.21's calibrator reads memory that is not its own in the loops of recurrent layers, which no `try`
    survives. Raises `ConfigurationError` if the process ends so.
    """
    arguments = (model, examples, calibration_examples, str(path))
    child, failure = ChildProcess(_convert_int8, arguments, "int8"), None
    try:
        with child.lines as lines:
            for line in lines:
                failure = events.failure(line) or failure
                if not events.parse(line):
                    sys.stderr.write(line)
        child.join()
    finally:
        child.kill()
    if failure:
        raise from_code(*failure)
    if child.code in (-signal.SIGKILL, LOST):
        raise TransientError(
            f"export: the conversion to int8 {describe_exit(child.code)}. Run the same command again; if it happens "
            "again, give it more memory."
        )
    if child.code:
        raise ConfigurationError(
            f"export.formats: litert_int8: LiteRT cannot calibrate the model (its converter "
            f"{describe_exit(child.code)}). Change the recurrent layers, or leave litert_int8 out of export.formats."
        )


def _convert_int8(model: str, examples: str, calibration_examples: int, path: str) -> None:
    """Write the int8 file, and end the process."""
    code = 0
    try:
        float32 = trained.in_float32(trained.load(model))
        converter = LiteConverter(float32, open_examples(examples), calibration_examples)
        Path(path).write_bytes(converter.convert("litert_int8"))
    except TrainyardError as error:
        code = int(error.exit_code)
        events.emit("failed", step="export", **failure_fields(error))
    sys.stderr.flush()
    os._exit(code)


def _candidate(format: Format, path: Path, document: Examples) -> ExportedModel:
    if format not in ("saved_model", "keras"):
        lite = LiteModel(path, document)
        return ExportedModel(format, path, lite, lite.ready)
    if format == "saved_model":
        predict = _saved_model_predictor(path, document)
    else:
        predict = _keras_predictor(trained.load_file(path), document)
    return ExportedModel(format, path, predict, lambda features, raw: lambda: predict(features, raw))


def _keras_predictor(model: keras.Model, document: Examples) -> Predictor:
    specification = {
        feature.name: tf.TensorSpec((None, *feature.shape), feature.dtype) for feature in document.features
    }
    predict: Callable[..., tf.Tensor] = tf.function(
        trained.predictor(model, document.task), input_signature=[specification], autograph=False
    )
    return lambda features, _raw: predict(features).numpy()


def _saved_model_predictor(path: Path, document: Examples) -> Predictor:
    loaded = tf.saved_model.load(str(path))
    output = trained.output_name(document.task)

    def predict(_features: trained.Tensors, raw: trained.Tensors) -> parity.Array:
        serve = loaded.signatures[signature.RAW]  # through `loaded`, for it keeps the variables alive
        inputs = {signature.input_name(name): value for name, value in raw.items()}
        outputs: parity.Array = serve(**inputs)[output].numpy()
        return outputs

    return predict
