"""Buckets of both protocols, for tests that say `store`."""

from collections.abc import Iterator
from typing import Any

import object_stores
import pytest

import trainyard.data  # noqa: F401 - before a test's module imports TensorFlow, which takes half as long then


@pytest.fixture(scope="session", params=["gs", "s3"])
def served(request: Any) -> Iterator[object_stores.Store]:
    with object_stores.STORES[request.param]() as store:
        yield store


@pytest.fixture
def store(served: object_stores.Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[object_stores.Store]:
    """A bucket that this process and its children reach; what a test writes stays below a folder of its own name."""
    for name, value in served.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "cache"))
    object_stores.forget_clients()
    served.calm()
    yield served
    served.calm()
    object_stores.forget_clients()


@pytest.fixture
def uri(store: object_stores.Store, request: pytest.FixtureRequest) -> str:
    """Where the test's own output is to be, in a bucket."""
    return f"{store.uri}/{abs(hash(request.node.name))}/out"
