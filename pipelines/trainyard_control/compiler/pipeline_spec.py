"""A compiled pipeline: what is read from the IR that `kfp dsl compile` writes.

    root.dag.tasks ── componentRef ──▶ components ── executorLabel ──▶ deploymentSpec.executors: a container each
                                        │ dag: a loop, condition or exit handler, which has tasks, too

The step of an executor is the name of its component.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trainyard.errors import ConfigurationError
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe

Spec = dict[str, Any]

IMAGE = "trainyard/cpu"
"""The image of Trainyard's compiled components, in place of the variant that the pool's kind needs."""

GANG = "gang"
"""The parameter that plans a gang, of a pipeline and of its step that launches it."""

_FUNCTION = "--function_to_execute"  # how KFP names the function of a Python component


@dataclass(frozen=True)
class PipelineSpec:
    """The IR `spec` of a pipeline, of Trainyard's or of somebody else's."""

    spec: Spec

    @cached_property
    def steps(self) -> dict[str, str]:
        """The step of each executor that is a container.

        KFP numbers the uses of a name, `name-2`. The name of a Python component is that of its function. Of others, a
        use is the same step if it runs the same program with the same inputs and outputs: a component may be called
        train-2.
        """
        executors = self.spec.get("deploymentSpec", {}).get("executors", {})
        programs = {executor: self._program(executor) for executor in executors}
        steps = {}
        for executor, content in executors.items():
            if "container" in content:
                first = re.sub(r"-([2-9]|[1-9]\d+)$", "", executor)
                is_use = first in executors and programs[first] == programs[executor]
                name = (first if is_use else executor).removeprefix("exec-")
                steps[executor] = _function(content["container"].get("args", [])) or name
        return steps

    def container(self, executor: str) -> Spec:
        """Return the container of an executor, empty if it is none."""
        container: Spec = self.spec["deploymentSpec"]["executors"].get(executor, {}).get("container", {})
        return container

    def tasks(self) -> Iterator[tuple[Spec, str]]:
        """Yield every task that runs a container, however deep in the pipeline, with its executor."""
        components = self.spec["components"]
        for dag in (self.spec["root"].get("dag"), *(component.get("dag") for component in components.values())):
            for task in (dag or {}).get("tasks", {}).values():
                executor = components[task["componentRef"]["name"]].get("executorLabel")
                if executor in self.steps:
                    yield task, executor

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe that the pipeline carries, None if it carries none."""
        parameters = self.spec["root"].get("inputDefinitions", {}).get("parameters", {})
        try:
            return documents.parse(str(parameters.get("recipe", {}).get("defaultValue", "")), Recipe, name="recipe")
        except ConfigurationError:  # a pipeline of somebody else's, or the catalog's without a recipe
            return None

    def takes_gang(self, executor: str) -> bool:
        """Return True if the pipeline, and the step that it runs as, have the parameter `GANG`."""
        parts = [self.spec["root"], *self._components(executor)]
        return all(GANG in part.get("inputDefinitions", {}).get("parameters", {}) for part in parts)

    def runs_task(self, executor: str) -> bool:
        """Return True if the step runs by `trainyard.runtime.task`, which launches a gang if a variable plans one."""
        return "trainyard.runtime" in str(self.container(executor).get("command"))

    def _components(self, executor: str) -> list[Spec]:
        return [part for part in self.spec["components"].values() if part.get("executorLabel") == executor]

    def _program(self, executor: str) -> tuple[Spec, Spec]:
        """Return the command of an executor's container, and the inputs and outputs of its component."""
        container, component = self.container(executor), next(iter(self._components(executor)), {})
        command = {key: container.get(key) for key in ("command", "args")}
        return command, {key: component.get(key) for key in ("inputDefinitions", "outputDefinitions")}


def _function(arguments: list[Any]) -> str:
    """Return the component's name of the Python function that a container runs, '' if it runs none."""
    if _FUNCTION not in arguments[:-1]:
        return ""
    name = str(arguments[arguments.index(_FUNCTION) + 1])
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
