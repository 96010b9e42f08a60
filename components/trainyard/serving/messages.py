"""The messages of the Open Inference Protocol over gRPC, and the tensors in them.

open_inference_grpc.binpb describes them: the compiled open_inference_grpc.proto beside it. The classes are made when
this module is imported, in a pool apart from the default one: a client of Triton or KServe in the same process has
messages with the same names.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from trainyard.serving.loaded import Output
from trainyard.serving.records import INTEGERS, BadRequest, mistyped, require_datatype, require_shape

SERVICE = "inference.GRPCInferenceService"
_LENGTH = struct.Struct("<I")  # before each element of raw BYTES
_CONTENTS = {
    "int_contents": "<i4",
    "int64_contents": "<i8",
    "uint_contents": "<u4",
    "uint64_contents": "<u8",
    "fp32_contents": "<f4",
    "fp64_contents": "<f8",
}
"""The dtype of the numbers in each field of typed contents."""

_TENSORS: dict[str, tuple[str, str]] = {
    "BOOL": ("?", "bool_contents"),
    "INT8": ("<i1", "int_contents"),
    "INT16": ("<i2", "int_contents"),
    "INT32": ("<i4", "int_contents"),
    "INT64": ("<i8", "int64_contents"),
    "UINT8": ("<u1", "uint_contents"),
    "UINT16": ("<u2", "uint_contents"),
    "UINT32": ("<u4", "uint_contents"),
    "UINT64": ("<u8", "uint64_contents"),
    "FP16": ("<f2", ""),
    "BF16": ("<u2", ""),
    "FP32": ("<f4", "fp32_contents"),
    "FP64": ("<f8", "fp64_contents"),
    "BYTES": ("", "bytes_contents"),
}
"""For each datatype the dtype of raw values, and the field of typed contents; '' if it has none.

Source: the comments in the source that open_inference_grpc.proto names.
"""


def _methods() -> list[MethodDescriptor]:
    pool = DescriptorPool()
    content = Path(__file__).with_name("open_inference_grpc.binpb").read_bytes()
    for file in FileDescriptorSet.FromString(content).file:
        pool.Add(file)
    return list(pool.FindServiceByName(SERVICE).methods)


METHODS: dict[str, tuple[type[Message], type[Message]]] = {
    method.name: (GetMessageClass(method.input_type), GetMessageClass(method.output_type)) for method in _methods()
}
"""The classes of request and response, by the name of the method."""


def columns(request: Any, decimals: Collection[str]) -> list[tuple[str, list[Any]]]:
    """Return name and values of each tensor of a ModelInferRequest. Raises `BadRequest` if a tensor is no column.

    Numbers are floats in `decimals`, otherwise texts as over REST; NaN is None.
    """
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise BadRequest(
            f"raw_input_contents: one for each of the {len(request.inputs)} inputs is expected, {len(raw)} were found."
        )
    found: list[tuple[str, list[Any]]] = []
    for index, tensor in enumerate(request.inputs):
        place = f"inputs[{index}]"
        require_datatype(tensor.datatype, place)
        if raw and tensor.HasField("contents"):
            raise BadRequest(f"{place}.contents: stands beside raw_input_contents. Send one of them.")
        values = _from_raw(raw[index], tensor, place) if raw else _from_contents(tensor, place)
        require_shape(tensor.shape, len(values), place)
        if isinstance(values, np.ndarray):
            values = values.astype(float).tolist() if tensor.name in decimals else _texts(values)
        found.append((tensor.name, values))
    return found


def response(model: str, version: str, request: Any, outputs: Sequence[Output]) -> Any:
    """Return the ModelInferResponse to `request`, whose contents are raw if those of the request are."""
    answer: Any = METHODS["ModelInfer"][1](model_name=model, model_version=version, id=request.id)
    for output in outputs:
        dtype, field = _TENSORS[output.datatype]
        tensor = answer.outputs.add(name=output.name, datatype=output.datatype, shape=np.shape(output.values))
        content: Any = np.ravel(output.values).astype(dtype) if dtype else [text.encode() for text in output.values]
        if not request.raw_input_contents:
            getattr(tensor.contents, field).extend(content)
        elif dtype:
            answer.raw_output_contents.append(content.tobytes())
        else:
            answer.raw_output_contents.append(b"".join(_LENGTH.pack(len(text)) + text for text in content))
    return answer


def _from_contents(tensor: Any, place: str) -> Any:
    contents, datatype = tensor.contents, tensor.datatype
    expected = _TENSORS[datatype][1]
    found = [field.name for field, _ in contents.ListFields()]
    if not expected:
        raise BadRequest(f"{place}.contents: {datatype} has none. Send raw_input_contents.")
    if unexpected := [name for name in found if name != expected]:
        raise BadRequest(f"{place}.contents: {expected} is expected for {datatype}, {unexpected[0]} was found.")
    values = getattr(contents, expected)
    if datatype in ("BOOL", "BYTES"):
        return list(values)
    numbers = np.array(values, _CONTENTS[expected])
    if datatype in INTEGERS:
        low, high = INTEGERS[datatype]
        for index in np.flatnonzero((numbers < low) | (numbers > high))[:1].tolist():
            raise mistyped(f"{place}.contents.{expected}[{index}]", tensor.name, datatype, values[index])
    return numbers


def _from_raw(content: bytes, tensor: Any, place: str) -> Any:
    datatype = tensor.datatype
    if datatype == "BYTES":
        return _elements(content, place)
    dtype = np.dtype(_TENSORS[datatype][0])
    if len(content) % dtype.itemsize:
        raise BadRequest(
            f"{place}: {dtype.itemsize} raw bytes for each value of {datatype} are expected, {len(content):,} "
            "were found."
        )
    values = np.frombuffer(content, dtype)
    if datatype == "BOOL":
        for index in np.flatnonzero(values.view("u1") > 1)[:1].tolist():
            raise mistyped(f"{place}: raw element {index}", tensor.name, datatype, content[index])
        return values.tolist()
    return (values.astype("<u4") << 16).view("<f4") if datatype == "BF16" else values


def _elements(content: bytes, place: str) -> list[bytes]:
    """Return the elements of raw BYTES, which stand behind their lengths."""
    elements: list[bytes] = []
    start = 0
    while start < len(content):
        end = start + _LENGTH.size
        if end <= len(content):
            start, end = end, end + _LENGTH.unpack_from(content, start)[0]
        if end > len(content):
            raise BadRequest(f"{place}: its raw bytes end within element {len(elements)}.")
        elements.append(content[start:end])
        start = end
    return elements


def _texts(values: Any) -> list[str | None]:
    """Return the shortest text of each number, None for NaN."""
    texts: list[str | None] = values.astype(str).tolist()
    for index in np.flatnonzero(values != values):
        texts[index] = None
    return texts
