"""Columns of every type of Arrow are the same values in each format, to all that reads tables."""

import datetime
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged_rows import judged
from table_writers import texts, write_each

from trainyard.contract.statistics.drift import compare
from trainyard.errors import TrainyardError
from trainyard.quality.inspect import inspect, statistics_of
from trainyard.quality.recipe_draft import draft_recipe
from trainyard.quality.schema import check_source, draft
from trainyard.quality.source import find_source as find_table
from trainyard.readers.rows import BadRow
from trainyard.spec.data_schema import parse_schema
from trainyard.spec.recipe import Recipe
from trainyard.spec.schedule import Bounds
from trainyard.steps.predict.columns import read_rows
from trainyard.steps.predict.inputs import items_of
from trainyard.steps.predict.pushed_model import PushedModel, RawInput
from trainyard.steps.predict.source import find_source
from trainyard.steps.preprocess.split import assign
from trainyard.steps.preprocess.statistics import Summary
from trainyard.steps.preprocess.transforming.encode import as_column, encode_examples
from trainyard_control.api.evaluation import AnsweredInputs, with_labels

DAY = datetime.date(2024, 3, 1)
days = st.one_of(st.dates(datetime.date(1700, 1, 1), datetime.date(2250, 1, 1)), st.sampled_from([DAY]))
words = st.one_of(texts, st.sampled_from(["a", "b", "a b"])).filter(lambda text: ";" not in text)
TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
TEXTS += [pa.dictionary(pa.int32(), pa.large_string())]
LISTS = [pa.list_(pa.string()), pa.large_list(pa.large_string())]
SMALL = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
SMALL += [pa.float16(), pa.float32(), pa.float64()]
numbers = st.sampled_from([0.0, -0.0, 0.1, 1.5, -3.0, 1e-7, 65504.0, 2.5e-5])
COLUMNS = {  # by name: how a recipe reads it, its values and their types
    "id": ("category", st.one_of(st.integers(0, 2**64 - 1), st.integers(2**63 - 2, 2**63 + 2)), [pa.uint64()]),
    "small": ("category", st.none() | st.integers(0, 99), SMALL),
    "number": ("numeric", st.none() | st.integers(0, 99), SMALL),
    "half": ("category", st.none() | numbers, [pa.float16(), pa.float32()]),
    "share": ("numeric", st.none() | numbers, [pa.float16(), pa.float32()]),
    "on": ("numeric", st.none() | st.booleans(), [pa.bool_()]),
    "day": ("category", st.none() | days, [pa.date32(), pa.date64()]),
    "since": ("date", st.none() | days, [pa.date32(), pa.date64()]),
    "clock": ("category", st.none() | st.times().map(lambda time: time.replace(microsecond=0)), [
        pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]),
    "fine": ("category", st.none() | st.times(), [pa.time64("us"), pa.time64("ns")]),
    "word": ("category", st.none() | texts, TEXTS),
    "prose": ("text", st.none() | texts, TEXTS),
    "tags": ({"type": "text", "separator": ";"}, st.none() | st.lists(st.none() | words, max_size=3), [*LISTS]),
    "void": ("category", st.none(), [pa.null()]),
    "w": (None, st.integers(0, 9), SMALL),
    "bool": (None, st.booleans(), [pa.bool_()]),
    "class": (None, st.integers(0, 3), SMALL),
    "named": (None, words.filter(lambda text: text.strip() and "\n" not in text), TEXTS),
    "several": (None, st.none() | st.lists(words.filter(lambda text: "\n" not in text), max_size=3), LISTS),
    "target": (None, numbers, [pa.float16(), pa.float32(), pa.float64()]),
    "count": (None, st.integers(0, 99), SMALL),
}  # fmt: skip
FEATURES = {name: {"type": kind} if isinstance(kind, str) else kind for name, (kind, _, _) in COLUMNS.items() if kind}
LABELS = {"bool": "classification", "class": "classification", "named": "classification"}
LABELS |= {"several": "multi_label", "target": "regression", "count": "regression"}
row = st.fixed_dictionaries({name: values for name, (_, values, _) in COLUMNS.items()})
types = st.fixed_dictionaries({name: st.sampled_from(kinds) for name, (_, _, kinds) in COLUMNS.items()})


def arrow(rows: list[dict], kinds: dict[str, pa.DataType], missing: Collection[None] = ()) -> pa.Table:
    """The rows with types; missing: what a dictionary has beside its values."""

    def column(values: list, kind: pa.DataType) -> pa.Array:
        if kind == pa.float16():
            return pa.array([None if value is None else np.float16(value) for value in values], kind)
        if pa.types.is_floating(kind):
            return pa.array([None if value is None else float(value) for value in values], kind)
        if pa.types.is_dictionary(kind):
            known = [*dict.fromkeys(value for value in values if value is not None), *missing]
            indices = [known.index(value) if value in known else None for value in values]
            indices = pa.array(indices, kind.index_type)
            return pa.DictionaryArray.from_arrays(indices, pa.array(known, kind.value_type))
        return pa.array(values, kind)

    return pa.table({name: column([row[name] for row in rows], kind) for name, kind in kinds.items()})


def recipe_of(format: str, label: str) -> Recipe:
    data = {"format": format, "path": "-", "label": label, "features": FEATURES, "weight": "w"}
    data |= {"split": {"by": "group", "column": "id"}}
    data |= {"label_separator": ";"} if LABELS[label] == "multi_label" else {}
    document = {"name": "rows", "task": LABELS[label], "data": data, "model": {"name": "mlp"}}
    return Recipe.model_validate(document)


def outcome(call: Callable[..., Any], *arguments: object) -> Any:
    """What `call` returns, or why it refuses; which values a column begins with depends on their types."""
    try:
        return call(*arguments)
    except TrainyardError as error:
        return f"{error}".partition("the first are")[0]


def trained_on(file: Path, recipe: Recipe) -> dict[str, object]:
    """What preprocess makes of the file."""
    batches, bad = [], []
    for batch in judged(file, recipe):
        if isinstance(batch, BadRow):
            bad.append((batch.reason, batch.detail))
        else:
            batches.append(batch.set_column(0, "source", pa.array([""] * len(batch))))
    if not batches:
        return {"bad": bad}
    [batch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    assigned, digests = assign(batch, 1, recipe.data)
    raw = {name: as_column(assigned[name]) for name in assigned.schema.names if name.startswith("raw/")}
    targets = recipe.data.labels if recipe.task == "regression" else []
    summary = Summary.from_rows(assigned, targets, recipe.data.prose).document({})
    made = {"rows": batch.to_pylist(), "bad": bad, "splits": assigned["split"].to_pylist(), "digests": digests}
    return made | {"statistics": summary, "examples": [*encode_examples(raw)]}


def answered_on(source: object, recipe: Recipe, labels: list[str] | None) -> dict[str, object]:
    """What predict asks a model, and what evaluate reads as labels and weights from a file of new data."""
    inputs = [
        {"name": name, "dtype": "float32" if kind["type"] == "numeric" else "string", "column": kind}
        for name, kind in FEATURES.items()
    ]
    model = PushedModel(
        folder="",
        inputs=tuple(map(RawInput.model_validate, inputs)),
        labels=labels,
        label_separator=recipe.data.label_separator if recipe.task == "multi_label" else None,
    )
    if not isinstance(source, Path):
        batches = [*items_of(source, model, "id")]
    else:
        batches = [*read_rows(find_source(str(source), images=False), model, None, [recipe.data.label, "w"])]
    assert not [batch for batch in batches if isinstance(batch, BadRow)]
    asked = {"asked": [{name: values.tolist() for name, values in batch.inputs.items()} for batch in batches]}
    if not isinstance(source, Path):
        return asked
    rows = np.arange(sum(len(batch.keys) for batch in batches))
    extras = {name: [batch.extras[name] for batch in batches] for name in batches[0].extras}
    read = AnsweredInputs(rows.astype(str), np.zeros((len(rows), len(labels or [0]))), {}, extras, rows)
    known, kept, why = with_labels(model, recipe, read, "")
    return asked | {
        "labels": known.labels.tolist(),
        "weights": known.weights.tolist(),
        "kept": kept.tolist(),
        "why": why,
    }


def inspected(file: Path, label: str) -> dict[str, object]:
    """What is said of the file before training."""
    profile = outcome(inspect, str(file), label)
    if isinstance(profile, str):
        return {"profile": profile.replace(file.name, "")}
    own = {"source", "kind", "bytes", "lists", "first"}
    found = {name: value for name, value in profile.model_dump().items() if name not in own}
    columns = sorted(profile.columns, key=lambda column: column.name)
    found |= {"columns": columns, "findings": sorted(found["findings"])}
    made = profile.model_copy(update={"source": "", "columns": columns, "lists": []})
    found["schema"] = draft(made, DAY)
    recipe = outcome(draft_recipe, "a", "", made)
    found["recipe"] = recipe if isinstance(recipe, str) else recipe[0].replace(f"format: {profile.kind}", "")
    return found


def assert_one_meaning(rows: list[dict], kinds: dict[str, pa.DataType], label: str, folder: Path) -> None:
    """The rows in Arrow's types are the same values in each format, to all that read them."""
    table = arrow(rows, kinds)
    expected: dict[str, object] = {}
    files = write_each(table, folder)
    for name in ("parquet", "tfrecord", "arrow", "pandas", "excel", "spark"):
        recipe = recipe_of(files[name].suffix[1:], label)
        found = trained_on(files[name], recipe) | inspected(files[name], label)
        if "schema" in found:
            schema = parse_schema(str(expected.get("schema", found["schema"])), "schema")
            found["anomalies"] = check_source(schema, find_table(str(files[name])))
        classes = getattr(found.get("statistics"), "labels", {})
        if classes or (recipe.task == "regression" and "rows" in found):
            asked = outcome(answered_on, files[name], recipe, sorted(classes) or None)
            found |= asked if isinstance(asked, dict) else {"refused": asked}
        expected = expected or found
        for part, value in expected.items():
            said, other = repr(found.get(part)), repr(value)  # of which some names a row of the file
            assert said.replace(files[name].name, "") == other.replace(files["parquet"].name, ""), (name, part)
        if not isinstance(pair := outcome(statistics_of, str(files["parquet"]), str(files[name]), label), str):
            for moved in compare(*pair, Bounds()):
                apart = moved.distance.model_dump().values() if moved.distance else []
                assert not (moved.sentences or moved.shift or moved.unknown or any(apart)), (name, moved)
    for source in (table, table.to_pandas(), arrow(rows, kinds, [None])) if "asked" in expected else ():
        assert repr(answered_on(source, recipe, None)["asked"]) == repr(expected["asked"])


@pytest.mark.timeout(1800)
@settings(max_examples=12)
@given(
    rows=st.lists(row, min_size=1, max_size=6),
    kinds=types,
    label=st.sampled_from([*LABELS]),
)
def test_columns_of_every_type_mean_the_same_in_every_format(rows, kinds, label):
    with tempfile.TemporaryDirectory() as folder:
        assert_one_meaning(rows, kinds, label, Path(folder))
