"""The Beam runner of preprocess, and its command line options."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from trainyard.errors import did_you_mean
from trainyard.spec.documents import Strict
from trainyard.spec.plain_yaml import Location

# Created by k8s/components/flink in the namespace of the runs, with our worker beside every TaskManager.
FLINK_SERVICE, FLINK_JOB_PORT, FLINK_WORKERS = "trainyard-flink", 8099, "localhost:50000"
# Chosen: a Python worker is kept between the stages of a job, because a start takes 3 s of CPU.
_WORKER_CACHE_MILLISECONDS = 20_000

_ENGINES = {
    "direct": "DirectRunner",
    "prism": "PrismRunner",
    "flink": "FlinkRunner",
    "spark": "SparkRunner",
    "dataflow": "DataflowRunner",
}
# The Beam option for `parallelism`.
_PARALLELISM = {"flink": "parallelism", "dataflow": "max_num_workers"}
_REQUIRED = {
    "dataflow": {
        "project": "the Google Cloud project",
        "region": "where the workers run, such as europe-west4",
        "sdk_container_image": "the image of the workers (images/dataflow)",
    }
}

Target = Literal["local", "kubeflow", "vertex"]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,255}$")]
Text = Annotated[str, Field(max_length=1024, pattern=r"^[^\x00-\x1f\x7f]*$")]
Value = Text | Annotated[int, Field(ge=-(2**53), le=2**53)] | Annotated[float, Field(ge=-1e18, le=1e18)] | bool


class Beam(Strict):
    """Beam runner of preprocess."""

    runner: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]{0,255}$")] = Field(
        "direct",
        description="direct (the step's machine), prism, flink, spark or dataflow; or a Beam runner class such as "
        "PortableRunner, with all of its options.",
    )
    parallelism: Annotated[int, Field(ge=1, le=32_768)] | None = Field(
        None,
        description="Number of workers for flink (at most the TaskManagers' slots), maximum for dataflow.",
    )
    options: dict[Variable, Value] = Field({}, max_length=100, description="Beam options; they override Trainyard's.")


def command_line(beam: Beam, target: Target, namespace: str, storage: str, kms_key: str = "") -> str:
    """Return the options as Beam's command line, quoted for a shell."""
    options = _defaults(beam, target, namespace, storage)
    if beam.runner == "dataflow" and kms_key:
        options["dataflow_kms_key"] = kms_key
    options |= beam.options
    words = [f"--runner={_ENGINES.get(beam.runner, beam.runner)}"]
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not False:
            words.append(f"--{name}={value}")
    return shlex.join(words)


def faults(beam: Beam, target: Target, storage: str) -> Iterator[tuple[Location, str]]:
    """Yield the location of each invalid value in the section `beam`, and the reason."""
    runner, options = beam.runner, beam.options
    if runner not in _ENGINES and not runner.endswith("Runner"):
        yield ("runner",), f"no runner '{runner}'. Known: {', '.join(_ENGINES)}.{did_you_mean(runner, _ENGINES)}"
        return
    if "runner" in options:
        yield ("options", "runner"), "stands under beam.runner. Leave it out"
    if beam.parallelism is not None:
        yield from _parallelism_faults(beam)
    for name, meaning in _REQUIRED.get(runner, {}).items():
        if name not in options:
            yield ("options", name), f"is required for {runner}: {meaning}"
    if runner == "dataflow" and not storage.startswith("gs://"):
        yield ("runner",), f"dataflow writes to gs:// alone, and storage is '{storage}'. Name a bucket of Google's"
    if runner in ("flink", "spark") and "job_endpoint" not in options and not _on_our_flink(runner, target):
        yield ("options", "job_endpoint"), f"is required for {runner} here: host:port of a job server of Beam's"


def _parallelism_faults(beam: Beam) -> Iterator[tuple[Location, str]]:
    name = _PARALLELISM.get(beam.runner)
    if name is None:
        yield ("parallelism",), f"flink and dataflow have one, {beam.runner} has none. Leave it out"
    elif name in beam.options:
        yield ("options", name), "is what beam.parallelism is. Leave one of them out"


def _on_our_flink(runner: str, target: Target) -> bool:
    return runner == "flink" and target == "kubeflow"


def _defaults(beam: Beam, target: Target, namespace: str, storage: str) -> dict[str, Value]:
    """Return Trainyard's default options of a runner."""
    options: dict[str, Value] = {}
    if _on_our_flink(beam.runner, target):
        options["job_endpoint"] = f"{FLINK_SERVICE}.{namespace}:{FLINK_JOB_PORT}"
        options["environment_cache_millis"] = _WORKER_CACHE_MILLISECONDS
    if beam.runner in ("flink", "spark"):
        if target == "local":
            options["environment_type"] = "LOOPBACK"
        else:
            options |= {"environment_type": "EXTERNAL", "environment_config": FLINK_WORKERS}
    if beam.runner == "dataflow":
        options |= {"temp_location": f"{storage}/.dataflow", "sdk_location": "container"}
    if beam.parallelism is not None:
        options[_PARALLELISM[beam.runner]] = beam.parallelism
    return options
