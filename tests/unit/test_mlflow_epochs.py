"""No fault of an MLflow server fails or delays a training. tests/local/test_mlflow.py has MLflow's own server."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from trainyard.contract.artifacts.train import Epoch
from trainyard.errors import DataError, PeerLost
from trainyard.report import mlflow_epochs
from trainyard.spec import recipe as recipes

RUN = {"info": {"run_id": "r"}, "data": {}}
ANSWERS: dict[str, Any] = {
    "experiments/get-by-name": {"experiment": {"experiment_id": "1"}},
    "runs/search": {},
    "runs/create": {"run": RUN},
}


class Server:
    """A server that keeps its calls, and answers with `code` while it is up."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any], str]] = []
        self.code, self.location, self.up = 200, "", threading.Event()
        self.up.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                call = self.path.removeprefix("/api/2.0/mlflow/").partition("?")[0]
                outer.calls.append((call, json.loads(body or "{}"), self.headers.get("Authorization", "")))
                outer.up.wait()
                self.send_response(outer.code)
                if outer.location:
                    self.send_header("Location", outer.location)
                self.end_headers()
                content = ANSWERS.get(call, {}) if outer.code == 200 else {"message": "no space left"}
                self.wfile.write(json.dumps(content).encode())

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                """Keep the tests' output clean."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @property
    def steps(self) -> list[int]:
        """The steps of the losses that were logged, in order."""
        batches = [body.get("metrics", []) for call, body, _ in self.calls if call == "runs/log-batch"]
        return [metric["step"] for batch in batches for metric in batch if metric["key"] == "eval_loss"]

    @property
    def statuses(self) -> list[str]:
        return [body["status"] for call, body, _ in self.calls if call == "runs/update"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    yield server
    server.up.set()
    server.server.shutdown()
    server.server.server_close()


def train(folder: Path, *epochs: int, error: Exception | None = None) -> None:
    """Train `epochs`, and end with `error`."""
    recipe = recipes.load("digits", [])
    with mlflow_epochs.logged(recipe, str(folder / "digits" / "train" / "key.checkpoints")) as note:
        for number in epochs:
            fields = dict.fromkeys(("learning_rate", "train_loss", "eval_loss", "metric", "examples_per_second"), 0.5)
            assert note
            note(Epoch(epoch=number, step=number, seconds=1, **fields))
        if error:
            raise error


def test_without_an_address_nothing_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with mlflow_epochs.logged(recipes.load("digits", []), str(tmp_path)) as note:
        assert note is None


@pytest.mark.parametrize(
    ("variables", "sent"),
    [
        ({}, ""),
        ({"TOKEN": "t"}, "Bearer t"),
        ({"USERNAME": "ada", "PASSWORD": "p"}, f"Basic {base64.b64encode(b'ada:p').decode()}"),
    ],
)
def test_credentials_are_those_of_mlflows_client(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], sent: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", value)
    train(tmp_path, 1)
    assert {authorization for _, _, authorization in server.calls} == {sent}
    assert (server.steps, server.statuses) == ([1], ["FINISHED"])


def test_a_run_in_mlflow_fails_with_its_training_and_outlives_a_lost_worker(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        train(tmp_path, 1, error=DataError("train: eval loss is not finite"))
    assert (server.steps, server.statuses) == ([1], ["FAILED"])
    with pytest.raises(PeerLost):
        train(tmp_path, 2, error=PeerLost("worker 1"))
    assert server.statuses == ["FAILED"]


def test_epochs_that_a_server_refuses_are_sent_with_the_next_one(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.code = 507
    recipe = recipes.load("digits", [])
    epoch = Epoch(
        epoch=1, step=1, learning_rate=1, train_loss=1, eval_loss=1, metric=1, examples_per_second=1, seconds=1
    )
    with mlflow_epochs.logged(recipe, str(tmp_path / "digits" / "train" / "key.checkpoints")) as note:
        assert note
        note(epoch)
        while not (said := capsys.readouterr().err):
            time.sleep(0.01)
        server.code = 200
    assert "MLflow: 127.0.0.1 is asked again after the next epoch, and the training continues (answered 507" in said
    assert "no space left" in said
    assert (server.steps, server.statuses) == ([1], ["FINISHED"])
    assert not capsys.readouterr().err


def test_a_server_that_hangs_delays_the_end_of_a_training_by_a_bound_and_is_counted(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mlflow_epochs, "_END_SECONDS", 0.2)
    server.up.clear()
    start = time.monotonic()
    train(tmp_path, 1, 2)
    assert time.monotonic() - start < 10  # a call would wait for as long
    assert "lacks 2 of 2 epochs of this training, or its end (did not answer within 0 s)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:1", "databricks", "https://me:secret@host", "file:///tmp/mlruns"]
)
def test_a_wrong_address_is_a_warning_that_shows_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    monkeypatch.setattr(mlflow_epochs, "_CALL_SECONDS", 0.1)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    train(tmp_path, 1)
    said = capsys.readouterr().err
    assert "lacks 1 of 1 epochs" in said and "secret" not in said
    assert ("Connection refused" if "127" in address else "holds no http:// or https:// address") in said


def test_a_redirect_is_not_followed_with_the_token(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t")
    server.code, server.location = 307, f"{server.url}/elsewhere"
    train(tmp_path, 1)
    assert "answered 307" in capsys.readouterr().err
    assert {call for call, _, _ in server.calls} == {"experiments/get-by-name"}
