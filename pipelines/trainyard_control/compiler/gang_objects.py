"""The objects that the launcher of a compiled pipeline will create, made by the launcher's own functions."""

from __future__ import annotations

import yaml

from trainyard.contract import keys
from trainyard.kubernetes.client import Manifest
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.gang.pods import job
from trainyard.steps.train.gang.pods.pods import planned_gangs
from trainyard_control.compiler.placement import GANG


def gang_objects(package: str) -> list[Manifest]:
    """Return the objects of the gang in `package`, [] without one; only a run's own values are in angle brackets.

    On a list of pools, those of each pool in the order in which the launcher tries them.
    The names of the objects contain the run's id and the output's key, so they are other ones in a run.
    """
    parameters = next(iter(yaml.safe_load_all(package)))["root"]["inputDefinitions"]["parameters"]
    known = {name: str(parameter.get("defaultValue", "")) for name, parameter in parameters.items()}
    if not known.get(GANG):
        return []
    recipe = documents.parse(known["recipe"], Recipe, name="recipe")
    examples, model = (
        f"{keys.outputs_folder(known['storage'], recipe, step)}/<key>" for step in ("preprocess", "train")
    )
    model = keys.labeled(model, known.get("label", ""))
    start = "<champion>" if recipe.train.warm_start else ""
    gangs = planned_gangs(recipe, known[GANG], "<run>", known["code"], examples, keys.checkpoints(model), model, start)
    workflow = job.owner_reference("argoproj.io/v1alpha1", "Workflow", "<workflow>", "<workflow uid>")
    return [made for gang in gangs for made in job.gang_objects(gang, workflow, "<job uid>", "<input job uid>")]
