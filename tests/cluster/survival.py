"""What a training that was disturbed has to show: the steps and the weights of the one that nothing happened to."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

from namespaces import until
from train_step import Desk, Run

INTERVAL = 10  # steps that may be lost
EPOCH = 23  # steps; an epoch's end is a checkpoint too
TOLERANCE = 1e-6  # |difference| / |weights| to the run that nothing happened to


def difference(folder: str | Path, undisturbed: str | Path) -> float:
    """Return how far the weights of two trained models are apart, as a share of the second's.

    Read from the files: importing Keras takes seconds of a core.
    """
    import io
    import zipfile

    import h5py
    import numpy as np

    def weights(folder: str | Path) -> np.ndarray:
        arrays: list[np.ndarray] = []

        def add(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset) and name.startswith("layers/"):
                arrays.append(item[()].ravel().astype(np.float64))

        with zipfile.ZipFile(f"{folder}/model.keras") as model:
            h5py.File(io.BytesIO(model.read("model.weights.h5"))).visititems(add)
        return np.concatenate(arrays)

    this, other = weights(folder), weights(undisturbed)
    return float(np.linalg.norm(this - other) / np.linalg.norm(other))


_COMPARE = f"""
from __future__ import annotations
import json, sys
from pathlib import Path
from trainyard.contract.artifacts.train import Training
from trainyard.storage import storage
{inspect.getsource(difference)}
documents = [json.loads(Training.read(output).model_dump_json()) for output in sys.argv[1:]]
folders = [storage.local(output) for output in sys.argv[1:]]
print(json.dumps([*documents, difference(*folders)]))
"""


def killed(worker: int) -> str:
    """Return what the reason matches of a gang that lost the training process of `worker` by SIGKILL."""
    return f"worker {worker}'s training process was killed by SIGKILL"


def assert_survived(desk: Desk, run: Run, calm: Run, **variables: str) -> dict[str, Any]:
    """Return the training.json of `run`, which ended as if nothing had happened and left nothing.

    variables: what the desk needs to read where `run` stores its outputs.
    """
    gang = run.gang
    run.ends()
    until(lambda: not run.namespace.left_of(gang), 30)
    calm.ends()
    return assert_same(desk, run, calm, **variables)


def assert_same(desk: Desk, run: Run, calm: Run, **variables: str) -> dict[str, Any]:
    """Return the training.json of `run`, which has the steps and the weights of `calm`; both have ended."""
    answer = desk.python(_COMPARE, run.output, calm.output, **variables).splitlines()
    training, undisturbed, apart = json.loads(next(line for line in answer if line.startswith("[")))
    assert training["steps"] == undisturbed["steps"]
    assert apart < TOLERANCE
    return dict(training)
