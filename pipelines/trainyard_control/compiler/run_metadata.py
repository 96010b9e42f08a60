"""Recipe, environment and schedule of a run: a pipeline parameter that `runs` and `explain` read, and no step."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainyard.spec.environment import Environment
from trainyard_control.planning.expectation import Expectation
from trainyard_control.planning.learning import Estimate

PARAMETER = "about"
_LONGEST = 40  # characters of the environment's name; a label of Vertex AI has at most 63


@dataclass(frozen=True)
class RunMetadata:
    """The names of recipe, environment and schedule, '' without one, and what the plan expects of the training.

    trains_on: the pool of train if a benchmark chose it, and not the environment.
    """

    recipe: str
    environment: str
    expected: Expectation | None = None
    schedule: str = ""
    trains_on: str = ""

    def parameters(self) -> dict[str, str]:
        """Return the pipeline parameter that `read` parses."""
        return {PARAMETER: json.dumps({name: value for name, value in asdict(self).items() if value})}


UNKNOWN = RunMetadata("–", "–")
"""The metadata of a run that another tool created."""


def metadata_for(recipe: str, environment: Environment) -> RunMetadata:
    """Return the metadata of a run of `recipe` in `environment`; names are shortened for labels and versions."""
    slug = re.sub(r"[^a-z0-9]+", "-", Path(environment.name).stem.lower()).strip("-")
    return RunMetadata(recipe, slug[:_LONGEST])


def from_run(run: Any) -> RunMetadata:
    """Return the metadata of Kubeflow's `run` or recurring run."""
    return read(run.runtime_config.parameters if run.runtime_config else None)


def read(parameters: dict[str, Any] | None) -> RunMetadata:
    """Return the metadata in the parameters of a run, otherwise `UNKNOWN`."""
    try:
        fields = json.loads((parameters or {})[PARAMETER])
        if expected := fields.pop("expected", None):
            fields["expected"] = Expectation(expected["pool"], Estimate(**expected["speed"]), expected.get("cost_usd"))
        return RunMetadata(**fields)
    except (KeyError, TypeError, ValueError, AttributeError):
        return UNKNOWN
