"""Raw tensors of the Open Inference Protocol: little-endian numbers, and texts each behind its length of 4 bytes.

Source: https://github.com/kserve/open-inference-protocol, binary_data.md.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from trainyard.serving.bad_request import BadRequest, mistyped

_LENGTH = struct.Struct("<I")
_DTYPES = {
    "BOOL": np.dtype("?"),
    **{f"{kind}{8 * size}": np.dtype(f"<{kind[0].lower()}{size}") for kind in ("INT", "UINT") for size in (1, 2, 4, 8)},
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}


def column(content: bytes, datatype: str, name: str, place: str, *, is_decimal: bool) -> list[Any]:
    """Return the values of the raw tensor `name`, as `listed` does.

    Raises `BadRequest` if they are none of `datatype`.
    """
    if datatype == "BYTES":
        return _elements(content, place)
    dtype = _DTYPES[datatype]
    if len(content) % dtype.itemsize:
        raise BadRequest(
            f"{place}: {dtype.itemsize} raw bytes for each value of {datatype} are expected, {len(content):,} "
            "were found."
        )
    values = np.frombuffer(content, dtype)
    if datatype == "BOOL":
        for index in np.flatnonzero(values.view("u1") > 1)[:1].tolist():
            raise mistyped(f"{place}: raw element {index}", name, datatype, content[index])
        return list(values.tolist())
    return listed((values.astype("<u4") << 16).view("<f4") if datatype == "BF16" else values, is_decimal=is_decimal)


def listed(values: Any, *, is_decimal: bool) -> list[Any]:
    """Return an array of numbers as floats if `is_decimal`, otherwise as their shortest texts, None for NaN."""
    if not isinstance(values, np.ndarray):
        return list(values)
    if is_decimal:
        return list(values.astype(float).tolist())
    texts: list[Any] = values.astype(str).tolist()
    for index in np.flatnonzero(values != values):
        texts[index] = None
    return texts


def content(values: Any, datatype: str) -> bytes:
    """Return the raw tensor of an array, or of a list of texts."""
    if datatype != "BYTES":
        return bytes(np.ravel(values).astype(_DTYPES[datatype]).tobytes())
    return b"".join(_LENGTH.pack(len(text)) + text for text in (value.encode() for value in values))


def _elements(content: bytes, place: str) -> list[bytes]:
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
