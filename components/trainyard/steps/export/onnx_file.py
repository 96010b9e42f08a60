"""ONNX files for onnxruntime and all that reads ONNX: float32, any number of examples at once.

Like a LiteRT file it takes what the transform gives, because ONNX has no string vocabularies.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.data.trained import Tensors
from trainyard.errors import ConfigurationError
from trainyard.spec.columns import input_name
from trainyard.steps.export.signature import Border, answering, target_outputs

if TYPE_CHECKING:
    import onnx
    from onnxruntime import InferenceSession, NodeArg

Array = np.ndarray[Any, np.dtype[Any]]

_DOMAINS = frozenset(("", "ai.onnx", "ai.onnx.ml"))  # of the operators that onnxruntime itself brings
_BATCH = "batch"
_DIGITS = 12  # hexadecimal, of a digest in a name; chosen


def convert(model: keras.Model, document: Examples, opset: int) -> bytes:
    """Return the content of the .onnx file in the operators of `opset`.

    Raises `ConfigurationError` if they cannot express the model.
    """
    try:
        from tf2onnx.convert import from_function  # a second, for this format alone
    except ImportError as error:
        raise _not_installed(error) from error
    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)  # what it cannot convert, onnxruntime refuses below
    specification = {
        feature.name: tf.TensorSpec((None, *feature.shape), feature.dtype, name=input_name(feature.name))
        for feature in document.features
    }
    function = tf.function(answering(model, document, units={}), autograph=False, input_signature=[specification])
    handlers: dict[str, tuple[Callable[..., Any], list[str]]] = {
        "Erfc": (_complement, []),
        "SelectV2": (_choose, []),
    }
    # Keras calls a convolution of groups as a function for XLA, which the converter does not look into.
    tf.config.run_functions_eagerly(True)
    try:
        converted, _ = from_function(
            function, input_signature=[specification], opset=opset, custom_op_handlers=handlers
        )
    except Exception as error:  # the library does not say what it raises
        raise _inexpressible(error) from error
    finally:
        tf.config.run_functions_eagerly(False)
    _hold_captured(converted, function.get_concrete_function(specification).graph.captures)
    content = _repeatable(converted)
    session(content)
    return content


def _hold_captured(converted: onnx.ModelProto, captures: Any) -> None:
    """Make constants of values of layers that are no variables, such as a given mean: they became inputs."""
    from onnx import numpy_helper

    values = {placeholder.name: value for value, placeholder in captures}
    for asked in [asked for asked in converted.graph.input if asked.name in values]:
        converted.graph.input.remove(asked)
        converted.graph.initializer.append(numpy_helper.from_array(values[asked.name].numpy(), asked.name))


def _complement(graph: Any, node: Any, name: str, _arguments: Any) -> Any:
    """Replace TensorFlow's Erfc, which gelu has and ONNX has not, by 1 - Erf."""
    node.type = "Erf"
    one = graph.make_const(f"{name}/one", np.ones((), np.float32)).output[0]
    inputs = [one, node.output[0]]
    return graph.insert_new_node_on_output("Sub", node.output[0], name=f"{name}/complement", inputs=inputs)


def _choose(_graph: Any, node: Any, _name: str, _arguments: Any) -> Any:
    """Replace TensorFlow's SelectV2 by Where: the converter's own products make NaN of what is infinite (1.17)."""
    node.type = "Where"
    return node


def session(content: bytes) -> InferenceSession:
    """Return the file `content` ready to predict, on one thread.

    Raises `ConfigurationError` if it holds anything but ONNX's own operators and its own weights: a custom operator is
    code of its maker's, and an external weight a path on this machine.
    """
    try:
        import onnx
        from onnxruntime import InferenceSession, SessionOptions
    except ImportError as error:
        raise _not_installed(error) from error
    model = onnx.load_model_from_string(content)
    graphs = list(_graphs(model.graph))
    foreign = sorted({node.domain for graph in graphs for node in graph.node} - _DOMAINS)
    foreign += sorted({f"function {function.name}" for function in model.functions})
    if foreign:
        raise ConfigurationError(
            f"model.onnx: holds operators of {', '.join(foreign)}. Only those of ONNX itself are run. Export it again."
        )
    if any(tensor.external_data for graph in graphs for tensor in _tensors(graph)):
        raise ConfigurationError("model.onnx: names other files for its weights. Export it again.")
    options = SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    try:
        return InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no class in common
        raise _inexpressible(error) from error


def border(path: Path) -> Border:
    """Return the inputs and outputs of the ONNX file at `path` by name; shapes are those of one example."""
    opened = session(path.read_bytes())
    sides = {"inputs": opened.get_inputs(), "outputs": opened.get_outputs()}
    return {side: {node.name: _tensor(node) for node in nodes} for side, nodes in sides.items()}


class OnnxModel:
    """An ONNX file, ready to predict; the cores share the examples of a batch."""

    def __init__(self, path: Path, document: Examples) -> None:
        self._session = session(path.read_bytes())
        inputs = {node.name for node in self._session.get_inputs()}
        names = {feature.name: input_name(feature.name) for feature in document.features}
        self._inputs = {name: given for name, given in names.items() if given in inputs}
        self._outputs = target_outputs(document)
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1)

    def __call__(self, features: Tensors, _raw: Tensors) -> Array:
        """Return float32 probabilities (n, classes), or predictions (n,) or (n, targets), of features (n, ...)."""
        inputs = self._arrays(features)
        count = len(next(iter(inputs.values())))
        rows = [part for part in np.array_split(np.arange(count), os.cpu_count() or 1) if len(part)]
        chunks = [{name: values[part] for name, values in inputs.items()} for part in rows]
        return np.concatenate(list(self._pool.map(self._predict, chunks)))

    def ready(self, features: Tensors, _raw: Tensors) -> Callable[[], object]:
        """Return the call that predicts the examples (n, ...), whose arrays are made already."""
        inputs = self._arrays(features)
        return lambda: self._session.run(self._outputs, inputs)

    def _arrays(self, features: Tensors) -> dict[str, Array]:
        return {given: np.asarray(features[name]) for name, given in self._inputs.items()}

    def _predict(self, inputs: dict[str, Array]) -> Array:
        outputs = self._session.run(self._outputs, inputs)
        return outputs[0] if len(outputs) == 1 else np.stack(outputs, axis=1)


def _tensor(node: NodeArg) -> dict[str, Any]:
    dtype = {"tensor(float)": "float32", "tensor(int64)": "int64"}[node.type]
    return {"dtype": dtype, "shape": [size if isinstance(size, int) else 1 for size in node.shape]}


def _inexpressible(error: Exception) -> ConfigurationError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ConfigurationError(
        f"export.formats: onnx: ONNX cannot express the model ({reason[:200]}). "
        "Change the layer, or leave onnx out of export.formats."
    )


def _not_installed(error: ImportError) -> ConfigurationError:
    return ConfigurationError(
        f"export.formats: onnx: needs tf2onnx, onnx and onnxruntime ({error}). "
        "Install trainyard[cpu], or leave onnx out of export.formats."
    )


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield `graph` and those in its loops and branches."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in _inner(attribute):
                yield from _graphs(inner)


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the weights of `graph` and the constants of its nodes, but not those of the graphs in it."""
    yield from graph.initializer
    sparse = list(graph.sparse_initializer)
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            sparse += [attribute.sparse_tensor, *attribute.sparse_tensors]
    for tensor in sparse:
        yield from (tensor.values, tensor.indices)


def _inner(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _repeatable(model: onnx.ModelProto) -> bytes:
    """Return `model` as bytes, with nodes, weights and values named and ordered by what they compute.

    tf2onnx names them as it meets them in sets of strings, so that each process wrote another file.
    """
    graph = model.graph
    _rename(graph, {value.name: value.name for value in graph.input}, "")
    return model.SerializeToString(deterministic=True)


def _rename(graph: onnx.GraphProto, outer: Mapping[str, str], scope: str) -> None:
    """Rename and sort what is in `graph`; equal nodes become one.

    outer: new names by old ones of what the graph reads from outside. scope: what tells this graph from others; of the
    outermost one the outputs keep their names.
    """
    names = dict(outer)
    for number, value in enumerate(() if not scope else graph.input):
        names[value.name] = value.name = f"input_{_digest(scope, number)}"
    weights: dict[str, onnx.TensorProto] = {}
    for tensor in graph.initializer:
        old, tensor.name = tensor.name, ""
        names[old] = tensor.name = f"weight_{_digest(scope, tensor.SerializeToString(deterministic=True))}"
        weights[tensor.name] = tensor
    places = {value.name: place for place, value in enumerate(graph.output)}
    depths = dict.fromkeys(names.values(), 0)
    nodes: dict[str, onnx.NodeProto] = {}
    for node in graph.node:
        made = list(node.output)
        read = [names[name] if name else "" for name in node.input]
        for attribute in node.attribute:
            for inner in _inner(attribute):
                _rename(inner, names, _digest(scope, node.op_type, read, attribute.name))
                read += [name for one in _graphs(inner) for each in one.node for name in each.input if name in depths]
        node.input[:] = read[: len(node.input)]
        node.output[:] = [str(places.get(name, "")) for name in made]
        node.name = node.doc_string = ""
        node.attribute.sort(key=lambda attribute: attribute.name)
        key = f"{node.op_type}_{_digest(scope, node.SerializeToString(deterministic=True))}"
        names |= {
            old: old if old in places and not scope else f"{key}_{number}" for number, old in enumerate(made) if old
        }
        node.name, node.output[:] = key, [names[old] if old else "" for old in made]
        depths |= dict.fromkeys(node.output, 1 + max((depths[name] for name in read if name), default=0))
        nodes[key] = node
    for value in graph.output:
        value.name = names[value.name]
    ordered = sorted(nodes.values(), key=lambda node: (max(depths[name] for name in node.output), node.name))
    kept = [type(node).FromString(node.SerializeToString()) for node in ordered]
    tensors = [type(tensor).FromString(tensor.SerializeToString()) for _, tensor in sorted(weights.items())]
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(kept)
    graph.initializer.extend(tensors)
    for value in (*graph.input, *graph.output):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param:
                dimension.dim_param = "" if scope else _BATCH
    graph.name, graph.doc_string = "model", ""


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:_DIGITS]
