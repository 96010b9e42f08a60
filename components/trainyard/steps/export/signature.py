"""Inputs and outputs of exported files: the SavedModel for servers, and the named outputs of files for devices.

The SavedModel takes raw inputs: the transform graph that wrote the training examples is part of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras
import tensorflow as tf
from tensorflow.core.protobuf.fingerprint_pb2 import FingerprintDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from trainyard.contract.artifacts.evaluate import thresholds_by_id
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.statistics.decision import LIKELY
from trainyard.contract.version import LABELS, TARGETS
from trainyard.data.examples import Transform
from trainyard.data.trained import Tensors, output_name, predictor
from trainyard.data.values import as_read
from trainyard.spec.columns import input_name as input_name
from trainyard.spec.recipe import Data

Border = dict[str, dict[str, dict[str, Any]]]
"""The `inputs` and `outputs` of a file by name: dtype, shape, and of integers for real numbers scale and zero_point."""

RAW = "serving_default"
SERIALIZED = "serving_examples"
_MISSING: dict[str, float | str] = {"float32": float("nan"), "string": ""}


@dataclass(frozen=True)
class Unit:
    """From a standardized target to an answer in its unit: exp(factor * target + offset) + after.

    after: None if there is no exp, because the target was not learned on a logarithmic scale.
    """

    factor: float
    offset: float
    after: float | None = None


def answering(model: keras.Model, document: Examples, units: Mapping[str, Unit]) -> Callable[[Tensors], Tensors]:
    """Return the function that a file holds: what `model` answers, in `units` if there are any.

    Several targets are separate outputs, each with its own scale in int8: in one tensor, a target of thousands
    would leave no digits to one below ten.
    """
    predict = predictor(model, document.task)
    names = target_outputs(document)

    def answers(features: Tensors) -> Tensors:
        outputs = predict(features)
        named = dict(zip(names, tf.unstack(outputs, axis=1) if document.targets else [outputs], strict=True))
        return named | {name: _in_unit(named[name], unit) for name, unit in units.items()}

    return answers


def _in_unit(standardized: tf.Tensor, unit: Unit) -> tf.Tensor:
    answers = standardized * unit.factor + unit.offset
    return answers if unit.after is None else tf.exp(answers) + unit.after


def target_outputs(document: Examples) -> list[str]:
    """Return the names of the outputs of a file, several targets in their order."""
    return [f"prediction_{input_name(target)}" for target in document.targets] or [output_name(document.task)]


def save(
    model: keras.Model,
    transform: Transform,
    document: Examples,
    folder: Path,
    data: Data,
    thresholds: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Write the SavedModel `folder`, loadable by plain TensorFlow, with labels.txt beside saved_model.pb.

    data: the recipe's, by whose types of columns a text is read as the readers of files do (`data.values`).
    thresholds: by class, as of `decided_class`.

    Signatures:
    serving_default   every raw feature by name (see `input_name`), each (n,): for images `image`, the encoded bytes
    serving_examples  `examples`, serialized tf.Example (n,) string with the raw features by their own names; a missing
                      number counts as NaN and a missing string as empty, a missing integer is an error
    Both return `probabilities` (n, classes) float32, `label` (n,) string and `label_id` (n,) int64; of multi_label
    `probabilities` and `label`, the classes above their thresholds, by default one half, with `separator` between them;
    or for regression `prediction` (n,) float32, of several targets (n, targets), with targets.txt beside.
    """
    module = _Serving(model, transform, document, data, thresholds_by_id(thresholds, document.labels or []))
    raw = module.raw.get_concrete_function(
        {
            feature.name: tf.TensorSpec((None,), feature.dtype, name=input_name(feature.name))
            for feature in document.raw_features
        }
    )
    serialized = module.serialized.get_concrete_function(tf.TensorSpec((None,), tf.string, name="examples"))
    tf.saved_model.save(module, str(folder), signatures={RAW: raw, SERIALIZED: serialized})
    _make_repeatable(folder)
    write_names(document, folder)


def write_names(document: Examples, folder: Path) -> None:
    """Write labels.txt, one label a line in the order of the class ids, or targets.txt if there are several targets."""
    for file, names in ((LABELS, document.labels), (TARGETS, document.targets)):
        if names:
            (folder / file).write_text("".join(f"{name}\n" for name in names), encoding="utf-8")


class _Serving(tf.Module):
    """Holds what the signatures need: variables and transform are tracked, the Keras object itself is not saved."""

    def __init__(
        self,
        model: keras.Model,
        transform: Transform,
        document: Examples,
        data: Data,
        thresholds: Mapping[int, float],
    ) -> None:
        super().__init__()
        self.transform = transform
        self.model_variables = [variable.value for variable in model.weights]
        predict = predictor(model, document.task)
        labels, separator = document.labels, data.label_separator
        specification = {
            feature.name: tf.io.FixedLenFeature((), feature.dtype, default_value=_MISSING.get(feature.dtype))
            for feature in document.raw_features
        }

        def respond(raw: Tensors) -> Tensors:
            outputs = predict(self.transform(as_read(raw, data)))
            if labels is None:
                return {"prediction": outputs}
            if separator is not None:
                bounds = tf.constant([thresholds.get(id_, LIKELY) for id_ in range(len(labels))], tf.float32)
                return {"probabilities": outputs, "label": _joined(labels, outputs > bounds, separator)}
            ids = _decided(outputs, thresholds)
            return {"probabilities": outputs, "label": tf.gather(tf.constant(labels), ids), "label_id": ids}

        self.raw = tf.function(respond, autograph=False)
        self.serialized = tf.function(
            lambda examples: respond(tf.io.parse_example(examples, specification)), autograph=False
        )


def _decided(outputs: tf.Tensor, thresholds: Mapping[int, float]) -> tf.Tensor:
    """Return the ids of the predicted classes (n,) int64, as `decided_class`."""
    for id_, threshold in thresholds.items():
        rest = tf.where(tf.range(outputs.shape[1]) == id_, tf.constant(-1.0), outputs)
        likely = tf.argmax(rest, axis=-1, output_type=tf.int64)
        return tf.where(outputs[:, id_] > tf.constant(threshold, tf.float32), tf.constant(id_, tf.int64), likely)
    return tf.argmax(outputs, axis=-1, output_type=tf.int64)


def _joined(labels: Sequence[str], has: tf.Tensor, separator: str) -> tf.Tensor:
    """Return the names of the classes that each row `has`, (n, classes), as texts (n,)."""
    names = tf.tile(tf.constant(labels)[None], (tf.shape(has)[0], 1))
    return tf.strings.reduce_join(tf.ragged.boolean_mask(names, has), axis=1, separator=separator)


def _make_repeatable(folder: Path) -> None:
    """Rewrite saved_model.pb and fingerprint.pb so that equal models give equal files.

    TensorFlow writes the functions of a graph in the order of a hash table, and a random name into fingerprint.pb.
    """
    path = folder / "saved_model.pb"
    saved = SavedModel.FromString(path.read_bytes())
    for meta_graph in saved.meta_graphs:
        meta_graph.graph_def.library.function.sort(key=lambda function: function.signature.name)
    path.write_bytes(saved.SerializeToString(deterministic=True))
    path = folder / "fingerprint.pb"
    fingerprint = FingerprintDef.FromString(path.read_bytes())
    fingerprint.ClearField("saved_model_checksum")  # of the file as TensorFlow wrote it; nothing reads it
    fingerprint.uuid = str(fingerprint.graph_def_program_hash)
    path.write_bytes(fingerprint.SerializeToString(deterministic=True))
