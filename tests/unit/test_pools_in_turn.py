"""A step on a list of pools: its launcher tries one after the other, and notes what became of each."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.test_launch import Server, disrupted, running, succeeded
from tests.unit.test_outcome import ended, pending
from tests.unit.test_place import documents

from trainyard.contract.gang import VARIABLE, Attempt, GangSpec, gang_spec, to_parameter
from trainyard.contract.keys import code_digest
from trainyard.errors import ConfigurationError, InfrastructureError, TransientError
from trainyard.kubernetes.client import JOBS, Cluster
from trainyard.runtime import step, task
from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard.spec.documents import parse
from trainyard.spec.environment import Environment
from trainyard.steps.evaluate import run as evaluate
from trainyard.steps.predict.component import predict
from trainyard.steps.train.gang.pods import pods, step_pod
from trainyard.steps.train.peers import liveness
from trainyard.storage import storage
from trainyard_control.catalog.train import train_pipeline
from trainyard_control.cluster.checks import pool_pod
from trainyard_control.compiler.compilation import compiled, compiled_prediction, gang_objects
from trainyard_control.compiler.placement import place, table
from trainyard_control.kubeflow.runs import KubeflowRuns

SPOT = {"spot": True, "price_per_hour": 1.0, "pending_seconds": 20}


def environment(*names: str, steps: tuple[str, ...] = ("train",), **spot: Any) -> Environment:
    """The environment kind, whose `steps` have a list of pools: spot, which is preempted, and calm."""
    kind = environments.load("kind")
    own = {
        "spot": kind.pools["cpu"].model_copy(update=SPOT | {"node_selector": {"pool": "spot"}} | spot),
        "calm": kind.pools["cpu"].model_copy(update={"price_per_hour": 3.0, "node_selector": {"pool": "calm"}}),
    }
    placement = kind.placement | {step: [*names] for step in steps}
    return kind.model_copy(update={"pools": kind.pools | own, "placement": placement})


class Trial:
    """A launcher, an API server without nodes, and the pods of each pool, by the seconds that its Job has lived."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.server, self.now, self.since = Server(), 0.0, {"": 0.0}
        self.pods: dict[str, Any] = {}
        self.notes: list[list[dict[str, Any]]] = []
        self.folder, self.cluster = folder, Cluster(self.server, "runs")
        monkeypatch.setattr(pods, "launchers_cluster", lambda: self.cluster)
        monkeypatch.setattr(pods, "own_pod", lambda: "")
        monkeypatch.setattr(pods, "run_name", lambda *_: "run-1")
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        monkeypatch.setattr(time, "sleep", self._at_rest)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "time", lambda: self.now)

    def _at_rest(self, _: float) -> None:
        self.now += 1.0
        for path, job in self.server.objects.items():
            if path.startswith(self.cluster.path("jobs", group=JOBS)) and "deletionTimestamp" not in job["metadata"]:
                pool = job["spec"]["template"]["spec"]["nodeSelector"]["pool"]
                lived = self.now - self.since.setdefault(job["metadata"]["uid"], self.now)
                self.server.pods = self.pods[pool](lived)
                self.command = job["spec"]["template"]["spec"]["containers"][0]["command"]
                if self.server.pods == [succeeded(0)]:
                    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
                elif self.server.pods[-1]["status"]["phase"] == "Failed":
                    job["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}

    def train(self, environment: Environment) -> list[dict[str, Any]]:
        """Return the attempts as noted at the end. Raises as `run_in_pods`."""
        parameter = to_parameter(gang_spec(environment))
        output = self.folder / "train-0123456789ab"
        pods.run_in_pods(
            recipes.load("digits"),
            parameter,
            "",
            "examples",
            f"{output}.checkpoints",
            str(output),
            note=self.notes.append,
        )
        return self.notes[-1]

    def committed_after_10_s(self, lived: float) -> list[dict[str, Any]]:
        """The pod of a step, which commits the output."""
        if lived >= 10 and storage.committed(self.output) is None:
            with storage.stage(self.output, producer="trainyard.evaluate") as staging:
                (staging / "file").write_text("content")
        return [running(0)] if lived < 10 else [succeeded(0)]

    def evaluate(self) -> Path:
        """Execute evaluate as its component does, once more if it is done; return the folder of the run's record.

        Its pod commits the output.
        """
        folder = self.folder / "digits" / "runs" / "run-1"
        with task.opened("evaluate", TEXT, str(self.folder), "", "run-1") as this:
            this.place(examples="a", model="b")
            self.output = this.uri
            if this.unfinished():
                this.execute(evaluate.run)
        return folder


TEXT = "name: digits\ndata: {format: image_folder, bundled: digits, channels: 1}\nmodel: {name: cnn_small}\n"


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trial:
    return Trial(monkeypatch, tmp_path)


def none(_: float) -> list[dict[str, Any]]:
    return [pending(0, "no node")]


def trained(lived: float) -> list[dict[str, Any]]:
    return [succeeded(0)] if lived > 3600 else [running(0)]


def test_the_training_goes_to_the_next_pool_if_the_first_has_no_nodes(
    trial: Trial, capfd: pytest.CaptureFixture[str]
) -> None:
    trial.pods = {"spot": none, "calm": trained}
    spot, calm = trial.train(environment("spot", "calm"))
    why = "waiting for worker 0 of 1 (pod pending: no node) for 21 s"
    assert (spot["pool"], spot["spot"], spot["why"], spot["cost_usd"]) == ("spot", True, why, 0.0)
    assert 21 <= spot["waited_seconds"] < 30
    assert (calm["pool"], calm["spot"], calm["why"], calm["preemptions"]) == ("calm", False, "", 0)
    assert calm["worker_seconds"] == pytest.approx(3600, abs=10) and calm["cost_usd"] == pytest.approx(3, rel=0.01)
    assert '"pool_passed_over", "pool": "spot"' in capfd.readouterr().err
    assert not trial.server.objects and not list(trial.folder.rglob("*.attempts"))


def test_preemptions_lead_to_the_next_pool_and_cost_what_ran(trial: Trial) -> None:
    def preempted_each_minute(lived: float) -> list[dict[str, Any]]:
        return [*(disrupted(0, f"lost-{number}") for number in range(int(lived // 60))), running(0)]

    trial.pods = {"spot": preempted_each_minute, "calm": trained}
    spot, _ = trial.train(environment("spot", "calm"))
    assert (spot["preemptions"], spot["why"]) == (4, "preempted 4 times, and 3 are allowed")
    assert spot["worker_seconds"] == pytest.approx(240, abs=5)
    assert spot["cost_usd"] == pytest.approx(240 / 3600, rel=0.05)


def test_a_launcher_that_is_started_again_does_not_return_to_a_pool_that_was_passed_over(trial: Trial) -> None:
    def fails(_: float) -> list[dict[str, Any]]:
        raise InfrastructureError("no")

    trial.pods = {"spot": none, "calm": fails}
    with pytest.raises(InfrastructureError, match="no"):
        trial.train(environment("spot", "calm"))
    assert [attempt["pool"] for attempt in trial.notes[-1]] == ["spot", "calm"]
    trial.pods = {"calm": trained}
    assert [attempt["pool"] for attempt in trial.train(environment("spot", "calm"))] == ["spot", "calm"]


def test_a_storage_that_takes_no_note_ends_no_training(trial: Trial, capfd: pytest.CaptureFixture[str]) -> None:
    class Full(list[Any]):
        def append(self, _: object) -> None:
            raise TransientError("the store is busy.")

    trial.pods, trial.notes = {"spot": trained}, Full([["none"]])
    assert trial.train(environment("spot")) == ["none"]
    assert "the attempts on the pools were not noted (the store is busy.)" in capfd.readouterr().err


def test_a_list_of_one_pool_has_a_budget_too(trial: Trial) -> None:
    trial.pods = {"spot": lambda lived: [*(disrupted(0, f"lost-{number}") for number in range(int(lived))), running(0)]}
    with pytest.raises(InfrastructureError, match="preempted 3 times, and 2 are allowed"):
        trial.train(environment("spot", preemptions=2))


def test_the_last_pool_is_waited_for_as_long_as_by_any_gang(trial: Trial) -> None:
    trial.pods = {"spot": lambda lived: none(lived) if lived < 100 else trained(lived)}
    assert trial.train(environment("spot"))[0]["why"] == ""


def test_the_time_between_two_launchers_counts_as_what_the_first_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "time", lambda: now)
    attempt = Attempt(pool="spot", usd_per_hour=2.0)
    attempt.observe(0, True, set())
    now = 30.0
    attempt.observe(2, False, set())
    again = Attempt.model_validate(json.loads(attempt.model_dump_json()))
    now = 3630.0
    again.observe(1, True, {"a"})
    assert (again.waited_seconds, again.worker_seconds, again.cost_usd) == (30.0, 7200.0, 4.0)
    assert again.as_dict()["preemptions"] == 1


def test_evaluate_runs_in_a_pod_on_the_next_pool_and_its_run_notes_both(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, to_parameter(gang_spec(environment("spot", "calm", steps=("evaluate",)), "evaluate")))
    trial.pods = {"spot": none, "calm": trial.committed_after_10_s}
    folder = trial.evaluate()
    note = json.loads((folder / "evaluate.json").read_text())
    spot, calm = note["attempts"]
    assert (spot["step"], spot["pool"], calm["step"], calm["pool"]) == ("evaluate", "spot", "evaluate", "calm")
    assert spot["waited_seconds"] >= 20 and calm["cost_usd"] > 0 and note["seconds"] > 20
    options = dict(option.removeprefix("--").split("=", 1) for option in trial.command[3:])
    assert trial.command[2].endswith("step_pod") and options["step"] == "evaluate"
    assert json.loads(options["arguments"]) == {"examples": "a", "model": "b", "champion": ""}
    assert not trial.server.objects and not list(trial.folder.rglob("*.checkpoints"))
    trial.pods = {}  # a Job would look for those of its pool
    trial.evaluate()
    assert json.loads((folder / "evaluate.json").read_text())["seconds"] == 0.0


def test_the_exit_code_and_the_sentence_of_the_pod_are_those_of_the_run(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = json.dumps({"event": "failed", "step": "evaluate", "code": 10, "error": "DataError", "message": "no rows."})
    monkeypatch.setenv(VARIABLE, to_parameter(gang_spec(environment("calm", steps=("evaluate",)), "evaluate")))
    trial.pods = {"calm": lambda _: [ended(0, 10, said)]}
    with pytest.raises(SystemExit) as end:
        trial.evaluate()
    record = json.loads((trial.folder / "digits" / "runs" / "run-1" / "run.json").read_text())
    assert (end.value.code, record["exit_code"], record["failed_step"]) == (10, 10, "evaluate")
    assert record["failure"].endswith("ended with exit code 10: no rows.")
    assert [(attempt["step"], attempt["pool"]) for attempt in record["attempts"]] == [("evaluate", "calm")]


def test_the_pod_of_a_step_gives_its_arguments_to_the_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}
    output, arguments = str(tmp_path / "out"), {"examples": "a", "thresholds": '{"$(HOME)": 0.5}'}
    options = pods.step_options(code_digest(), output, arguments)
    assert "$" not in options["arguments"]  # Kubernetes would expand it
    argv = ["step_pod", "--step=export", *(f"--{name}={value}" for name, value in options.items())]
    monkeypatch.setattr("sys.argv", argv)
    monkeypatch.setenv("TRAINYARD_RECIPE", TEXT)
    monkeypatch.setattr(liveness, "answer", lambda: None)
    monkeypatch.setattr(step_pod, "_end_without_launcher", lambda _: None)  # its thread would outlive the test
    monkeypatch.setattr(step, "run_as_program", lambda *_: _[2]())
    monkeypatch.setattr(step, "execute", lambda run, output, **given: seen.update(given, run=run, output=output))
    step_pod.main()
    assert seen.pop("recipe").name == "digits" and seen.pop("run").__module__ == "trainyard.steps.export.run"
    assert seen == arguments | {"output": output}


def test_the_plan_of_a_list_of_pools_comes_through_the_pipelines_parameter() -> None:
    plan = gang_spec(environment("spot", "calm"))
    assert plan is not None and parse(to_parameter(plan), GangSpec, name="gang") == plan
    gangs = pods.gangs(plan, recipes.load("digits"), "run-1", dict.fromkeys(("checkpoints", "output", "examples"), ""))
    assert [(gang.pending_seconds, gang.preemptions) for gang in gangs] == [(20, 3), (None, None)]
    assert [gang.pool.node_selector for gang in gangs] == [{"pool": "spot"}, {"pool": "calm"}]
    assert len({gang.name for gang in gangs}) == 1


def test_a_list_of_pools_is_launched_from_the_default_pool_and_may_take_the_time_of_each() -> None:
    spec, listed = documents(train_pipeline)[0], environment("spot", "calm")
    placed = place(spec, listed)
    assert placed.platform is not None
    config = placed.platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train"]
    assert config["podMetadata"]["labels"]["trainyard/pool"] == "cpu" and "nodeSelector" not in config
    assert config["activeDeadlineSeconds"] == str(2 * (1800 + 3600))
    assert ("train", "train", "cpu (launches a gang on spot, then calm)", "none") in table(spec, listed)
    text = placed.pipeline["root"]["inputDefinitions"]["parameters"]["gang"]["defaultValue"]
    assert [attempt.name for attempt in parse(text, GangSpec, name="gang").attempts] == ["spot", "calm"]
    package = compiled(recipes.load("digits"), listed).pipeline
    objects = gang_objects(yaml.safe_dump(package))  # as a dry run prints them
    assert [made["kind"] for made in objects] == ["Job", "NetworkPolicy", "Service"] * 2
    selectors = [job["spec"]["template"]["spec"]["nodeSelector"] for job in (objects[0], objects[3])]
    assert selectors == [{"pool": "spot"}, {"pool": "calm"}]


def test_a_step_that_does_not_train_carries_its_pools_where_no_cache_key_of_kubeflow_is() -> None:
    recipe, steps = recipes.load("digits"), ("evaluate", "export")
    placed, plain = (compiled(recipe, environment("spot", "calm", steps=some)) for some in (steps, ()))
    executors, plain_executors = (one.pipeline["deploymentSpec"]["executors"] for one in (placed, plain))
    for name, executor in executors.items():
        container, other = executor["container"], plain_executors[name]["container"]
        plan = {entry["name"]: entry["value"] for entry in container["env"]}.get(VARIABLE)
        assert bool(plan) == (name.removeprefix("exec-") in steps)
        assert (container["command"], container["args"]) == (other["command"], other["args"])
        assert not plan or container["resources"]["resourceMemoryLimit"] == "1Gi"
        assert plan or executor == plain_executors[name]
    assert placed.pipeline["components"] == plain.pipeline["components"]
    assert placed.pipeline["root"] == plain.pipeline["root"]
    objects = gang_objects(yaml.safe_dump(placed.pipeline))
    assert [made["kind"] for made in objects] == ["Job", "NetworkPolicy", "Service"] * 4
    jobs = [job["spec"]["template"] for job in objects[::3]]
    assert [job["spec"]["nodeSelector"]["pool"] for job in jobs] == ["spot", "calm"] * 2
    assert [job["metadata"]["labels"]["app.kubernetes.io/component"] for job in jobs] == [
        *["evaluate"] * 2,
        *["export"] * 2,
    ]
    assert '"champion": "<champion>"' in str(jobs[0]["spec"]["containers"][0]["command"])
    pod = pool_pod(environment("spot", "calm", steps=steps), "spot")  # as doctor tries it
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "evaluate"


def test_a_prediction_has_pools_in_turn_too() -> None:
    listed = environment("spot", "calm", steps=("predict",))
    placed = compiled_prediction("s3://a/m", "s3://a/in", "s3://a/out", "id", listed)
    job, *_ = gang_objects(yaml.safe_dump(placed.pipeline))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert '"inputs": "s3://a/in", "key": "id"' in str(container["command"]) and job["metadata"]["name"].startswith(
        "ty-predict-run-out-predict"
    )
    assert not {"TRAINYARD_RECIPE", VARIABLE} & {entry["name"] for entry in container["env"]}


def test_a_prediction_notes_its_attempts_where_runs_show_looks(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    listed, trial.output = environment("spot", "calm", steps=("predict",)), str(trial.folder / "answers")
    monkeypatch.setenv(VARIABLE, to_parameter(gang_spec(listed, "predict")))
    trial.pods = {"spot": none, "calm": trial.committed_after_10_s}
    arguments = {"model": "m", "inputs": "in", "predictions": trial.output, "key": "", "code": "", "beam_options": ""}
    predict.python_func(**arguments, storage=str(trial.folder), run_id="run-1")
    monkeypatch.setattr("trainyard_control.kubeflow.runs.KubeflowServer", lambda _: None)
    looked_at = KubeflowRuns(listed.model_copy(update={"storage": str(trial.folder)}))
    spot, calm = looked_at._attempts(looked_at._folder("predict", "run-1"), None)
    assert (spot["step"], spot["pool"], calm["step"], calm["pool"]) == ("predict", "spot", "predict", "calm")
    assert spot["why"].endswith("for 21 s") and calm["cost_usd"] > 0


def test_a_step_of_somebody_elses_pipeline_keeps_its_resources() -> None:
    executors = {"exec-evaluate": {"container": {"image": "trainyard/cpu", "command": ["python", "mine.py"]}}}
    spec = {"root": {}, "components": {}, "deploymentSpec": {"executors": executors}}
    placed = place(spec, environment("spot", "calm", steps=("evaluate",))).pipeline
    container = placed["deploymentSpec"]["executors"]["exec-evaluate"]["container"]
    assert container["resources"]["resourceMemoryLimit"] == "3Gi" and VARIABLE not in str(container["env"])


def test_every_pool_of_a_list_has_to_divide_the_batch() -> None:
    listed = environment("spot", "calm")
    listed.pools["calm"] = listed.pools["calm"].model_copy(update={"workers": 3})
    with pytest.raises(
        ConfigurationError,
        match=r"64 examples make no 3 equal parts, one a worker. Give 63 \(kind.yaml trains in 3 pods on",
    ):
        compiled(recipes.load("digits"), listed)
