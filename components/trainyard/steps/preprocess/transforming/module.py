"""The recipe's own `preprocessing_fn`, held to what the rest of the step can store."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from trainyard.data.module import load_module
from trainyard.errors import ConfigurationError

Preprocessing = Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]]


def load_preprocessing(module: str | None) -> Preprocessing | None:
    """Return the `preprocessing_fn` of the Python file `module`, or None if it has none.

    Its outputs become float32 and int64. Raises `ConfigurationError` if the file or the function fails, or if an
    output is no dense tensor of numbers.
    """
    custom = getattr(load_module(module), "preprocessing_fn", None) if module is not None else None
    if custom is None:
        return None
    where = f"module: {module}: preprocessing_fn"

    def preprocessing_fn(inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        try:
            outputs = dict(custom(inputs))
        except Exception as error:
            raise ConfigurationError(f"{where}: fails ({type(error).__name__}: {error}). Correct it.") from error
        return {name: _number(value, f"{where}: the output '{name}'") for name, value in outputs.items()}

    return preprocessing_fn


def _number(value: object, where: str) -> tf.Tensor:
    if isinstance(value, tf.Tensor) and value.shape.rank and value.shape[1:].is_fully_defined():
        if value.dtype.is_floating:
            return tf.cast(value, tf.float32)
        if value.dtype == tf.bool:
            return tf.cast(value, tf.float32)
        if value.dtype.is_integer:
            return tf.cast(value, tf.int64)
    raise ConfigurationError(
        f"{where} is {value!r}. A dense tensor of numbers is expected whose shape but for the batch is known. "
        "Convert it there."
    )
