"""Predictions of the trained model and of the champion for the same examples in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from trainyard import events
from trainyard.contract import version
from trainyard.contract.artifacts.evaluate import thresholds_by_id
from trainyard.contract.document import Split
from trainyard.data import trained
from trainyard.data.examples import RAW, ExampleFolder, KeyedBatch, Tensors
from trainyard.data.trained import UNREADABLE, Replicas, reason
from trainyard.errors import DataError
from trainyard.spec.columns import input_name
from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate.metrics.predictions import Floats, SplitPredictions
from trainyard.steps.evaluate.metrics.statistic import MOST_WHOLE

if TYPE_CHECKING:
    from tensorflow import _ConcreteFunction


_ROW_BATCH = 4096  # measured: a small network needs half the CPU time of 1,024; larger batches gain little

Predict = Callable[[dict[str, tf.Tensor]], tf.Tensor]


def replicated(folder: str, examples: ExampleFolder, in_float32: bool = False) -> Replicas[Predict]:
    """Return `trained.predictor` of the model in train's output `folder`, compiled. Raises as `trained.load`."""

    def load() -> Predict:
        model = trained.load(folder)
        model = trained.in_float32(model) if in_float32 else model
        return tf.function(trained.predictor(model, examples.document.task), autograph=False, reduce_retracing=True)

    return Replicas(load(), load)


def model_predictions(
    replicas: Replicas[Predict],
    folder: str,
    examples: ExampleFolder,
    split: Split,
    batches: tf.data.Dataset[KeyedBatch],
    add_raw: Callable[[Tensors], None],
) -> tuple[SplitPredictions, NDArray[Any]]:
    """Return the predictions of `replicas` (the model of `folder`) for `split`, and the examples' keys (n,) bytes.

    `batches` is the dataset `examples.batches(split, …)`; `add_raw` gets its raw columns, if there are any.

    Raises `DataError` if the split is empty, or a prediction is not finite.
    """
    labels, outputs, keys = [], [], []
    total = examples.document.splits[split].examples
    done = 0
    for (features, label, key), answers in replicas.map(answer_batch, batches):
        add_raw({name.removeprefix(RAW): column for name, column in features.items() if name.startswith(RAW)})
        outputs.append(answers)
        labels.append(label.numpy())
        keys.append(key.numpy().astype(np.bytes_))  # objects take three times as much
        done += len(keys[-1])
        if len(keys) % 50 == 0:
            events.progress(done, total, "examples")
    if not keys:
        raise DataError(f"{examples.uri}: the split '{split}' holds no examples to judge. Give it a fraction above 0.")
    predictions = SplitPredictions(np.concatenate(labels), np.concatenate(outputs), examples.weights(split))
    _require_finite(predictions.outputs, folder)
    return predictions, np.concatenate(keys)


def answer_batch(predict: Predict, batch: KeyedBatch) -> Floats:
    """Return the predictions for the features of `batch`, without its raw columns."""
    answers: Floats = predict({name: tensor for name, tensor in batch[0].items() if not name.startswith(RAW)}).numpy()
    return answers


def batch_size(recipe: Recipe, examples: ExampleFolder, split: Split) -> int:
    """Return the number of examples of `split` in a batch: that of training, for many rows of a table a larger one."""
    is_large = examples.document.image is None and examples.document.splits[split].examples > MOST_WHOLE
    return max(recipe.train.batch_size, _ROW_BATCH) if is_large else recipe.train.batch_size


def champion_predictions(folder: str, examples: ExampleFolder, split: Split, batch_size: int) -> SplitPredictions:
    """Return the predictions of the SavedModel `folder` for the raw features of `split`, through its serving signature.

    Its classes are matched with ours by name: probabilities (n, classes + 1), the last column the highest of the
    classes that we do not have, (n, classes) of multi_label; a class that it does not have gets 0. Its classes are
    predicted by its own thresholds.
    Raises `DataError` that names what it lacks or does not know.
    """
    signature = _signature(folder)
    names = _inputs(folder, signature, examples)
    document = examples.document
    output = trained.output_name(document.task)
    if output not in signature.structured_outputs:
        raise DataError(
            f"{folder}: its signature has no output '{output}' but {_listed(signature.structured_outputs)}."
        )
    labels, outputs = [], []

    def ask(serve: _ConcreteFunction, batch: tuple[Tensors, tf.Tensor]) -> Floats:
        inputs = {name: batch[0][feature] for name, feature in names.items()}
        answers: Floats = serve(**inputs)[output].numpy()
        return answers

    replicas = Replicas(signature, partial(_signature, folder))
    for (_raw, label), answers in replicas.map(ask, examples.raw_batches(split, batch_size)):
        outputs.append(answers)
        labels.append(label.numpy())
    predictions = np.concatenate(outputs)
    _require_finite(predictions, folder)
    thresholds: dict[int, float] = {}
    if document.labels is not None:
        thresholds = _champion_thresholds(folder, document.labels)
        predictions = _in_label_order(folder, predictions, document.labels)
        if document.task == "multi_label":
            predictions = predictions[:, :-1]
    elif (targets := version.names(folder, version.TARGETS) or []) != document.targets:
        raise DataError(
            f"{folder}: predicts {_listed(targets)}, and these examples have {_listed(document.targets)} as targets."
        )
    return SplitPredictions(np.concatenate(labels), predictions, examples.weights(split), thresholds)


def _champion_thresholds(folder: str, labels: list[str]) -> dict[int, float]:
    """Return the champion's decision thresholds by our class ids."""
    thresholds = version.thresholds(folder)
    if unknown := [label for label in thresholds if label not in labels]:
        raise DataError(
            f"{folder}: predicts by a threshold for '{unknown[0]}', a class that these examples do not have "
            f"({_listed(labels)})."
        )
    return thresholds_by_id(thresholds, labels)


def _require_finite(outputs: Floats, folder: str) -> None:
    wrong = int((~np.isfinite(outputs)).reshape(len(outputs), -1).any(axis=1).sum())
    if wrong:
        raise DataError(
            f"{folder}: {wrong} of the model's {len(outputs)} answers are NaN or infinite. "
            "Only numbers can be judged. Train again with a smaller train.optimizer.learning_rate."
        )


def _signature(folder: str) -> _ConcreteFunction:
    try:
        loaded = tf.saved_model.load(folder)
    except UNREADABLE as error:
        raise DataError(f"{folder}: is not a SavedModel that loads ({reason(error)}).") from error
    if "serving_default" not in loaded.signatures:
        raise DataError(f"{folder}: has no signature 'serving_default' but {_listed(loaded.signatures)}.")
    return loaded.signatures["serving_default"]


def _inputs(folder: str, signature: _ConcreteFunction, examples: ExampleFolder) -> dict[str, str]:
    """Return the raw feature of each model input, by its name in the export."""
    raw = {feature.name: feature for feature in examples.document.raw_features}
    exported = {input_name(name): name for name in raw}
    inputs = signature.structured_input_signature[1]
    names = {name: exported.get(name) for name in inputs}
    for name, feature in names.items():
        if feature is None:
            raise DataError(f"{folder}: its input '{name}' is no raw feature of these examples ({_listed(raw)}).")
        dtype = inputs[name].dtype.name
        if raw[feature].dtype != dtype:
            raise DataError(f"{folder}: its input '{name}' is {dtype}, the raw feature is {raw[feature].dtype}.")
    return {name: feature for name, feature in names.items() if feature is not None}


def _in_label_order(folder: str, outputs: Floats, labels: list[str]) -> Floats:
    champion_labels = version.names(folder, version.LABELS) or []
    if len(champion_labels) != outputs.shape[1]:
        raise DataError(
            f"{Path(folder) / version.LABELS}: {len(champion_labels)} labels for {outputs.shape[1]} outputs. "
            "One label a line is expected."
        )
    result = np.zeros((len(outputs), len(labels) + 1), np.float32)
    for column, label in enumerate(champion_labels):
        target = labels.index(label) if label in labels else len(labels)
        result[:, target] = np.maximum(result[:, target], outputs[:, column])
    return result


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
