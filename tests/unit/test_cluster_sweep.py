"""A sweep on a cluster: which runs are sent, how many go on at a time, and what is made of what they leave.

The server stands for Kubeflow's: it answers in the published types, and its runs end as the test says.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kfp_server_api as kfp
import pytest
import yaml
from gke_pools import CLUSTER, ROOM
from report_folders import training_with
from typer.testing import CliRunner

from trainyard.contract.artifacts.train import Epoch, Training
from trainyard.errors import ConfigurationError, DataError
from trainyard.kubernetes.client import Cluster
from trainyard.spec import environment as environments
from trainyard.storage import storage
from trainyard_control.api.progress import SweepScreen
from trainyard_control.cli.main import app
from trainyard_control.kubeflow import runs as watching
from trainyard_control.kubeflow.runs import KubeflowRuns
from trainyard_control.search import cluster_trials
from trainyard_control.search.search_space import Dimension
from trainyard_control.search.study import Sweep

ENVIRONMENT = f"""{CLUSTER}pools:
  cpu: {{kind: cpu, resources: {ROOM}}}
  l4: {{kind: gpu, accelerator: nvidia-l4, count: 2, workers: 2, nodes: 5, price_per_hour: 2, resources: {ROOM}}}
  edge: {{kind: cpu, trains: false, resources: {ROOM}}}
placement: {{default: cpu, train: l4}}
"""
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def trained(metric: float) -> Training:
    epoch = Epoch(
        epoch=1, step=1, learning_rate=0.1, train_loss=1, eval_loss=1, metric=metric, examples_per_second=10, seconds=90
    )
    return training_with(
        steps=3, workers=2, devices=["GPU:0"], history=[epoch], seconds={"import": 1.0, "steps": 89.0}, replicas=4,
        hardware="NVIDIA L4", flops_per_example=1e6,
    )  # fmt: skip


@dataclass
class Server:
    """Runs that end after three polls: preprocess is done at the second. `ends` says how, by the number of a trial.

    peak: how many went on at a time; before: the runs that were made while no examples were there. meet: none ends
    alone before so many are made. terminated: the runs that were; one that ends as ENDLESS goes on until it is.
    """

    root: str
    ends: dict[str, str] = field(default_factory=dict)
    made: list[Any] = field(default_factory=list)
    meet: int = 0
    peak: int = 0
    before: list[str] = field(default_factory=list)
    terminated: list[str] = field(default_factory=list)
    _polls: Counter[str] = field(default_factory=Counter)
    _lock: Any = field(default_factory=threading.RLock)
    host = "http://127.0.0.1:1"

    def upload(self, pipeline: str, version: str, package: str) -> tuple[str, str]:
        return pipeline, version

    def experiment(self) -> str:
        return "e"

    def find_runs(self, name: str) -> list[Any]:
        with self._lock:
            return [self._now(run) for run in reversed(self.made) if run.display_name == name]

    def create_run(self, run: Any) -> Any:
        with self._lock:
            if not any(count > 1 for count in self._polls.values()):
                self.before.append(run.display_name)
            run.run_id, run.created_at, run.state = f"id-{run.display_name}", NOON, "RUNNING"
            self.made.append(run)
            self.peak = max(self.peak, sum(self._now(other).state == "RUNNING" for other in self.made))
            return run

    def run(self, run_id: str) -> Any:
        with self._lock:
            run = next(run for run in self.made if run.run_id == run_id)
            alone = sum(self._now(other).state == "RUNNING" for other in self.made) < 2
            if not (self._polls[run_id] == 2 and alone and len(self.made) < self.meet):
                self._polls[run_id] += 1
            if self._polls[run_id] == 3 and self._end(run) == "SUCCEEDED":
                number = run.display_name.rpartition("-")[2]
                output = storage.join(self.root, f"digits/train/000{number}.{run.display_name}")
                with storage.stage(output, producer="trainyard.train") as folder:
                    trained(0.5 + int(number) / 100).write(folder)
            return self._now(run)

    def terminate(self, run_id: str) -> None:
        self.terminated.append(run_id)

    def _end(self, run: Any) -> str:
        end = self.ends.get(run.display_name.rpartition("-")[2], "SUCCEEDED")
        return end if end != "ENDLESS" else "CANCELED" if run.run_id in self.terminated else "RUNNING"

    def _now(self, run: Any) -> Any:
        polls = self._polls[run.run_id]
        run.state = self._end(run) if polls >= 3 else "RUNNING"
        ended = {"preprocess": "SUCCEEDED" if polls > 1 else "RUNNING"}
        ended |= {"train": run.state} if polls > 1 else {}
        if self.ends.get("why") == "preprocess":
            ended = {"preprocess": run.state}
        run.run_details = kfp.V2beta1RunDetails(
            task_details=[
                kfp.V2beta1PipelineTaskDetail(display_name=name, state=state, start_time=NOON)
                for name, state in ended.items()
            ]
        )
        return run


class Pods(Cluster):
    """The cluster of the server's runs, as far as a sweep looks: a pod that trains, and what its log tells."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def get(self, path: str, *_: Any, **__: Any) -> None:
        return None

    def items(self, kind: str, selector: str = "", *_: Any, **__: Any) -> list[Any]:
        run_id = selector.rpartition("=")[2]
        if kind != "pods" or run_id in self._server.terminated:
            return []
        main = {"name": "main", "state": {"running": {"startedAt": "2026-01-01T12:00:00Z"}}}
        return [
            {
                "metadata": {
                    "name": run_id,
                    "namespace": "n",
                    "uid": run_id,
                    "labels": {"app.kubernetes.io/component": "train"},
                    "creationTimestamp": "2026-01-01T12:00:00Z",
                },
                "spec": {"nodeName": "a", "containers": [{"name": "main", "image": "i"}]},
                "status": {"phase": "Running", "containerStatuses": [main]},
            }
        ]

    def log(self, pod: str, *_: Any, **__: Any) -> str:
        number = int(pod.rpartition("-")[2])
        metric = 0.1 if self._server.ends.get(str(number)) == "ENDLESS" else 0.5 + number / 100
        epochs = [trained(metric).history[0].model_copy(update={"epoch": epoch}) for epoch in (1, 2, 3)]
        events = [json.dumps({"event": "epoch", "of": 4, **epoch.model_dump()}) for epoch in epochs]
        return "\n".join(['{"event": "epoch", "epoch": "somebody else\'s"}', *events, '{"event": "epoch", "ep'])


@pytest.fixture
def environment(tmp_path: Path) -> str:
    path = tmp_path / "yard.yaml"
    path.write_text(ENVIRONMENT)
    return str(path)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_POLL_SECONDS", 0.001)
    monkeypatch.setattr(cluster_trials, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(KubeflowRuns, "cluster", property(lambda _: no_pods()))


def no_pods() -> None:
    raise ConfigurationError("pods may not be read")


def swept(
    environment: str, root: Path, server: Server, values: int = 6, name: str = "night", prune: bool = True
) -> Any:
    target = environments.load(environment).model_copy(update={"storage": str(root)})
    dimensions = [Dimension("model.dropout", values=tuple(number / 10 for number in range(values)))]
    sweep = Sweep("digits", ["train.epochs=4"], [*dimensions], target, prune=prune, max_parallel=2, run=name)
    runs = KubeflowRuns(target)
    runs.server = server  # type: ignore[assignment]
    return cluster_trials.run(sweep, SweepScreen(sweep.count, "accuracy"), 60, runs)


def test_trials_are_runs_of_which_some_go_on_at_a_time_after_the_first_made_the_examples(
    environment: str, tmp_path: Path
) -> None:
    server = Server(str(tmp_path), {"3": "FAILED"}, meet=6)
    result = swept(environment, tmp_path, server)
    assert sorted(run.display_name for run in server.made) == [f"night-{number}" for number in range(1, 7)]
    assert server.peak == 2 and len(server.before) == 1
    states = [trial.state for trial in result.trials]
    assert states.count("complete") == 5 and states[2] == "failed"
    assert result.best.number == 5 and result.best.metric == 0.56 and result.test is None
    # 90 seconds of two nodes of 2 dollars an hour.
    assert result.best.dollars == 0.1 and "dollars of training" in result.page()
    workers = environments.InputWorkers(count=3, pool="l4")
    target = environments.load(environment).model_copy(update={"input_workers": workers})
    assert Sweep("digits", [], [], target).dollars_per_hour == 4 + 3 * 2
    assert storage.read_text(f"{result.folder}/best.yaml")
    assert not (tmp_path / "digits/models").exists()


def test_the_same_name_goes_on_and_sends_nothing_twice(environment: str, tmp_path: Path) -> None:
    server = Server(str(tmp_path))
    result = swept(environment, tmp_path, server)
    trials = [json.loads(trial.model_dump_json()) for trial in result.trials]
    for number in (1, 4):  # as if the command had been ended while they went on
        trials[number] = {"number": number, "values": trials[number]["values"]}
    storage.write_text(f"{result.folder}/trials.json", json.dumps(trials))
    again = swept(environment, tmp_path, server)
    assert again.trials == result.trials and len(server.made) == 6


def test_a_trial_that_is_worse_than_the_median_of_those_before_it_is_ended_and_costs_what_it_ran(
    environment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(str(tmp_path), {"6": "ENDLESS"})
    monkeypatch.setattr(KubeflowRuns, "cluster", property(lambda _: Pods(server)))
    result = swept(environment, tmp_path, server)
    assert server.terminated == ["id-night-6"]
    left = result.trials[5]
    assert (left.state, left.epochs, left.seconds, left.dollars) == ("pruned", [0.1], 90.0, 0.1)
    assert left.why == "worse after epoch 1 than the median of the trials before it"
    assert [trial.state for trial in result.trials[:5]] == ["complete"] * 5
    again = Server(str(tmp_path))
    kept = swept(environment, tmp_path, again)
    assert kept.trials == result.trials and not again.made, "a pruned trial is not sent again"


def test_nothing_is_pruned_where_logs_may_not_be_read_or_nobody_wants_it(
    environment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unread = swept(environment, tmp_path / "unread", Server(str(tmp_path / "unread")))
    assert [trial.state for trial in unread.trials] == ["complete"] * 6
    server = Server(str(tmp_path / "kept"))
    monkeypatch.setattr(KubeflowRuns, "cluster", property(lambda _: Pods(server)))
    monkeypatch.setattr(Pods, "log", lambda *_, **__: pytest.fail("it is looked at for nothing"))
    monkeypatch.setattr(watching, "findings", lambda *_: [])
    kept = swept(environment, tmp_path / "kept", server, prune=False)
    assert [trial.state for trial in kept.trials] == ["complete"] * 6


def test_a_name_that_no_run_can_have_is_refused_before_anything_is_sent(environment: str, tmp_path: Path) -> None:
    server = Server(str(tmp_path))
    with pytest.raises(ConfigurationError, match="at most 63 lower-case letters"):
        swept(environment, tmp_path, server, name="n" * 62)
    assert not server.made and not (tmp_path / "digits").exists()


def test_a_first_run_without_examples_ends_the_sweep(environment: str, tmp_path: Path) -> None:
    server = Server(str(tmp_path), {"1": "FAILED", "2": "FAILED", "why": "preprocess"})
    with pytest.raises(Exception, match="preprocess"):
        swept(environment, tmp_path, server)
    assert len(server.made) == 1


def test_a_sweep_whose_trials_all_fail_says_the_last_reason(environment: str, tmp_path: Path) -> None:
    server = Server(str(tmp_path), dict.fromkeys("12", "FAILED"))
    with pytest.raises(DataError, match="none of the 2 trials was completed; the last: train"):
        swept(environment, tmp_path, server, values=2)


def test_each_package_trains_on_the_pool_of_train_under_a_label(environment: str) -> None:
    options = ["--over", "model.dropout=0.1,0.2,0.3", "--max-parallel", "2", "--name", "night", "--dry-run"]
    shown = CliRunner().invoke(app, ["sweep", "digits", "-e", environment, *options])
    assert shown.exit_code == 0, shown.output
    documents = list(yaml.safe_load_all(shown.stdout))
    command = ["sweep", "digits", "-e", environment, *options, "-o", "json"]
    assert json.loads(CliRunner().invoke(app, command).stdout) == documents
    assert len(documents) == 12  # of each run pipeline, platform, request, and the gang's three objects
    labels = [
        pipeline["root"]["inputDefinitions"]["parameters"]["label"]["defaultValue"] for pipeline in documents[::6]
    ]
    assert labels == ["night-1", "night-2"]
    assert {*documents[0]["deploymentSpec"]["executors"]} == {"exec-preprocess", "exec-train"}
    assert '"workers":2' in documents[0]["root"]["inputDefinitions"]["parameters"]["gang"]["defaultValue"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--max-parallel", "3"], "pool 'l4' has at most 5 nodes, and a trial takes 2. Give 1 to 2"),
        (["--max-parallel", "0"], "max_parallel 0: is not possible"),
        (["--name", "A_"], "is not a name"),
        (["--over", "train.epochss=1,2"], "Did you mean 'epochs'"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_is_sent(
    environment: str, options: list[str], sentence: str
) -> None:
    command = ["sweep", "digits", "-e", environment, "--over", "model.dropout=0.1,0.2", "--dry-run", *options]
    ended = CliRunner().invoke(app, command, env={"COLUMNS": "400"})
    assert ended.exit_code != 0
    assert sentence in (ended.stderr + str(ended.exception))


def test_a_pool_that_cannot_train_is_refused(environment: str) -> None:
    Path(environment).write_text(ENVIRONMENT.replace("train: l4", "train: edge"))
    ended = CliRunner().invoke(app, ["sweep", "digits", "-e", environment, "--over", "model.dropout=0.1,0.2"])
    assert "'edge' cannot train: its pool says trains: false" in (ended.stderr + str(ended.exception))


def test_a_sweep_on_a_volume_that_this_machine_lacks_is_refused(environment: str, tmp_path: Path) -> None:
    missing = tmp_path / "mnt"
    own = yaml.safe_load(ENVIRONMENT) | {
        "storage": f"{missing}/runs",
        "volume": {"claim": "runs", "path": str(missing)},
    }
    Path(environment).write_text(yaml.safe_dump(own))
    ended = CliRunner().invoke(app, ["sweep", "digits", "-e", environment, "--over", "model.dropout=0.1,0.2"])
    assert "is on the volume 'runs', which is not mounted on this machine" in str(ended.exception)
    assert not missing.exists()


def test_this_machine_has_no_runs_to_name_or_show() -> None:
    for options in (["--name", "a"], ["--dry-run"]):
        ended = CliRunner().invoke(app, ["sweep", "digits", "--over", "model.dropout=0.1,0.2", *options])
        assert "of a cluster" in (ended.stderr + str(ended.exception)), options
