"""Where a step's seconds went is read from Kubernetes' whole seconds and the precise times of a log."""

from __future__ import annotations

from datetime import UTC, datetime

from benchmarks.commands.kubeflow_steps import Times, spent


def at(second: float) -> datetime:
    return datetime.fromtimestamp(1767225600 + second, UTC)


def line(second: float, text: str) -> str:
    return f"{at(second):%Y-%m-%dT%H:%M:%S.%f}000Z {text}"


def test_a_step_that_found_its_output_and_ended_within_a_second_took_no_negative_time() -> None:
    log = "\n".join(
        [
            line(12.25, "Looking for component `train`"),
            line(14.5, '{"event": "reused", "step": "train"}'),
            line(14.75, "end"),
        ]
    )
    row, over = spent(Times(at(8), at(10), at(14)), log, at(5))
    assert row == {"before": 5.0, "queued": 2.0, "startup": 4.5, "own": 0.25}
    assert over == at(14.75)


def test_a_step_without_a_line_of_its_own_begins_where_kfp_hands_over() -> None:
    log = "\n".join([line(12.0, "I launcher"), line(13.0, "Looking for component `push`"), line(15.5, "published")])
    row, _ = spent(Times(at(8), at(10), at(16)), log, at(8))
    assert (row["startup"], row["own"]) == (3.0, 3.0)
