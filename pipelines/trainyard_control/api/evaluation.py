"""Evaluates a pushed model on labelled data that it did not learn from, and compares with its test split."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from trainyard.contract.artifacts.evaluate import Mistake, SliceMetrics
from trainyard.contract.artifacts.gate import Interval
from trainyard.errors import DataError, listed
from trainyard.measured import interval_text, metric_text
from trainyard.report.plots import page
from trainyard.spec.gates import MAIN_METRIC, Task
from trainyard.spec.recipe import Recipe
from trainyard_control.api.arguments import LOCAL
from trainyard_control.api.model import require_tensorflow
from trainyard_control.api.versions import Version, find_one
from trainyard_control.search.comparison import MISSING, Row, metric_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from trainyard.steps.evaluate.metrics.predictions import SplitPredictions
    from trainyard.steps.predict.pushed_model import PushedModel
    from trainyard.steps.predict.source import InputBatch, Items

_SHOWN = 5  # names in a sentence; chosen


@dataclass(frozen=True)
class LabelledEvaluation:
    """The evaluation of a version on labelled data, as evaluate measures a test split.

    left_out: the numbers of inputs that were not evaluated, by reason. notes: what is not compared.
    """

    version: Version
    data: str
    examples: int
    left_out: dict[str, int]
    notes: list[str]
    metrics: dict[str, float]
    intervals: dict[str, Interval]
    slices: list[SliceMetrics]
    worst: list[Mistake]

    def __repr__(self) -> str:
        metrics = ", ".join(f"{name} {metric_text(value)}" for name, value in self.metrics.items())
        return f"<Evaluation of {self.version.name} on {self.examples:,} examples: {metrics}>"

    @property
    def rows(self) -> list[Row]:
        """Each metric on the version's test split and on the data; certain: their intervals do not overlap."""
        return list(metric_rows([self.version.record, self], [None, None]))

    @property
    def slice_rows(self) -> list[Row]:
        """The main metric of each slice on the test split and on the data, with the numbers of examples."""
        before = {part.name: part for part in self.version.record.slices}
        task = self.version.record.recipe["task"]
        return [
            main_metric_row(part.name, [before.get(part.name), part], task)
            for part in sorted(self.slices, key=lambda part: part.name)
        ]

    def page(self) -> str:
        """Render the evaluation as a page of HTML."""
        worst = [[item.key, item.label, item.predicted, f"{item.loss:.4g}"] for item in self.worst]
        tables = [
            (["metric", "test split", self.data], [[row.name, *row.cells] for row in self.rows]),
            (["slice", "test split", self.data], [[row.name, *row.cells] for row in self.slice_rows]),
            (["example", "label", "predicted", "loss"], worst),
        ]
        left_out = [f"{count:,} left out: {reason}." for reason, count in self.left_out.items()]
        notes = [f"{self.examples:,} examples.", *left_out, *self.notes]
        return page(f"{self.version.name} on {self.data}", notes, {}, [table for table in tables if table[1]])

    def document(self) -> dict[str, Any]:
        """Return the evaluation as JSON has it."""
        record = self.version.record
        return {
            "model": self.version.folder,
            "data": self.data,
            "examples": self.examples,
            "left_out": self.left_out,
            "notes": self.notes,
            "metrics": self.metrics,
            "intervals": {name: interval.model_dump() for name, interval in self.intervals.items()},
            "slices": [part.model_dump() for part in self.slices],
            "worst": [item.model_dump(exclude={"image"}) for item in self.worst],
            "test": record.model_dump(mode="json", include={"metrics", "intervals", "slices"}),
        }


def evaluate(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str],
    *,
    label: str | None = None,
    environment: str = LOCAL,
) -> LabelledEvaluation:
    """Evaluate a pushed model on labelled data, and compare with its test split.

    model: as `load` takes it. data: a table (CSV, Parquet, TFRecord) with the label's column, or a folder with a folder
    of images for each class or with the recipe's `data.labels`, as a path, a glob or a URI. label: the column, by
    default the recipe's.

    Inputs without a label, or with a class that the model does not know, are left out and counted. Raises `DataError`
    if nothing can be evaluated or a column is missing.

    >>> import trainyard as ty
    >>> ty.evaluate("digits", "labelled/").metrics["accuracy"]  # doctest: +SKIP
    """
    require_tensorflow()
    version, path = find_one(os.fspath(model), environment), os.fspath(data)
    recipe = recipe_of(version, label)
    from trainyard.values.columns import block_pandas_import

    block_pandas_import()
    from trainyard.steps.predict.pushed_model import open_model

    pushed = open_model(version.folder)
    read, left_out = _answers(pushed, recipe, path)
    judged, kept, why = with_labels(pushed, recipe, read, path)
    return measured(version, recipe, pushed, read, judged, kept, path, left_out | why)


@dataclass(frozen=True)
class AnsweredInputs:
    """Inputs and the answers to them: keys (n,), outputs (n, …) and inputs (n,) that slices need, by name.

    extras: the label's and the weight's column by name, as they were read; rows: the places (n,) of the answers there.
    """

    keys: NDArray[Any]
    outputs: NDArray[Any]
    inputs: dict[str, NDArray[Any]]
    extras: dict[str, list[pa.Array]]
    rows: NDArray[Any]

    def numbers(self, name: str) -> NDArray[Any]:
        """Return the numbers (n,) of a column, NaN for every other value."""
        import numpy as np

        from trainyard.quality.tables import cells

        parts = [np.where(wrong, np.nan, numbers) for numbers, wrong in map(cells.numbers, self.extras[name])]
        numbers: NDArray[Any] = np.concatenate(parts)[self.rows]
        return numbers

    def texts(self, name: str, separator: str | None) -> list[str]:
        """Return the texts (n,) of a column as preprocess reads labels. Raises `DataError` for lists of one class.

        A text with a line break stays as it is: preprocess quarantines it, so it is no class.
        """
        import pyarrow.compute as pc

        from trainyard.values.columns import as_texts, canonical_lists, canonical_texts, is_list, joined

        texts: list[str] = []
        for column in self.extras[name]:
            if is_list(column.type) and separator is None:
                raise DataError(f"'{name}' is {column.type}, and the model has one class a row. Name another column.")
            plain = as_texts(column) if separator is None or not is_list(column.type) else joined(column, separator)
            read = canonical_texts(plain) if separator is None else canonical_lists(plain, separator)
            is_broken = pc.match_substring_regex(pc.utf8_trim_whitespace(plain), r"[\n\r]")
            texts += pc.if_else(is_broken, plain, read).to_pylist()
        return [texts[row] for row in self.rows]


def recipe_of(version: Version, label: str | None = None) -> Recipe:
    """Return the recipe of a version; label: the column of the label instead of the recipe's.

    Raises `DataError` if it is unknown.
    """
    if not version.record.recipe:
        raise DataError(
            f"{version.folder}: an older version of Trainyard pushed it, so its label is unknown. Push the model again."
        )
    try:
        recipe = Recipe.model_validate(version.record.recipe)
    except ValidationError as error:
        raise DataError(f"{version.folder}: its recipe is of another Trainyard. Push the model again.") from error
    if not label:
        return recipe
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"label": label, "targets": []})})


def _answers(pushed: PushedModel, recipe: Recipe, path: str) -> tuple[AnsweredInputs, dict[str, int]]:
    """Return the answers of the model to the inputs at `path`, and the number of rejected inputs by reason."""
    import numpy as np

    from trainyard.readers.rows import BadRow
    from trainyard.spec.columns import input_name
    from trainyard.steps.predict.prediction import answer_all, nothing, served_model
    from trainyard.steps.predict.results import Sink

    items = _items(pushed, recipe, path)
    sliced = [name for name in recipe.evaluate.slices if name in {feature.name for feature in pushed.inputs}]
    batches: list[InputBatch] = []

    def remembered(items: Items) -> Iterator[Any]:
        for item in items:
            if not isinstance(item, BadRow):
                batches.append(item)
            yield item

    class Answers(Sink):
        def __init__(self) -> None:
            super().__init__(pushed)
            self.keys: list[pa.Array] = []
            self.outputs: list[NDArray[Any]] = []

        def add(self, keys: pa.Array, outputs: NDArray[Any]) -> None:
            self.keys.append(keys)
            self.outputs.append(outputs)
            self.predicted += len(keys)

    first = list(itertools.islice(items, 1))  # faults of the header end here, before TensorFlow is loaded
    answers = Answers()
    answer_all(remembered(itertools.chain(first, items)), served_model(pushed), answers, lambda _: None)
    if not answers.predicted:
        raise DataError(nothing(path, answers.reasons, answers.first))
    keys = [key for part in answers.keys for key in part.to_pylist()]
    row_of = {key: row for row, key in enumerate(key for batch in batches for key in batch.keys.to_pylist())}
    rows = np.array([row_of[key] for key in keys])
    inputs = {name: np.concatenate([batch.inputs[input_name(name)] for batch in batches])[rows] for name in sliced}
    extras = {name: [batch.extras[name] for batch in batches] for name in batches[0].extras}
    read = AnsweredInputs(np.array(keys, object), np.concatenate(answers.outputs), inputs, extras, rows)
    return read, dict(answers.reasons.most_common())


def _items(pushed: PushedModel, recipe: Recipe, path: str) -> Items:
    from trainyard.steps.predict.source import find_source

    source = find_source(path, images=pushed.pixels is not None)
    if pushed.pixels is None:
        from trainyard.readers.table_file import Dialect
        from trainyard.steps.predict.columns import read_rows

        # The label may be another column than that of the training.
        dialect = replace(Dialect.from_recipe(recipe), delimiter=None)
        pushed = pushed.model_copy(update={"dialect": dialect})
        weight = [recipe.data.weight] if recipe.data.weight else []
        return read_rows(source, pushed, None, [*recipe.data.labels, *weight])
    if source.kind != "images" or (pushed.labels is None and recipe.data.labels_file is None):
        raise DataError(f"{path}: the labels of images are unknown. Name a folder with a folder of images per class.")
    return _named_by_folder(pushed, recipe, source)


def _named_by_folder(pushed: PushedModel, recipe: Recipe, source: Any) -> Items:
    import pyarrow as pa

    from trainyard.readers.image_labels import read_labels
    from trainyard.readers.rows import BadRow
    from trainyard.readers.table_file import Dialect
    from trainyard.steps.predict.inputs import source_items

    data, labels = recipe.data, None
    if data.labels_file is not None:
        names = [file.name for file in source.files]
        labels = read_labels(source.root, data.labels_file, data.labels, names, Dialect.from_recipe(recipe))
        faults = {name: labels.fault(name) for name in names if name != data.labels_file}
        yield from (*labels.bad, *filter(None, faults.values()))
        source = replace(source, files=[file for file in source.files if faults.get(file.name, labels) is None])
    for item in source_items(source, pushed, None):
        if not isinstance(item, BadRow):
            keys = item.keys.to_pylist()
            if labels is None:
                columns = [[key.rpartition("/")[0].partition("/")[0] or None for key in keys]]
            else:
                columns = [[labels.cells[key][index] for key in keys] for index in range(len(data.labels))]
            arrays = (pa.array(column, pa.string()) for column in columns)
            item = replace(item, extras=dict(zip(data.labels, arrays, strict=True)))
        yield item


def with_labels(
    pushed: PushedModel, recipe: Recipe, read: AnsweredInputs, path: str
) -> tuple[SplitPredictions, NDArray[Any], dict[str, int]]:
    """Return the answers with their labels, which inputs they are of, and why the rest is left out."""
    import numpy as np

    from trainyard.steps.evaluate.metrics.predictions import SplitPredictions

    names, reasons = recipe.data.labels, Counter[str]()
    if pushed.labels is None:
        targets = np.stack([read.numbers(name) for name in names], axis=1).astype(np.float32)
        labels = targets if pushed.targets else targets[:, 0]
        kept: NDArray[Any] = np.asarray(np.isfinite(targets).all(axis=1))
        reasons["no number as label"] = int(np.count_nonzero(~kept))
        first = [repr(value) for value in read.extras[names[0]][0].slice(0, _SHOWN).to_pylist()]
        knows = "numbers"
    else:
        texts = read.texts(names[0], pushed.label_separator)
        drops = recipe.data.label_min_count > 1
        labels, kept, reasons = _classes(texts, pushed.labels, pushed.label_separator, drops_unknown=drops)
        first, knows = list(map(repr, texts[:_SHOWN])), f"the classes {listed(list(pushed.labels), _SHOWN)}"
    if recipe.data.weight:
        weights = read.numbers(recipe.data.weight).astype(np.float32)
        valid = np.isfinite(weights) & (weights >= 0)
        reasons["no weight"] = int(np.count_nonzero(kept & ~valid))
        kept = kept & valid
        judged = SplitPredictions(labels[kept], read.outputs[kept], weights[kept], dict(pushed.thresholds))
    else:
        judged = SplitPredictions(labels[kept], read.outputs[kept], thresholds=dict(pushed.thresholds))
    if not len(judged) or (judged.weights is not None and not judged.weights.any()):
        listed_in = recipe.data.labels_file
        by_folder = f"Name a folder with {listed_in or 'a folder of images per class'}."
        advice = "Name the column of the label by --label." if pushed.pixels is None else by_folder
        raise DataError(
            f"{path}: no label in '{', '.join(names)}' that the model knows, the first are {', '.join(first)}. "
            f"It knows {knows}. {advice}"
        )
    return judged, kept, {reason: count for reason, count in reasons.items() if count}


def _classes(
    texts: list[str], classes: Sequence[str], separator: str | None, *, drops_unknown: bool
) -> tuple[NDArray[Any], NDArray[Any], Counter[str]]:
    """Return the labels as in `SplitPredictions`, a mask of those that are known, and the faults of the rest.

    drops_unknown: the recipe drops rare classes, so a row with others than `classes` counts without them.
    """
    import numpy as np

    ids, reasons, rows = {name: index for index, name in enumerate(classes)}, Counter[str](), len(texts)
    labels: NDArray[Any] = np.zeros(
        rows if separator is None else (rows, len(ids)), np.int64 if separator is None else bool
    )
    kept = np.zeros(rows, np.bool_)
    for row, text in enumerate(texts):
        parts = [text] if separator is None else list(filter(None, text.split(separator)))
        if drops_unknown:
            parts = [part for part in parts if part in ids]
        if unknown := [part for part in parts if part not in ids]:
            reasons[f"unknown class {unknown[0][:40]!r}" if unknown[0] else "without a label"] += 1
            continue
        kept[row] = True
        if separator is None:
            labels[row] = ids[text]
        else:
            labels[row, [ids[part] for part in parts]] = True
    return labels, kept, reasons


def measured(
    version: Version,
    recipe: Recipe,
    pushed: PushedModel,
    read: AnsweredInputs,
    judged: SplitPredictions,
    kept: NDArray[Any],
    path: str,
    left_out: dict[str, int],
) -> LabelledEvaluation:
    """Return the evaluation of the answers `judged`, which are those of `read` that are `kept`."""
    from trainyard.steps.evaluate.metrics.bootstrap import measure_with_intervals
    from trainyard.steps.evaluate.metrics.registry import metrics_of
    from trainyard.steps.evaluate.slices import slice_masks, slice_metrics
    from trainyard.steps.evaluate.worst import mistake

    columns = {name: column[kept] for name, column in read.inputs.items()}
    if recipe.data.label in recipe.evaluate.slices and judged.labels.ndim == 1:
        columns[recipe.data.label] = judged.labels
    sliced = [name for name in recipe.evaluate.slices if name in columns]
    notes = [f"Slices by {name} are not measured." for name in recipe.evaluate.slices if name not in columns]
    known = metrics_of(recipe.task, judged)
    notes += [f"{name} is not measured." for name in version.record.metrics if name not in known]
    notes += [f"The recipe's filter `{recipe.data.where}` is not applied."] if recipe.data.where else []
    part = recipe.model_copy(update={"evaluate": recipe.evaluate.model_copy(update={"slices": sliced})})
    masks = slice_masks(part, columns, columns, pushed.labels)
    if judged.weights is not None:
        masks = {name: mask for name, mask in masks.items() if judged.weights[mask].any()}
    metrics, bounds = measure_with_intervals(recipe.task, judged, recipe.evaluate.bootstrap, recipe.seed)
    keys, order = read.keys[kept], judged.largest_losses(len(judged))
    mistakes = order[~judged.right[order]][: recipe.evaluate.worst]
    return LabelledEvaluation(
        version,
        path,
        len(judged),
        left_out,
        notes,
        metrics,
        bounds,
        slice_metrics(part, masks, judged),
        [mistake(judged, index, str(keys[index]), pushed.labels) for index in mistakes.tolist()],
    )


def main_metric_row(name: str, parts: Sequence[SliceMetrics | None], task: Task) -> Row:
    """Return the row of the main metric of a slice, which some evaluations may lack."""
    return Row(name, [_main(part, MAIN_METRIC[task]) for part in parts], [False] * len(parts))


def _main(part: SliceMetrics | None, metric: str) -> str:
    """Format the main metric of a slice, whose interval it has."""
    if part is None:
        return MISSING
    interval = f" ({interval_text(part.interval.low, part.interval.high)})" if part.interval else ""
    return f"{metric} {metric_text(part.metrics[metric])}{interval}, {part.examples:,}"
