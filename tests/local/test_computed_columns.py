"""Formulas by TensorFlow, which serves, against the same by Arrow, which reads: one meaning for both."""

import math

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from trainyard.data.formulas import computed
from trainyard.data.values import canonical_tensor
from trainyard.quality.tables.formulas import Derived
from trainyard.spec.formula import as_lists, parse
from trainyard.spec.recipe import Data
from trainyard.steps.export.on_device.columns import computed as on_a_device
from trainyard.values.columns import canonical_texts
from trainyard.values.text import canonical

NUMBERS = ["3", "0", "", "-4.5", "17", "1e30", "0.25", "-0", "0.1", "0.7"]
TEXTS = ["ride", "", " ride ", "pool", "größe", "", "x & y", "3", "3.0", "TRUE"]


@pytest.mark.parametrize(
    "formula",
    [
        "a + b * 2 - abs(b)",
        "a / b",
        "log(a)",
        "-a / b",
        "0 < a <= b",
        "not a > 0 or b == 3",
        "a > 0 and b != 0",
        "a > 1 or missing(b)",
        "s in ['ride', 'größe'] and not missing(a)",
        "s == t",
        "(a > b) == (b > 0)",
        "missing(a / b)",
        "bin(a, 0.7)",
        "bin(a, 0.1)",
        "a == 0.1 or b in [0.7, 3] or a > 0.25",
        "bin(a * 1e30, 0.001)",
        "s",
        "join(s, t)",
        "join(s, bin(b, 2), a > b, 'x')",
    ],
)
def test_tensorflow_computes_what_arrow_does(formula):
    pairs = [(a, b) for a in NUMBERS for b in NUMBERS]
    a, b = ([*column] for column in zip(*pairs, strict=True))
    s, t = ([*column] for column in zip(*[(s, t) for s in TEXTS for t in TEXTS], strict=True))
    made = "numeric" if parse(formula).kind == "number" else "category"
    features = {"a": {"type": "numeric"}, "b": {"type": "numeric"}, "made": {"type": made}}
    data = Data.model_validate(
        {"format": "csv", "path": "-", "label": "y", "features": features, "derive": {"made": formula}}
    )
    expected = Derived(data, {"a": pa.array(a), "b": pa.array(b), "s": pa.array(s), "t": pa.array(t)}).texts["made"]
    numbers = {name: np.array([float(x or "nan") for x in column], np.float32) for name, column in (("a", a), ("b", b))}

    @tf.function
    def served(inputs):
        return computed(inputs, data.derived_features)["made"]

    answers = served({**{name: tf.constant(values) for name, values in numbers.items()},
                    "s": canonical_tensor(tf.constant(s)), "t": canonical_tensor(tf.constant(t))}).numpy()  # fmt: skip
    texts = {"s": [canonical(text) for text in s], "t": [canonical(text) for text in t]}
    cells = [dict(zip("abst", row, strict=True)) for row in zip(*numbers.values(), *texts.values(), strict=True)]
    on_device = [on_a_device(as_lists(parse(formula)), row) for row in cells]
    if made == "category":
        assert on_device == [text.decode() for text in answers]
    else:
        np.testing.assert_allclose(on_device, np.where(np.isinf(answers), np.nan, answers), rtol=1e-6)
    if made == "category":
        assert [text.decode() for text in answers] == canonical_texts(expected).to_pylist()
        assert any(expected.to_pylist())
    else:
        wanted = np.array([float(text or "nan") for text in expected.to_pylist()])
        fits = ~(np.abs(wanted) > 3.4e38)  # beyond is infinite as float32, which the transform takes for missing
        np.testing.assert_allclose(answers[fits], wanted[fits], rtol=2e-6)
        assert not all(map(math.isnan, answers))
