"""Export over real files: digits as PNG images and a mixed table, each with a transform graph and a trained network."""

from __future__ import annotations

import gzip
import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import arm64
import browser
import device_folder
import export_folders as made
import keras
import numpy as np
import push_folders
import pytest
import ssh_server
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from sklearn.metrics import recall_score

from trainyard.contract import version
from trainyard.contract.artifacts.export import EdgeTpu, Exports
from trainyard.contract.artifacts.gate import Threshold, refusal_reason
from trainyard.contract.artifacts.preprocess import Feature, RawFeature
from trainyard.data.examples import load_transform, open_examples
from trainyard.errors import ConfigurationError, GateRefused, TransientError
from trainyard.process.child_process import ChildProcess
from trainyard.spec import devices, documents
from trainyard.spec.recipe import DeviceLimits, Format, Recipe
from trainyard.steps.evaluate.trained_model import thresholds_of
from trainyard.steps.export import demo, formats, lite, onnx_file, parity, run, served, signature, skew
from trainyard.steps.push import run as push_step
from trainyard.storage import storage
from trainyard.storage.storage import File, Manifest
from trainyard_control.targets import huggingface

DIGITS = "name: digits\ndata: {format: image_folder, bundled: digits, channels: 1}\nmodel: {name: cnn_small}\n"
TABLE = """
name: table
data: {format: csv, path: x.csv, features: {age: {type: numeric}, net worth: {type: numeric}, city: {type: category}}}
model: {name: mlp}
"""

SERVER = "server (trainyard serve)"
HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def recipe(text: str, **export: Any) -> Recipe:
    parsed = documents.parse(text, Recipe, name="recipe.yaml")
    return parsed.model_copy(update={"export": parsed.export.model_copy(update=export)})


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("digits")
    made.digits(root)
    return root


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("table")
    made.table(root)
    return root


@pytest.fixture(scope="module")
def exported(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = digits / "exported"
    output.mkdir()
    settings = recipe(
        DIGITS, max_accuracy_drop=0.02, formats=list(formats.FORMATS), min_mapped_share=1.0, demo=browser.HAS_DEMO
    )
    arguments = str(digits / "examples"), str(digits / "model"), output
    if not ssh_server.SSHD:
        run.run(settings, *arguments)
        return output
    settings.export.devices["pi"] = DeviceLimits(latency_ms_p95=1000, size_mb=1)
    with ssh_server.serving(tmp_path_factory.mktemp("ssh")):
        devices.add("pi", devices.Device(ssh="pi", python=sys.executable))
        run.run(settings, *arguments)
    return output


@pytest.fixture(scope="module")
def exported_table(table: Path) -> Path:
    output = table / "exported"
    output.mkdir()
    settings = recipe(
        TABLE + "threshold: {recall: 0.98, class: rich}", max_accuracy_drop=0.02, formats=list(formats.FORMATS)
    )
    examples, model = str(table / "examples"), str(table / "model")
    with pytest.raises(ConfigurationError, match="thresholds is missing, and the recipe has a threshold"):
        run.run(settings, examples, model, output)
    (chosen,) = thresholds_of(settings, model, open_examples(examples))
    run.run(settings, examples, model, output, json.dumps({chosen.label: chosen.value}))
    return output


def test_every_format_of_an_image_model_is_written_measured_and_blessed(exported: Path) -> None:
    document = Exports.read(str(exported))
    print(document.model_dump_json(indent=1))
    assert [export.format for export in document.exports] == list(formats.FORMATS)
    assert document.gate.verdict == "blessed", document.gate
    for export in document.exports:
        assert 0.9 < export.accuracy <= 1
        assert export.bytes > 1000 and 0 < export.latency_ms.p50 <= export.latency_ms.p95
    furthest = {export.format: export.max_abs_difference for export in document.exports}
    assert furthest["onnx"] < 1e-5 and furthest["litert_dynamic"] < 0.05
    sizes = {export.format: export.bytes for export in document.exports}
    assert sizes["litert_dynamic"] < 0.5 * sizes["litert_float32"]
    assert sizes["litert_int8"] < sizes["litert_float16"] < sizes["litert_float32"] < sizes["saved_model"]
    mapping = next(export.edge_tpu for export in document.exports if export.format == "litert_int8")
    products = 8 * 8 * 16 * 3 * 3 + 4 * 4 * 16 * 10  # of the convolution and of the dense layer
    assert mapping == EdgeTpu(
        source="table",
        operations=7,
        mapped_operations=7,
        multiply_adds=products,
        mapped_multiply_adds=products,
        first_unmapped="",
    )


def test_every_format_of_a_table_model_is_written_measured_and_blessed(exported_table: Path) -> None:
    document = Exports.read(str(exported_table))
    assert document.gate.verdict == "blessed", document.gate
    assert [export.format for export in document.exports] == list(formats.FORMATS)
    accuracies = [export.accuracy for export in document.exports]
    assert min(accuracies) > 0.85 and len({round(accuracy, 2) for accuracy in accuracies}) <= 2


def test_raw_records_get_the_same_answer_by_every_path(exported: Path, exported_table: Path) -> None:
    for output, in_integers in ((exported, 0.0), (exported_table, 1e-6)):
        paths = {path.path: path for path in Exports.read(str(output)).skew}
        print(paths)
        devices = ["litert_float32", "litert_float16", "litert_dynamic", "litert_int8", "litert_batch", "onnx"]
        assert list(paths) == ["saved_model", *(f"{name} after preprocess.py" for name in devices), SERVER]
        assert all(path.passed and path.records == 32 and not path.note for path in paths.values())
        assert max(paths[name].difference for name in ("saved_model", SERVER)) < 1e-6
        assert paths["onnx after preprocess.py"].to_trained < 1e-5
        assert paths["litert_int8 after preprocess.py"].difference <= in_integers
        assert paths["litert_int8 after preprocess.py"].to_trained > 1e-4
        assert not (output / "__pycache__").exists()


def test_a_path_that_answers_otherwise_refuses_with_its_record_and_column(
    table: Path, exported_table: Path, tmp_path: Path
) -> None:
    folder, settings = open_examples(str(table / "examples")), recipe(TABLE)
    model = formats.keras_predictor(keras.models.load_model(table / "model" / "model.keras"), folder.document)

    def prove(output: Path, trained: Any = model, start_server: bool = False) -> tuple[list[Any], Threshold]:
        names = ("saved_model", "litert_float32", "onnx")
        opened = [
            formats.FORMATS[name].open(name, output / formats.FORMATS[name].path, folder.document) for name in names
        ]
        paths = skew.compare_paths(output, settings, folder, opened, trained, start_server)
        return paths, skew.threshold(paths)

    shutil.copytree(exported_table, tmp_path / "other")
    for name in ("preprocess.py", "vocabularies/city_vocabulary"):
        right = (exported_table / name).read_text()
        wrong = right.replace('learned["mean"]', 'learned["mean"] * 1.001', 1).replace("Bern\nOslo", "Oslo\nBern")
        assert wrong != right
        (tmp_path / "other" / name).write_text(wrong)
        paths, threshold = prove(tmp_path / "other")
        assert [path.passed for path in paths] == [True, False, False] and not threshold.passed
        column = "city" if name.endswith("vocabulary") else "(age|net worth)"
        sentence = r"litert_float32 after preprocess.py: differs by 0\.\d+ \(at most 0\.0001\) on record 'row \d+' "
        sentence += f"by its column '{column}'"
        assert re.match(sentence, paths[1].path + ": " + paths[1].note)
        assert re.search(rf"difference / bound <= 1, was [\d.e+]+: {sentence}; onnx", refusal_reason([threshold]))
        (tmp_path / "other" / name).write_text(right)
    runtime = (exported_table / "preprocess.py").read_text()
    (tmp_path / "other" / "preprocess.py").write_text(runtime.replace("if found is None:", "if True:", 1))
    paths, _ = prove(tmp_path / "other")
    assert paths[1].difference is None and re.match("refuses record 'row \\d+': 'age': a number is", paths[1].note)
    (tmp_path / "other" / "preprocess.py").write_text(runtime)
    (tmp_path / "other" / "saved_model" / "saved_model.pb").write_bytes(b"no model")
    [server] = skew.compare_paths(tmp_path / "other", settings, folder, [], model, True)
    assert not server.passed and server.difference is None and "its SavedModel cannot be loaded" in server.note
    paths, _ = prove(exported_table, lambda features, raw: model(features, raw) + 1e-4, start_server=True)
    assert [path.passed for path in paths] == [False, True, True, False]
    assert paths[3].difference == pytest.approx(1e-4, rel=0.1) and "'row " in paths[3].note


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[ChildProcess]:
    """Return the list of the processes that the test has started as servers."""
    started: list[ChildProcess] = []

    def start(*arguments: Any) -> ChildProcess:
        started.append(ChildProcess(*arguments))
        return started[-1]

    monkeypatch.setattr(served, "ChildProcess", start)
    return started


def test_a_server_that_is_killed_or_cannot_be_reached_is_no_verdict_on_the_files(
    exported_table: Path, servers: list[ChildProcess]
) -> None:
    """A verdict would be committed, and the next run would reuse it."""
    with pytest.raises(TransientError, match="does not answer"), served.serving(exported_table):
        served.answers("http://127.0.0.1:9", {}, "")
    with pytest.raises(TransientError, match="was killed"), served.serving(exported_table) as url:
        servers[-1].kill()
        served.answers(url, {}, "")


def test_a_step_of_its_own_program_forks_its_server_and_imports_tensorflow_once(table: Path, tmp_path: Path) -> None:
    settings = f"{TABLE}export: {{formats: [saved_model], max_accuracy_drop: 0.02}}"
    (tmp_path / "recipe.yaml").write_text(settings)
    program = """
import runpy, sys
sys.executable = "/bin/false"  # a fork server that is no fork of this process fails
runpy.run_module("trainyard.steps", run_name="__main__")
"""
    inputs = [f"--{name}={table / name}" for name in ("examples", "model")]
    options = [f"--recipe={tmp_path / 'recipe.yaml'}", *inputs, f"--output={tmp_path / 'exported'}"]
    subprocess.run([sys.executable, "-c", program, "export", *options], check=True)
    assert [path.path for path in Exports.read(str(tmp_path / "exported")).skew] == ["saved_model", SERVER]


STAND_IN = f"""#!{sys.executable}
import argparse, http.server, json, os, pathlib, sys
parser = argparse.ArgumentParser(allow_abbrev=False)  # names and types are those of model_servers/main.cc
for name in ("port", "rest_api_port", "rest_api_timeout_in_ms", "max_num_load_retries"):
    parser.add_argument(f"--{{name}}", type=int, required=True)
for name in ("model_name", "model_base_path"):
    parser.add_argument(f"--{{name}}", required=True)
flags = parser.parse_args()
assert flags.port != flags.rest_api_port
base = pathlib.Path(flags.model_base_path)
latest = base / str(max(int(each.name) for each in base.iterdir() if each.name.isdecimal()))
"""
LOSES_A_PORT_FIRST = """
import socket, time
if not (first := pathlib.Path(__file__).with_name("first")).exists():
    first.touch()
    taken = socket.create_server(("127.0.0.1", flags.port))
    if os.fork():
        sys.exit("bind: Address already in use")
    time.sleep(600)  # the server's group is killed before
"""
ANSWERS = """
options = f"--port={flags.rest_api_port}", f"--model-name={flags.model_name}"
os.execv(TRAINYARD, [TRAINYARD, "serve", str(latest), *options])
"""
ANSWERS_OTHERWISE = """
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({"model_version_status": [{"version": latest.name, "state": "AVAILABLE"}]})
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        pathlib.Path(__file__).with_name("request.json").write_bytes(body)
        self.answer({"predictions": [PREDICTION for _ in json.loads(body)["instances"]]})
    def answer(self, content):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())
http.server.HTTPServer(("127.0.0.1", flags.rest_api_port), Handler).serve_forever()
"""


@pytest.mark.parametrize(
    "end", ["time.sleep(600)", ANSWERS_OTHERWISE.replace("self.rfile", "time.sleep(600)")], ids=["start", "answer"]
)
def test_a_server_that_does_not_start_or_answer_in_time_is_ended_and_no_verdict_on_the_files(
    tmp_path: Path, servers: list[ChildProcess], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    (tmp_path / "exported" / "saved_model").mkdir(parents=True)
    program = tmp_path / served.BINARY
    program.write_text(f"{STAND_IN}import time\n{end}")
    program.chmod(0o755)
    monkeypatch.setattr(served, "DEADLINE_SECONDS", 2.0)
    expected = r"the files did not start and answer within 2 s \(.*\)\. Run the same command again"
    with pytest.raises(TransientError, match=expected), served.serving(tmp_path / "exported", str(program)) as url:
        served.answers(url, {"x": tf.constant([1.0])}, "probabilities")
    assert servers and not servers[-1].is_alive()


def test_tensorflow_serving_on_the_path_answers_instead_of_our_server(
    table: Path, exported_table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Google's binary cannot be installed here: a stand-in takes its flags, and `trainyard serve` answers."""
    folder, settings = open_examples(str(table / "examples")), recipe(TABLE)
    model = formats.keras_predictor(keras.models.load_model(table / "model" / "model.keras"), folder.document)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    def prove(end: str) -> Any:
        program = tmp_path / served.BINARY
        program.write_text(STAND_IN + end)
        program.chmod(0o755)
        [path] = skew.compare_paths(exported_table, settings, folder, [], model, True)
        assert path.path == "server (tensorflow_model_server)"
        return path

    trainyard = repr(str(Path(sys.executable).with_name("trainyard")))
    path = prove(LOSES_A_PORT_FIRST + ANSWERS.replace("TRAINYARD", trainyard))
    assert (tmp_path / "first").exists() and path.passed and path.records == 32 and path.difference < 1e-6
    path = prove(ANSWERS_OTHERWISE.replace("PREDICTION", "{'probabilities': [0.5, 0.5]}"))
    assert not path.passed and re.match(r"differs by 0\.\d+ \(at most 1e-05\) on record 'row \d+'$", path.note)
    rows = json.loads((tmp_path / "request.json").read_text())["instances"]
    names = tf.saved_model.load(str(exported_table / "saved_model")).signatures["serving_default"]
    assert all(set(row) == set(names.structured_input_signature[1]) and None not in row.values() for row in rows)
    for answer in ("{'probabilities': [1, 0, 0]}", "[1, 0, 0]"):
        path = prove(ANSWERS_OTHERWISE.replace("PREDICTION", answer))
        assert not path.passed and path.note == "answers [32, 3] numbers, [32, 2] are expected"
    path = prove(ANSWERS_OTHERWISE.replace("PREDICTION", "{'score': 1}"))
    assert not path.passed and path.note.startswith("the server's answer has no 'probabilities' for each record")
    path = prove("sys.exit('1 model(s) did not become available')")
    assert not path.passed and path.difference is None
    assert path.note == (
        "the server ended with exit status 1: 1 model(s) did not become available. See the log of export"
    )


def test_the_registry_holds_each_format_and_each_file_is_what_its_format_says(
    exported: Path, exported_table: Path
) -> None:
    assert set(formats.FORMATS) == set(get_args(Format))
    assert len({format.path for format in formats.FORMATS.values()}) == len(formats.FORMATS)
    for folder in (exported, exported_table):
        for name, format in formats.FORMATS.items():
            file, (offset, magic) = folder / format.path, format.magic
            file = file / "saved_model.pb" if name == "saved_model" else file
            assert magic and file.read_bytes()[offset:].startswith(magic), name


def test_the_measured_accuracy_is_that_of_an_independent_count(digits: Path, exported: Path) -> None:
    folder = open_examples(str(digits / "examples"))
    model = keras.models.load_model(digits / "model" / "model.keras")
    right = total = 0
    for features, labels, _keys in folder.batches("eval", 397):
        right += int((model.predict(features, verbose=0).argmax(axis=1) == labels.numpy()).sum())
        total += len(labels)
    assert total == 397
    assert Exports.read(str(exported)).exports[0].accuracy == pytest.approx(right / total)


def test_a_fresh_process_serves_encoded_images_without_trainyard_or_keras(exported: Path) -> None:
    script = """
import sys, json, io
for name in ("trainyard", "keras", "tf_keras", "tensorflow_transform"):
    sys.modules[name] = None
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
image = tf.io.encode_png(tf.zeros((8, 8, 1), tf.uint8)).numpy()
answer = loaded.signatures["serving_default"](image=tf.constant([image, image]))
print(json.dumps({name: [value.dtype.name, value.shape.as_list()] for name, value in answer.items()}))
print(answer["label"].numpy()[0].decode(), int(answer["label_id"][0]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(exported / "saved_model")], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    types, label = done.stdout.splitlines()[-2:]
    assert json.loads(types) == {
        "probabilities": ["float32", [2, 10]],
        "label": ["string", [2]],
        "label_id": ["int64", [2]],
    }
    name, number = label.rsplit(" ", 1)
    assert name == f"digit {number}"
    labels = (exported / "saved_model" / "labels.txt").read_text().splitlines()
    assert labels == (exported / "labels.txt").read_text().splitlines() == [f"digit {digit}" for digit in range(10)]


def test_the_served_graph_equals_the_training_path_on_a_thousand_rows_to_a_millionth(
    table: Path, exported_table: Path
) -> None:
    folder = open_examples(str(table / "examples"))
    serve = tf.saved_model.load(str(exported_table / "saved_model"))
    model = keras.models.load_model(table / "model" / "model.keras")
    (features, _labels, _keys), (raw, _) = next(
        iter(tf.data.Dataset.zip((folder.batches("eval", 1000), folder.raw_batches("eval", 1000))))
    )
    assert np.isnan(raw["net worth"].numpy()).any() and (raw["city"].numpy() == b"Paris").any()
    expected = tf.nn.softmax(model(features, training=False)).numpy()
    named = {signature.input_name(name): value for name, value in raw.items()}
    answers = serve.signatures["serving_default"](**named)["probabilities"].numpy()
    assert expected.shape == (1000, 2)
    assert np.abs(answers - expected).max() <= 1e-6


def test_a_serialized_example_answers_as_its_columns_and_missing_ones_are_nan_or_empty(exported_table: Path) -> None:
    serve = tf.saved_model.load(str(exported_table / "saved_model")).signatures
    full = made.example({"age": [50.0], "net worth": [9e5], "city": [b"Oslo"]})
    bare = made.example({"age": [50.0]})
    answers = serve["serving_examples"](examples=tf.constant([full, bare]))
    expected = serve["serving_default"](
        age=tf.constant([50.0, 50.0]), net_worth=tf.constant([9e5, np.nan]), city=tf.constant(["Oslo", ""])
    )
    np.testing.assert_allclose(answers["probabilities"], expected["probabilities"], atol=1e-6)
    assert answers["label"].numpy().tolist() == expected["label"].numpy().tolist()
    assert not np.allclose(answers["probabilities"][0], answers["probabilities"][1])


def test_the_class_of_a_threshold_is_the_same_in_the_graph_on_devices_and_in_the_documents(
    table: Path, exported_table: Path
) -> None:
    thresholds, folder = Exports.read(str(exported_table)).thresholds, open_examples(str(table / "examples"))
    for file in ("preprocessing.json", "signature.json"):
        assert json.loads((exported_table / file).read_text())["thresholds"] == thresholds
    assert thresholds.keys() == {"rich"}
    [(raw, labels)] = folder.raw_batches("eval", 1000)
    serve = tf.saved_model.load(str(exported_table / "saved_model")).signatures["serving_default"]
    answer = {
        name: values.numpy() for name, values in serve(**{n.replace(" ", "_"): v for n, v in raw.items()}).items()
    }
    rich = answer["probabilities"][:, 1] > np.float32(thresholds["rich"])
    assert answer["label_id"].tolist() == rich.astype(int).tolist() != answer["probabilities"].argmax(axis=1).tolist()
    assert answer["label"].tolist() == [b"rich" if each else b"poor" for each in rich]
    assert recall_score(labels.numpy() == 1, rich) >= 0.98
    exported = {export.format: export.accuracy for export in Exports.read(str(exported_table)).exports}
    assert exported["saved_model"] == pytest.approx(np.mean(rich == (labels.numpy() == 1)))
    device = device_folder.preprocessing(exported_table)
    for row, expected in zip(answer["probabilities"], answer["label"], strict=True):
        assert device.answer({"probabilities": row[None]}, "model_float32.tflite")["label"] == expected.decode()


@pytest.mark.usefixtures("warm_processes")
def test_parity_does_not_depend_on_the_number_of_devices(digits: Path, exported: Path) -> None:
    program = [sys.executable, str(Path(__file__).with_name("on_logical_cpus.py")), "3", "parity"]
    paths = map(str, (digits / "examples", digits / "model", exported))
    printed = subprocess.run([*program, *paths], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert json.loads(printed) == {
        file.format: [file.accuracy, file.accuracy_difference, file.max_abs_difference]
        for file in Exports.read(str(exported)).exports
    }


def test_an_int8_image_model_takes_and_gives_int8_and_holds_no_float_tensor(exported: Path) -> None:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(exported / "model_int8.tflite"))
    interpreter.allocate_tensors()
    kinds = {details["dtype"] for details in interpreter.get_tensor_details()}
    assert interpreter.get_input_details()[0]["dtype"] == interpreter.get_output_details()[0]["dtype"] == np.int8
    assert interpreter.get_input_details()[0]["shape_signature"].tolist() == [1, 8, 8, 1]
    assert np.float32 not in kinds


def test_a_device_learns_in_which_integers_the_int8_file_takes_an_image_and_gives_its_answer(exported: Path) -> None:
    content = json.loads((exported / "preprocessing.json").read_text())
    files = content["files"]
    assert content["transform"] == "image"
    kinds = ("float32", "float16", "dynamic", "int8", "batch")
    assert files.keys() == {"model.onnx", *(f"model_{kind}.tflite" for kind in kinds)}
    image, (answer,) = files["model_int8.tflite"]["inputs"]["image"], files["model_int8.tflite"]["outputs"].values()
    assert (image["dtype"], image["shape"], answer["dtype"]) == ("int8", [1, 8, 8, 1], "int8")
    assert [round((integer - image["zero_point"]) * image["scale"]) for integer in (-128, 127)] == [0, 255]
    for name in ("model_float16.tflite", "model.onnx"):
        assert files[name]["inputs"] == {"image": {"dtype": "float32", "shape": [1, 8, 8, 1]}}
    assert files["model.onnx"]["outputs"] == {"probabilities": {"dtype": "float32", "shape": [1, 10]}}


def test_a_device_gets_labels_vocabularies_and_the_list_of_inputs(exported_table: Path) -> None:
    content = json.loads((exported_table / "preprocessing.json").read_text())
    assert [entry["name"] for entry in content["inputs"]] == ["age", "net_worth", "city"]
    assert content["inputs"][2] == {
        "name": "city",
        "feature": "city",
        "dtype": "int64",
        "shape": [1],
        "vocabulary_size": 4,
    }
    assert content["transform"] == "columns"
    assert content["raw_features"][0]["column"]["scale"] == "zscore"
    assert content["raw_features"][0]["learned"] == {"mean": 40, "standard_deviation": 12}
    assert content["raw_features"][0]["train"] == {"mean": 49.5, "std": 18.0}
    assert content["raw_features"][2]["train"] == {}
    assert content["image"] is None and content["vocabularies"] == ["city_vocabulary"]
    assert (exported_table / "vocabularies" / "city_vocabulary").read_text().split() == ["Bern", "Oslo", "Rome"]
    assert (exported_table / "labels.txt").read_text() == "poor\nrich\n"


def test_each_example_runs_as_it_is_written_and_gives_the_answer_of_the_trained_model(
    exported: Path, exported_table: Path
) -> None:
    for output in (exported, exported_table):
        made.check_scripts(output, str(output.parent / "examples"), str(output.parent / "model"))


def test_a_hub_repository_is_the_export_with_a_card_and_keras_loads_it(exported: Path, tmp_path: Path) -> None:
    names = [path.relative_to(exported).as_posix() for path in exported.rglob("*") if path.is_file()]
    files = version.layout(Manifest("", dict.fromkeys(names, File(0, ""))))
    with storage.stage(str(tmp_path / "1"), producer=version.PRODUCER) as staging:
        for path, name in files.items():
            (staging / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(exported / name, staging / path)
    repository = tmp_path / "repository"
    huggingface.write(huggingface.contents(str(tmp_path / "1")), repository)
    for name in files.values():
        assert (repository / name).read_bytes() == (exported / name).read_bytes()
    image = np.random.default_rng(1).uniform(0, 255, (2, 8, 8, 1)).astype(np.float32)
    answers = [keras.saving.load_model(path)({"image": image}) for path in (repository, exported / "model.keras")]
    np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize("model", ["model_float32.tflite", "model.onnx"])
def test_a_device_with_numpy_alone_prints_the_class_of_a_photo_or_a_row(
    digits: Path, exported: Path, exported_table: Path, tmp_path: Path, model: str
) -> None:
    folder = open_examples(str(digits / "examples"))
    (raw, labels) = next(iter(folder.raw_batches("eval", 2)))
    photos = [tmp_path / "1.png", tmp_path / "2.png"]
    for photo, encoded in zip(photos, raw["image"].numpy(), strict=True):
        photo.write_bytes(encoded)
    script = (
        "import os, runpy, sys\n"
        "sys.path[0] = os.path.dirname(sys.argv[1])\n"
        "for name in ('trainyard', 'tensorflow', 'keras', 'pyarrow', 'pydantic'): sys.modules[name] = None\n"
        "runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    )

    def ask(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script, str(output / "predict.py"), *arguments, "--model", model]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    done = ask(exported, *map(str, photos))
    assert done.stdout.splitlines() == [f"digit {label}" for label in labels.numpy()], done.stderr
    rows = [{"age": "70", "net worth": 9e5, "city": " Oslo"}, {"age": 20, "net worth": None, "city": None}]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    done = ask(exported_table, str(tmp_path / "rows.json"))
    assert done.stdout.splitlines() == ["rich", "poor"], done.stderr
    (tmp_path / "rows.json").write_text(json.dumps(rows[1] | {"age": "old"}))
    done = ask(exported_table, str(tmp_path / "rows.json"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("rows.json: 'age': a number is expected, 'old' was found")


def test_the_pages_on_devices_and_onnx_run_as_they_are_written(
    digits: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (raw, labels) = next(iter(open_examples(str(digits / "examples")).raw_batches("eval", 2)))
    names = [f"digit {label}" for label in labels.numpy()]
    shutil.copytree(exported, tmp_path / "pets", ignore=shutil.ignore_patterns("saved_model", "demo.html"))
    for file, encoded in zip(("photo.jpg", "other.jpg"), raw["image"].numpy(), strict=True):
        (tmp_path / file).write_bytes(encoded)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "pets"), *sys.path])
    monkeypatch.delitem(sys.modules, "preprocess", raising=False)
    pages = [(HOW_TO / page).read_text(encoding="utf-8") for page in ("devices.md", "onnx.md")]
    lines = re.findall(r"python pets/(predict\.py.*)", "".join(pages))
    assert len(lines) == 4
    for line in lines:
        script, *arguments = line.split()
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        runpy.run_path(str(tmp_path / "pets" / script), run_name="__main__")
        printed = capsys.readouterr().out.strip()
        assert (json.loads(printed)["label"] if "--json" in line else printed) == names[0]
    (program,) = re.findall(r"```python\n(.*?)```", pages[1], re.DOTALL)
    exec(compile(program, "onnx.md", "exec"), {})
    sys.modules.pop("preprocess", None)
    assert capsys.readouterr().out == f"(2, 10) {names[1]}\n"


@pytest.fixture(scope="module")
def page() -> Iterator[browser.Page]:
    with browser.chromium() as page:
        yield page


@browser.needs_demo
def test_the_page_of_an_image_model_answers_in_a_browser_as_predict(
    page: browser.Page, digits: Path, exported: Path, tmp_path: Path
) -> None:
    (raw, _labels) = next(iter(open_examples(str(digits / "examples")).raw_batches("eval", 32)))
    expected = tf.saved_model.load(str(exported / "saved_model")).signatures["serving_default"](**raw)
    page.open_demo(exported)
    furthest = 0.0
    for number, encoded in enumerate(raw["image"].numpy()):
        answer = page.run(f"trainyard.answer(new Blob([new Uint8Array({list(encoded)})]))")
        furthest = max(furthest, np.abs(np.array(answer["probabilities"]) - expected["probabilities"][number]).max())
        assert answer["label"] == expected["label"].numpy()[number].decode()
    print("largest difference in a browser", furthest)
    assert furthest < 1e-5

    page.open_demo(exported, width=390)
    assert page.run("document.documentElement.scrollWidth") == 390
    (tmp_path / "photo.png").write_bytes(raw["image"].numpy()[3])
    page.choose("#photo", tmp_path / "photo.png")  # a field of phones alone
    page.wait("document.getElementById('label').innerText")
    assert page.text("label") == expected["label"].numpy()[3].decode()

    page.open_demo(exported)
    page.choose("#file", tmp_path / "photo.png")
    page.wait("document.getElementById('label').innerText")
    assert page.text("label") == expected["label"].numpy()[3].decode()
    assert page.text("source") == "photo.png"
    page.drag("#drawing", (0.5, 0.1), (0.5, 0.5), (0.5, 0.9))
    page.wait("document.getElementById('source').textContent === 'the drawing'")
    page.wait("document.getElementById('answer').hidden === false")
    page.run("document.getElementById('camera').focus()")
    page.press("Enter")
    page.wait("document.getElementById('video').videoWidth > 0")
    page.run("document.getElementById('capture').click()")
    page.wait("document.getElementById('source').textContent === 'the camera'")
    (tmp_path / "no image.png").write_text("no image")
    page.choose("#file", tmp_path / "no image.png")
    page.wait("!document.getElementById('fault').hidden")
    assert page.text("fault").startswith("the file is no JPEG, PNG,")
    assert page.complaints == [] and set(page.requests) == {(exported / "demo.html").as_uri()}

    text = (exported / "demo.html").read_text()
    assert "location.origin" not in text  # Firefox has none for a file
    text = text.replace('"answer":[', '"answer":[0.5,')
    (tmp_path / "otherwise.html").write_text(text)
    page.open(tmp_path / "otherwise.html")
    page.wait("document.documentElement.dataset.checked")
    assert page.text("check").endswith("Do not rely on its answers; try another browser.")


@browser.needs_demo
def test_the_page_shows_hostile_class_names_as_text(
    page: browser.Page, digits: Path, exported: Path, tmp_path: Path
) -> None:
    (raw, _labels) = next(iter(open_examples(str(digits / "examples")).raw_batches("eval", 1)))
    (encoded,) = raw["image"].numpy()
    labels = [
        *[f"{HOSTILE}{number}" for number in range(9)],
        "constructor",
    ]  # each object of JavaScript has a constructor
    document = open_examples(str(digits / "examples")).document.model_copy(update={"labels": labels})
    to = tmp_path / "hostile"
    shutil.copytree(exported, to, ignore=shutil.ignore_patterns("saved_model", "*.tflite", "demo.html"))
    (to / "labels.txt").write_text("\n".join(labels) + "\n")
    demo.write(recipe(DIGITS), document, to)
    page.open_demo(to)
    (tmp_path / "photo.png").write_bytes(encoded)
    page.choose("#file", tmp_path / "photo.png")
    page.wait("document.querySelectorAll('#bars tr').length === 10")
    names = page.run("[...document.querySelectorAll('#bars th')].map((cell) => cell.textContent)")
    assert sorted(names) == sorted(labels)
    assert page.run("document.title") == "Try the model" and page.run("document.images.length") == 0
    assert page.complaints == [] and all(url.endswith("/demo.html") for url in page.requests)


@browser.needs_demo
def test_a_demo_that_cannot_be_made_says_what_to_do(
    digits: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = open_examples(str(digits / "examples")).document
    with pytest.raises(ConfigurationError, match=r"no browser runs\. Leave demo out"):
        demo.write(recipe(DIGITS), document, tmp_path)
    monkeypatch.setattr(demo, "RUNTIME", tmp_path)
    with pytest.raises(ConfigurationError, match=r"needs onnxruntime-web .* cannot be read .* Run `make demo-runtime`"):
        demo.write(recipe(DIGITS), document, exported)
    for name in demo.DIGESTS:
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(b"another"))
    with pytest.raises(ConfigurationError, match=r"its digest differs\. Run `make demo-runtime` again"):
        demo.write(recipe(DIGITS), document, exported)


@ssh_server.needs_sshd
def test_a_device_times_its_file_before_the_push(exported: Path) -> None:
    document = Exports.read(str(exported))
    (file,) = (export for export in document.exports if export.devices)
    (timed,) = file.devices
    assert file.format == "litert_int8" and timed.device == "pi" and timed.latency_ms[1].p50 > 0
    conditions = {threshold.name: threshold for threshold in document.gate.thresholds if " on pi: " in threshold.name}
    assert [*conditions] == ["litert_int8 on pi: p95 in ms <= 1000", "litert_int8 on pi: size in MB <= 1"]
    assert conditions["litert_int8 on pi: size in MB <= 1"].value == file.bytes / 1e6


@ssh_server.needs_sshd
def test_nothing_is_pushed_if_a_device_cannot_be_reached_or_is_slower_than_its_limit(
    table: Path, tmp_path: Path
) -> None:
    arguments = str(table / "examples"), str(table / "model")
    models, judged = tmp_path / "models", push_folders.evaluated(tmp_path / "evaluation")
    limits = DeviceLimits(format="litert_float32", latency_ms_p95=1e-6, size_mb=1)

    def push(device: str) -> None:
        settings = recipe(TABLE, formats=["saved_model", "litert_float32"], devices={device: limits})
        exported = str(tmp_path / device)
        with storage.stage(exported, "trainyard.export") as output:
            run.run(settings, *arguments, output)
        (tmp_path / "pushed").mkdir()
        push_step.run(settings, judged, exported, tmp_path / "pushed", str(models))

    with ssh_server.serving(tmp_path):
        for name in ("off", "pi"):
            devices.add(name, devices.Device(ssh=name, python=sys.executable))
        with pytest.raises(TransientError, match=r"device off: cannot be reached .* Check it with `ssh off`"):
            push("off")
        assert storage.committed(str(tmp_path / "off")) is None and not models.exists()
        with pytest.raises(GateRefused, match=r"litert_float32 on pi: p95 in ms <= 1e-06, was [\d.]+: on "):
            push("pi")
    gate = Exports.read(str(tmp_path / "pi")).gate
    failed = [threshold.name for threshold in gate.thresholds if not threshold.passed]
    assert failed == ["litert_float32 on pi: p95 in ms <= 1e-06"] and not models.exists()


@arm64.needs_arm64
def test_arm64_python_prints_the_class_of_a_photo(exported: Path, digits: Path, tmp_path: Path) -> None:
    raw, labels = next(iter(open_examples(str(digits / "examples")).raw_batches("eval", 1)))
    (tmp_path / "photo.png").write_bytes(raw["image"].numpy()[0])
    assert arm64.python(exported, "predict.py", str(tmp_path / "photo.png")) == [f"digit {labels.numpy()[0]}"]


@arm64.needs_arm64
@pytest.mark.parametrize("made_folder", ["digits", "table"])
def test_every_litert_file_answers_on_arm64_as_the_trained_model(
    made_folder: str, exported: Path, exported_table: Path, request: pytest.FixtureRequest
) -> None:
    root: Path = request.getfixturevalue(made_folder)
    arm64.check(root / "exported", str(root / "examples"), str(root / "model"))


def test_a_signature_says_types_ranges_classes_and_what_is_missing(exported: Path, exported_table: Path) -> None:
    content = json.loads((exported_table / "signature.json").read_text())
    assert (content["task"], content["classes"]) == ("classification", ["poor", "rich"])
    age, worth, city = content["columns"]
    assert (age["missing"], worth["input"], city["missing"]) == ("NaN", "net_worth", "")
    assert content["formats"].keys() == formats.FORMATS.keys()
    assert content["formats"]["onnx"]["inputs"]["city"] == {"dtype": "int64", "shape": [1], "range": [0, 3]}
    assert content["formats"]["saved_model"]["outputs"]["label_id"]["range"] == [0, 1]
    image = json.loads((exported / "signature.json").read_text())["formats"]["litert_int8"]["inputs"]["image"]
    assert (image["dtype"], image["range"]) == ("int8", [0, 255]) and image["scale"] == pytest.approx(1, abs=0.01)


def test_a_file_that_lost_accuracy_is_listed_and_refused(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def uncalibrated(self: lite.LiteConverter) -> Any:
        for _ in range(10):  # a range so wide that eight bits tell nothing apart
            yield {"age": np.float32([1e4]), "net_worth": np.float32([-1e4]), "city": np.int64([0])}

    monkeypatch.setattr(lite.LiteConverter, "_calibration", uncalibrated)
    formats = ["saved_model", "litert_float32", "litert_int8"]
    (tmp_path / "named").mkdir()
    settings = recipe(TABLE, formats=formats, min_mapped_share=0.5)
    run.run(settings, str(table / "examples"), str(table / "model"), tmp_path / "named")
    document = Exports.read(str(tmp_path / "named"))
    assert document.gate.verdict == "refused"
    passed = {threshold.name: threshold.passed for threshold in document.gate.thresholds}
    assert passed["litert_float32 accuracy - trained >= -0.01"]
    edge_tpu = "litert_int8 share of operations and of multiply-adds on an Edge TPU >= 0.5"
    failed = ["litert_int8 accuracy - trained >= -0.01", "litert_int8 rms |probability - trained| <= 0.1", edge_tpu]
    assert refusal_reason(document.gate.thresholds).endswith(
        f"{edge_tpu}, was 0: LESS, operation 3 of 13: not in Coral's table"
    )
    assert [name for name, good in passed.items() if not good] == failed
    assert [export.format for export in document.exports] == formats
    assert document.exports[2].accuracy_difference < -0.01 and not document.left_out

    run.run(recipe(TABLE), str(table / "examples"), str(table / "model"), tmp_path)
    document = Exports.read(str(tmp_path))
    formats = ["saved_model", "keras", "litert_float32", "litert_float16"]
    assert document.gate.verdict == "blessed" and [export.format for export in document.exports] == formats
    assert "litert_int8 accuracy - trained >= -0.01" in document.left_out["litert_int8"]
    described = json.loads((tmp_path / "preprocessing.json").read_text())["files"]
    assert not (tmp_path / "model_int8.tflite").exists() and "model_int8.tflite" not in json.dumps(described)
    assert not [threshold for threshold in document.gate.thresholds if threshold.name.startswith("litert_int8")]


def test_a_recurrent_model_that_ends_litert_s_calibrator_leaves_in_the_other_formats(
    table: Path, tmp_path: Path
) -> None:
    features = open_examples(str(table / "examples")).document.features
    inputs = {feature.name: keras.Input((), name=feature.name, dtype=feature.dtype) for feature in features}
    numbers = [keras.layers.Reshape((1, 1))(inputs[name]) for name in ("age", "net worth")]
    states = keras.layers.LSTM(2)(keras.layers.Concatenate(axis=1)(numbers))
    made.commit_model(tmp_path / "model", keras.Model(inputs, keras.layers.Dense(2)(states)))
    output = tmp_path / "exported"
    output.mkdir()
    arguments = str(table / "examples"), str(tmp_path / "model"), output
    with pytest.raises(ConfigurationError, match=r"litert_int8: LiteRT cannot calibrate .* ended with SIG.*leave"):
        run.run(recipe(TABLE, formats=["saved_model", "litert_int8"]), *arguments)
    shutil.rmtree(output / "saved_model")
    run.run(recipe(TABLE), *arguments)
    document = Exports.read(str(output))
    assert len(document.exports) == 4 and document.gate.verdict == "blessed"
    assert document.left_out["litert_int8"].startswith("LiteRT cannot calibrate the model")


def test_a_transform_that_differs_from_the_one_trained_on_is_refused(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Skewed(tf.Module):
        def __init__(self, uri: str) -> None:
            super().__init__()
            self.right = load_transform(uri)

        def __call__(self, raw: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            return self.right(raw | {"age": raw["age"] * 1.001})

    monkeypatch.setattr(formats, "load_transform", Skewed)
    arguments = recipe(TABLE, formats=["saved_model"]), str(table / "examples"), str(table / "model"), tmp_path
    run.run(*arguments)
    gate = Exports.read(str(tmp_path)).gate
    assert gate.verdict == "refused"
    assert [threshold.name for threshold in gate.thresholds if not threshold.passed] == [
        "saved_model max |probability - trained| <= 1e-05",
        "raw records, by every path: difference / bound <= 1",
    ]


def test_a_mixed_precision_model_leaves_in_float32(digits: Path, tmp_path: Path) -> None:
    image = keras.Input((8, 8, 1), name="image")
    policy = keras.DTypePolicy("mixed_bfloat16")
    hidden = keras.layers.Conv2D(4, 3, activation="relu", dtype=policy)(
        keras.layers.Rescaling(1 / 255, dtype=policy)(image)
    )
    hidden = keras.layers.BatchNormalization(dtype=policy)(hidden)
    model = keras.Model(
        {"image": image}, keras.layers.Dense(10, dtype="float32")(keras.layers.Flatten(dtype=policy)(hidden))
    )
    made.commit_model(tmp_path / "model", model)
    output = tmp_path / "exported"
    output.mkdir()
    run.run(recipe(DIGITS, max_accuracy_drop=0.1), str(digits / "examples"), str(tmp_path / "model"), output)
    exact = {
        threshold.name.split()[0]: threshold.value
        for threshold in Exports.read(str(output)).gate.thresholds
        if "max |" in threshold.name
    }
    assert set(exact) == {"saved_model", "keras"} and max(exact.values()) <= 1e-5
    assert {path.path for path in Exports.read(str(output)).skew if path.passed} >= {"saved_model", SERVER}
    left = keras.models.load_model(output / "model.keras")
    assert {layer.dtype_policy.name for layer in left.layers} == {"float32"}
    np.testing.assert_array_equal(left.get_weights()[0], model.get_weights()[0])


def export_of_ages(table: Path, root: Path, layers: Any, label: Any, max_accuracy_drop: float) -> Exports:
    """Export the regression `layers(age / 100)` of ages whose label is `label(age, is_odd)`, and return its record."""
    folder = open_examples(str(table / "examples"))

    class Prepare(tf.Module):
        @tf.function(input_signature=[{"age": tf.TensorSpec((None,), tf.float32)}])
        def transform_fn(self, raw: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            return {"age": raw["age"] / 100}

    ages = np.concatenate([raw["age"].numpy() for raw, _ in folder.raw_batches("eval", 500)])
    rows = [
        {"age": [age / 100], "raw/age": [age], "label": [float(label(age, index % 2))], "key": [b"k"]}
        for index, age in enumerate(ages)
    ]
    document = folder.document.model_copy(
        update={
            "task": "regression",
            "labels": None,
            "features": [Feature(name="age", dtype="float32", shape=())],
            "raw_features": [RawFeature(name="age", dtype="float32")],
        }
    )
    made.commit_examples(root / "examples", document, Prepare(), rows[:500], rows[500:])
    age = keras.Input((), name="age")
    made.commit_model(root / "model", keras.Model({"age": age}, layers(keras.layers.Reshape((1,))(age))))
    output = root / "exported"
    output.mkdir()
    text = TABLE.replace("\ndata", "\ntask: regression\ndata").replace(
        ", net worth: {type: numeric}, city: {type: category}", ""
    )
    run.run(recipe(text, max_accuracy_drop=max_accuracy_drop), str(root / "examples"), str(root / "model"), output)
    return Exports.read(str(output))


def line(slope: float) -> keras.layers.Dense:
    return keras.layers.Dense(1, use_bias=False, kernel_initializer=keras.initializers.Constant(slope))


def test_an_onnx_file_is_the_same_however_the_converter_names_and_orders_what_is_in_it(exported: Path) -> None:
    import onnx

    content = (exported / "model.onnx").read_bytes()
    model = onnx.load_model_from_string(content)
    ends = {value.name for value in (*model.graph.input, *model.graph.output)}
    for number, node in enumerate(model.graph.node):
        node.name = f"node__{number}"
        node.input[:] = [name if name in ends else f"{name}__3" for name in node.input]
        node.output[:] = [name if name in ends else f"{name}__3" for name in node.output]
    for tensor in model.graph.initializer:
        tensor.name = f"{tensor.name}__3"
    model.graph.initializer.sort(key=lambda tensor: tensor.name, reverse=True)
    model.graph.doc_string = "converted from __inference_answers_7"
    assert onnx_file._repeatable(model) == content


def test_a_saved_model_is_the_same_in_whatever_order_its_functions_were_written(
    exported_table: Path, tmp_path: Path
) -> None:
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    folder = tmp_path / "saved_model"
    shutil.copytree(exported_table / "saved_model", folder)
    files = {path.name: path.read_bytes() for path in folder.glob("*.pb")}
    saved = SavedModel.FromString(files["saved_model.pb"])
    functions = saved.meta_graphs[0].graph_def.library.function
    assert len(functions) > 3
    functions.sort(key=lambda function: function.signature.name[::-1])
    (folder / "saved_model.pb").write_bytes(saved.SerializeToString())
    signature._make_repeatable(folder)
    assert {path.name: path.read_bytes() for path in folder.glob("*.pb")} == files


@pytest.mark.parametrize(
    "fault", ["a custom operator", "a function", "an external weight", "another file in a constant"]
)
def test_a_hostile_onnx_file_is_refused_before_it_is_loaded(exported: Path, fault: str) -> None:
    import onnx

    model = onnx.load(exported / "model.onnx")
    if fault == "a custom operator":
        model.graph.node[0].domain = "ai.onnx.contrib"
        model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.contrib", 1))
    elif fault == "a function":
        body = [onnx.helper.make_node("Relu", ["x"], ["y"])]
        model.functions.append(onnx.helper.make_function("evil", "f", ["x"], ["y"], body, model.opset_import))
    elif fault == "another file in a constant":
        constant = onnx.numpy_helper.from_array(np.zeros(4, np.float32))
        onnx.external_data_helper.set_external_data(constant, "../../etc/passwd")
        model.graph.node.append(onnx.helper.make_node("Constant", [], ["c"], value=constant))
    else:
        onnx.external_data_helper.set_external_data(model.graph.initializer[0], "../../etc/passwd")
    with pytest.raises(ConfigurationError, match=r"model.onnx: (holds operators of|names other files)"):
        onnx_file.session(model.SerializeToString())


def test_a_hostile_file_beside_predict_py_is_a_sentence_and_runs_nothing(exported: Path, tmp_path: Path) -> None:
    import flatbuffers
    import onnx
    from ai_edge_litert import schema_py_generated as schema

    name, folder, image = "model_float32.tflite", tmp_path / "device", tmp_path / "seven.png"
    shutil.copytree(exported, folder)
    content = (exported / name).read_bytes()
    image.write_bytes(made.png(np.zeros((8, 8), np.uint8)))

    def tflite(change: Callable[[Any, Any], None]) -> bytes:
        model = schema.ModelT.InitFromPackedBuf(content, 0)
        change(model, model.subgraphs[0])
        builder = flatbuffers.Builder(len(content))
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def custom(operation: str) -> Callable[[Any, Any], None]:
        code = schema.BuiltinOperator.CUSTOM
        return lambda model, _graph: vars(model.operatorCodes[0]).update(
            builtinCode=code, deprecatedBuiltinCode=code, customCode=operation.encode()
        )

    model = onnx.load(exported / "model.onnx")
    weights = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    onnx.external_data_helper.set_external_data(weights, "/etc/passwd", length=len(weights.raw_data))
    weights.ClearField("raw_data")
    cases = {
        "not a valid Flatbuffer": content[: len(content) // 2],
        "Flex delegate": tflite(custom("FlexReadFile")),
        r"\(evil\) failed to prepare": tflite(custom("evil")),
        "cannot be loaded": tflite(lambda _model, graph: vars(graph.tensors[0]).update(buffer=10**6)),
        "inconsistent model": tflite(lambda _model, graph: vars(graph.operators[0]).update(inputs=[10**6] * 3)),
        "Absolute path not allowed": model.SerializeToString(),
    }
    for sentence, hostile in cases.items():
        file = "model.onnx" if "path" in sentence else name
        (folder / file).write_bytes(hostile)
        command = [sys.executable, str(folder / "predict.py"), str(image), "--model", file]
        refused = subprocess.run(command, capture_output=True, text=True)
        last = refused.stderr.splitlines()[-1]
        assert refused.returncode == 1 and not refused.stdout and "Traceback" not in refused.stderr, refused.stderr
        assert re.match(rf"{file}: cannot be loaded \(.*\)\. Copy it again\.$", last) and re.search(sentence, last), (
            last
        )


@pytest.mark.parametrize("opset", [14, 18])
def test_an_onnx_file_has_the_operators_of_its_opset_and_answers_as_the_model(
    digits: Path, table: Path, tmp_path: Path, opset: int
) -> None:
    import onnx

    for root in (digits, table):
        folder = open_examples(str(root / "examples"))
        model = keras.models.load_model(root / "model" / "model.keras")
        file = tmp_path / f"{root.name}.onnx"
        file.write_bytes(onnx_file.convert(model, folder.document, opset))
        assert {each.domain: each.version for each in onnx.load(file).opset_import}[""] == opset
        features = next(iter(folder.batches("eval", 33)))[0]
        expected = formats.keras_predictor(model, folder.document)(features, {})
        np.testing.assert_allclose(onnx_file.OnnxModel(file, folder.document)(features, {}), expected, atol=1e-5)


def test_a_network_with_gelu_groups_a_given_mean_and_a_choice_answers_alike_as_litert_and_onnx(
    digits: Path, tmp_path: Path
) -> None:
    folder = open_examples(str(digits / "examples"))
    image = keras.Input((8, 8, 1), name="image")
    scaled = keras.layers.Normalization(mean=[128.0], variance=[64.0])(image)  # as groups and gelu in ConvNeXt
    chosen = keras.ops.where(image > 0, keras.ops.log(image), scaled)  # black is infinite in the other branch
    hidden = keras.layers.Conv2D(4, 3, groups=4)(keras.layers.Conv2D(4, 1)(chosen))
    hidden = keras.layers.Dense(16, activation="gelu")(keras.layers.Flatten()(hidden))
    model = keras.Model({"image": image}, keras.layers.Dense(10)(hidden))
    features = next(iter(folder.batches("eval", 33)))[0]
    expected = formats.keras_predictor(model, folder.document)(features, {})
    onnx_model, lite_model = tmp_path / "model.onnx", tmp_path / "model_batch.tflite"
    onnx_model.write_bytes(onnx_file.convert(model, folder.document, 18))
    lite_model.write_bytes(lite.LiteConverter(model, folder, 1).convert("litert_batch"))
    for answer in (onnx_file.OnnxModel(onnx_model, folder.document), lite.BatchModel(lite_model, folder.document)):
        np.testing.assert_allclose(answer(features, {}), expected, atol=1e-5)


def test_a_batch_file_takes_any_number_of_examples_and_a_recurrent_model_is_refused(
    exported: Path, exported_table: Path, tmp_path: Path
) -> None:
    for output in (exported, exported_table):
        folder = open_examples(str(output.parent / "examples"))
        trained = formats.keras_predictor(keras.models.load_model(output / "model.keras"), folder.document)
        features = {name: np.asarray(value) for name, value in next(iter(folder.batches("eval", 40)))[0].items()}
        expected = trained(features, {})
        ask = Interpreter(str(output / "model_batch.tflite")).get_signature_runner()
        for count in (1, 32, 40):
            inputs = {signature.input_name(name): value[:count] for name, value in features.items()}
            np.testing.assert_allclose(ask(**inputs)["probabilities"], expected[:count], atol=1e-5)
        model = lite.BatchModel(output / "model_batch.tflite", folder.document)
        np.testing.assert_allclose(model(features, {}), expected, atol=1e-5)
    inputs = {
        feature.name: keras.Input((), name=feature.name, dtype=feature.dtype) for feature in folder.document.features
    }
    states = keras.layers.LSTM(2)(keras.layers.Reshape((1, 1))(inputs["age"]))
    recurrent = keras.Model(inputs, keras.layers.Dense(2)(states))
    with pytest.raises(ConfigurationError, match=r"litert_batch: LiteRT cannot express the model .*leave litert_batch"):
        lite.LiteConverter(recurrent, folder, 1).convert("litert_batch")


def test_without_its_libraries_onnx_is_refused_in_one_sentence(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tf2onnx.convert", None)
    settings = recipe(DIGITS, formats=["saved_model", "onnx"])
    with pytest.raises(ConfigurationError, match=r"onnx: needs tf2onnx.*Install trainyard\[cpu\], or leave onnx out"):
        run.run(settings, str(digits / "examples"), str(digits / "model"), tmp_path)


def test_regression_is_judged_by_the_mean_absolute_error(table: Path, tmp_path: Path) -> None:
    exports = export_of_ages(table, tmp_path, line(30000), lambda age, is_odd: 300 * age + is_odd * 20, 0.05)
    assert exports.exports[0].accuracy == pytest.approx(10, rel=1e-3)  # every other label is 20 off
    names = [threshold.name for threshold in exports.gate.thresholds]
    assert names[0] == "saved_model mae / trained - 1 <= 0.05"
    assert "keras max |prediction - trained| / largest <= 1e-05" in names
    assert "litert_float16 rms (prediction - trained) / deviation <= 0.05" in names
    assert all(
        threshold.passed for threshold in exports.gate.thresholds if not threshold.name.startswith("litert_int8")
    )
    served = tf.saved_model.load(str(tmp_path / "exported" / "saved_model")).signatures["serving_default"](
        age=tf.constant([50.0])
    )
    assert served["prediction"].shape == (1,) and served["prediction"].numpy()[0] == pytest.approx(15000)


def test_noise_that_no_score_shows_is_measured_in_deviations_of_the_trained_predictions() -> None:
    off = np.float32([3, -3] * 50)  # dollars
    fares = np.float32(range(100))
    spread, totals = parity._Spread(), parity._Totals(by_target=True)
    for part in (slice(0, 30), slice(30, 100)):
        spread.add(fares[part])
        totals.add("x", (fares + off)[part], fares[part], fares[part], np.abs, np.ones(len(fares[part])))
    assert spread.deviation == pytest.approx(fares.std())
    assert np.sqrt(totals.squares / totals.examples) == pytest.approx(3)


def test_every_file_of_a_regression_answers_in_units_that_its_own_numbers_could_not_hold(
    table: Path, tmp_path: Path
) -> None:
    mean, deviation = 600_000.0, 300_000.0  # a float16 holds neither
    unit = keras.layers.Rescaling(deviation, offset=mean, dtype="float32", name="target_unit")
    slope = line(4)
    exports = export_of_ages(
        table,
        tmp_path,
        lambda share: unit(slope(share)),
        lambda age, is_odd: mean + deviation * (age / 25 + is_odd),
        0.02,
    )
    assert exports.gate.verdict == "blessed", exports.gate.thresholds
    furthest = {file.format: file.max_abs_difference / deviation for file in exports.exports}
    assert furthest["litert_float16"] < 2e-3 and furthest["litert_int8"] < 0.05


def test_one_unit_of_a_programs_own_model_is_that_of_each_target(table: Path) -> None:
    document = open_examples(str(table / "examples")).document
    document = document.model_copy(update={"task": "regression", "labels": None, "targets": ["heating", "cooling"]})
    age = keras.Input((1,), name="age")
    model = keras.Model(age, keras.layers.Rescaling(1000.0, offset=20.0)(keras.layers.Dense(2)(age)))
    unit = lite.Unit(1000, 20)
    assert lite._units(model, document) == {"prediction_heating": unit, "prediction_cooling": unit}
