"""The curve of speed and workers: what it makes of measured speeds, and which workers are measured."""

from __future__ import annotations

import os

import pytest

from trainyard.errors import ConfigurationError
from trainyard.spec import recipe as recipes
from trainyard_control.search import bench, bench_report
from trainyard_control.search.bench_report import Speed


def speed(workers: int, rate: float, **split: float) -> Speed:
    return Speed(
        setting=f"{workers} workers",
        batch_size=100 * workers,
        examples_per_second=rate,
        low=rate - 1,
        high=rate + 1,
        input_examples_per_second=rate,
        tflops=0.1,
        peak_share=0.5,
        first_step_seconds=1.0,
        workers=workers,
        step_split_ms=split,
    )


ONE, TWO, FOUR, SIX = speed(1, 1000, input=5), speed(2, 1600, input=10, all_reduce=8), speed(4, 2800), speed(6, 3000)


def test_a_curve_says_what_each_doubling_gave_and_where_the_rest_went() -> None:
    one, two, four, six = bench_report.scaling_points([ONE, TWO, FOUR, SIX])
    assert [point.times for point in (one, two, four, six)] == pytest.approx([1, 1.6, 2.8, 3])
    assert [point.efficiency for point in (one, two, four, six)] == pytest.approx([1, 0.8, 0.7, 0.5])
    assert (one.doubled, two.doubled, four.doubled, six.doubled) == (None, 1.6, 1.75, None)
    # A step of 100 examples a worker: 100 ms alone, 125 ms in two.
    assert (one.step_ms, two.step_ms) == (100, 125)
    assert two.lost_ms == {"all_reduce": 8, "input": 5, "rest": 12}
    assert bench_report.scaling_sentences([one, two]) == [
        "2 workers train 1.60 times as fast as one, 80% of perfect.",
        "Their step takes 125.0 ms, one worker's 100.0: +8.0 for the sum of gradients, +5.0 for the input, +12.0 for "
        "the rest (waiting for the slowest, batch statistics, shared memory).",
    ]
    sure = two.speed.model_copy(update={"times": 1.6, "times_low": 1.5, "times_high": 1.7})
    measured = bench_report.scaling_sentences(bench_report.scaling_points([ONE, sure]))
    assert measured[0] == "2 workers train 1.60 (1.50 – 1.70) times as fast as one, 80% of perfect."
    busy = bench_report.scaling_sentences(bench_report.scaling_points([ONE, speed(2, 2200)]))
    assert busy[1].startswith("More than perfect: on a machine that does other things")
    assert "accumulation_steps" in bench_report.scaling_sentences([one, two, four])[-1]


def test_settings_of_one_worker_make_no_curve() -> None:
    assert bench_report.scaling_points([ONE, ONE]) == []


def test_the_line_of_a_perfect_growth_is_straight() -> None:
    drawn = bench_report.scaling_chart(bench_report.scaling_points([ONE, TWO, FOUR]))
    (perfect,) = (trace for trace in drawn["data"] if trace.get("name") == "perfect")
    assert perfect["x"] == [1, 2, 4] and perfect["y"] == [perfect["y"][0] * workers for workers in perfect["x"]]


def test_each_worker_has_cores_and_a_batch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8, 22)))
    recipe = recipes.load("digits", ["train.batch_size=64"])
    gangs = bench.gangs(recipe, 6)
    assert [gang.name for gang in gangs] == ["1 worker", "2 workers", "4 workers", "6 workers"]
    assert [gang.values["train.batch_size"] for gang in gangs] == [64, 128, 256, 384]
    assert [sorted(gang.cores or ()) for gang in gangs][:2] == [[8, 9], [8, 9, 10, 11]]
    assert len(gangs[-1].cores or ()) == 12


@pytest.mark.parametrize(("workers", "allowed"), [(0, "Give 2 to 4"), (1, "Give 2 to 4"), (5, "Give 2 to 4")])
def test_more_workers_than_cores_are_refused(monkeypatch: pytest.MonkeyPatch, workers: int, allowed: str) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    with pytest.raises(ConfigurationError, match=f"there are 4. {allowed}"):
        bench.gangs(recipes.load("digits"), workers)
