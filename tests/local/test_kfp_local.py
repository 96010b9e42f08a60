"""The whole pipeline through kfp.local, each task a process of its own in this very environment."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import local

from trainyard.contract import version
from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.artifacts.export import Exports
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.artifacts.push import Pushed
from trainyard.contract.artifacts.train import Training
from trainyard.contract.keys import code_digest
from trainyard.contract.statistics.drift import FeatureStatistics, Statistics
from trainyard.contract.version import EXTRA, Champion, set_champion
from trainyard.spec import documents
from trainyard.spec import recipe as recipes
from trainyard.spec.recipe import Recipe
from trainyard_control.catalog.retrain import retrain_on_drift_pipeline, retrain_pipeline
from trainyard_control.catalog.train import train_pipeline

# The first run is prepared for all of the module, and so uses KFP's shell.
pytestmark = pytest.mark.usefixtures("warm_processes", "first", "without_shell")

QUICK = ["train.epochs=2", "evaluate.bootstrap=20", "export.formats=[saved_model, litert_float32]"]
QUICK += ["threshold={maximize: f1, class: '3'}"]


@dataclass
class Ended:
    """A run of the pipeline that is over: its KFP folder, its own folder in storage, and its record."""

    tasks: Path
    folder: Path
    record: dict[str, Any]

    def executor_output(self, task: str) -> dict[str, Any]:
        (file,) = self.tasks.glob(f"*/{task}/executor_output.json")
        return json.loads(file.read_text())

    def parameter(self, task: str, name: str) -> str:
        values = self.executor_output(task).get("parameterValues", {})
        return str(values[name]) if name in values else next(self.tasks.glob(f"*/{task}/{name}")).read_text()

    def metadata(self, task: str, artifact: str) -> dict[str, Any]:
        """Return what KFP's page draws of an artifact, whose file says the same to those who read files."""
        entry = self.executor_output(task)["artifacts"][artifact]["artifacts"][0]
        assert json.loads(Path(entry["uri"]).read_text()) == entry["metadata"]
        return entry["metadata"]


METRICS = "import counting\n\n\ndef metrics(labels, outputs):\n    return {'tested': counting.count(labels)}\n"
CODE = {"own.py": METRICS, "counting.py": "def count(labels):\n    return float(len(labels))\n"}


def run(folder: Path, name: str, gate: float, code: str | None = None) -> Ended:
    """Run the digits pipeline on the storage `folder`/storage; a failed run is told by its record."""
    own = [f"files={json.dumps(CODE)}", "module=own.py", f"evaluate.gates=[{{metric: accuracy, min: {gate}}}]"]
    return execute(folder, name, recipes.load("digits", [*QUICK, *own]), code)


def execute(folder: Path, name: str, recipe: Recipe, code: str | None = None) -> Ended:
    text = yaml.safe_dump(recipe.model_dump(mode="json"))
    tasks = folder / name
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(tasks), raise_on_error=False)
    before = set((folder / "storage").glob(f"{recipe.name}/runs/*"))
    train_pipeline(recipe=text, storage=str(folder / "storage"), code=code or code_digest())
    (own,) = set((folder / "storage").glob(f"{recipe.name}/runs/*")) - before
    return Ended(tasks, own, json.loads((own / "run.json").read_text()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipeline")


@pytest.fixture(scope="module")
def first(folder: Path) -> Ended:
    return run(folder, "first", gate=0.1)


def test_raw_digits_become_a_pushed_model(first: Ended) -> None:
    examples = Examples.read(first.parameter("preprocess", "examples"))
    assert sum(split.examples for split in examples.splits.values()) + examples.quarantined == 1797
    assert first.parameter("preprocess", "fingerprint") == examples.fingerprint
    assert Training.read(first.parameter("train", "model")).epochs == 2
    assert Evaluation.read(first.parameter("evaluate", "evaluation")).gate.verdict == "blessed"
    assert first.parameter("evaluate", "Output") == "blessed"
    exports = Exports.read(first.parameter("export", "exported"))
    assert [export.format for export in exports.exports] == ["saved_model", "litert_float32"]
    assert json.loads(first.parameter("evaluate", "thresholds")) == exports.thresholds
    assert exports.thresholds.keys() == {"3"}
    pushed = Pushed.read(first.parameter("push", "pushed")).path
    tested = Evaluation.read(first.parameter("evaluate", "evaluation")).metrics["tested"]
    assert tested == examples.splits["test"].examples, "the recipe's own metric, computed in a step's process"
    assert version.record(pushed).recipe["files"] == CODE, "a version holds the code that made it"


def test_a_program_without_data_hands_its_folder_on_through_the_same_pipeline(tmp_path: Path) -> None:
    program = """
import os, pathlib
output = pathlib.Path(os.environ["TRAINYARD_OUTPUT"])
(output / "model").mkdir()
(output / "model" / "weights.bin").write_bytes(b"1")
(output / "metrics.json").write_text('{"bleu": 31.5}')
"""
    recipe = Recipe.model_validate(
        {
            "name": "own",
            "train": {"command": ["python", "train.py"], "result": "folder"},
            "files": {"train.py": program},
            "evaluate": {"gates": [{"metric": "bleu", "min": 30}]},
        }
    )
    ended = execute(tmp_path, "own", recipe)
    assert ended.metadata("evaluate", "metrics") == {"bleu": 31.5} and ended.record["gate"]["verdict"] == "blessed"
    assert (Path(Pushed.read(ended.parameter("push", "pushed")).path) / "weights.bin").read_bytes() == b"1"


def test_the_evidence_is_where_the_pages_of_kfp_draw_it(first: Ended) -> None:
    evaluation = Evaluation.read(first.parameter("evaluate", "evaluation"))
    assert first.metadata("evaluate", "metrics") == pytest.approx(evaluation.metrics)
    rows = first.metadata("evaluate", "confusion")["confusionMatrix"]["rows"]
    assert [row["row"] for row in rows] == evaluation.confusion
    points = first.metadata("evaluate", "roc")["confidenceMetrics"]
    assert (points[0]["falsePositiveRate"], points[-1]["recall"]) == (0, 1)
    assert first.metadata("train", "metrics")["examples_per_second"] > 0
    assert "litert_float32_p50_ms" in first.metadata("export", "metrics")


def test_the_last_step_writes_record_and_report_and_the_page_of_the_pipeline(first: Ended) -> None:
    assert first.record["failure"] is None
    assert first.record["gate"]["verdict"] == "blessed"
    assert first.record["pushed"]["version"] >= 1
    assert set(first.record["seconds"]) == {"preprocess", "train", "evaluate", "export", "push"}
    assert min(first.record["seconds"].values()) > 0
    report = (first.folder / "report.html").read_text()
    (page,) = first.tasks.glob("*/push/report")
    assert page.read_text() == report
    assert "digits" in report and "✓ Blessed" in report
    (judged,) = first.tasks.glob("*/evaluate/report")
    assert "3 steps" in judged.read_text()


def test_a_second_run_uses_the_committed_outputs_again(folder: Path, first: Ended, capfd: Any) -> None:
    second = run(folder, "second", gate=0.1)
    for task, name in (("preprocess", "examples"), ("train", "model"), ("export", "exported")):
        assert second.parameter(task, name) == first.parameter(task, name)
    output = capfd.readouterr().out
    assert all(f'"reused", "step": "{step}"' in output for step in ("preprocess", "train", "export"))


def test_a_scheduled_run_trains_new_data_and_ends_at_its_first_step_when_there_are_none(
    tmp_path: Path, folder: Path, first: Ended, capfd: Any
) -> None:
    short = ["evaluate.gates=[{metric: accuracy, min: 0.1}]", "train.epochs=1", "export.formats=[saved_model]"]
    recipe = recipes.load("digits", [*QUICK, *short])
    text = yaml.safe_dump(recipe.model_dump(mode="json"))
    storage = tmp_path / "storage"
    # The examples are there already, but no champion that has learnt from them, and no model of this recipe.
    shutil.copytree(folder / "storage" / "digits" / "preprocess", storage / "digits" / "preprocess")
    for name, steps in (
        ("first", {"check", "preprocess", "train", "push"}),
        ("second", {"check"}),
    ):
        tasks = tmp_path / name
        local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(tasks), raise_on_error=True)
        retrain_pipeline(recipe=text, storage=str(storage), code=code_digest(), when='{"new_data": true}')
        done = {folder.name for folder in tasks.glob("*/*") if folder.is_dir()}
        assert done >= steps and (name == "first" or done == steps), done
    assert "version 1 stands: no condition of the schedule holds" in capfd.readouterr().out
    records = {json.loads(file.read_text()).get("not_due"): file for file in storage.glob("digits/runs/*/run.json")}
    assert records.keys() == {None, "version 1 stands: no condition of the schedule holds"}
    report = records["version 1 stands: no condition of the schedule holds"].with_name("report.html").read_text()
    assert "Nothing to train" in report and "version 1 stands" in report


TABLE = """
name: table
data:
  format: csv
  path: {path}
  label: sold
  features: {{price: {{type: numeric}}}}
model: {{name: mlp, hidden: [4]}}
train: {{epochs: 1}}
evaluate: {{bootstrap: 20, boosted: false, gates: [{{metric: log_loss, max: 0.0}}]}}
drift: {{max_mean_shift: 0.5}}
"""


def test_a_scheduled_run_looks_at_new_data_and_trains_only_where_they_have_drifted(tmp_path: Path, capfd: Any) -> None:
    data, storage = tmp_path / "sales.csv", tmp_path / "storage"
    recipe = documents.parse(TABLE.format(path=data), Recipe, name="table")
    extra = storage / "table" / "models" / "1" / EXTRA
    extra.mkdir(parents=True)
    (extra.parent / "saved_model.pb").touch()
    price = FeatureStatistics(count=160, missing=0, mean=120, std=12, min=100, max=140)
    splits = {"train": 160, "eval": 20, "test": 20}
    halves = {name: {split: count // 2 for split, count in splits.items()} for name in ("no", "yes")}
    Statistics.model_validate({"examples": splits, "classes": halves, "features": {"price": {"train": price}}}).write(
        extra
    )
    set_champion(str(extra.parent.parent), Champion(version=1, path="1", digest="d", metrics={}))

    def scheduled(name: str, lowest: int, unsold: str = "no") -> set[str]:
        """Run on 200 prices in [lowest, lowest + 40), half of them sold; return the tasks that ran."""
        rows = "".join(f"{lowest + index / 5},{'yes' if index % 2 else unsold}\n" for index in range(200))
        data.write_text(f"price,sold\n{rows}")
        tasks = tmp_path / name
        local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(tasks), raise_on_error=False)
        text = yaml.safe_dump(recipe.model_dump(mode="json"))
        retrain_on_drift_pipeline(recipe=text, storage=str(storage), code=code_digest(), when='{"drift": true}')
        return {folder.name for folder in tasks.glob("*/*") if folder.is_dir()}

    assert scheduled("alike", lowest=103) == {"check", "preprocess", "check-2"}
    assert scheduled("drifted", lowest=150) == {"check", "preprocess", "check-2", "train", "evaluate"}
    assert "the data have drifted from those of version 1: price: mean 120 before, 1" in capfd.readouterr().out
    before = set(storage.glob("table/runs/*/run.json"))
    assert scheduled("bad", lowest=150, unsold="") == {"check"}  # a failed task leaves no folder
    (record,) = (json.loads(file.read_text()) for file in set(storage.glob("table/runs/*/run.json")) - before)
    assert (record["exit_code"], record["failed_step"]) == (10, "preprocess")
    assert "100 of 200 records are bad" in Path(record["report"]).read_text()


def test_a_refused_model_is_not_exported_and_its_run_has_record_and_report(folder: Path, first: Ended) -> None:
    refused = run(folder, "refused", gate=1.0)
    assert refused.parameter("evaluate", "Output") == "refused"
    assert not list(refused.tasks.glob("*/export")) + list(refused.tasks.glob("*/push"))
    assert refused.record["gate"]["verdict"] == "refused"
    assert (refused.record["exports"], refused.record["pushed"], refused.record["failure"]) == (None, None, None)
    assert (refused.folder / "report.html").is_file()


def test_an_image_with_other_code_is_refused_and_the_record_says_why(folder: Path) -> None:
    skewed = run(folder, "skewed", gate=0.1, code="0" * 64)
    assert skewed.record["failure"].startswith("preprocess: the pipeline was compiled by code 000000000000, this image")
    assert skewed.record["data"] is None
    assert (skewed.folder / "report.html").is_file()
