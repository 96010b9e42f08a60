"""The part of an int8 file that a Coral Edge TPU runs; its compiler leaves the rest to the CPU.

`edgetpu_compiler`, if it is on the PATH, compiles the file and logs what it mapped. Otherwise the file's operations
are compared with Coral's table. The compiler makes one subgraph: from the first operation that is not supported, the
CPU computes everything, except that a float input may be quantized by the CPU first.

Source: https://coral.ai/docs/edgetpu/models-intro/#supported-operations (runtime version 14),
https://coral.ai/docs/edgetpu/models-intro/#compiling and https://coral.ai/docs/edgetpu/compiler/.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from tensorflow.lite.python import schema_py_generated as schema

from trainyard.contract.artifacts.export import EdgeTpu

FOLDER = "edge_tpu"
"""The folder of the compiled file and its log, beside the other files."""

_COMPILER, _TIMEOUT_SECONDS = "edgetpu_compiler", 200  # its own timeout is 180 s
_MAPPED = "Mapped to Edge TPU"
_CONSEQUENCE = "More than one subgraph is not supported"  # an operation after the first that is not mapped
_ROW = re.compile(r"(\S+)\s+(\d+)\s+(\S.*?)\s*")
_SOFTMAX_ELEMENTS = 16_000
_WEIGHTED = {"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV"}
_UNCOUNTED = {"WHILE", "IF", "CALL", "LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM", "CONV_3D", "CUSTOM"}
_OPERATIONS = {number: name for name, number in vars(schema.BuiltinOperator).items() if isinstance(number, int)}
_TYPES = {number: name for name, number in vars(schema.TensorType).items() if isinstance(number, int)}


@dataclass(frozen=True)
class Tensor:
    """An input or output of an operation. constant: its content as bytes, (n,) uint8, None if it is computed."""

    type: str
    shape: tuple[int, ...]
    constant: np.ndarray[Any, np.dtype[Any]] | None

    @property
    def integers(self) -> list[int]:
        """The constant int32 numbers, such as axes."""
        return [] if self.constant is None else list(np.frombuffer(self.constant.tobytes(), np.int32).tolist())


@dataclass(frozen=True)
class Operation:
    """One operation of a LiteRT file. border: it takes nothing but inputs of the file."""

    name: str
    inputs: list[Tensor]
    output: Tensor
    options: Any
    border: bool

    @property
    def multiply_adds(self) -> int:
        """The multiply-adds of its matrix products and convolutions; other operations count as none."""
        out, weights = prod(self.output.shape), self.inputs[1].shape if len(self.inputs) > 1 else ()
        match self.name:
            case "CONV_2D" | "FULLY_CONNECTED":  # weights: (outputs, ..., inputs)
                return out * prod(weights[1:])
            case "DEPTHWISE_CONV_2D":  # (1, height, width, channels)
                return out * prod(weights[1:3])
            case "TRANSPOSE_CONV":  # every input value meets every weight of its channel
                return prod(self.inputs[2].shape) * prod(weights[:3])
            case "BATCH_MATMUL":
                shape = self.inputs[0].shape
                return out * shape[-2 if self.options.adjX else -1]
        return 0


def map_file(path: Path, folder: Path) -> EdgeTpu:
    """Return the part of an int8 file that an Edge TPU runs; put its compiled file and its log into `folder`."""
    operations = read(path.read_bytes())
    if not (compiler := shutil.which(_COMPILER)):
        return by_table(operations)
    folder.mkdir()
    command = [compiler, "--show_operations", "--out_dir", str(folder), str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
        said = (done.stderr + done.stdout).strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    log = folder / f"{path.stem}_edgetpu.log"
    if not log.exists():
        shutil.rmtree(folder)
        reason = f"{_COMPILER}: {said.splitlines()[-1] if said else 'wrote no log'}"
        return _mapping("compiler", operations, [False] * len(operations), reason)
    return by_log(operations, read_log(log.read_text(encoding="utf-8", errors="replace")))


def read(content: bytes) -> list[Operation]:
    """Return the operations of the LiteRT file `content` in the order in which they run."""
    model = schema.ModelT.InitFromPackedBuf(content)
    graph = model.subgraphs[0]
    produced = {int(index) for call in graph.operators for index in call.outputs}

    def tensor(index: int) -> Tensor:
        found = graph.tensors[index]
        data = model.buffers[found.buffer].data
        shape = () if found.shape is None else tuple(int(size) for size in found.shape)
        return Tensor(_TYPES[found.type], shape, None if data is None else np.asarray(data, np.uint8))

    operations = []
    for call in graph.operators:
        code, inputs = model.operatorCodes[call.opcodeIndex], [int(index) for index in call.inputs if index >= 0]
        number = max(code.builtinCode, code.deprecatedBuiltinCode)
        border = not produced.intersection(inputs)
        output = tensor(int(call.outputs[0])) if len(call.outputs) else Tensor("INT8", (), None)
        operations.append(
            Operation(_OPERATIONS[number], [tensor(index) for index in inputs], output, call.builtinOptions, border)
        )
    return operations


def read_log(text: str) -> list[tuple[str, int, str]]:
    """Return the operator, count and status of each row of the compiler's table."""
    rows = map(_ROW.fullmatch, text.splitlines())
    return [(row[1], int(row[2]), row[3]) for row in rows if row]


def by_log(operations: Sequence[Operation], rows: Iterable[tuple[str, int, str]]) -> EdgeTpu:
    """Return the mapping that the compiler logged: of operations with one name, the first ones are mapped."""
    left, reasons = Counter[str](), dict[str, str]()
    for name, count, status in rows:
        if status == _MAPPED:
            left[name] += count
        elif reasons.get(name, _CONSEQUENCE) == _CONSEQUENCE:
            reasons[name] = status
    mapped = []
    for operation in operations:
        mapped.append(left[operation.name] > 0)
        left[operation.name] -= 1
    unmapped = [index for index, is_mapped in enumerate(mapped) if not is_mapped]
    statuses = {index: reasons.get(operations[index].name, "not in the log") for index in unmapped}
    causes = [index for index in unmapped if statuses[index] != _CONSEQUENCE] or unmapped
    first = _described(operations, causes[0], statuses[causes[0]]) if causes else ""
    return _mapping("compiler", operations, mapped, first)


def by_table(operations: Sequence[Operation]) -> EdgeTpu:
    """Return the mapping by Coral's table."""
    reasons = [unsupported(operation) for operation in operations]
    on_cpu = [index for index, reason in enumerate(reasons) if reason]
    quantizing = [index for index in on_cpu if operations[index].name == "QUANTIZE" and operations[index].border]
    stops = [index for index in on_cpu if index not in quantizing]
    end = stops[0] if stops else len(operations)
    mapped = [index < end and not reason for index, reason in enumerate(reasons)]
    named = [index for index in stops if operations[index].name != "DEQUANTIZE"]  # what a float is computed for
    first = next(iter([*named, *stops, *quantizing]), None)
    return _mapping("table", operations, mapped, "" if first is None else _described(operations, first, reasons[first]))


def _described(operations: Sequence[Operation], index: int, reason: str) -> str:
    return f"{operations[index].name}, operation {index + 1} of {len(operations)}: {reason}"


def _mapping(source: Any, operations: Sequence[Operation], mapped: Sequence[bool], first_unmapped: str) -> EdgeTpu:
    on_tpu = [operation for operation, is_mapped in zip(operations, mapped, strict=True) if is_mapped]
    uncounted = any(operation.name in _UNCOUNTED for operation in operations)
    return EdgeTpu(
        source=source,
        operations=len(operations),
        mapped_operations=len(on_tpu),
        multiply_adds=None if uncounted else sum(operation.multiply_adds for operation in operations),
        mapped_multiply_adds=None if uncounted else sum(operation.multiply_adds for operation in on_tpu),
        first_unmapped=first_unmapped,
    )


def unsupported(operation: Operation) -> str:
    """Return the reason why an Edge TPU cannot run the operation, otherwise ''."""
    if operation.name not in _TABLE:
        return "not in Coral's table"
    if operation.name in _WEIGHTED and operation.inputs[1].constant is None:
        return "its weights are computed"
    for tensor in (*(each for each in operation.inputs if each.constant is None), operation.output):
        if tensor.type not in ("INT8", "UINT8"):
            return f"computes with {tensor.type.lower()}, not with 8-bit integers"
        if any(size > 1 for size in tensor.shape[:-3]):
            return f"a tensor of shape {list(tensor.shape)} has more than three dimensions"
    limit = _TABLE[operation.name]
    return limit(operation) if limit else ""


def _no_activation(operation: Operation) -> str:
    return "has a fused activation" if operation.options.fusedActivationFunction else ""


def _concatenation(operation: Operation) -> str:
    constants = [each for each in operation.inputs if each.constant is not None]
    if constants and (len(operation.inputs) != 2 or any(np.any(each.constant) for each in constants)):
        return "joins a constant that is not zero"
    return _no_activation(operation)


def _one_dilation(operation: Operation) -> str:
    options = operation.options
    return "" if options.dilationHFactor == options.dilationWFactor else "has another dilation in height than in width"


def _one_dimension(operation: Operation) -> str:
    shape = operation.output.shape
    return "" if prod(shape[:-1]) == 1 else f"its output, {list(shape)}, has more than one dimension"


def _fully_connected(operation: Operation) -> str:
    return "has shuffled weights" if operation.options.weightsFormat else _one_dimension(operation)


def _softmax(operation: Operation) -> str:
    elements = prod(operation.output.shape)
    return _one_dimension(operation) or (f"has {elements:,} elements" if elements > _SOFTMAX_ELEMENTS else "")


def _reduction(operation: Operation) -> str:
    shape = operation.inputs[0].shape
    axes = {axis % len(shape) for axis in operation.inputs[1].integers}
    if 0 in axes:
        return "reduces the batch dimension"
    if operation.name == "MEAN" and len(shape) - 1 in axes and shape[-1] % 4:
        return f"averages {shape[-1]} channels, which is no multiple of 4"
    return ""


def _pad(operation: Operation) -> str:
    return "pads the batch dimension" if any(operation.inputs[1].integers[:2]) else ""


def _pack(operation: Operation) -> str:
    return "" if operation.options.axis % len(operation.output.shape) else "packs the batch dimension"


def _split(operation: Operation) -> str:
    return "splits the batch dimension" if 0 in operation.inputs[0].integers else ""


def _prelu(operation: Operation) -> str:
    return "" if prod(operation.inputs[1].shape[:-1]) == 1 else "its slopes have more than one dimension"


def _strided_slice(operation: Operation) -> str:
    options = operation.options
    plain = {*operation.inputs[3].integers} == {1} and not options.ellipsisMask and not options.newAxisMask
    return "" if plain else "has strides, or adds dimensions"


_TABLE: dict[str, Callable[[Operation], str] | None] = {
    "ADD": None,
    "AVERAGE_POOL_2D": _no_activation,
    "CONCATENATION": _concatenation,
    "CONV_2D": _one_dilation,
    "DEPTHWISE_CONV_2D": _one_dilation,
    "EXPAND_DIMS": None,
    "FULLY_CONNECTED": _fully_connected,
    "L2_NORMALIZATION": None,
    "LOGISTIC": None,
    "LSTM": None,
    "MAXIMUM": None,
    "MAX_POOL_2D": _no_activation,
    "MEAN": _reduction,
    "MINIMUM": None,
    "MUL": None,
    "PACK": _pack,
    "PAD": _pad,
    "PRELU": _prelu,
    "QUANTIZE": None,
    "REDUCE_MAX": _reduction,
    "REDUCE_MIN": _reduction,
    "RELU": None,
    "RELU6": None,
    "RELU_N1_TO_1": None,
    "RESHAPE": None,
    "RESIZE_BILINEAR": None,
    "RESIZE_NEAREST_NEIGHBOR": None,
    "RSQRT": None,
    "SLICE": None,
    "SOFTMAX": _softmax,
    "SPACE_TO_DEPTH": None,
    "SPLIT": _split,
    "SQUARED_DIFFERENCE": None,
    "SQUEEZE": None,
    "STRIDED_SLICE": _strided_slice,
    "SUB": None,
    "SUM": _reduction,
    "TANH": None,
    "TRANSPOSE": None,
    "TRANSPOSE_CONV": None,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": None,
}
