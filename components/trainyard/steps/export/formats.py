"""The export formats: each one's file, how it is written and opened, and how close it must be to the trained model."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import trainyard.data  # noqa: F401 - first: sets what TensorFlow reads while it is imported

# isort: split
import keras
import tensorflow as tf

from trainyard import events
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.data import trained
from trainyard.data.examples import ExampleFolder, load_transform, open_examples
from trainyard.errors import ConfigurationError, TrainyardError, TransientError, failure_fields, from_code
from trainyard.process.child_process import LOST, ChildProcess, describe_exit
from trainyard.spec.recipe import Format, LiteFormat, Recipe
from trainyard.steps.export import lite, onnx_file, parity, signature
from trainyard.steps.export.lite import BatchModel, LiteConverter, LiteModel
from trainyard.steps.export.parity import ExportedModel, Predictor
from trainyard.steps.export.signature import Border
from trainyard.storage import storage


@dataclass(frozen=True)
class TrainedFiles:
    """The source of the files: the trained model in `model`, as it was trained and in float32, and its examples.

    thresholds: its decision thresholds by class.
    """

    recipe: Recipe
    folder: ExampleFolder
    model: str
    network: keras.Model
    float32: keras.Model
    thresholds: Mapping[str, float]

    @cached_property
    def converter(self) -> LiteConverter:
        """One converter for all LiteRT files."""
        return LiteConverter(self.float32, self.folder, self.recipe.export.calibration_examples)


@dataclass(frozen=True)
class ExportFormat:
    """One format, with every field required.

    path: below the output. magic: an offset and the bytes that every such file has there; of a folder, those of its
    saved_model.pb. exact: it computes the function of the trained model, so `gate.MAX_SKEW` holds. in_integers: some of
    its layers round to integers. border: what the file takes and gives, for preprocessing.json, if it is a file for
    devices, which takes what the transform puts out.
    """

    path: str
    magic: tuple[int, bytes]
    write: Callable[[TrainedFiles, Path], None]
    open: Callable[[Format, Path, Examples], ExportedModel]
    exact: bool
    in_integers: bool
    border: Callable[[Path], Border] | None


def keras_predictor(model: keras.Model, document: Examples) -> Predictor:
    """Return the predictor of a Keras model."""
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


def _write_saved_model(files: TrainedFiles, path: Path) -> None:
    transform, document = load_transform(files.folder.uri), files.folder.document
    signature.save(files.float32, transform, document, path, files.recipe.data, files.thresholds)


def _open_saved_model(format: Format, path: Path, document: Examples) -> ExportedModel:
    predict = _saved_model_predictor(path, document)
    return ExportedModel(format, path, predict, lambda features, raw: lambda: predict(features, raw))


def _write_keras(files: TrainedFiles, path: Path) -> None:
    if files.float32 is files.network:
        shutil.copyfile(storage.join(files.model, trained.FILE), path)
    else:
        files.float32.save(path)


def _open_keras(format: Format, path: Path, document: Examples) -> ExportedModel:
    predict = keras_predictor(trained.load_file(path), document)
    return ExportedModel(format, path, predict, lambda features, raw: lambda: predict(features, raw))


def _lite(format: LiteFormat, path: str, *, in_integers: bool) -> ExportFormat:
    return ExportFormat(
        path,
        magic=(4, b"TFL3"),
        write=lambda files, path: _write_lite(format, files, path),
        open=_open_lite,
        exact=False,
        in_integers=in_integers,
        border=lite.border,
    )


def _write_lite(format: LiteFormat, files: TrainedFiles, path: Path) -> None:
    if format == "litert_int8" and files.converter.has_loops:
        _convert_apart(files.model, files.folder.uri, files.recipe.export.calibration_examples, path)
    else:
        path.write_bytes(files.converter.convert(format))


def _convert_apart(model: str, examples: str, calibration_examples: int, path: Path) -> None:
    """Write the int8 file of the trained `model` to `path` in a child process.

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


def _open_lite(format: Format, path: Path, document: Examples) -> ExportedModel:
    model = LiteModel(path, document)
    return ExportedModel(format, path, model, model.ready)


def _write_batch(files: TrainedFiles, path: Path) -> None:
    path.write_bytes(files.converter.convert("litert_batch"))


def _open_batch(format: Format, path: Path, document: Examples) -> ExportedModel:
    model = BatchModel(path, document)
    return ExportedModel(format, path, model, model.ready)


def _write_onnx(files: TrainedFiles, path: Path) -> None:
    path.write_bytes(onnx_file.convert(files.float32, files.folder.document, files.recipe.export.onnx.opset))


def _open_onnx(format: Format, path: Path, document: Examples) -> ExportedModel:
    model = onnx_file.OnnxModel(path, document)
    return ExportedModel(format, path, model, model.ready)


FORMATS: dict[Format, ExportFormat] = {
    "saved_model": ExportFormat(
        "saved_model",
        magic=(0, b"\x08\x01"),  # its schema version, 1
        write=_write_saved_model,
        open=_open_saved_model,
        exact=True,
        in_integers=False,
        border=None,
    ),
    "keras": ExportFormat(
        "model.keras",
        magic=(0, b"PK\x03\x04"),
        write=_write_keras,
        open=_open_keras,
        exact=True,
        in_integers=False,
        border=None,
    ),
    "litert_float32": _lite("litert_float32", "model_float32.tflite", in_integers=False),
    "litert_float16": _lite("litert_float16", "model_float16.tflite", in_integers=False),
    "litert_dynamic": _lite("litert_dynamic", "model_dynamic.tflite", in_integers=True),
    "litert_int8": _lite("litert_int8", "model_int8.tflite", in_integers=True),
    "litert_batch": ExportFormat(
        "model_batch.tflite",
        magic=(4, b"TFL3"),
        write=_write_batch,
        open=_open_batch,
        exact=False,
        in_integers=False,
        border=lite.border,
    ),
    "onnx": ExportFormat(
        "model.onnx",
        magic=(0, b"\x08"),  # the key of its representation's version
        write=_write_onnx,
        open=_open_onnx,
        exact=False,
        in_integers=False,
        border=onnx_file.border,
    ),
}
