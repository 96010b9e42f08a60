"""The whole command, and the pipeline's own components, with a bucket as the storage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from object_stores import Store
from tests.unit.test_packages import wheel as write_wheel

import trainyard as ty
from trainyard.storage import storage

pytestmark = pytest.mark.usefixtures("warm_processes")

TRAINYARD = [str(Path(sys.executable).parent / "trainyard")]
SHORT = ["--set", "train.epochs=3", "--set", "evaluate.gates=[{metric: accuracy, min: 0.5}]"]
# Each of these is minutes of work, so one of the stores does it; test_buckets.py holds both to the same behaviour.
GS, S3 = (pytest.mark.parametrize("served", [kind], indirect=True) for kind in ("gs", "s3"))
FEW = ["--set", "export.formats=[saved_model, litert_float32]", "--set", "evaluate.bootstrap=20"]


@pytest.fixture
def here(store: Store, tmp_path: Path, request: pytest.FixtureRequest) -> list[str]:
    """The options that store below a folder of the bucket."""
    file = tmp_path / "bucket.yaml"
    root = f"{store.uri}/{abs(hash(request.node.name))}"
    file.write_text(yaml.safe_dump({"target": "local", "storage": root}))
    return ["-e", str(file), "-o", "json", *SHORT, *FEW]


def run(options: list[str], code: int = 0) -> dict:
    ended = subprocess.run([*TRAINYARD, "run", "digits", *options], capture_output=True, text=True)
    assert ended.returncode == code, ended.stderr
    return json.loads(ended.stdout)


@S3
def test_digits_are_trained_and_pushed_in_a_bucket_and_the_next_run_meets_its_champion(
    store: Store, here: list[str]
) -> None:
    first = run(here)
    assert first["gate"]["verdict"] == "blessed" and first["metrics"]["accuracy"] > 0.5
    version = first["pushed"]["path"]
    assert version.startswith(f"{store.uri}/") and version.endswith("/digits/models/1")
    assert "saved_model.pb" in storage.children(version)
    assert "<html" in (storage.read_text(first["report"]) or "")
    folder = first["report"].rpartition("/")[0]
    assert set(storage.children(folder)) >= {"run.json", "report.html", "recipe.yaml", "train.log", "push.log"}
    again = run(here)
    assert (again["pushed"], again["metrics"]) == (first["pushed"], first["metrics"])
    assert again["train"] == first["train"]  # its speed, too: it did not train again
    judged = [path for path in storage.children(f"{folder.partition('/runs/')[0]}/evaluate") if "." not in path]
    assert len(judged) == 2  # without a champion, and against it
    other = run([*here, "--set", "export.formats=[saved_model]"])
    assert other["pushed"]["version"] == 2 and other["pushed"]["path"].endswith("/models/2")
    versions = ty.versions(version.rpartition("/")[0])
    restored = versions.rollback()
    index = storage.read_text(f"{version.partition('/digits/')[0]}/index.html") or ""
    assert "digits@3" in index and f'"digits/runs/{folder.rpartition("/")[2]}/report.html"' in index
    assert (restored.version, restored.restored, versions["3"].serves) == (3, 1, True)
    copies = [storage.require(item.folder) for item in (versions["1"], versions["3"])]
    assert copies[0] == copies[1] and versions["3"].record.fingerprint == first["data"]["fingerprint"]
    assert (
        versions.alias("canary", "2").metric == versions["2"].metric != "" and versions["3"].report == first["report"]
    )


COUNTED = """import pathlib


def metrics(labels, outputs):
    import shift

    words = pathlib.Path(__file__).parent / "words.txt"
    return {"words": float(len(words.read_text().split())), "width": shift.WIDTH}
"""


@GS
@pytest.mark.usefixtures("without_shell")
def test_the_components_of_the_pipeline_find_each_others_outputs_in_a_bucket(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kfp import local

    from trainyard.spec import environment as environments
    from trainyard.spec import recipe as recipes
    from trainyard_control.api import uploads
    from trainyard_control.catalog.train import train_pipeline

    own = write_wheel(tmp_path, "shift", {"shift.py": "WIDTH = 3.0\n"})
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "index").as_uri())
    (tmp_path / "own.py").write_text(COUNTED)
    (tmp_path / "words.txt").write_text("word\n" * 40_000)  # more than the text of a recipe holds
    (tmp_path / "digits.yaml").write_text(
        f"{(recipes.BUNDLED / 'digits.yaml').read_text()}module: own.py\nfiles: [words.txt]\npackages: [./{own.name}]\n"
    )
    changes = ["train.epochs=2", "evaluate.gates=[{metric: accuracy, min: 0.1}]", "evaluate.bootstrap=20"]
    recipe = recipes.load(str(tmp_path / "digits.yaml"), [*changes, "export.formats=[saved_model]"])
    root = f"{store.uri}/pipeline"
    kind = environments.load("kind").model_copy(update={"storage": root})
    remote, sent = uploads.with_uploads(recipe, kind)
    uploads.send(sent, kind)
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "tasks"))
    train_pipeline(recipe=yaml.safe_dump(remote.model_dump(mode="json")), storage=root)
    (run,) = storage.children(f"{root}/digits/runs")
    record = json.loads(storage.read_text(f"{root}/digits/runs/{run}/run.json") or "")
    assert record["failure"] is None and record["gate"]["verdict"] == "blessed"
    assert record["pushed"]["path"] == f"{root}/digits/models/1"
    assert "saved_model.pb" in storage.children(f"{root}/digits/models/1")
    assert f'"digits/runs/{run}/report.html"' in (storage.read_text(f"{root}/index.html") or "")
    assert (record["metrics"]["words"], record["metrics"]["width"]) == (40_000, 3)
    held = storage.read(f"{root}/digits/models/1", "assets.extra/code.tar")
    assert held is not None and held == storage.read(sent["files"].folder, "code.tar")
