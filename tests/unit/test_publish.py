"""`trainyard publish`: what each system is sent for a pushed version, and the sentence about what cannot be sent."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import huggingface_hub
import pytest
from pushed_versions import push_versions
from typer.testing import CliRunner, Result

import trainyard as ty
from trainyard_control.cli.main import app


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return push_versions()


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["publish", *arguments], catch_exceptions=False)


def refused(*arguments: str) -> str:
    with pytest.raises(ty.TrainyardError) as error:
        invoke(*arguments)
    return f"{int(error.value.exit_code)} {error.value}"


def test_a_hub_folder_has_the_card_the_files_beside_it_and_the_keras_model_unpacked() -> None:
    done = invoke("huggingface", "digits@canary", "--folder", "out/hub")
    assert done.stderr == "✓ digits@1 is published to out/hub\n" and done.stdout == ""
    hub = Path("out/hub")
    card = "[saved_model.pb](saved_model/saved_model.pb) [predict.py](predict.py)"
    assert card in (hub / "README.md").read_text() and (hub / "saved_model/saved_model.pb").read_text() == "1"
    assert (hub / "config.json").read_text() == "{}" and (hub / "vocabularies/city").read_text() == "Bern\n"
    listed = json.loads(invoke("huggingface", "digits@1", "--folder", "x", "--dry-run", "-o", "json").stdout)
    files = {path.relative_to(hub).as_posix(): path.stat().st_size for path in hub.rglob("*") if path.is_file()}
    assert listed["request"] == {"files": files} and list(Path("out").iterdir()) == [hub] and not Path("x").exists()
    assert "out/hub: already exists" in refused("huggingface", "digits", "--folder", "out/hub")


def test_an_upload_to_the_hub_says_its_request_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    upload = ("huggingface", "digits", "--repository", "ada/digits")
    planned = json.loads(invoke(*upload, "--dry-run", "-o", "json").stdout)["request"]
    assert planned["create_repo"] == {"repo_id": "ada/digits", "private": True, "exist_ok": True}
    assert planned["upload_folder"]["commit_message"] == "Upload digits@2 with Trainyard"
    for call in ("create_repo", "upload_folder"):
        known = inspect.signature(getattr(huggingface_hub.HfApi, call)).parameters
        assert planned[call].keys() <= known.keys()
    assert 'create_repo {"repo_id": "ada/digits"' in invoke(*upload, "--dry-run").stdout
    assert refused(*upload) == "20 huggingface: no token. Log in by `hf auth login`, or set HF_TOKEN."
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_none")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    assert refused(*upload).startswith("30 huggingface: http://127.0.0.1:1 cannot be reached")
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    assert "Install trainyard[huggingface]" in refused(*upload)
    for name in ("digits", "a/b/c", "ada/../x", "-a/b"):
        assert "Write OWNER/NAME" in refused("huggingface", "digits", "--repository", name, "--dry-run")


def test_a_version_that_is_unknown_damaged_or_names_no_target_is_refused(models: Path) -> None:
    assert "names no target. Give --folder" in refused("huggingface", "digits")
    assert "no version '7'. Versions: 1, 2" in refused("huggingface", "digits@7", "--folder", "out")
    (models / "2/saved_model.pb").write_text("other")
    assert refused("huggingface", "digits", "--folder", "out").startswith("10 ") and not Path("out").exists()
    (models / "2/manifest.json").unlink()
    assert "no manifest" in refused("huggingface", "digits", "--folder", "out")
