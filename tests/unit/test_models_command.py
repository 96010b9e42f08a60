"""`trainyard models` and `ty.versions`: what they list, compare, name and roll back, on versions without a model."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from tests.pushed_versions import RUN, push_versions
from typer.testing import CliRunner, Result

import trainyard as ty
from trainyard.contract.version import champion, set_champion
from trainyard.report import index
from trainyard.steps.predict.pushed_model import open_model
from trainyard.storage import storage
from trainyard_control.api.versions import find, find_one
from trainyard_control.cli.main import app


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return push_versions()


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["models", *arguments], catch_exceptions=False)


def test_a_list_says_which_version_serves_its_metric_aliases_and_run(models: Path) -> None:
    lines = [line.split() for line in invoke("list").stdout.splitlines()]
    assert lines[0] == ["VERSION", "PUSHED", "METRIC", "SERVES", "ALIASES", "RUN", "RECIPE"]
    assert [(line[0], *line[3:]) for line in lines[1:]] == [
        ("2", "accuracy", "0.9900", "yes", "–", "–", "digits"),
        ("1", "accuracy", "0.9500", "–", "canary", RUN, "digits"),
    ]
    assert invoke("list", "digits").stdout == invoke("list", str(models)).stdout == invoke("list").stdout
    (models / "3").mkdir()
    (models / "3" / "saved_model.pb").touch()
    warned = invoke("list").stderr
    assert "TensorFlow Serving loads version 3, and version 2 is in champion.json" in warned
    assert "3: no manifest, so it is not a version that Trainyard pushed" in warned
    (models / "champion.json").write_text("{}")
    assert "not a pointer of Trainyard" in invoke("list").stderr


def test_a_version_shows_its_run_data_gates_and_files_also_after_prune(models: Path) -> None:
    shown = invoke("show", "digits@canary").stdout
    for text in ("1 of digits, alias canary", "by ada", RUN, "train 10", "f" * 64, "accuracy >= 0.9"):
        assert text in shown
    assert "0.9400 – 0.9600" in shown and "saved_model" in shown and "CPU:0" in shown
    document = json.loads(invoke("show", "digits@1", "-o", "json").stdout)
    run = models.parent / "runs" / RUN
    assert (document["run_folder"], document["report"]) == (str(run), str(run / "report.html")), "the storage was moved"
    shutil.rmtree(models.parent / "runs")
    pruned = invoke("show", "digits@canary").stdout
    assert re.search(r"report +deleted", pruned) and RUN in pruned and "accuracy >= 0.9" in pruned
    back = CliRunner().invoke(app, ["runs", "show", RUN])
    assert "the run was deleted, and digits@1 is of it" in str(back.exception) and f"{models}/1`" in str(back.exception)


@pytest.mark.parametrize(
    "field", [{"pushed": "x"}, {"recipe": {"evaluate": "x"}}, {"recipe": {"evaluate": {"gates": [None]}}}]
)
def test_a_version_with_a_damaged_record_is_listed_and_shown_with_its_fault(
    models: Path, field: dict[str, object]
) -> None:
    manifest = models / "2" / "manifest.json"
    document = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(document | {"origin": document["origin"] | field}))
    assert "another version of Trainyard wrote its record" in invoke("list").stderr
    assert "damaged" in invoke("show", "digits").stdout


def test_a_diff_shows_the_keys_metrics_data_and_files_that_differ(models: Path) -> None:
    text = invoke("diff", "digits@canary", str(models)).stdout
    assert "train.epochs" in text and "model.name" not in text and "0.9900 (+0.0400) *" in text
    document = json.loads(invoke("diff", "digits@1", "digits@2", "-o", "json").stdout)
    assert document["settings"] == {"train.epochs": ["1", "2"]}
    assert document["data"]["train examples"] == ["10", "20"] and document["exports"]["saved_model, KiB"] == ["1", "2"]
    assert ty.versions("digits").diff("1", "canary").settings == []


def test_an_alias_names_a_version_moves_and_is_removed_and_never_changes_what_serves(models: Path) -> None:
    before = (models / "champion.json").read_bytes()
    assert "would name digits@2" in invoke("alias", "canary", "digits@2", "--dry-run").stderr
    assert find_one("digits@canary", "local").number == 1
    assert "alias canary names digits@2" in invoke("alias", "canary", "digits@2").stderr
    assert invoke("alias", "production", "digits@canary").exit_code == 0
    assert ty.versions("digits")["production"].aliases == ("canary", "production")
    assert invoke("alias", "canary", "digits", "--remove").exit_code == 0
    assert (models / "champion.json").read_bytes() == before
    for arguments, sentence in (
        (("production", "digits"), "names no version. Write digits@VERSION"),
        (("production", "digits@2", "--remove"), "names a version. Write the recipe"),
        (("prodction", "digits", "--remove"), "Did you mean 'production'"),
        (("7", "digits", "--remove"), "no version '7'"),
        (("7", "digits@2"), "alias '7': not a name"),
        (("production", "digits@9"), "The nearest is 2"),
    ):
        with pytest.raises(ty.TrainyardError, match=sentence.replace("?", ".")):
            invoke("alias", *arguments)


def test_a_rollback_says_what_serves_and_which_alias_stays(models: Path) -> None:
    root = models.parents[1]
    index.write(str(root))
    planned = invoke("rollback", "digits", "--dry-run")
    assert "version 3 would serve" in planned.stderr and sorted(models.glob("3*")) == []
    done = invoke("rollback", "digits", "-o", "json")
    sentences = f"✓ version 3 serves in {models}, a copy of version 1 instead of version 2\n· canary: still version 1\n"
    assert done.stderr == sentences
    assert json.loads(done.stdout)["restored"] == 1
    page = re.sub(r"<(?!a )[^>]*>|\s+", " ", (root / "index.html").read_text(encoding="utf-8"))
    assert re.search(r"digits@3 +✓ champion +accuracy 0\.9500 ", page) and page.count("champion ") == 1
    assert re.search(rf'digits@1 .{{1,90}} canary +<a href="digits/runs/{RUN}/report.html">', page) is None  # no report
    best = champion(str(models))
    assert best is not None and (best.version, best.metrics["accuracy"]) == (3, 0.95)
    assert "a copy of version 1" in invoke("show", "digits").stdout
    assert "serves in" in (again := invoke("rollback", str(models / "3")).stderr) and again.endswith("already\n")
    assert ty.versions("digits").rollback().restored == 2


def test_an_export_is_a_verified_copy_in_a_new_folder_or_nothing(models: Path) -> None:
    done = invoke("export", "digits@canary", "out/copy")
    assert done.exit_code == 0 and re.fullmatch(r"✓ digits@1 is in out/copy: 7 files, \d KiB\n", done.stderr)
    copied, source = storage.committed("out/copy"), storage.committed(str(models / "1"))
    assert copied == source and copied is not None and source is not None and copied.origin == source.origin
    assert storage.local("out/copy") == Path("out/copy") and open_model("out/copy").folder == "out/copy"
    shown = invoke("show", "out/copy").stdout
    assert "1 of digits" in shown and "serves" not in shown and "1 of digits" in invoke("show", "out/copy/").stdout
    assert find_one("out/copy", "local").diff(find_one("digits@1", "local")).settings == []
    Path("out/empty").mkdir()
    assert invoke("export", "digits", "out/empty").exit_code == 0
    assert sorted(path.name for path in Path("out").iterdir()) == ["copy", "empty"]
    Path("file").touch()
    (models / "2" / "saved_model.pb").write_text("3")
    for model, folder, sentence in (
        ("digits@1", "out/copy", "out/copy: already exists. Name a new or an empty folder.$"),
        ("digits@1", "file", "file: already exists"),
        ("digits@1", ".", "is the current folder or a disk. Name a new folder in it.$"),
        ("digits@1", "gs://bucket/out", "gs://bucket/out: it is in a bucket. Name a new or an empty local folder.$"),
        ("digits@1", "", "names no place"),
        ("digits@2", "late", "2/saved_model.pb: its content differs from its manifest's checksum"),
    ):
        with pytest.raises(ty.TrainyardError, match=sentence):
            invoke("export", model, folder)
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(ty.TrainyardError, match=f"{models}/1/.*: its content differs"),
    ):
        patch.setattr(shutil, "copyfile", lambda _, target: target.write_text("torn"))
        ty.versions("digits")["1"].export("late")
    assert not Path("late").exists() and not Path(".staging").exists()


def test_a_model_is_named_by_its_recipe_version_alias_folder_or_run(models: Path) -> None:
    shutil.copytree(models.parent, "runs/churn")  # its recipe's file is elsewhere
    assert find_one("churn@canary", "local").number == 1
    names = ["digits", "digits@2", str(models), f"{models}@2", str(models / "2"), f"{models}/"]
    assert [find_one(name, "local").number for name in names] == [2] * len(names)
    run = str(models.parent / "runs" / RUN)
    assert [find_one(name, "local").number for name in ("digits@canary", RUN, run)] == [1] * 3
    assert find("digits", "local")[1] == ""
    (models.parent / "runs" / RUN / "run.json").write_text("{}")
    with pytest.raises(ty.TrainyardError, match=f"{RUN}: pushed no model"):
        find_one(RUN, "local")
    with pytest.raises(ty.TrainyardError, match="no such run"):
        find_one("20260102-000000-bbbb", "local")
    for name, sentence in (
        ("chrn", r"no model 'chrn'. Pushed to .*: churn, digits. Did you mean 'churn'.$"),
        ("chrn@2", r"no model 'chrn'"),
        (RUN[:13], rf"no model '{RUN[:13]}'. Pushed to .*: churn, digits. Did you mean '{RUN}'.$"),
        ("unlike", r"no recipe 'unlike'. Known: .*, or the path of a YAML file. Pushed to .*: churn, digits.$"),
        (f"{models}/9", r"no version '9'. Versions: 1, 2; aliases: canary. The nearest is 2.$"),
        (
            "runs/digits/modls",
            r"runs/digits/modls: no such folder. Did you mean 'models'. Name a recipe, a run, or a f",
        ),
        ("missing/x", r"missing/x: no such folder. Name a recipe"),
    ):
        with pytest.raises(ty.TrainyardError, match=sentence):
            find_one(name, "local")


def test_a_folder_of_data_is_not_taken_for_the_model_with_its_name(models: Path) -> None:
    for folder in ("digits/0", "photos/cat", "tabular"):  # a class may be a number
        Path(folder).mkdir(parents=True)
    assert [find_one(name, "local").number for name in ("digits", "digits@canary")] == [2, 1]
    Path("photos.yaml").touch()
    for name, sentence in (
        ("./photos", "^./photos: no versions of a model. Name a recipe, or a folder that `push` wrote to.$"),
        ("tabular", "^tabular: nothing was pushed to .* yet. Run `trainyard run tabular`"),
        ("photos", r"^photos: no versions of a model in this folder, and no recipe 'photos'\. Known: .*'photos.yaml'"),
        ("photos@1", "^photos: no versions of a model in this folder"),
    ):
        with pytest.raises(ty.TrainyardError, match=sentence):
            find_one(name, "local")
    shutil.copytree(models, "churn")
    assert find_one("churn", "local").folder == "churn/2"
    shutil.copytree(models / "1", "copied")
    with pytest.raises(ty.TrainyardError, match=r"^copied: no versions of a model"):
        find("copied", "local")


def test_the_commands_of_the_page_run_and_say_what_it_shows(models: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/versions.md").read_text(encoding="utf-8")
    for number, source in (("3", "1"), ("4", "1"), ("5", "2")):
        shutil.copytree(models / source, models / number)
    best = champion(str(models))
    assert best is not None
    set_champion(str(models), best.model_copy(update={"version": 5}))
    shown = re.search(r"\$ trainyard models (.*)\n(.*)\n", page)
    assert shown is not None
    assert invoke(*shown[1].split()).stderr.splitlines()[0] == shown[2].replace("/home/ada", str(Path.cwd()))
    lines = re.findall(r"^trainyard models (.*?)(?: +#.*)?$", page, re.MULTILINE)
    assert lines.pop().startswith("reject digits@candidate ") and lines[-1] == "rollback digits"
    for line in lines:
        assert invoke(*line.split()).exit_code == 0
    assert find_one("digits", "local").number == 6 and find_one("digits@canary", "local").number == 3
