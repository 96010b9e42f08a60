"""LiteRT files for phones, single-board computers and Edge TPUs, and how they predict.

A device model takes what the transform gives (numbers, or the image's pixels), because string vocabularies have no
LiteRT operation; `device.py` writes down what the device does before. Every file but `batch` takes one example: batch 1
keeps all shapes static, which the Edge TPU compiler and the GPU delegates ask for.

float32   the trained weights.
batch     the trained weights, for any number of examples at once: servers resize the first dimension of the inputs.
dynamic   weights stored in 8 bits; activations are quantized while it computes, and inputs and outputs are float32.
float16   weights stored in 16 bits, computed in float32 if the device has nothing better.
int8      weights and activations in integers, calibrated on training examples. For images the input and output are
          int8 too, so that no floating-point operation is left: what edgetpu_compiler takes. Columns keep float32 and
          int64 at the border, for each would otherwise need its own scale on the device, and operations without an
          integer kernel stay in float32.

Source: https://ai.google.dev/edge/litert/models/post_training_quantization
and https://coral.ai/docs/edgetpu/models-intro.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, assert_never

import flatbuffers
import keras
import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.python.convert_phase import ConverterError

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.artifacts.train import TARGET_INVERSE
from trainyard.data.examples import ExampleFolder
from trainyard.data.trained import Tensors
from trainyard.errors import ConfigurationError
from trainyard.spec.columns import input_name
from trainyard.spec.recipe import LiteFormat
from trainyard.steps.export.signature import Border, Unit, answering, target_outputs

if TYPE_CHECKING:
    from ai_edge_litert.interpreter import _TensorDetails
    from tensorflow import _ConcreteFunction

Array = np.ndarray[Any, np.dtype[Any]]

_IDENTIFIER = b"TFL3"
_LOOPS = frozenset(("While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase"))
BATCH = 32
"""Examples that `BatchModel` predicts at once; chosen."""

_INTERPRETERS = 4  # chosen: maximum at once, because each holds a copy of the packed weights


class LiteConverter:
    """Converts one model to any of the LiteRT formats."""

    def __init__(self, model: keras.Model, folder: ExampleFolder, calibration_examples: int) -> None:
        document = folder.document
        self._folder = folder
        self._calibration_examples = calibration_examples
        self._module = tf.Module()
        self._module.model_variables = [variable.value for variable in model.weights]
        self._units = _units(model, document)
        self._model = keras.Model(model.input, _target_layers(model)[0].input) if self._units else model  # standardized

    def convert(self, format: LiteFormat | Literal["litert_batch"]) -> bytes:
        """Return the content of the .tflite file. Raises `ConfigurationError` if LiteRT cannot express the model."""
        if self._units and format == "litert_int8" and self._folder.document.image is not None:
            return self._convert(format, self._traced(self._units))  # not one floating-point operation may follow
        if format == "litert_batch":
            return _in_units(self._convert(format, self._traced({}, batch=None)), self._units)
        return _in_units(self._convert(format, self._without_units), self._units)

    @cached_property
    def _without_units(self) -> _ConcreteFunction:
        return self._traced({})

    def _traced(self, units: Mapping[str, Unit], batch: int | None = 1) -> _ConcreteFunction:
        answers = answering(self._model, self._folder.document, units)
        return tf.function(answers, autograph=False).get_concrete_function(
            {
                feature.name: tf.TensorSpec((batch, *feature.shape), feature.dtype, name=input_name(feature.name))
                for feature in self._folder.document.features
            }
        )

    @cached_property
    def has_loops(self) -> bool:
        """True if the model has loops, as recurrent layers do."""
        graph = self._without_units.graph.as_graph_def()
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        return any(node.op in _LOOPS for node in nodes)

    def _convert(self, format: LiteFormat | Literal["litert_batch"], function: _ConcreteFunction) -> bytes:
        converter = tf.lite.TFLiteConverter.from_concrete_functions([function], self._module)
        match format:
            case "litert_float32" | "litert_batch":
                pass
            case "litert_float16":
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
                converter.target_spec.supported_types = [tf.float16]
            case "litert_dynamic":
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
            case "litert_int8":
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
                converter.representative_dataset = self._calibration
                converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
                if self._folder.document.image is not None:
                    converter.inference_input_type = converter.inference_output_type = tf.int8
                else:
                    converter.target_spec.supported_ops.append(tf.lite.OpsSet.TFLITE_BUILTINS)
            case _:
                assert_never(format)
        try:
            with warnings.catch_warnings():  # the calibrator itself still uses the deprecated tf.lite.Interpreter
                warnings.simplefilter("ignore")
                return bytes(converter.convert())
        except (ConverterError, RuntimeError, ValueError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ConfigurationError(
                f"export.formats: {format}: LiteRT cannot express the model ({reason[:200]}). "
                f"Change the layer, or leave {format} out of export.formats."
            ) from error

    def _calibration(self) -> Iterator[dict[str, Array]]:
        """Yield training examples, as many from each shard, for the shards hold them in no meaningful order."""
        files = self._folder.files("train")
        records = tf.data.Dataset.from_tensor_slices(files).interleave(
            lambda file: tf.data.TFRecordDataset(file, buffer_size=1 << 20), cycle_length=len(files), block_length=1
        )
        sample = records.take(self._calibration_examples).map(self._folder.decode).batch(1)
        for features, _label in sample.as_numpy_iterator():
            # Images come as uint8, as training takes them.
            yield {
                input_name(feature.name): features[feature.name].astype(feature.dtype)
                for feature in self._folder.document.features
            }


def _units(model: keras.Model, document: Examples) -> dict[str, Unit]:
    """Return the unit of each output of a regression; a program's own model may have none."""
    unit, *inverse = _target_layers(model)
    if document.task != "regression" or not isinstance(unit, keras.layers.Rescaling):
        return {}
    names = target_outputs(document)
    factors, offsets = (np.broadcast_to(number, len(names)).tolist() for number in (unit.scale, unit.offset))
    offset = sum(np.asarray(layer.offset).item() for layer in inverse if isinstance(layer, keras.layers.Rescaling))
    after = float(offset) if inverse else None
    units = (Unit(factor, offset, after) for factor, offset in zip(factors, offsets, strict=True))
    return dict(zip(names, units, strict=True))


def _target_layers(model: keras.Model) -> list[keras.Layer]:
    """Return the last layer of `model` before those that invert the scale of the targets, and these."""
    return model.layers[-1 - sum(layer.name in TARGET_INVERSE for layer in model.layers) :]


class LiteModel:
    """A LiteRT file, ready to predict; several interpreters share the work of a batch."""

    def __init__(self, path: Path, document: Examples) -> None:
        self._cells = [_Interpreter.open(path, document) for _ in range(min(_INTERPRETERS, os.cpu_count() or 1))]
        self._pool = ThreadPoolExecutor(len(self._cells))

    def __call__(self, features: Tensors, _raw: Tensors) -> Array:
        """Return float32 probabilities (n, classes), or predictions (n,) or (n, targets), of features (n, ...)."""
        arrays = {name: np.asarray(value) for name, value in features.items()}
        count = len(next(iter(arrays.values())))
        if count == 1:
            return self._cells[0].predict(arrays)
        parts = [part for part in np.array_split(np.arange(count), len(self._cells)) if len(part)]
        chunks = [{name: array[part] for name, array in arrays.items()} for part in parts]
        return np.concatenate(list(self._pool.map(lambda cell, chunk: cell.predict(chunk), self._cells, chunks)))

    def ready(self, features: Tensors, _raw: Tensors) -> Callable[[], object]:
        """Return the call that predicts one example, (1, ...), whose tensors are quantized already."""
        cell = self._cells[0]
        inputs = cell.inputs_of({name: np.asarray(value) for name, value in features.items()})
        return lambda: cell.invoke(inputs, 0)


class BatchModel:
    """A LiteRT file for any number of examples, ready to predict."""

    def __init__(self, path: Path, document: Examples) -> None:
        self._model = _Interpreter.open(path, document)

    def __call__(self, features: Tensors, _raw: Tensors) -> Array:
        """Return float32 probabilities (n, classes), or predictions (n,) or (n, targets), of features (n, ...).

        The first example is predicted alone, and the others in batches of `BATCH` and a smaller last one, so that a
        comparison covers all three.
        """
        arrays = {name: np.asarray(value) for name, value in features.items()}
        count = len(next(iter(arrays.values())))
        ends = [0, 1, *range(1 + BATCH, count, BATCH), count]
        spans = [slice(*pair) for pair in pairwise(dict.fromkeys(ends))]
        return np.concatenate(
            [self._model.predict_batch({name: array[span] for name, array in arrays.items()}) for span in spans]
        )

    def ready(self, features: Tensors, _raw: Tensors) -> Callable[[], object]:
        """Return the call that predicts one example, (1, ...)."""
        inputs = self._model.inputs_of({name: np.asarray(value) for name, value in features.items()})
        self._model.resize(1)
        return lambda: self._model.invoke(inputs, 0)


def border(path: Path) -> Border:
    """Return the inputs and outputs of the LiteRT file at `path` by name, as it takes and gives them."""
    interpreter = Interpreter(model_path=str(path))
    interpreter.allocate_tensors()
    runner = interpreter.get_signature_runner()
    sides = {"inputs": runner.get_input_details(), "outputs": runner.get_output_details()}
    return {side: {name: _tensor(details) for name, details in tensors.items()} for side, tensors in sides.items()}


@dataclass(frozen=True)
class _Interpreter:
    """One single-threaded interpreter with the places of its tensors by feature name."""

    interpreter: Interpreter
    inputs: dict[str, _TensorDetails]
    outputs: list[_TensorDetails]

    @classmethod
    def open(cls, path: Path, document: Examples) -> _Interpreter:
        interpreter = Interpreter(model_path=str(path), num_threads=1)
        interpreter.allocate_tensors()
        runner = interpreter.get_signature_runner()
        inputs = runner.get_input_details()
        names = {feature.name: input_name(feature.name) for feature in document.features}
        used = {name: inputs[tensor] for name, tensor in names.items() if tensor in inputs}
        outputs = runner.get_output_details()
        return cls(interpreter, used, [outputs[name] for name in target_outputs(document)])

    def predict(self, features: dict[str, Array]) -> Array:
        """Return the predictions (n, ...) for `features` (n, ...), one example after the other."""
        inputs = self.inputs_of(features)
        count = len(next(iter(features.values())))
        results = [np.empty((count, *details["shape"][1:]), details["dtype"]) for details in self.outputs]
        for row in range(count):
            for result, values in zip(results, self.invoke(inputs, row), strict=True):
                result[row] = values[0]
        real = [_dequantize(*pair) for pair in zip(results, self.outputs, strict=True)]
        return real[0] if len(real) == 1 else np.stack(real, axis=1)

    def resize(self, count: int) -> None:
        """Make the file take `count` examples at once."""
        for details in self.inputs.values():
            self.interpreter.resize_tensor_input(details["index"], [count, *details["shape"][1:]])
        self.interpreter.allocate_tensors()

    def predict_batch(self, features: dict[str, Array]) -> Array:
        """Return the predictions (n, ...) for `features` (n, ...), all at once."""
        self.resize(len(next(iter(features.values()))))
        for index, values in self.inputs_of(features):
            self.interpreter.set_tensor(index, values)
        self.interpreter.invoke()
        real = [self.interpreter.get_tensor(details["index"]) for details in self.outputs]
        return real[0] if len(real) == 1 else np.stack(real, axis=1)

    def inputs_of(self, features: dict[str, Array]) -> list[tuple[int, Array]]:
        """Return each input's index and its values (n, ...) in the dtype that the file takes."""
        return [(details["index"], _quantize(features[name], details)) for name, details in self.inputs.items()]

    def invoke(self, inputs: list[tuple[int, Array]], row: int) -> list[Array]:
        """Return the outputs, each (1, ...), for one row, in the dtypes that the file gives."""
        for index, values in inputs:
            self.interpreter.set_tensor(index, values[row : row + 1])
        self.interpreter.invoke()
        return [self.interpreter.get_tensor(details["index"]) for details in self.outputs]


def _quantize(values: Array, details: _TensorDetails) -> Array:
    scale, zero_point = details["quantization"]
    if details["dtype"] != np.int8 or not scale:
        return values.astype(details["dtype"], copy=False)
    quantized: Array = np.clip(np.rint(values / scale) + zero_point, -128, 127).astype(np.int8)
    return quantized


def _dequantize(values: Array, details: _TensorDetails) -> Array:
    scale, zero_point = details["quantization"]
    if details["dtype"] != np.int8 or not scale:
        return values.astype(np.float32, copy=False)
    real: Array = ((values.astype(np.float32) - zero_point) * scale).astype(np.float32)
    return real


def _tensor(details: _TensorDetails) -> dict[str, Any]:
    scale, zero_point = details["quantization"]
    real = {"scale": float(scale), "zero_point": int(zero_point)} if scale else {}
    return {"dtype": np.dtype(details["dtype"]).name, "shape": [int(size) for size in details["shape"]], **real}


def _in_units(content: bytes, units: Mapping[str, Unit]) -> bytes:
    """Return the file `content` whose float32 outputs are put into `units`, by name, with unquantized numbers.

    In the graph itself the converter folds unit and offset into the last layer. In 16 bits a price of 600,000 is then
    beyond the largest number, 65,504; in int8 a year, 2000 give or take 5, is cut into steps of 8.

    Source: https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/compiler/mlir/lite/schema/schema.fbs
    """
    if not units:
        return content
    model = schema.ModelT.InitFromPackedBuf(content)
    graph, signature = model.subgraphs[0], model.signatureDefs[0]
    for output in signature.outputs:
        unit = units[output.name.decode()]
        standardized = output.tensorIndex
        scaled = _append_operator(model, schema.BuiltinOperator.MUL, standardized, unit.factor)
        output.tensorIndex = _append_operator(model, schema.BuiltinOperator.ADD, scaled, unit.offset)
        if unit.after is not None:
            output.tensorIndex = _append_operator(model, schema.BuiltinOperator.EXP, output.tensorIndex)
        if unit.after:
            output.tensorIndex = _append_operator(model, schema.BuiltinOperator.ADD, output.tensorIndex, unit.after)
        graph.outputs = np.where(np.asarray(graph.outputs) == standardized, output.tensorIndex, graph.outputs)
    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), _IDENTIFIER)
    return bytes(builder.Output())


def _append_operator(model: schema.ModelT, operator: int, tensor: int, number: float | None = None) -> int:
    """Return the index of a new tensor: what `operator` makes of `tensor`, and of `number` if one is given."""
    graph = model.subgraphs[0]
    inputs = [tensor]
    if number is not None:
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(np.float32(number).tobytes(), np.uint8)
        model.buffers.append(buffer)
        constant = schema.TensorT()
        constant.name, constant.shape = b"unit", np.array([], np.int32)
        constant.buffer = len(model.buffers) - 1
        graph.tensors.append(constant)
        inputs.append(len(graph.tensors) - 1)
    result = schema.TensorT()
    result.name, result.shape = b"in_units", graph.tensors[tensor].shape
    result.shapeSignature = graph.tensors[tensor].shapeSignature  # has a batch of any size, None otherwise
    graph.tensors.append(result)
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = operator
    model.operatorCodes.append(code)
    call = schema.OperatorT()
    call.opcodeIndex = len(model.operatorCodes) - 1
    call.inputs = np.array(inputs, np.int32)
    call.outputs = np.array([len(graph.tensors) - 1], np.int32)
    options: dict[int, tuple[int, schema.AddOptionsT | schema.ExpOptionsT | schema.MulOptionsT]] = {
        schema.BuiltinOperator.MUL: (schema.BuiltinOptions.MulOptions, schema.MulOptionsT()),
        schema.BuiltinOperator.ADD: (schema.BuiltinOptions.AddOptions, schema.AddOptionsT()),
        schema.BuiltinOperator.EXP: (schema.BuiltinOptions.ExpOptions, schema.ExpOptionsT()),
    }
    call.builtinOptionsType, call.builtinOptions = options[operator]
    graph.operators.append(call)
    return len(graph.tensors) - 1
