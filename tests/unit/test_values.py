"""One value, one text: whatever wrote it, whichever reader reads it."""

import datetime
import unicodedata
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.quality.tables import cells
from trainyard.values.columns import canonical_lists, canonical_texts, days, impossible_times
from trainyard.values.numbers import MOST_OF_FEATURE, MOST_OF_TARGET, coarse
from trainyard.values.text import UTC, alike, canonical, canonical_list, day
from trainyard.values.zones import time_zone

NFC, NFD = "café", unicodedata.normalize("NFD", "café")
MADE_OF = st.text(st.sampled_from("0123456789.eE+-:TZtrueFALS \n\r\t\x1c\u3000é\u0301你"), max_size=24)
DATES = st.lists(
    st.sampled_from(
        ["2024-02-29", "2023-02-29", "T", " ", "\n", "\r\n", "05:30", ":59", "Z", " UTC", "+09:00", "x", "\u3000"]
    ),
    max_size=6,
).map("".join)

WRITINGS = [
    ("3", ["3", "3.0", " 3.000 ", "3e+00"]),
    ("-3", ["-3", "-3.0"]),
    ("0", ["0", "-0", "0.0", "-0.0", "0E-18", "0e+00", "-0.000e+00", "0E+3"]),
    ("46701234565", ["46701234565", "4.6701234565e+10", "4.6701234565E10", "46701234565.0"]),
    ("9007199254740993", ["9007199254740993", "9.007199254740993e+15"]),
    ("100000", ["1e+05", "1.0E5", "1E+05"]),
    ("500", ["5.00e+02", "0.5e+03", "0.5E3"]),
    ("0.0000015", ["1.5e-06", "1.5E-6", "0.0000015"]),
    ("12345678901.25", ["12345678901.25", "1.234567890125e+10"]),
    ("true", ["true", "True", "TRUE", " True\t"]),
    ("false", ["false", "False", "FALSE"]),
    (NFC, [NFC, NFD, f"\u3000{NFD}\u00a0"]),
    ("1 Main St Springfield", ["1 Main St\nSpringfield", "1 Main St \r\n Springfield", "1 Main St\rSpringfield"]),
    ("2024-03-01 09:05:00", ["2024-03-01T09:05", "2024-03-01 09:05:00.000000"]),
    ("2024-03-01", ["2024-03-01", "2024-03-01 00:00:00", "2024-03-01T00:00:00.000"]),
    (
        "2024-02-29 20:05:00+00:00",
        ["2024-03-01T05:05+09:00", "2024-02-29 20:05:00Z", "2024-02-29 20:05 UTC", "2024-02-29 16:05:00.0-0400"],
    ),
    ("09:05:00.12", ["09:05:00.120000", "09:05:00.12"]),
    ("09:05:00", ["09:05:00.000", "09:05:00"]),
]
NAMES = ["007", "007.0", "1.10", "7e3", "0e5", "12e45", "tRue", "yes", "NA", "null", "[missing]", "100.", ".5", "1.2.3"]
NAMES += ["+3.0", "2024-02-30 09:05:00Z", "2024-13-01 09:05", "9999-12-31 23:00:00-05:00", "10.0.0.0", "e+10", "-"]


@pytest.mark.parametrize(("text", "writings"), WRITINGS)
def test_each_writing_of_a_value_is_its_text(text, writings):
    assert {canonical(writing) for writing in writings} == {text}
    assert canonical_texts(pa.array(writings)).to_pylist() == [text] * len(writings)


@pytest.mark.parametrize("name", NAMES)
def test_what_may_be_a_name_stays_as_it_is(name):
    assert canonical(name) == name
    assert canonical_texts(pa.array([name])).to_pylist() == [name]


@given(st.one_of(st.text(max_size=30), MADE_OF))
def test_a_canonical_text_stays_and_columns_are_as_single_texts(text):
    assert canonical(canonical(text)) == canonical(text)
    assert canonical_texts(pa.array([text, "x"])).to_pylist() == [canonical(text), "x"]
    assert canonical_lists(pa.array([text]), ":").to_pylist() == [canonical_list(text, ":")]
    assert days(pa.array([text]), hour=True, zone=UTC).to_pylist() == [day(text, hour=True)]


@given(DATES, st.sampled_from(["UTC", "America/New_York"]).map(time_zone))
def test_a_text_that_is_a_day_is_that_day_where_data_are_inspected(text, zone):
    found = cells.cells(pa.array([text, "x"]), zone).days[0]
    expected = day(text, zone=zone)
    assert days(pa.array([text]), hour=False, zone=zone).to_pylist() == [expected]
    assert np.isnan(found) if not expected else np.datetime64(expected).astype(int) == found


def test_a_day_may_stand_before_a_line_break():
    assert day("2024-03-01\r\n05:00", hour=True) == day("2024-03-01 05:00 ", hour=True) == "2024-03-01T05"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_of_arrow_and_of_python_is_one_text_and_loses_nothing(number):
    [text] = canonical_texts(pa.array([number])).to_pylist()
    assert text == canonical(repr(number))
    assert float(text) == number


@given(st.integers(-(2**63), 2**63 - 1))
def test_an_integer_keeps_every_digit(number):
    assert canonical_texts(pa.array([number])).to_pylist() == [str(number)]
    if abs(number) < 2**53:
        assert canonical_texts(pa.array([float(number)])).to_pylist() == [str(number)]


def test_each_type_of_arrow_has_its_text():
    time = datetime.datetime(2024, 3, 1, 9, 5)
    arrays = {
        "true": pa.array([True, None]),
        "18446744073709551615": pa.array([2**64 - 1, None], pa.uint64()),
        "0.1": pa.array([0.1, float("nan")], pa.float32()),
        "1.10": pa.array([Decimal("1.10"), None]),
        "3": pa.array([Decimal("3.00"), None]),
        "2024-03-01": pa.array([time.date(), None], pa.date64()),
        "2024-03-01 09:05:00": pa.array([time, None], pa.timestamp("ns")),
        "2024-03-01 09:05:00+00:00": pa.array([time, None], pa.timestamp("ms", "Asia/Tokyo")),
        "09:05:00": pa.array([time.time(), None], pa.time64("us")),
        "x": pa.array([" x", None], pa.large_string()),
        NFC: pa.array([NFD, None]).dictionary_encode(),
        "1;2.5": pa.array([[1.0, 2.5], None]),
    }
    assert {text: canonical_texts(array).to_pylist() for text, array in arrays.items()} == {
        text: [text, ""] for text in arrays
    }
    assert canonical_texts(pa.nulls(2)).to_pylist() == ["", ""]


@pytest.mark.parametrize(
    "kind",
    [pa.date32(), pa.date64(), *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us") for zone in (None, "UTC"))],
)
def test_times_that_no_text_writes_are_found_and_all_others_are_days(kind):
    first, last = (np.datetime64(f"{year}", "D").astype(int) for year in (1, 10_000))
    units = {"date32[day]": 1, "date64[ms]": 86_400_000}.get(str(kind)) or np.timedelta64(1, "D") // np.timedelta64(
        1, kind.unit
    )
    step = units if pa.types.is_date(kind) else 1
    stored = [
        first * units - step,
        first * units,
        last * units - step,
        last * units,
        None,
        (1 << kind.bit_width - 1) - 1,
    ]
    array = pa.array(stored, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    wrong = {0: stored[0], 3: stored[3], 5: stored[5]}
    assert impossible_times(array) == {row: f"{number} ({kind})" for row, number in wrong.items()}
    assert days(array.take([1, 2, 4]), hour=False, zone=UTC).to_pylist() == ["0001-01-01", "9999-12-31", ""]
    assert list(impossible_times(pa.array([0] * 6).cast(pa.int8()).dictionary_encode())) == []
    assert [*impossible_times(pa.DictionaryArray.from_arrays(pa.array([1, None, 3]), array))] == [2]
    assert [*impossible_times(pa.ListArray.from_arrays([0, 1, 3, 4, 6], array))] == [0, 2, 3]


def test_a_time_outside_a_day_is_found():
    for unit, second in {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}.items():
        kind = pa.time32(unit) if second <= 1000 else pa.time64(unit)
        array = (
            pa.array([-1, 0, 86_400 * second - 1, 86_400 * second], pa.int64()).cast(f"int{kind.bit_width}").view(kind)
        )
        assert [*impossible_times(array)] == [0, 3]
    assert impossible_times(pa.array([2**63 - 1, 1 - 2**63]).view(pa.timestamp("ns"))) == {}


def test_a_time_with_a_zone_is_a_day_of_utc_and_a_day_alone_is_midnight():
    assert day("2024-03-01T05:00:00+09:00", hour=True) == "2024-02-29T20"
    assert day(" 2024-03-01 00:00:00", hour=True) == "2024-03-01T00"
    assert day("2024-03-01", hour=True) == "2024-03-01T00"
    assert (day(""), day("2024-02-30"), day("1 March"), day("1709251200")) == ("", None, None, None)
    assert day("2024-03-01 05:30 UTC", hour=True, zone=time_zone("Asia/Tokyo")) == "2024-03-01T14"
    assert {day(f"2024-03-01 {time}", hour=True) for time in ("05", "05:30", "05:30:00.5", "05:30:00,123")} == {
        "2024-03-01T05"
    }
    tokyo = pa.array([datetime.datetime(2024, 2, 29, 20)], pa.timestamp("us", "Asia/Tokyo"))
    utc = tokyo.cast(pa.timestamp("us", "UTC"))
    assert days(tokyo, hour=True, zone=UTC).to_pylist() == days(utc, hour=True, zone=UTC).to_pylist()


def test_a_time_with_a_zone_is_a_day_of_the_zone_that_the_recipe_names():
    tokyo, new_york, kathmandu = map(time_zone, ("Asia/Tokyo", "America/New_York", "+05:45"))
    assert day("2024-02-29T20:30Z", hour=True, zone=tokyo) == "2024-03-01T05"
    assert day("2024-03-01 05:30:00.5+09:00", hour=True, zone=tokyo) == "2024-03-01T05"
    assert day("2024-02-29 20:30", hour=True, zone=tokyo) == "2024-02-29T20"
    assert day("2024-02-29T20:30Z", hour=True, zone=kathmandu) == "2024-03-01T02"
    around_daylight_saving = ["2024-03-10T06:59Z", "2024-03-10T07:00Z", "2024-11-03T05:59Z", "2024-11-03T06:00Z"]
    assert [day(text, hour=True, zone=new_york)[-2:] for text in around_daylight_saving] == ["01", "03", "01", "01"]
    utc = pa.array([datetime.datetime(2024, 2, 29, 20)], pa.timestamp("us", "UTC"))
    assert days(utc, hour=True, zone=tokyo).to_pylist() == ["2024-03-01T05"]
    assert cells.cells(pa.array(["2024-02-29 20:00Z"]), tokyo).days == cells.cells(pa.array(["2024-03-01"])).days


@pytest.mark.parametrize(
    "tail",
    [" noon", " 24:00", " 05:30 PM", " 05:30 EST", "T05:30+01:00[Europe/Paris]", "T23:59:60Z", "T05Z", "T053000Z"],
)
def test_a_day_before_a_text_that_may_be_another_hour_or_day_is_no_date(tail):
    assert day(f"2024-03-01{tail}") is None
    assert np.isnan(cells.cells(pa.array([f"2024-03-01{tail}", "x"])).days).all()


@pytest.mark.parametrize("name", ["Asia/Tokio", "../Tokyo", "asia", "Asia", "", "zone.tab", "+9", "+24:00", "zones"])
def test_what_names_no_time_zone_is_refused(name):
    with pytest.raises(ValueError, match="no time zone"):
        time_zone(name)


def test_true_and_false_are_numbers_where_numbers_are_expected():
    numbers, wrong = cells.numbers(pa.array(["True", "FALSE", "2.5", "", "x"]))
    np.testing.assert_array_equal(numbers, [1, 0, 2.5, np.nan, np.nan])
    assert wrong.tolist() == [False, False, False, False, True]


def test_classes_that_differ_in_their_writing_alone_are_named():
    assert alike(["Cat", "dog", "cat", "Ｃat", "a  b", "a b"]) == [["Cat", "cat", "Ｃat"], ["a  b", "a b"]]
    apples = ["apple", "\N{CYRILLIC SMALL LETTER A}pple", "app\N{ZERO WIDTH SPACE}le"]
    assert alike([*apples, "pear"]) == [sorted(apples)]
    assert alike(["Cat", "dog"]) == []


def test_numbers_that_32_bits_do_not_tell_apart_are_named():
    assert coarse(0, 1e9, 1e8, MOST_OF_FEATURE) is None
    assert coarse(1.7e9, 1.7e9 + 1e8, 1e7, MOST_OF_TARGET) is None
    assert coarse(1.7e9, 1.7e9, 0, MOST_OF_FEATURE) is coarse(3.7, 3.7, 8.9e-16, MOST_OF_FEATURE) is None
    assert coarse(1_700_000_000, 1_700_000_195, 57.7, MOST_OF_FEATURE) == (
        "lies from 1700000000 to 1700000195 (standard deviation 57.7), where a 32-bit float, in which networks "
        "compute, has steps of 128. Write it in the data less a constant, such as 1700000000"
    )
