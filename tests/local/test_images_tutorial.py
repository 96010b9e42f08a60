"""The tutorial on own images: its script, its recipes and its commands, on fewer images and for fewer epochs."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("warm_processes")

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
PAGE = (TUTORIALS / "images.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', PAGE, re.DOTALL))
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


def run(folder: Path, start: str, *more: str) -> str:
    """Run the one command of the page that begins with `start`, with fewer images, and return its output."""
    (command,) = [line for line in COMMANDS if line.startswith(start)]
    program, *arguments = command.replace(" 250 ", " 48 ").split()
    done = subprocess.run(
        [Path(sys.executable).parent / program, *arguments, *more], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_the_weights_of_one_run_begin_another_whose_model_answers_for_a_folder(tmp_path: Path) -> None:
    shutil.copy(TUTORIALS / "draw.py", tmp_path)
    for name, text in BLOCKS.items():
        if name != "garden.yaml":  # which is drafted first
            (tmp_path / name).write_text(text, encoding="utf-8")
    run(tmp_path, "python draw.py garden")
    run(tmp_path, "python draw.py meadow")
    run(tmp_path, "trainyard recipe new garden.yaml")
    assert "image_size: [96, 96]" in re.sub(r"\n +- ", " ", (tmp_path / "garden.yaml").read_text())
    (tmp_path / "garden.yaml").write_text(BLOCKS["garden.yaml"], encoding="utf-8")
    run(tmp_path, "trainyard recipe validate")
    # The page's network has 200 layers, which each process traces anew.
    short = ["model.name=cnn_small", "model.width=0.25", "data.image_size=[32, 32]", "train.epochs=2"]
    short = [word for change in (*short, "evaluate.bootstrap=20") for word in ("--set", change)] + ["-o", "json"]
    meadow = json.loads(run(tmp_path, "trainyard run meadow.yaml", *short))
    assert Path(meadow["pushed"]["path"]) == tmp_path / "runs/meadow/models/1"
    short += ["--set", "train.fine_tune.head_epochs=1", "--set", "evaluate.gates=[]"]
    short += ["--set", "export.max_accuracy_drop=1", "--set", "export.formats=[saved_model]"]
    tuned = json.loads(run(tmp_path, "trainyard run tuned.yaml", *short))
    assert tuned["pushed"]["version"] == 1
    answers = run(tmp_path, "trainyard predict tuned.yaml")
    assert "48 images" in answers
    assert len((tmp_path / "lilies.csv").read_text().splitlines()) == 1 + 48
