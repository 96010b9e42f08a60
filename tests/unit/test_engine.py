"""Which engine a process gets."""

from __future__ import annotations

import os
import sys

import pytest

from trainyard.errors import ConfigurationError
from trainyard.steps.train.engines import engine, peer_loss


def test_tensorflow_trains_where_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINYARD_ENGINE", raising=False)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    assert engine.engine_name() == "tensorflow"
    assert "trainyard.steps.train.engines.tensorflow_engine" in engine.prepare() and "KERAS_BACKEND" not in os.environ


def test_keras_computes_in_the_engine_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_ENGINE", "jax")
    monkeypatch.setenv("KERAS_BACKEND", "")
    assert "trainyard.steps.train.engines.jax_engine" in engine.prepare() and os.environ["KERAS_BACKEND"] == "jax"


def test_an_unknown_engine_and_one_that_is_not_installed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_ENGINE", "torch")
    with pytest.raises(ConfigurationError, match=r"no engine 'torch'\. Known: tensorflow, jax"):
        engine.engine_name()
    monkeypatch.setenv("TRAINYARD_ENGINE", "jax")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    with pytest.raises(ConfigurationError, match="JAX is not installed here"):
        engine.engine_name()


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        ("UNAVAILABLE", "anything", True),
        ("CANCELLED", "RecvAsync is cancelled", True),
        ("UNKNOWN", "PeerLost: worker 0: lost the connection to another worker", True),
        ("UNKNOWN", "Gloo all-reduce failed: Connection closed by peer [127.0.0.1]:4321", True),
        ("INTERNAL", "Failed to connect to remote host: Connection refused", True),
        ("INTERNAL", "CpuCallback error: RuntimeError: no kernel", False),
        ("FAILED_PRECONDITION", "Table not initialized.", False),
        ("UNKNOWN", "RuntimeError: no kernel", False),
        ("INTERNAL", 'Traceback:\n  File "connection.py", line 1\n    socket.open()\nRuntimeError: no kernel', False),
        ("INVALID_ARGUMENT", "Connection", False),
        ("", "Connection", False),
    ],
)
def test_an_error_is_of_a_lost_peer_by_its_status_or_if_it_speaks_of_a_connection(
    status: str, message: str, expected: bool
) -> None:
    assert peer_loss.is_peer_loss(status, message) == expected
