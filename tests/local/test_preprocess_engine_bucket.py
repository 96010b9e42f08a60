"""preprocess by workers that share nothing with the step but a bucket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import object_stores
import pytest
import yaml
from apache_beam.runners.portability.local_job_service import LocalJobServicer
from ports import free_port
from preprocess_sources import write_images, write_rows

from trainyard import events
from trainyard.contract import keys
from trainyard.runtime import step
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage

pytestmark = pytest.mark.usefixtures("warm_processes")

IMAGES = {"format": "image_folder", "max_bad_fraction": 0.1, "shard_examples": 16, "near_duplicates": True}
COLUMNS = {"visits": {"type": "numeric"}, "color, or none": {"type": "category"}, "note": {"type": "text"}}
TABLE = {"format": "csv", "label": "bought", "features": COLUMNS, "shard_examples": 50, "split": {"by": "class"}}


def recipe_of(data: dict[str, Any]) -> Recipe:
    model = "mlp" if "features" in data else "cnn_small"
    return Recipe.model_validate({"name": "pets", "data": data, "model": {"name": model}})


def preprocess(recipe: Recipe, output: str, beam_options: str = "") -> dict[str, storage.File]:
    from trainyard.steps.preprocess.run import run

    with step.recorded("preprocess", lambda: output):
        step.execute(run, output, recipe=recipe, beam_options=beam_options)
    return storage.require(output).files


@pytest.fixture
def engine(store: object_stores.Store, tmp_path: Path) -> Iterator[str]:
    """Beam's options for a job server of Beam's own, whose workers begin in a process of theirs, in another folder."""
    port = free_port()
    (tmp_path / "workers").mkdir()
    workers = subprocess.Popen(
        [sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main", f"--service_port={port}"],
        # The pool starts the `python` of its PATH.
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TMPDIR": str(tmp_path / "workers"),
        },
        cwd=tmp_path / "workers",
    )
    wait_for(port, workers)
    jobs = LocalJobServicer()
    options = f"--environment_type=EXTERNAL --environment_config=localhost:{port}"
    try:
        yield f"--runner=PortableRunner {options} --job_endpoint=localhost:{jobs.start_grpc_server()}"
    finally:
        jobs.stop()
        workers.terminate()
        workers.wait()


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Return once `process` listens: Beam does not ask a worker pool twice."""
    end = time.monotonic() + 240
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.05)


@pytest.fixture
def source(store: object_stores.Store, tmp_path: Path) -> Recipe:
    """A recipe of images for one kind of bucket, of a table for the other."""
    folder = tmp_path / "source"
    folder.mkdir()
    if store.scheme == "gs":
        write_images(folder)
    else:
        write_rows(folder / "rows.csv.gz", 300)
    return recipe_of((IMAGES if store.scheme == "gs" else TABLE) | {"path": str(folder)})


KILLED = """
import os, signal
from trainyard.runtime import step
from trainyard.steps.preprocess import run
from trainyard.storage import storage
storage.adopt = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
step.main(run.run)
"""


def test_a_killed_step_goes_on_from_what_its_workers_left_in_the_bucket_to_the_files_of_a_step_in_a_folder(
    source: Recipe, engine: str, store: object_stores.Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output, recipe = f"{store.uri}/killed/examples", f"--recipe={tmp_path}/recipe.yaml"
    text = yaml.safe_dump(source.model_dump(mode="json", exclude_unset=True), sort_keys=False)
    (tmp_path / "recipe.yaml").write_text(text)
    options = [recipe, f"--output={output}", f"--beam-options={engine}"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *options], stderr=subprocess.DEVNULL, timeout=300)
    assert killed.returncode == -signal.SIGKILL and storage.committed(output) is None
    left = storage.sizes(f"{store.uri}/killed")
    shards = [name for name in left if name.endswith(".tfrecord") and ".attempts/" in name]
    capfd.readouterr()
    files = preprocess(source, output, engine)
    log = capfd.readouterr().err
    kept = [line for line in map(events.parse, log.splitlines()) if line.get("event") == "kept"]
    assert [(line["unit"], line["done"] == line["total"]) for line in kept][:: len(kept) - 1] == [
        ("tasks", True),
        ("shards", True),
    ]
    assert len([name for name in files if name.endswith(".tfrecord")]) == len(shards) == kept[-1]["done"]
    assert events.last(log, "published")["files"] == len(files)
    left = storage.sizes(f"{store.uri}/killed")
    assert not [name for name in left if keys.parts("") in name], "what only the attempts needed is gone"
    assert len([name for name in left if name.startswith("examples/.attempts/")]) == len(files)

    # In a process of its own too: TensorFlow names parts of a graph by what the process traced before.
    alone = [sys.executable, "-m", "trainyard.steps", "preprocess", recipe, f"--output={tmp_path}/examples"]
    subprocess.run(alone, check=True, stderr=subprocess.DEVNULL)
    assert storage.require(f"{tmp_path}/examples").files == files
