"""Which engine a process gets."""

from __future__ import annotations

import os
import sys

import pytest

from trainyard.errors import ConfigurationError
from trainyard.steps.train.engines import engine


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
