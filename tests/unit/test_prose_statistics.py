"""What statistics hold of texts that people wrote: words, lengths and common categories, never a text."""

from __future__ import annotations

import pyarrow as pa

from trainyard.steps.preprocess.statistics import Summary

MAILS = ["Dear Ann Miller, my number is 555-1234.", "", "dear all: the (number) is wrong", "tags;are;cut"]


def test_texts_leave_words_and_lengths_and_no_text() -> None:
    rows = pa.RecordBatch.from_pydict({"source": [""] * 4, "label": ["a"] * 4, "raw/mail": MAILS})
    halves = [Summary.from_rows(rows.slice(start, 2), [], {"mail": None}) for start in (0, 2)]
    halves[0].merge(halves[1])
    statistics = halves[0].document({}).statistics["mail"]
    assert statistics["top"] == [
        {"value": "dear", "count": 2},
        {"value": "is", "count": 2},
        {"value": "number", "count": 2},
    ]
    assert (statistics["count"], statistics["missing"], statistics["words"]) == (3, 1, 14)
    assert (statistics["min"], statistics["max"]) == (12, 39)
    assert not any("miller" in f"{value}".lower() or "555" in f"{value}" for value in statistics.values())
    assert Summary.from_rows(rows.slice(0, 0), [], {"mail": None}).document({}).statistics["mail"]["count"] == 0


def test_days_with_their_hours_are_counted_as_days() -> None:
    times = ["2024-03-01T05", "2024-03-02T00", "2024-03-01T23", ""]
    rows = pa.RecordBatch.from_pydict({"source": [""] * 4, "label": ["a"] * 4, "raw/at": times})
    statistics = Summary.from_rows(rows, [], {}, ["at"]).document({}).statistics["at"]
    assert statistics["top"] == [{"value": "2024-03-01", "count": 2}]
    assert (statistics["count"], statistics["missing"], statistics["distinct"]) == (3, 1, 2)


def test_texts_with_a_separator_leave_its_parts() -> None:
    rows = pa.RecordBatch.from_pydict(
        {"source": [""] * 2, "label": ["a"] * 2, "raw/tags": ["New York;b", "b; New York"]}
    )
    statistics = Summary.from_rows(rows, [], {"tags": ";"}).document({}).statistics["tags"]
    assert statistics["top"] == [{"value": "New York", "count": 2}, {"value": "b", "count": 2}]
    kept = Summary.from_rows(rows, []).document({}, samples=True).statistics["tags"]
    assert kept["top"][0] == {"value": "New York;b", "count": 1}


def test_values_of_a_category_that_are_long_or_in_one_row_are_left_out_unless_samples_are_kept() -> None:
    values = ["x" * 41] * 3 + ["x" * 40] * 2 + ["Ann Miller"]
    rows = pa.RecordBatch.from_pydict({"source": [""] * 6, "label": ["a"] * 6, "raw/who": values})
    summary = Summary.from_rows(rows, [])
    statistics = summary.document({}).statistics["who"]
    assert statistics == {"count": 6, "missing": 0, "distinct": 3, "top": [{"value": "x" * 40, "count": 2}]}
    kept = summary.document({}, samples=True).statistics["who"]["top"]
    assert [entry["value"] for entry in kept] == ["x" * 41, "x" * 40, "Ann Miller"]
