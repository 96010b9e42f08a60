"""Formulas over columns: what they mean, and what is refused before a row is read."""

import math
import re

import numpy as np
import pyarrow as pa
import pytest

from trainyard.quality.tables.formulas import Derived
from trainyard.spec.formula import as_lists, parse
from trainyard.spec.recipe import Data
from trainyard.steps.export.on_device.columns import computed

ROWS = {
    "fare": ["10", "0", "", "NA", "x", "-4"],
    "tip": ["3", "1", "2", "2", "2", "2"],
    "trip kind": ["ride", " ride ", "", "pool", "ride", "ride"],
}


def derived(formula: str, condition: str | None = None) -> Derived:
    data = Data.model_validate(
        {
            "format": "csv",
            "path": "-",
            "label": "made",
            "features": {"tip": {"type": "numeric"}},
            "derive": {"made": formula},
            "where": condition,
        }
    )
    return Derived(data, {name: pa.array(texts) for name, texts in ROWS.items()})


@pytest.mark.parametrize(
    ("formula", "values"),
    [
        ("tip > 0.2 * fare", ["true", "true", "", "", "", "true"]),
        ("fare + tip", ["13", "1", "", "", "", "-2"]),
        ("tip / fare", ["0.3", "", "", "", "", "-0.5"]),
        ("0 < fare <= 10", ["true", "false", "", "", "", "false"]),
        ("not fare > 0 or tip == 3", ["true", "true", "", "", "", "true"]),
        ("column('trip kind') in ['ride', 'pool']", ["true", "true", "", "true", "true", "true"]),
        ("column('trip kind') not in ('ride', 'pool')", ["false", "false", "", "false", "false", "false"]),
        ("missing(column('trip kind'))", ["false", "false", "true", "false", "false", "false"]),
        ("column('trip kind')", ["ride", "ride", "", "pool", "ride", "ride"]),
        ("abs(fare - 3)", ["7", "3", "", "", "", "7"]),
        ("log(tip)", [repr(math.log(3)), "0", *[repr(math.log(2))] * 4]),
        ("bin(fare, 4)", ["2", "0", "", "", "", "-1"]),
        ("bin(fare * 1e30, 1e-9)", ["", "0", "", "", "", ""]),
        (
            "join(column('trip kind'), bin(tip, 2), fare > 5)",
            ["ride & 1 & true", "ride & 0 & false", *[""] * 3, "ride & 1 & false"],
        ),
        ("tip == fare", ["false"] * 2 + [""] + ["false"] * 3),  # two columns: as texts
    ],
)
def test_a_formula_computes_what_python_would_and_nothing_of_what_is_missing(formula, values):
    assert derived(formula).texts["made"].to_pylist() == values


@pytest.mark.parametrize(
    ("formula", "values"),
    [
        ("x == 0.1", ["true", "false", "false"]),
        ("x > 0.7", ["false", "false", "false"]),
        ("x in [0.3, 0.7]", ["false", "true", "true"]),
        ("bin(x, 0.1)", ["1", "7", "3"]),
    ],
)
def test_a_feature_compares_decimals_as_they_are_written_though_the_model_gets_them_in_32_bits(formula, values):
    content = {"format": "csv", "path": "-", "features": {"f": {"type": "category"}}, "derive": {"f": formula}}
    data = Data.model_validate(content)
    assert Derived(data, {"x": pa.array(["0.1", "0.7", "0.3"])}).texts["f"].to_pylist() == values
    served = [computed(as_lists(parse(formula)), {"x": np.float32(x)}) for x in (0.1, 0.7, 0.3)]
    assert served == values


def test_a_text_where_a_number_is_expected_is_a_fault_of_its_row():
    assert derived("fare > 1").mistyped["fare"].tolist() == [False] * 4 + [True, False]
    assert derived("column('trip kind') == 'x'").mistyped == {}


def test_rows_stay_for_which_the_condition_is_true():
    assert derived("tip > 1", "tip < 3").selected.tolist() == [False, True, True, True, True, True]
    # Of the fifth it is not known.
    assert derived("tip > 1", "fare > 0").selected.tolist() == [True, False, False, False, True, False]


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("", "at least 1 character"),
        ("tip >", "is no expression (invalid syntax). Allowed: numbers"),
        ("3 > 2", "names no column of the data"),
        ("__import__('os').system('ls')", "is not allowed"),
        ("open('/etc/passwd')", "is not allowed"),
        ("tip.__class__", "is not allowed"),
        ("[x for x in tip]", "is not allowed"),
        ("lambda: tip", "is not allowed"),
        ("tip ** 2", "is not allowed"),
        ("tip is fare", "has a comparison that is not allowed"),
        ("tip in fare", "is no list of values"),
        ("bin(tip, fare)", "'bin(tip, fare)' is not allowed"),
        ("bin(tip, -1)", "'bin(tip, -1)' is not allowed"),
        ("join(tip)", "'join(tip)' is not allowed"),
        ("join(tip, 3)", "'3' is a number, where a text is expected"),
        ("tip > 'a' + 1", "''a'' is a text, where a number is expected"),
        ("tip and fare", "the column 'tip' is no condition. Compare it, as in tip == 'yes'"),
        ("(" * 250 + "tip" + ")" * 250, "is no expression"),
        ("-" * 999 + "1", "is nested too deeply"),
        ("+".join(["tip"] * 400), "at most 1000 characters"),
    ],
)
def test_what_is_no_formula_is_refused(formula, expected):
    with pytest.raises(ValueError, match=re.escape(expected)):
        derived(formula)


def test_a_condition_is_no_number():
    with pytest.raises(ValueError, match=r"is no condition\. Compare it with something"):
        derived("tip > 1", "tip + 1")


def test_what_is_parsed_is_no_code():
    assert repr(parse("tip > 1")).startswith("Call(kernel='greater'")


@pytest.mark.parametrize("text", ["account == 9007199254740993", "account in [1, 2e16]", "account > 9007199254740993"])
def test_a_number_that_a_float_does_not_tell_apart_is_refused(text):
    with pytest.raises(ValueError, match=r"stands for several integers\. Write it as a text, as in account == '"):
        parse(text)


def test_texts_are_compared_as_values():
    accounts = [9007199254740992, 9007199254740993, 9007199254740994]
    data = {"format": "csv", "path": "-", "label": "y", "features": {"account": {"type": "category"}}}
    big = Data.model_validate({**data, "where": "account == '9007199254740993'"})
    table = {"account": pa.array([str(account) for account in accounts]), "y": pa.array(["a"] * 3)}
    assert Derived(big, table).selected.tolist() == [False, True, False]
    true = Data.model_validate({**data, "where": "account in ['True', '3.0']"})
    table["account"] = pa.array(["TRUE", "3", "no"])
    assert Derived(true, table).selected.tolist() == [True, True, False]
