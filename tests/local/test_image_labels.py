"""Images with their labels in a CSV file, from a folder to answers about new images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import trainyard as ty

pytestmark = pytest.mark.usefixtures("warm_processes")

RECIPE = """
name: photos
task: {task}
data:
  format: image_folder
  path: {folder}/photos
  labels: labels.csv
  image_size: [16, 16]
  max_bad_fraction: 0.05
  split: {{by: group, column: camera, train: 0.6, eval: 0.2, test: 0.2}}
  {label}
model: {{name: cnn_small, blocks: ["conv:16", pool], dropout: 0}}
train: {{epochs: 20, batch_size: 16, optimizer: {{learning_rate: 0.01}}}}
evaluate: {{bootstrap: 50, gates: [{gate}]}}
export: {{formats: [saved_model, litert_float32, onnx]}}
"""
TASKS = {
    "multi_label": ("label: kinds\n  label_separator: ;", "{metric: f1, min: 0.9}"),
    "regression": ("targets: [brightness, redness]", "{metric: r2, min: 0.9}"),
}


def photos(folder: Path, count: int, seed: int) -> None:
    """Write images whose labels follow from their pixels; two rows have no image, and one image no row."""
    draw, rows = np.random.default_rng(seed), ["file,kinds,brightness,redness,camera"]
    (folder / "day").mkdir(parents=True)
    for index in range(count):
        level, red = draw.uniform(40, 200), draw.uniform(0, 50)
        pixels = np.clip(draw.normal((level + red, level, level), 8, (16, 16, 3)), 0, 255).astype(np.uint8)
        name = f"day/{index}.png" if index % 2 else f"{index}.png"
        Image.fromarray(pixels).save(folder / name)
        kinds = ";".join(kind for kind, is_one in (("bright", level > 120), ("red", red > 25)) if is_one)
        brightness, redness = 1000 + pixels[..., 1].mean() / 10, pixels[..., 0].mean() - pixels[..., 1].mean()
        rows.append(f"{name},{kinds},{brightness:.4f},{redness:.4f},{index % 40}")
    (folder / "labels.csv").write_text("\n".join([*rows[:-1], "gone.png,red,1,1,1", "../a.png,red,1,1,1"]) + "\n")


@pytest.mark.parametrize("task", TASKS)
def test_labels_in_a_file_are_learned_and_new_images_are_judged_by_theirs(task: str, tmp_path: Path) -> None:
    photos(tmp_path / "photos", 240, 1)
    photos(tmp_path / "new", 40, 2)
    label, gate = TASKS[task]
    (tmp_path / "photos.yaml").write_text(RECIPE.format(task=task, folder=tmp_path, label=label, gate=gate))
    (tmp_path / "here.yaml").write_text(f"target: local\nstorage: {tmp_path}/storage\n")
    run = ty.run(str(tmp_path / "photos.yaml"), environment=str(tmp_path / "here.yaml"))
    assert run.state == "pushed", (run.reason, run.metrics)
    judged = ty.evaluate(run.record["pushed"]["path"], tmp_path / "new")
    assert judged.examples == 39
    assert judged.left_out == {"missing_image": 1, "name_out_of_root": 1, "missing_label": 1}
    assert judged.metrics["f1" if task == "multi_label" else "r2"] > 0.9
