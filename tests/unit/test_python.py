"""`import trainyard as ty`: what it offers, what it loads, and that a fault is an error with one sentence."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import trainyard as ty
import trainyard_control.api as api
from trainyard.errors import ConfigurationError, DataError
from trainyard.spec import recipe as recipes
from trainyard_control.api.arguments import overrides
from trainyard_control.cli.main import app

ROOT = Path(__file__).parents[2]


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_what_is_offered_is_the_api_and_is_on_the_reference_page() -> None:
    assert ty.__all__ == api.__all__ == sorted(api.__all__)
    assert set(ty.__all__) <= set(dir(ty)) and all(getattr(ty, name) is getattr(api, name) for name in ty.__all__)
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: [\w.]+\.(\w+)$", page, re.MULTILINE)) == ty.__all__


def test_the_import_loads_nothing_and_the_functions_load_no_tensorflow() -> None:
    heavy = "[name for name in ('tensorflow', 'apache_beam', 'kfp', 'optuna', 'pyarrow') if name in sys.modules]"
    code = "import sys; before = len(sys.modules); import trainyard as ty; print(len(sys.modules) - before); ty.run"
    code += f"; print({heavy})"
    loaded, names = python(code).splitlines()
    assert int(loaded) <= 3 and names == "[]"


def test_without_the_control_plane_the_sentence_names_what_is_missing_and_submodules_are_there() -> None:
    code = (
        "import sys; sys.modules['trainyard_control'] = None\n"
        "import trainyard as ty\nfrom trainyard import errors\n"
        "try: ty.run\nexcept AttributeError as error: print(error, hasattr(ty, 'load'))"
    )
    assert python(code) == (
        "trainyard.run: the package trainyard_control is not installed here. Install trainyard as a whole. False\n"
    )
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        _ = ty.runn  # type: ignore[attr-defined]


def test_a_keyword_is_a_set_of_the_command_line() -> None:
    settings = {
        "train__epochs": np.int64(3),
        "export__formats": ("saved_model",),
        "evaluate__gates": [{"metric": "accuracy", "min": 0.5}],
        "train__early_stopping": None,
        "description": "früh: 1",
        "push__path": Path("/models"),
    }
    loaded = recipes.load("digits", overrides(["train.epochs=2", "seed=7"], settings))
    assert (loaded.train.epochs, loaded.seed, loaded.export.formats) == (3, 7, ["saved_model"])
    assert loaded.evaluate.gates[0].min == 0.5 and loaded.train.early_stopping is None
    assert (loaded.push.path, loaded.description) == ("/models", "früh: 1")


@pytest.mark.parametrize(
    ("call", "phrase"),
    [
        (
            lambda: ty.run("digits", train__epoch=3),
            "--set train.epoch=3: train.epoch: unknown key. Did you mean",
        ),
        (lambda: ty.run("digits", train__epochs="many"), "train.epochs"),
        (
            lambda: ty.run("digits", train__epochs=object()),
            "train__epochs: a recipe cannot hold a value of type object",
        ),
        (lambda: ty.run("digit"), "no recipe 'digit'. Known: digits, imagenet-"),
        (
            lambda: ty.run(from_step="trian"),
            "unknown step. Known: preprocess, train, evaluate, export, push.",
        ),
        (lambda: ty.run(environment="vertex"), "its target is vertex, whose runs cannot be followed"),
        (lambda: ty.run(environment="kind", push=False), "--no-push: is of a run on this machine"),
        (lambda: ty.plan(deadline="soon"), "not a duration"),
        (lambda: ty.plan(examples=0), "examples 0: below 1"),
        (lambda: ty.sweep("digits", {"train__batch_size": [8]}), "needs two or more different values"),
        (lambda: ty.sweep("digits", ["train.batch_size=8,16"], trials=0), "trials 0: below 1"),
        (lambda: ty.bench(environment="gke"), "A speed is measured on this machine"),
        (lambda: ty.submit("digits", environment="local"), "its target is local"),
        (lambda: ty.submit("digits", environment="kind", from_step="tain"), "Did you mean 'train'"),
        (lambda: ty.runs("kind"), "its target is kubeflow"),
        (lambda: ty.runs().compare("nothing", "none"), "nothing: no such run in "),
        (lambda: ty.runs().compare(), "name two or more runs"),
        (lambda: ty.load("digits"), "digits: nothing was pushed to "),
        (lambda: ty.load("s3://"), "s3://"),
    ],
)
def test_a_fault_is_an_error_with_the_sentence_of_the_command_line(
    call: Callable[[], Any], phrase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ty.TrainyardError) as error:
        call()
    assert isinstance(error.value, ConfigurationError | DataError) and phrase in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_prints_what_the_functions_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = CliRunner().invoke(app, ["compile", "digits", "-e", "kind", "--set", "train.epochs=3"]).stdout
    assert (
        ty.compile("digits", environment="kind", train__epochs=3) == printed != ty.compile("digits", environment="kind")
    )
    planned = CliRunner().invoke(app, ["plan", "digits", "--set", "train.epochs=3", "-o", "json"]).stdout
    forecast = ty.plan("digits", train__epochs=3)
    assert [candidate.as_dict() for candidate in forecast.candidates] == json.loads(planned)
    assert forecast.chosen is not None and forecast.chosen.pool in forecast._repr_html_()


def recorded(root: Path, name: str, **record: Any) -> None:
    folder = root / "runs" / "digits" / "runs" / name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "report.html").write_text('<p class="a">a & b</p>')


def test_a_run_tells_its_verdict_and_draws_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = "runs/digits/runs/20260102-000000-aaaa/report.html"
    row = {"name": "accuracy >= 0.9", "bound": 0.9, "value": 0.5, "interval": None, "passed": False, "note": ""}
    refused = {"verdict": "refused", "thresholds": [row]}
    recorded(tmp_path, "20260101-000000-aaaa", failure="no room", exit_code=40)
    recorded(tmp_path, "20260102-000000-aaaa", metrics={"accuracy": 0.5}, gate=refused, report=report, failure=None)
    new, old = ty.runs(recipe="digits")
    assert (new.metrics, new.verdict, new.reason) == ({"accuracy": 0.5}, "refused", "accuracy >= 0.9, was 0.5")
    assert str(new.report) == report and Path(new.report).is_file()  # type: ignore[arg-type]
    assert (
        new.report is not None
        and 'srcdoc="&lt;p class=&quot;a&quot;&gt;a &amp; b&lt;/p&gt;"' in new.report._repr_html_()
    )
    assert (old.metrics, old.verdict, old.state, old.report, old.outputs) == ({}, "", "failed", None, {})
    assert [run.name for run in ty.runs()[:1]] == [new.name] and ty.runs()[old.name] == old
    assert repr(old) == "<Run 20260101-000000-aaaa of digits: failed, no room>"
    with pytest.raises(DataError, match=r"20260102-000000-aaaa: pushed no model, it is refused\. accuracy >= 0\.9"):
        _ = new.model


def test_every_call_in_the_docs_has_arguments_that_the_function_takes() -> None:
    names = set()
    for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.Call) and re.fullmatch(r"ty\.\w+", name := ast.unparse(node.func)):
                    name = name.removeprefix("ty.")
                    arguments = {str(keyword.arg): keyword.value for keyword in node.keywords}
                    inspect.signature(getattr(ty, name)).bind(*node.args, **arguments)
                    names.add(name)
    assert names == {name for name in ty.__all__ if inspect.isfunction(getattr(ty, name))}
