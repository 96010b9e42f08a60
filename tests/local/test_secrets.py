"""A run's secret is nowhere in what it leaves or says: outputs, logs, reports, caches, compiled packages."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import boto3
import object_stores
import pytest
import yaml

from trainyard.spec import environment as environments

pytestmark = pytest.mark.usefixtures("warm_processes")

TRAINYARD = [str(Path(sys.executable).parent / "trainyard")]
# Long as those of AWS, and with characters that a URL writes otherwise.
SECRETS = {"AWS_SECRET_ACCESS_KEY": "cAnaRy/+" + "0a7F" * 8, "AWS_SESSION_TOKEN": "sEsSioN/+" + "9b3E" * 30}
SHORT = ["train.epochs=2", "evaluate.gates=[{metric: accuracy, min: 0.1}]", "evaluate.bootstrap=20"]
SHORT += ["export.formats=[saved_model, keras, litert_float32]"]


def shows(content: bytes, secret: str) -> bool:
    """Whether `content` holds `secret` as it is, as a URL writes it, or in base64."""
    forms = (secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode().rstrip("=")[:-1])
    return any(form.encode() in content for form in forms)


def showing(folder: Path, secret: str) -> list[str]:
    """Return the files below `folder` that show `secret` in their name or content, also inside a .keras archive."""
    names = []
    for path in (path for path in folder.rglob("*") if path.is_file()):
        contents = [str(path).encode(), path.read_bytes()]
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                contents += [archive.read(name) for name in archive.namelist()]
        if any(shows(content, secret) for content in contents):
            names.append(str(path.relative_to(folder)))
    return names


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object_stores.Store]:
    """A bucket that is reached with the secrets; all that a command may write on this machine is below `tmp_path`."""
    with object_stores.STORES["s3"]() as store:
        own = {name: str(tmp_path / name.lower()) for name in ("TRAINYARD_CACHE", "HOME", "TMPDIR")}
        for name, value in {**store.environment, **own, **SECRETS}.items():
            monkeypatch.setenv(name, value)
        for folder in own.values():
            Path(folder).mkdir()
        yield store


def run(environment: Path, *options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the default recipe, and keep what it said beside what it left."""
    values = [word for value in (*SHORT, *options) for word in ("--set", value)]
    command = [*TRAINYARD, "run", "digits", "-e", str(environment), "-o", "json", *values]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    (folder / f"{environment.stem}.said").write_text(ended.stdout + ended.stderr)
    return ended


def test_a_run_on_a_bucket_leaves_the_credentials_nowhere(s3: object_stores.Store, tmp_path: Path) -> None:
    environment = tmp_path / "bucket.yaml"
    environment.write_text(yaml.safe_dump({"target": "local", "storage": f"{s3.uri}/canary"}))
    ended = run(environment, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    client = boto3.client("s3", endpoint_url=s3.address)
    # The stores of a process show each other's objects.
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=s3.bucket, Prefix="canary/")
    names = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
    for name in names:
        copy = tmp_path / "copied" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        client.download_file(s3.bucket, name, str(copy))
    kinds = {Path(name).name for name in names}
    assert {"run.json", "report.html", "train.log", "model.keras", "saved_model.pb", "manifest.json"} <= kinds
    # What it leaves does name the bucket: the search finds what is there.
    assert len(showing(tmp_path / "copied", s3.uri)) > 5
    assert {name: showing(tmp_path, value) for name, value in SECRETS.items()} == {name: [] for name in SECRETS}


def test_a_run_that_is_refused_by_the_bucket_does_not_say_with_what(s3: object_stores.Store, tmp_path: Path) -> None:
    environment = tmp_path / "elsewhere.yaml"
    environment.write_text(yaml.safe_dump({"target": "local", "storage": "s3://there-is-no-such-bucket/runs"}))
    ended = run(environment, folder=tmp_path)
    assert ended.returncode and "there-is-no-such-bucket" in ended.stderr
    assert {name: showing(tmp_path, value) for name, value in SECRETS.items()} == {name: [] for name in SECRETS}


@pytest.mark.parametrize("command", ["compile", "submit --dry-run"])
def test_a_package_names_the_secrets_and_holds_no_value(command: str, s3: object_stores.Store, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(SECRETS["AWS_SESSION_TOKEN"])
    environment = tmp_path / "own.yaml"
    settings = yaml.safe_load((environments.BUNDLED / "kind.yaml").read_text())
    settings["kubeflow"] = {"endpoint": "http://kfp.example", "token_file": str(token)}
    environment.write_text(yaml.safe_dump(settings))
    arguments = [*TRAINYARD, *command.split(), "digits", "-e", str(environment)]
    ended = subprocess.run(arguments, cwd=tmp_path, capture_output=True, check=True, env=dict(os.environ))
    package = ended.stdout + ended.stderr
    assert b"mlpipeline-minio-artifact" in package and b"http://seaweedfs.kubeflow:9000" in package
    assert not [name for name, value in SECRETS.items() if shows(package, value)]
    token.unlink()
    assert {name: showing(tmp_path, value) for name, value in SECRETS.items()} == {name: [] for name in SECRETS}
