"""Takes out of a transform graph what differs between two runs over the same data."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

if TYPE_CHECKING:
    from tensorflow.core.protobuf.saved_model_pb2 import _NodeDef

_NUMBERED = re.compile(r"(\w+_)(\d+)")
_BITS = 24  # of a float32's significand


def make_reproducible(saved_model: Path, work: str, *, rounds: bool) -> None:
    """Rewrite the folder `saved_model` so that equal content gives equal bytes; `work` is the run's temporary folder.

    tf.Transform names each lookup table after the temporary file of its vocabulary, and tables of one name are one
    table in a process. So the path becomes the digest of all vocabularies: two models share a table only if it is
    the same. TensorFlow numbers functions, and names captured tensors, by what the process did before: functions are
    renumbered in order, and captured tensors have no name. The nodes of a function come out of Python's sets.
    `fingerprint.pb` holds a random number and nothing that loading needs.

    rounds: whether float64 values that were learned get the digits of float32, as the columns have. Those beyond
    depend on the order in which an engine merges what its workers found.
    """
    digest = hashlib.sha256()
    for asset in sorted((saved_model / "assets").glob("*")):
        digest.update(f"{asset.name}\0".encode() + asset.read_bytes())
    path, stable = work.encode(), digest.hexdigest()[:16].encode()
    file = saved_model / "saved_model.pb"
    model = SavedModel.FromString(file.read_bytes())
    for node in _nodes(model):
        if "shared_name" in node.attr:
            node.attr["shared_name"].s = node.attr["shared_name"].s.replace(path, stable)
    if rounds:
        _round_learned(model)
    file.write_bytes(_renumbered(model).SerializeToString(deterministic=True))
    (saved_model / "fingerprint.pb").unlink(missing_ok=True)


def _round_learned(model: SavedModel) -> None:
    """Round the constants that functions capture; those that they are written with are inside of them."""
    for node in (node for meta_graph in model.meta_graphs for node in meta_graph.graph_def.node):
        tensor = node.attr["value"].tensor
        if node.op == "Const" and tensor.dtype == tf.float64.as_datatype_enum:
            significands, exponents = np.frexp(tf.make_ndarray(tensor))
            rounded = np.ldexp(np.round(significands * 2**_BITS), exponents - _BITS)
            tensor.CopyFrom(tf.make_tensor_proto(rounded))


def _renumbered(model: SavedModel) -> SavedModel:
    libraries = [meta_graph.graph_def.library for meta_graph in model.meta_graphs]
    matches = [_NUMBERED.fullmatch(function.signature.name) for item in libraries for function in item.function]
    ordered = sorted({match[0]: match for match in matches if match}.values(), key=lambda match: int(match[2]))
    names = {f'"{match[0]}"': f'"{match[1]}{rank}"' for rank, match in enumerate(ordered)}
    text = text_format.MessageToString(model)
    renumbered = text_format.Parse(re.sub(r'"\w+"', lambda name: names.get(name[0], name[0]), text), SavedModel())
    for library in (meta_graph.graph_def.library for meta_graph in renumbered.meta_graphs):
        library.function.sort(key=lambda function: function.signature.name)
        for function in library.function:
            function.node_def.sort(key=lambda node: node.name)
        for attributes in (argument.attr for item in library.function for argument in item.arg_attr.values()):
            if "_user_specified_name" in attributes and attributes["_user_specified_name"].s.isdigit():
                del attributes["_user_specified_name"]
    return renumbered


def _nodes(model: SavedModel) -> Iterator[_NodeDef]:
    for graph in (meta_graph.graph_def for meta_graph in model.meta_graphs):
        yield from graph.node
        for function in graph.library.function:
            yield from function.node_def
