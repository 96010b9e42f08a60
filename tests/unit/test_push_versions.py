"""Where pushed files go, and the pointer to the champion."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from tests.unit import report_folders

from trainyard.contract import version
from trainyard.contract.artifacts.gate import Override
from trainyard.contract.artifacts.preprocess import Column, RawFeature, Unknown
from trainyard.contract.pushed_versions import (
    PushedVersion,
    aliases,
    find_version,
    read_versions,
    serving_version,
    set_alias,
)
from trainyard.contract.statistics.drift import UnknownValues
from trainyard.contract.version import Champion, champion, set_champion
from trainyard.errors import ConfigurationError, DataError
from trainyard.report.outputs import Outputs, read
from trainyard.spec.recipe import Recipe
from trainyard.steps.push import card, run, versions
from trainyard.storage.storage import File, Manifest

EXPORTED = Manifest(
    producer="trainyard.export",
    files={
        name: File(bytes=size, crc32c=f"{size:08x}")
        for size, name in enumerate(
            [
                "saved_model/saved_model.pb",
                "saved_model/assets/city",
                "model.keras",
                "vocabularies/city",
                "exports.json",
            ]
        )
    },
)
BEST = Champion(version=3, path="/elsewhere/3", digest="d", metrics={"accuracy": 0.98})


def test_the_saved_model_is_the_version_and_the_rest_lies_where_servers_do_not_look() -> None:
    assert version.layout(EXPORTED) == {
        "saved_model.pb": "saved_model/saved_model.pb",
        "assets/city": "saved_model/assets/city",
        "assets.extra/model.keras": "model.keras",
        "assets.extra/vocabularies/city": "vocabularies/city",
    }


def test_a_model_s_digest_depends_on_its_files_and_not_on_what_was_measured() -> None:
    same = EXPORTED.files | {"exports.json": File(bytes=999, crc32c="other")}
    other = EXPORTED.files | {"model.keras": File(bytes=999, crc32c="other")}
    digest = version.content(EXPORTED).digest
    assert version.content(replace(EXPORTED, files=same)).digest == digest
    assert version.content(replace(EXPORTED, files=other)).digest != digest


@given(numbers=st.sets(st.integers(0, 10**6)), names=st.sets(st.sampled_from(["x1", "1.tmp", "-5", "٣", ".9", "1e3"])))
def test_the_newest_version_is_the_highest_plain_number(
    tmp_path_factory: pytest.TempPathFactory, numbers: set[int], names: set[str]
) -> None:
    folder = tmp_path_factory.mktemp("models")
    for name in {*map(str, numbers), *names}:
        (folder / name).mkdir()
    assert versions.newest(str(folder)) == max(numbers, default=0)


def test_there_is_no_champion_before_the_first_push(tmp_path: Path) -> None:
    assert champion(str(tmp_path)) is None and champion(str(tmp_path / "missing")) is None


def test_a_version_that_is_served_and_was_not_pushed_is_warned_of_even_if_it_is_0(tmp_path: Path) -> None:
    assert read_versions(str(tmp_path), PushedVersion) == ([], "")
    (tmp_path / "0").mkdir()
    (listed,), caution = read_versions(str(tmp_path), PushedVersion)
    assert (listed.number, listed.serves) == (0, False)
    assert caution.startswith("TensorFlow Serving loads version 0, and no version is in champion.json")


def test_the_champion_is_found_where_its_folder_is_now(tmp_path: Path) -> None:
    (tmp_path / "before" / "3").mkdir(parents=True)
    (tmp_path / "before" / "3" / "saved_model.pb").touch()
    set_champion(str(tmp_path / "before"), BEST)
    (tmp_path / "before").rename(tmp_path / "after")
    assert champion(str(tmp_path / "after")) == BEST.model_copy(update={"path": str(tmp_path / "after" / "3")})


def test_a_pointer_to_a_version_that_is_gone_is_an_error_that_says_so(tmp_path: Path) -> None:
    set_champion(str(tmp_path), BEST)
    with pytest.raises(DataError, match="points to version 3, which is not there"):
        champion(str(tmp_path))


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": "../..", "path": "x", "digest": "d", "metrics": {}}'])
def test_a_damaged_pointer_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "champion.json").write_text(text)
    with pytest.raises(DataError, match=r"champion\.json: not a pointer of Trainyard"):
        champion(str(tmp_path))


def test_a_pointer_that_was_edited_is_refused_and_one_of_an_older_version_is_read(tmp_path: Path) -> None:
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "saved_model.pb").touch()
    set_champion(str(tmp_path), BEST)
    pointer = tmp_path / "champion.json"
    edited = json.loads(pointer.read_text()) | {"metrics": {"accuracy": 0.5}}
    pointer.write_text(json.dumps(edited))
    with pytest.raises(DataError, match=r"champion\.json: was edited, its checksum differs"):
        champion(str(tmp_path))
    del edited["checksum"]
    pointer.write_text(json.dumps(edited))
    best = champion(str(tmp_path))
    assert best is not None and best.metrics == {"accuracy": 0.5}


@pytest.fixture
def served(tmp_path: Path) -> str:
    """Versions 1, 3 and 12; 3 serves, and canary names 12."""
    for number in ("1", "3", "12"):
        (tmp_path / number).mkdir()
        (tmp_path / number / "saved_model.pb").touch()
    set_champion(str(tmp_path), BEST)
    set_alias(str(tmp_path), "canary", 12)
    return str(tmp_path)


def test_the_serving_version_is_the_champion_and_a_name_is_an_alias_or_a_number(served: str, tmp_path: Path) -> None:
    found = [serving_version(served, name) for name in ("", "canary", "1")]
    assert found == [f"{served}/3", f"{served}/12", f"{served}/1"]
    with pytest.raises(DataError, match="no version serves"):
        serving_version(str(tmp_path / "elsewhere"))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("canry", r"no version 'canry'\. Versions: 1, 3, 12; aliases: canary\. Did you mean 'canary'\?"),
        ("9", r"no version '9'\. Versions: 1, 3, 12; aliases: canary\. The nearest is 12\."),
        ("../1", r"no version '\.\./1'"),
    ],
)
def test_an_unknown_alias_or_version_names_the_nearest(served: str, name: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        find_version(served, name)


def test_an_alias_moves_is_removed_and_has_a_valid_name(served: str) -> None:
    set_alias(served, "canary", 3)
    set_alias(served, "production", 1)
    assert aliases(served) == {"canary": 3, "production": 1}
    set_alias(served, "production", None)
    assert aliases(served) == {"canary": 3}
    for name in ("7", "", "Production", "a b", "../x", "a" * 64):
        with pytest.raises(ConfigurationError, match="not a name"):
            set_alias(served, name, 1)
    assert aliases(served) == {"canary": 3}


def test_an_alias_of_a_version_that_is_gone_and_a_damaged_file_of_aliases_are_sentences(served: str) -> None:
    (Path(served) / "12" / "saved_model.pb").unlink()
    (Path(served) / "12").rmdir()
    with pytest.raises(DataError, match="version 12 of the alias 'canary' is gone"):
        find_version(served, "canary")
    (Path(served) / "aliases.json").write_text('{"aliases": {"canary": "x"}}')
    with pytest.raises(DataError, match=r"aliases\.json: not a list of aliases"):
        find_version(served, "canary")


MARKUP = "<script>x</script> [a](http://b) | `c` *d* http://f.g WWW.h.i @j k@l.m \n# e"


def rendered_card(recipe: Recipe, outputs: Outputs) -> str:
    assert outputs.evaluation and outputs.exports
    record = run._record(recipe, "", outputs, outputs.evaluation, outputs.exports)
    record = record.model_copy(update={"override": Override(name="ada", time="2026-01-01", reason=MARKUP)})
    files = [
        "saved_model.pb",
        "assets.extra/model.keras",
        "assets.extra/predict.py",
        "assets.extra/examples/ask_onnx.py",
    ]
    return card.render(recipe, record, outputs, files)


def test_a_card_has_the_header_of_the_hub_and_its_tables_come_from_the_run(tmp_path: Path) -> None:
    recipe = report_folders.recipe()
    recipe = recipe.model_copy(update={"push": recipe.push.model_copy(update={"license": "mit"})})
    outputs = read(report_folders.whole_run(tmp_path))
    assert outputs.exports
    text = rendered_card(recipe, replace(outputs, exports=report_folders.measured(outputs.exports)))
    header = yaml.safe_load(text.split("---\n")[1])
    assert header["license"] == "mit" and header["pipeline_tag"] == "image-classification"
    assert header["library_name"] == "keras" and header["metrics"] == ["accuracy", "log_loss"]
    [result] = header["model-index"][0]["results"]
    assert result["metrics"][0] == {"type": "accuracy", "value": 0.9}
    for line in (
        "The recipe states none.",
        "| hardware | CPU:0; workers: 1 |",
        "Fingerprint: `0123456789abcdef`",
        "| accuracy | 0.9000 | 0.7000 to 1.0000 |",
        "| label=seven | 6 | 0.8333 |",
        "| accuracy \\[label=seven\\] >= 0.8 | test | yes | 0.9000 | 0.8000 |",
        "- [assets.extra/examples/ask_onnx.py](assets.extra/examples/ask_onnx.py)",
        "p50 is that of one example on the machine that exported the files, AMD EPYC, x86_64.\n\nMeasured on pi",
        "litert_int8 answers in 8.0000 ms (p95\n9.5000 ms), with a peak memory of 80.0000 MB.\n\nHow to call them:",
    ):
        assert line in text, text


def test_a_card_says_what_the_training_took_as_far_as_it_is_known(tmp_path: Path) -> None:
    recipe, outputs = report_folders.recipe(), read(report_folders.whole_run(tmp_path))
    text = rendered_card(recipe, outputs)
    assert "| training time |" in text and "training energy" not in text and "training cost" not in text
    assert outputs.training and outputs.evaluation and outputs.exports
    took = {"seconds": {"steps": 3000.0, "compile": 600.0}, "hardware": "NVIDIA L4", "replicas": 2}
    outputs = replace(outputs, training=report_folders.training(**took))
    record = run._record(recipe, "", outputs, outputs.evaluation, outputs.exports)
    cost = run._cost(outputs, "", "2.5")
    text = card.render(recipe, record, outputs, [], cost)
    assert "| training energy | at most 0.14 kWh: 2 × NVIDIA L4 at the 72 W that each may take (TDP), without" in text
    assert "| training cost | about \\$2.5: 3,600 s at \\$2.5 an hour |" in text
    note = tmp_path / "train.json"
    note.write_text('{"attempts": [{"cost_usd": 0.5}, {"cost_usd": 1.25}]}')
    assert run._cost(outputs, str(tmp_path), "") == "about $1.8: its workers at the prices of their pools"
    note.write_text('{"attempts": [{"cost_usd": 0.5}, {"cost_usd": null}]}')
    assert run._cost(outputs, str(tmp_path), "") == run._cost(outputs, "", "") == ""


def test_a_card_says_what_a_missing_and_an_unknown_value_do(tmp_path: Path) -> None:
    features = {"age": {"type": "numeric"}, "city": {"type": "category"}}
    data = {"format": "csv", "path": "x.csv", "label": "y", "features": features}
    recipe = Recipe.model_validate({"name": "t", "data": data, "model": {"name": "mlp"}})
    outputs = read(report_folders.whole_run(tmp_path))
    assert outputs.examples and outputs.evaluation
    vocabulary = Column(vocabulary="city", missing="?", unknown=Unknown(buckets=3, first_id=9))
    raw = [
        RawFeature(name="age", dtype="float32", learned=Column(imputed=29.5)),
        RawFeature(name="city", dtype="string", learned=vocabulary),
    ]
    examples = outputs.examples.model_copy(update={"raw_features": raw, "image": None})
    seen = {"city": UnknownValues(values=80, unknown=9, missing=1)}
    evaluation = outputs.evaluation.model_copy(update={"unknown": seen})
    text = rendered_card(recipe, replace(outputs, examples=examples, evaluation=evaluation))
    assert "| age | 29.5 | refused |  |" in text
    assert "| city | the category '?' | one of 3 shared ids | 9 of 80 |" in text


def test_text_of_the_data_in_a_card_is_no_markup(tmp_path: Path) -> None:
    def elements(text: str) -> list[str]:
        recipe = report_folders.recipe(text)
        recipe = recipe.model_copy(update={"push": recipe.push.model_copy(update={"intended_use": text})})
        body = rendered_card(recipe, read(report_folders.whole_run(tmp_path / str(len(text)), text))).split("---\n", 2)[
            2
        ]
        tokens = [
            token for each in MarkdownIt().enable("table").parse(body) for token in [each, *(each.children or [])]
        ]
        assert not [
            token for token in tokens if re.search(r"://|www\.|@\w", token.content, re.I) and token.type == "text"
        ]
        return [token.type for token in tokens if token.content != "<!-- -->"]

    plain = ("text", "text_special")
    hostile = [kind for kind in elements(MARKUP) if kind not in plain]
    assert hostile == [kind for kind in elements("seven") if kind not in plain]


def test_a_card_does_not_make_another_model(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    content = version.content(EXPORTED)
    with_card = replace(content, files=content.files | {version.CARD: File(bytes=1, crc32c="00000000")})
    assert version.digest(with_card) == version.digest(content) == content.digest != with_card.digest
