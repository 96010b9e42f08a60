"""Buckets of both protocols, for tests that say `store`."""

import sys
from collections.abc import Iterator
from typing import Any

import object_stores
import pytest

import trainyard.data  # noqa: F401 - before a test's module imports TensorFlow, which takes half as long then

# As the shell script of KFP's components.
RUN_COMPONENT = """
import os, pathlib, runpy, sys, tempfile
program = pathlib.Path(tempfile.mkdtemp()) / "ephemeral_component.py"
program.write_text(sys.argv[1])
os.environ["_KFP_RUNTIME"] = "true"
sys.argv[1:2] = ["--component_module_path", str(program)]
runpy.run_module("kfp.dsl.executor_main", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def without_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have components of KFP start Python themselves, which is forked then: half of the CPU-seconds."""
    from kfp.local import subprocess_task_handler

    run_process = subprocess_task_handler.run_local_subprocess

    def run_component(full_command: list[str], env_vars: dict[str, str] | None = None) -> int:
        shell, _, script, *program = full_command
        assert shell == "sh" and "kfp.dsl.executor_main" in script
        return run_process([sys.executable, "-c", RUN_COMPONENT, *program], env_vars)

    monkeypatch.setattr(subprocess_task_handler, "run_local_subprocess", run_component)


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
