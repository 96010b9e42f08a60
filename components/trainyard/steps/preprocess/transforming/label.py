"""The label within a recipe's own `preprocessing_fn`: that of a TFX pipeline returns it, a served model has none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import tensorflow as tf
from tensorflow_transform import analyzer_nodes, graph_tools, nodes

from trainyard.spec.recipe import Data
from trainyard.spec.tables import formula

Tensors = dict[str, tf.Tensor]


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

        Source: tensorflow_transform 1.21, inspect_preprocessing_fn.py, which asks a graph of its own in this way.
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
