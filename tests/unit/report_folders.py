"""Folders of a whole run, written by the real document classes, with any text as class, file and feature names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from PIL import Image

from trainyard.contract.artifacts.evaluate import ClassMetrics, Confidence, Evaluation, Mistake, Roc, SliceMetrics
from trainyard.contract.artifacts.export import DeviceTiming, EdgeTpu, ExportedFile, Exports, Latency, SkewPath
from trainyard.contract.artifacts.gate import Interval, Threshold, Verdict
from trainyard.contract.artifacts.preprocess import Examples, Feature, ImageShape, RawFeature, SplitFiles
from trainyard.contract.artifacts.push import Pushed
from trainyard.contract.artifacts.train import (
    Epoch,
    ExampleCosts,
    Gang,
    Goodput,
    Machine,
    Restart,
    Rollback,
    Straggler,
    Training,
    TrainingSpeed,
    TrainingStart,
    WorkerCount,
)
from trainyard.spec.recipe import Recipe

SECONDS = {"preprocess": 9.1, "train": 20.4, "evaluate": 4.2, "export": 11.0, "push": 0.3}


def recipe(description: str = "Small digits") -> Recipe:
    """Return an image recipe."""
    return Recipe.model_validate(
        {
            "name": "digits",
            "description": description,
            "data": {"format": "image_folder", "bundled": "digits"},
            "model": {"name": "cnn_small"},
        }
    )


def whole_run(root: Path, text: str = "seven") -> dict[str, str]:
    """Write the five folders of a run below `root` and return them by step; `text` stands wherever data may have it."""
    folders = {step: root / step for step in SECONDS}
    for folder in folders.values():
        folder.mkdir(parents=True)
    examples(text).write(folders["preprocess"])
    record = {"source": f"{text}/1.png", "reason": "truncated", "detail": text}
    (folders["preprocess"] / "quarantine.jsonl").write_text(
        json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    training(text).write(folders["train"])
    (folders["evaluate"] / "worst").mkdir()
    Image.new("L", (112, 112), 99).save(folders["evaluate"] / "worst/00.png")
    evaluation(text).write(folders["evaluate"])
    exports(text).write(folders["export"])
    Pushed(path=f"models/{text}", version=3, digest="d" * 64, already=False).write(folders["push"])
    return {step: str(folder) for step, folder in folders.items()}


def examples(text: str) -> Examples:
    """Return two classes of images, one of them named `text`."""
    return Examples(
        task="classification",
        label="label",
        labels=[text, "other"],
        splits={
            split: SplitFiles(examples=count, files=["examples/a"], shard_examples=[count], class_counts=[count - 4, 4])
            for split, count in (("train", 80), ("eval", 10), ("test", 10))
        },
        features=[Feature(name="image", dtype="float32", shape=(8, 8, 1), encoded=True)],
        raw_features=[RawFeature(name="image", dtype="string")],
        image=ImageShape(height=8, width=8, channels=1),
        quarantined=1,
        quarantine={"truncated": 1},
        warnings=[f"label conflict: {text}"],
        fingerprint="0123456789abcdef",
    )


def training_with(**values: object) -> Training:
    """Return a training of nothing with `values`, each a field of it or of one of its parts."""
    document: dict[str, Any] = {
        "model": "cnn_small", "parameters": 10, "steps": 10, "epochs": 1, "best_epoch": 1, "precision": "float32",
        "history": [], "seconds": {},
        "speed": {"examples_per_second": 10.0, "bottleneck": "compute", "step_ms": 1.0, "cached_step_ms": 1.0},
        "gang": {}, "machine": {"devices": ["CPU:0"], "hardware": "CPU", "cores": 4}, "costs": {}, "start": {},
    }  # fmt: skip
    parts = {"speed": TrainingSpeed, "gang": Gang, "machine": Machine, "costs": ExampleCosts, "start": TrainingStart}
    for name, value in values.items():
        part = next((part for part, model in parts.items() if name in model.model_fields), None)
        (document[part] if part else document)[name] = value
    return Training.model_validate(document)


def training(text: str = "seven", **changes: object) -> Training:
    """Return three epochs on one processor."""
    history = [
        Epoch(
            epoch=epoch,
            step=epoch * 10,
            learning_rate=0.001,
            train_loss=1 / epoch,
            eval_loss=1.2 / epoch,
            metric=1 - 0.3 / epoch,
            examples_per_second=900.0 + epoch,
            seconds=1.0,
        )
        for epoch in (1, 2, 3)
    ]
    values: dict[str, object] = dict(
        parameters=12345,
        steps=30,
        epochs=3,
        best_epoch=3,
        hardware="",
        cores=0,
        examples_per_second=905.0,
        bottleneck="input",
        step_ms=12.0,
        cached_step_ms=9.0,
        resumed_from=20,
        history=history,
        seconds={"start": 3.0, "steps": 8.0},
        restarts=[Restart(reason=text, step=20, resumed_at=15, lost_steps=5, seconds=4.5)],
        worker_counts=[
            WorkerCount(workers=workers, maximum=4, step=step, seconds=seconds)
            for workers, step, seconds in ((4, 0, 2.5), (2, 15, 9.0))
        ],
        stragglers=[Straggler(worker=3, node=text, step=10, until=15, own_ms=9.0, others_ms=4.0)],
        rollbacks=[Rollback(what="training loss", step=12, back_to=10, learning_rate_scale=0.1)],
        goodput=Goodput(share=0.5, seconds={"step": 4.0, "restart": 4.0}),
        step_split_ms={"compute": 9.0, "all_reduce": 0.0, "input": 3.0, "checkpoint": 0.02},
        checkpoint_writes=4,
        checkpoint_write_seconds=0.3,
    )
    return training_with(**values | changes)


def evaluation(text: str) -> Evaluation:
    """Return ten answers, one of them wrong, blessed."""
    passed = Threshold(
        name=f"accuracy [label={text}] >= 0.8",
        value=0.9,
        bound=0.8,
        interval=Interval(low=0.7, high=1.0),
        passed=True,
        note=text,
    )
    return Evaluation(
        split="test",
        examples=10,
        metrics={"accuracy": 0.9, "log_loss": 0.2},
        intervals={"accuracy": Interval(low=0.7, high=1.0)},
        classes=[
            ClassMetrics(label=text, precision=1.0, recall=5 / 6, f1=10 / 11, examples=6),
            ClassMetrics(label="other", precision=0.8, recall=1.0, f1=8 / 9, examples=4),
        ],
        confusion=[[5, 1], [0, 4]],
        roc=[Roc(label=text, false_positive_rate=[0, 0, 1], true_positive_rate=[0, 0.8, 1], threshold=[1.0, 0.5, 0.0])],
        slices=[
            SliceMetrics(
                name=f"label={text}", examples=6, metrics={"accuracy": 5 / 6}, interval=Interval(low=0.5, high=1.0)
            )
        ],
        worst=[Mistake(key=f"{text}/0.png", label=text, predicted="other", loss=2.5, image="worst/00.png")],
        champion=f"models/{text}",
        gate=Verdict(verdict="blessed", thresholds=[passed]),
        champion_metrics={"accuracy": 0.85},
        calibration=[Confidence(confidence=0.95, accuracy=0.9, examples=10)],
    )


def measured(exports: Exports) -> Exports:
    """Return the exports with their file timed on a device."""
    times = {1: Latency(p50=20, p95=30), 4: Latency(p50=8, p95=9.5)}
    timed = DeviceTiming(device="pi", machine="Raspberry Pi 4 (Cortex-A72), aarch64", latency_ms=times, memory_mb=80)
    (file,) = exports.exports
    return exports.model_copy(update={"exports": [file.model_copy(update={"devices": [timed]})]})


def exports(text: str) -> Exports:
    """Return one exported file, which answers the raw record `text` otherwise after preprocess.py."""
    return Exports(
        exports=[
            ExportedFile(
                format="litert_int8",
                path="model_int8.tflite",
                bytes=18_240,
                accuracy=0.9,
                accuracy_difference=-0.001,
                max_abs_difference=0.03,
                latency_ms=Latency(p50=0.021, p95=0.04),
                edge_tpu=EdgeTpu(
                    source="table",
                    operations=8,
                    mapped_operations=6,
                    multiply_adds=4000,
                    mapped_multiply_adds=3000,
                    first_unmapped="ELU, operation 7 of 8: not in Coral's table",
                ),
            )
        ],
        gate=Verdict(verdict="blessed", thresholds=[]),
        skew=[
            SkewPath(
                path="server (trainyard serve)", records=10, difference=2e-7, to_trained=2e-7, bound=1e-5, passed=True
            ),
            SkewPath(path="litert_int8 after preprocess.py", records=10, bound=0.05, passed=False, note=text),
        ],
        machine="AMD EPYC, x86_64",
    )


def figures(page: str) -> dict[str, Any]:
    """Return the figures that a page draws, by name."""
    found = re.search(r'id="figures">(.*?)</script>', page)
    return dict(json.loads(found[1])) if found else {}
