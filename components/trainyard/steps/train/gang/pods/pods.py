"""Trains in a gang of pods if the pool of the environment has several workers; runs steps on lists of pools."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trainyard import events
from trainyard.contract import keys
from trainyard.contract.gang import STEP as TRAIN
from trainyard.contract.gang import Attempt, GangSpec, InputPods, elastic_gang
from trainyard.errors import TrainyardError
from trainyard.kubernetes import labels
from trainyard.kubernetes.client import Cluster, connect
from trainyard.kubernetes.pod_spec import literal_json, literal_value
from trainyard.process.signals import handle_sigterm
from trainyard.spec import documents
from trainyard.spec import recipe as recipes
from trainyard.spec.hardware.pools import training_variables
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.gang.pods.job import Gang
from trainyard.steps.train.gang.pods.launch import PassedOver, clear, launch
from trainyard.steps.train.peers import launcher_heartbeat, settings
from trainyard.storage import storage

_PATIENCE_SECONDS = 120  # chosen: an API server that is restarted or replaced is back by then
_REMEDY = (
    "Bind the Role of k8s/base/gang-rbac.yaml to the service account that the step runs as; trainyard doctor says how."
)

Note = Callable[[list[dict[str, Any]]], None]
"""Takes the attempts on a list of pools, each as `Attempt.as_dict` with its `step`."""


def run_in_pods(
    recipe: Recipe,
    plan: str,
    code: str,
    examples: str,
    checkpoints: str,
    output: str,
    start: str = "",
    note: Note | None = None,
) -> None:
    """Train in a gang of pods whose worker 0 commits `output`; remove the gang afterwards.

    plan: JSON text of a `GangSpec`. code: digest that the workers' image must have, as in `task.opened`. start: as in
    `train.run.run`. note: called with the attempts on a list of pools when they change. SIGTERM ends the gang too (see
    `launch`). Raises as `launch`, except `PassedOver`.
    """
    _run(recipe, plan, training_options(code, examples, checkpoints, output, start), note)


def run_step_in_pod(
    recipe: Recipe | None, plan: str, code: str, output: str, arguments: dict[str, str], note: Note | None = None
) -> None:
    """Have one pod execute the step of `plan` with the `arguments` of its `run`, and commit `output`.

    recipe: None for a step without one. The rest, and what it raises, is as in `run_in_pods`.
    """
    _run(recipe, plan, step_options(code, output, arguments), note)


def training_options(code: str, examples: str, checkpoints: str, output: str, start: str = "") -> dict[str, str]:
    """Return the options of the program `pod`."""
    return {"code": code, "examples": examples, "checkpoints": checkpoints, "start": start, "output": output}


def step_options(code: str, output: str, arguments: dict[str, str]) -> dict[str, str]:
    """Return the options of the program `step_pod`."""
    return {"code": code, "arguments": literal_json(json.dumps(arguments)), "output": output}


def _run(recipe: Recipe | None, plan: str, options: dict[str, str], note: Note | None) -> None:
    signal.signal(signal.SIGTERM, handle_sigterm)
    cluster, launcher = launchers_cluster(), own_pod()
    heartbeat = _heartbeat(options)
    gangs = planned_gangs(recipe, plan, run_name(cluster, launcher), options)
    with launcher_heartbeat.beating(heartbeat):
        _launch_in_turn(gangs, documents.parse(plan, GangSpec, name="gang"), cluster, launcher, heartbeat, note)
    launcher_heartbeat.remove(heartbeat)


def _heartbeat(options: dict[str, str]) -> str:
    """Return the URI of the launcher's heartbeat for the program with these `options`."""
    if "checkpoints" in options:
        return launcher_heartbeat.heartbeat_uri(options["checkpoints"])
    return storage.join(keys.checkpoints(options["output"]), "launcher")


def _launch_in_turn(
    gangs: list[Gang],
    plan: GangSpec,
    cluster: Cluster,
    launcher: str,
    heartbeat: str,
    note: Note | None,
) -> None:
    """Launch the gang on the first pool that a launcher of this run has not passed over, then on those after it."""
    record = launcher_heartbeat.read_attempts(heartbeat)
    attempts = record.get(gangs[0].name, [])

    def save() -> None:
        with events.warned("the attempts on the pools were not noted"):  # a later launcher may try a pool once more
            if plan.name:
                launcher_heartbeat.write_attempts(heartbeat, {gangs[0].name: attempts})
            if plan.name and note:
                note([{"step": plan.step} | attempt.as_dict() for attempt in attempts])

    def on_start(seconds: float) -> None:
        before = sum(attempt.waited_seconds for attempt in attempts[:-1])
        launcher_heartbeat.write_queue_seconds(heartbeat, before + seconds)

    first = sum(bool(attempt.why) for attempt in attempts)
    for index, (gang, placed) in enumerate(zip(gangs, plan.attempts, strict=True)):
        if index < first:
            continue
        if index == len(attempts):
            spot, price = placed.pool.spot, placed.usd_per_hour
            attempts.append(Attempt(pool=placed.name, spot=spot, workers=placed.workers, usd_per_hour=price))
        attempts[index].on_change(save)
        try:
            launch(gang, cluster, launcher, on_start, attempts[index])
            return
        except PassedOver as passed:
            attempts[index].why = str(passed)
            events.emit("pool_passed_over", pool=placed.name, reason=passed, next=plan.attempts[index + 1].name)
            save()


def clear_pods(recipe: Recipe, plan: str, checkpoints: str, output: str) -> None:
    """Remove the gang that committed `output` if its launcher was killed before.

    A failure is a warning, because the output exists and the Job's time to live removes the rest.
    """
    with events.warned("could not check for a gang of an earlier attempt", TrainyardError):
        cluster = launchers_cluster()
        options = training_options("", "", checkpoints, output)
        clear(planned_gangs(recipe, plan, run_name(cluster, own_pod()), options)[0], cluster)


def planned_gangs(recipe: Recipe | None, plan: str, run: str, options: dict[str, str]) -> list[Gang]:
    """Return the gangs of the JSON text `plan` in the run `run`, one for each pool. The rest is as in `gang`."""
    name = f"{run}-{keys.split(options['output'])[1]}"
    return gangs(documents.parse(plan, GangSpec, name="gang"), recipe, name, options)


def own_pod() -> str:
    """Return the name of the pod that this process runs in."""
    return os.environ.get("KFP_POD_NAME") or socket.gethostname()


def launchers_cluster() -> Cluster:
    """Return the launcher's cluster and namespace, with patience for a run of hours."""
    return connect(
        patience_seconds=_PATIENCE_SECONDS,
        on_retry=lambda problem: events.emit("unreachable", problem=problem),
        remedy=_REMEDY,
    )


def run_name(cluster: Cluster, pod: str) -> str:
    """Return the name of the run that the pod belongs to, or the pod's own name.

    Read from the pod instead of a step parameter, which would make KFP's cache keys differ between runs.
    """
    marks = (cluster.get(cluster.path("pods", pod)) or {}).get("metadata", {}).get("labels") or {}
    return str(marks.get(labels.KUBEFLOW_RUN) or marks.get(labels.WORKFLOW) or pod)


def gangs(plan: GangSpec, recipe: Recipe | None, run: str, options: dict[str, str]) -> list[Gang]:
    """Return the gang of `plan` on each of its pools, in the order in which they are tried. The rest is as in `gang`.

    All have one name, so that there are never two.
    """
    planned, attempts = [], plan.attempts
    for attempt in attempts:
        planned_gang, pool, last = gang(attempt, recipe, run, options), attempt.pool, attempt is attempts[-1]
        budget = pool.allowed_preemptions(last)
        planned.append(
            replace(planned_gang, pending_seconds=None if last else pool.pending_seconds, preemptions=budget)
        )
    return planned


def gang(plan: GangSpec, recipe: Recipe | None, run: str, options: dict[str, str]) -> Gang:
    """Return the gang of `plan` for one output of one run.

    recipe: None for a step without one. options: those of the program `pod`, or of `step_pod` for a step that does not
    train.
    """
    heartbeat = {settings.LAUNCHER_HEARTBEAT: _heartbeat(options)}
    text = {settings.RECIPE: literal_value(recipes.parameter(recipe))} if recipe else {}
    planned = Gang(
        run=f"{recipe.name if recipe else plan.step}-{run}",
        image=plan.image,
        command=_program("gang.pods.step_pod", {"step": plan.step, **options}),
        workers=plan.workers,
        pool=plan.pool,
        platform=plan.platform,
        step=plan.step,
        pool_name=plan.name,
        environment={**plan.variables, **heartbeat, **text},
        secrets=plan.secrets,
        volume=plan.volume,
        ca_bundle=plan.ca_bundle,
        pull_secrets=tuple(plan.image_pull_secrets),
        service_account=plan.service_account,
        timeout_seconds=plan.timeout_seconds,
    )
    if recipe is None or plan.step != TRAIN:
        return planned
    elastic = elastic_gang(recipe, plan.pool)
    variables = settings.elastic_variables(elastic.counts, elastic.replace_seconds) if elastic else {}
    planned = replace(
        planned,
        image=recipe.train.image or plan.image,
        command=_program("gang.pods.pod", options),
        min_workers=elastic.counts[0] if elastic else 0,
        environment={**planned.environment, **training_variables(plan.pool), **variables},
    )
    if plan.input_workers is None:
        return planned
    return replace(planned, input=_input_gang(plan.input_workers, planned, plan, options))


def _input_gang(workers: InputPods, planned: Gang, plan: GangSpec, options: dict[str, str]) -> Gang:
    return replace(
        planned,
        image=workers.image,
        command=_program("input.service.worker", {name: options[name] for name in ("examples", "output")}),
        workers=workers.count,
        min_workers=0,
        pool=workers.pool,
        pool_name="",
        environment=plan.variables,
        feeds=planned.name,
    )


def _program(module: str, options: dict[str, str]) -> tuple[str, ...]:
    return (
        "python",
        "-m",
        f"trainyard.steps.train.{module}",
        *(f"--{name}={value}" for name, value in options.items()),
    )
