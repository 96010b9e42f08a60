"""The requests of `submit`: names hold the content's digest, so that sending one twice creates one object."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from trainyard.errors import ConfigurationError
from trainyard.spec.environment import Environment
from trainyard_control.compiler.about import About, about
from trainyard_control.compiler.compilation import to_yaml
from trainyard_control.compiler.placement import PlacedSpec

_RUN_NAME = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")  # a DNS label: Vertex AI takes no other
_DIGEST = 12


@dataclass(frozen=True)
class Submission:
    """One run to be: the package, what it, its pipeline and its version are called, and what it is for."""

    pipeline: str
    version: str
    package: str
    run: str
    environment: Environment
    about: About


def submission(recipe: str, environment: Environment, placed: PlacedSpec, run: str) -> Submission:
    """Return the submission of a placed pipeline as the run `run`. Raises `ConfigurationError` for a bad name.

    recipe: what it runs, by name.
    """
    if not _RUN_NAME.match(run):
        raise ConfigurationError(
            f"--name {run}: is not a name. "
            "Use at most 63 lower-case letters, digits and '-', a letter or digit at both ends."
        )
    package = to_yaml(placed.documents)
    digest = hashlib.sha256(package.encode()).hexdigest()[:_DIGEST]
    purpose = about(recipe, environment)
    return Submission(f"trainyard-{recipe}", f"{purpose.environment}-{digest}", package, run, environment, purpose)


def request(submission: Submission, experiment: str, pipeline: str, version: str) -> Any:
    """Return the body of Kubeflow's CreateRun; `experiment`, `pipeline` and `version` are the server's ids.

    The plan's forecast is a parameter of the run: in the package, each new record would make a new version.
    """
    import kfp_server_api as kfp

    expected = submission.about.expected
    return kfp.V2beta1Run(
        display_name=submission.run,
        description=f"{submission.pipeline} {submission.version}"
        + (f"; the plan expects {expected}" if expected else ""),
        experiment_id=experiment,
        pipeline_version_reference=kfp.V2beta1PipelineVersionReference(
            pipeline_id=pipeline, pipeline_version_id=version
        ),
        runtime_config=kfp.V2beta1RuntimeConfig(parameters=submission.about.parameters()),
        service_account=submission.environment.service_accounts.run or None,
    )
