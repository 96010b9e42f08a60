"""Committed outputs of evaluate and export for the tests of push: a real SavedModel with a variable and an asset."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from tests import small_documents

from trainyard.contract.artifacts.export import Exports
from trainyard.contract.artifacts.gate import Threshold, Verdict
from trainyard.storage import storage


class Doubler(tf.Module):
    """x -> factor * x, with the factor once as a variable and once as an asset file."""

    def __init__(self, factor: float, asset: Path) -> None:
        super().__init__()
        self.factor = tf.Variable(factor)
        asset.write_text(f"{factor}\n")
        self.asset = tf.saved_model.Asset(str(asset))

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.float32, name="x")])
    def serve(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        text = tf.strings.strip(tf.io.read_file(self.asset.asset_path))
        return {"prediction": x * self.factor, "from_asset": x * tf.strings.to_number(text)}


def evaluated(folder: Path, blessed: bool = True) -> str:
    with storage.stage(str(folder), producer="trainyard.evaluate") as staging:
        threshold = Threshold(
            name="accuracy >= 0.97", value=0.9 + 0.08 * blessed, bound=0.97, interval=None, passed=blessed
        )
        small_documents.evaluation(
            metrics={"accuracy": threshold.value or 0},
            gate=Verdict(verdict="blessed" if blessed else "refused", thresholds=[threshold]),
        ).write(staging)
    return str(folder)


def exported(folder: Path, factor: float, blessed: bool = True) -> str:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with storage.stage(str(folder), producer="trainyard.export") as staging:
        module = Doubler(factor, folder.with_suffix(".asset"))
        tf.saved_model.save(module, str(staging / "saved_model"), signatures={"serving_default": module.serve})
        folder.with_suffix(".asset").unlink()  # from here on only the SavedModel's own copy is there
        (staging / "saved_model" / "labels.txt").write_text("no\nyes\n")
        (staging / "model.keras").write_bytes(b"keras" + os.urandom(8))
        (staging / "model_int8.tflite").write_bytes(b"lite" * 20_000)
        (staging / "vocabularies").mkdir()
        (staging / "vocabularies" / "city").write_text("Bern\n")
        name = "litert_int8 accuracy - trained >= -0.01"
        threshold = Threshold(name=name, value=0.0 if blessed else -0.25, bound=-0.01, interval=None, passed=blessed)
        gate = Verdict(verdict="blessed" if blessed else "refused", thresholds=[threshold])
        Exports(exports=[], gate=gate).write(staging)
    return str(folder)
