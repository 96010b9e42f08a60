"""What `submit` sends: names that carry the content's digest, so that sending it twice makes one thing."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import ConfigurationError
from trainyard.spec.environment import Environment
from trainyard.spec.recipe import Recipe
from trainyard_control.compiler.compilation import to_yaml
from trainyard_control.compiler.placement import PlacedSpec
from trainyard_control.planning.expectation import Expectation

_RUN_NAME = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")  # a DNS label: Vertex AI takes no other
_DIGEST = 12
_PLACE = 40  # a label of Vertex AI has at most 63 characters
PIPELINE = "trainyard-"


@dataclass(frozen=True)
class Submission:
    """One run to be: the package, what it, its pipeline and its version are called, and what the plan expects of it."""

    pipeline: str
    version: str
    package: str
    run: str
    environment: Environment
    expected: Expectation | None = None

    @property
    def experiment(self) -> str:
        """What the run is filed under."""
        return self.environment.kubeflow.experiment


def submission(recipe: Recipe, environment: Environment, placed: PlacedSpec, run: str) -> Submission:
    """Return the submission of the placed pipeline as the run `run`. Raises `ConfigurationError` for a bad name."""
    if not _RUN_NAME.match(run):
        raise ConfigurationError(
            f"--name {run}: is not a name. Use at most 63 lower-case letters, digits and '-', a letter or digit at both ends."
        )
    package = to_yaml(placed.documents)
    digest = hashlib.sha256(package.encode()).hexdigest()[:_DIGEST]
    place = re.sub(r"[^a-z0-9]+", "-", Path(environment.name).stem.lower()).strip("-")
    version = f"{place[:_PLACE]}-{digest}"
    return Submission(f"{PIPELINE}{recipe.name}", version, package, run, environment)


def request(submission: Submission, experiment: str, pipeline: str, version: str) -> Any:
    """Return the body of Kubeflow's CreateRun; `experiment`, `pipeline` and `version` are the server's ids.

    What the plan expects stands in the description: in the package it would make another version with every recorded run.
    """
    import kfp_server_api as kfp

    expects = f"; the plan expects {submission.expected}" if submission.expected else ""
    return kfp.V2beta1Run(
        display_name=submission.run,
        description=f"{submission.pipeline} {submission.version}{expects}",
        experiment_id=experiment,
        pipeline_version_reference=kfp.V2beta1PipelineVersionReference(
            pipeline_id=pipeline, pipeline_version_id=version
        ),
        runtime_config=kfp.V2beta1RuntimeConfig(parameters={}),
        service_account=submission.environment.service_accounts.run or None,
    )


def recipe_of(pipeline: str) -> str:
    """Return the recipe's name from the pipeline's."""
    return pipeline.removeprefix(PIPELINE)


def environment_of(version: str) -> str:
    """Return the environment's name from the version's."""
    return version.rpartition("-")[0] or version
