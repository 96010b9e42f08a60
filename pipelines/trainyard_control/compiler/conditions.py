"""Conditions of a compiled pipeline, replaced by the tasks that they hold."""

from __future__ import annotations

import copy
import re

from trainyard_control.compiler.pipeline_spec import PipelineSpec, Spec

_PARAMETER = re.compile(r"inputs\.parameter_values\['([^']+)'\]")


def flattened(spec: Spec, image: str) -> Spec:
    """Return a copy of the compiled pipeline `spec`, its conditions replaced by their tasks, which get them.

    KFP compiles `dsl.If` to a pipeline within the pipeline, which Kubeflow's page draws as one closed box. Its backend
    takes the condition of a container's task as well: if it is false, the task and all that read it are skipped.
    Source: kubeflow/pipelines 2.17.0, driver/container.go and compiler/argocompiler/dag.go in backend/src/v2.

    A condition stays if it has outputs, holds a loop or a task whose container image is not `image`, or is in a loop.
    """
    spec = copy.deepcopy(spec)
    tasks = spec["root"].get("dag", {}).get("tasks", {})
    while name := next((name for name, task in tasks.items() if _replaceable(spec, task, image)), ""):
        _inline(spec, tasks, name)
    return spec


def _replaceable(spec: Spec, task: Spec, image: str) -> bool:
    """Return True if `task` is a condition around tasks of `image` alone, including nested conditions."""
    component = spec["components"][task["componentRef"]["name"]]
    if "condition" not in task.get("triggerPolicy", {}) or "dag" not in component or "outputDefinitions" in component:
        return False
    dag = component["dag"]
    return "parameterIterator" not in task and all(
        _task_image(spec, inner) == image or _replaceable(spec, inner, image) for inner in dag["tasks"].values()
    )


def _task_image(spec: Spec, task: Spec) -> str:
    """Return the image of the task's container, '' if it has none."""
    label = spec["components"][task["componentRef"]["name"]].get("executorLabel", "")
    return str(PipelineSpec(spec).container(label).get("image", ""))


def _inline(spec: Spec, tasks: Spec, name: str) -> None:
    """Put the tasks of the condition `name` in its place in `tasks`."""
    outer = tasks.pop(name)
    component = spec["components"].pop(outer["componentRef"]["name"])
    bound = outer["inputs"].get("parameters", {})
    inner = component["dag"]["tasks"]
    for task_name, task in inner.items():
        first = not set(task.get("dependentTasks", [])) & inner.keys()
        parameters = task.setdefault("inputs", {}).setdefault("parameters", {})
        for key, value in parameters.items():
            parameters[key] = bound.get(value.get("componentInputParameter"), value)
        waits_for = set(task.get("dependentTasks", []))
        if first:
            _restrict(spec, task, outer, component)
            waits_for |= set(outer.get("dependentTasks", []))
        outputs = [value["taskOutputParameter"] for value in parameters.values() if "taskOutputParameter" in value]
        task["dependentTasks"] = sorted(waits_for | {output["producerTask"] for output in outputs})
        tasks[task_name] = task


def _restrict(spec: Spec, task: Spec, outer: Spec, component: Spec) -> None:
    """Give `task` the condition of `outer`, and the inputs that the condition reads."""
    condition = outer["triggerPolicy"]["condition"]
    own = task.get("triggerPolicy", {}).get("condition")
    task["triggerPolicy"] = {"condition": f"({condition}) && ({own})" if own else condition}
    definitions = spec["components"][task["componentRef"]["name"]].setdefault("inputDefinitions", {})
    for read in _PARAMETER.findall(condition):
        task["inputs"]["parameters"][read] = outer["inputs"]["parameters"][read]
        definitions.setdefault("parameters", {})[read] = component["inputDefinitions"]["parameters"][read]
