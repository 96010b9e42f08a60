"""The records of a request, read by the rules of docs/reference/values.md; errors name the field."""

from __future__ import annotations

import base64
import binascii
import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from trainyard.errors import did_you_mean, listed
from trainyard.readers.rows import BadRow
from trainyard.serving import raw_tensors
from trainyard.serving.bad_request import BadRequest, mistyped, shown
from trainyard.spec.columns import input_name
from trainyard.steps.predict.images import checked
from trainyard.steps.predict.pushed_model import PushedModel, RawInput
from trainyard.values.missing import is_declared
from trainyard.values.patterns import MAX_FLOAT32
from trainyard.values.text import canonical, canonical_list, day, json_number, json_object, number
from trainyard.values.zones import time_zone

Row = tuple[Any, ...]
"""The values of one record in the order of the model's inputs: a float, an integer, a text, or an image as bytes."""

SIGNATURE = "serving_default"
"""The signature that is served."""

_BINARY = "b64"  # as TensorFlow Serving marks bytes
INTEGERS: dict[str, tuple[int, int]] = {
    **{f"INT{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
}
"""The least and the largest number of each integer type of the Open Inference Protocol."""

_FLOATS = {
    name: (1 << power) - (1 << half)
    for name, power, half in (("FP16", 16, 4), ("BF16", 128, 119), ("FP32", 128, 103), ("FP64", 1024, 970))
}
"""From this number on, each float type of the protocol rounds to infinity."""

_DATATYPES = ["BOOL", *INTEGERS, *_FLOATS, "BYTES"]
"""Source: https://github.com/kserve/open-inference-protocol, required_api.md."""
_NAMES = 20  # columns in a message; chosen
_INT64 = 1 << 63


class _Number(str):
    """A number of JSON, as the text that it is."""

    __repr__ = str.__str__  # a message tells 5 from '5'


class _NotANumber(_Number):
    """NaN of JSON: empty as a missing cell, but a value of float tensors alone."""

    def __repr__(self) -> str:
        return "NaN"


JSON_BYTES = "Inference-Header-Content-Length"
"""The header with the number of bytes of JSON before raw tensors, in a request and in an answer."""


@dataclass(frozen=True)
class Wanted:
    """The outputs that a request asks for, all if it names none. raw: whether each is wanted as a raw tensor.

    raw_by_default: the same of those that it does not name.
    """

    raw: Mapping[str, bool]
    raw_by_default: bool


class Records:
    """Reads the requests for one model. decimals: names of the inputs whose values may be floats."""

    def __init__(self, model: PushedModel) -> None:
        self._model = model
        self._takes_images = model.pixels is not None
        self._zone = time_zone(model.time_zone)
        # A client of TensorFlow Serving uses the names of the signature.
        self._columns = {input_name(feature.name): feature.name for feature in model.inputs}
        self._columns |= {feature.name: feature.name for feature in model.inputs}
        decimals = {feature.name for feature in model.inputs if feature.dtype == "float32"}
        self.decimals = {name for name, column in self._columns.items() if column in decimals}

    def tensorflow_serving_rows(self, body: bytes) -> tuple[list[Row], bool]:
        """Return the rows of a request of TensorFlow Serving, and whether it asks for columns instead of rows."""
        request = _object(_parsed(body), "the request", {"instances", "inputs", "parameters", "signature_name"})
        if parameters := request.get("parameters"):  # which Vertex AI passes on
            names = [name[:100] for name in parameters] if isinstance(parameters, dict) else [shown(parameters)]
            found = listed(names, _NAMES)
            raise BadRequest(f"parameters: the model takes none, {found} was found. Leave them out, or send {{}}.")
        require_signature(request.get("signature_name", ""), "signature_name")
        if ("instances" in request) == ("inputs" in request):
            raise BadRequest("the request: either 'instances' or 'inputs' is expected.")
        if "inputs" in request:
            columns = request["inputs"]
            if not isinstance(columns, dict) or set(columns) == {_BINARY}:
                columns = {self._only("inputs"): columns}
            return self._from_columns(columns, "inputs"), True
        instances = _list(request["instances"], "instances")
        if not instances:
            raise BadRequest("instances: is empty. Send at least one record.")
        return [self._row(instance, f"instances[{index}]") for index, instance in enumerate(instances)], False

    def examples_rows(self, body: bytes) -> list[Row]:
        """Return the rows of a request of TensorFlow Serving's classify and regress."""
        request = _object(_parsed(body), "the request", {"context", "examples", "signature_name"})
        require_signature(request.get("signature_name", ""), "signature_name")
        examples = [
            _features(example, f"examples[{index}]")
            for index, example in enumerate(_list(request.get("examples"), "examples"))
        ]
        return self.example_rows(examples, _features(request.get("context", {}), "context"), bare=False)

    def example_rows(
        self, examples: Sequence[Mapping[str, Any]], context: Mapping[str, Any], *, bare: bool
    ) -> list[Row]:
        """Return the rows of `examples`, whose features may be lists, with the features of `context` in each of them.

        An absent feature is a missing value, as in tf.Example.
        """
        if not examples:
            raise BadRequest("examples: is empty. Send at least one record.")
        rows: list[Row] = []
        for index, example in enumerate(examples):
            place = f"examples[{index}]"
            if both := sorted(set(context) & set(example)):
                raise BadRequest(f"{place}.{both[0][:100]}: is in the context as well. Send one value.")
            record = {name: _single(value) for name, value in {**context, **example}.items()}
            found = {self._columns.get(name) for name in record}
            absent = {feature.name: None for feature in self._model.inputs if feature.name not in found}
            rows.append(self._typed(record | absent, place, bare))
        return rows

    def open_inference_rows(
        self, body: bytes, json_bytes: str = "", model_name: str = ""
    ) -> tuple[list[Row], str, Wanted]:
        """Return the rows of a request of the Open Inference Protocol, its id, and the outputs that it asks for.

        json_bytes: the number of bytes before the raw tensors, '' if there are none. model_name: that of the URL.
        """
        size = _bounded(json_bytes, len(body), JSON_BYTES) if json_bytes else len(body)
        request = _object(_parsed(body[:size]), "the request", {"id", "inputs", "outputs", "parameters", "model_name"})
        if request.get("model_name", model_name) != model_name:  # which KServe's client repeats
            given = str(request["model_name"])[:100]
            raise BadRequest(f"model_name: {given!r} is not the model of the URL, {model_name!r}. Leave it out.")
        tensors: list[tuple[Any, list[Any]]] = []
        raw = body[size:]
        for index, item in enumerate(_list(request.get("inputs"), "inputs")):
            place = f"inputs[{index}]"
            tensor = _object(item, place, {"name", "shape", "datatype", "data", "parameters"})
            datatype = require_datatype(tensor.get("datatype"), place)
            name, parameters = tensor.get("name"), tensor.get("parameters")
            if isinstance(parameters, dict) and "binary_data_size" in parameters:
                if "data" in tensor:
                    raise BadRequest(f"{place}.data: stands beside binary_data_size. Send one of them.")
                size = _bounded(parameters["binary_data_size"], len(raw), f"{place}.parameters.binary_data_size")
                own, raw = raw[:size], raw[size:]
                values = raw_tensors.column(own, datatype, str(name), place, is_decimal=name in self.decimals)
            else:
                values = _flat(tensor, datatype, place)
            require_shape(_list(tensor.get("shape"), f"{place}.shape"), len(values), place)
            tensors.append((name, values))
        if raw:
            raise BadRequest(f"the request: its last {len(raw):,} bytes belong to no input.")
        raw_by_default = _flag(request, "binary_data_output", default=False)
        wanted = [
            _object(item, f"outputs[{index}]", {"name", "parameters"})
            for index, item in enumerate(_list(request.get("outputs", []), "outputs"))
        ]
        outputs = {str(output.get("name")): _flag(output, "binary_data", raw_by_default) for output in wanted}
        return self.tensor_rows(tensors), str(request.get("id") or ""), Wanted(outputs, raw_by_default)

    def tensor_rows(self, tensors: Sequence[tuple[Any, list[Any]]]) -> list[Row]:
        """Return the rows of named tensors, whose values are as `_typed` reads them if they stand without an object."""
        columns: dict[str, list[Any]] = {}
        for index, (name, values) in enumerate(tensors):
            if not isinstance(name, str) or name in columns:
                raise BadRequest(f"inputs[{index}].name: a name that occurs once is expected, {shown(name)} was found.")
            columns[name] = values
        return self._from_columns(columns, "inputs", bare=True)

    def _row(self, instance: Any, place: str) -> Row:
        if not isinstance(instance, dict) or set(instance) == {_BINARY}:
            instance = {self._only(place): instance}
        return self._typed(instance, place, bare=False)

    def _only(self, place: str) -> str:
        """Return the name of the model's only input, whose value may stand without its name."""
        if len(self._model.inputs) != 1:
            raise BadRequest(f"{place}: an object with a value for each column is expected.")
        return self._model.inputs[0].name

    def _from_columns(self, columns: Mapping[str, Any], place: str, bare: bool = False) -> list[Row]:
        lists = {name: _list(values, f"{place}.{name}") for name, values in columns.items()}
        lengths = {len(values) for values in lists.values()}
        if len(lengths) > 1:
            counts = listed([f"{name} {len(values)}" for name, values in lists.items()], _NAMES)
            raise BadRequest(f"{place}: all columns must have as many values, {counts} were found.")
        if not lengths or 0 in lengths:
            raise BadRequest(f"{place}: is empty. Send at least one record.")
        rows = (dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True))
        return [self._typed(row, f"{place}[{index}]", bare) for index, row in enumerate(rows)]

    def _typed(self, record: Mapping[str, Any], place: str, bare: bool) -> Row:
        """Return the values of `record`: texts, truth values, bytes, None, and floats for `decimals`.

        bare: an image is bytes or base64 without an object around it.
        """
        named: dict[str, Any] = {}
        for name, value in record.items():
            column = self._columns.get(name)
            if column is None:
                names = [feature.name for feature in self._model.inputs]
                hint, takes = did_you_mean(name, names), listed(names, _NAMES)
                raise BadRequest(f"{place}.{name}: the model has no such input.{hint} It takes: {takes}.")
            if column in named:
                raise BadRequest(f"{place}.{name}: '{column}' occurs twice. Send one value.")
            named[column] = value
        if missing := [feature.name for feature in self._model.inputs if feature.name not in named]:
            raise BadRequest(
                f"{place}.{missing[0]}: {len(missing)} of {len(self._model.inputs)} inputs are not there: "
                f"{listed(missing, _NAMES)}. Send null for a missing value."
            )
        if self._takes_images:
            (value,) = named.values()
            return (self._image(value, f"{place}.{self._model.inputs[0].name}", bare),)
        return tuple(
            _value(named[feature.name], feature, self._zone, f"{place}.{feature.name}")
            for feature in self._model.inputs
        )

    def _image(self, value: Any, place: str, bare: bool) -> bytes:
        content = value if bare else value.get(_BINARY) if isinstance(value, dict) else None
        if isinstance(content, str):
            content = _decoded(content, place)
        if not isinstance(content, bytes):
            raise BadRequest(f"{place}: an image file is expected as {{'{_BINARY}': '<base64>'}}.")
        assert self._model.pixels is not None  # noqa: S101 - asked of images alone
        image = checked(place, content, self._model.pixels)
        if isinstance(image, BadRow):
            raise BadRequest(f"{place}: not a readable image ({image.reason}: {image.detail}).")
        return image[1]


def _parsed(body: bytes) -> Any:
    """Return the JSON in `body`, whose numbers stay the texts that they are, as in a file of CSV."""
    try:
        parsed = json.loads(
            body.decode("utf-8-sig"),
            parse_int=_Number,
            parse_float=lambda text: _Number(json_number(text)),
            parse_constant=_constant,
            object_pairs_hook=_distinct,
        )
        if rb"\ud" in body or rb"\uD" in body:
            json.dumps(parsed, ensure_ascii=False).encode()  # one half of a character is no text
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the request: is no JSON ({type(error).__name__}: {str(error)[:100]}).") from error
    return parsed


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    try:
        return json_object(pairs)
    except ValueError as error:
        raise BadRequest(f"the request: {error}. Send one value.") from error


def _constant(name: str) -> _Number:
    return _NotANumber() if name == "NaN" else _Number(str(float(name)))  # infinity has the text of a float


def _object(value: Any, place: str, allowed: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest(f"{place}: a JSON object is expected.")
    for name in value:
        if name not in allowed:
            hint = did_you_mean(name, sorted(allowed))
            raise BadRequest(f"{place}: unknown field '{name[:100]}'.{hint} Known are: {', '.join(sorted(allowed))}.")
    return value


def _features(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest(f"{place}: an object with a value or a list for each feature is expected.")
    return value


def _single(value: Any) -> Any:
    """Return the value of a feature that is a list of one, and None of an empty list."""
    return (value[0] if value else None) if isinstance(value, list) and len(value) < 2 else value


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadRequest(f"{place}: a list is expected.")
    return value


def _flat(tensor: Mapping[str, Any], datatype: str, place: str) -> list[Any]:
    """Return the values of a tensor (n,) or (n, 1), whose data may be nested in any number of lists."""
    values = _list(tensor.get("data"), f"{place}.data")
    while values and all(isinstance(value, list) and len(value) == 1 for value in values):
        values = [value[0] for value in values]
    for index, value in enumerate(values):
        if value is not None and not _is_of(datatype, value):
            raise mistyped(f"{place}.data[{index}]", tensor.get("name"), datatype, value)
    return values


def _flag(thing: Mapping[str, Any], name: str, default: bool) -> bool:
    parameters = thing.get("parameters")
    return parameters.get(name, default) is True if isinstance(parameters, dict) else default


def _bounded(number: Any, limit: int, place: str) -> int:
    text = str(number)
    if text.isascii() and text.isdecimal() and int(text) <= limit:
        return int(text)
    raise BadRequest(
        f"{place}: a number of bytes up to {limit:,} is expected, {shown(number)} was found. Raw tensors stand behind "
        f"the JSON, whose length is in the header {JSON_BYTES}."
    )


def require_signature(name: Any, place: str) -> None:
    """Raise `BadRequest` if a request names another signature than the one that is served."""
    if name not in ("", SIGNATURE):
        raise BadRequest(f"{place}: {shown(name)} is unknown. Only {SIGNATURE} is served.")


def require_shape(shape: Sequence[Any], count: int, place: str) -> None:
    """Raise `BadRequest` unless `shape` is that of a column of `count` values."""
    if [str(size) for size in shape] not in ([str(count)], [str(count), "1"]):
        raise BadRequest(
            f"{place}.shape: [{count}] or [{count}, 1] is expected for its data, {shown(shape)} was found."
        )


def require_datatype(datatype: Any, place: str) -> str:
    """Return `datatype`. Raises `BadRequest` if the Open Inference Protocol has no such one."""
    if not isinstance(datatype, str) or datatype not in _DATATYPES:
        raise BadRequest(f"{place}.datatype: one of {', '.join(_DATATYPES)} is expected, {shown(datatype)} was found.")
    return datatype


def _is_of(datatype: str, value: Any) -> bool:
    """Return True if a value of JSON is one of `datatype`."""
    if datatype in ("BOOL", "BYTES"):
        return isinstance(value, bool) if datatype == "BOOL" else type(value) is str
    if not isinstance(value, _Number):
        return False
    if isinstance(value, _NotANumber):
        return datatype in _FLOATS
    exact = Decimal(value)
    if datatype in _FLOATS:
        return exact.copy_abs() < _FLOATS[datatype]
    low, high = INTEGERS[datatype]
    return low <= exact <= high and exact == int(exact)


def _value(value: Any, feature: RawInput, zone: datetime.tzinfo, place: str) -> float | int | str:
    """Return the inputs of the serving signature, by the rules that `predict` applies to whole columns."""
    column = feature.column
    declared = column.missing if column is not None else ()
    if isinstance(value, float) and not abs(value) > MAX_FLOAT32 and not declared:
        return value + 0.0  # of -0 too
    text = _text(value, feature, place)
    if column is not None and is_declared(text, column.type, declared, zone):
        text = ""
    if feature.dtype == "string":
        if column is not None and column.type == "date":
            if (found := day(text, hour=column.hour, zone=zone)) is None:
                raise BadRequest(f"{place}: a day YYYY-MM-DD is expected, {shown(value)} was found.")
            return found
        if column is not None and column.separator is not None:
            return canonical_list(text, column.separator)
        return canonical(text)
    found_number = number(text)
    if feature.dtype == "int64":
        if found_number is None or not found_number.is_integer() or abs(found_number) >= _INT64:
            raise BadRequest(f"{place}: a whole number is expected, {shown(value)} was found.")
        return int(found_number)
    if found_number is None:
        raise BadRequest(f"{place}: a number is expected, {shown(value)} was found.")
    return found_number


def _text(value: Any, feature: RawInput, place: str) -> str:
    """Return a value of JSON as a cell of a file would have it, empty if it is missing."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict) and set(value) == {_BINARY}:
        value = _decoded(value[_BINARY], place)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise BadRequest(f"{place}: its bytes are no UTF-8 text.") from error
    separator = feature.column.separator if feature.column else None
    if isinstance(value, list) and separator is not None:
        texts = [canonical(_text(item, feature, place)) for item in value if not isinstance(item, list)]
        if len(texts) == len(value) and not any(separator in text for text in texts):
            return separator.join(texts)
        raise BadRequest(
            f"{place}: single values without '{separator}' in them are expected, {shown(value)} was found."
        )
    raise BadRequest(f"{place}: one value is expected, {shown(value)} was found.")


def _decoded(text: Any, place: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise BadRequest(f"{place}: is no base64 ({error}).") from error
