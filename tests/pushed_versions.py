"""Two pushed versions of digits without a model, for the tests of commands that read them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from trainyard.contract import version
from trainyard.contract.artifacts.export import ExportedFile, Latency
from trainyard.contract.artifacts.gate import Interval, Threshold
from trainyard.contract.artifacts.push import GateRecord, VersionRecord
from trainyard.contract.pushed_versions import set_alias
from trainyard.contract.version import Champion, set_champion
from trainyard.spec import recipe as recipes
from trainyard.storage import storage

RUN = "20260102-000000-aaaa"


def record(number: int, accuracy: float, run: str) -> VersionRecord:
    interval = Interval(low=accuracy - 0.01, high=accuracy + 0.01)
    passed = Threshold(name="accuracy >= 0.9", value=accuracy, bound=0.9, interval=interval, passed=True)
    file = ExportedFile(
        format="saved_model",
        path="saved_model",
        bytes=1024 * number,
        accuracy=accuracy,
        accuracy_difference=0,
        max_abs_difference=0,
        latency_ms=Latency(p50=1, p95=2),
    )
    return VersionRecord(
        number=number,
        recipe=recipes.load("digits", [f"train.epochs={number}"]).model_dump(mode="json"),
        run=run,
        pushed="2026-01-02T00:00:00+00:00",
        by="ada",
        examples={"train": 10 * number, "eval": 2, "test": 3},
        fingerprint="f" * 64,
        metrics={"log_loss": 0.1, "accuracy": accuracy},
        intervals={"accuracy": interval},
        gates=[GateRecord(verdict="blessed", thresholds=[passed], name="model", split="test")],
        exports=[file],
        devices=["CPU:0"],
    )


FILES = {
    "saved_model.pb": "NUMBER",
    "README.md": "# digits\n\n[saved_model.pb](saved_model.pb) [assets.extra/predict.py](assets.extra/predict.py)\n",
    "variables/variables.index": "",
    "assets.extra/predict.py": "",
    "assets.extra/preprocessing.json": json.dumps(
        {"transform": "image", "raw_features": [{"name": "image", "dtype": "string"}], "image": {"channels": 1}}
    ),
    "assets.extra/vocabularies/city": "Bern\n",
}


def push_versions() -> Path:
    """Leave versions 1 and 2 of digits in ./runs, of which 2 serves and canary names 1, and the run of 1."""
    root = Path("runs/digits").absolute()
    for number, accuracy in ((1, 0.95), (2, 0.99)):
        folder = str(root / "models" / str(number))
        kept = record(number, accuracy, f"/moved/digits/runs/{RUN}" if number == 1 else "")
        with storage.stage(folder, "trainyard.push", origin=kept.model_dump(mode="json")) as staging:
            for name, text in FILES.items():
                (staging / name).parent.mkdir(parents=True, exist_ok=True)
                (staging / name).write_text(text.replace("NUMBER", str(number)))
            with zipfile.ZipFile(staging / "assets.extra/model.keras", "w") as archive:
                archive.writestr("config.json", "{}")
        manifest = storage.committed(folder)
        assert manifest is not None
        pointer = Champion(version=number, path=folder, digest=version.digest(manifest), metrics={"accuracy": accuracy})
        set_champion(str(root / "models"), pointer)
    set_alias(str(root / "models"), "canary", 1)
    (root / "runs" / RUN).mkdir(parents=True)
    (root / "runs" / RUN / "report.html").touch()
    pushed = {"path": str(root / "models" / "1"), "version": 1}
    (root / "runs" / RUN / "run.json").write_text(json.dumps({"pushed": pushed}))
    return root / "models"
