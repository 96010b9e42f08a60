"""The train step on a real Kubernetes with everything in a bucket, which the pods reach with a Secret's credentials.

TRAINYARD_IMAGE as in test_train_step. TRAINYARD_HOST is the address of this machine on which pods reach a server.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from namespaces import Namespace, until
from train_step import IMAGE, THREADS, Place, Run, signal_training_process

sys.path.insert(0, str(Path(__file__).parents[1] / "local"))

HOST = os.environ.get("TRAINYARD_HOST", "")
INTERVAL = 10  # steps, as in the recipe of train_step
TOLERANCE = 1e-6  # |difference| / |weights| to the run that nothing happened to

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not IMAGE, reason="TRAINYARD_IMAGE names no image"),
    pytest.mark.skipif(not HOST, reason="TRAINYARD_HOST names no address that pods reach"),
]


@pytest.fixture(scope="module")
def bucket(namespace: Namespace) -> Iterator[Place]:
    """A bucket on this machine that holds examples, and the Secret that opens it."""
    import object_stores
    import train_folders

    with object_stores.s3_store(HOST) as store, pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        literals = [f"--from-literal={name}=test" for name in ("accesskey", "secretkey")]
        namespace.kubectl("create", "secret", "generic", "bucket", *literals)
        place = Place(
            f"{store.uri}/runs",
            {
                "variables": {**THREADS, "AWS_ENDPOINT_URL_S3": store.address, "AWS_REGION": "us-east-1"},
                "secrets": {
                    "AWS_ACCESS_KEY_ID": {"secret": "bucket", "key": "accesskey"},
                    "AWS_SECRET_ACCESS_KEY": {"secret": "bucket", "key": "secretkey"},
                },
            },
        )
        train_folders.digits(f"{place.storage}/examples")
        yield place


def test_a_chief_killed_in_its_pod_goes_on_from_the_bucket(namespace: Namespace, bucket: Place) -> None:
    import keras
    import numpy as np

    from trainyard.contract.artifacts.train import Training
    from trainyard.storage import storage

    calm, run = (Run(namespace, name, place=bucket, epochs=4) for name in ("calm", "killed"))
    calm.start().ends()
    run.start().reaches(30)
    signal_training_process(namespace, run.worker(0))
    gang = run.gang
    run.ends()
    until(lambda: not namespace.left_of(gang))

    def weights(of: Run) -> np.ndarray:
        model = keras.saving.load_model(storage.local(of.output, made_by="train") / "model.keras")
        return np.concatenate([each.numpy().ravel() for each in model.weights]).astype(np.float64)

    found, undisturbed = (
        Training.model_validate_json(storage.read(each.output, "training.json") or "") for each in (run, calm)
    )
    (restart,) = found.restarts
    assert "killed by SIGKILL" in restart.reason and restart.resumed_at > 0 and restart.lost_steps <= INTERVAL
    assert (found.workers, found.steps) == (2, undisturbed.steps) and undisturbed.restarts == []
    assert np.linalg.norm(weights(run) - weights(calm)) < TOLERANCE * np.linalg.norm(weights(calm))
    assert found.goodput_seconds["queue"] >= 0 and found.goodput_seconds["meet"] > 0
    print(found.goodput_seconds)
