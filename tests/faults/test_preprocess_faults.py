"""A preprocess that is killed, and one whose data grew: the work of an attempt before is not done again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from trainyard.beam import tasks
from trainyard.contract import keys
from trainyard.runtime import step
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage

pytestmark = pytest.mark.usefixtures("warm_processes")

FILES, ROWS = 6, 300
RECIPE = """
name: kept
data:
  format: csv
  path: {folder}
  label: sold
  shard_examples: 200
  incremental: {incremental}
  features: {{price: {{type: numeric}}, shop: {{type: category}}, town: {{type: category}}, kind: {{type: category}}}}
model: {{name: mlp}}
"""

KILLED = """
import os, signal, sys
from pathlib import Path
from trainyard.steps.preprocess import run
from trainyard.runtime import step
ending, count = sys.argv.pop(), [int(sys.argv.pop())]
def killing(move):
    def moved(path, target):
        if ".parts/" in str(target) and (Path(target).suffix or Path(target).name) == ending:
            count[0] -= 1
            if not count[0]:
                os.kill(os.getpid(), signal.SIGKILL)
        return move(path, target)
    return moved
Path.replace, Path.rename = killing(Path.replace), killing(Path.rename)
step.main(run.run)
"""
"""The step as a program that kills itself before the so many-th file of a kind, or the graph, gets its final name."""


def write_table(folder: Path, number: int) -> None:
    draw = np.random.default_rng(number)
    rows = "".join(
        f"{draw.normal():.6f},{draw.integers(9)},{draw.integers(5)},a,{'yes' if draw.random() < 0.5 else 'no'}\n"
        for _ in range(ROWS)
    )
    folder.mkdir(exist_ok=True)
    (folder / f"{number}.csv").write_text(f"price,shop,town,kind,sold\n{rows}", encoding="utf-8")


def table(folder: Path, incremental: bool = False) -> Recipe:
    text = RECIPE.format(folder=folder, incremental=str(incremental).lower())
    return documents.parse(text, Recipe, name="kept")


def preprocess(recipe: Recipe, output: Path) -> dict[str, storage.File]:
    from trainyard.steps.preprocess.run import run

    with step.recorded("preprocess", lambda: str(output)):
        step.execute(run, str(output), recipe=recipe)
    return storage.require(str(output)).files


def events(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.splitlines() if line.startswith("{")]


def kept(lines: str) -> dict[str, int]:
    return {event["unit"]: event["done"] for event in events(lines) if event["event"] == "kept"}


def test_a_killed_preprocess_goes_on_from_its_tasks_and_from_its_shards(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(FILES):
        write_table(tmp_path / "tables", number)
    recipe, output = tmp_path / "kept.yaml", tmp_path / "storage" / "1f0a"
    recipe.write_text(RECIPE.format(folder=tmp_path / "tables", incremental="false"))
    for killed_at in (("5", ".json"), ("1", "transform"), ("4", ".tfrecord")):
        command = [sys.executable, "-c", KILLED, f"--recipe={recipe}", f"--output={output}", *killed_at]
        ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        assert ended.returncode == -signal.SIGKILL
        assert not output.exists()
    assert kept(ended.stderr) == {"tasks": 6}
    capfd.readouterr()
    files = preprocess(table(tmp_path / "tables"), output)
    assert kept(capfd.readouterr().err) == {"tasks": 6, "shards": 3}
    monkeypatch.setattr(tasks, "_BYTES", 1)
    assert files == preprocess(table(tmp_path / "tables"), tmp_path / "elsewhere" / "1f0a")
    lines = capfd.readouterr().err
    counts = [event["count"] for event in events(lines) if event["event"] == "worker_processes"]
    assert counts == [tasks._cores() - 1] * 3  # to read, to count and to write shards
    assert kept(lines) == {}
    assert list((output.parent / ".staging").iterdir()) == []
    assert not Path(keys.parts(str(output))).exists()


def test_of_data_that_grew_only_the_new_file_is_read_and_one_whose_part_is_damaged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Damaged as after a power cut, where a file may have its name before its content."""
    for number in range(3):
        write_table(tmp_path / "tables", number)
    recipe = table(tmp_path / "tables", incremental=True)
    preprocess(recipe, tmp_path / "storage" / "a")
    part = next(Path(keys.parts(str(tmp_path / "storage" / "a"))).glob("*.arrow"))
    part.write_bytes(b"\0" * part.stat().st_size)
    write_table(tmp_path / "tables", 3)
    capfd.readouterr()
    grown = preprocess(recipe, tmp_path / "storage" / "b")
    lines = capfd.readouterr().err
    assert kept(lines) == {"tasks": 2}
    records = [event.get("records", 0) for event in events(lines) if event["event"] == "progress"]
    assert max(records) == 2 * ROWS
    assert grown == preprocess(recipe, tmp_path / "elsewhere" / "b")
    assert not Path(keys.parts(str(tmp_path / "storage" / "a"))).exists(), "superseded by those of b"

    (tmp_path / "tables" / "1.csv").unlink()
    write_table(tmp_path / "tables", 3)  # written anew
    capfd.readouterr()
    preprocess(recipe, tmp_path / "storage" / "c")
    assert kept(capfd.readouterr().err) == {"tasks": 2}


def test_images_that_come_between_others_move_few_to_other_tasks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainyard.steps.preprocess import collect

    monkeypatch.setattr(collect, "_IMAGES", 8)
    for label in "ab":
        (tmp_path / "pets" / label).mkdir(parents=True)
        for number in range(0, 200, 2):
            write_image(tmp_path / "pets" / label, number)
    data = f"{{format: image_folder, path: {tmp_path}/pets, incremental: true}}"
    text = f"{{name: pets, data: {data}, model: {{name: cnn_small}}}}"
    recipe = documents.parse(text, Recipe, name="pets")
    preprocess(recipe, tmp_path / "storage" / "a")
    count = len(list(Path(keys.parts(str(tmp_path / "storage" / "a")), "done").glob("*.json")))
    for number in (33, 121):
        write_image(tmp_path / "pets" / "b", number)
    capfd.readouterr()
    preprocess(recipe, tmp_path / "storage" / "b")
    assert count > 8
    assert kept(capfd.readouterr().err)["tasks"] >= count - 2


def write_image(folder: Path, number: int) -> None:
    pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(pixels).save(folder / f"{number:03}.png")


@pytest.mark.parametrize("incremental", [False, True])
def test_what_a_run_may_not_go_on_from_is_removed(incremental: bool, tmp_path: Path) -> None:
    write_table(tmp_path / "tables", 0)
    (tmp_path / "tables" / "1.csv").write_text("price,shop,town,kind\n1,2,3,a\n")
    with pytest.raises(SystemExit):
        preprocess(table(tmp_path / "tables", incremental), tmp_path / "storage" / "a")
    assert not Path(keys.parts(str(tmp_path / "storage" / "a"))).exists()
