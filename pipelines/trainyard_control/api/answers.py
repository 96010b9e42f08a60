"""Evaluates the log of a server's answers by labels that came later."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from trainyard.contract import version as contents
from trainyard.contract.answer_log import FORMAT, PROBABILITIES, AnswersDescription
from trainyard.contract.artifacts.gate import Interval
from trainyard.contract.pushed_versions import CANDIDATE
from trainyard.errors import DataError, did_you_mean, listed
from trainyard.measured import interval_text, metric_text
from trainyard.report import notify
from trainyard.report.plots import page
from trainyard.spec.gates import MAIN_METRIC, Gate, Task
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage
from trainyard_control.api.arguments import LOCAL
from trainyard_control.api.evaluation import (
    AnsweredInputs,
    LabelledEvaluation,
    main_metric_row,
    measured,
    recipe_of,
    with_labels,
)
from trainyard_control.api.versions import Version, find_one
from trainyard_control.cluster import environments
from trainyard_control.search.comparison import MISSING, Measured, Row, metric_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from trainyard.steps.evaluate.metrics.predictions import SplitPredictions
    from trainyard.steps.predict.pushed_model import PushedModel

_SHOWN, _SHOWN_IDS = 10, 3  # names and ids in a sentence; chosen
_ONE_MODEL = "Name the folder or a glob of the files of one model."


@dataclass(frozen=True)
class ShadowComparison:
    """A shadow beside the version that served, on the labelled requests that both answered.

    metrics: of `version` and of `shadow`. differences: the paired 95 % interval of shadow - version.
    """

    version: str
    shadow: str
    examples: int
    metrics: dict[str, tuple[float, float]]
    differences: dict[str, Interval]

    @property
    def sentence(self) -> str:
        """The sentence that says what is compared."""
        return f"The shadow {self.shadow} and version {self.version} answered the same {self.examples:,} examples"

    @property
    def columns(self) -> list[str]:
        """The names of the columns of `rows`."""
        return [f"version {self.version}", f"shadow {self.shadow}", "difference, 95 %"]

    @property
    def rows(self) -> list[Row]:
        """Each metric of both; certain: the interval of the difference excludes 0."""
        rows = []
        for name, values in self.metrics.items():
            found = self.differences.get(name)
            interval = interval_text(found.low, found.high) if found else MISSING
            is_certain = found is not None and (found.low > 0 or found.high < 0)
            rows.append(Row(name, [*map(metric_text, values), interval], [False, is_certain, False]))
        return rows


@dataclass(frozen=True)
class ServedEvaluation:
    """The agreement of the answers in a log with labels that came later.

    versions: the evaluation of each version that answered, by its number, `candidate/N` for one that waited for
    approval. shadows: of each shadow, beside the versions that served meanwhile. unanswered: labels without an answer
    in the log, which may be a sample of the requests.
    """

    model: Version
    log: str
    unanswered: int
    versions: dict[str, LabelledEvaluation]
    shadows: list[ShadowComparison]

    @property
    def columns(self) -> list[str]:
        """The names of the columns of `rows` and `slice_rows`."""
        return ["test split", *(f"version {number}" for number in self.versions)]

    @property
    def rows(self) -> list[Row]:
        """Each metric on the test split of `model` and of each version that answered."""
        evaluations: list[Measured | None] = [self.model.record, *self.versions.values()]
        return list(metric_rows(evaluations, [None] * len(evaluations)))

    @property
    def slice_rows(self) -> list[Row]:
        """The main metric of each slice, with the numbers of examples."""
        slices = [self.model.record.slices, *(found.slices for found in self.versions.values())]
        parts = [{part.name: part for part in each} for each in slices]
        names = sorted({name for found in parts[1:] for name in found})
        task = self.model.record.recipe["task"]
        return [main_metric_row(name, [found.get(name) for found in parts], task) for name in names]

    @property
    def below_gates(self) -> list[str]:
        """A sentence for each gate of the recipe that the answers of the version `model` do not meet.

        The whole 95 % interval must miss the bound. Gates of a class, a target, a gap or a difference, and metrics
        without an interval, are not judged.
        """
        recipe, found = self.model.record.recipe, self.versions.get(_version_name(self.model.folder, self.model.number))
        gates = [Gate.model_validate(gate) for gate in (recipe.get("evaluate") or {}).get("gates") or []]
        return list(filter(None, (_below(gate, found, recipe["task"]) for gate in gates))) if found else []

    def page(self) -> str:
        """Render the evaluation as a page of HTML."""
        tables = [(["metric", *self.columns], self.rows), (["slice", *self.columns], self.slice_rows)]
        notes = [f"{self.unanswered:,} labels are of no answer in the log."] if self.unanswered else []
        for number, found in self.versions.items():
            notes += [f"Version {number}: {found.examples:,} examples.", *found.notes]
            notes += [f"Version {number}: {count:,} left out: {reason}." for reason, count in found.left_out.items()]
        notes += [f"Version {self.model.number}: {sentence}." for sentence in self.below_gates]
        tables += [(["metric", *shadow.columns], shadow.rows) for shadow in self.shadows]
        notes += [f"{shadow.sentence}." for shadow in self.shadows]
        cells = [(head, [[row.name, *row.cells] for row in rows]) for head, rows in tables if rows]
        return page(f"{self.model.recipe} in {self.log}", list(dict.fromkeys(notes)), {}, cells)

    def document(self) -> dict[str, Any]:
        """Return the evaluation as JSON has it."""
        return {
            "model": self.model.folder,
            "answers": self.log,
            "unanswered": self.unanswered,
            "below_gates": self.below_gates,
            "versions": {name: found.document() for name, found in self.versions.items()},
            "shadows": [asdict(shadow) for shadow in self.shadows],
        }


def evaluate_answers(
    model: str | os.PathLike[str],
    answers: str,
    labels: str,
    on: str,
    *,
    label: str | None = None,
    environment: str = LOCAL,
) -> ServedEvaluation:
    """Evaluate the answers that `serve --log` wrote to `answers` by the labels in the table `labels`.

    model: as of `evaluate`; its recipe names label, slices and weight. Versions in the log may be pruned. on: the
    column of `labels` that names the example, and the column of the log: `id`, or an input. Answers without a label
    are left out and counted.

    If the version `model` does not meet its gates (`below_gates`), the environment's webhook gets a message.

    Raises `DataError` if an id has two labels, a column is missing, or no answer has a label.
    """
    version = find_one(os.fspath(model), environment)
    recipe = recipe_of(version, label)
    from trainyard.values.columns import block_pandas_import

    block_pandas_import()
    rows = _label_rows(labels, on, recipe)
    evaluations: dict[str, LabelledEvaluation] = {}
    judgements: dict[str, _Judged] = {}
    answered: set[str] = set()
    found: list[str] = []
    for about, table in sorted(_logs(answers, on, recipe), key=lambda log: (log[0].version, log[0].folder)):
        _require_of(version, about, answers)
        read, left_out = _joined(about, table, on, recipe, rows)
        answered |= {*read.keys}
        if not len(read.keys):
            found += filter(None, _keys(table.slice(0, _SHOWN_IDS).column(about.own.get(on, on)).combine_chunks()))
            continue
        name = _version_name(about.folder, about.version)
        if name in evaluations:
            raise DataError(
                f"{answers}: two models answered as version {name}, one of them {about.folder}. {_ONE_MODEL}"
            )
        pushed = _model(about)
        judged, kept, why = with_labels(pushed, recipe, read, labels)
        evaluations[name] = measured(version, recipe, pushed, read, judged, kept, answers, left_out | why)
        judgements[name] = _Judged(about, read.keys[kept], judged)
    if not evaluations:
        values = [listed(list(map(repr, each[:_SHOWN_IDS])), _SHOWN_IDS) for each in ([*rows.row_of], found)]
        raise DataError(
            f"{labels}: none of its {len(rows.row_of):,} values of '{on}' is in {answers}: the first are "
            f"{values[0] or 'none'}, and those of the log {values[1] or 'none'}. Write the values alike, or name "
            "another column by --on."
        )
    shadows = list(_shadows(judgements, recipe))
    done = ServedEvaluation(version, answers, len(rows.row_of.keys() - answered), evaluations, shadows)
    if below := done.below_gates:
        known = {"model": version.folder, "version": version.number, "answers": answers, "below_gates": below}
        text = f"{version.name} in {answers}: {listed(below, _SHOWN, '; ')}."
        notify.send(environments.load(environment).notify, notify.Message("below_gate", text, known))
    return done


@dataclass(frozen=True)
class _Judged:
    """The labelled answers of a version, and the keys (n,) of their examples."""

    about: AnswersDescription
    keys: NDArray[Any]
    answers: SplitPredictions

    def at(self, rows: NDArray[Any]) -> SplitPredictions:
        """Return the answers in `rows`."""
        found, weights = self.answers, self.answers.weights
        weights = None if weights is None else weights[rows]
        return replace(found, labels=found.labels[rows], outputs=found.outputs[rows], weights=weights)


def _version_name(folder: str, number: int) -> str:
    """Return the name of a version in a log: a version that waits may have the number of another that serves.

    >>> _version_name("models/candidate/3", 3), _version_name("models/3", 3)
    ('candidate/3', '3')
    """
    return f"{CANDIDATE}/{number}" if folder.split("/")[-2:-1] == [CANDIDATE] else str(number)


def _require_of(model: Version, about: AnswersDescription, answers: str) -> None:
    """Raise `DataError` if another model than the version of that number beside `model` answered.

    A version that was pruned cannot be compared.
    """
    name = _version_name(about.folder, about.version)
    versions = model.folder.removesuffix(f"/{_version_name(model.folder, model.number)}")
    manifest = storage.committed(storage.join(versions, name))
    if manifest is not None and contents.digest(manifest) != about.digest:
        raise DataError(
            f"{answers}: another model than {storage.join(versions, name)} answered as version {name}: {about.folder}. "
            f"{_ONE_MODEL}"
        )


def _shadows(judgements: dict[str, _Judged], recipe: Recipe) -> Iterator[ShadowComparison]:
    """Yield the comparison of each shadow with each version that answered some of the same examples."""
    import numpy as np

    from trainyard.steps.evaluate.metrics.bootstrap import differences
    from trainyard.steps.evaluate.metrics.registry import measure

    for name, served in judgements.items():
        for shadow_name, shadow in judgements.items():
            alike = (served.about.labels, served.about.targets) == (shadow.about.labels, shadow.about.targets)
            if served.about.shadow or not shadow.about.shadow or not alike:
                continue
            keys, places, shadow_places = np.intersect1d(served.keys.astype(str), shadow.keys.astype(str), True, True)
            if not len(keys):
                continue
            parts = served.at(places), shadow.at(shadow_places)
            values = [measure(recipe.task, part) for part in parts]
            metrics = {each: (values[0][each], values[1][each]) for each in values[0] if each in values[1]}
            paired = differences(recipe.task, metrics, parts[1], parts[0], recipe.evaluate.bootstrap, recipe.seed)
            yield ShadowComparison(name, shadow_name, len(keys), metrics, paired)


def _below(gate: Gate, found: LabelledEvaluation, task: Task) -> str:
    """Return the sentence on a gate whose bound the whole interval misses, '' otherwise."""
    if gate.class_name or gate.target or gate.largest_gap_between:
        return ""
    interval, scope = found.intervals.get(gate.metric), ""
    if gate.slice is not None:
        part = next((part for part in found.slices if part.name == gate.slice), None)
        interval = part.interval if part and gate.metric == MAIN_METRIC[task] else None
        scope = f" of {gate.slice}"
    if interval is None:
        return ""
    text = f"{gate.metric}{scope} is {interval_text(interval.low, interval.high)} (95 %), and the gate asks for"
    if gate.min is not None and interval.high < gate.min:
        return f"{text} at least {gate.min:g}"
    if gate.max is not None and interval.low > gate.max:
        return f"{text} at most {gate.max:g}"
    return ""


@dataclass(frozen=True)
class _LabelRows:
    """The columns of a table of labels by name, and the row of each example."""

    row_of: dict[str, int]
    columns: dict[str, list[pa.Array]]


def _label_rows(path: str, on: str, recipe: Recipe) -> _LabelRows:
    """Return the labels at `path`. Raises `DataError` if an example has two rows, or a column is missing."""
    from trainyard.quality.source import find_source
    from trainyard.quality.tables.tables import read_table
    from trainyard.readers.rows import BadRow

    names = [*recipe.data.labels, *([recipe.data.weight] if recipe.data.weight else [])]
    row_of: dict[str, int] = {}
    columns: dict[str, list[pa.Array]] = {name: [] for name in names}
    start = 0
    source = find_source(path)
    texts = {on, *(recipe.data.labels if recipe.task != "regression" else [])}
    commas = tuple(name for name in source.dialect.comma_numbers if name not in texts)
    source = replace(source, dialect=replace(source.dialect, comma_numbers=commas))
    for item in read_table(source, [on, *names]):
        if isinstance(item, BadRow):
            raise DataError(f"{path}: {item.key} cannot be read ({item.detail}). Correct it.")
        has = item.columns.schema.names
        for name in (on, *names):
            if name not in has:
                hint = " The label's column may be named by --label." if name in names else ""
                raise DataError(
                    f"{path}: no column '{name}'.{did_you_mean(name, has)} It has: {listed(has, _SHOWN)}.{hint}"
                )
        for row, key in enumerate(_keys(item.columns.column(on)), start):
            if key is not None and row_of.setdefault(key, row) != row:
                raise DataError(f"{path}: '{on}' has the value {key!r} twice. Keep one label for each.")
        for name in names:
            columns[name].append(item.columns.column(name))
        start += item.columns.num_rows
    return _LabelRows(row_of, columns)


def _logs(path: str, on: str, recipe: Recipe) -> Iterator[tuple[AnswersDescription, pa.Table]]:
    """Yield the answers of each version in the log by time, with the columns `on` and those of slices.

    Servers may name the folder of one version in several ways.
    """
    import pyarrow as pa

    from trainyard.quality.source import find_source
    from trainyard.readers.parquet_rows import opened_parquet

    tables: dict[tuple[str, str], tuple[AnswersDescription, list[pa.Table]]] = {}
    for file in find_source(path, FORMAT).tables:
        with opened_parquet(file) as (opened, _):
            names = opened.schema_arrow.names
            about = AnswersDescription.from_metadata(opened.schema_arrow.metadata, file.name)
            if about is None or not {*about.own.values()} <= {*names}:
                raise DataError(f"{path}: {file.name} is no file of `trainyard serve --log`. Name the folder of a log.")
            known = ["id", *(name for name in names if name not in about.own.values())]
            if on not in known:
                raise DataError(
                    f"{path}: '{on}' is no column that names an example.{did_you_mean(on, known)} Known are: "
                    f"{listed(known, _SHOWN)}."
                )
            sliced = [name for name in recipe.evaluate.slices if name in names]
            used = [about.own.get(on, on), about.own["time"], *_answer_columns(about), *sliced]
            table = opened.read(list(dict.fromkeys(used)))
        key = about.digest, _version_name(about.folder, about.version)
        tables.setdefault(key, (about, []))[1].append(table.replace_schema_metadata())
    for about, parts in tables.values():
        yield about, pa.concat_tables(parts).sort_by(about.own["time"])


def _model(about: AnswersDescription) -> PushedModel:
    """Return the model that answered, which may be pruned, without its inputs."""
    from trainyard.steps.predict.pushed_model import PushedModel

    return PushedModel(
        folder=about.folder,
        inputs=(),
        labels=None if about.labels is None else tuple(about.labels),
        label_separator=about.label_separator,
        thresholds=tuple(about.thresholds.items()),
        targets=None if about.targets is None else tuple(about.targets),
    )


def _answer_columns(about: AnswersDescription) -> list[str]:
    return [about.own[PROBABILITIES]] if about.labels is not None else about.predictions


def _joined(
    about: AnswersDescription, table: pa.Table, on: str, recipe: Recipe, labels: _LabelRows
) -> tuple[AnsweredInputs, dict[str, int]]:
    """Return the answers that have a label, the first of each example, and the number of the others by reason."""
    import numpy as np

    keys = _keys(table.column(about.own.get(on, on)).combine_chunks())
    places: dict[str, int] = {}
    left_out = Counter[str]()
    for place, key in enumerate(keys):
        if key is None or key not in labels.row_of:
            left_out["no label yet" if key is not None else f"no {on}"] += 1
        elif places.setdefault(key, place) != place:
            left_out["answered again"] += 1
    chosen = np.array([*places.values()], np.int64)
    outputs = [_numbers(table.column(name).combine_chunks()) for name in _answer_columns(about)]
    values = outputs[0] if len(outputs) == 1 else np.stack(outputs, axis=1)
    inputs = {
        name: _values(table.column(name).combine_chunks())[chosen]
        for name in recipe.evaluate.slices
        if name in table.schema.names
    }
    rows = np.array([labels.row_of[key] for key in places], np.int64)
    read = AnsweredInputs(np.array([*places], object), values[chosen], inputs, labels.columns, rows)
    return read, dict(left_out)


def _keys(column: pa.Array) -> list[str | None]:
    """Return the texts of a column as all formats have them, None if there is none."""
    from trainyard.values.columns import canonical_texts

    return [text or None for text in canonical_texts(column).to_pylist()]


def _numbers(column: pa.Array) -> NDArray[Any]:
    """Return numbers (n,), or lists of the same length (n, length)."""
    import numpy as np
    import pyarrow as pa

    if pa.types.is_fixed_size_list(column.type):
        flat: NDArray[Any] = column.flatten().to_numpy(zero_copy_only=False)
        return flat.astype(np.float32).reshape(len(column), -1)
    return np.asarray(column.to_numpy(zero_copy_only=False), np.float32)


def _values(column: pa.Array) -> NDArray[Any]:
    """Return an input as slices need it: NaN or '' if it is missing."""
    import numpy as np
    import pyarrow as pa

    if pa.types.is_string(column.type):
        return np.array(column.fill_null("").to_pylist(), object)
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values if pa.types.is_integer(column.type) and not column.null_count else values.astype(np.float32)
