"""The recipe's own `preprocessing_fn`, held to what the rest of the step can store."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tensorflow as tf

from trainyard.data.module import load_module
from trainyard.errors import ConfigurationError
from trainyard.steps.preprocess.transforming.label import Columns

Tensors = dict[str, tf.Tensor]
Preprocessing = Callable[[Tensors, Mapping[str, tf.DType]], Tensors]


def load_preprocessing(module: str | None) -> Preprocessing | None:
    """Return the `preprocessing_fn` of the Python file `module`, or None if it has none.

    It takes the raw features, and the types of the columns that only the label is made of. The function may read
    those, too: what it computes from them is left out. Its other outputs become float32 and int64. Raises
    `ConfigurationError` if the file or the function fails, if an output is no dense tensor of numbers, or if an
    analyzer learns from the label.
    """
    custom = getattr(load_module(module), "preprocessing_fn", None) if module is not None else None
    if custom is None:
        return None
    place = f"module: {module}: preprocessing_fn"

    def preprocessing_fn(inputs: Tensors, label_types: Mapping[str, tf.DType]) -> Tensors:
        columns = Columns(inputs, label_types)
        try:
            outputs = dict(custom(columns))
        except Exception as error:
            raise ConfigurationError(
                f"{place}: fails ({type(error).__name__}: {error}). Its inputs are the columns of data.features and "
                "of the label, dense and of shape (batch,): float32, NaN if missing, or string, empty if missing. "
                "Correct it."
            ) from error
        if columns.stand_ins:
            outputs = _without_label(columns, outputs, place)
        return {name: _number(value, f"{place}: the output '{name}'") for name, value in outputs.items()}

    return preprocessing_fn


def _without_label(columns: Columns, outputs: Tensors, place: str) -> Tensors:
    """Return the `outputs` that a served model can compute. Trainyard keeps the label itself."""
    if analyzed := sorted(columns.analyzed()):
        raise ConfigurationError(
            f"{place}: an analyzer learns from {', '.join(analyzed)}, which the label is made of. Trainyard numbers "
            "the classes itself. Leave that output out."
        )
    depending = columns.depending(outputs)
    if not outputs.keys() - depending:
        raise ConfigurationError(
            f"{place}: each output is computed from {', '.join(sorted(columns.stand_ins))}, which the label is made "
            "of and a served model is not given. Return features of the other columns."
        )
    return {name: value for name, value in outputs.items() if name not in depending}


def _number(value: object, place: str) -> tf.Tensor:
    if isinstance(value, tf.Tensor) and value.shape.rank and value.shape[1:].is_fully_defined():
        if value.dtype.is_floating or value.dtype == tf.bool:
            return tf.cast(value, tf.float32)
        if value.dtype.is_integer:
            return tf.cast(value, tf.int64)
    raise ConfigurationError(
        f"{place} is {value!r}. A dense tensor of numbers is expected whose shape but for the batch is known. "
        "Convert it there."
    )
