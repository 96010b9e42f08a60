"""Every value of every document that people write is refused with its file and line, or can run.

The documents' own JSON Schemas say which values there are, so that a key added later is tried without a line here.
"""

from __future__ import annotations

import copy
import json
import re
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel
from table_recipes import HOUSES, SONGS

from trainyard import quantity, uris
from trainyard.contract import keys, window
from trainyard.errors import ConfigurationError
from trainyard.graph import OUTPUTS
from trainyard.spec import code, documents, plain_yaml
from trainyard.spec.environment import Environment
from trainyard.spec.plain_yaml import MAX_BYTES, Fault, YamlText
from trainyard.spec.recipe import Recipe
from trainyard_control.kubeflow.schedules import Schedule

Location = tuple[str | int, ...]
Node = dict[str, Any]

TABLE = {
    "name": "cars",
    "data": {
        "format": "csv",
        "path": "cars.csv",
        "label": "fast",
        "features": {
            "km/h": {"type": "numeric"},
            "Türen": {"type": "category"},
            "sold": {"type": "date"},
            "about": {"type": "text"},
            "extras": {"type": "text", "separator": ";"},
        },
    },
    "model": {"name": "wide_deep"},
    "train": {
        "class_weights": {"yes": 2.0},
        "early_stopping": {"patience": 3},
        "select": {"metric": "pr_auc", "class": "yes"},
    },
    "evaluate": {"slices": ["Türen"], "gates": [{"metric": "accuracy", "min": 0.5, "slice": "Türen=two"}]},
    "drift": {
        "refuse": False,
        "features": {
            "Türen": {
                "max_frequency_change": 0.2,
                "max_missing_change": 0.1,
                "max_jensen_shannon": 0.1,
                "max_psi": 0.25,
            }
        },
    },
    "push": {"path": "/models"},
}
RIDES = {
    "name": "rides",
    "data": {
        "format": "parquet",
        "path": "rides",
        "derive": {"tipped": "tip > 0.2 * fare"},
        "where": "fare > 0",
        "label": "tipped",
        "features": {"fare": {"type": "numeric"}},
        "split": {"by": "time", "column": "day", "eval_from": "2024-02-01", "test_from": "2024-03-01"},
    },
    "model": {"name": "mlp"},
    "drift": {"features": {"fare": {"max_mean_shift": 1.0}}},
}
ENERGY = {
    **HOUSES,
    "train": {"select": {"metric": "mae", "target": "cooling"}},
    "evaluate": {"gates": [{"metric": "mae", "max": 2, "target": "cooling"}]},
}
IMAGES = {
    "name": "pets",
    "data": {"format": "image_folder", "path": "gs://bucket/pets", "image_size": [96, 96]},
    "model": {"name": "cnn_small"},
    "train": {"augment": {"crop": {"scale": [0.5, 1.0], "ratio": [0.8, 1.25]}, "rand_augment": {"operations": 1}}},
    "evaluate": {"time_to": {"metric": "accuracy", "reach": 0.9}},
}
LABELLED = {**IMAGES, "data": {**IMAGES["data"], "labels": "labels.csv", "encoding": "cp1252"}}
CLASSES = {
    "name": "rare",
    "data": {
        "format": "image_folder",
        "path": "rare",
        "split": {"by": "class", "train": 0.7, "eval": 0.1, "test": 0.2},
    },
    "model": {"name": "cnn_small"},
}
WINDOW = {
    "name": "days",
    "data": {"format": "tfrecord", "path": "s3://bucket/day=%Y-%m-%d", "window_days": 7},
    "model": {"name": "cnn_small"},
}
SCALED = {
    "name": "scaled",
    "task": "regression",
    "data": {
        "format": "csv",
        "path": "a.csv",
        "encoding": "cp1252",
        "skip_rows": [1, 3],
        "comment": "#",
        "absent_columns": "missing",
        "features": {"x": {"type": "numeric", "clip": [0, 0.999]}},
    },
    "model": {"name": "mlp"},
    "train": {"target": {"scale": "log", "clip": [0.01, 0.99]}},
}
DIGITS = {"name": "digits", "data": {"format": "image_folder", "bundled": "digits"}, "model": {"name": "cnn_small"}}
DECIDED = DIGITS | {"threshold": {"maximize": "f1", "class": "3"}}
DRAWN = DIGITS | {"model": {"name": "cnn_small", "blocks": ["conv:32", "pool", "separable:64:2"]}}
TUNED = {
    "name": "tuned",
    "data": {"format": "image_folder", "path": "gs://bucket/pets"},
    "model": {"name": "resnet50", "weights": "imagenet"},
    "train": {"fine_tune": {}, "progressive_resizing": [{"epochs": 2, "size": 96}]},
}
TAUGHT = DIGITS | {"train": {"teacher": {"model": "gs://bucket/models/3", "share": 0.5, "temperature": 2}}}
OWN = {
    "name": "own",
    "data": {"format": "image_folder", "bundled": "digits"},
    "train": {"command": ["python", "my_train.py"]},
    "files": ["report_folders.py"],
}
FOLDER = {"name": "folder", "train": {"command": ["python", "my_train.py"], "result": "folder"}}
INLINE = OWN | {"files": {"my_train.py": "print(1)"}}
BINARY = OWN | {"files": {"words.npy": {"base64": "/w=="}}}
RESOURCES = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
WHEEL = {"sha256": 64 * "0", "bytes": 1, "location": "s3://bucket/uploads/0/shop-1.0-py3-none-any.whl"}
KUBEFLOW = {
    "target": "kubeflow",
    "storage": "gs://bucket/runs",
    "images": {"cpu": "example/cpu:1", "gpu": "example/gpu:1"},
    "volume": {"claim": "runs", "path": "/mnt/runs"},
    "ca_bundle": {"config_map": "company-ca", "key": "ca.crt"},
    "kubeflow": {"endpoint": "https://kfp.example.com", "token_command": ["login"]},
    "beam": {"options": {"parallelism": 4}},
    "variables": {"AWS_DEFAULT_REGION": "eu"},
    "secrets": {"AWS_SECRET_ACCESS_KEY": {"secret": "store", "key": "secretkey"}},
    "pools": {
        "cpu": {
            "kind": "cpu",
            "resources": RESOURCES,
            "nodeSelector": {"team": "a"},
            "nodeAffinity": [{"key": "zone", "values": ["a"]}],
            "tolerations": [{"key": "team", "value": "a"}],
        }
    },
    "placement": {"train": ["cpu"], "default": "cpu"},
    "input_workers": {"count": 2, "pool": "cpu"},
    "image_pull_secrets": ["login"],
    "timeout_seconds": {"train": 60},
    "retries": {"train": 1},
}
VERTEX = {
    "target": "vertex",
    "storage": "gs://bucket/runs",
    "images": {"cpu": "example/cpu:1"},
    "vertex": {"project": "example", "location": "europe-west4"},
    "pools": {"cpu": {"kind": "cpu", "resources": RESOURCES}},
    "placement": {"default": "cpu"},
}
ELASTIC = {
    "target": "local",
    "storage": "s3://bucket/runs",
    "storage_encryption": {"kms_key": "alias/runs"},
    "notify": {"url": "https://hooks.example/trainyard", "body": "json", "events": ["failed"]},
    "pools": {"here": {"kind": "cpu", "workers": {"min": 2, "max": 4}, "resources": RESOURCES}},
    "placement": {"default": "here"},
}
SCHEDULE = {
    "name": "nightly",
    "recipe": "digits",
    "environment": "kind",
    "set": ["train.epochs=3"],
    "cron": "0 3 * * *",
    "when": {"champion_older_than": "7d"},
}
MODELS: dict[str, tuple[type[BaseModel], list[Node]]] = {
    "recipe": (
        Recipe,
        # The shortest first: of equally near ones the first is tried, with some sixty values.
        [
            DIGITS,
            TABLE,
            RIDES,
            ENERGY,
            SONGS,
            IMAGES,
            LABELLED,
            CLASSES,
            WINDOW,
            SCALED,
            DECIDED,
            DRAWN,
            TUNED,
            TAUGHT,
            OWN,
            FOLDER,
            INLINE,
            BINARY,
            BINARY | {"packages": {"shop-1.0-py3-none-any.whl": WHEEL}},
            BINARY | {"packages": ["lightgbm==4.6.0"]},
        ],
    ),
    "environment": (Environment, [KUBEFLOW, VERTEX, ELASTIC]),
    "schedule": (Schedule, [SCHEDULE]),
}

HUGE = ["1e30", "-1e30", "9" * 60, "9" * 100, "1e999", ".inf", "-.inf", ".nan"]
WRONG = ["", "yes", "true", "maybe", "2024-13-45", "2024-01-01", "[]", "{}", "[[1]]", "{a: {b: 1}}", "[96]", "12:30"]
TEXTS = ['""', '" "', '"\\0"', '"a\\nb"', '"../../x"', '"/"', "a" * 4_000, '"%Y%m%d%s"', "日本語", "~nobody/x"]
PLACES = [
    *(
        "http://host/x",
        "hdfs:/x",
        "file:///x",
        "s3:",
        "gs://",
        "s3://key:secret@bucket/x",
        "s3://bucket/x?X-Sig=secret",
    ),
    *("gs://bucket", "gs://bucket/../x", "https://user:secret@host"),
]
NUMBERS = ["-1", "0", "1", "0.5", "1.5", "-0.0", "1e-320", "0x10", "010", "1_000"]
SYNTAX = [
    "!!bool maybe",
    "!!python/object/apply:os.system [ls]",
    "[" * 4000,
    "{" * 4000,
    "[{" * 2000,
    "&a [*a]",
    "{a: 1, a: 2}",
]
ALTERNATIVES = frozenset(
    {"min", "max", "min_difference", "max_difference", "maximize", "recall", "precision"}
)  # a gate, and a threshold, take one of them
PLACEHOLDER = "PUT-HERE"
LIMITS = ("const", "default", "minimum", "maximum")
HOSTILE = [*HUGE, *WRONG, *TEXTS, *PLACES, *NUMBERS, *SYNTAX]


@cache
def schema(kind: str) -> Node:
    return MODELS[kind][0].model_json_schema(by_alias=True)


def leaves(kind: str) -> dict[Location, list[Node]]:
    """Return the schemas of every value that a document of this kind may hold, by its place; * stands for any key."""
    schemas: dict[Location, list[Node]] = {}
    for at, node in _leaves(schema(kind), (), schema(kind)["$defs"]):
        schemas.setdefault(at, []).append(json.loads(node))
    return schemas


def _leaves(node: Node, at: Location, definitions: Node) -> Iterator[tuple[Location, str]]:
    node = {**node, **(definitions[node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else {})}
    for option in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from _leaves(option, at, definitions)
    for key, inner in node.get("properties", {}).items():
        yield from _leaves(inner, (*at, key), definitions)
    for inner in _values_of_any_key(node):
        yield at, json.dumps(node)
        for tag, reference in inner.get("discriminator", {"mapping": {"": None}})["mapping"].items():
            yield from _leaves({"$ref": reference} if reference else inner, (*at, f"*{tag}"), definitions)
    items = node.get("prefixItems") or [inner for inner in [node.get("items")] if isinstance(inner, dict)]
    for index, inner in enumerate(items):
        yield from _leaves(inner, (*at, index), definitions)
    if "type" in node and node["type"] != "object":
        yield at, json.dumps(node)


def _values_of_any_key(node: Node) -> list[Node]:
    schemas = [*node.get("patternProperties", {}).values(), node.get("additionalProperties")]
    return [inner for inner in schemas if isinstance(inner, dict)]


CASES = [(kind, at) for kind in MODELS for at in leaves(kind)]


def bounded(node: Node) -> bool:
    """Return whether a schema says how little and how much a value may be."""
    if "enum" in node or "const" in node or node["type"] in ("boolean", "null"):
        return True
    if node["type"] in ("integer", "number"):
        return bool({"minimum", "exclusiveMinimum"} & node.keys() and {"maximum", "exclusiveMaximum"} & node.keys())
    if node["type"] == "string":
        return bool({"maxLength", "pattern"} & node.keys())
    if node["type"] == "array":
        return "maxItems" in node
    return "maxProperties" in node or "enum" in node.get("propertyNames", {})


@pytest.mark.parametrize("kind", MODELS)
def test_every_value_has_bounds_that_the_schema_states(kind: str) -> None:
    assert [at for at, nodes in leaves(kind).items() if not all(map(bounded, nodes))] == []


def key_of(document: Any, part: str | int) -> str | int:
    """Return the key that * stands for: the first one in the document, of the type that stands behind it."""
    if not isinstance(part, str) or not part.startswith("*"):
        return part
    tag = part[1:]
    return next((key for key, value in document.items() if not tag or value["type"] == tag), "x")


def placed(document: Node, at: Location, value: str) -> Node:
    """Return a copy of `document` with `value` at the place, and what must be around it."""
    changed = copy.deepcopy(document)
    inner: Any = changed
    for part, following in zip(at, (*at[1:], None), strict=True):
        key = key_of(inner, part)
        if isinstance(inner, list):
            inner.extend([None] * (int(key) + 1 - len(inner)))
        elif key in ALTERNATIVES and at[0] == "evaluate":
            inner = _without(inner, ALTERNATIVES - {str(key)})
        there = inner[key] if isinstance(inner, list) else inner.get(key)
        if following is None:
            inner[key] = value
        elif not isinstance(there, list if isinstance(following, int) else dict):
            inner[key] = [] if isinstance(following, int) else {}
        inner = inner[key]
    return changed


def _without(section: Node, keys: frozenset[str]) -> Node:
    for key in keys & section.keys():
        del section[key]
    return section


def present(document: Any, at: Location) -> list[Any]:
    """Return the values at the place and at those around it, the outermost first."""
    values = [document]
    for part in at:
        key = key_of(values[-1], part) if isinstance(values[-1], dict) else part
        if key not in values[-1] if isinstance(values[-1], dict) else not isinstance(values[-1], list) or key != 0:
            break
        values.append(values[-1][key])
    return values


def good_values(kind: str, at: Location, document: Node) -> Iterator[str]:
    """Yield what the schema itself, or a good document, says may stand at the place."""
    around = present(document, at)
    if len(around) > len(at):
        yield json.dumps(around[-1])
    for node in leaves(kind)[at]:
        for value in (*node.get("enum", ()), *(node[key] for key in LIMITS if key in node)):
            yield json.dumps(value)
        if node["type"] in ("boolean", "null"):
            yield {"boolean": "true", "null": "null"}[node["type"]]


def mutations(kind: str, at: Location) -> Iterator[tuple[str, bool]]:
    """Yield a good document's text with each hostile value at the place, then with each good one, and which it is."""
    nearest = max(MODELS[kind][1], key=lambda document: len(present(document, at)))
    needed = {*schema(kind)["required"], "data", "task", "model", "images", "pools", "placement", at[0]}
    needed |= {"files", "train"} if at[0] in ("files", "packages", "requirements") else set()
    nearest = {key: value for key, value in nearest.items() if key in needed}
    text = yaml.safe_dump(placed(nearest, at, PLACEHOLDER), sort_keys=False, allow_unicode=True)
    before, after = text.split(PLACEHOLDER)
    yield from ((f"{before}{value}{after}", False) for value in HOSTILE)
    yield from ((f"{before}{value}{after}", True) for value in good_values(kind, at, nearest))


def numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from numbers(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def can_run(document: BaseModel, whole: bool = False) -> None:
    """Do with `document` what the steps and the servers do with it, as far as TensorFlow is not needed for it.

    It is written and read again without its defaults, a third of the time, unless `whole`.
    """
    content = document.model_dump(mode="json", by_alias=True)
    json.dumps(content, allow_nan=False)
    for number in numbers(content):
        struct.pack("<q" if isinstance(number, int) else "<f", number)
    written = content if whole else document.model_dump(mode="json", by_alias=True, exclude_unset=True)
    again = documents.parse(plain_yaml.dump(written), type(document), name="again")
    assert again == document, "what a step reads is what was checked"
    if isinstance(document, Recipe):
        assert 0 <= document.seed < 1 << 31
        assert len(window.paths(document.data, "2026-11-22")) == (document.data.window_days or 0)
        document = document.model_copy(update=code.collect(document, Path(__file__).parent))
        if isinstance(document.packages, list):  # a run chooses wheels for them
            document = document.model_copy(update={"packages": {}})
        assert all(json.loads(keys.sections(document, step)) for step in OUTPUTS)
        assert keys.output_uri("/runs", document, "train")
        assert document.train.batch_size % (document.train.workers * document.train.accumulation_steps) == 0
        assert not uris.path_error(document.data.path or "/") and not uris.output_error(document.push.path or "/models")
    elif isinstance(document, Environment):
        assert not uris.output_error(document.storage) and document.beam_options
        for pool in document.pools.values():
            for part in (pool.resources.requests, pool.resources.limits):
                assert quantity.in_bytes(part.memory) >= 1 << 20 and (
                    part.cpu is None or quantity.in_cores(part.cpu) > 0
                )
        assert all(document.pool_of(step).resources for step in OUTPUTS)
    elif isinstance(document, Schedule):
        assert len(document.server_cron.split()) == 6
        assert document.when is None or (document.when.hours or 1) < 1e7


def is_refused(kind: str, text: str) -> bool:
    """Return whether the text is refused, with file and line in every sentence; if not, it can run."""
    try:
        document = documents.parse(text, MODELS[kind][0], name="own.yaml", folder=Path(__file__).parent)
    except ConfigurationError as error:
        for line in str(error).splitlines():
            assert re.match(r"own\.yaml:\d+: .+[.?]$", line) and len(line) < 1500, line
        assert "secret@" not in str(error) and "Sig=secret" not in str(error)
        return True
    can_run(document)
    return False


@given(st.text(alphabet=st.characters() | st.sampled_from("[]{}:-?&*!|>'\"#%@,\n \t0123456789.eE+xon~"), max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    read = YamlText(text, "own.yaml")
    assert all(fault.place.startswith("own.yaml") for fault in read.faults)
    if not read.faults:
        again = YamlText(plain_yaml.dump(read.content), "again")
        assert repr(again.content) == repr(read.content) and not again.faults


@given(
    st.dictionaries(
        st.text(max_size=20), st.text(max_size=20) | st.floats() | st.integers(-(10**18), 10**18) | st.booleans()
    ),
    st.booleans(),
)
@example({"line end of a mainframe": "\x85"}, True)
def test_what_is_written_is_read_as_the_same(content: dict[str, Any], as_unicode: bool) -> None:
    written = plain_yaml.dump(content, allow_unicode=as_unicode)
    assert repr(YamlText(written, "own.yaml").content) == repr(content)


def test_a_document_is_limited_before_it_is_parsed() -> None:
    assert YamlText("a" * (MAX_BYTES + 1), "own.yaml").faults == [
        Fault("own.yaml", f"{MAX_BYTES + 1:,} characters. At most {MAX_BYTES:,} are read.")
    ]


@pytest.mark.parametrize("kind", MODELS)
def test_the_good_documents_can_run(kind: str) -> None:
    for document in MODELS[kind][1]:
        can_run(documents.parse(yaml.safe_dump(document), MODELS[kind][0], name="own.yaml"), whole=True)


@pytest.mark.parametrize(("kind", "at"), CASES, ids=[f"{kind}-{plain_yaml.dotted(at)}" for kind, at in CASES])
def test_a_hostile_value_is_refused_with_its_line_or_can_run(kind: str, at: Location) -> None:
    refused = [(is_refused(kind, text), good) for text, good in mutations(kind, at)]
    assert sum(refusal for refusal, good in refused if not good) >= len(SYNTAX)
    assert not all(refusal for refusal, _ in refused), "nothing is accepted: the place is not what was tried"


def test_what_another_program_wrote_is_limited_too() -> None:
    with pytest.raises(ValueError, match=r"more than 100 levels"):
        plain_yaml.load_all(f"{'[' * 200}{']' * 200}")
