"""The purpose of a run: a parameter of the pipeline that no step reads, and that `runs` and `explain` read."""

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
class About:
    """The names of recipe, environment and schedule, '' without one, and what the plan expects of the training.

    trains_on: the pool of train if a benchmark chose it, and not the environment.
    """

    recipe: str
    environment: str
    expected: Expectation | None = None
    schedule: str = ""
    trains_on: str = ""

    def parameters(self) -> dict[str, str]:
        """Return the run's parameter that `read` reads again."""
        return {PARAMETER: json.dumps({name: value for name, value in asdict(self).items() if value})}


UNKNOWN = About("–", "–")
"""The purpose of a run that another tool created."""


def about(recipe: str, environment: Environment) -> About:
    """Return the `About` of a run of `recipe` in `environment`; names are shortened for labels and versions."""
    slug = re.sub(r"[^a-z0-9]+", "-", Path(environment.name).stem.lower()).strip("-")
    return About(recipe, slug[:_LONGEST])


def from_run(run: Any) -> About:
    """Return the `About` of Kubeflow's `run` or recurring run."""
    return read(run.runtime_config.parameters if run.runtime_config else None)


def read(parameters: dict[str, Any] | None) -> About:
    """Return the `About` in a run's parameters, `UNKNOWN` if they hold none."""
    try:
        fields = json.loads((parameters or {})[PARAMETER])
        if expected := fields.pop("expected", None):
            fields["expected"] = Expectation(expected["pool"], Estimate(**expected["speed"]), expected.get("cost_usd"))
        return About(**fields)
    except (KeyError, TypeError, ValueError, AttributeError):
        return UNKNOWN
