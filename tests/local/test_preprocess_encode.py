"""Examples are what TensorFlow writes of the same columns, byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from trainyard.steps.preprocess.transforming.encode import Column, as_column, encode_examples

ROWS = 300
DRAW = np.random.default_rng(1)
COLUMNS: dict[str, Column] = {
    "number": DRAW.normal(size=ROWS).astype(np.float32),
    "vector": DRAW.normal(size=(ROWS, 40)).astype(np.float32),  # its length takes two bytes
    "a number": np.float32([np.nan, np.inf, -0.0] * (ROWS // 3)),
    "class": DRAW.integers(0, 128, ROWS),
    "classes": DRAW.integers(0, 2, (ROWS, 3)),
    "identifier": DRAW.integers(0, 300, ROWS),  # one byte or two
    "integers": DRAW.integers(-(2**63), 2**63 - 1, (ROWS, 2)),
    "text": [b"x" * (row % 3) for row in range(ROWS)],
    "image": [DRAW.bytes(size) for size in DRAW.integers(0, 20_000, ROWS)],
    "words": np.array([[b"word" * (row % 2), b"\xff" * 200] for row in range(ROWS)], object),
    "größe": DRAW.normal(size=ROWS).astype(np.float32),
}


def by_tensorflow(row: int, columns: dict[str, Any]) -> bytes:
    example = tf.train.Example()
    for name, values in columns.items():
        feature, value = example.features.feature[name], np.asarray(values[row], getattr(values, "dtype", object))
        if value.dtype == np.object_:
            feature.bytes_list.value.extend(value.ravel().tolist())
        elif value.dtype == np.float32:
            feature.float_list.value.extend(value.ravel())
        else:
            feature.int64_list.value.extend(value.ravel().tolist())
    return bytes(example.SerializeToString(deterministic=True))


def test_examples_are_the_bytes_that_tensorflow_writes() -> None:
    assert list(encode_examples(COLUMNS)) == [by_tensorflow(row, COLUMNS) for row in range(ROWS)]


@pytest.mark.parametrize(
    ("values", "written"),
    [
        (pa.array([1.5, 1e-50], pa.float64()), [1.5, 0.0]),
        (pa.array([1, -1], pa.int32()), [1, -1]),
        (pa.array(["é", ""]), ["é".encode(), b""]),
    ],
    ids=["floats", "integers", "text"],
)
def test_an_arrow_column_is_what_an_example_holds(values: pa.Array, written: list[Any]) -> None:
    column = as_column(values)
    assert list(column) == written
    assert [*encode_examples({"column": column})] == [by_tensorflow(row, {"column": column}) for row in range(2)]
