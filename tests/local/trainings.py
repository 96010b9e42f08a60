"""`python trainings.py PORT,... DEVICES EXAMPLES FOLDER...`: a gang trains each recipe of a FOLDER, one after another.

Its workers, one a port, each with so many logical CPUs, start TensorFlow once: that costs more than such a training. A
recipe that is refused leaves the exit code and the sentence in `FOLDER/refused`.
"""

import functools
import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

import trainyard.data  # noqa: F401 - chooses Keras 3

# isort: split
import tensorflow as tf

from trainyard.errors import ConfigurationError
from trainyard.runtime import step
from trainyard.spec import recipe
from trainyard.steps.train.engines import strategy
from trainyard.steps.train.process import train_in_process


def work(worker: int, addresses: list[str], devices: int, examples: str, folders: list[str]) -> None:
    if len(addresses) > 1:
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": worker}}
        os.environ["TF_CONFIG"] = json.dumps(task)
    cpus = [tf.config.LogicalDeviceConfiguration()] * devices
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    strategy.create_strategy = functools.cache(strategy.create_strategy)  # a process makes one of a gang
    for folder in folders:
        inputs = {"recipe": recipe.load(f"{folder}/recipe.yaml"), "examples": examples}
        inputs["checkpoints"] = f"{folder}/checkpoints"
        try:
            if worker == 0:
                step.execute(train_in_process, f"{folder}/output", **inputs)
            else:
                with tempfile.TemporaryDirectory() as discarded:
                    train_in_process(**inputs, output=Path(discarded))
        except ConfigurationError as error:
            if worker == 0:
                Path(folder, "refused").write_text(f"{error.exit_code} {error}")


def main(ports: str, devices: int, examples: str, folders: list[str]) -> None:
    addresses = [f"127.0.0.1:{port}" for port in ports.split(",")]
    count = len(addresses)
    os.environ["TF_NUM_INTRAOP_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // count))  # as a local gang
    fork = multiprocessing.get_context("fork")
    workers = [
        fork.Process(target=work, args=(worker, addresses, devices, examples, folders), daemon=True)
        for worker in range(count)
    ]
    for process in workers:
        process.start()
    workers[0].join()  # the others may end before it, and are ended with this process
    sys.exit(workers[0].exitcode)


if __name__ == "__main__":
    ports, devices, examples, *folders = sys.argv[1:]
    main(ports, int(devices), examples, folders)
