"""What a training's steps wait for, from figures that noise has spread."""

from __future__ import annotations

import pytest

from trainyard.steps.train.loop.speed import bottleneck, split


@pytest.mark.parametrize(
    ("real", "cached", "expected"),
    [
        ([12.0, 12.4], [9.0, 9.1], "input"),
        ([9.2, 9.4], [9.0, 9.1], "compute"),
        ([8.0, 8.1], [9.0, 9.1], "compute"),
        # As recorded on a busy machine, where the same training was bound by computation an hour before.
        ([4.9, 8.0, 11.3], [5.0, 5.8, 12.0], "unclear"),
        ([12.0], [9.0, 9.1, 30.0], "unclear"),
    ],
)
def test_the_input_is_blamed_only_where_every_epoch_was_slower_than_every_cached_call(
    real: list[float], cached: list[float], expected: str
) -> None:
    assert bottleneck(real, cached) == expected


@pytest.mark.parametrize(("cached", "all_reduce"), [(9.0, 0.0), (9.0, 4.0), (9.0, 20.0), (30.0, 4.0)])
def test_the_parts_of_a_step_add_up_to_it_also_where_a_cached_one_took_longer(cached: float, all_reduce: float) -> None:
    parts = split(12.0, cached, all_reduce)
    assert sum(parts.values()) == pytest.approx(12.0) and min(parts.values()) >= 0
