"""The time to an accuracy is read off the epochs of a training, as DAWNBench reads it."""

from dataclasses import replace

import pytest
from report_folders import SECONDS, recipe, training, whole_run

from trainyard.contract.artifacts.preprocess import Examples, SplitFiles
from trainyard.contract.artifacts.train import Epoch, Training
from trainyard.contract.time_to_accuracy import published_times, time_to_accuracy
from trainyard.report.outputs import read
from trainyard.report.report import render
from trainyard.report.summary import summarize
from trainyard.spec.gates import TimeTo
from trainyard_control.cli import screen

TOP_5, TOP_1 = TimeTo(reach=0.93), TimeTo(metric="accuracy", reach=0.759)


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
    reached = time_to_accuracy(made, TimeTo(reach=0.93), usd_per_hour=36.0)
    assert reached is not None
    assert (reached.epoch, reached.seconds, reached.split, reached.best) == (2, 130.0, "eval", 0.97)
    assert reached.dollars == pytest.approx(130 / 3600 * 36)
    by_accuracy = time_to_accuracy(made, TimeTo(metric="accuracy", reach=0.75))
    assert by_accuracy is not None and by_accuracy.epoch == 4 and by_accuracy.dollars is None


def test_what_no_epoch_reached_or_measured_has_no_time():
    reached = time_to_accuracy(epochs((0.5, 0.8, 60.0)), TimeTo(reach=0.93), usd_per_hour=1.0)
    assert reached is not None
    assert (reached.best, reached.epoch, reached.seconds, reached.dollars) == (0.8, None, None, None)
    few = time_to_accuracy(epochs((0.5, None, 60.0)), TimeTo(reach=0.5))
    assert few is not None and few.best is None
    assert time_to_accuracy(epochs((0.5, 0.8, 60.0)), None) is None


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
    page = " ".join(render("digits", wanted, late, SECONDS).split())
    assert "No epoch had top5 accuracy of 0.8000 on the eval split; the best one had 0.7000." in page
    assert summarize(recipe(), "run", outputs, SECONDS, None, None)["time_to"] is None


def imagenet(examples: Examples) -> Examples:
    """The document of ImageNet's two archives, two images of which could not be read."""
    counts = {"train": 1_256_000, "eval": 25_165, "test": 50_000}
    splits = {
        split: SplitFiles(examples=count, files=["a"], shard_examples=[count], class_counts=None)
        for split, count in counts.items()
    }
    return examples.model_copy(update={"splits": splits, "labels": [f"n{n}" for n in range(1000)], "quarantined": 2})


def test_a_run_on_imagenet_stands_beside_what_others_published_of_the_same_accuracy(tmp_path):
    wanted = recipe().model_copy(update={"evaluate": recipe().evaluate.model_copy(update={"time_to": TOP_5})})
    outputs = read(whole_run(tmp_path))
    assert outputs.examples is not None
    same = replace(outputs, examples=imagenet(outputs.examples), training=epochs((0.7, 0.94, 5400.0)))
    page = render("imagenet", wanted, same, SECONDS, usd_per_hour=30.0)
    table = page.partition('id="published"')[2].partition("</table>")[0]
    assert ">1.500</strong>" in table and ">45.00<" in table, "the run's own hours and dollars"
    assert ">1.743<" in table and ">42.66<" in table and "dawn-bench-entries" in table and "mlcommons" not in table
    record = summarize(wanted, "run", same, SECONDS, None, 30.0)
    rows = record["time_to"]["published"]
    assert [row["hours"] for row in rows] == sorted(row["hours"] for row in rows) and len(rows) == 10
    assert screen._published(rows) == "2.64 min, 16 nodes of 8 V100, to 14.6 h, 8 V100"
    other = replace(outputs, training=epochs((0.7, 0.94, 5400.0)))
    assert 'id="published"' not in render("digits", wanted, other, SECONDS)
    assert summarize(wanted, "run", other, SECONDS, None, None)["time_to"]["published"] == []


def test_only_the_same_images_and_the_very_accuracy_are_compared(tmp_path):
    examples = read(whole_run(tmp_path)).examples
    assert examples is not None
    whole = imagenet(examples)
    assert {row.source.split()[0] for row in published_times(TOP_1, whole)} == {"MLPerf"}
    assert published_times(TimeTo(reach=0.9), whole) == []
    assert published_times(TOP_5, whole.model_copy(update={"quarantined": 3})) == [], "one image more"
    assert published_times(TOP_5, whole.model_copy(update={"labels": ["cat", "dog"]})) == []
    assert published_times(TOP_5, None) == []
