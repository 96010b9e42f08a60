"""What a served model reads of a request: the values that `predict` reads of a file, and errors that name the field."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from grpc_tools import protoc

from trainyard.errors import ConfigurationError
from trainyard.readers.rows import BadRow
from trainyard.serving import rpc
from trainyard.serving.bad_request import BadRequest
from trainyard.serving.options import Options
from trainyard.serving.records import JSON_BYTES, Records, Wanted
from trainyard.serving.server import _predictions
from trainyard.serving.transport import RequestIds
from trainyard.serving.versions import Output
from trainyard.spec.columns import input_name
from trainyard.steps.predict.columns import table_items
from trainyard.steps.predict.pushed_model import PushedModel, RawColumn, RawInput

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAGbEMhgAAAABJRU5ErkJggg==")
COLUMNS = (
    RawInput(name="net worth", dtype="float32", column=RawColumn(type="numeric")),
    RawInput(name="city", dtype="string", column=RawColumn(type="category")),
    RawInput(name="day", dtype="string", column=RawColumn(type="date", hour=True)),
    RawInput(name="tags", dtype="string", column=RawColumn(type="text", separator=";")),
    RawInput(name="count", dtype="int64"),
)
GOOD = {"net worth": 1.5, "city": "Bern", "day": "2024-01-31", "tags": "a;b", "count": 3}
CELLS = [
    "1",
    " 1.50 ",
    "-0",
    "1e5",
    "1.0E+5",
    "TRUE",
    "n/a",
    "NaN",
    "",
    "1,0",
    "inf",
    "3.5e38",
    "007",
    "é",
    "é",
    "2024-02-30",
    "2024-03-01T09:05",
    "a\nb",
    "?",
    "1.0;2",
    "2024-03-01 00:00:00+09:00",
    "2024-03-01T25:00",
    "a; b;;c ",
    "9007199254740993",
    "٣",
    "_1",
    "0x10",
]


ODD_NUMBERS = ((b"1e400", "1e400"), (b"Infinity", "inf"), (b"-Infinity", "-inf"))


def model(*inputs: RawInput, **fields: Any) -> PushedModel:
    default = {"folder": "m/1", "labels": ("a", "b"), "pixels": None, "time_zone": "America/New_York"}
    return PushedModel(**default | {"inputs": inputs or COLUMNS} | fields)


def rows(body: Any, served: PushedModel | None = None) -> list[tuple[Any, ...]]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Records(served or model()).tensorflow_serving_rows(content)[0]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
@pytest.mark.parametrize("cell", CELLS)
def test_a_value_of_a_request_is_that_of_a_file_with_the_same_cell(column: RawInput, cell: str) -> None:
    batch = pa.record_batch({column.name: pa.array([cell], pa.string())})
    (item,) = table_items(batch, pa.array(["row"]), model(column), None)
    if isinstance(item, BadRow):
        with pytest.raises(BadRequest) as error:
            rows({"instances": [{column.name: cell}]}, model(column))
        assert str(error.value).startswith(f"instances[0].{column.name}: ") and repr(cell)[:40] in str(error.value)
        return
    ((value,),) = rows({"instances": [{column.name: cell}]}, model(column))
    expected = item.inputs[input_name(column.name)][0]
    np.testing.assert_array_equal(np.array([value], item.inputs[input_name(column.name)].dtype)[0], expected)


def test_numbers_booleans_and_null_of_json_are_the_texts_that_stand_for_them() -> None:
    city = model(RawInput(name="city", dtype="string", column=RawColumn(type="category")))
    for written, text in (
        (b"5", "5"),
        (b"5.0", "5"),
        (b"1e5", "100000"),
        (b"true", "true"),
        (b"null", ""),
        *ODD_NUMBERS,
    ):
        assert rows(b'{"instances": [{"city": %s}]}' % written, city) == [(text,)]
    assert rows(b'{"instances": [12345678901234567890]}', city) == [("12345678901234567890",)]
    ((missing, *_),) = rows(b'{"instances": [{"net worth": NaN, "city": "", "day": "", "tags": [], "count": 1}]}')
    assert math.isnan(missing)


def test_every_form_of_a_request_gives_the_same_rows() -> None:
    expected = [(1.5, "Bern", "2024-01-31T00", "a;b", 3)] * 2
    named = {input_name(name): value for name, value in GOOD.items()}
    for empty in ({}, None):
        assert rows({"instances": [GOOD, named | {"tags": ["a", " b "]}], "parameters": empty}) == expected
    assert rows({"inputs": {name: [value, value] for name, value in GOOD.items()}}) == expected
    datatypes = {float: "FP32", int: "INT64", str: "BYTES"}
    tensors = [
        {"name": name, "shape": [2, 1], "datatype": datatypes[type(value)], "data": [[value], [value]]}
        for name, value in GOOD.items()
    ]
    body = json.dumps({"id": "7", "inputs": tensors, "outputs": [{"name": "label"}]}).encode()
    assert Records(model()).open_inference_rows(body) == (expected, "7", Wanted({"label": False}, False))
    named_body = body.replace(b'"id"', b'"model_name": "m", "id"')  # as KServe's client does
    assert Records(model()).open_inference_rows(named_body, model_name="m")[0] == expected
    with pytest.raises(BadRequest, match="model_name: 'm' is not the model of the URL, 'other'"):
        Records(model()).open_inference_rows(named_body, model_name="other")
    encoded = base64.b64encode(PNG).decode()
    image = model(RawInput(name="image", dtype="string"), pixels={"channels": 1})
    for instance in ({"image": {"b64": encoded}}, {"b64": encoded}):
        assert rows({"instances": [instance]}, image) == [(PNG,)]
    body = json.dumps({"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": [encoded]}]}).encode()
    assert Records(image).open_inference_rows(body)[0] == [(PNG,)]


WITHOUT_CITY = {name: value for name, value in GOOD.items() if name != "city"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the request: is no JSON"),
        (b'{"instances": [' + b"[" * 100_000, "the request: is no JSON"),
        (b'{"instances": [{"city": "\\ud800"}]}', "the request: is no JSON"),
        (b"\xff", "the request: is no JSON"),
        ('{"instances": [{"city": "\\ud800"}]}'.encode("utf-16"), "the request: is no JSON"),
        (b'{"instances": [{"city": "a", "day": "", "city": "b"}]}', "the request: 'city' occurs twice in one object"),
        ([], "the request: a JSON object is expected"),
        ({"instances": [GOOD], "inputs": {}}, "the request: either 'instances' or 'inputs'"),
        ({"instance": [GOOD]}, "the request: unknown field 'instance'. Did you mean 'instances'?"),
        ({"instances": GOOD}, "instances: a list is expected"),
        ({"instances": []}, "instances: is empty"),
        ({"instances": [GOOD], "parameters": {"top": 3}}, "parameters: the model takes none, top was found."),
        ({"instances": [GOOD], "parameters": [3]}, "parameters: the model takes none, [3] was found."),
        ({"instances": [3]}, "instances[0]: an object with a value for each column is expected"),
        ({"instances": [GOOD], "signature_name": "x"}, "signature_name: 'x' is unknown"),
        ({"instances": [GOOD, GOOD | {"citi": 1}]}, "instances[1].citi: the model has no such input. Did you mean"),
        ({"instances": [WITHOUT_CITY]}, "instances[0].city: 1 of 5 inputs are not there"),
        ({"instances": [GOOD | {"net_worth": 1}]}, "instances[0].net_worth: 'net worth' occurs twice"),
        ({"instances": [GOOD | {"net worth": "much"}]}, "instances[0].net worth: a number is expected, 'much'"),
        ({"instances": [GOOD | {"net worth": [1]}]}, "instances[0].net worth: one value is expected, [1]"),
        ({"instances": [GOOD | {"city": {"a": 1}}]}, "instances[0].city: one value is expected"),
        ({"instances": [GOOD | {"count": 1.5}]}, "instances[0].count: a whole number is expected, 1.5"),
        ({"instances": [GOOD | {"count": 1e19}]}, "instances[0].count: a whole number is expected"),
        ({"instances": [GOOD | {"tags": ["a;b"]}]}, "instances[0].tags: single values without ';'"),
        ({"instances": [GOOD | {"city": {"b64": "?"}}]}, "instances[0].city: is no base64"),
        ({"inputs": {"city": ["a"], "day": []}}, "inputs: all columns must have as many values, city 1, day 0"),
        ({"inputs": {}}, "inputs: is empty"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_read_is_refused_with_the_name_of_the_field(body: Any, message: str) -> None:
    with pytest.raises(BadRequest) as error:
        rows(body)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ({}, "inputs[0].datatype: one of BOOL"),
        ({"name": None, "shape": [1], "datatype": "BYTES", "data": ["a"]}, "inputs[0].name: a name that occurs once"),
        ({"name": "city", "shape": [2], "datatype": "BYTES", "data": ["a"]}, "inputs[0].shape: [1] or [1, 1] is"),
        ({"name": "city", "shape": [1], "datatype": "BYTES", "data": "a"}, "inputs[0].data: a list is expected"),
        (
            {"name": "city", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 5}},
            "inputs[0].parameters.binary_data_size: a number of bytes up to 0 is expected, 5 was found. Raw",
        ),
        ({"name": "city", "contents": {}}, "inputs[0]: unknown field 'contents'"),
        ({"name": "city", "shape": [1], "datatype": "TEXT", "data": ["a"]}, "inputs[0].datatype: one of BOOL, INT8"),
        ({"name": "city", "shape": [1], "data": ["a"]}, "inputs[0].datatype: one of BOOL, INT8"),
        ({"name": "count", "shape": [1], "datatype": "INT64", "data": [1.5]}, "inputs[0].data[0]: a value of INT64"),
        ({"name": "count", "shape": [1], "datatype": "FP32", "data": [True]}, "inputs[0].data[0]: a value of FP32"),
        (
            {"name": "city", "shape": [1], "datatype": "BYTES", "data": [["a", "b"]]},
            "inputs[0].data[0]: a value of BYTES",
        ),
        *(
            ({"name": "city", "shape": [2], "datatype": datatype, "data": [None, value]}, f"inputs[0].data[1]: {said}")
            for datatype, value, said in [
                ("INT8", 128, "a value of INT8 is expected for 'city', 128 was found"),
                ("INT8", -129, "a value of INT8"),
                ("INT16", 32768, "a value of INT16"),
                ("INT32", 2**31, "a value of INT32"),
                ("INT64", 2**63, "a value of INT64"),
                ("INT64", 10**4000, "a value of INT64"),
                ("UINT8", -1, "a value of UINT8"),
                ("UINT8", 256, "a value of UINT8"),
                ("UINT16", 65536, "a value of UINT16"),
                ("UINT32", 2**32, "a value of UINT32"),
                ("UINT64", 2**64, "a value of UINT64"),
                ("FP16", 65520, "a value of FP16"),
                ("BF16", 3.4e38, "a value of BF16"),
                ("FP32", 3.5e38, "a value of FP32"),
                ("INT32", math.nan, "a value of INT32 is expected for 'city', NaN was found"),
                ("BYTES", math.nan, "a value of BYTES is expected for 'city', NaN was found"),
                ("BOOL", math.nan, "a value of BOOL"),
                ("FP64", math.inf, "a value of FP64 is expected for 'city', inf was found"),
                ("INT8", "5", "a value of INT8 is expected for 'city', '5' was found"),
                ("FP32", "Bern", "a value of FP32 is expected for 'city', 'Bern' was found"),
                ("BYTES", 5, "a value of BYTES is expected for 'city', 5 was found"),
                ("BOOL", 1, "a value of BOOL is expected for 'city', 1 was found"),
            ]
        ),
    ],
)  # fmt: skip
def test_a_tensor_that_cannot_be_read_is_refused_with_the_name_of_the_field(tensor: Any, message: str) -> None:
    with pytest.raises(BadRequest) as error:
        Records(model()).open_inference_rows(json.dumps({"inputs": [tensor]}).encode())
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text", "instances[0].image: an image file is expected as"),
        ({"b64": "!"}, "instances[0].image: is no base64"),
        ({"b64": ""}, "instances[0].image: not a readable image (zero_bytes"),
        ({"b64": base64.b64encode(b"GIF8 no").decode()}, "instances[0].image: not a readable image (not_an_image"),
    ],
)
def test_an_image_that_cannot_be_read_is_refused(content: Any, message: str) -> None:
    with pytest.raises(BadRequest) as error:
        rows({"instances": [{"image": content}]}, model(RawInput(name="image", dtype="string"), pixels={"channels": 1}))
    assert str(error.value).startswith(message)


def test_the_messages_are_those_of_the_protocols_file(tmp_path: Path) -> None:
    folder = Path(rpc.__file__).parent
    compiled = tmp_path / "open_inference_grpc.binpb"
    command = ["protoc", f"-I{folder}", f"--descriptor_set_out={compiled}", f"{folder}/open_inference_grpc.proto"]
    assert protoc.main(command) == 0
    assert compiled.read_bytes() == (folder / compiled.name).read_bytes(), "run " + " ".join(command)


TENSORS: list[tuple[str, list[Any], str, str]] = [
    ("FP32", [0.1, -0.0, 1e20, 3.0, 3.4028235e38], "f4", "fp32_contents"),
    ("FP64", [0.1, -0.0, 1e300, 1e38, 123456789.123], "f8", "fp64_contents"),
    ("INT8", [-3, 0, 127], "i1", "int_contents"),
    ("INT32", [-3, 0, 2**31 - 1], "i4", "int_contents"),
    ("INT64", [-3, 2**53 + 1, 2**63 - 1], "i8", "int64_contents"),
    ("UINT16", [0, 65535], "u2", "uint_contents"),
    ("UINT64", [1, 2**63 + 1, 2**64 - 1], "u8", "uint64_contents"),
    ("BOOL", [True, False], "?", "bool_contents"),
    ("BYTES", ["Bern", " 1.50 ", "", "é", "2024-01-31", "a; b"], "", "bytes_contents"),
]


def raw_content(values: list[Any], dtype: str) -> bytes:
    if dtype:
        return np.array(values, dtype).tobytes()
    return b"".join(struct.pack("<I", len(value.encode())) + value.encode() for value in values)


def read(served: PushedModel, request: Any, raw: bytes = b"") -> list[tuple[Any, ...]] | str:
    records = Records(served)
    try:
        if isinstance(request, bytes):
            found = records.open_inference_rows(request + raw, str(len(request)) if raw else "")[0]
        else:
            found = records.tensor_rows(rpc.columns(request, records.decimals))
        return [tuple(np.float32(value) if isinstance(value, float) else value for value in row) for row in found]
    except BadRequest as error:
        return str(error).partition(",")[0]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
@pytest.mark.parametrize(("datatype", "values", "dtype", "field"), TENSORS, ids=[tensor[0] for tensor in TENSORS])
def test_a_tensor_over_grpc_has_the_rows_of_the_same_tensor_over_rest(
    column: RawInput, datatype: str, values: list[Any], dtype: str, field: str
) -> None:
    served = model(column)
    for value in values:
        body = {"inputs": [{"name": column.name, "datatype": datatype, "shape": [1], "data": [value]}]}
        expected = read(served, json.dumps(body).encode())
        contents = [value.encode()] if datatype == "BYTES" else [value]
        for content in ({"contents": {field: contents}}, {}):
            tensor = {"name": column.name, "datatype": datatype, "shape": [1], **content}
            request = rpc.METHODS["ModelInfer"][0](inputs=[tensor])
            if not content:
                request.raw_input_contents.append(raw_content([value], dtype))  # type: ignore[attr-defined]
            assert repr(read(served, request)) == repr(expected)
        if raw := raw_content([value], dtype):
            tensor = {"name": column.name, "datatype": datatype, "shape": [1]}
            body = {"inputs": [tensor | {"parameters": {"binary_data_size": len(raw)}}]}
            assert repr(read(served, json.dumps(body).encode(), raw)) == repr(expected)


@pytest.mark.parametrize(
    ("json_bytes", "size", "message"),
    [
        ("-1", 4, f"{JSON_BYTES}: a number of bytes up to "),
        ("999", 4, f"{JSON_BYTES}: a number of bytes up to "),
        ("²", 4, f"{JSON_BYTES}: a number of bytes up to "),
        ("", 5, "inputs[0].parameters.binary_data_size: a number of bytes up to 4 is expected, 5 was found."),
        ("", True, "inputs[0].parameters.binary_data_size: a number of bytes up to 4 is expected, True was found."),
        ("", 2, "inputs[0]: 4 raw bytes for each value of FP32 are expected, 2 were found."),
        ("", 0, "inputs[0].shape: [0] or [0, 1] is expected for its data, [1] was found."),
    ],
)
def test_raw_tensors_that_do_not_stand_behind_the_json_are_refused(json_bytes: str, size: Any, message: str) -> None:
    tensor = {"name": "net worth", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": size}}
    body = json.dumps({"inputs": [tensor]}).encode()
    with pytest.raises(BadRequest) as error:
        Records(model(COLUMNS[0])).open_inference_rows(body + b"1234", json_bytes or str(len(body)))
    assert str(error.value).startswith(message)


def test_bytes_behind_the_raw_tensors_and_data_beside_one_are_refused() -> None:
    tensor = {"name": "net worth", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}
    records = Records(model(COLUMNS[0]))
    for more, raw, message in (
        ({}, b"12345", "the request: its last 1 bytes belong to no input."),
        ({"data": [1]}, b"1234", "inputs[0].data: stands beside binary_data_size. Send one of them."),
    ):
        body = json.dumps({"inputs": [tensor | more]}).encode()
        with pytest.raises(BadRequest) as error:
            records.open_inference_rows(body + raw, str(len(body)))
        assert str(error.value) == message


def test_halves_and_missing_values_of_raw_tensors_are_numbers_and_none() -> None:
    worth, city = model(COLUMNS[0]), model(COLUMNS[1])
    halves = np.array([1.5, math.nan, -2], np.float16)
    for datatype, content in (
        ("FP16", halves.tobytes()),
        ("BF16", (halves.astype("f4").view("u4") >> 16).astype("u2").tobytes()),
    ):
        request: Any = rpc.METHODS["ModelInfer"][0](raw_input_contents=[content])
        request.inputs.add(name="net_worth", datatype=datatype, shape=[3])
        np.testing.assert_array_equal(read(worth, request), [(1.5,), (math.nan,), (-2.0,)])
        request.inputs[0].name = "city"
        assert read(city, request) == [("1.5",), ("",), ("-2",)]
    infinite: Any = rpc.METHODS["ModelInfer"][0]()
    infinite.inputs.add(name="net_worth", datatype="FP32", shape=[1], contents={"fp32_contents": [math.inf]})
    assert read(worth, infinite) == "inputs[0].net worth: a number is expected"


def test_the_numbers_of_one_tensor_keep_their_digits() -> None:
    request: Any = rpc.METHODS["ModelInfer"][0]()
    request.inputs.add(name="city", datatype="UINT64", shape=[2], contents={"uint64_contents": [1, 2**63 + 1]})
    assert read(model(COLUMNS[1]), request) == [("1",), ("9223372036854775809",)]


@pytest.mark.parametrize(
    ("tensor", "raw", "message"),
    [
        ({"datatype": "TEXT"}, [], "inputs[0].datatype: one of BOOL"),
        ({"datatype": "FP32", "contents": {"fp64_contents": [1]}}, [], "inputs[0].contents: fp32_contents is expected"),
        ({"datatype": "FP32", "contents": {}}, [b"abcd"], "inputs[0].contents: stands beside raw_input_contents"),
        ({"datatype": "FP16"}, [], "inputs[0].contents: FP16 has none. Send raw_input_contents"),
        ({"datatype": "FP32"}, [b"abcd"] * 2, "raw_input_contents: one for each of the 1 inputs is expected, 2 were"),
        ({"datatype": "FP32"}, [b"abcde"], "inputs[0]: 4 raw bytes for each value of FP32 are expected, 5 were found"),
        ({"datatype": "FP32"}, [b"abcd" * 2], "inputs[0].shape: [2] or [2, 1] is expected for its data, [1] was"),
        (
            {"datatype": "BOOL", "shape": [2]},
            [b"\1\2"],
            "inputs[0]: raw element 1: a value of BOOL is expected for 'city', 2 was",
        ),
        *(
            (
                {"datatype": datatype, "shape": [2], "contents": {field: [0, value]}},
                [],
                f"inputs[0].contents.{field}[1]: a value of {datatype} is expected for 'city', {value} was found",
            )
            for datatype, field, value in [
                ("INT8", "int_contents", 128),
                ("INT8", "int_contents", -129),
                ("INT16", "int_contents", 32768),
                ("UINT8", "uint_contents", 256),
                ("UINT16", "uint_contents", 65536),
            ]
        ),
        ({"datatype": "BYTES"}, [b"\3\0\0\0ab"], "inputs[0]: its raw bytes end within element 0"),
        ({"datatype": "BYTES"}, [b"\0\0\0\0\1\0"], "inputs[0]: its raw bytes end within element 1"),
        ({"datatype": "BYTES"}, [b"\1\0\0\0\xff"], "inputs[0].city: its bytes are no UTF-8 text"),
        ({"datatype": "BYTES", "shape": [0]}, [b""], "inputs: is empty"),
    ],
)
def test_a_tensor_over_grpc_that_cannot_be_read_is_refused(tensor: Any, raw: list[bytes], message: str) -> None:
    request: Any = rpc.METHODS["ModelInfer"][0](raw_input_contents=raw)
    request.inputs.add(**{"name": "city", "shape": [1]} | tensor)
    with pytest.raises(BadRequest) as error:
        Records(model(COLUMNS[1])).tensor_rows(rpc.columns(request, ()))
    assert str(error.value).startswith(message)


def test_examples_have_features_in_lists_a_context_and_absent_values() -> None:
    records = Records(PushedModel(folder="", inputs=COLUMNS[:4]))
    body = {
        "context": {"city": ["Bern"]},
        "examples": [{"net_worth": [1.5], "tags": ["b", "a"]}, {"day": "2024-01-31"}],
    }
    first, second = records.examples_rows(json.dumps(body).encode())
    assert first == (1.5, "Bern", "", "b;a")
    assert second[1:] == ("Bern", "2024-01-31T00", "") and math.isnan(second[0])
    for changed, said in (
        ({"examples": []}, "examples: is empty. Send at least one record."),
        ({"examples": [{"city": "Oslo"}]}, "examples[0].city: is in the context as well. Send one value."),
        ({"examples": [{"town": "Oslo"}]}, "examples[0].town: the model has no such input."),
        ({"examples": [{"net worth": [1, 2]}]}, "examples[0].net worth: one value is expected,"),
        ({"examples": [5]}, "examples[0]: an object with a value or a list for each feature is expected."),
        ({"signature_name": "other"}, "signature_name: 'other' is unknown. Only serving_default is served."),
    ):
        with pytest.raises(BadRequest, match=rf"^{re.escape(said)}"):
            records.examples_rows(json.dumps(body | changed).encode())


@pytest.mark.parametrize("origins", [["app.example"], ["https://a/"], ["null"], ["https://u:p@a"], ["*", "https://a"]])
def test_an_origin_that_no_browser_sends_or_any_beside_others_is_refused(origins: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"^--cors: "):
        Options(cors=tuple(origins))


def test_more_workers_than_cores_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"--workers: 5000 processes are too many, this machine has cores for \d"
    ):
        Options(workers=5000)


def test_the_ids_of_a_request_are_its_own_if_they_are_valid() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    own = RequestIds.from_headers({"x-request-id": "order-7", "traceparent": trace})
    assert own.fields() == {"request_id": "order-7", "traceparent": trace}
    for header, parent in (
        ("", trace.replace("0af", "0AF")),
        ("a\nb", f"00-{'0' * 32}-{'1' * 16}-01"),
        ("x" * 129, "ff" + trace[2:]),
    ):
        made = RequestIds.from_headers({"x-request-id": header, "traceparent": parent})
        assert re.fullmatch(r"[0-9a-f]{32}", made.request_id) and made.traceparent == ""


@pytest.mark.parametrize("count", [1, 2])
def test_an_answer_has_rows_or_columns_and_leaves_the_name_of_an_only_output_out(count: int) -> None:
    values = np.array([[0.25, 0.75], [1.0, 0.0]], np.float32)
    outputs = [Output("probabilities", "FP32", values), Output("label", "BYTES", ["é", "b"])][:count]
    rows, columns = (json.loads(_predictions(outputs, by_column=by_column)) for by_column in (False, True))
    if count == 1:
        assert rows == {"predictions": values.tolist()} and columns == {"outputs": values.tolist()}
    else:
        labelled = [{"probabilities": [0.25, 0.75], "label": "é"}, {"probabilities": [1.0, 0.0], "label": "b"}]
        assert rows == {"predictions": labelled}
        assert columns == {"outputs": {"probabilities": values.tolist(), "label": ["é", "b"]}}
