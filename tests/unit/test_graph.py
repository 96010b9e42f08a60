"""The table of steps against the folders, the recipe and the pipelines that it describes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

import trainyard
from trainyard.contract.pipeline import DOCUMENTS
from trainyard.graph import ARGUMENTS, CHECK, OUTPUTS, PREDICT, STEPS, model_sections
from trainyard.spec.recipe import Recipe

FOLDERS = Path(trainyard.__path__[0], "steps")
GOLDENS = Path(__file__).parents[1] / "golden"


def test_every_folder_of_a_step_has_a_row_and_every_row_a_folder_with_its_code_and_its_shim() -> None:
    folders = {path.parent.name for path in FOLDERS.glob("*/component.py")}
    assert folders == set(STEPS) == {path.parent.name for path in FOLDERS.glob("*/run.py")}


def test_a_step_reads_earlier_ones_whose_outputs_have_a_name() -> None:
    for number, (name, step) in enumerate(STEPS.items()):
        for read in step.reads:
            assert list(STEPS).index(read) < number and STEPS[read].argument, (name, read)
    assert len(ARGUMENTS) == sum(bool(step.argument) for step in STEPS.values())


def test_an_output_depends_on_sections_that_recipes_have_and_every_section_is_in_one() -> None:
    named = {section for step in STEPS.values() for section in step.sections}
    # Names, and parts of the code's digest.
    unkeyed = {"name", "description", "module", "files", "packages", "requirements"}
    assert named == set(Recipe.model_fields) - unkeyed
    assert [name for name in STEPS if name not in OUTPUTS] == [CHECK, PREDICT]


@pytest.mark.parametrize("name", ["digits-kind.yaml", "retrain-kind.yaml"])
def test_the_pipelines_are_made_of_the_steps_of_the_table(name: str) -> None:
    executors = next(yaml.safe_load_all((GOLDENS / name).read_text()))["deploymentSpec"]["executors"]
    steps = {executor.removeprefix("exec-").removesuffix("-2") for executor in executors}
    assert steps == set(STEPS) - {PREDICT} - ({CHECK} if name.startswith("digits") else set())
    assert {name for name, step in STEPS.items() if step.optional} == {CHECK, "export", "push"}


@pytest.mark.parametrize("step", OUTPUTS)
def test_a_steps_program_takes_what_its_row_names(step: str) -> None:
    shim = (FOLDERS / step / "component.py").read_text()
    read = [STEPS[name].argument for name in STEPS[step].reads]
    assert all(f"{argument}: str" in shim for argument in read)
    module = ast.parse((FOLDERS / step / "run.py").read_text())
    [run] = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "run"]
    parameters = {parameter.arg for parameter in run.args.args}
    assert parameters - {"dry_run"} == {"recipe", "output", *read, *STEPS[step].inputs}


def test_a_step_that_judges_has_a_document_with_its_gate() -> None:
    assert DOCUMENTS.keys() <= set(OUTPUTS)
    assert {name for name, step in STEPS.items() if step.judges} == {
        name for name, document in DOCUMENTS.items() if "gate" in document.model_fields
    }
    assert [STEPS[name].continues_on for name in OUTPUTS if STEPS[name].judges] == ["blessed", "blessed"]


@pytest.mark.parametrize("step", sorted(STEPS))
def test_kubeflow_reuses_only_tasks_that_do_not_know_their_run(step: str) -> None:
    shim = (FOLDERS / step / "component.py").read_text()
    assert STEPS[step].cached == ("run_id: str" not in shim) or step == PREDICT


INTERPRETERS = [
    "pipelines/trainyard_control/catalog/train.py",
    "pipelines/trainyard_control/catalog/retrain.py",
    "pipelines/trainyard_control/catalog/steps.py",
    "pipelines/trainyard_control/local/retention.py",
    "components/trainyard/contract/pipeline.py",
    "components/trainyard/contract/provenance.py",
    "components/trainyard/report/pipeline_run.py",
    "components/trainyard/steps/check/run.py",
]


@pytest.mark.parametrize("file", INTERPRETERS)
def test_what_interprets_the_table_names_no_step_so_that_a_new_one_is_a_row(file: str) -> None:
    tree = ast.parse((FOLDERS.parents[2] / file).read_text())
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert texts & set(OUTPUTS) <= ({"train"} if file.endswith("provenance.py") else set())  # it alone has an engine


def test_a_local_run_names_the_steps_that_searches_stop_at_and_no_other() -> None:
    text = (FOLDERS.parents[2] / "pipelines/trainyard_control/local/local_run.py").read_text()
    assert [name for name in OUTPUTS if f'"{name}"' in text] == ["preprocess", "train", "evaluate"]


def test_a_sweep_tries_what_a_model_depends_on() -> None:
    assert model_sections() == {"seed", "task", "data", "model", "train"}
