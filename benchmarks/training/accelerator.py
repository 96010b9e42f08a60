"""Trainings on this machine's accelerator: their speed with and without the input, against what `plan` predicts.

    TRAINYARD_ENGINE=jax python -m benchmarks accelerator

writes its part of docs/benchmarks.md. Each training is the step `train` as it runs
anywhere, on random JPEG images that are decoded in every epoch. The prediction knows no run on this machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.artifacts.train import Training
from trainyard.spec import plain_yaml
from trainyard.spec import recipe as recipes
from trainyard.spec.environment import Environment
from trainyard_control.planning import cost, data
from trainyard_control.planning.plan import candidates

EPOCHS = 6


@dataclass(frozen=True)
class Images:
    """Training images of `size` pixels a side for the model, stored with `stored`; more than memory holds."""

    size: int
    stored: int
    count: int


SMALL, LARGE = Images(96, 96, 24 * 1024), Images(224, 256, 16 * 256)
CASES = [
    ("resnet50", LARGE, 256, "bfloat16"),
    ("resnet50", LARGE, 256, "float32"),
    ("cnn_small", SMALL, 1024, "bfloat16"),
    ("cnn_small", SMALL, 1024, "float32"),
]
"""Model, images, examples a batch, precision."""


@dataclass(frozen=True)
class Result:
    """The speeds of one training in examples a second; cached: of steps on one batch, which is sent again each time.

    waiting: share of a step that waits for input. low, predicted, high: the plan's interval.
    """

    model: str
    side: int
    batch: int
    precision: str
    low: float
    predicted: float
    high: float
    measured: float
    cached: float
    waiting: float
    bottleneck: str


def measure() -> tuple[list[Result], Training]:
    """Return the results of all cases, and the record of the last training."""
    results = []
    with tempfile.TemporaryDirectory() as name:
        for number, (model, images, batch, precision) in enumerate(CASES):
            folder = Path(name) / str(number)
            folder.mkdir()
            examples = Path(name) / f"examples-{images.size}"
            if not examples.exists():
                sizes = (images.stored, images.size, images.count)
                _run("benchmarks.data.random_images", str(examples), *map(str, sizes))
            training, result = _train(folder, str(examples), _recipe(model, images, batch, precision))
            results.append(result)
            print(json.dumps(asdict(result)), file=sys.stderr, flush=True)
    return results, training


def section(results: list[Result], training: Training) -> str:
    """Return the part of the page."""
    machine = training.machine
    device = machine.measured[0]
    rows = "\n".join(
        f"| `{result.model}` | {result.side} | {result.batch} | {result.precision} "
        f"| {result.predicted:,.0f} ({result.low:,.0f} – {result.high:,.0f}) | {result.measured:,.0f} "
        f"| {result.predicted / result.measured:.2f} | {result.cached:,.0f} | {result.measured / result.cached:.2f} "
        f"| {100 * result.waiting:.0f} |"
        for result in results
    )
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return f"""Training images/s on {len(machine.measured)} {device.product} (measured: {device.tflops:,.0f} TFLOP/s,
{device.gb_per_second:,.0f} GB/s) and {machine.cores} cores, by {machine.engine} ({versions}).
*Predicted* is `trainyard plan` with its 80 % interval, without any earlier run. *One batch* sends the same batch to the
device in every step and decodes nothing. *Waits* is the share of a step that waits for input.

| network | pixels | batch | precision | predicted | measured | predicted / measured | one batch \
| measured / one batch | waits, % |
| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |
{rows}"""


def _run(module: str, *arguments: str) -> None:
    """Run a module in a process of its own, which has the accelerator to itself."""
    subprocess.run([sys.executable, "-m", module, *arguments], check=True, stdout=sys.stderr)


def _recipe(model: str, images: Images, batch: int, precision: str) -> dict[str, Any]:
    augment = {"flip": True} if images.size == images.stored else {"crop": {"scale": [0.08, 1.0]}, "flip": True}
    return {
        "name": "accelerator",
        "data": {"format": "image_folder", "path": "/nowhere", "image_size": [images.size, images.size]},
        "model": {"name": model},
        "train": {
            "epochs": EPOCHS,
            "batch_size": batch,
            "precision": precision,
            "optimizer": {"name": "sgd", "learning_rate": 0.01},
            "augment": augment,
        },
    }


def _train(folder: Path, examples: str, fields: dict[str, Any]) -> tuple[Training, Result]:
    path = folder / "recipe.yaml"
    path.write_text(plain_yaml.dump(fields), encoding="utf-8")
    recipe = recipes.load(str(path))
    known = data.find(recipe, Examples.read(examples), None)
    here = Environment.model_validate({"target": "local", "storage": str(folder)})
    plan = candidates(recipe, here, known, cost.from_recipe(recipe, known), [])[0].examples_per_second
    assert plan is not None
    output = folder / "output"
    uris = ("--examples", examples, "--checkpoints", f"{folder}/checkpoints", "--output", str(output))
    _run("trainyard.steps", "train", "--recipe", str(path), *uris)
    training, batch = Training.read(str(output)), recipe.train.batch_size
    return training, Result(
        model=training.model,
        side=known.image[0] if known.image else 0,
        batch=batch,
        precision=training.precision,
        low=plan.low,
        predicted=plan.expected,
        high=plan.high,
        measured=training.speed.examples_per_second,
        cached=1000 * batch / training.speed.cached_step_ms,
        waiting=training.speed.step_split_ms["input"] / training.speed.step_ms,
        bottleneck=training.speed.bottleneck,
    )


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    print(section(*measure()))
