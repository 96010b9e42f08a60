"""Ends a LiteRT file in the units of its targets, with float32 numbers that no quantization touches.

In the graph itself the converter folds unit and offset into the last layer. In 16 bits a price of 600,000 is then
beyond the largest number, 65,504; in int8 a year, 2000 give or take 5, is cut into steps of 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import flatbuffers
import numpy as np
from tensorflow.lite.python import schema_py_generated as schema

_IDENTIFIER = b"TFL3"


@dataclass(frozen=True)
class Unit:
    """From a standardized target to an answer in its unit: exp(factor * target + offset) + after.

    after: None if there is no exp, because the target was not learned on a logarithmic scale.
    """

    factor: float
    offset: float
    after: float | None = None


def in_units(content: bytes, units: Mapping[str, Unit]) -> bytes:
    """Return the file `content` whose float32 outputs are put into `units`, by name.

    Source: https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/compiler/mlir/lite/schema/schema.fbs
    """
    if not units:
        return content
    model = schema.ModelT.InitFromPackedBuf(content)
    graph, signature = model.subgraphs[0], model.signatureDefs[0]
    for output in signature.outputs:
        unit = units[output.name.decode()]
        standardized = output.tensorIndex
        scaled = _append(model, schema.BuiltinOperator.MUL, standardized, unit.factor)
        output.tensorIndex = _append(model, schema.BuiltinOperator.ADD, scaled, unit.offset)
        if unit.after is not None:
            output.tensorIndex = _append(model, schema.BuiltinOperator.EXP, output.tensorIndex)
        if unit.after:
            output.tensorIndex = _append(model, schema.BuiltinOperator.ADD, output.tensorIndex, unit.after)
        graph.outputs = np.where(np.asarray(graph.outputs) == standardized, output.tensorIndex, graph.outputs)
    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), _IDENTIFIER)
    return bytes(builder.Output())


def _append(model: schema.ModelT, operator: int, tensor: int, number: float | None = None) -> int:
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
