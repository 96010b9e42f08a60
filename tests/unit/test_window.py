"""Which days a rolling window reads, and how many of them may be missing."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from trainyard.contract import window
from trainyard.contract.keys import fingerprint
from trainyard.errors import ConfigurationError, DataError
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess.readers.files import find_files

TEXT = """
name: clicks
data: {{format: {format}, path: "{path}", window_days: {days}, max_missing_days: {missing}{features}}}
model: {{name: {model}}}
"""


def recipe(path: object, days: object = 3, missing: int = 0, images: bool = False) -> Recipe:
    features = "" if images else ", features: {x: {type: numeric}}"
    model, format = ("cnn_small", "image_folder") if images else ("mlp", "csv")
    text = TEXT.format(path=path, days=days, missing=missing, features=features, model=model, format=format)
    return documents.parse(text, Recipe, name="clicks.yaml")


def write(folder: Path, *days: str) -> None:
    for day in days:
        (folder / f"day={day}").mkdir(parents=True)
        (folder / f"day={day}" / "part.csv").write_text(f"x,label\n1,{day}\n")


def test_the_window_ends_the_day_before_the_runs_and_counts_over_months_and_leap_days() -> None:
    data = recipe("gs://b/%Y/%m/day-%d").data
    assert window.paths(data, "2028-03-02") == {
        "2028-02-28": "gs://b/2028/02/day-28",
        "2028-02-29": "gs://b/2028/02/day-29",
        "2028-03-01": "gs://b/2028/03/day-01",
    }
    assert list(window.paths(data, "2026-01-01T03:00:00Z"))[-1] == "2025-12-31"
    assert list(window.paths(data, "2026-01-01T00:30:00+02:00"))[-1] == "2025-12-30", "days are those of UTC"
    not_utf_8 = data.model_copy(update={"path": "/caf\udce9/%Y-%m-%d"})
    assert window.paths(not_utf_8, "2026-01-02")["2026-01-01"] == "/caf\udce9/2026-01-01"


def test_a_run_without_a_time_of_its_own_is_for_now() -> None:
    for nothing in ("", "{{$.pipeline_job_schedule_time_utc}}"):
        assert abs((window.time_of(nothing) - datetime.now(UTC)).total_seconds()) < 3600
    with pytest.raises(ConfigurationError, match="'tomorrow' is no day"):
        window.day_of("tomorrow", recipe("/d/%Y-%m-%d").data)


@pytest.mark.parametrize(
    ("zone", "scheduled", "day"),
    [
        ("UTC", "2026-03-09T18:00:00Z", "2026-03-09"),
        ("Asia/Tokyo", "2026-03-09T18:00:00Z", "2026-03-10"),  # 03:00 there
        ("Asia/Tokyo", "2026-03-10", "2026-03-10"),  # a day is of the zone already
        ("+00:00", "2026-03-10T03:00:00+09:00", "2026-03-09"),
        ("Europe/Berlin", "2026-03-28T23:30:00Z", "2026-03-29"),  # +01:00; clocks go forward at 01:00 UTC
        ("Europe/Berlin", "2026-03-29T22:30:00Z", "2026-03-30"),  # +02:00
        ("Europe/Berlin", "2026-10-25T22:30:00Z", "2026-10-25"),  # +01:00 again, 25 hours
        ("America/New_York", "2026-11-01T04:30:00Z", "2026-11-01"),
    ],
)
def test_the_days_of_a_window_are_those_of_the_datas_time_zone(zone: str, scheduled: str, day: str) -> None:
    data = recipe("/d/%Y-%m-%d").data.model_copy(update={"time_zone": zone})
    assert window.day_of(scheduled, data) == day
    before = [datetime.fromisoformat(each).date() for each in window.paths(data, scheduled)]
    assert [(datetime.fromisoformat(day).date() - each).days for each in before] == [3, 2, 1]


@pytest.mark.parametrize(
    ("path", "days", "expected"),
    [
        ("/data/day=%Y-%m", 3, "window_days needs a path with %Y, %m and %d in it, each once"),
        ("/data/%Y/%Y-%m-%d", 3, "window_days needs a path with %Y, %m and %d in it, each once"),
        ("/data/day=%Y-%m-%d-%H", 3, "window_days needs a path with %Y, %m and %d in it, each once"),
        ("/data/day=%Y-%m-%d", "null", "path names a day by %Y, %m and %d. Say by window_days"),
    ],
)
def test_a_pattern_that_names_no_day_or_no_window_is_refused(path: str, days: object, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=f"clicks.yaml:3: data: {expected}"):
        recipe(path, days)


def test_the_fingerprint_moves_with_the_window_and_with_what_is_in_it(tmp_path: Path) -> None:
    write(tmp_path, "2026-03-01", "2026-03-02", "2026-03-03", "2026-03-04")
    dated = recipe(f"{tmp_path}/day=%Y-%m-%d")
    before = fingerprint(dated, "2026-03-04")
    assert fingerprint(dated, "2026-03-04T22:00:00Z") == before != fingerprint(dated, "2026-03-05")
    (tmp_path / "day=2026-03-04" / "more.csv").write_text("x,label\n")
    assert fingerprint(dated, "2026-03-04") == before, "the day of the run itself is not over yet"
    (tmp_path / "day=2026-03-02" / "more.csv").write_text("x,label\n")
    assert fingerprint(dated, "2026-03-04") != before


def test_missing_days_are_named_and_bounded(tmp_path: Path) -> None:
    write(tmp_path, "2026-03-01", "2026-03-03")
    pattern = f"{tmp_path}/day=%Y-%m-%d"
    with pytest.raises(DataError) as error:
        fingerprint(recipe(pattern), "2026-03-04")
    assert "no files found on 1 of the 3 days from 2026-03-01 to 2026-03-03: 2026-03-02. " in str(error.value)
    assert "data.max_missing_days allows 0" in str(error.value)
    fingerprint(recipe(pattern, missing=1), "2026-03-04")
    with pytest.raises(DataError, match="no files found on any day from 2026-05-28 to 2026-05-30"):
        fingerprint(recipe(pattern, missing=3), "2026-05-31")


def test_files_of_all_days_are_found_and_a_class_is_the_folder_below_its_day(tmp_path: Path) -> None:
    for day in ("2026-03-01", "2026-03-03"):
        (tmp_path / day / "cat").mkdir(parents=True)
        (tmp_path / day / "cat" / "1.png").touch()
    data = recipe(f"{tmp_path}/%Y-%m-%d", missing=1, images=True).data
    files = find_files(data, data.path or "", "2026-03-04")
    assert [files.name(path) for path in files.paths] == ["2026-03-01/cat/1.png", "2026-03-03/cat/1.png"]
    assert {files.name_in_day(path) for path in files.paths} == {"cat/1.png"}
    assert files.window == window.Window(first="2026-03-01", last="2026-03-03", missing=["2026-03-02"])
