"""The objects that the launchers of a compiled pipeline will create, made by the launchers' own functions."""

from __future__ import annotations

import yaml

from trainyard.contract import keys
from trainyard.contract.gang import VARIABLE, GangSpec
from trainyard.graph import STEPS
from trainyard.kubernetes.client import Manifest
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.gang.pods import job
from trainyard.steps.train.gang.pods.pods import planned_gangs, step_options, training_options
from trainyard_control.compiler.placement import GANG


def gang_objects(package: str) -> list[Manifest]:
    """Return the objects of the gangs in `package`, [] without one; only a run's own values are in angle brackets.

    On a list of pools, those of each pool in the order in which the launcher tries them.
    The names of the objects contain the run's id and the output's key, so they are other ones in a run.
    """
    spec = next(iter(yaml.safe_load_all(package)))
    parameters, executors = spec["root"]["inputDefinitions"]["parameters"], spec["deploymentSpec"]["executors"]
    known = {name: str(parameter.get("defaultValue", "")) for name, parameter in parameters.items()}
    recipe = documents.parse(known["recipe"], Recipe, name="recipe") if "recipe" in known else None
    variables = [entry for one in executors.values() for entry in one.get("container", {}).get("env", [])]
    plans = [known.get(GANG, ""), *(str(entry["value"]) for entry in variables if entry["name"] == VARIABLE)]
    options = {plan: _options(plan, recipe, known) for plan in plans if plan}
    gangs = [gang for plan in options for gang in planned_gangs(recipe, plan, "<run>", options[plan])]
    workflow = job.owner_reference("argoproj.io/v1alpha1", "Workflow", "<workflow>", "<workflow uid>")
    return [made for gang in gangs for made in job.gang_objects(gang, workflow, "<job uid>", "<input job uid>")]


def _options(plan: str, recipe: Recipe | None, known: dict[str, str]) -> dict[str, str]:
    """Return the options of the program in the pods of the gang `plan`. known: the pipeline's parameters."""
    step, code = documents.parse(plan, GangSpec, name=GANG).step, known["code"]
    if recipe is None:
        arguments = {name: known[name] for name in ("model", "inputs", "key", "beam_options")}
        return step_options(code, known["predictions"], arguments)
    outputs = {name: f"{keys.outputs_folder(known['storage'], recipe, name)}/<key>" for name in STEPS}
    model = keys.labeled(outputs["train"], known.get("label", ""))
    if step == "train":
        start = "<champion>" if recipe.train.warm_start else ""
        return training_options(code, outputs["preprocess"], keys.checkpoints(model), model, start)
    arguments = {STEPS[name].argument: outputs[name] for name in STEPS[step].reads}
    return step_options(code, outputs[step], arguments | {name: f"<{name}>" for name in STEPS[step].inputs})
