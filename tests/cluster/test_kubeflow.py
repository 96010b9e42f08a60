"""The whole way through a real Kubeflow Pipelines: run, submit, follow, show, explain, cancel and schedule.

`make test-kubeflow` runs them; see `real_kubeflow`. A ReadWriteMany volume is made there.
"""

import hashlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from real_kubeflow import (
    ACCOUNT,
    IMAGE,
    MARKS,
    MEMORY,
    QUICK,
    REPORTS,
    RUN,
    RUNS,
    changed,
    document,
    door,
    environment_file,
    kubectl,
    over,
    trainyard,
    until,
)

pytestmark = MARKS


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("kfp")
    with door(folder) as way:
        yield environment_file(folder, way.settings)


@pytest.fixture(scope="module")
def finished(environment: Path) -> str:
    name = f"{RUN}-digits"
    done = trainyard("run", "digits", "-e", str(environment), "--name", name, *QUICK)
    assert done.returncode == 0, done.stderr
    assert "✓ push " in done.stderr and "metric (test split)" in done.stdout
    assert (REPORTS / f"{name}.html").read_text().startswith("<!doctype html>")
    return name


def test_digits_go_from_raw_data_to_a_pushed_model(finished: str, environment: Path) -> None:
    run = document("runs", "show", finished, "-e", str(environment))
    assert (run["state"], run["recipe"], run["environment"]) == ("SUCCEEDED", "digits", "own")
    steps = {step["name"]: step["state"] for step in run["steps"]}
    assert steps == dict.fromkeys(("preprocess", "train", "evaluate", "export", "push"), "done")
    assert all(step["pool"] == "cpu" and step["node"] for step in run["steps"])
    assert not run["cost"]["at_most"] and 0 < run["cost"]["usd"] < 0.5 * len(steps) * run["seconds"] / 3600


def test_a_name_given_twice_is_one_run(finished: str, environment: Path) -> None:
    before = document("runs", "list", "-e", str(environment))
    again = document("submit", "digits", "-e", str(environment), "--name", finished, *QUICK)
    assert again["attached"] and again["run_id"] == before[0]["run_id"]
    assert len(document("runs", "list", "-e", str(environment))) == len(before)
    other = trainyard("submit", "digits", "-e", str(environment), "--name", finished)
    assert other.returncode == 20 and "is of another recipe, environment or code" in other.stderr


def test_a_second_run_shows_the_steps_that_kubeflows_cache_answered(finished: str, environment: Path) -> None:
    name = f"{RUN}-again"
    assert trainyard("run", "digits", "-e", str(environment), "--name", name, *QUICK).returncode == 0
    steps = {step["name"]: step for step in document("runs", "show", name, "-e", str(environment))["steps"]}
    assert {step["state"] for step in steps.values()} == {"done"} and not steps["train"]["pod"]
    assert (steps["train"]["cause"], steps["train"]["cost"]["usd"]) == ("cached", 0)


def remove(folder: str) -> None:
    """Remove a folder of the volume, as a lifecycle rule would."""
    mount = {"name": "runs", "mountPath": "/mnt/runs"}
    container = {"name": "rm", "image": IMAGE, "command": ["rm", "-r", folder], "volumeMounts": [mount]}
    volume = {"name": "runs", "persistentVolumeClaim": {"claimName": "trainyard-runs"}}
    spec = {"restartPolicy": "Never", "containers": [container], "volumes": [volume]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{RUN}-remove"}, "spec": spec}
    kubectl("create", "-f", "-", stdin=json.dumps(pod))
    kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=300s", f"pod/{RUN}-remove")
    assert "deleted" in kubectl("delete", "pod", f"{RUN}-remove")


def pods_of(name: str, environment: Path, *options: str) -> dict[str, bool]:
    """Run the recipe as `name`; return which step had a pod of its own."""
    done = trainyard("run", "digits", "-e", str(environment), "--name", name, *QUICK, *options)
    assert done.returncode == 0, done.stderr
    return {step["name"]: bool(step["pod"]) for step in document("runs", "show", name, "-e", str(environment))["steps"]}


def test_an_output_that_is_gone_is_made_again_though_kubeflow_remembers_it(finished: str, environment: Path) -> None:
    remove(f"/mnt/runs/{RUN}/digits/train")
    ran = pods_of(f"{RUN}-gone", environment)
    assert (ran["train"], ran["export"], ran["push"]) == (True, False, True)


def test_a_step_is_done_again_where_that_is_asked_for(finished: str, environment: Path) -> None:
    ran = pods_of(f"{RUN}-export", environment, "--from", "export")
    assert (ran["train"], ran["export"], ran["push"]) == (False, True, True)


def test_a_model_that_the_gate_refused_is_said_so(finished: str, environment: Path) -> None:
    gate = ["--set", "evaluate.gates=[{metric: accuracy, min: 1.0}]"]
    done = trainyard("run", "digits", "-e", str(environment), "--name", f"{RUN}-low", *QUICK, *gate)
    assert done.returncode == 0 and "push        skipped: the gate refused the model" in done.stderr
    for output in (trainyard(*verb, f"{RUN}-low", "-e", str(environment)).stdout for verb in SHOWN):
        assert "the gate refused the model, so it is not pushed" in output and "has succeeded" not in output


SHOWN = (("runs", "show"), ("explain",))


def test_the_log_of_a_step_is_the_steps_own(finished: str, environment: Path) -> None:
    assert (
        '"done", "step": "preprocess"'
        in trainyard("runs", "logs", finished, "preprocess", "-e", str(environment)).stdout
    )


def test_a_step_that_fails_gives_the_run_its_own_exit_code_and_sentence(environment: Path) -> None:
    name = f"{RUN}-bad"
    bad = ["--set", "data.bundled=null", "--set", "data.path=/mnt/runs/nothing", *QUICK]
    done = trainyard("run", "digits", "-e", str(environment), "--name", name, *bad)
    assert done.returncode == 10, done.stderr
    explanation = trainyard("explain", name, "-e", str(environment)).stdout
    assert explanation.startswith("preprocess ended with exit code 10 (data): ") and "no files found" in explanation


def test_a_step_that_no_node_takes_is_explained_and_ends_at_the_limit(environment: Path) -> None:
    nowhere = changed(environment, placement={"default": "cpu", "preprocess": "none"})
    name = f"{RUN}-pending"
    done = trainyard("run", "digits", "-e", str(nowhere), "--name", name, "--pending-limit", "20", *QUICK)
    assert done.returncode == 40, done.stderr
    assert "no node has a label no, and no=node is asked for" in done.stderr


def test_two_that_submit_the_same_pipeline_at_once_make_it_once(environment: Path) -> None:
    new = changed(environment, variables={"WHEN": RUN}, placement={"default": "none"})
    names = [f"{RUN}-both-{index}" for index in range(2)]
    with ThreadPoolExecutor(2) as two:
        sent = list(two.map(lambda name: document("submit", "digits", "-e", str(new), "--name", name, *QUICK), names))
    assert sent[0]["version"] == sent[1]["version"] and sent[0]["run_id"] != sent[1]["run_id"]
    for name in names:
        assert trainyard("runs", "cancel", name, "-e", str(new)).returncode == 0


def test_two_that_submit_one_name_at_once_make_one_run(environment: Path) -> None:
    nowhere = changed(environment, variables={"WHEN": f"{RUN}-once"}, placement={"default": "none"})
    name = f"{RUN}-once"
    with ThreadPoolExecutor(2) as two:
        submit = ("submit", "digits", "-e", str(nowhere), "--name", name, *QUICK)
        sent = list(two.map(lambda _: document(*submit), range(2)))
    assert sent[0]["run_id"] == sent[1]["run_id"]
    assert [run["name"] for run in document("runs", "list", "-e", str(nowhere))].count(name) == 1
    assert trainyard("runs", "cancel", name, "-e", str(nowhere)).returncode == 0


def test_cancel_leaves_nothing_running(environment: Path) -> None:
    slow = changed(environment, placement={"default": "cpu", "train": "none"})
    name = f"{RUN}-cancel"
    assert trainyard("submit", "digits", "-e", str(slow), "--name", name, *QUICK).returncode == 0
    run_id = document("runs", "show", name, "-e", str(slow))["run_id"]
    with ThreadPoolExecutor(2) as two:
        ended = two.map(lambda _: trainyard("runs", "cancel", name, "-e", str(slow)).returncode, range(2))
    assert list(ended) == [0, 0]  # Kubeflow refuses to end what is ending
    assert trainyard("runs", "cancel", name, "-e", str(slow)).returncode == 0
    assert document("runs", "show", name, "-e", str(slow))["state"] == "CANCELED"
    selector = f"--selector=pipeline/runid={run_id}"
    alive = kubectl("get", "pods", selector, "--field-selector=status.phase=Running", "-o", "name")
    assert alive.strip() in ("", f"No resources found in {RUNS} namespace.")


def test_a_schedule_is_made_changed_and_removed(environment: Path) -> None:
    file = environment.with_name("schedule.yaml")
    schedule = {"name": f"{RUN}-nightly", "recipe": "digits", "environment": environment.name, "cron": "0 3 1 1 *"}
    file.write_text(json.dumps(schedule))
    assert trainyard("schedule", "diff", str(file)).returncode == 20
    assert trainyard("schedule", "apply", str(file)).stdout.startswith("✓ create ")
    assert trainyard("schedule", "diff", str(file)).returncode == 0
    file.write_text(json.dumps(schedule | {"cron": "0 4 1 1 *", "when": {"new_data": True}}))
    verbs = [line.split()[1] for line in trainyard("schedule", "apply", str(file)).stdout.splitlines()]
    assert verbs == ["disable", "create", "delete"]
    (there,) = _schedules(environment, schedule["name"])
    assert (there["enabled"], there["cron"]) == (True, "0 0 4 1 1 *")
    file.write_text(json.dumps(schedule | {"paused": True}))
    assert "(paused: it starts no runs until paused is removed)" in trainyard("schedule", "apply", str(file)).stdout
    (there,) = _schedules(environment, schedule["name"])
    assert not there["enabled"] and trainyard("schedule", "diff", str(file)).returncode == 0
    assert trainyard("schedule", "remove", str(file)).returncode == 0
    assert _schedules(environment, schedule["name"]) == []


def _schedules(environment: Path, prefix: str) -> list[Any]:
    there = document("schedule", "list", "-e", str(environment))
    return [schedule for schedule in there if schedule["name"].startswith(prefix)]


def test_a_run_ends_at_its_deadline_and_is_explained(finished: str, environment: Path) -> None:
    late = changed(environment, deadline_seconds=120)  # training begins before it: the examples are there
    long = ["--set", "train.epochs=5000", *QUICK[2:]]
    done = trainyard("run", "digits", "-e", str(late), "--name", f"{RUN}-late", *long)
    assert done.returncode == 40, done.stderr
    for said in (done.stderr, trainyard("explain", f"{RUN}-late", "-e", str(late)).stdout):
        assert "took more than the 120 s that a run may (unfinished: train)" in said


def test_a_schedule_fires_and_a_run_without_new_data_ends_at_its_check(finished: str, environment: Path) -> None:
    file = environment.with_name("every-minute.yaml")
    quick = {"set": QUICK[1::2], "when": {"new_data": True}}
    schedule = {"name": f"{RUN}-minute", "recipe": "digits", "environment": environment.name, "cron": "* * * * *"}
    file.write_text(json.dumps(schedule | quick))
    assert trainyard("schedule", "apply", str(file)).returncode == 0
    try:
        deadline = time.monotonic() + 300
        while not (ended := [run for run in _runs(environment, f"{RUN}-minute") if run["state"] == "SUCCEEDED"]):
            assert time.monotonic() < deadline
            time.sleep(5)
        run = document("runs", "show", ended[0]["run_id"], "-e", str(environment))
        log = trainyard("runs", "logs", ended[0]["run_id"], "check", "-e", str(environment)).stdout
    finally:
        assert trainyard("schedule", "remove", str(file)).returncode == 0  # with the pods of its runs
    assert {step["name"] for step in run["steps"]} == {"check"}
    assert '"due": false, "why": "version ' in log and ' stands: no condition of the schedule holds"' in log


def _runs(environment: Path, prefix: str) -> list[Any]:
    return [run for run in document("runs", "list", "-e", str(environment)) if run["name"].startswith(prefix)]


def test_doctor_finds_the_server_and_its_retry_policy(environment: Path) -> None:
    verdicts = {
        check["name"]: check["verdict"] for check in document("doctor", "digits", "-e", str(environment))["checks"]
    }
    assert verdicts["kubeflow"] == verdicts["recipe"] == "good"
    assert "retry policy" in verdicts


def send(name: str, file: Path, bound: str = "") -> None:
    """Run somebody else's pipeline, whose only step fails at its first attempt and takes 45 s at its second.

    bound: of a retryPolicy of its author's own, '' where the environment has the retries.
    """
    from google.protobuf import json_format
    from kfp import dsl

    from trainyard.spec import environment as environments
    from trainyard_control.compiler import placement
    from trainyard_control.compiler.compilation import Submission, metadata_for, to_yaml
    from trainyard_control.kubeflow.kubeflow_api import KubeflowServer, submit

    @dsl.component(base_image=IMAGE, install_kfp_package=False)
    def fails_once():  # type: ignore[no-untyped-def]
        import os
        import sys
        import time

        if os.environ["KFP_RETRY_INDEX"] == "0":
            sys.exit(30)
        time.sleep(45)

    @dsl.pipeline(name="own")
    def own(about: str = ""):  # type: ignore[no-untyped-def]
        task = fails_once().set_caching_options(False)
        if bound:
            task.set_retry(1, "5s", 2.0, bound)

    target = environments.load(str(file))
    placed = placement.place(json_format.MessageToDict(own.pipeline_spec), target)
    package = to_yaml(placed.documents)
    version = f"own-{hashlib.sha256(package.encode()).hexdigest()[:12]}"
    submission = Submission("trainyard-own", version, package, name, target, metadata_for("own", target))
    submit(submission, KubeflowServer(target))


def test_a_step_that_fails_once_is_done_again_whatever_its_attempts_take_together(environment: Path) -> None:
    patient = changed(environment, retries={"default": 1})
    send(f"{RUN}-again-once", patient)
    run = until(f"{RUN}-again-once", patient, over)
    (step,) = run["steps"]
    assert (run["state"], step["state"], step["attempts"]) == ("SUCCEEDED", "done", 2)


def test_a_retry_that_argo_ends_at_its_authors_bound_says_so(environment: Path) -> None:
    send(f"{RUN}-bounded", environment, bound="40s")
    assert until(f"{RUN}-bounded", environment, over)["state"] == "FAILED"
    explanation = trainyard("explain", f"{RUN}-bounded", "-e", str(environment)).stdout
    assert "fails-once was ended by Argo at " in explanation and "backoffMaxDuration" in explanation


def test_a_run_that_is_cancelled_between_two_attempts_is_cancelled(environment: Path) -> None:
    patient = changed(environment, retries={"default": 1})
    name = f"{RUN}-cancel-retry"
    send(name, patient)
    run = until(name, patient, lambda run: "It is retried" in run["reason"])
    assert not over(run)
    assert trainyard("runs", "cancel", name, "-e", str(patient)).returncode == 0
    run = document("runs", "show", name, "-e", str(patient))
    assert (run["state"], [step["state"] for step in run["steps"]]) == ("CANCELED", ["failed"])
    assert {run["name"]: run["state"] for run in document("runs", "list", "-e", str(patient))}[name] == "CANCELED"


def test_a_gang_outlives_the_pod_of_its_launcher(environment: Path) -> None:
    kubectl("apply", "-f", str(Path(__file__).parents[2] / "k8s/base/gang-rbac.yaml"))
    account = f"--serviceaccount={RUNS}:{ACCOUNT}"
    kubectl("create", "rolebinding", "trainyard-gang-of-runs", "--role=trainyard-gang", account)
    gang = {"kind": "cpu", "workers": 2, "resources": MEMORY}
    pools = json.loads(environment.read_text())["pools"] | {"gang": gang}
    pair = changed(
        environment, pools=pools, placement={"default": "cpu", "train": "gang"}, retries={"default": 0, "train": 2}
    )
    name = f"{RUN}-gang"
    long = ["--set", "train.epochs=100", *QUICK[2:]]
    assert trainyard("submit", "digits", "-e", str(pair), "--name", name, *long).returncode == 0

    def trains(run: Any) -> bool:
        states = {step["name"]: step["state"] for step in run["steps"]}
        return states.get("train worker 0") == states.get("train worker 1") == states.get("train") == "running"

    run = until(name, pair, trains)
    launcher = next(step["pod"] for step in run["steps"] if step["name"] == "train")
    assert "deleted" in kubectl("delete", "pod", launcher, "--wait=false")
    run = until(name, pair, over, 900)
    assert run["state"] == "SUCCEEDED", run["reason"]
    successor = next(step["pod"] for step in run["steps"] if step["name"] == "train")
    assert successor != launcher and '"how": "attached"' in kubectl("logs", successor, "-c", "main")
