"""The served model: one SavedModel that takes raw inputs, with the transform inside it.

What is served is what was trained on: the transform graph that wrote the training examples is part of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import keras
import tensorflow as tf
from tensorflow.core.protobuf.fingerprint_pb2 import FingerprintDef

from trainyard.contract.artifacts.preprocess import Examples, RawFeature
from trainyard.data.examples import Transform
from trainyard.data.trained import Tensors, predictor
from trainyard.spec.feature_names import input_name as input_name

RAW = "serving_default"
SERIALIZED = "serving_examples"
LABELS = "labels.txt"

_MISSING: dict[str, float | str] = {"float32": float("nan"), "string": ""}


def save(model: keras.Model, transform: Transform, document: Examples, folder: Path) -> None:
    """Write the SavedModel `folder`, loadable by plain TensorFlow, with labels.txt beside saved_model.pb.

    Signatures:
    serving_default   every raw feature by name (see `input_name`), each (n,): for images `image`, the encoded bytes
    serving_examples  `examples`, serialized tf.Example (n,) string with the raw features by their own names; a missing
                      number counts as NaN and a missing string as empty, a missing integer is an error
    Both return `probabilities` (n, classes) float32, `label` (n,) string and `label_id` (n,) int64, or for regression
    `prediction` (n,) float32.
    """
    module = _Serving(model, transform, document)
    raw = module.raw.get_concrete_function(
        {
            feature.name: tf.TensorSpec((None,), feature.dtype, name=input_name(feature.name))
            for feature in document.raw_features
        }
    )
    serialized = module.serialized.get_concrete_function(tf.TensorSpec((None,), tf.string, name="examples"))
    tf.saved_model.save(module, str(folder), signatures={RAW: raw, SERIALIZED: serialized})
    _make_fingerprint_repeatable(folder)
    if document.labels is not None:
        write_labels(document.labels, folder)


def write_labels(labels: Sequence[str], folder: Path) -> None:
    """Write labels.txt: one label a line, in the order of the class ids."""
    (folder / LABELS).write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")


class _Serving(tf.Module):
    """Holds what the signatures need: variables and transform are tracked, the Keras object itself is not saved."""

    def __init__(self, model: keras.Model, transform: Transform, document: Examples) -> None:
        super().__init__()
        self.transform = transform
        self.model_variables = [variable.value for variable in model.weights]
        predict = predictor(model, document.task)
        labels = document.labels
        specification = {feature.name: _parsing(feature) for feature in document.raw_features}

        def respond(raw: Tensors) -> Tensors:
            outputs = predict(self.transform(raw))
            if labels is None:
                return {"prediction": outputs}
            ids = tf.argmax(outputs, axis=-1, output_type=tf.int64)
            return {"probabilities": outputs, "label": tf.gather(tf.constant(labels), ids), "label_id": ids}

        self.raw = tf.function(respond, autograph=False)
        self.serialized = tf.function(
            lambda examples: respond(tf.io.parse_example(examples, specification)), autograph=False
        )


def _make_fingerprint_repeatable(folder: Path) -> None:
    """Replace the random name in fingerprint.pb by the hash of the graph, so that equal models are equal files."""
    path = folder / "fingerprint.pb"
    fingerprint = FingerprintDef.FromString(path.read_bytes())
    fingerprint.uuid = str(fingerprint.graph_def_program_hash)
    path.write_bytes(fingerprint.SerializeToString(deterministic=True))


def _parsing(feature: RawFeature) -> tf.io.FixedLenFeature:
    return tf.io.FixedLenFeature((), feature.dtype, default_value=_MISSING.get(feature.dtype))
