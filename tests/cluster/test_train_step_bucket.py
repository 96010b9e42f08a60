"""The train step on a real Kubernetes with everything in a bucket, which the pods reach with a Secret's credentials.

TRAINYARD_IMAGE as in test_train_step. TRAINYARD_HOST is the address of this machine on which pods reach a server.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from survival import INTERVAL, assert_survived, killed
from train_step import IMAGE, STORAGE, THREADS, Desk, Location, Run, signal_training_process

sys.path.insert(0, str(Path(__file__).parents[1] / "local"))

import object_stores

HOST = os.environ.get("TRAINYARD_HOST", "")

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not IMAGE, reason="TRAINYARD_IMAGE names no image"),
    pytest.mark.skipif(not HOST, reason="TRAINYARD_HOST names no address that pods reach"),
]

_COPY = """
import shutil, sys
from trainyard.storage import storage
source, target = sys.argv[1:]
with storage.stage(target, "preprocess") as folder:
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))
"""


@pytest.fixture
def store(desk: Desk) -> Iterator[object_stores.Store]:
    """A bucket on this machine that holds the desk's examples, and the Secret that opens it."""
    with object_stores.s3_store(HOST) as store:
        literals = [f"--from-literal={name}=test" for name in ("accesskey", "secretkey")]
        desk.namespace.kubectl("create", "secret", "generic", "bucket", *literals)
        desk.python(_COPY, f"{STORAGE}/examples", f"{store.uri}/runs/examples", **store.environment)
        yield store


def test_a_chief_killed_in_its_pod_goes_on_from_the_bucket(desk: Desk, calm: Run, store: object_stores.Store) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "accesskey", "AWS_SECRET_ACCESS_KEY": "secretkey"}
    reached = {
        "variables": {**THREADS, "AWS_ENDPOINT_URL_S3": store.address, "AWS_REGION": "us-east-1"},
        "secrets": {name: {"secret": "bucket", "key": key} for name, key in keys.items()},
    }
    run = Run(desk.namespace, "killed-with-a-bucket", location=Location(f"{store.uri}/runs", reached))
    run.start().reaches(2 * INTERVAL)
    signal_training_process(desk.namespace, run.worker(0))
    training = assert_survived(desk, run, calm, **store.environment)
    (restart,) = training["gang"]["restarts"]
    assert re.search(killed(0), restart["reason"])
    assert restart["resumed_at"] > 0 and restart["lost_steps"] <= INTERVAL
    assert training["gang"]["workers"] == 2
    goodput = training["goodput"]["seconds"]
    assert goodput["queue"] >= 0 and goodput["meet"] > 0
    print(goodput)
