"""The notebook of the tutorial, run as a person runs it: one kernel, from the first cell to the last."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from PIL import Image

pytestmark = pytest.mark.usefixtures("warm_processes")

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOK = DOCS / "tutorials" / "notebook.ipynb"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def cells(folder: Path) -> dict[str, Any]:
    """Return what each cell gave, by its id."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    kernel = AsyncKernelManager(transport="ipc", connection_file=str(folder / "kernel.json"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        NotebookClient(notebook, kernel, timeout=900, resources={"metadata": {"path": str(folder)}}).execute()
    return {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def shown(outputs: Any, kind: str = "text/plain") -> str:
    return "".join(output["data"][kind] for output in outputs if kind in output.get("data", {}))


def test_every_line_of_progress_and_no_warning_stands_below_its_cell(cells: dict[str, Any]) -> None:
    lines = shown(cells["run"])
    assert [step for step in ("preprocess", "train", "evaluate", "export", "push") if f" {step} " not in lines] == []
    assert "of digits: pushed, accuracy 0.9" in lines
    assert [output for outputs in cells.values() for output in outputs if output.output_type == "stream"] == []


def test_the_report_and_the_comparison_are_drawn_as_whole_pages(cells: dict[str, Any]) -> None:
    for cell, text in (("report", "confusion"), ("comparison", "train.epochs")):
        frame = shown(cells[cell], "text/html")
        page = html.unescape(frame.split('srcdoc="')[1].split('"')[0])
        assert frame.startswith("<iframe ") and frame.count("<") == 2, "all of the page is in the frame's attribute"
        assert page.startswith("<!doctype html>") and page.rstrip().endswith("</html>") and text in page.lower()


def test_the_model_reads_the_digits_and_a_hasty_one_is_refused_with_the_reason(cells: dict[str, Any]) -> None:
    rows = [line.split() for line in shown(cells["answers"], "text/html").splitlines()]
    right = sum(row[:1] == [str(digit)] and row[1] == str(digit % 10) for digit, row in enumerate(rows[1:13]))
    assert right >= 10
    assert "('refused', 'accuracy >= 0.8, was 0." in shown(cells["refused"])
    assert "blessed" in shown(cells["metrics"]) and "this machine" in shown(cells["forecast"], "text/html")


def test_the_notebook_is_kept_without_what_it_gave() -> None:
    code = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert code and all(cell.outputs == [] and cell.execution_count is None for cell in code)


def test_the_snippets_of_the_how_to_run_one_after_the_other_as_a_script_without_a_guard(
    cells: dict[str, Any], folder: Path
) -> None:
    """But for those that a test of their own would cost minutes for: their arguments are held by tests/unit."""
    page = (DOCS / "how-to" / "python.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    short = [code for code in snippets if not re.match(r"ty\.(bench|submit)", code)]
    assert len(short) == len(snippets) - 2
    last = "import json\nprint(json.dumps([run.metrics, run.verdict, len(answers), model.folder, len(newest)]))"
    (folder / "script.py").write_text("\n".join([*short, last]))
    for place in ("photos", "labelled/0", "labelled/1"):
        (folder / place).mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / place / "a.png")
    done = subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    error, result = done.stdout.splitlines()
    metrics, verdict, predicted, champion, count = json.loads(result)
    assert metrics["accuracy"] > 0.8 and (verdict, predicted, count) == ("refused", 1, 3)
    assert champion == str(folder / "runs" / "digits" / "models" / "1")
    assert error.startswith("--set train.epoch=3: train.epoch: unknown key. Did you mean 'epochs'?")
    assert done.stderr.count("· preprocess") == 1 and "train       reused" in done.stderr
