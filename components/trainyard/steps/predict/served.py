"""Asks the SavedModel: a batch that it refuses is halved until the inputs at fault are alone."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.config_pb2 import CallableOptions
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from trainyard.data import examples  # noqa: F401 - sets what TensorFlow and Keras read while they are imported
from trainyard.data.trained import UNREADABLE, reason
from trainyard.errors import DataError
from trainyard.readers.rows import BadRow
from trainyard.steps.predict.images import decoded_by_pillow
from trainyard.steps.predict.pushed_model import PushedModel
from trainyard.steps.predict.source import Array, InputBatch

_SIGNATURE = "serving_default"
_ALONE = tf.compat.v1.RunOptions(inter_op_thread_pool=-1)  # the calling thread runs the graph
_REFUSED = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)

Answers = tuple[pa.Array, Array]
"""The keys (n,) of inputs, and what the model gave: probabilities (n, classes), or predictions (n,), float32."""


class ServedModel:
    """The SavedModel of a pushed version, in the local `folder`."""

    def __init__(self, model: PushedModel, folder: Path) -> None:
        output = "prediction" if model.labels is None else "probabilities"
        try:
            self._names, self._call, self._call_alone = _stacked(folder, output)
        except (*UNREADABLE, DecodeError) as error:
            raise DataError(
                f"{model.folder}: its SavedModel cannot be loaded ({reason(error)}). Push the model again, or name "
                "another version."
            ) from error
        self._form = model.pixels

    def answer(self, batch: InputBatch) -> list[Answers | BadRow]:
        """Return the answers for the batch, and the inputs that have none."""
        try:
            outputs = self._serve(batch)
        except _REFUSED as error:
            if len(batch) == 1:
                return self._answer_refused(batch, _why(error.message))
            return [answer for half in batch.halves() for answer in self.answer(half)]
        return self._finite(batch, outputs)

    def _answer_refused(self, batch: InputBatch, why: str) -> list[Answers | BadRow]:
        """Return the answer of the one input that the graph refuses: of an image, if Pillow reads its pixels."""
        if self._form is None:
            return [BadRow(batch.keys[0].as_py(), None, "refused_by_the_model", why)]
        decoded = decoded_by_pillow(batch, self._form)
        if isinstance(decoded, BadRow):
            return [decoded]
        try:
            return self._finite(decoded, self._serve(decoded))
        except _REFUSED:
            return [BadRow(batch.keys[0].as_py(), None, "truncated_image", why)]

    def _finite(self, batch: InputBatch, outputs: Array) -> list[Answers | BadRow]:
        if np.isfinite(outputs).all():
            return [(batch.keys, outputs)]
        finite = np.asarray(np.isfinite(outputs.reshape(len(outputs), -1)).all(axis=1), np.bool_)
        answers: list[Answers | BadRow] = [
            BadRow(batch.keys[row].as_py(), None, "not_a_number", "the model gives NaN or infinity")
            for row in np.flatnonzero(~finite).tolist()
        ]
        if finite.any():
            answers.append((batch.keys.filter(pa.array(finite)), outputs[finite]))
        return answers

    def _serve(self, batch: InputBatch) -> Array:
        arrays = [np.stack([batch.inputs[name] for name in names], dtype=dtype) for dtype, names in self._names]
        call = self._call_alone if len(batch) == 1 else self._call
        outputs: Array = call(*arrays)[0]
        return outputs


def _stacked(folder: Path, output: str) -> tuple[list[tuple[Any, list[str]]], Any, Any]:
    """Return each dtype with the names of its inputs, and the signature as a function of their arrays (inputs, n).

    The second function is the same for one row. Both return a list with one output.

    With 30 inputs a call takes 0.43 of the time (measured), because each array costs a conversion. A session runs it,
    because it wakes no thread for one row, as an eager call does: 0.8 of the time for an image (measured). The graph is
    loaded as TensorFlow Serving does, without the functions' Python objects: 0.6 of the CPU time (measured). The method
    of the session is private, and Keras uses it, too; the public ones look at each value again, 0.2 ms (measured).
    """
    with tf.Graph().as_default() as graph:
        (meta,) = SavedModel.FromString((folder / "saved_model.pb").read_bytes()).meta_graphs
        signature = meta.signature_def[_SIGNATURE]
        if output not in signature.outputs:
            raise ValueError(f"its outputs are {', '.join(signature.outputs)}")
        names: dict[int, list[str]] = {}
        for name in sorted(signature.inputs):
            names.setdefault(signature.inputs[name].dtype, []).append(name)
        stacks = [tf.compat.v1.placeholder(tf.as_dtype(dtype), (len(group), None)) for dtype, group in names.items()]
        columns: dict[str, tf.Tensor] = {}
        for group, stack in zip(names.values(), stacks, strict=True):
            tensors = [signature.inputs[name].name for name in group]
            columns |= zip(tensors, tf.unstack(stack, num=len(group)), strict=True)
        session = tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(allow_soft_placement=True))
        logger = tf.get_logger()
        level = logger.level
        logger.setLevel(logging.ERROR)  # otherwise it warns on the user's screen that this function is deprecated
        try:
            tf.compat.v1.saved_model.load(session, [tf.saved_model.SERVING], str(folder), input_map=columns)
        finally:
            logger.setLevel(level)
        outputs = graph.get_tensor_by_name(signature.outputs[output].name)
        feed = [stack.name for stack in stacks]
        call, call_alone = (
            session._make_callable_from_options(CallableOptions(feed=feed, fetch=[outputs.name], run_options=options))
            for options in (None, _ALONE)
        )
        dtypes = [tf.as_dtype(dtype).as_numpy_dtype for dtype in names]
        return list(zip(dtypes, names.values(), strict=True)), call, call_alone


def _why(message: str) -> str:
    """Return the line of TensorFlow's message that is about the input, not about the graph."""
    about_the_graph = ("Graph execution error", "Detected at node", "<stack traces", "\t", " ")
    lines = [line for line in message.splitlines() if line and not line.startswith(about_the_graph)]
    return (lines or [message])[0][:200]
