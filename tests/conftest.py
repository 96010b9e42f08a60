"""What all tests share: no property is timed, and the tests of `make test-fast` load no heavy library."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No example of a property is held against a clock: the machine may be busy with other things.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

_FAST = [Path(__file__).parent / "unit", Path(__file__).parent / "golden"]
_LONG = {"test_taxi", "test_train_jax", "test_trials", "test_values_in_formats"}
_HEAVY = {"tensorflow", "keras", "jax", "apache_beam", "tensorflow_transform"}


@pytest.fixture(scope="session", autouse=True)
def jax_programs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have JAX compile without optimizing, and keep what it compiles for the session's other processes.

    A gang of two that trains two epochs takes 15 CPU-seconds, 13 if its programs are kept, instead of 27 and 20.
    """
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(shared / "jax")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"


@pytest.fixture(scope="module", autouse=True)
def own_variables() -> Iterator[None]:
    """Take back what a module's tests left in the environment: no template fits processes with other variables."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Preprocessed digits, for the trainings that need no others."""
    import train_folders

    return train_folders.digits(tmp_path_factory.mktemp("digits") / "examples", limit=300)


@pytest.fixture(scope="session")
def template() -> Iterator[None]:
    """A process that has imported what tests start again and again."""
    import warm

    end = warm.start()
    yield
    end()


@pytest.fixture(scope="session")
def jax_template() -> Iterator[None]:
    """A template for what trains with JAX."""
    import warm

    end = warm.start(**warm.JAX)
    yield
    end()


@pytest.fixture(scope="session")
def train_with_jax() -> Iterator[Callable[[Path, str], None]]:
    """Train by the recipe in a folder, alone, in a process that has imported JAX for all tests: 4 CPU-seconds less."""
    from gang_processes import UNDER_JAX

    environment = {**os.environ, "TRAINYARD_ENGINE": "jax"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", UNDER_JAX], env=environment, **pipes) as process:

        def train(folder: Path, examples: str) -> None:
            process.stdin.write(f"{folder} {examples}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "trained\n"

        yield train
        process.stdin.close()


@pytest.fixture(scope="module")
def warm_processes(template: None) -> Iterator[None]:
    """Have the Python processes of a module's tests forked from the template; tests of start-up do without."""
    import warm

    warm.use()
    yield
    warm.use(warm.execute)


def pytest_collection() -> None:
    """Leave what is imported out of all collections of garbage: a sixth of the CPU time of the unit tests."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with modules that take a minute or two and come late in the alphabet: the other processes would wait."""
    items.sort(key=lambda item: item.path.stem not in _LONG)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep `make test-fast` fast: what needs a heavy library is a test of tests/local."""
    gc.freeze()
    gc.enable()
    fast = all(any(folder in item.path.parents for folder in _FAST) for item in session.items)
    loaded = _HEAVY & sys.modules.keys()
    if session.items and fast and loaded:
        raise pytest.UsageError(
            f"tests/unit: its modules load {', '.join(sorted(loaded))}, which costs seconds. "
            "Move the test to tests/local"
        )
