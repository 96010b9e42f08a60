"""A pushed model waits until a person approves it: pushes, approvals, and what everything else sees meanwhile."""

from __future__ import annotations

import getpass
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike
from tests.unit import report_folders
from typer.testing import CliRunner

import trainyard as ty
from trainyard.contract import version
from trainyard.contract.artifacts.evaluate import Disagreement, Evaluation
from trainyard.contract.artifacts.export import Exports
from trainyard.contract.artifacts.gate import Verdict
from trainyard.contract.artifacts.push import Pushed
from trainyard.contract.pushed_versions import (
    PushedVersion,
    candidate,
    read_versions,
    rejections,
    serving_version,
    set_alias,
    version_numbers,
)
from trainyard.contract.version import champion, record
from trainyard.errors import ConfigurationError, DataError
from trainyard.spec import recipe as recipes
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions
from trainyard.steps.evaluate.worst import JudgedExamples, disagreement
from trainyard.steps.predict.pushed_model import version_folder
from trainyard.steps.push import run
from trainyard.steps.push.versions import Approved, approve, reject, rollback
from trainyard.storage import storage
from trainyard_control.cli.main import app

BLESSED = Verdict(verdict="blessed", thresholds=[])
Push = Callable[..., Pushed]


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of versions of digits in ./runs."""
    monkeypatch.chdir(tmp_path)
    return str(tmp_path / "runs/digits/models")


@pytest.fixture
def push(models: str, tmp_path: Path) -> Push:
    """Push the model of a content, compared with the champion of now, or with the one that is named."""

    def pushed(content: str, *, waits: bool = True, compared: str | None = "", run_folder: str = "") -> Pushed:
        number = len(storage.children(str(tmp_path / "steps")))
        folder = tmp_path / "steps" / str(number)
        best = champion(models)
        against = (best.path if best else None) if compared == "" else compared
        with storage.stage(str(folder / "evaluate"), "trainyard.evaluate") as staging:
            judged = report_folders.evaluation("seven")
            judged.model_copy(update={"champion": against, "gate": BLESSED}).write(staging)
        with storage.stage(str(folder / "export"), "trainyard.export") as staging:
            (staging / "saved_model").mkdir()
            (staging / "saved_model/saved_model.pb").write_text(content)
            Exports(exports=[], gate=BLESSED).write(staging)
        (folder / "push").mkdir()
        recipe = recipes.load("digits", [f"push.approve={str(waits).lower()}"])
        steps = str(folder / "evaluate"), str(folder / "export")
        run.run(recipe, *steps, folder / "push", models, run_folder=run_folder)
        return Pushed.read(str(folder / "push"))

    return pushed


def content(folder: str) -> str:
    return Path(folder, "saved_model.pb").read_text(encoding="utf-8")


def test_no_server_sees_a_model_that_waits_and_a_second_one_replaces_the_first(models: str, push: Push) -> None:
    first = push("a")
    assert (first.waits, first.version, first.path) == (True, 1, f"{models}/candidate/1")
    assert version_numbers(models) == [] and champion(models) is None
    with pytest.raises(DataError, match=r"no version serves, as there is no champion\.json\. Approve version 1, which"):
        serving_version(models)
    with pytest.raises(DataError, match="no version serves, and version 1 waits for approval"):
        version_folder(models)
    assert serving_version(models, "candidate") == version_folder(f"{models}@candidate") == first.path
    push("b", waits=False)
    second = push("c")
    assert second.version == 3 and storage.children(f"{models}/candidate") == ["3", "champion.json"]
    assert content(serving_version(models)) == "b" and version_numbers(models) == [2]
    again = push("c")
    assert (again.already, again.waits, again.version) == (True, True, 3)
    listed, caution = read_versions(models, PushedVersion)
    assert [(each.number, each.serves, each.waits) for each in listed] == [(3, False, True), (2, True, False)]
    assert caution == ""
    confirmed = push("b")
    assert (confirmed.waits, confirmed.already, confirmed.version) == (False, True, 2), "it serves already"


def test_an_approved_model_serves_under_its_number_and_says_who_when_and_why(models: str, push: Push) -> None:
    push("a", waits=False)
    waiting = push("b", run_folder="runs/second")
    planned = Approved(2, f"{models}/2", replaced=1)
    assert approve(models, "Ada", dry_run=True) == planned and version_numbers(models) == [1]
    assert approve(models, "Ada", "Looks right.") == planned
    best = champion(models)
    assert best is not None and best.approval is not None
    assert (best.version, best.digest, best.compared, best.pushed) == (2, waiting.digest, "", best.approval.time)
    assert (best.approval.name, best.approval.reason) == ("Ada", "Looks right.")
    kept = record(f"{models}/2")
    assert (kept.approval, kept.number, kept.run) == (best.approval, 2, "runs/second")
    assert content(serving_version(models)) == "b" and storage.children(f"{models}/candidate") == []
    with pytest.raises(ConfigurationError, match=r"no version waits for approval\. Ada approved version 2 at 20"):
        approve(models, "Eve")
    assert rollback(models).version == 3 and rollback(models, "2").version == 4
    again = champion(models)
    assert again is not None and again.approval == best.approval
    assert push("b").waits is False, "it serves"
    assert push("c").version == 5


def test_an_approval_that_was_killed_leaves_the_old_or_the_new_and_the_next_one_ends_it(
    models: str, push: Push, tmp_path: Path
) -> None:
    push("a", waits=False)
    push("b")
    shutil.copytree(models, tmp_path / "before")
    approve(models, "Ada")
    shutil.copytree(models, tmp_path / "after")
    # Killed before the pointer: the new version is there and the old one serves, also for a push of the same model.
    shutil.copytree(tmp_path / "before", models, dirs_exist_ok=True)
    assert content(serving_version(models)) == "a" and version_numbers(models) == [1, 2]
    assert push("b").waits and content(serving_version(models)) == "a"
    assert approve(models, "Bob") == Approved(2, f"{models}/2", replaced=1)
    assert content(serving_version(models)) == "b"
    # Killed before the candidate was removed: nothing waits any more.
    shutil.copytree(tmp_path / "before" / "candidate", f"{models}/candidate", dirs_exist_ok=True)
    assert candidate(models, champion(models)) is None and content(serving_version(models)) == "b"
    assert push("c").version == 3 and storage.children(f"{models}/candidate") == ["3", "champion.json"]


def test_a_model_that_was_compared_with_another_champion_is_not_approved(models: str, push: Push) -> None:
    push("a", waits=False)
    push("b")
    push("c", waits=False)
    with pytest.raises(ConfigurationError, match=r"version 2 was compared with another model .* version 3 serves"):
        approve(models, "Ada")
    assert content(serving_version(models)) == "c"
    rollback(models, "1")
    assert approve(models, "Ada").version == 5, "the model that it was compared with serves again"
    push("d", compared=None)
    with pytest.raises(ConfigurationError, match="compared with another model"):
        approve(models, "Ada")


def test_a_model_whose_files_are_gone_or_changed_is_not_approved(models: str, push: Push) -> None:
    with pytest.raises(ConfigurationError, match=r"no version waits for approval\.$"):
        approve(models, "Ada")
    waiting = push("a")
    Path(waiting.path, "saved_model.pb").write_text("x")
    with pytest.raises(DataError, match="cannot serve, and nothing was changed"):
        approve(models, "Ada")
    storage.remove(waiting.path)
    with pytest.raises(DataError, match="points to version 1, which is not there"):
        approve(models, "Ada")
    assert read_versions(models, PushedVersion)[1].endswith("continue without a champion.")
    assert version_numbers(models) == [] and push("a").version == 1


def test_an_alias_is_never_the_name_of_the_version_that_waits(models: str, push: Push) -> None:
    push("a", waits=False)
    with pytest.raises(ConfigurationError, match="is the version that waits for approval"):
        set_alias(models, "candidate", 1)
    storage.write_text(f"{models}/aliases.json", '{"aliases": {"candidate": 1}}')
    with pytest.raises(ConfigurationError, match="trainyard models alias candidate digits --remove"):
        push("b")
    assert CliRunner().invoke(app, ["models", "alias", "candidate", "digits", "--remove"]).exit_code == 0
    assert push("b").waits


def test_commands_show_and_approve_what_waits_and_do_nothing_else_with_it(models: str, push: Push) -> None:
    waiting = push("a")

    def invoke(*arguments: str) -> str:
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        return result.stdout + result.stderr

    assert [line.split()[-4] for line in invoke("models", "list", "digits").splitlines()] == ["SERVES", "waits"]
    for name in ("digits@candidate", waiting.path, f"{models}/candidate"):
        assert "1 of digits, waits for approval" in invoke("models", "show", name)
    for arguments, sentence in (
        (("alias", "production", "digits@candidate"), "version 1 waits for approval. Only an approved version has"),
        (("rollback", "digits@candidate"), "'candidate': version 1 waits for approval"),
        (("approve", "digits"), "Write digits@candidate"),
        (("approve", "digits@candidate", "--as", "Ada\nEve"), "--as: is no line of at most 100 characters"),
        (("approve", "digits@candidate", "--reason", "x" * 1001), "--reason: is no line of at most 1000"),
    ):
        with pytest.raises(ConfigurationError, match=sentence):
            invoke("models", *arguments)
    with pytest.raises(ConfigurationError, match="version 1 waits for approval"):
        invoke("publish", "mlflow", "digits@candidate", "--dry-run")
    assert "version 1 would serve" in invoke("models", "approve", "digits@candidate", "--dry-run")
    assert f"✓ version 1 serves in {models}\n" in invoke("models", "approve", "digits@candidate", "--reason", "good")
    assert f"by {getpass.getuser()}: good" in invoke("models", "show", "digits")
    assert ty.versions("digits").serving is not None
    with pytest.raises(ConfigurationError, match="'candidate': no version waits for approval"):
        invoke("models", "show", "digits@candidate")


def test_a_rejected_model_waits_no_longer_stays_and_says_who_when_and_why(models: str, push: Push) -> None:
    push("a", waits=False)
    waiting = push("b", run_folder="runs/second")

    def invoke(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["models", *arguments], catch_exceptions=False)
        return result.stdout + result.stderr

    with pytest.raises(ConfigurationError, match="Write digits@1@candidate"):
        invoke("reject", "digits@1")
    with pytest.raises(ConfigurationError, match="--as: is no line of at most 100 characters"):
        invoke("reject", "digits@candidate", "--as", "Ada\nEve")
    planned = invoke("reject", "digits@candidate", "--dry-run")
    assert planned == f"· version 2 would be rejected: {waiting.path}\n" and candidate(models, champion(models))
    said = invoke("reject", "digits@candidate", "--as", "Ada", "--reason", "fails on sevens")
    assert said == f"✓ version 2 is rejected: {waiting.path}\n"
    assert candidate(models, champion(models)) is None and version_numbers(models) == [1]
    assert content(waiting.path) == "b" and content(serving_version(models)) == "a"
    for name in ("digits@2", waiting.path):
        shown = invoke("show", name)
        assert "2 of digits, rejected" in shown and "by Ada: fails on sevens" in shown
    assert [line.split()[-4] for line in invoke("list", "digits").splitlines()][:2] == ["SERVES", "rejected"]
    assert json.loads(invoke("show", "digits@2", "-o", "json"))["rejection"]["name"] == "Ada"
    for refused in (lambda: approve(models, "Eve"), lambda: reject(models, "Eve")):
        with pytest.raises(ConfigurationError, match=r"no version waits for approval\. Ada rejected version 2 at 20"):
            refused()
    with pytest.raises(ConfigurationError, match=r"'candidate': no version waits for approval"):
        invoke("show", "digits@candidate")
    with pytest.raises(ConfigurationError, match=r"version 2 was rejected by Ada at 20.*: fails on sevens"):
        invoke("alias", "production", "digits@2")
    with pytest.raises(ConfigurationError, match="Only an approved version is published"):
        CliRunner().invoke(app, ["publish", "mlflow", "digits@2", "--dry-run"], catch_exceptions=False)
    again = push("b")
    assert (again.waits, again.version, rejections(models)) == (True, 2, {}), "pushed again, it waits again"
    reject(models, "Ada")
    assert push("c").version == 3 and storage.children(f"{models}/candidate") == [
        "2",
        "3",
        "champion.json",
        "rejected.json",
    ]
    assert "3 of digits, waits" in invoke("show", f"{models}/candidate/3")
    assert "2 of digits, rejected" in invoke("show", f"{models}/candidate/2")
    assert approve(models, "Bob").version == 3 and storage.children(f"{models}/candidate") == ["2", "rejected.json"]
    storage.write_text(f"{models}/candidate/rejected.json", "[]")
    with pytest.raises(DataError, match=r"rejected\.json: not a list of rejections"):
        invoke("list", "digits")


class Pod:
    """A volume as a pod has it, at the same path; here it is read from copies alone."""

    def __init__(self, patch: pytest.MonkeyPatch, copies: Path) -> None:
        self.patch, self.copies = patch, copies

    def file(self, path: str) -> Path:
        copy = self.copies / path.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copyfile(path, copy)) if Path(path).is_file() else copy

    def folder(self, path: str) -> Path:
        return Path(shutil.copytree(path, self.copies / path.lstrip("/"), dirs_exist_ok=True))

    def names(self, path: str) -> list[str]:
        return sorted(each.name for each in Path(path).iterdir()) if Path(path).is_dir() else []

    def send(self, *_: object) -> None:
        raise AssertionError("nothing is sent")

    def run(self, arguments: list[str]) -> str:
        with self.patch.context() as patch:
            patch.setattr(storage, "_volumes", {})
            return CliRunner().invoke(app, arguments, catch_exceptions=False).stdout


def test_a_pod_approves_and_rejects_on_a_volume_by_the_name_of_who_asks(
    models: str, push: Push, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push("a")
    monkeypatch.setattr(storage, "_volumes", {})
    storage.read_volume(str(tmp_path / "runs"), Pod(monkeypatch, tmp_path / "copies"))
    monkeypatch.setenv("LOGNAME", "ana")

    def invoke(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["models", *arguments], catch_exceptions=False)
        return result.stdout + result.stderr

    assert "version 1 would serve" in invoke("approve", f"{models}@candidate", "--dry-run")
    assert f"✓ version 1 serves in {models}\n" in invoke("approve", f"{models}@candidate", "--reason", "good")
    assert "by ana: good" in invoke("show", models)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "_volumes", {})
        waiting = push("b")
    assert f"✓ version 2 is rejected: {waiting.path}\n" in invoke("reject", f"{models}@candidate", "--as", "Ada")
    with pytest.raises(
        ConfigurationError,
        match=r"no version waits for approval\. ana approved version 1 at 20.* Ada rejected version 2 at 20",
    ):
        invoke("approve", f"{models}@candidate")


def test_prune_deletes_a_rejected_version_with_its_run(models: str, push: Push) -> None:
    from trainyard_control.local import retention

    push("a", waits=False)
    root = str(Path("runs").absolute())
    for name in ("20260101-000000-aaaa", "20260102-000000-aaaa"):
        pushed = push(name, run_folder=f"/moved/digits/runs/{name}")
        reject(models, "Ada")
        written = {"pushed": pushed.model_dump(include={"path", "version"}), "ended": f"2026-01-{name[6:8]}T00:00Z"}
        storage.write_text(f"runs/digits/runs/{name}/run.json", json.dumps(written))
    assert not [each for each in retention.plan(root, keep=2).removals if each.kind != "output"]
    removals = [each for each in retention.plan(root, keep=1).removals if each.kind == "version"]
    assert [(each.name, each.bytes > 0) for each in removals] == [("models/candidate/2", True)]
    assert retention.remove(root, removals[0], ()) == ""
    assert rejections(models).keys() == {3} and version_numbers(f"{models}/candidate") == [3]


def test_the_report_says_what_waits_and_where_the_champion_answers_differently(models: str, push: Push) -> None:
    from trainyard.report import report
    from trainyard.report.outputs import read

    push("a", waits=False)
    push("b")
    folders = {"evaluate": str(Path("steps/1/evaluate").absolute()), "push": str(Path("steps/1/push").absolute())}
    page = report.render("digits", recipes.load("digits"), read(folders), {})
    assert f"beside the champion <code>{models}/1</code>" in page
    assert "trainyard models approve digits@candidate --as NAME" in page and 'id="differs"' not in page
    judged = Evaluation.read(folders["evaluate"])
    differs = compared([0, 1, 1], [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], [[0.3, 0.7], [0.4, 0.6], [0.1, 0.9]])
    storage.remove(folders["evaluate"])
    with storage.stage(folders["evaluate"], "trainyard.evaluate") as staging:
        judged.model_copy(update={"disagreement": differs}).write(staging)
    page = report.render("digits", recipes.load("digits"), read(folders), {})
    assert 'id="differs"' in page and "<th>Champion</th>" in page
    assert json.loads(differs.model_dump_json())["shown"][0] == {
        "key": "row 0",
        "label": "seven",
        "predicted": "seven",
        "loss": pytest.approx(-np.log(0.9)),
        "image": None,
        "champion": "other",
    }


def compared(
    labels: ArrayLike, model: ArrayLike, champion: ArrayLike, weights: ArrayLike | None = None
) -> Disagreement:
    sure = None if weights is None else np.asarray(weights, np.float32)
    answers = [
        SplitPredictions(np.asarray(labels), np.asarray(outputs, np.float32), sure) for outputs in (model, champion)
    ]
    count = len(answers[0])
    names = None if answers[0].labels.dtype.kind == "f" else ["seven", "other"]
    examples = report_folders.examples("seven").model_copy(update={"features": [], "labels": names})
    keys = np.array([f"row {row}".encode() for row in range(count)])
    judged = JudgedExamples(keys, examples, ())
    return disagreement(2, answers[0], answers[1], judged, Path())


def test_examples_that_differ_are_counted_by_who_is_right_and_shown_by_their_losses() -> None:
    model = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.9, 0.1]]
    champion = [[0.3, 0.7, 0], [0.4, 0.6, 0], [0.1, 0.9, 0], [0.1, 0.1, 0.8]]
    found = compared([0, 1, 1, 1], model, champion)
    assert (found.examples, found.model_better, found.champion_better) == (3, 1, 1)
    # Loss of the champion less that of the model: log 3, log 4/9; and of the last one 0, for both are wrong.
    assert [(each.key, each.champion) for each in found.shown] == [("row 0", "other"), ("row 2", "other")]
    weighted = compared([0, 1, 1, 1], model, champion, weights=[0, 1, 1, 1])
    assert weighted.examples == 2
    assert [(each.key, each.champion) for each in weighted.shown] == [("row 2", "other"), ("row 3", "another class")]
    numbers = compared(np.array([1.0, 2.0, 3.0], np.float32), [1.0, 2.5, 3.5], [1.0, 2.1, 5.0])
    assert (numbers.examples, numbers.model_better, numbers.champion_better) == (2, 1, 1)
    assert [each.key for each in numbers.shown] == ["row 2", "row 1"]


def test_prune_keeps_what_waits_with_its_run(models: str, push: Push) -> None:
    from trainyard_control.local import retention

    for name in ("20260101-000000-aaaa", "20260102-000000-aaaa", "20260103-000000-aaaa"):
        waits = name.startswith("20260102")
        pushed = push(name, run_folder=f"/moved/digits/runs/{name}") if waits else None
        written = pushed and pushed.model_dump(include={"path", "version"})
        storage.write_text(
            f"runs/digits/runs/{name}/run.json",
            json.dumps({"pushed": written, "ended": f"{name[:4]}-01-01T00:00Z"}),
        )
    removed = [removal.name for removal in retention.plan(str(Path("runs").absolute()), keep=1).removals]
    assert removed == ["runs/20260101-000000-aaaa"]
    manifest, waiting = storage.committed(f"{models}/candidate/1"), candidate(models, champion(models))
    assert manifest is not None and waiting is not None and version.digest(manifest) == waiting.digest
