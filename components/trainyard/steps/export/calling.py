"""Instructions to call each exported file: signature.json, and a runnable example per format below `examples/`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, assert_never

from trainyard.contract.artifacts.preprocess import Examples, Feature, RawFeature
from trainyard.contract.statistics.drift import FeatureStatistics, Statistics
from trainyard.contract.version import VOCABULARIES
from trainyard.data.trained import output_name
from trainyard.spec.columns import Text, input_name
from trainyard.spec.recipe import Format, Recipe
from trainyard.steps.export.signature import Border

_SIGNATURE, _EXAMPLES, _ROW = "signature.json", "examples", "row.json"
_DAY, _WORDS = "2024-01-31", 3  # of the made row
_MISSING = {"float32": "NaN", "int64": None, "string": ""}

_HEAD = '''"""Ask {path}: python {script} {argument}"""

{standard}import sys
from pathlib import Path

{imports}

folder = Path(__file__).resolve().parent.parent
'''
_PREPROCESS = """sys.path.insert(0, str(folder))
from preprocess import Preprocessing

preprocessing = Preprocessing(folder)
(example,) = preprocessing.read(sys.argv[1])
"""
_ZEROS = """# As preprocessing_fn of the recipe's module makes them.
formats = json.loads((folder / "signature.json").read_text())["formats"]
tensors = formats["{format}"]["inputs"].items()
inputs = {{name: np.zeros([size or 1 for size in of["shape"]], of["dtype"]) for name, of in tensors}}
"""
_SAVED_MODEL = """paths = (folder / "saved_model", folder.parent)  # of an export, and of a pushed version
path = next((path for path in paths if (path / "saved_model.pb").exists()), paths[0])
{inputs}model = tf.saved_model.load(str(path))
for name, output in model.signatures["serving_default"](**inputs).items():
    print(name, output.numpy()[0])
"""
_IMAGE = """inputs = {"image": tf.constant([Path(sys.argv[1]).read_bytes()])}
"""
_COLUMNS = """inputs, row = {}, json.loads(Path(sys.argv[1]).read_text())
for column in json.loads((folder / "signature.json").read_text())["columns"]:
    value = column["missing"] if row.get(column["name"]) is None else row[column["name"]]
    if isinstance(value, list):
        value = column["separator"].join(value)
    inputs[column["input"]] = tf.constant([float(value) if column["dtype"] == "float32" else str(value)])
"""
_KERAS = """outputs = keras.models.load_model(folder / "model.keras")(inputs)
print({answer})
"""
_LITERT = """interpreter = Interpreter(str(folder / "{path}"))
outputs = interpreter.get_signature_runner()(**inputs)
"""
_ONNX = """session = InferenceSession(str(folder / "{path}"), providers=["CPUExecutionProvider"])
names = [output.name for output in session.get_outputs()]
outputs = dict(zip(names, session.run(names, inputs)))
"""
_ANSWERS = {
    "classification": "keras.ops.softmax(outputs)",
    "multi_label": "keras.ops.sigmoid(outputs)",
    "regression": "outputs",
}


def write(
    recipe: Recipe,
    document: Examples,
    examples: str,
    files: Mapping[Format, str],
    borders: Mapping[str, Border],
    to: Path,
    thresholds: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Write signature.json and the examples of the exported `files`, paths by format, into the folder `to`.

    borders: of the files for devices, by path. thresholds: of decisions, by class. Call after `device.write`.
    """
    statistics = Statistics.read(examples).features
    columns = [
        _column(feature, recipe, statistics.get(feature.name, {}).get("train"), to) for feature in document.raw_features
    ]
    has_runtime = (to / "preprocess.py").exists()
    (to / _EXAMPLES).mkdir()
    if document.image is None and has_runtime:
        row = {column["name"]: column["example"] for column in columns}
        (to / _EXAMPLES / _ROW).write_text(json.dumps(row, indent=1, ensure_ascii=False), encoding="utf-8")
    for column in columns:
        del column["example"]
    formats = {
        format: {
            "path": path,
            **(_border(format, document, columns) if path not in borders else _ranged(borders[path], document)),
            "example": _script(format),
        }
        for format, path in files.items()
    }
    content = {
        "task": document.task,
        "classes": document.labels,
        "targets": document.targets or None,
        "label_separator": recipe.data.label_separator,
        "thresholds": dict(thresholds),
        "columns": columns,
        "formats": formats,
    }
    (to / _SIGNATURE).write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
    for format, path in files.items():
        (to / _script(format)).write_text(_example(format, path, document, has_runtime), encoding="utf-8")


def _column(feature: RawFeature, recipe: Recipe, train: FeatureStatistics | None, folder: Path) -> dict[str, Any]:
    """Return one raw input of the SavedModel, with a made `example` value."""
    settings = (recipe.data.features | recipe.data.inputs).get(feature.name)
    kind = "image" if recipe.data.is_image else settings.type if settings else None
    separator = settings.separator if isinstance(settings, Text) else None
    known = train is not None and train.min is not None and feature.dtype != "string"
    return {
        "name": feature.name,
        "input": input_name(feature.name),
        "dtype": feature.dtype,
        "type": kind,
        "separator": separator,
        "missing": None if kind == "image" else _MISSING[feature.dtype],
        "range": [train.min, train.max] if train and known else None,
        "example": _made(feature, kind, separator, train, folder),
    }


def _made(
    feature: RawFeature, kind: str | None, separator: str | None, train: FeatureStatistics | None, folder: Path
) -> Any:
    if feature.dtype != "string":
        return train.mean if train and train.mean is not None else 0.0
    if kind == "date":
        return _DAY
    if feature.learned is None or feature.learned.vocabulary is None:
        return ""
    lines = (folder / VOCABULARIES / feature.learned.vocabulary).read_text(encoding="utf-8").split("\n")[:-1]
    values = [line for line in lines if line != feature.learned.missing]
    return (separator or " ").join(values[:_WORDS]) if kind == "text" else next(iter(values), "")


def _border(format: Format, document: Examples, columns: list[dict[str, Any]]) -> Border:
    """Return the inputs and outputs of a format for servers; the size of a batch is null."""
    match format:
        case "keras":
            outputs = {"logits" if document.labels else "prediction": _tensor("float32", document.outputs)}
            return {"inputs": {feature.name: _input(feature) for feature in document.features}, "outputs": outputs}
        case "saved_model":
            return _raw_border(document, columns)
        case "litert_float32" | "litert_float16" | "litert_dynamic" | "litert_int8" | "litert_batch" | "onnx":
            raise AssertionError(f"the border of {format} is read from its file")
        case _:
            assert_never(format)


def _raw_border(document: Examples, columns: list[dict[str, Any]]) -> Border:
    inputs = {column["input"]: {**_tensor(column["dtype"]), "range": column["range"]} for column in columns}
    if document.labels is None:
        return {
            "inputs": inputs,
            "outputs": {"prediction": _tensor("float32", *([document.outputs] if document.targets else []))},
        }
    outputs = {"probabilities": {**_tensor("float32", document.outputs), "range": [0, 1]}, "label": _tensor("string")}
    if document.task == "classification":
        outputs["label_id"] = {**_tensor("int64"), "range": [0, document.outputs - 1]}
    return {"inputs": inputs, "outputs": outputs}


def _ranged(border: Border, document: Examples) -> Border:
    """Return the `border` of a file for devices with the range of each real number or id."""
    ranges = {input_name(feature.name): _input(feature)["range"] for feature in document.features}
    is_share = output_name(document.task) == "probabilities"
    return {
        "inputs": {name: {**tensor, "range": ranges[name]} for name, tensor in border["inputs"].items()},
        "outputs": {
            name: {**tensor, "range": [0, 1] if is_share else None} for name, tensor in border["outputs"].items()
        },
    }


def _input(feature: Feature) -> dict[str, Any]:
    ids = [0, feature.vocabulary_size - 1] if feature.vocabulary_size else None
    return {**_tensor(feature.dtype, *feature.shape), "range": [0, 255] if feature.encoded else ids}


def _tensor(dtype: str, *shape: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [None, *shape]}


def _script(format: Format) -> str:
    return f"{_EXAMPLES}/ask_{format}.py"  # keras.py would be imported in place of Keras


def _call(format: Format) -> tuple[str, str]:
    """Return the import of the library that runs a file of `format`, and the lines that ask the file."""
    match format:
        case "saved_model":
            return "import tensorflow as tf", _SAVED_MODEL
        case "keras":
            return "import keras", _KERAS
        case "onnx":
            return "from onnxruntime import InferenceSession", _ONNX
        case "litert_float32" | "litert_float16" | "litert_dynamic" | "litert_int8" | "litert_batch":
            return "from ai_edge_litert.interpreter import Interpreter", _LITERT
        case _:
            assert_never(format)


def _example(format: Format, path: str, document: Examples, has_runtime: bool) -> str:
    """Return a script that asks the file of `format`, in at most 20 lines."""
    is_image, is_server = document.image is not None, format == "saved_model"
    needs_json = (not has_runtime and not is_server) or (is_server and not is_image)
    needs_example = has_runtime or is_server
    library, call = _call(format)
    head = _HEAD.format(
        path=path,
        script=_script(format),
        argument=("photo.jpg" if is_image else f"{_EXAMPLES}/{_ROW}") if needs_example else "",
        standard="import json\n" if needs_json else "",
        imports=library if needs_example else f"import numpy as np\n{library}",
    )
    call = call.format(path=path, answer=_ANSWERS[document.task], inputs=_IMAGE if is_image else _COLUMNS)
    if is_server:
        return head + call
    if not has_runtime:
        return head + _ZEROS.format(format=format) + call + ("" if format == "keras" else "print(outputs)\n")
    if format == "keras":
        return head + _PREPROCESS + "inputs = preprocessing.features(example)\n" + call
    inputs = f'inputs = preprocessing.inputs(example, "{path}")\n'
    return f'{head}{_PREPROCESS}{inputs}{call}print(preprocessing.answer(outputs, "{path}"))\n'
