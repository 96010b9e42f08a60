"""A trained model as files for servers and devices, each compared with the model it came from."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import trainyard.data  # noqa: F401 - first: sets what TensorFlow reads while it is imported

# isort: split
import keras
import tensorflow as tf

from trainyard import events
from trainyard.contract.artifacts.export import Exports
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.statistics.drift import Statistics
from trainyard.data import trained
from trainyard.data.examples import ExampleFolder, load_transform, open_examples
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
    _write(recipe, folder, model, network, float32, output)
    lite = [output / _PATHS[format] for format in recipe.export.formats if format.startswith("litert")]
    device.write(recipe, folder.document, examples, lite, output)
    shutil.copyfile(storage.join(examples, Statistics.file), output / Statistics.file)
    events.emit("exported", formats=",".join(recipe.export.formats), seconds=round(time.monotonic() - start, 2))

    start = time.monotonic()
    document = folder.document
    reference = _keras_predictor(network, document)
    exact = reference if float32 is network else _keras_predictor(float32, document)
    candidates = [_candidate(format, output / _PATHS[format], document) for format in recipe.export.formats]
    measured = parity.measure(candidates, reference, exact, folder)
    verdict = gate.judge(measured, recipe.task, recipe.export.max_accuracy_drop)
    events.emit("compared", verdict=verdict.verdict, seconds=round(time.monotonic() - start, 2))
    Exports(exports=[file.export for file in measured], gate=verdict).write(output)


def _write(
    recipe: Recipe, folder: ExampleFolder, model: str, network: keras.Model, float32: keras.Model, output: Path
) -> None:
    formats = recipe.export.formats
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
            path.write_bytes(converter.convert(format))
    events.progress(len(formats), len(formats), "files")


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
