"""A program that reads data of its own and leaves a folder: judged by what it says, and pushed as it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import trainyard as ty
from trainyard.contract.version import champion
from trainyard.errors import ConfigurationError, DataError
from trainyard.spec import archive, code
from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard.spec.archive import Archive
from trainyard.steps.predict.pushed_model import find_model
from trainyard_control.api.progress import Screen
from trainyard_control.local.local_run import LocalRun

pytestmark = pytest.mark.usefixtures("warm_processes")

PROGRAM = """
import json, os, pathlib, sys
assert "TRAINYARD_EXAMPLES" not in os.environ
wer, layers, left = sys.argv[1:]
print(json.dumps({"event": "progress", "done": 3, "total": 3, "loss": 0.5}), flush=True)
output = pathlib.Path(os.environ["TRAINYARD_OUTPUT"])
(output / "model" / "words").mkdir(parents=True)
(output / "model" / "layers.pt").write_text(layers)
(output / "model" / "words" / "list.txt").write_text("<yes>\\n")
(output / "metrics.json").write_text(json.dumps({"word_error_rate": float(wer), "<b>ok": 1}))
exec(left)
"""
RECIPE = """
name: speech
train: {{command: [{python}, listen.py, '{wer}', '{layers}', '{left}'], result: folder}}
evaluate:
  gates:
    - {{metric: word_error_rate, max: 0.2}}
    - {{metric: word_error_rate, max_difference: 0.01}}
"""


def run(folder: Path, wer: float, layers: str = "2", left: str = "pass") -> ty.Run:
    (folder / "listen.py").write_text(PROGRAM)
    text = RECIPE.format(python=sys.executable, wer=wer, layers=layers, left=left)
    (folder / "speech.yaml").write_text(text)
    (folder / "here.yaml").write_text(f"target: local\nstorage: {folder}/storage\n")
    return ty.run(str(folder / "speech.yaml"), environment=str(folder / "here.yaml"))


def test_a_folder_is_judged_by_what_its_program_says_and_pushed_as_it_is(tmp_path: Path) -> None:
    first = run(tmp_path, 0.11)
    models = tmp_path / "storage" / "speech" / "models"
    version = models / "1"
    assert first.verdict == "blessed" and first.metrics == {"word_error_rate": 0.11, "<b>ok": 1}
    assert {str(path.relative_to(version)) for path in version.rglob("*") if path.is_file()} == {
        "README.md",
        "layers.pt",
        "words/list.txt",
        "manifest.json",
        "assets.extra/metrics.json",
    }
    assert json.loads((version / "assets.extra" / "metrics.json").read_text()) == first.metrics
    page = Path(first.report).read_text()
    assert "Evaluation by the program itself" in page and "<b>ok" not in page

    worse = run(tmp_path, 0.13)
    assert worse.verdict == "refused" and [path.name for path in models.iterdir() if path.name.isdigit()] == ["1"]
    passed = {threshold["name"]: threshold["passed"] for threshold in worse.record["gate"]["thresholds"]}
    assert passed == {"word_error_rate <= 0.2": True, "word_error_rate - champion <= 0.01": False}

    assert run(tmp_path, 0.115, layers="3").verdict == "blessed"
    best = champion(str(models))
    assert best is not None and best.version == 2 and (models / "2" / "layers.pt").read_text() == "3"
    with pytest.raises(DataError, match=r"models/2: a custom program trained it, and its files are for"):
        find_model(str(models))


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        ('(output / "metrics.json").write_text("[1]")', "the metrics.json of the program is no JSON object of finite"),
        ('(output / "metrics.json").write_text("""{"a": "b"}""")', r"finite numbers by name \(a Input should be a"),
        ('(output / "metrics.json").write_text("""{"a": NaN}""")', "finite numbers by name"),
        ('(output / "model" / "manifest.json").touch()', "model/manifest.json is a name of Trainyard's own"),
        ('(output / "model" / "x").symlink_to("/etc/passwd")', "model/x is a link. Leave the file itself there"),
        ('(output / "model").rename(output / "m")', r"left no model/ with files in it .* but m, metrics\.json"),
    ],
)
def test_a_folder_that_cannot_be_a_version_is_refused(tmp_path: Path, left: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        run(tmp_path, 0.1, left=left)
    assert not (tmp_path / "storage" / "speech" / "models").exists()


def test_larger_code_runs_in_each_step_after_the_project_was_moved_away_and_its_version_holds_it(
    tmp_path: Path,
) -> None:
    """200 KiB are more than the text of a recipe holds."""
    project = tmp_path / "project"
    (project / "words").mkdir(parents=True)
    (project / "words" / "list.txt").write_text("word\n" * 40_960)
    (project / "listen.py").write_text(PROGRAM)
    left = '(output / "model" / "layers.pt").write_text(str(pathlib.Path("words/list.txt").stat().st_size))'
    text = RECIPE.format(python=sys.executable, wer=0.1, layers="2", left=left)
    (project / "speech.yaml").write_text(f"{text}files: [words]\n")
    recipe = recipes.load(str(project / "speech.yaml"))
    project.rename(tmp_path / "moved")
    place = environments.load("local").model_copy(update={"storage": str(tmp_path / "storage")})
    ran = LocalRun(recipe, place, "1", None, Screen())
    ran.execute()

    version = tmp_path / "storage" / "speech" / "models" / "1"
    assert (version / "layers.pt").read_text() == "204800"
    stored = ran.recipe.files
    assert isinstance(stored, Archive) and stored.archive.startswith(f"{tmp_path}/storage/uploads/")
    manifest = json.loads((version / "manifest.json").read_text())
    assert manifest["origin"]["recipe"]["files"] == {"archive": stored.archive, "sha256": stored.sha256}
    held = Archive(archive=str(version / "assets.extra" / "code.tar"), sha256=stored.sha256)
    assert archive.unpack(held) == code.files(recipe)
    for step in ("train", "evaluate", "export"):  # so that `prune` keeps the upload
        assert json.loads(Path(ran.folders[step], "manifest.json").read_text())["origin"]["uploads"] == [stored.archive]
