"""The runs of this machine, listed, shown and compared from what they left."""

from __future__ import annotations

import json
import re
import shutil
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit import report_folders
from typer.testing import CliRunner

from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.artifacts.gate import Interval
from trainyard.errors import ConfigurationError, DataError
from trainyard.report import index, local_runs, summary
from trainyard.spec import plain_yaml
from trainyard.storage import storage
from trainyard_control.cli.main import app
from trainyard_control.cli.options import write_file
from trainyard_control.local import retention
from trainyard_control.search import comparison

FIRST, SECOND, THIRD = "20260101-090000-aaaa", "20260102-090000-bbbb", "20260103-090000-cccc"


def run(root: Path, name: str, epochs: int = 3, accuracy: float = 0.9, **ended: Any) -> dict[str, str]:
    """Leave a run as the real writers do."""
    recipe = report_folders.recipe()
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"epochs": epochs})})
    folder = root / "digits" / "runs" / name
    storage.write_text(str(folder / "recipe.yaml"), plain_yaml.dump(recipe.model_dump(mode="json")))
    storage.write_text(str(folder / "train.log"), "one\ntwo\n")
    folders = report_folders.whole_run(root / "outputs" / name)
    interval = Interval(low=accuracy - 0.02, high=accuracy + 0.02)
    evaluation = Evaluation.read(folders["evaluate"]).model_copy(
        update={"metrics": {"accuracy": accuracy}, "intervals": {"accuracy": interval}}
    )
    evaluation.write(Path(folders["evaluate"]))
    summary.write(str(root), recipe, name, folders, report_folders.SECONDS, {"failure": None, "exit_code": 0} | ended)
    return folders


@pytest.fixture
def root(tmp_path: Path) -> Path:
    run(tmp_path, FIRST)
    run(tmp_path, SECOND, epochs=5, accuracy=0.95)
    run(tmp_path, THIRD, accuracy=0.91, failure="train: stopped", exit_code=30)
    (tmp_path / "digits" / "runs" / "20260104-090000-dddd").mkdir()
    (tmp_path / "here.yaml").write_text(f"target: local\nstorage: {tmp_path}\n")
    return tmp_path


def test_the_name_of_a_run_says_when_it_began_to_readers_in_every_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = []
    for written, read in (("Asia/Tokyo", "UTC"), ("America/New_York", "Asia/Tokyo")):
        monkeypatch.setenv("TZ", written)
        time.tzset()
        name = local_runs.new_name()
        monkeypatch.setenv("TZ", read)
        time.tzset()
        start = datetime.fromisoformat(local_runs.begun(name))
        starts.append(
            (abs(start.timestamp() - time.time()) < 60, start.utcoffset() == datetime.now().astimezone().utcoffset())
        )
    monkeypatch.undo()
    time.tzset()
    assert starts == [(True, True)] * 2


@pytest.mark.parametrize("content", ['{"recipe": ', "null", "5", "[]", '"x"', "\ufeff{}", "[" * 100_000])
def test_a_run_whose_record_is_damaged_is_listed_and_whatever_needs_the_record_names_the_file(
    root: Path, content: str
) -> None:
    record = root / "digits" / "runs" / FIRST / "run.json"
    record.write_text(content)
    damaged = next(entry for entry in local_runs.newest(str(root), 10) if entry.name == FIRST)
    assert (damaged.state, damaged.reason) == ("failed", f"{record} is damaged")
    with pytest.raises(DataError, match=rf"^{re.escape(str(record))}: is no JSON object, so it is damaged\. Delete it"):
        storage.read_json(str(record))


def test_a_record_with_a_field_of_another_kind_is_damaged_and_any_other_is_shown(root: Path) -> None:
    file = root / "digits" / "runs" / FIRST / "run.json"
    record, accepted = json.loads(file.read_text()), set()
    (root / "digits" / "runs" / "20260104-090000-dddd" / "cancelled").write_text("2026-01-04T00:00:00+00:00")
    for key in record:
        for value in (None, "x", -1, [], {}, [None], {"a": None}, "2026-13-45", "2026-01-01"):
            file.write_text(json.dumps(record | {key: value}))
            (seen,) = (each for each in local_runs.newest(str(root), 10) if each.name == FIRST)
            if seen.reason == f"{file} is damaged":
                with pytest.raises(DataError, match=rf"{re.escape(str(file))}: {key}.*It was edited or is damaged"):
                    retention.plan(str(root), keep=1)
                continue
            accepted.add((key, json.dumps(value)))
            assert CliRunner().invoke(app, ["runs", "show", FIRST, "-e", str(root / "here.yaml")]).exception is None
            assert "digits" in index.render(str(root), [seen], 1, []) and retention.plan(str(root), keep=1)
    assert {("metrics", "null"), ("folders", "{}")} < accepted
    assert not accepted & {
        (key, "[null]") for key in ("metrics", "gate", "pushed", "folders", "ended", "data", "seconds")
    }


@pytest.mark.parametrize("content", [b"null\n", b"[]\n", b"{\n", b"\xff\n"])
def test_a_damaged_journal_and_a_damaged_recipe_are_sentences(root: Path, content: bytes) -> None:
    seen = local_runs.view(str(root), "digits", FIRST)
    for name in ("journal.jsonl", "recipe.yaml"):
        (root / "digits" / "runs" / FIRST / name).write_bytes(content)
    watched = CliRunner().invoke(app, ["runs", "watch", FIRST, "-e", str(root / "here.yaml")])
    assert isinstance(watched.exception, DataError)
    assert "journal.jsonl: is damaged (" in str(watched.exception)
    with pytest.raises((DataError, ConfigurationError), match=r"recipe.yaml"):
        _ = seen.settings


def test_runs_are_listed_with_what_became_of_them_the_newest_first(root: Path) -> None:
    runs = local_runs.newest(str(root), 10)
    assert [entry.state for entry in runs] == ["unfinished", "failed", "pushed", "pushed"]
    assert [entry.metric for entry in runs] == ["", "accuracy 0.9100", "accuracy 0.9500", "accuracy 0.9000"]
    assert runs[1].reason == "train: stopped" and runs[0].seconds is None and (runs[1].seconds or 0) > 0
    assert [entry.name for entry in local_runs.newest(str(root), 2)] == [entry.name for entry in runs[:2]]


def test_runs_are_listed_by_recipe_state_and_day(root: Path) -> None:
    other = root / "flowers" / "runs" / "20260102-120000-eeee"
    shutil.copytree(root / "digits" / "runs" / FIRST, other)

    def names(*options: str) -> list[str]:
        listed = CliRunner().invoke(app, ["runs", "list", "-e", str(root / "here.yaml"), "-o", "json", *options])
        assert listed.exit_code == 0, listed.exception
        return [entry["name"] for entry in json.loads(listed.stdout)]

    assert names("flowers") == [other.name]
    assert names("--state", "pushed", "-n", "2") == [other.name, SECOND]
    assert names("--state", "failed", "-n", "1") == [THIRD]
    assert names("--since", f"{THIRD[:4]}-{THIRD[4:6]}-{THIRD[6:8]}") == ["20260104-090000-dddd", THIRD]
    for text in ("too early", "#baseline\nold  labels"):
        noted = CliRunner().invoke(app, ["runs", "note", SECOND, text, "-e", str(root / "here.yaml")])
        assert noted.exit_code == 0, noted.exception
    assert names("--note", "#Baseline", "-n", "1") == [SECOND] and names("--note", "early") == []
    shown = CliRunner().invoke(app, ["runs", "show", SECOND, "-e", str(root / "here.yaml")])
    assert "slow    worker 3 on seven takes 9.0 ms a step, the others 4.0 ms" in shown.stdout
    assert "note    #baseline old labels" in shown.stdout and "gate    blessed" in shown.stdout
    assert re.search(r"data    train .*; fingerprint", shown.stdout) and "trainyard models show" in shown.stdout
    CliRunner().invoke(app, ["runs", "note", SECOND, "", "-e", str(root / "here.yaml")])
    assert names("--note", "baseline") == []
    refused = CliRunner().invoke(app, ["runs", "note", SECOND, "x" * 501, "-e", str(root / "here.yaml")])
    assert isinstance(refused.exception, ConfigurationError) and "the note has 501 characters" in str(refused.exception)
    for options, sentence in (
        (["--state", "push"], "--state push: no such state. Did you mean 'pushed'? Give pushed, refused, failed"),
        (["--since", "2026"], "--since 2026: is no day. Give it as YYYY-MM-DD."),
        (["digit"], f"{root}: no runs of 'digit'. There: digits, flowers. Did you mean 'digits'?"),
        (["--since", "2026-02-30"], "--since 2026-02-30: is no day. Give it as YYYY-MM-DD."),
    ):
        refused = CliRunner().invoke(app, ["runs", "list", "-e", str(root / "here.yaml"), *options])
        assert isinstance(refused.exception, ConfigurationError) and sentence in str(refused.exception)


def test_a_filtered_list_reads_no_older_records_than_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    days = [f"202501{day:02}-090000-aaaa" for day in range(1, 31)]
    for day, name in enumerate(days):
        record = {"failure": "out of memory"} if day % 10 == 0 else {"ended": "2025-02-01T00:00:00+00:00"}
        storage.write_text(str(tmp_path / "digits" / "runs" / name / "run.json"), json.dumps(record))
    read: list[str] = []
    view = local_runs.view
    monkeypatch.setattr(local_runs, "view", lambda *pair: read.append(pair[2]) or view(*pair))
    monkeypatch.setattr(local_runs, "_READ_AT_ONCE", 4)
    failed = local_runs.RunFilter(state="failed")
    assert [run.name for run in local_runs.newest(str(tmp_path), 1, failed)] == [days[20]]
    assert read == days[:17:-1]  # three times four
    assert [run.name for run in local_runs.newest(str(tmp_path), 9, failed)] == [days[20], days[10], days[0]]


def test_a_run_of_a_pipeline_stands_by_its_end_and_a_damaged_record_hides_no_other(root: Path) -> None:
    for name, ended in (("99307505", "2026-01-02T12:00:00+00:00"), ("24383155", "2026-01-05T12:00:00+00:00")):
        record = json.dumps({"failure": None, "ended": ended})
        storage.write_text(str(root / "digits" / "runs" / name / "run.json"), record)
    storage.write_text(str(root / "digits" / "runs" / THIRD / "run.json"), "{")
    runs = local_runs.newest(str(root), 10)
    assert [entry.name for entry in runs][::2] == ["24383155", THIRD, SECOND] and runs[3].name == "99307505"
    assert runs[2].state == "failed" and "run.json is damaged" in runs[2].reason
    assert local_runs.find(str(root), "digits").name == "24383155"


def test_a_run_goes_by_its_name_its_folder_or_its_recipe(root: Path) -> None:
    assert local_runs.find(str(root), SECOND).name == SECOND
    assert local_runs.find("elsewhere", str(root / "digits" / "runs" / FIRST) + "/").name == FIRST
    assert local_runs.find(str(root), "digits").state == "unfinished"
    with pytest.raises(ConfigurationError, match=r"no such run.* Did you mean 'digits'\?"):
        local_runs.find(str(root), "digit")
    log = local_runs.find(str(root), SECOND)
    assert local_runs.log(log, "train", None) == "one\ntwo\n" and local_runs.log(log, "train", 1) == "two\n"
    with pytest.raises(ConfigurationError, match=r"has no log of it\. There: train"):
        local_runs.log(log, "../../recipe", None)


def test_a_comparison_names_what_differs_and_what_may_be_noise(root: Path) -> None:
    compared = comparison.compare([local_runs.find(str(root), name) for name in (FIRST, SECOND, THIRD)])
    assert [(row.name, row.cells) for row in compared.settings] == [("train.epochs", ["3", "5", "3"])]
    (accuracy,) = compared.metrics
    assert accuracy.cells == ["0.9000", "0.9500 (+0.0500)", "0.9100 (+0.0100)"]
    assert accuracy.certain == [False, True, False]
    rows = {row.name: row.cells for row in compared.training}
    assert rows["best epoch"] == ["3 of 3"] * 3 and rows["train, s"] == ["20.4"] * 3
    assert [len(curve) for curve in compared.curves] == [3, 3, 3]
    write_file(compared.page(), root / "a.html", "--html")
    page = (root / "a.html").read_text()
    charts = report_folders.figures(page).values()
    assert [len(chart["data"]) for chart in charts] == [
        3,
        3,
        3,
    ] and "(their intervals do not overlap): accuracy" in page
    assert compared.caution == ""


def test_settings_that_one_of_the_models_lacks_are_not_compared() -> None:
    network: dict[str, Any] = {
        "name": "a",
        "model": {"name": "mlp", "hidden": [8], "trees": {"max_iter": 100}},
        "train": {"epochs": 3},
    }
    trees: dict[str, Any] = {
        "name": "b",
        "model": {"name": "boosted_trees", "hidden": [64], "trees": {"max_iter": 9}},
        "train": {},
    }
    rows = comparison.settings_rows([network, trees])
    assert [(row.name, row.cells) for row in rows] == [("name", ["a", "b"]), ("model.name", ["mlp", "boosted_trees"])]
    other = {**trees, "model": {**trees["model"], "trees": {"max_iter": 20}}}
    assert [row.name for row in comparison.settings_rows([trees, other])] == ["model.trees.max_iter"]


def test_gates_are_compared_by_field_and_unset_ones_are_left_out() -> None:
    gates = [{"metric": "accuracy", "min": 0.9, "max": None}, {"metric": "recall", "min": 0.5, "max": None}]
    recipes = [{"evaluate": {"gates": gates[:1]}}, {"evaluate": {"gates": [{**gates[0], "min": 0.8}, gates[1]]}}]
    assert [(row.name, row.cells) for row in comparison.settings_rows(recipes)] == [
        ("evaluate.gates.0.min", ["0.9", "0.8"]),
        ("evaluate.gates.1.metric", ["–", "recall"]),
        ("evaluate.gates.1.min", ["–", "0.5"]),
    ]


def save_predictions(run: local_runs.LocalRunView, keys: list[str], outputs: NDArray[np.floating[Any]]) -> None:
    """Save predictions of examples whose class is their key's last digit modulo 2."""
    path = Path(run.record["folders"]["evaluate"]) / "predictions.npz"
    np.savez(path, keys=np.array(keys, "S"), labels=np.array([int(key[-1]) % 2 for key in keys]), outputs=outputs)


def test_runs_judged_on_the_same_examples_are_compared_pair_by_pair(root: Path) -> None:
    first, second = (local_runs.find(str(root), name) for name in (FIRST, THIRD))  # 0.90 and 0.91, intervals of ±0.02
    keys = [f"a:{number:03}" for number in range(400)]
    right = np.eye(2)[[int(key[-1]) % 2 for key in keys]]
    save_predictions(first, keys, np.where(np.arange(400)[:, None] < 40, 1 - right, right))
    save_predictions(second, keys[::-1], np.where(np.arange(400)[:, None] < 30, 1 - right, right)[::-1])
    compared = comparison.compare([first, second])
    assert compared.paired and compared.metrics[0].certain == [False, True]  # ten examples better, none worse
    assert "(paired on the same test examples): accuracy" in compared.page()


def test_each_run_of_a_pair_predicts_by_its_own_threshold(root: Path) -> None:
    first, second = (local_runs.find(str(root), name) for name in (FIRST, THIRD))
    keys = [f"a:{number:03}" for number in range(400)]
    odd = np.array([int(key[-1]) % 2 for key in keys])
    outputs = np.stack([1 - 0.4 * odd, 0.4 * odd], axis=1)  # every 1 has 0.4, every 0 has 0
    for run in (first, second):
        save_predictions(run, keys, outputs)
    assert comparison.compare([first, second]).metrics[0].certain == [False, False]
    file = Path(second.record["folders"]["evaluate"]) / "evaluation.json"
    one = {"precision": 1, "recall": 1, "f1": 1}
    decided = {
        "classes": [{"label": label, "examples": 200, **one} for label in ("even", "odd")],
        "thresholds": [{"label": "odd", "value": 0.25, **one}],
    }
    file.write_text(json.dumps(json.loads(file.read_text()) | decided))
    assert comparison.compare([first, second]).metrics[0].certain == [False, True]


def test_runs_that_other_examples_judged_are_compared_with_a_caution(root: Path) -> None:
    first, second = (local_runs.find(str(root), name) for name in (FIRST, SECOND))
    save_predictions(first, ["a:2", "a:3"], np.eye(2))
    save_predictions(second, ["a:3", "a:2"], np.eye(2)[::-1])
    assert comparison.compare([first, second]).caution == ""
    save_predictions(second, ["b:2", "b:3"], np.eye(2))
    compared = comparison.compare([first, second])
    assert (
        compared.caution.startswith("Their test splits hold different examples") and compared.caution in compared.page()
    )
    ended = CliRunner().invoke(app, ["runs", "compare", FIRST, SECOND, "-e", str(root / "here.yaml")])
    assert "! Their test splits hold different" in ended.stdout


def test_runs_that_cannot_be_compared_are_refused(root: Path) -> None:
    first = local_runs.find(str(root), FIRST)
    with pytest.raises(ConfigurationError, match="name two or more runs, each once"):
        comparison.compare([first, first])
    unfinished = comparison.compare([local_runs.find(str(root), SECOND), first])
    assert unfinished.metrics[0].cells[0] == "0.9500"


def test_the_commands_answer_for_this_machine(root: Path) -> None:
    def answer(*arguments: str) -> str:
        ended = CliRunner().invoke(app, ["runs", *arguments, "-e", str(root / "here.yaml")])
        assert ended.exit_code == 0, ended.output
        return ended.stdout

    assert len(answer("list").splitlines()) == 5
    assert json.loads(answer("list", "-o", "json"))[1]["reason"] == "train: stopped"
    shown = answer("show", THIRD)
    assert "failed" in shown and "train: stopped." in shown and "accuracy  0.9100" in shown
    assert json.loads(answer("show", FIRST, "-o", "json"))["state"] == "pushed"
    assert answer("logs", FIRST, "train", "--tail", "1") == "two\n"
    text = answer("compare", FIRST, SECOND)
    assert "train.epochs" in text and "0.9500 (+0.0500) *" in text and max(map(len, text.splitlines())) <= 80
    assert json.loads(answer("compare", FIRST, SECOND, "-o", "json"))["settings"] == {"train.epochs": ["3", "5"]}
    answer("report", FIRST, "--file", str(root / "copy.html"))
    assert (root / "copy.html").read_text() == (root / "digits" / "runs" / FIRST / "report.html").read_text()
    ended = CliRunner().invoke(app, ["runs", "report", "20260104-090000-dddd", "-e", str(root / "here.yaml")])
    assert "has no report" in str(ended.exception) and "It is written when a run ends" in str(ended.exception)


def page_rows(root: Path) -> list[str]:
    """Return the rows of the index of a storage as text, with the targets of links."""
    page = (root / "index.html").read_text(encoding="utf-8")
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    return [" ".join(re.sub(r"<(?!a )[^>]*>", " ", row).split()) for row in rows]


def test_the_index_of_a_storage_lists_runs_with_links_that_work_from_a_file(root: Path) -> None:
    rows = page_rows(root)
    link = f'<a href="digits/runs/{SECOND}/report.html">{SECOND} pushed digits accuracy 0.9500'
    assert any(row.startswith(link) for row in rows) and (root / f"digits/runs/{SECOND}/report.html").exists()
    [failed] = [row for row in rows if THIRD in row]
    assert "failed train: stopped digits accuracy 0.9100" in failed
    page = (root / "index.html").read_text(encoding="utf-8")
    assert "No version was pushed yet" in page and "default-src 'none'" in page and "script" not in page


def test_text_of_a_run_stays_text_in_the_index(root: Path) -> None:
    run(root, "20260105-090000-eeee", failure="<script>alert(1)</script> & x", exit_code=30)
    page = (root / "index.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; x" in page and "<script" not in page


def test_the_index_is_bounded_and_says_how_many_runs_are_older(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MOST_RUNS", 2)
    children, listed = storage.children, list[str]()
    monkeypatch.setattr(storage, "children", lambda uri: listed.append(uri) or children(uri))
    index.write(str(root))
    assert listed.count(f"{root}/digits/runs") == 1  # a request for each recipe of a bucket
    rows = page_rows(root)
    assert [name for name in (FIRST, SECOND, THIRD, "20260104-090000-dddd") if any(name in row for row in rows)] == [
        THIRD,
        "20260104-090000-dddd",
    ]
    assert "2 older runs; trainyard runs list --count 4" in rows


def test_of_two_runs_that_end_at_once_the_index_lists_both(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text, late = storage.write_text, root / "digits" / "runs" / "20260104-090000-dddd"

    def end_another(uri: str, text: str) -> None:
        write_text(uri, text)
        if uri.endswith(index.FILE) and not (late / "run.json").exists():
            write_text(str(late / "run.json"), json.dumps({"failure": "train: was late", "exit_code": 30}))

    monkeypatch.setattr(storage, "write_text", end_another)
    index.write(str(root))
    assert any("train: was late" in row for row in page_rows(root))


def test_an_index_that_cannot_be_written_ends_no_run(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "index.html").unlink()
    (root / "index.html").mkdir()
    (root / "index.html" / "x").touch()
    run(root, "20260105-090000-eeee")
    assert local_runs.newest(str(root), 1)[0].state == "pushed" and "unrecorded" in "".join(capsys.readouterr())
