"""What a run on a cluster cost: how long its pods held their nodes, at the prices that the plan has."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kfp_server_api as kfp
import pytest
from gke_pools import CLUSTER, ROOM
from tests.unit.test_explanation import Silent, pod

from trainyard.spec import environment as environments
from trainyard.spec.environment import Environment
from trainyard_control.cli.follow import show_troubled_steps
from trainyard_control.cli.verbs.runs import _cost_text, _show_view
from trainyard_control.compiler.compilation import RunMetadata
from trainyard_control.kubeflow.run_view import Cost, RunView
from trainyard_control.kubeflow.runs import KubeflowRuns
from trainyard_control.planning.expectation import Expectation
from trainyard_control.planning.plan import Estimate

ENVIRONMENT = f"""{CLUSTER}pools:
  cpu: {{kind: cpu, price_per_hour: 0.5, resources: {ROOM}}}
  l4: {{kind: gpu, accelerator: nvidia-l4, count: 2, price_per_hour: 2, resources: {ROOM}}}
  l4-spot: {{kind: gpu, accelerator: nvidia-l4, count: 1, machine: g2-standard-8, spot: true, resources: {ROOM}}}
  pair: {{kind: gpu, accelerator: nvidia-l4, count: 2, workers: 2, price_per_hour: 2, resources: {ROOM}}}
  both: {{kind: cpu, workers: {{min: 1, max: 2}}, price_per_hour: 0.5, resources: {ROOM}}}
  mine: {{kind: cpu, resources: {ROOM}, machine: our-own}}
placement: {{default: cpu, train: TRAIN}}
"""


@pytest.fixture
def yard(tmp_path: Path) -> Callable[..., Environment]:
    """Makes an environment whose training is placed on a pool."""

    def make(train: str, more: str = "") -> Environment:
        file = tmp_path / "yard.yaml"
        file.write_text(ENVIRONMENT.replace("TRAIN", train) + more)
        return environments.load(str(file))

    return make


def clock(minute: int) -> str:
    return f"2026-01-01T{12 + minute // 60}:{minute % 60:02}:00Z"


def node_pod(name: str, step: str, pool: str, start: int, end: int | None, **changes: Any) -> dict[str, Any]:
    """A pod that waited ten minutes for the node that took it at `start`, until `end`."""
    state = {"running": {}} if end is None else {"terminated": {"exitCode": 0, "finishedAt": clock(end)}}
    status = {"phase": "Running" if end is None else "Succeeded", "startTime": clock(start)} | changes
    status = {"containerStatuses": [{"name": "main", "state": state}]} | status
    made = pod(name, step, clock(start - 10), **status)
    made["metadata"]["labels"] |= {"trainyard/pool": pool}
    return made


def task(name: str, state: str = "SUCCEEDED", start: int = 0, end: int | None = 60) -> kfp.V2beta1PipelineTaskDetail:
    """As server 2.17 tells of a task: a time that is not there is the first second of 1970."""
    times = [datetime.fromisoformat(clock(minute)) if minute is not None else datetime.fromtimestamp(0, UTC)
             for minute in (start, end)]  # fmt: skip
    return kfp.V2beta1PipelineTaskDetail(display_name=name, state=state, start_time=times[0], end_time=times[1])


class Kubeflow:
    """Answers with one run. asked: how often."""

    def __init__(self, tasks: list[Any], about: dict[str, str], state: str) -> None:
        config = kfp.V2beta1RuntimeConfig(parameters=about)
        created, finished = datetime.fromisoformat(clock(0)), datetime.fromisoformat(clock(240))
        self.answer = kfp.V2beta1Run(
            run_id="r", display_name="nightly", state=state, runtime_config=config, created_at=created,
            finished_at=finished if state != "RUNNING" else datetime.fromtimestamp(0, UTC),
            run_details=kfp.V2beta1RunDetails(task_details=tasks),
        )  # fmt: skip
        self.asked = 0

    def run(self, run_id: str) -> Any:
        return self.answer

    def find_experiment(self) -> str:
        return "e"

    def runs(self, experiment: str | None = None) -> list[Any]:
        self.asked += 1
        return [self.answer]


def runs(
    environment: Environment,
    *pods: dict[str, Any],
    tasks: list[Any] | None = None,
    metadata: RunMetadata | None = None,
    nodes: dict[str, Any] | None = None,
    state: str = "SUCCEEDED",
    notes: dict[str, Any] | None = None,
) -> KubeflowRuns:
    """The run of a cluster that knows these pods, Kubeflow's tasks and the nodes of Argo's Workflow.

    notes: the JSON files in the run's folder.
    """
    looked_at = KubeflowRuns(environment)
    parameters = (metadata or RunMetadata("digits", "yard")).parameters()
    looked_at.server = Kubeflow(tasks or [], parameters, state)  # type: ignore[assignment]
    workflow = {"metadata": {"name": "w", "uid": "w"}, "spec": {}, "status": {"nodes": nodes or {}}}
    kinds = {"pods": list(pods), "workflows": [workflow]}
    looked_at.cluster = Silent()
    looked_at.cluster.items = lambda kind, **_: kinds.get(kind, [])  # type: ignore[method-assign, assignment]
    looked_at._json = lambda folder, name: (notes or {}).get(name)  # type: ignore[method-assign]
    return looked_at


def costs(view: RunView) -> dict[str, Cost | None]:
    return {step.name: step.cost for step in view.steps}


Yard = Callable[..., Environment]


def test_a_step_costs_what_all_its_attempts_held_their_nodes_at_the_price_of_its_pool(yard: Yard) -> None:
    lost = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "lastTransitionTime": clock(90)}
    pods = [
        node_pod("p", "preprocess", "cpu", 10, 40),
        node_pod("t0", "train", "l4", 60, None, phase="Failed", conditions=[lost]),  # its node told of no end
        node_pod("t1", "train", "l4", 100, 160),
    ]
    view = runs(yard("l4"), *pods).view("r")
    assert costs(view) == {"preprocess": Cost(0.25), "train": Cost(3.0)}
    assert [step.machine_seconds for step in view.steps] == [1800.0, 5400.0]
    assert view.cost == Cost(3.25) and _cost_text(view) == "about 3.25 USD, at list price"
    assert view.document()["cost"] == {"usd": 3.25, "at_most": False, "so_far": False, "unpriced": ()}


def test_a_pod_that_its_node_turned_away_held_nothing_and_ended_there(yard: Yard) -> None:
    """As a real kubelet 1.34 left it: with the time at which it came, and neither containers nor conditions."""
    away = node_pod("t0", "train", "l4", 20, None, phase="Failed", reason="OutOfmemory", containerStatuses=[])
    (train,) = runs(yard("l4"), away, state="FAILED").view("r").steps
    assert (train.seconds, train.cost) == (600.0, Cost(0.0))


def test_a_spot_pool_costs_its_spot_price_and_the_same_as_it_costs_in_the_plan(yard: Yard) -> None:
    view = runs(yard("l4-spot"), node_pod("t", "train", "l4-spot", 0, 60)).view("r")
    assert view.cost == Cost(0.3406)  # of machines.yaml: an hour of a g2-standard-8


def test_a_pool_without_a_price_costs_no_number_and_free_nodes_cost_nothing(yard: Yard) -> None:
    pods = [node_pod("p", "preprocess", "cpu", 0, 60), node_pod("t", "train", "mine", 60, 120)]
    view = runs(yard("mine"), *pods).view("r")
    assert costs(view) == {"preprocess": Cost(0.5), "train": Cost(None, unpriced=("mine",))}
    assert view.cost == Cost(None, unpriced=("mine",)) and str(view.cost) == "no price"
    assert _cost_text(view) == "not known: no price of mine. Set price_per_hour of the pool in the environment"
    free = yard("mine")
    free.pools["mine"] = free.pools["mine"].model_copy(update={"price_per_hour": 0.0})
    assert runs(free, pods[1]).view("r").cost == Cost(0.0)
    gone = runs(yard("l4"), node_pod("t", "train", "sold", 0, 60)).view("r")
    assert gone.cost == Cost(None, unpriced=("sold",))


def test_a_gang_costs_all_its_workers_and_their_input_for_as_long_as_its_launcher_waited_for_it(yard: Yard) -> None:
    launcher = node_pod("launcher", "train", "cpu", 0, 60)
    worker = node_pod("w", "train", "pair", 10, 60)
    worker["metadata"]["labels"] |= {"batch.kubernetes.io/job-completion-index": "1"}
    input_pod = node_pod("f", "train", "cpu", 10, 60)
    input_pod["metadata"]["labels"] |= {"trainyard/use": "input", "batch.kubernetes.io/job-completion-index": "0"}
    view = runs(yard("pair"), launcher, worker).view("r")
    assert costs(view) == {"train": Cost(4.0, at_most=True), "train worker 1": None}
    fed = yard("pair", "input_workers: {count: 3, pool: cpu}")
    view = runs(fed, launcher, worker, input_pod).view("r")
    assert costs(view) == {"train": Cost(5.5, at_most=True), "train worker 1": None, "train input worker 0": None}
    assert _cost_text(view) == "at most 5.50 USD, at list price"
    again = node_pod("second", "train", "cpu", 90, 120)
    assert runs(fed, launcher, again).view("r").cost == Cost(8.25, at_most=True)
    moved = runs(yard("pair"), again, tasks=[task("train", start=0, end=120)])  # its first launcher's pod was deleted
    assert moved.view("r").cost == Cost(8.0, at_most=True) == moved.newest(20, False)[0].cost
    unpriced = runs(yard("pair", "input_workers: {count: 3, pool: mine}"), launcher).view("r")
    assert unpriced.cost == Cost(None, at_most=True, unpriced=("mine",))


def test_a_training_on_a_list_of_pools_costs_what_its_workers_ran_on_each(
    yard: Yard, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = node_pod("launcher", "train", "cpu", 0, 120)
    environment = yard("[l4-spot, pair]")
    why = "waiting for worker 0 of 1 (pod pending: no node) for 600 s"
    spot = {"pool": "l4-spot", "spot": True, "workers": 1, "why": why, "waited_seconds": 600.0, "worker_seconds": 0.0}
    pair = {"pool": "pair", "spot": False, "workers": 2, "why": "", "waited_seconds": 60.0, "worker_seconds": 7200.0}
    attempts = [spot | {"preemptions": 0, "cost_usd": 0.0}, pair | {"preemptions": 0, "cost_usd": 4.0}]
    unknown = runs(environment, launcher).view("r")
    assert unknown.cost == Cost(8.0, at_most=True)  # two hours of the two nodes of pair
    view = runs(environment, launcher, notes={"run": {"attempts": attempts}}).view("r")
    assert view.cost == Cost(4.0) and view.document()["steps"][0]["earlier"] == [f"pool l4-spot {why}"]
    show_troubled_steps(view)
    assert f"before: pool l4-spot: {why}" in capsys.readouterr().out
    worker = node_pod("w", "train", "", 10, None, phase="Pending", containerStatuses=[])
    worker["metadata"]["labels"] |= {"batch.kubernetes.io/job-completion-index": "0"}
    worker["spec"].pop("nodeName", None)
    notes = {"train": {"attempts": attempts[:1]}}
    going = runs(environment, launcher, worker, notes=notes, state="RUNNING").view("r")
    assert going.cost and going.cost.usd == 0.0
    assert going.steps[1].sentence.endswith("After 600 s without a node the pool pair is tried")
    notes = {"train": {"attempts": attempts}}
    assert "is tried" not in runs(environment, launcher, worker, notes=notes, state="RUNNING").view("r").reason
    judged = {"step": "evaluate", "pool": "pair", "why": "", "cost_usd": 1.0}
    pods = (launcher, node_pod("judge", "evaluate", "cpu", 0, 120))
    both = runs(environment, *pods, notes={"run": {"attempts": [*attempts, judged]}}).view("r")
    assert costs(both) == {"train": Cost(4.0), "evaluate": Cost(1.0)}
    attempts[0]["cost_usd"] = None
    unpriced = runs(environment, launcher, notes={"run": {"attempts": attempts}}).view("r")
    assert unpriced.cost == Cost(None, unpriced=("l4-spot",))


def worker(index: int, minutes: float | None, pool: str = "", use: str = "", job: str = "") -> dict[str, Any]:
    """A worker of a gang that got its node `minutes` ago, and none yet without them."""
    started = datetime.now(UTC) - timedelta(minutes=minutes or 0)
    made = node_pod(f"w{use}{index}", "train", pool, 10, None, startTime=started.isoformat())
    made["metadata"]["creationTimestamp"] = started.isoformat()
    made["metadata"]["labels"] |= {"batch.kubernetes.io/job-completion-index": str(index)}
    if use:
        made["metadata"]["labels"]["trainyard/use"] = use
    if not pool:
        del made["metadata"]["labels"]["trainyard/pool"]
    if minutes is None:
        made["status"] = {"phase": "Pending", "containerStatuses": []}
    return made


@pytest.mark.parametrize("train", ["pair", "both", "[l4-spot, pair]", "[l4-spot, both]"])
def test_every_running_gang_costs_what_its_pods_have_held(yard: Yard, train: str) -> None:
    """Two workers of 12 and 6 minutes, and one that waits; the launcher alone has run for hours."""
    environment = yard(train)
    pool = environment.pool_names("train")[-1]
    label = "" if train == "pair" else pool
    price = environment.pools[pool].price_per_hour or 0.0
    pods = [worker(0, 12, label), worker(1, 6, label), worker(2, None, label)]
    launcher = node_pod("launcher", "train", "cpu", 0, None)
    first, note = {"pool": "l4-spot", "why": "none", "cost_usd": 0.25}, {"pool": pool, "why": "", "cost_usd": 0.0}
    attempts = [*([first] if "[" in train else []), note]
    notes = {} if train == "pair" else {"train": {"attempts": attempts}}
    passed = 0.25 if "[" in train else 0.0
    for known in (notes, {}):
        cost = runs(environment, launcher, *pods, state="RUNNING", notes=known).view("r").cost
        assert cost == Cost(pytest.approx((passed if known else 0) + price * 0.3, rel=1e-2), so_far=True)
    fed = yard(train, "input_workers: {count: 1, pool: cpu}")
    cost = runs(fed, launcher, *pods, worker(0, 6, use="input"), state="RUNNING", notes=notes).view("r").cost
    assert cost == Cost(pytest.approx(passed + price * 0.3 + 0.05, rel=1e-2), so_far=True)
    if not notes:
        return
    # A pod that was lost after two hours is in the note alone, which stands since the last change 3 minutes ago.
    note |= {"cost_usd": 2 * price, "seen": (datetime.now(UTC) - timedelta(minutes=3)).timestamp()}
    cost = runs(environment, launcher, *pods, state="RUNNING", notes=notes).view("r").cost
    assert cost == Cost(pytest.approx(passed + 2 * price + price * 0.1, rel=1e-2), so_far=True)


def test_a_gang_that_waits_costs_nothing_and_an_earlier_one_of_its_launcher_at_most_its_time(yard: Yard) -> None:
    launcher = node_pod("launcher", "train", "cpu", 0, None)
    assert runs(yard("pair"), launcher, worker(0, None), state="RUNNING").view("r").cost == Cost(0.0, so_far=True)
    start = datetime.now(UTC) - timedelta(hours=3)
    failed = node_pod("before", "train", "cpu", 0, 10, phase="Failed", startTime=start.isoformat())
    failed["metadata"]["creationTimestamp"] = start.isoformat()
    launcher["metadata"]["creationTimestamp"] = (start + timedelta(minutes=170)).isoformat()
    cost = runs(yard("pair"), failed, launcher, worker(0, 6), state="RUNNING").view("r").cost
    assert cost == Cost(pytest.approx(2 * 2 * 2.9 + 0.2, rel=1e-2), at_most=True, so_far=True)


def test_a_step_that_goes_on_costs_so_much_by_now_and_one_that_waits_for_a_node_nothing_yet(yard: Yard) -> None:
    waits = node_pod("e", "evaluate", "cpu", 30, None, phase="Pending", containerStatuses=[])
    del waits["status"]["startTime"]
    view = runs(yard("l4"), node_pod("t", "train", "l4", 0, None), waits, state="RUNNING").view("r")
    train, evaluate = (step.cost for step in view.steps)
    since = (datetime.now(UTC) - datetime.fromisoformat(clock(0))).total_seconds() / 3600
    assert train and train.so_far and train.usd == pytest.approx(2 * since, rel=1e-3)
    assert evaluate == Cost(0.0, so_far=True)
    assert _cost_text(view) == f"about {train.usd:,.2f} USD so far, at list price"


@pytest.mark.parametrize("wrapped", ["preprocess", "preprocess(0)"])
def test_a_step_taken_from_the_cache_costs_nothing_and_says_so(
    yard: Yard, capsys: pytest.CaptureFixture[str], wrapped: str
) -> None:
    """The nodes are as Argo 4.0 makes them of a task whose `when` is false, with and without a retryStrategy."""
    nodes = {
        "w-0": {"type": "Retry", "displayName": "preprocess", "phase": "Succeeded", "boundaryID": "w"},
        "w-1": {"type": "DAG", "displayName": wrapped, "phase": "Succeeded", "boundaryID": "w"},
        "w-2": {"type": "Skipped", "displayName": "executor", "phase": "Skipped", "boundaryID": "w-1"},
        "w-3": {"type": "DAG", "displayName": "train", "phase": "Succeeded", "boundaryID": "w"},
        "w-4": {"type": "Pod", "displayName": "executor", "phase": "Succeeded", "boundaryID": "w-3"},
        "w-5": {"type": "Skipped", "displayName": "push", "phase": "Skipped", "boundaryID": "w"},
        "w-6": {"type": "DAG", "displayName": "export", "phase": "Succeeded", "boundaryID": "w"},
        "w-7": {"type": "Pod", "displayName": "executor", "phase": "Succeeded", "boundaryID": "w-6"},
    }
    tasks = [task("preprocess"), task("train"), task("push", "SKIPPED"), task("export")]
    looked_at = runs(yard("l4"), node_pod("t", "train", "l4", 10, 70), tasks=tasks, nodes=nodes)
    view = looked_at.view("r")
    step = view.steps[0]
    assert (step.name, step.state, step.cause, step.cost) == ("preprocess", "done", "cached", Cost(0.0))
    assert step.sentence == "done without a pod: an earlier run's output was reused"
    # What became of the pod of export nobody knows, so it costs what Kubeflow saw of it.
    assert costs(view) == {"preprocess": Cost(0.0), "train": Cost(2.0), "export": Cost(0.5, at_most=True)}
    assert view.cost == Cost(2.5, at_most=True)
    _show_view(view)
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "preprocess done (cached) 1 h 0 min 0" in shown and "export done 1 h 0 min at most 0.50" in shown
    assert "cost at most 2.50 USD, at list price" in shown


def test_a_run_costs_at_most_the_times_of_kubeflow_when_its_pods_are_gone_and_in_a_list(yard: Yard) -> None:
    tasks = [task("preprocess"), task("train", start=60, end=90), task("evaluate", "RUNNING", start=210, end=None)]
    looked_at = runs(yard("pair"), tasks=[*tasks, task("push", "SKIPPED"), task("train-driver")])
    expected = {
        "preprocess": Cost(0.5, at_most=True),
        "train": Cost(2.0, at_most=True),
        "evaluate": Cost(0.25, at_most=True),  # no end is known, so it went on no longer than its run
    }
    assert costs(looked_at.view("r")) == expected
    (listed,) = looked_at.newest(20, False)
    assert costs(listed) == expected and listed.summary()["cost"]["usd"] == 2.75
    assert looked_at.server.asked == 1  # type: ignore[attr-defined]
    assert runs(yard("pair")).newest(20, False)[0].cost is None


def test_what_the_plan_said_of_the_training_stands_beside_what_it_cost(yard: Yard) -> None:
    expected = Expectation("l4", Estimate(1, 2, 3), 1.5)
    metadata = RunMetadata("digits", "yard", expected)
    pods = [node_pod("p", "preprocess", "cpu", 0, 60), node_pod("t", "train", "l4", 0, 60)]
    view = runs(yard("l4"), *pods, metadata=metadata).view("r")
    assert view.document()["expected"]["cost_usd"] == 1.5
    assert _cost_text(view) == "about 2.50 USD, at list price. The training: 2.00; the plan said about 1.50"
    unpriced = RunMetadata("digits", "yard", Expectation("l4", Estimate(1, 2, 3)))
    assert _cost_text(runs(yard("l4"), *pods, metadata=unpriced).view("r")) == "about 2.50 USD, at list price"


def test_a_benchmark_costs_by_the_pool_that_it_trained_on(yard: Yard) -> None:
    metadata = RunMetadata("digits", "yard", trains_on="pair")
    launcher = node_pod("launcher", "train", "cpu", 0, 60)
    assert runs(yard("cpu"), launcher, metadata=metadata).view("r").cost == Cost(4.0, at_most=True)
    alone = node_pod("t", "train", "cpu", 0, 60)
    assert runs(yard("pair"), alone, metadata=RunMetadata("digits", "yard", trains_on="cpu")).view("r").cost == Cost(
        0.5
    )


def test_the_run_of_another_environment_has_other_pools_and_somebody_elses_only_those_of_its_labels(yard: Yard) -> None:
    trained = node_pod("t", "train", "cpu", 0, 60)
    other = runs(yard("pair"), trained, metadata=RunMetadata("digits", "gke")).view("r")
    assert costs(other) == {"train": None} and other.cost is None and _cost_text(other) == ""
    placed = runs(yard("pair"), trained, tasks=[task("evaluate")], metadata=RunMetadata("–", "–")).view("r")
    assert costs(placed) == {"train": Cost(0.5), "evaluate": None}
