"""The last screen of a run fits a terminal of 80 columns and says which split a figure is of."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from trainyard.measured import metric_text
from trainyard_control.api import progress
from trainyard_control.cli import screen

FORMATS = ("saved_model", "keras", "litert_float32", "litert_float16", "litert_int8")


def printed(table: Table | Padding, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined,no-any-return]


def export(format: str, metric: str = "accuracy") -> dict[str, Any]:
    return {
        "format": format, "metric": metric, "bytes": 104_857_600, "accuracy": 1, "accuracy_difference": 0.0,
        "max_abs_difference": 3e-7, "latency_ms": {"p50": 123.456, "p95": 1234.567}, "devices": [],
    }  # fmt: skip


def test_every_exported_file_is_named_whole_on_a_line_of_its_own_in_80_columns() -> None:
    lines = printed(screen.exports_table([export(format) for format in FORMATS]))
    assert [line.split()[0] for line in lines[1:]] == [*FORMATS]
    assert "…" not in "".join(lines) and "eval accuracy" in lines[0]


@pytest.mark.parametrize("metric", ["accuracy", "mae"])
def test_the_exports_say_which_metric_of_which_split_they_show(metric: str) -> None:
    assert f"eval {metric}" in printed(screen.exports_table([export("keras", metric)]))[0]


def test_a_device_shows_the_times_of_the_fastest_number_of_threads() -> None:
    latency = {"1": {"p50": 1.0, "p95": 4.0}, "4": {"p50": 2.0, "p95": 3.0}}  # as run.json has them
    timed = {"device": "pi", "machine": "a board [x]", "latency_ms": latency, "memory_mb": 1}
    lines = printed(screen.exports_table([export("keras") | {"devices": [timed]}]))
    assert lines[-1].split() == ["on", "pi,", "a", "board", "[x]", "2.000", "3.000"]


def test_a_metric_too_small_for_four_decimals_is_not_written_as_zero() -> None:
    written = [metric_text(value, "+") for value in (2.5e-6, -1e-17, 0.25, 45678.125)]
    assert written == ["+2.5e-06", "-0.0000", "+0.2500", "+45678.1250"]


def test_every_condition_of_the_gate_says_its_split_and_is_told_whole() -> None:
    names = ["accuracy >= 0.97", "saved_model max |probability - trained| <= 1e-05", "x" * 90]
    interval = {"low": 0.9742, "high": 1.0}
    thresholds = [
        {"name": name, "split": split, "value": 0.9897, "interval": interval, "passed": True, "note": ""}
        for name, split in zip(names, ("test", "test", "eval"), strict=True)
    ]
    model, exports = (printed(table) for table in screen.gate_tables(thresholds))
    assert (model[0].split()[:3], exports[0].split()[:3]) == (["gate", "(test", "split)"], ["gate", "(eval", "split)"])
    assert names[1] in model[2] and "✓" in model[2]
    assert "…" not in "".join(exports) and "".join(exports).count("x") == 90, "a longer name goes on on the next line"


def test_the_metrics_say_their_split() -> None:
    assert "metric (test split)" in printed(screen.metrics_table({"accuracy": 0.9}, {}, screen._on("test")))[0]
    assert "metric (as reported)" in printed(screen.metrics_table({"accuracy": 0.9}, {}, screen._on(None)))[0]


def test_a_remark_is_broken_between_its_words() -> None:
    first, second = f"'no' as the answer {'to everything ' * 3}has", "accuracy 0.4560, more than the trees [b] have."
    assert [line.strip() for line in printed(screen._remark(f"{first} {second}"), 70)] == [first, second]


def test_what_stands_in_brackets_is_text_and_no_style(capsys: pytest.CaptureFixture[str]) -> None:
    """A slice's condition is `accuracy [clinic=north] >= 0.2`, a file may be called img[1]."""
    condition = {
        "name": "accuracy [clinic=north] >= 0.2",
        "split": "test",
        "value": 1,
        "interval": None,
        "passed": True,
    }
    (table,) = screen.gate_tables([condition | {"note": "no slice [/b] there"}])
    text = "\n".join(printed(table))
    assert "[clinic=north]" in text and "no slice [/b] there" in text
    shown = progress.Screen()
    shown.step_event("preprocess", {"event": "warning", "message": "img[1] and [/] are left out"})
    shown.step_skipped("train", "no [new] data")
    assert "img[1] and [/] are left out" in (errors := capsys.readouterr().err) and "no [new] data" in errors


def test_a_long_path_is_told_whole_in_80_columns_and_curves_only_if_there_are_some(tmp_path: Path) -> None:
    path = "/storage" + "/folder" * 20
    record = {
        "folders": {"train": str(tmp_path)},
        "data": dict.fromkeys(("train", "eval", "test", "quarantined"), 1) | {"unselected": 1234},
        "pushed": None, "report": path, "seconds": {},
        "train": {"examples_per_second": 1, "bottleneck": "unclear", "epochs": 1, "steps": 1, "devices": ["CPU:0"]},
    }  # fmt: skip
    lines = printed(screen._summary(record, "cnn_small"))
    assert path in "".join(
        line.strip() for line in lines[lines.index(next(x for x in lines if "report" in x)) :]
    ).replace("report  ", "")
    assert "bound unclear" in "".join(lines) and "tensorboard" not in "".join(lines)
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "events.out.tfevents.1").touch()
    record["train"] |= {"input_workers": 2}
    lines = printed(screen._summary(record, "cnn_small"), 400)
    assert "CPU:0 · 2 input workers" in "".join(lines)
    assert f"tensorboard --logdir {tmp_path}/tensorboard" in "".join(lines)
    assert "1 quarantined · 1,234 left out by data.where" in "".join(lines)


def test_a_long_training_says_every_ten_seconds_how_it_stands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    shown = progress.Screen()
    fields = {"train_loss": 0.5, "eval_loss": 0.25, "metric": 0.875, "examples_per_second": 1234.0}
    for epoch in range(1, 26):
        now = 100.0 + epoch
        shown.step_event("train", {"event": "epoch", "epoch": epoch, "of": 40, **fields})
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[2] for line in lines] == ["10/40", "20/40"]
    assert "eval loss 0.2500  metric 0.8750  1,234 examples/s  30 s left at most" in lines[0]


def test_a_line_of_a_recipes_module_that_only_looks_like_an_event_ends_no_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for event in ({"event": "epoch"}, {"event": "epoch", "epoch": "first", "of": 2}, {"event": "progress"}):
        progress.Screen().step_event("train", event)
    assert capsys.readouterr().err == ""
