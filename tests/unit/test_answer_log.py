"""A server's log of answers: its files, its bounds, and what compares them with the training and with late labels."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from pyarrow import parquet
from tests.unit import report_folders
from tests.unit.test_notify import LOCAL, Webhook
from typer.testing import CliRunner

from trainyard.contract import version
from trainyard.contract.answer_log import METADATA
from trainyard.contract.artifacts.gate import Verdict
from trainyard.contract.pipeline import Pipeline
from trainyard.contract.statistics.drift import compare
from trainyard.contract.version import EXTRA, Champion, set_champion
from trainyard.errors import ConfigurationError, DataError
from trainyard.quality.decoding import PixelForm
from trainyard.quality.inspect import served_statistics, statistics_of
from trainyard.readers.rows import BadRow
from trainyard.serving import answer_log, shadow
from trainyard.serving.answer_log import AnswerLog, memory
from trainyard.serving.options import Options
from trainyard.serving.records import Row
from trainyard.serving.shadow import Shadow, require_pair
from trainyard.serving.versions import LoadedModel, ServingVersion
from trainyard.spec.notify import URL_VARIABLE
from trainyard.spec.recipe import Recipe
from trainyard.spec.schedule import Bounds, When
from trainyard.steps.check.run import run
from trainyard.steps.predict.pushed_model import PushedModel, RawInput
from trainyard.steps.predict.source import Array
from trainyard.storage import storage
from trainyard_control.api.answers import evaluate_answers
from trainyard_control.cli.main import app

INPUTS = (
    RawInput(name="age", dtype="float32"),
    RawInput(name="city", dtype="string"),
    RawInput(name="time", dtype="string"),
    RawInput(name="name", dtype="string"),
    RawInput(name="born", dtype="float32"),
)
FEATURES = {
    "age": {"type": "numeric"},
    "city": {"type": "category"},
    "time": {"type": "category"},
    "name": {"type": "text", "private": True},
    "year": {"type": "numeric", "private": True},
}
RECIPE: dict[str, Any] = {
    "name": "people",
    "task": "classification",
    "data": {"format": "csv", "path": "x.csv", "label": "paid", "features": FEATURES, "derive": {"year": "abs(born)"}},
    "evaluate": {"slices": ["city"], "bootstrap": 50},
    "model": {"name": "mlp"},
}
STANDS = "version 3 stands: no condition of the schedule holds"
ROW = (41.0, "Bern", "noon", "Ada", 1985.0)


class Model(LoadedModel):
    """A loaded model whose answer to a row is its age, once `free` is set."""

    def __init__(
        self, folder: Path, number: int = 3, labels: tuple[str, ...] | None = ("no", "yes"), within: str = "models"
    ) -> None:
        self.most_rows, self.seconds, self.free = 1024, 0.0, threading.Event()
        uri = str(folder / within / str(number))
        if storage.committed(uri) is None:
            with storage.stage(uri, "trainyard.push", origin={"number": number, "recipe": RECIPE}) as staging:
                (staging / "saved_model.pb").write_text(f"{within} {number}")
        self.pushed = PushedModel(folder=uri, inputs=INPUTS, labels=labels)
        self.number, self.digest = number, version.digest(storage.require(uri, ""))

    def answer(self, requests: Sequence[Sequence[Row]]) -> list[Array | list[BadRow]]:
        self.free.wait(20)
        return [
            [BadRow("0", None, "no_age", "")] if rows[0][0] < 0 else np.array([[1 - row[0], row[0]] for row in rows])
            for rows in requests
        ]


class Keeper(ServingVersion):
    """Keeps a model that is never replaced by itself."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model


def metric(registry: CollectorRegistry, name: str) -> float:
    return registry.get_sample_value(f"trainyard_log_{name}_total") or 0.0


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_log, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(answer_log, "_AGAIN_SECONDS", 0.0)


def test_two_servers_write_hourly_files_without_private_columns_into_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour, model = ["2026-01-01T10"], Model(tmp_path)
    monkeypatch.setattr(answer_log, "_hour", lambda _: hour[0])
    registries = [CollectorRegistry(), CollectorRegistry()]
    logs = [AnswerLog(str(tmp_path / "log"), 1.0, registry) for registry in registries]
    for log in logs:
        log.offer(model, [ROW, (float("nan"), "", *ROW[2:])], np.array([[0.9, 0.1], [0.2, 0.8]], np.float32), "first")
    time.sleep(0.1)
    assert not list((tmp_path / "log").iterdir())
    hour[0] = "2026-01-01T11"
    wait_for(lambda: all(metric(registry, "rows") == 2 for registry in registries))
    logs[0].offer(Model(tmp_path, 4), [ROW], np.array([[0.9, 0.1]], np.float32), "second")
    wait_for(lambda: any(file.name.startswith(hour[0]) for file in logs[0]._spool.iterdir()))
    hour[0] = "2026-01-01T10"  # the clock was set back
    logs[0].offer(model, [ROW], np.array([[0.9, 0.1]], np.float32), "again")
    for log in logs:
        log.finish(20)
    names = sorted(file.name for file in (tmp_path / "log").iterdir())
    assert [name.split(".")[:2] for name in names] == [["2026-01-01T10", "v3"]] * 3 + [["2026-01-01T11", "v4"]]
    tables = [parquet.read_table(tmp_path / "log" / name).to_pylist() for name in names[:3]]
    again, first, _ = sorted(tables, key=len)
    assert [row["id"] for row in again] == ["again"]
    assert list(first[0]) == [
        *("id", "time_", "version", "shadow", "prediction", "probabilities"),
        *("age", "city", "time"),
    ]
    assert [(row["id"], row["age"], row["city"], row["prediction"]) for row in first] == [
        ("first/0", 41.0, "Bern", "no"),
        ("first/1", None, None, "yes"),
    ]
    np.testing.assert_allclose(first[1]["probabilities"], [0.2, 0.8], rtol=1e-6)
    assert not [registry for registry in registries if metric(registry, "dropped_rows")]


def test_what_the_bounds_cannot_hold_is_dropped_and_counted_and_a_folder_that_fails_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    registry, model, answer = CollectorRegistry(), Model(tmp_path), np.array([[0.9, 0.1]], np.float32)
    log = AnswerLog(str(tmp_path / "log"), 1.0, registry)
    (tmp_path / "log").rmdir()
    (tmp_path / "log").touch()  # nothing can be written below a file
    monkeypatch.setattr(answer_log, "_MOST_ROWS", 2)
    start = time.monotonic()
    log.offer(model, [ROW] * 3, answer.repeat(3, axis=0), "too many")
    assert metric(registry, "dropped_rows") == 3 and time.monotonic() - start < 0.1
    hour = iter(["2026-01-01T10"])
    monkeypatch.setattr(answer_log, "_hour", lambda _: next(hour, "2026-01-01T11"))
    log.offer(model, [ROW], answer, "kept")
    wait_for(lambda: "The log of answers: " in capsys.readouterr().err)
    (tmp_path / "log").unlink()
    (tmp_path / "log").mkdir()
    wait_for(lambda: metric(registry, "rows") == 1)
    monkeypatch.setattr(answer_log, "_MOST_BYTES", -1)
    log.offer(model, [ROW], answer, "full")
    wait_for(lambda: metric(registry, "dropped_rows") == 4)
    log.finish(20)
    assert parquet.read_table(tmp_path / "log")["id"].to_pylist() == ["kept"]
    nothing = AnswerLog(str(tmp_path / "log"), 0.0, registry2 := CollectorRegistry())
    nothing.offer(model, [ROW], answer, "not drawn")
    nothing.finish(20)
    assert metric(registry2, "rows") == metric(registry2, "dropped_rows") == 0


def test_a_shadow_is_asked_what_is_logged_and_neither_delays_nor_ends_what_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    registry, model, answer = CollectorRegistry(), Model(tmp_path), np.array([[0.9, 0.1]])
    keeper = Keeper(Model(tmp_path, within="models/candidate"))
    log = AnswerLog(str(tmp_path / "log"), 1.0, registry)
    asked = Shadow(keeper, log, registry)
    rows = [(0.25, *ROW[1:])]

    def offer(request_id: str, rows: list[Any] = rows) -> None:
        assert log.offer(model, rows, answer, request_id)
        asked.offer(model, rows, request_id)

    def counts() -> dict[str, float]:
        names = ("answered", "refused", "dropped")
        found = {name: registry.get_sample_value("trainyard_shadow_rows_total", {"result": name}) for name in names}
        return {name: value for name, value in found.items() if value}

    async def serve() -> None:
        monkeypatch.setattr(shadow, "_MOST_BYTES", 2 * memory(rows))
        start = time.monotonic()
        for request in ("a", "b", "c"):
            offer(request)
        await asyncio.sleep(0.02)
        assert time.monotonic() - start < 1 and counts() == {"dropped": 1}
        keeper.model.free.set()
        await asked.finish(20)
        assert counts() == {"dropped": 1, "answered": 2}
        offer("d", [(-1.0, *ROW[1:])])
        monkeypatch.setattr(keeper.model, "answer", lambda rows: 1 / 0)
        offer("e")
        await asked.finish(20)
        assert counts() == {"dropped": 1, "answered": 2, "refused": 2}
        other = keeper.model.pushed.model_copy(update={"inputs": INPUTS[1:]})
        for update in ({"digest": model.digest}, {"digest": "new", "pushed": other}):
            keeper.model = Model(tmp_path, within="models/candidate")
            vars(keeper.model).update(update)
            offer("f")
            offer("g")
        assert counts() == {"dropped": 1, "answered": 2, "refused": 2}

    asyncio.run(serve())
    log.finish(20)
    said = capsys.readouterr().err
    assert "Version 3, the shadow, cannot answer: " in said
    assert said.count("Version 3, the shadow, is not asked: only one of them has the input 'age'.") == 1
    found = {
        (row["id"], row["shadow"]): row["probabilities"] for row in parquet.read_table(tmp_path / "log").to_pylist()
    }
    assert [key for key in found if key[1]] == [("a", True), ("b", True)] and found["a", True] == [0.75, 0.25]
    assert len([name for name in (tmp_path / "log").iterdir() if ".shadow-v3." in name.name]) == 1


@pytest.mark.parametrize(
    ("update", "said"),
    [
        ({"inputs": (*INPUTS, RawInput(name="new", dtype="string"))}, "only one of them has the input 'new'"),
        (
            {"inputs": (INPUTS[0].model_copy(update={"dtype": "string"}), *INPUTS[1:])},
            "the input 'age' has another type",
        ),
        ({"inputs": (INPUTS[1], INPUTS[0], *INPUTS[2:])}, "the inputs have another order"),
        ({"labels": ("no", "maybe")}, "labels differ"),
        ({"labels": None}, "labels differ"),
        ({"pixels": PixelForm(3)}, "one takes images and the other columns"),
        ({"time_zone": "Europe/Zurich"}, "its time zone is Europe/Zurich instead of "),
    ],
)
def test_a_shadow_with_another_signature_is_refused(update: dict[str, Any], said: str) -> None:
    model = PushedModel(folder="models/1", inputs=INPUTS, labels=("no", "yes"))
    with pytest.raises(ConfigurationError, match=rf"^--shadow: models/1 has another signature than models/1, {said}"):
        require_pair(model, model.model_copy(update=update))
    require_pair(model, model.model_copy(update={"thresholds": ((1, 0.5),)}))
    with pytest.raises(ConfigurationError, match=r"^--shadow: its answers go to --log alone"):
        Options(shadow="models/candidate/2")


@pytest.mark.parametrize("folder", ["http://host/log", "gs://", "s3://bucket/../log", ""])
def test_a_log_without_a_place_is_refused(folder: str) -> None:
    with pytest.raises(ConfigurationError):
        AnswerLog(folder, 1.0, CollectorRegistry())


def logged(tmp_path: Path, ages: np.ndarray, yes: np.ndarray, number: int = 3) -> str:
    """Write a log of one request a row; yes: the probability of each."""
    log, model = AnswerLog(str(tmp_path / "log"), 1.0, CollectorRegistry()), Model(tmp_path, number)
    for row, (age, score) in enumerate(zip(ages, yes, strict=True)):
        inputs = (float(age), ("Bern", "Oslo")[row % 2], "noon", "Ada", 1985.0)
        log.offer(model, [inputs], np.array([[1 - score, score]], np.float32), f"r{row}")
    log.finish(20)
    return str(tmp_path / "log")


def test_compare_finds_a_shift_and_other_answers_in_a_log_and_ignores_private_columns(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    ages = random.normal(40, 10, 400)
    lines = [
        f"{age},{('Bern', 'Oslo')[row % 2]},noon,Ada,1985,{'yes' if row % 4 == 0 else 'no'}"
        for row, age in enumerate(ages)
    ]
    before = tmp_path / "before.csv"
    before.write_text("\n".join(["age,city,time,name,born,paid", *lines]) + "\n")
    yes = np.where(np.arange(400) % 4 == 0, 0.9, 0.1)
    same = compare(*statistics_of(str(before), logged(tmp_path / "same", ages, yes), "paid"), Bounds())
    assert {move.feature: move.sentences for move in same} == {"age": [], "city": [], "label": [], "time": []}
    folder = logged(tmp_path / "moved", ages + 10, np.full(400, 0.9))
    moved = {move.feature: move for move in compare(*statistics_of(str(before), folder, "paid"), Bounds())}
    assert moved["age"].shift == pytest.approx(1, abs=0.1) and moved["age"].sentences
    assert moved["label"].sentences and not moved["city"].sentences


def test_a_schedule_trains_when_the_newest_answers_of_the_champion_have_drifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ages = np.random.default_rng(0).normal(40, 10, 1000)
    yes = np.where(np.arange(1000) % 4 == 0, 0.9, 0.1)
    lines = [
        f"{age},{('Bern', 'Oslo')[row % 2]},noon,Ada,1985,{'yes' if row % 4 == 0 else 'no'}"
        for row, age in enumerate(ages)
    ]
    (tmp_path / "x.csv").write_text("\n".join(["age,city,time,name,born,paid", *lines]) + "\n")
    data = RECIPE["data"] | {"path": str(tmp_path / "x.csv")}
    recipe = Recipe.model_validate(RECIPE | {"data": data, "push": {"path": str(tmp_path / "models")}})
    with storage.stage(str(tmp_path / "models/3"), "trainyard.push", origin={"number": 3, "recipe": RECIPE}) as folder:
        (folder / "saved_model.pb").touch()
        (folder / EXTRA).mkdir()
        statistics_of(data["path"], data["path"], "paid")[0].write(folder / EXTRA)
    set_champion(str(tmp_path / "models"), Champion(version=3, path="3", digest=Model(tmp_path).digest, metrics={}))
    log = str(tmp_path / "log")

    def due() -> tuple[bool, str]:
        return run(Pipeline(str(tmp_path), recipe), When(served_drift=log), datetime(2026, 1, 2, tzinfo=UTC))

    def served(hour: str, shift: float, rows: int = 1000, number: int = 3) -> None:
        monkeypatch.setattr(answer_log, "_hour", lambda _: hour)
        logged(tmp_path, ages[:rows] + shift, yes[:rows], number)

    assert due() == (False, f"{STANDS}; {log} has 0 answers of version 3, and 1,000 are needed")
    served("2026-01-01T10", 10, rows=999)
    served("2026-01-01T10", 10, number=4)
    assert due() == (False, f"{STANDS}; {log} has 999 answers of version 3, and 1,000 are needed")
    served("2026-01-01T11", 10, rows=1)
    drifted, why = due()
    assert drifted and why.startswith("the requests have drifted from the data of version 3: age: mean 39.5")
    served("2026-01-02T11", 0)
    assert due() == (False, f"{STANDS}; 1,001 answers in {log} are within the drift bounds"), "those of a day count"
    served("2026-01-02T12", 0)
    assert due() == (False, f"{STANDS}; 2,000 answers in {log} are within the drift bounds")
    served("2026-01-03T12", 10)
    served("2026-01-04T13", 10)
    pipeline = Pipeline(str(tmp_path), recipe)
    pipeline.outputs["preprocess"] = pipeline.place("preprocess").output
    trained = pipeline.place("train").output
    assert due()[0]
    with storage.stage(trained, "test"):
        pass
    assert due() == (True, "the newest model is trained, and was neither refused nor pushed")
    pipeline.outputs["train"] = trained
    with storage.stage(pipeline.place("evaluate").output, "test") as folder:
        refused = Verdict(verdict="refused", thresholds=[])
        report_folders.evaluation("yes").model_copy(update={"gate": refused}).write(folder)
    due_now, why = due()
    assert not due_now and why.endswith("and these data were trained on already"), why


def test_evaluate_joins_late_labels_with_the_answers_of_each_version_also_of_a_pruned_one(
    tmp_path: Path,
) -> None:
    right = np.arange(100) % 10 < 9
    paid = np.arange(100) % 2 == 0
    score = np.where(right == paid, 0.9, 0.1)  # 90 of 100 are right
    folder = logged(tmp_path, np.arange(100.0), score)
    logged(tmp_path, np.arange(100.0), np.where(paid, 0.8, 0.2), 4)
    shutil.rmtree(tmp_path / "models" / "3")  # pruned
    lines = [f"r{row},{'yes' if paid[row] else 'no'}" for row in range(80)] + ["late,yes"]
    labels = tmp_path / "labels.csv"
    labels.write_text("\n".join(["id,paid", *lines]) + "\n")
    model = str(tmp_path / "models" / "4")
    found = evaluate_answers(model, folder, str(labels), "id")
    assert {number: (each.examples, each.left_out) for number, each in found.versions.items()} == {
        "3": (80, {"no label yet": 20}),
        "4": (80, {"no label yet": 20}),
    }
    assert found.unanswered == 1 and found.columns == ["test split", "version 3", "version 4"]
    third, fourth = found.versions.values()
    assert third.metrics["accuracy"] == pytest.approx(0.9) and fourth.metrics["accuracy"] == 1
    assert third.intervals["accuracy"].low < 0.9 < third.intervals["accuracy"].high
    assert {part.name: part.examples for part in third.slices} == {"city=Bern": 40, "city=Oslo": 40}
    command = ["evaluate", model, "--answers", folder, "--labels", str(labels), "--on", "id"]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0 and "80 answers with a label; left out: no label yet 20" in shown.stdout, shown.output
    by_age = tmp_path / "ages.csv"
    by_age.write_text("age,paid\n" + "".join(f"{row}.0,{'yes' if paid[row] else 'no'}\n" for row in range(100)))
    assert evaluate_answers(model, folder, str(by_age), "age").versions["3"].examples == 100
    for text, said in (
        ("id,paid\nr1,yes\nr1,no\n", "'id' has the value 'r1' twice. Keep one label for each."),
        ("id,paid_late\nr1,yes\n", "no column 'paid'. "),
        (
            "id,paid\nx1,yes\n",
            f"none of its 1 values of 'id' is in {folder}: the first are 'x1', and those of the log 'r0', 'r1', 'r2'.",
        ),
    ):
        labels.write_text(text)
        with pytest.raises(DataError, match=re.escape(said)):
            evaluate_answers(model, folder, str(labels), "id")
    for own in ("prediction", "probabilities", "version"):
        labels.write_text(f"{own},paid\nyes,yes\n")
        with pytest.raises(DataError, match=rf"'{own}' is no column that names an example\. Known are: id, age, city"):
            evaluate_answers(model, folder, str(labels), own)
    with pytest.raises(DataError, match="no parquet file"):
        evaluate_answers(model, str(by_age), str(by_age), "age")
    assert "belong together" in str(CliRunner().invoke(app, command[:-2]).exception)
    assert "DATA: is missing" in str(CliRunner().invoke(app, ["evaluate", model]).exception)


def test_answers_of_one_version_are_one_and_the_first_of_an_example_counts_whatever_servers_call_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = Model(tmp_path), str(tmp_path / "log")
    monkeypatch.chdir(tmp_path)
    for place, age, seconds in ((f"{tmp_path}/models/3", 0.1, 20), ("models/3", 0.9, 10), ("/mnt/models", 0.1, 30)):
        model.pushed = model.pushed.model_copy(update={"folder": place})
        monkeypatch.setattr(answer_log, "private_inputs", lambda _: frozenset())
        monkeypatch.setattr(answer_log.time, "time", lambda seconds=seconds: float(seconds))
        log = AnswerLog(folder, 1.0, CollectorRegistry())
        log.offer(model, [(age, *ROW[1:])], np.array([[1 - age, age]], np.float32), "r0")
        log.finish(20)
    labels = tmp_path / "labels.csv"
    labels.write_text("id,paid\nr0,yes\n")
    found = evaluate_answers("models/3", folder, str(labels), "id").versions["3"]
    assert (found.examples, found.left_out, found.metrics["accuracy"]) == (1, {"answered again": 2}, 1.0)
    shutil.rmtree(tmp_path / "models")
    other = Model(tmp_path, within="models/candidate")
    shutil.move(tmp_path / "models/candidate/3", tmp_path / "models/3")
    with pytest.raises(DataError, match=r"another model than models/3 answered as version 3: "):
        evaluate_answers("models/3", folder, str(labels), "id")
    assert other.digest != model.digest


def test_a_version_with_the_files_of_an_earlier_one_has_its_own_file_of_answers(tmp_path: Path) -> None:
    models = Model(tmp_path, 3), Model(tmp_path, 5)
    models[1].digest = models[0].digest  # a rollback
    log = AnswerLog(str(tmp_path / "log"), 1.0, CollectorRegistry())
    for model in models:
        log.offer(model, [ROW], np.array([[0.9, 0.1]], np.float32), "r")
    log.finish(20)
    assert sorted(row["version"] for row in parquet.read_table(tmp_path / "log").to_pylist()) == [3, 5]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (None, "cannot be read as Parquet"),
        (lambda about: {"version": 3}, "another version of Trainyard logged these"),
        (lambda about: about | {"own": {"id": "id"}}, "another version of Trainyard logged these"),
        (lambda about: about | {"labels": None}, "another version of Trainyard logged these"),
    ],
)
def test_a_damaged_log_is_refused_by_whatever_reads_it(
    tmp_path: Path, edit: Callable[[dict[str, Any]], dict[str, Any]] | None, said: str
) -> None:
    folder = logged(tmp_path, np.arange(9.0), np.full(9, 0.9))
    (file,) = Path(folder).iterdir()
    if edit is None:
        file.write_bytes(file.read_bytes()[:-99])
    else:
        table = parquet.read_table(file)
        edited = edit(json.loads(table.schema.metadata[METADATA]))
        parquet.write_table(table.replace_schema_metadata({METADATA: json.dumps(edited)}), file)
    labels = tmp_path / "labels.csv"
    labels.write_text("id,paid\nr0,yes\n")
    with pytest.raises(DataError, match=said):
        evaluate_answers(str(tmp_path / "models/3"), folder, str(labels), "id")
    with pytest.raises(DataError, match=said):
        statistics_of(str(labels), folder, "paid")
    statistics = statistics_of(str(labels), str(labels), "paid")[0]
    with pytest.raises(DataError, match=said):
        served_statistics(folder, "", statistics, Recipe.model_validate(RECIPE).data, 1)


def test_answers_of_models_with_other_classes_are_not_compared_with_the_training_as_those_of_one(
    tmp_path: Path,
) -> None:
    log, scores = AnswerLog(str(tmp_path / "log"), 1.0, CollectorRegistry()), np.array([[0.9, 0.1]], np.float32)
    log.add(Model(tmp_path), [ROW], scores, "r1")
    log.add(Model(tmp_path, 4), [ROW], scores, "r2")
    log.finish(20)
    before = tmp_path / "before.csv"
    before.write_text("age,city,time,paid\n" + "41,Bern,noon,yes\n40,Oslo,noon,no\n" * 20)
    _, now = statistics_of(str(before), str(tmp_path / "log"), "paid")
    assert now.examples["train"] == 2, "versions of one recipe"
    log = AnswerLog(str(tmp_path / "log"), 1.0, CollectorRegistry())
    log.add(Model(tmp_path, 5, labels=("paid", "unpaid")), [ROW], scores, "r3")
    log.finish(20)
    with pytest.raises(DataError, match=r"are of models with different inputs or answers, .*models/. and .*models/."):
        statistics_of(str(before), str(tmp_path / "log"), "paid")


def test_evaluate_compares_a_shadow_with_what_served_on_the_same_requests(tmp_path: Path) -> None:
    paid = np.arange(200) % 2 == 0
    right, shadow_right = np.arange(200) % 10 < 7, np.arange(200) % 10 < 9
    folder = logged(tmp_path, np.arange(200.0), np.where(right == paid, 0.9, 0.1))
    log, waits = AnswerLog(folder, 1.0, CollectorRegistry()), Model(tmp_path, within="models/candidate")
    for row in range(50, 200):  # some were dropped
        score, inputs = 0.9 if shadow_right[row] == paid[row] else 0.1, (float(row), "Bern", "noon", "Ada", 1985.0)
        log.add(waits, [inputs], np.array([[1 - score, score]], np.float32), f"r{row}", shadow=True)
    log.finish(20)
    labels = tmp_path / "labels.csv"
    labels.write_text("id,paid\n" + "".join(f"r{row},{'yes' if paid[row] else 'no'}\n" for row in range(200)))
    found = evaluate_answers(str(tmp_path / "models/3"), folder, str(labels), "id")
    assert {name: each.examples for name, each in found.versions.items()} == {"3": 200, "candidate/3": 150}
    (compared,) = found.shadows
    assert (compared.version, compared.shadow, compared.examples) == ("3", "candidate/3", 150)
    assert compared.metrics["accuracy"] == pytest.approx((0.7, 0.9))
    interval = compared.differences["accuracy"]
    assert 0.1 < interval.low < 0.2 < interval.high < 0.3, "narrower than that of unpaired answers"
    row = next(row for row in compared.rows if row.name == "accuracy")
    assert row.cells[:2] == ["0.7000", "0.9000"] and row.certain == [False, True, False]
    command = ["evaluate", str(tmp_path / "models/3"), "--answers", folder, "--labels", str(labels), "--on", "id"]
    shown = " ".join(CliRunner().invoke(app, command).stdout.split())
    assert "The shadow candidate/3 and version 3 answered the same 150 examples" in shown, shown
    before = tmp_path / "before.csv"
    before.write_text(
        "age,city,time,paid\n" + "".join(f"{row},Bern,noon,{'yes' if row % 2 else 'no'}\n" for row in range(99))
    )
    _, now = statistics_of(str(before), folder, "paid")
    assert now.examples["train"] == 200 and now.classes["yes"] == {"train": 120}, "only what served is compared"


def test_answers_below_a_gate_are_told_if_the_whole_interval_is_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = np.arange(200) % 10 < 8  # of Bern all, of Oslo 60 %: every odd row
    right |= np.arange(200) % 2 == 0
    paid = np.arange(200) % 4 < 2
    gates = [
        {"metric": "accuracy", "min": 0.92},
        {"metric": "accuracy", "min": 0.97},
        {"metric": "accuracy", "min": 0.97, "slice": "city=Bern"},
        {"metric": "accuracy", "min": 0.97, "slice": "city=Oslo"},
        {"metric": "accuracy", "min_difference": 0.5},
        {"metric": "log_loss", "max": 0.01},
        {"metric": "precision", "min": 1, "class": "yes"},
    ]
    judged = RECIPE | {"evaluate": RECIPE["evaluate"] | {"gates": gates, "bootstrap": 200}}
    with storage.stage(str(tmp_path / "models/3"), "trainyard.push", origin={"number": 3, "recipe": judged}) as folder:
        (folder / "saved_model.pb").touch()
    log = logged(tmp_path, np.arange(200.0), np.where(right == paid, 0.9, 0.1))
    labels = tmp_path / "labels.csv"
    labels.write_text("id,paid\n" + "".join(f"r{row},{'yes' if paid[row] else 'no'}\n" for row in range(200)))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(f"{LOCAL}notify: {{}}\n")
    webhook = Webhook()
    monkeypatch.setenv(URL_VARIABLE, webhook.url)
    try:
        found = evaluate_answers(str(tmp_path / "models/3"), log, str(labels), "id", environment="own.yaml")
    finally:
        webhook.server.shutdown()
        webhook.server.server_close()
    assert found.versions["3"].metrics["accuracy"] == pytest.approx(0.9)
    named = [sentence.partition(" is ")[0] for sentence in found.below_gates]
    assert named == ["accuracy", "accuracy of city=Oslo", "log_loss"], found.below_gates
    [body] = webhook.bodies
    assert body["type"] == "below_gate" and body["data"]["below_gates"] == found.below_gates
    assert found.below_gates[0].endswith("(95 %), and the gate asks for at least 0.97")


@pytest.mark.parametrize("targets", [None, ("low", "high")])
def test_numbers_are_logged_by_target_and_images_without_their_bytes(
    tmp_path: Path, targets: tuple[str, ...] | None
) -> None:
    model = Model(tmp_path, labels=None)
    model.pushed = model.pushed.model_copy(update={"targets": targets, "pixels": PixelForm(3), "inputs": INPUTS[1:2]})
    log = AnswerLog(str(tmp_path / "log"), 1.0, CollectorRegistry())
    log.offer(model, [(b"png",)], np.array([[1.5, 2.5]] if targets else [1.5], np.float32), "a")
    log.finish(20)
    (row,) = parquet.read_table(tmp_path / "log").to_pylist()
    answers = {"prediction_low": 1.5, "prediction_high": 2.5} if targets else {"prediction": 1.5}
    assert {name: row[name] for name in row if name not in ("id", "time", "version", "shadow")} == answers
