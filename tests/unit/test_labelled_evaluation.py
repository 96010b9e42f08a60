"""How `trainyard evaluate` reads labels: classes, several classes a row, numbers and weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from trainyard.contract.artifacts.evaluate import SliceMetrics
from trainyard.contract.artifacts.gate import Interval
from trainyard.contract.artifacts.push import VersionRecord
from trainyard.errors import DataError
from trainyard.quality.decoding import PixelForm
from trainyard.readers.rows import BadRow
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe
from trainyard.steps.predict.pushed_model import PushedModel
from trainyard.steps.predict.source import InputBatch
from trainyard_control.api.evaluation import AnsweredInputs, LabelledEvaluation, _items, with_labels
from trainyard_control.api.versions import Version
from trainyard_control.cli.verbs.predict import _show_evaluation

RECIPE = "{name: t, task: %s, data: {format: csv, path: x.csv, %s, features: {x: {type: numeric}}}, model: {name: mlp}}"


def recipe(task: str, data: str) -> Recipe:
    return documents.parse(RECIPE % (task, data), Recipe, name="recipe.yaml")


def model(**fields: object) -> PushedModel:
    return PushedModel.model_validate({"folder": "", "inputs": (), "labels": None, "pixels": None} | fields)


def answers(rows: int, shape: tuple[int, ...] = (), **columns: list[list[object]]) -> AnsweredInputs:
    """Answers in the reverse order of the rows, whose columns came in two batches."""
    keys, outputs = np.array([f"k{row}" for row in reversed(range(rows))], object), np.arange(rows, dtype=np.float32)
    batches = {name: [pa.array(batch) for batch in column] for name, column in columns.items()}
    return AnsweredInputs(
        keys,
        np.broadcast_to(outputs.reshape(-1, *([1] * len(shape))), (rows, *shape)),
        {},
        batches,
        np.arange(rows)[::-1],
    )


def test_several_classes_of_a_row_come_as_a_text_or_a_list_and_none_is_a_label_too() -> None:
    pushed = model(labels=("air", "sea", "sun"), label_separator=";")
    read = answers(5, (3,), tags=[["sea; air", "", None], ["sun;fog", "sun"]])
    judged, kept, why = with_labels(pushed, recipe("multi_label", "label: tags, label_separator: ;"), read, "a.csv")
    assert kept.tolist() == [True, False, True, True, True] and why == {"unknown class 'fog'": 1}
    assert judged.labels.tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 0], [1, 1, 0]]
    assert judged.outputs[:, 0].tolist() == [0, 2, 3, 4]
    dropping = recipe("multi_label", "label: tags, label_separator: ;, label_min_count: 2")
    judged, kept, why = with_labels(pushed, dropping, read, "a.csv")
    assert kept.all() and not why and judged.labels[1].tolist() == [0, 0, 1]
    lists = answers(2, (3,), tags=[[["sea", "air"], []]])
    judged, _, _ = with_labels(pushed, recipe("multi_label", "label: tags, label_separator: ;"), lists, "a.parquet")
    assert judged.labels.tolist() == [[0, 0, 0], [1, 1, 0]]


def test_a_class_is_compared_by_its_text_and_a_list_is_refused() -> None:
    pushed = model(labels=("0", "1"))
    read = answers(5, (2,), label=[[1.0, 0.0, None], [1, 2]])
    judged, kept, why = with_labels(pushed, recipe("classification", "label: label"), read, "a.parquet")
    assert judged.labels.tolist() == [1, 0, 1] and kept.tolist() == [False, True, False, True, True]
    assert why == {"unknown class '2'": 1, "without a label": 1}
    lines = answers(3, (2,), label=[["a\nb", " a b\n", "1"]])
    judged, kept, why = with_labels(
        model(labels=("1", "a b")), recipe("classification", "label: label"), lines, "a.csv"
    )
    assert judged.labels.tolist() == [0, 1] and why == {"unknown class 'a\\nb'": 1}
    with pytest.raises(DataError, match=r"'label' is list<.*, and the model has one class a row"):
        with_labels(
            pushed, recipe("classification", "label: label"), answers(1, (2,), label=[[["0", "1"]]]), "a.parquet"
        )


def test_a_target_without_a_number_or_a_weight_is_left_out() -> None:
    plain = recipe("regression", "label: fare, weight: w")
    read = answers(5, fare=[["1.5", "x", "2"], ["3", ""]], w=[[1, 1, None], [2, 1]])
    judged, kept, why = with_labels(model(), plain, read, "a.csv")
    assert judged.labels.tolist() == [3, 1.5] and judged.labels.dtype == np.float32
    assert judged.weights is not None and judged.weights.tolist() == [2, 1] and judged.outputs.tolist() == [1, 4]
    assert kept.tolist() == [False, True, False, False, True] and why == {"no number as label": 2, "no weight": 1}
    with pytest.raises(
        DataError, match=r"no label in 'fare' that the model knows, the first are 'x', None\. It knows num"
    ):
        with_labels(model(), plain, answers(2, fare=[["x", None]], w=[[1, 1]]), "a.csv")
    several = recipe("regression", "targets: [a, b]")
    judged, kept, _ = with_labels(
        model(targets=("a", "b")), several, answers(2, (2,), a=[[1, 2]], b=[[3, None]]), "a.csv"
    )
    assert judged.labels.tolist() == [[1, 3]] and judged.outputs.shape == (1, 2)


def test_a_slice_shows_the_main_metric_in_whatever_order_the_metrics_come(capsys: pytest.CaptureFixture[str]) -> None:
    interval = Interval(low=0.5, high=0.7)
    before, now = (
        SliceMetrics(name="x=1", examples=9, metrics=metrics, interval=interval)
        for metrics in ({"exact_match": 0.1, "f1": 0.6}, {"f1": 0.65, "exact_match": 0.2})
    )
    kept = VersionRecord(recipe={"task": "multi_label"}, slices=[before])
    version = Version(number=1, folder="models/1", serves=True, aliases=(), record=kept)
    found = LabelledEvaluation(version, "a.csv", 9, {}, [], {}, {}, [now], [])
    assert found.slice_rows[0].cells == ["f1 0.6000 (0.5000 – 0.7000), 9", "f1 0.6500 (0.5000 – 0.7000), 9"]
    _show_evaluation(found)
    assert "x=1" in (shown := capsys.readouterr().out) and "*" not in shown, (
        "nothing is marked, so no mark is explained"
    )


def test_images_are_labelled_by_the_file_beside_them_and_those_without_a_row_are_left_out(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "c.png", "d.png"):
        Image.new("L", (8, 8), 40).save(tmp_path / name)
    rows = ["file,tags", "a.png,sea;sun", "b.png,", "d.png,sea", "d.png,sun", "gone.png,sea"]
    (tmp_path / "labels.csv").write_text("\n".join(rows) + "\n")
    data = "{format: image_folder, path: x, labels: labels.csv, label: tags, label_separator: ;}"
    text = f"{{name: t, task: multi_label, data: {data}, model: {{name: cnn_small}}}}"
    pushed = model(labels=("sea", "sun"), label_separator=";", pixels=PixelForm(1, None))
    items = list(_items(pushed, documents.parse(text, Recipe, name="recipe.yaml"), str(tmp_path)))
    (batch,) = [item for item in items if isinstance(item, InputBatch)]
    assert batch.keys.to_pylist() == ["a.png", "b.png"]
    assert batch.extras["tags"].to_pylist() == ["sea;sun", ""], "an empty cell is an image without a class"
    assert [(item.key, item.reason) for item in items if isinstance(item, BadRow)] == [
        ("labels.csv:6", "missing_image"),
        ("c.png", "missing_label"),
        ("d.png", "contradicting_labels"),
    ]
