"""The time to an accuracy is read off the epochs of a training, as DAWNBench reads it."""

from dataclasses import replace

import pytest
from report_folders import SECONDS, recipe, training, whole_run

from trainyard.contract.artifacts.train import Epoch, Training
from trainyard.contract.training.time_to import time_to
from trainyard.report.outputs import read
from trainyard.report.report import render
from trainyard.report.summary import summarize
from trainyard.spec.gates import TimeTo


def epochs(*values: tuple[float, float | None, float | None]) -> Training:
    """A training whose epochs have these accuracies, top-5 accuracies and elapsed seconds."""
    history = [
        Epoch(
            epoch=number,
            step=number,
            learning_rate=0.1,
            train_loss=1,
            eval_loss=1,
            metric=metric,
            examples_per_second=9,
            seconds=1,
            top5_accuracy=top5,
            elapsed_seconds=elapsed,
        )
        for number, (metric, top5, elapsed) in enumerate(values, 1)
    ]
    return training().model_copy(update={"history": history})


def test_the_first_epoch_that_reaches_it_stops_the_clock():
    made = epochs((0.5, 0.8, 60.0), (0.7, 0.93, 130.0), (0.6, 0.92, 200.0), (0.8, 0.97, 260.0))
    reached = time_to(made, TimeTo(reach=0.93), usd_per_hour=36.0)
    assert reached is not None
    assert (reached.epoch, reached.seconds, reached.split, reached.best) == (2, 130.0, "eval", 0.97)
    assert reached.dollars == pytest.approx(130 / 3600 * 36)
    by_accuracy = time_to(made, TimeTo(metric="accuracy", reach=0.75))
    assert by_accuracy is not None and by_accuracy.epoch == 4 and by_accuracy.dollars is None


def test_what_no_epoch_reached_or_measured_has_no_time():
    reached = time_to(epochs((0.5, 0.8, 60.0)), TimeTo(reach=0.93), usd_per_hour=1.0)
    assert reached is not None
    assert (reached.best, reached.epoch, reached.seconds, reached.dollars) == (0.8, None, None, None)
    few = time_to(epochs((0.5, None, 60.0)), TimeTo(reach=0.5))
    assert few is not None and few.best is None
    assert time_to(epochs((0.5, 0.8, 60.0)), None) is None


def test_report_and_record_say_it(tmp_path):
    wanted = recipe().model_copy(
        update={"evaluate": recipe().evaluate.model_copy(update={"time_to": TimeTo(reach=0.8)})}
    )
    outputs = replace(read(whole_run(tmp_path)), training=epochs((0.5, 0.7, 60.0), (0.5, 0.81, 120.0)))
    page = " ".join(render("digits", wanted, outputs, SECONDS, usd_per_hour=30.0).split())
    assert "had top5 accuracy of 0.8000 or more after epoch 2, 120.0 s after the first byte" in page
    assert "$1 by the pool's price" in page
    record = summarize(wanted, "run", outputs, SECONDS, None, 30.0)
    assert record["time_to"]["seconds"] == 120.0 and record["time_to"]["dollars"] == 1.0
    late = replace(outputs, training=epochs((0.5, 0.7, 60.0)))
    assert "No epoch had top5 accuracy of 0.8000 on the eval split; the best one had 0.7000." in render(
        "digits", wanted, late, SECONDS
    )
    assert summarize(recipe(), "run", outputs, SECONDS, None, None)["time_to"] is None
