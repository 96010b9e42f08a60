"""preprocess on Flink: the session cluster of k8s/components/flink, Beam's workers beside its TaskManagers, a kill.

The recipe's module imports a package, whose wheel is in the bucket.

TRAINYARD_IMAGE and TRAINYARD_FLINK_IMAGE name the images (images/Dockerfile, images/flink/Dockerfile).
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from namespaces import Namespace, until
from tests.unit.test_packages import wheel
from train_step import IMAGE, Desk

from trainyard.spec.beam import Beam, command_line
from trainyard.spec.packages import Wheel
from trainyard.storage import cache, storage, uploads

sys.path.insert(0, str(Path(__file__).parents[1] / "local"))

import object_stores

HOST = os.environ.get("TRAINYARD_HOST", "")

FLINK_IMAGE = os.environ.get("TRAINYARD_FLINK_IMAGE", "")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not (IMAGE and FLINK_IMAGE), reason="TRAINYARD_FLINK_IMAGE names no image"),
    pytest.mark.skipif(not HOST, reason="TRAINYARD_HOST names no address that pods reach"),
]

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "how-to" / "beam-runners.md"
TASKMANAGER = "deployment/trainyard-flink-taskmanager"
MANAGERS = "app.kubernetes.io/component=taskmanager"
PATIENCE = "heartbeat.timeout=60000"  # ms; where more wants to run than there are cores, who is late is not lost
# The programs run for a minute: their code would be compiled again and again for longer than that.
JAVA = {"name": "JAVA_TOOL_OPTIONS", "value": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
SECONDS = 900  # of CPU-bound work on two cores that others may use

RECIPE = """
name: sold
data:
  format: csv
  path: {tables}
  label: sold
  features: {{price: {{type: numeric}}, shop: {{type: category}}}}
model: {{name: mlp}}
module: sold.py
"""
MODULE = """
import tensorflow_transform as tft


def preprocessing_fn(inputs):
    import shift

    price = tft.scale_to_z_score(inputs["price"]) * shift.WIDTH
    return {"price": price, "shop": tft.compute_and_apply_vocabulary(inputs["shop"], num_oov_buckets=1)}
"""
TABLES = """
import pathlib, sys
import numpy as np
folder, files, rows = pathlib.Path("/runs", sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
folder.mkdir()
for number in range(files):
    draw = np.random.default_rng(number)
    columns = draw.normal(size=rows), draw.integers(9, size=rows), draw.random(rows) < 0.5
    lines = (f"{price:.6f},{shop},{'yes' if sold else 'no'}\\n" for price, shop, sold in zip(*columns))
    (folder / f"{number}.csv").write_text("price,shop,sold\\n" + "".join(lines))
"""
DIGESTS = """
import json, sys
from trainyard.storage import storage
print(json.dumps({name: each.crc32c for name, each in storage.require(sys.argv[1]).files.items()}))
"""


# Each worker runs it as it starts. Where HOLD names its pod, it stops as it opens the first file of the table, and says
# so: what Flink gave it stays undone.
HOLD = "/runs/hold"
SITE = f"""
import os, pathlib, signal, sys

def stops(event, arguments):
    if event == "open" and str(arguments[0]).startswith("/runs/sold/") and named.exists():
        named.rename(f"{{named}}.stopped")
        os.kill(os.getpid(), signal.SIGSTOP)

named = pathlib.Path("{HOLD}", os.uname().nodename)
sys.addaudithook(stops)
"""
STOPS_LATER = f"""
import pathlib, sys
pathlib.Path("{HOLD}").mkdir()
pathlib.Path("{HOLD}/sitecustomize.py").write_text(sys.argv[1])
pathlib.Path("{HOLD}", sys.argv[2]).touch()
"""


class Flink:
    """The session cluster in a namespace, and steps of preprocess that run on it, or without it, on the desk."""

    def __init__(self, desk: Desk, store: object_stores.Store) -> None:
        self.desk, self.store = desk, store
        self.namespace = desk.namespace
        options = Beam(runner="flink", parallelism=2)
        self._options = command_line(options, "kubeflow", self.namespace.name, "/runs/store")
        self._code = self._sent_code()
        write(desk, "sold", files=8, rows=1_000)
        self.write_recipe("sold", "/runs/sold")

    def _sent_code(self) -> dict[str, Any]:
        """Upload a wheel to the bucket, and return the parts of a recipe whose module imports it."""
        path = wheel(self.namespace.folder, "shift", {"shift.py": "WIDTH = 2.0\n"})
        upload = uploads.plan(str(path), self.store.uri, "packages")
        uploads.store(upload)
        sent = Wheel(sha256=str(cache.digest_of(path)), bytes=path.stat().st_size, location=upload.uri)
        return {"files": {"sold.py": MODULE}, "packages": {path.name: sent.model_dump()}}

    def write_recipe(self, name: str, tables: str) -> None:
        """Write a recipe of `tables` to the volume."""
        text = RECIPE.format(tables=tables) + yaml.safe_dump(self._code)
        program = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
        self.desk.python(program, f"/runs/{name}.yaml", text)

    @functools.cached_property
    def direct(self) -> Step:
        """The step without Flink, whose files do not depend on where the table is."""
        return self.preprocess("sold", "/runs/store/direct", on_flink=False)

    def preprocess(self, recipe: str, output: str, on_flink: bool) -> Step:
        options = [f"--beam-options={self._options}"] if on_flink else []
        options = [f"--recipe=/runs/{recipe}.yaml", f"--output={output}", *options]
        return Step(self.namespace, self.store.environment, options)

    def digests(self, output: str) -> dict[str, Any]:
        """Return the checksums of an output on the volume."""
        return dict(json.loads(self.desk.python(DIGESTS, output).splitlines()[-1]))

    def managers(self) -> list[str]:
        return self.namespace.kubectl("get", "pods", "-l", MANAGERS, "-o", "name").split()

    def without_volume(self) -> None:
        """Have the workers see the volume no more."""
        self.namespace.kubectl("scale", TASKMANAGER, "--replicas=0")  # or each waits for the one before
        kustomize(self.namespace, self.store, volume=False)
        self.namespace.kubectl("rollout", "status", TASKMANAGER, "--timeout=300s")


class Step:
    """A preprocess step on the desk, and the events that it wrote."""

    def __init__(self, namespace: Namespace, environment: dict[str, str], options: list[str]) -> None:
        self._log = namespace.folder / f"step-{time.monotonic_ns()}.log"
        command = [
            "kubectl",
            "-n",
            namespace.name,
            "exec",
            "desk",
            "--",
            "env",
            *(f"{name}={value}" for name, value in environment.items()),
            "python",
            "-m",
            "trainyard.steps",
            "preprocess",
        ]
        with self._log.open("w") as log:
            self.process = subprocess.Popen([*command, *options], stdout=log, stderr=log)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def events(self, kind: str) -> list[dict[str, Any]]:
        events = [json.loads(line) for line in self.log.splitlines() if line.startswith('{"event"')]
        return [event for event in events if event["event"] == kind]

    def done(self) -> int:
        """Return how many of the files have been read."""
        return max((event["done"] for event in self.events("progress") if event["unit"] == "files"), default=0)

    def ends(self) -> Step:
        assert self.process.wait(SECONDS) == 0, self.log
        return self


@pytest.fixture(scope="module")
def flink(namespace: Namespace) -> Iterator[Flink]:
    with object_stores.s3_store(HOST) as store, pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        kustomize(namespace, store)
        desk = Desk(namespace).start()
        for deployment in ("deployment/trainyard-flink-jobmanager", TASKMANAGER):
            namespace.kubectl("rollout", "status", deployment, "--timeout=300s")
        yield Flink(desk, store)
    for container in ("jobmanager", "jobserver"):
        print(namespace.kubectl("logs", "deployment/trainyard-flink-jobmanager", "-c", container, "--tail=60"))


def kustomize(namespace: Namespace, store: object_stores.Store, volume: bool = True) -> None:
    """Apply the overlay that the guide shows, with the images under test and the bucket; without `volume` if asked."""
    block = next(text for text in re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.S) if "components/" in text)
    overlay = yaml.safe_load(block.replace("/mnt/runs", "/runs"))  # where the desk has the volume
    overlay["resources"] = []
    variables = [{"name": name, "value": value} for name, value in store.environment.items()]
    manager, tasks = (
        {"kind": "Deployment", "name": f"trainyard-flink-{role}"} for role in ("jobmanager", "taskmanager")
    )
    added: list[tuple[dict[str, str], str, Any]] = [
        (tasks, "1/env", [*variables, {"name": "PYTHONPATH", "value": HOLD}]),
        *((target, "0/args/-", value) for target in (manager, tasks) for value in ("-D", PATIENCE)),
        (manager, "0/env", [JAVA]),
        (manager, "1/env/-", JAVA),
        (tasks, "0/env/-", JAVA),
    ]
    patches = [
        {
            "target": target,
            "patch": json.dumps([{"op": "add", "path": f"/spec/template/spec/containers/{path}", "value": value}]),
        }
        for target, path, value in added
    ]
    overlay["patches"] = [*(overlay["patches"] if volume else []), *patches]
    overlay["namespace"] = namespace.name
    overlay["components"] = [os.path.relpath(ROOT / "k8s/components/flink", namespace.folder)]
    images = {"trainyard/flink": FLINK_IMAGE, "trainyard/cpu": IMAGE}
    pairs = [(name, *image.rsplit(":", 1)) for name, image in images.items()]
    overlay["images"] = [{"name": name, "newName": new, "newTag": tag} for name, new, tag in pairs]
    (namespace.folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    namespace.kubectl("apply", "-k", str(namespace.folder))


def write(desk: Desk, name: str, files: int, rows: int) -> None:
    """Write CSV files to the volume."""
    desk.python(TABLES, name, str(files), str(rows))


def test_a_step_on_flink_gives_the_same_bytes_though_a_taskmanager_was_killed(flink: Flink) -> None:
    killed = flink.managers()[0]
    name = killed.removeprefix("pod/")
    flink.desk.python(STOPS_LATER, SITE, name)
    step = flink.preprocess("sold", "/runs/store/on-flink", on_flink=True)
    stopped = f"import os; print(os.path.exists('{HOLD}/{name}.stopped'))"
    until(lambda: step.process.poll() is not None or (step.done() and "True" in flink.desk.python(stopped)), SECONDS)
    assert step.process.poll() is None, step.log
    flink.namespace.kubectl("delete", killed, "--force", "--grace-period=0")
    direct = flink.direct  # while Flink waits for another
    step.ends()
    log = flink.namespace.kubectl("logs", "deployment/trainyard-flink-jobmanager", "-c", "jobmanager")
    assert "switched from state RUNNING to RESTARTING" in log
    assert step.events("beam_job")
    direct.ends()
    assert flink.digests("/runs/store/on-flink") == flink.digests("/runs/store/direct")
    assert killed not in flink.managers()


def test_workers_that_share_a_bucket_alone_give_the_same_bytes(flink: Flink) -> None:
    for number in range(8):
        table = flink.desk.python("import sys; sys.stdout.write(open(sys.argv[1]).read())", f"/runs/sold/{number}.csv")
        storage.write_text(f"{flink.store.uri}/tables/{number}.csv", table)
    flink.write_recipe("bucket", f"{flink.store.uri}/tables")
    flink.direct.ends()
    flink.without_volume()
    output = f"{flink.store.uri}/store/on-flink"
    flink.preprocess("bucket", output, on_flink=True).ends()
    files = storage.require(output).files
    assert {name: file.crc32c for name, file in files.items()} == flink.digests("/runs/store/direct")
    left = storage.sizes(f"{flink.store.uri}/store")
    assert not [name for name in left if ".parts" in name], "what only the attempt needed is gone"
