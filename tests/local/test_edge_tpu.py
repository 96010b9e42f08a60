"""What an Edge TPU runs of an int8 file, by Coral's table and by logs that its compiler wrote for others."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainyard.contract.artifacts.export import EdgeTpu
from trainyard.steps.export import edge_tpu, parity

# Source: https://github.com/google-coral/edgetpu/issues/342
MOSTLY_UNMAPPED = """
Number of operations that will run on Edge TPU: 2
Number of operations that will run on CPU: 153

Operator                       Count      Status


TRANSPOSE                      70         Operation not supported
FULLY_CONNECTED                1          More than one subgraph is not supported
PAD                            1          Mapped to Edge TPU
PAD                            17         More than one subgraph is not supported
ADD                            10         More than one subgraph is not supported
MEAN                           2          More than one subgraph is not supported
CONV_2D                        35         More than one subgraph is not supported
QUANTIZE                       1          Mapped to Edge TPU
QUANTIZE                       1          Operation is otherwise supported, but not mapped due to some unspecified limitation
DEPTHWISE_CONV_2D              17         More than one subgraph is not supported
"""  # noqa: E501

# Source: https://github.com/system-software-lab/nrf20/blob/HEAD/convert/quantize/README.md: one network with float and
# one with integer inputs and outputs.
FLOAT_BORDER = """
Edge TPU Compiler version 15.0.340273435
Input: mnist4.tflite
Output: mnist4_edgetpu.tflite

Operator                       Count      Status

RESHAPE                        1          Mapped to Edge TPU
CONV_2D                        2          Mapped to Edge TPU
SOFTMAX                        1          Mapped to Edge TPU
QUANTIZE                       1          Operation is otherwise supported, but not mapped due to some unspecified limitation
DEQUANTIZE                     1          Operation is working on an unsupported data type
MAX_POOL_2D                    2          Mapped to Edge TPU
FULLY_CONNECTED                2          Mapped to Edge TPU
"""  # noqa: E501
INTEGER_BORDER = """
Edge TPU Compiler version 15.0.340273435
Input: mnist7.tflite
Output: mnist7_edgetpu.tflite

Operator                       Count      Status

SOFTMAX                        1          Mapped to Edge TPU
FULLY_CONNECTED                2          Mapped to Edge TPU
RESHAPE                        1          Mapped to Edge TPU
CONV_2D                        2          Mapped to Edge TPU
MAX_POOL_2D                    2          Mapped to Edge TPU
"""


def quantized(layers: list[keras.layers.Layer], has_integer_border: bool = True) -> list[edge_tpu.Operation]:
    """Return the operations of the int8 file of `layers`."""
    return edge_tpu.read(converted(layers, has_integer_border))


def converted(layers: list[keras.layers.Layer], has_integer_border: bool = True) -> bytes:
    """Return the int8 file of `layers` on images of 16 x 16."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((16, 16, 1), batch_size=1), *layers])
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: [[np.random.default_rng(1).random((1, 16, 16, 1), np.float32)]]
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    if has_integer_border:
        converter.inference_input_type = converter.inference_output_type = tf.int8
    return bytes(converter.convert())


def mnist() -> list[keras.layers.Layer]:
    return [
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(8, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]


@pytest.mark.parametrize(("log", "has_integer_border"), [(FLOAT_BORDER, False), (INTEGER_BORDER, True)])
def test_the_table_maps_what_the_compiler_mapped_of_the_same_operations(log: str, has_integer_border: bool) -> None:
    operations = quantized(mnist(), has_integer_border)
    rows = edge_tpu.read_log(log)
    assert Counter(each.name for each in operations) == Counter({name: count for name, count, _status in rows})
    by_table, by_log = edge_tpu.by_table(operations), edge_tpu.by_log(operations, rows)
    assert by_table.mapped_operations == by_log.mapped_operations == 8
    assert by_table.mapped_multiply_adds == by_log.mapped_multiply_adds == by_table.multiply_adds
    assert by_table.multiply_adds == 14 * 14 * 4 * 9 + 5 * 5 * 4 * 9 * 4 + 16 * 8 + 8 * 10
    firsts = [each.first_unmapped.partition(",")[0] for each in (by_table, by_log)]
    assert firsts == (["", ""] if has_integer_border else ["DEQUANTIZE", "QUANTIZE"])


@pytest.fixture(scope="module")
def with_elu() -> bytes:
    """The int8 file of `mnist` with an operation that Coral's table does not have."""
    layers = mnist()
    layers.insert(1, keras.layers.ELU())
    return converted(layers)


def test_the_cpu_runs_everything_from_the_first_operation_that_the_table_does_not_have(with_elu: bytes) -> None:
    mapping = edge_tpu.by_table(edge_tpu.read(with_elu))
    assert (mapping.mapped_operations, mapping.operations) == (1, 11)  # ELU computes between DEQUANTIZE and QUANTIZE
    assert mapping.mapped_multiply_adds == 14 * 14 * 4 * 9 and mapping.multiply_adds == 7056 + 3600 + 128 + 80
    assert mapping.first_unmapped == "ELU, operation 3 of 11: not in Coral's table"
    assert mapping.mapped_share == pytest.approx(1 / 11)


def test_a_log_gives_the_count_and_status_of_each_operator() -> None:
    rows = edge_tpu.read_log(MOSTLY_UNMAPPED)
    assert sum(count for _name, count, _status in rows) == 2 + 153
    assert [row for row in rows if row[2] == "Mapped to Edge TPU"] == [
        ("PAD", 1, "Mapped to Edge TPU"),
        ("QUANTIZE", 1, "Mapped to Edge TPU"),
    ]
    assert rows[0] == ("TRANSPOSE", 70, "Operation not supported")


def test_a_file_whose_multiply_adds_are_not_known_is_refused_and_says_so() -> None:
    mapping = EdgeTpu(
        source="table",
        operations=4,
        mapped_operations=4,
        multiply_adds=None,
        mapped_multiply_adds=None,
        first_unmapped="",
    )
    threshold = parity.judge_mapping(mapping, 0.1)
    assert not threshold.passed and threshold.value is None
    assert threshold.note == "the multiply-adds in its loops cannot be counted"


def test_a_compiler_that_fails_maps_nothing_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "edgetpu_compiler").symlink_to(shutil.which("false"))
    monkeypatch.setenv("PATH", str(tmp_path))
    model = tmp_path / "model.tflite"
    network = keras.Sequential([keras.Input((4,), batch_size=1), keras.layers.Dense(2)])
    model.write_bytes(tf.lite.TFLiteConverter.from_keras_model(network).convert())
    mapping = edge_tpu.map_file(model, tmp_path / "edge_tpu")
    assert (mapping.source, mapping.mapped_operations, mapping.multiply_adds) == ("compiler", 0, 8)
    assert mapping.first_unmapped == "edgetpu_compiler: wrote no log" and not (tmp_path / "edge_tpu").exists()


def test_a_compiler_on_the_path_compiles_the_file_and_its_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_elu: bytes
) -> None:
    model = tmp_path / "model_int8.tflite"
    model.write_bytes(with_elu)
    row = "{:<30} {:<10} {}\n".format
    nothing = "".join(row(name, 1, "Operation not supported") for name in ("CONV_2D", "ELU", "SOFTMAX"))
    compiler = tmp_path / "edgetpu_compiler"  # writes the log where Coral's documentation says
    compiler.write_text(
        f'#!/bin/sh\ntest "$1 $2 $4" = "--show_operations --out_dir {model}" || exit 1\n'
        f"echo Model compiled successfully\nprintf '%s' '{nothing}' > \"$3/model_int8_edgetpu.log\"\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    mapping = edge_tpu.map_file(model, tmp_path / "edge_tpu")
    assert (mapping.source, mapping.operations, mapping.mapped_operations) == ("compiler", 11, 0)
    assert mapping.first_unmapped == "CONV_2D, operation 1 of 11: Operation not supported"
    assert not parity.judge_mapping(mapping, 0.01).passed
    assert (tmp_path / "edge_tpu/model_int8_edgetpu.log").exists()


def operation(name: str, shape: tuple[int, ...], *constants: list[int], **options: Any) -> edge_tpu.Operation:
    """Return an operation whose input and output have one shape."""
    tensor = edge_tpu.Tensor("INT8", shape, None)
    given = [edge_tpu.Tensor("INT32", (len(each),), np.int32(each).view(np.uint8)) for each in constants]
    return edge_tpu.Operation(name, [tensor, *given], tensor, type("Options", (), options), border=False)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (operation("CONV_2D", (1, 4, 4, 8), [0], dilationHFactor=2, dilationWFactor=1), "another dilation in height"),
        (operation("AVERAGE_POOL_2D", (1, 4, 4, 8), fusedActivationFunction=1), "has a fused activation"),
        (operation("FULLY_CONNECTED", (7, 8), [0], weightsFormat=0), "its output, [7, 8], has more than one dimension"),
        (operation("SOFTMAX", (1, 16_001)), "has 16,001 elements"),
        (operation("MEAN", (2, 8), [0]), "reduces the batch dimension"),
        (operation("MEAN", (1, 4, 4, 6), [-1]), "averages 6 channels"),
        (operation("MEAN", (1, 4, 4, 6), [1, 2]), ""),
        (operation("PAD", (1, 4, 4, 6), [0, 0, 1, 1, 1, 1, 0, 0]), ""),
        (operation("STRIDED_SLICE", (1, 4), [0], [1], [2], ellipsisMask=0, newAxisMask=0), "has strides"),
        (operation("ADD", (2, 4, 4, 6)), "has more than three dimensions"),
        (operation("BATCH_MATMUL", (1, 4, 4)), "not in Coral's table"),
    ],
)
def test_limits_of_the_table_are_reasons(found: edge_tpu.Operation, reason: str) -> None:
    said = edge_tpu.unsupported(found)
    assert reason in said and bool(reason) == bool(said)
