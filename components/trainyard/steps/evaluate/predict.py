"""Answers of the trained model and of the champion to the same examples in the same order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from trainyard import events
from trainyard.contract.artifacts import Split
from trainyard.data import trained
from trainyard.data.examples import ExampleFolder
from trainyard.errors import DataError
from trainyard.steps.evaluate.metrics import Answers, Floats
from trainyard.storage import storage


def model_answers(folder: str, examples: ExampleFolder, split: Split, batches: Any) -> tuple[Answers, NDArray[Any]]:
    """Return the answers of the model in train's output `folder` to `split`, and the examples' keys (n,) bytes.

    `batches` is the dataset `examples.batches(split, …)`.

    Raises as `trained.load`, and `DataError` where the split is empty, or an answer is not finite.
    """
    answer = tf.function(
        trained.answers(trained.load(folder), examples.document.task), autograph=False, reduce_retracing=True
    )
    labels, outputs, keys = [], [], []
    total = examples.document.splits[split].examples
    done = 0
    for features, label, key in batches:
        outputs.append(answer(features).numpy())
        labels.append(label.numpy())
        keys.append(key.numpy())
        done += len(keys[-1])
        if len(keys) % 50 == 0:
            events.progress(done, total, "examples")
    if not keys:
        raise DataError(f"{examples.uri}: the split '{split}' holds no examples to judge. Give it a fraction above 0.")
    found = Answers(np.concatenate(labels), np.concatenate(outputs))
    _require_finite(found.outputs, folder)
    return found, np.concatenate(keys)


def champion_answers(folder: str, examples: ExampleFolder, split: Split, batch_size: int) -> Answers:
    """Return the answers of the SavedModel `folder` to the raw features of `split`, through its serving signature.

    Its classes are matched with ours by name: probabilities (n, classes + 1), the last column the highest of the
    classes that we do not have; a class that it does not have gets 0.
    Raises `DataError` that names what it lacks or does not know.
    """
    signature = _signature(folder)
    names = _inputs(folder, signature, examples)
    output = "probabilities" if examples.document.task == "classification" else "prediction"
    if output not in signature.structured_outputs:
        raise DataError(
            f"{folder}: its signature has no output '{output}' but {_listed(signature.structured_outputs)}."
        )
    labels, outputs = [], []
    for raw, label in examples.raw_batches(split, batch_size):
        outputs.append(signature(**{name: raw[feature] for name, feature in names.items()})[output].numpy())
        labels.append(label.numpy())
    found = np.concatenate(outputs)
    _require_finite(found, folder)
    if examples.document.labels is not None:
        found = _by_our_labels(folder, found, examples.document.labels)
    return Answers(np.concatenate(labels), found)


def _require_finite(outputs: Floats, folder: str) -> None:
    wrong = int((~np.isfinite(outputs)).reshape(len(outputs), -1).any(axis=1).sum())
    if wrong:
        raise DataError(
            f"{folder}: {wrong} of the model's {len(outputs)} answers are NaN or infinite. "
            "Only numbers can be judged. Train again with a smaller train.optimizer.learning_rate."
        )


def _signature(folder: str) -> Any:
    try:
        loaded = tf.saved_model.load(folder)
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise DataError(f"{folder}: is not a SavedModel that loads ({str(error).splitlines()[0]}).") from error
    if "serving_default" not in loaded.signatures:
        raise DataError(f"{folder}: has no signature 'serving_default' but {_listed(loaded.signatures)}.")
    return loaded.signatures["serving_default"]


def _inputs(folder: str, signature: Any, examples: ExampleFolder) -> dict[str, str]:
    """Return which raw feature each input takes. Exports name inputs in letters, digits and underscores alone."""
    raw = {feature.name: feature for feature in examples.document.raw_features}
    plain = {re.sub(r"\W", "_", name, flags=re.ASCII): name for name in raw}
    inputs = signature.structured_input_signature[1]
    names = {name: plain.get(name) or plain.get(name.removeprefix("feature_")) for name in inputs}
    for name, feature in names.items():
        if feature is None:
            raise DataError(f"{folder}: its input '{name}' is no raw feature of these examples ({_listed(raw)}).")
        wanted = inputs[name].dtype.name
        if raw[feature].dtype != wanted:
            raise DataError(f"{folder}: its input '{name}' is {wanted}, the raw feature is {raw[feature].dtype}.")
    return {name: feature for name, feature in names.items() if feature is not None}


def _by_our_labels(folder: str, outputs: Floats, ours: list[str]) -> Floats:
    text = storage.read_text(storage.join(folder, "labels.txt"))
    theirs = text.removesuffix("\n").split("\n") if text is not None else []
    if len(theirs) != outputs.shape[1]:
        raise DataError(
            f"{Path(folder) / 'labels.txt'}: {len(theirs)} labels for {outputs.shape[1]} outputs. One label a line is expected."
        )
    result = np.zeros((len(outputs), len(ours) + 1), np.float32)
    for column, label in enumerate(theirs):
        place = ours.index(label) if label in ours else len(ours)
        result[:, place] = np.maximum(result[:, place], outputs[:, column])
    return result


def _listed(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
