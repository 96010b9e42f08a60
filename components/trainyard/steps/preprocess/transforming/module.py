"""The recipe's own `preprocessing_fn`, held to what the rest of the step can store."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import tensorflow as tf
from tensorflow_transform import analyzer_nodes, graph_tools, nodes

from trainyard.errors import ConfigurationError
from trainyard.runtime.recipe_module import load_module
from trainyard.spec import formula
from trainyard.spec.code import Files
from trainyard.spec.packages import Wheels
from trainyard.spec.recipe import Data

Tensors = dict[str, tf.Tensor]


class Preprocessing:
    """The `preprocessing_fn` of the recipe's module, which a Beam worker loads from the files that travel with it."""

    def __init__(
        self, module: str, files: Files, packages: Wheels, function: Callable[[Tensors], Mapping[str, tf.Tensor]]
    ) -> None:
        self._module = module
        self._files = files
        self._packages = packages
        self._function = function

    def __reduce__(self) -> tuple[Callable[..., Preprocessing | None], tuple[str, Files, Wheels]]:
        return load_preprocessing, (self._module, self._files, self._packages)

    def __call__(self, inputs: Tensors, label_types: Mapping[str, tf.DType]) -> Tensors:
        """Return the features of the raw `inputs`.

        label_types: of the columns that only the label is made of. The function may read these columns, but an output
        that it computes from them is dropped. Other outputs become float32 and int64. Raises `ConfigurationError` if
        the function fails, if an output is no dense tensor of numbers, or if an analyzer learns from the label.
        """
        place = f"module: {self._module}: preprocessing_fn"
        columns = Columns(inputs, label_types)
        try:
            outputs = dict(self._function(columns))
        except Exception as error:
            raise ConfigurationError(
                f"{place}: fails ({type(error).__name__}: {error}). Its inputs are the columns of data.features and "
                "of the label, dense and of shape (batch,): float32, NaN if missing, or string, empty if missing. "
                "Correct it."
            ) from error
        if columns.stand_ins:
            outputs = _without_label(columns, outputs, place)
        return {name: _number(value, f"{place}: the output '{name}'") for name, value in outputs.items()}


def load_preprocessing(module: str, files: Files, packages: Wheels) -> Preprocessing | None:
    """Return the `preprocessing_fn` of the recipe's file `module`, or None if it has none.

    Raises `ConfigurationError` if the file cannot be loaded.
    """
    function = getattr(load_module(module, files, packages), "preprocessing_fn", None)
    return None if function is None else Preprocessing(module, files, packages, function)


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


class Columns(Tensors):
    """The columns (n,) that a served model takes, by name; one that the label alone needs is empty in each row.

    stand_ins: those of the latter that were read.
    """

    def __init__(self, inputs: Tensors, label_types: Mapping[str, tf.DType]) -> None:
        super().__init__(inputs)
        self.stand_ins: Tensors = {}
        self._label_types = label_types

    def __missing__(self, name: str) -> tf.Tensor:
        if name not in self._label_types:
            raise KeyError(name)
        if name not in self.stand_ins:
            rows = tf.shape(next(iter(self.values())))[:1]
            self.stand_ins[name] = tf.fill(rows, "" if self._label_types[name] == tf.string else math.nan)
        return self.stand_ins[name]

    def depending(self, outputs: Tensors) -> set[str]:
        """Return the names of the `outputs` that are computed from the label's columns."""
        return {name for name, value in outputs.items() if self._sources([value])}

    def analyzed(self) -> set[str]:
        """Return the names of the label's columns that an analyzer learns from.

        Source: tensorflow_transform 1.21, inspect_preprocessing_fn.py, which examines its own graph the same way.
        """
        visitor = graph_tools.SourcedTensorsVisitor()
        for sink in self._graph.get_collection(analyzer_nodes.TENSOR_REPLACEMENTS):
            nodes.Traverser(visitor).visit_value_node(sink.future)
        return self._sources(visitor.sourced_tensors)

    def _sources(self, tensors: Iterable[tf.Tensor]) -> set[str]:
        sources = graph_tools.get_dependent_inputs(self._graph, self | self.stand_ins, list(tensors))
        return sources.keys() & self.stand_ins.keys()

    @property
    def _graph(self) -> tf.Graph:
        return next(iter(self.values())).graph


def label_types(data: Data, labels: list[str] | None) -> dict[str, tf.DType]:
    """Return the type of each column that the label, or a target, is read or computed from: string or float32.

    labels: the names of the classes, None for a regression.
    """
    are_numbers = data.label_separator is None and all(map(_is_number, labels or []))
    types = {name: tf.float32 if are_numbers else tf.string for name in data.labels if name not in data.derive}
    formulas = [data.derive[name] for name in data.labels if name in data.derive]
    return types | {
        name: tf.float32 if kind == "number" else tf.string for name, kind in formula.kinds(formulas).items()
    }


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
