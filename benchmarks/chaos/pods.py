"""A gang in pods of the Kubernetes cluster that KUBECONFIG names, and its faults: pods, processes, nodes, API server.

The train step runs as a pod of the compiled pipeline, and is started again when it ends with an error, as Kubeflow
Pipelines does. TRAINYARD_IMAGE names the image of this code that every node has; see tests/cluster.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from benchmarks.chaos.faults import Undo
from benchmarks.chaos.trials import TRIES, Injected, Outcome

sys.path.append(str(Path(__file__).parents[2] / "tests" / "cluster"))

from namespaces import Namespace, until
from survival import assert_same
from train_step import PREPARE, SECONDS, Desk, Run, signal_training_process

NAME = "gang of pods"
LEAVING_SECONDS = 30
CODES = {30, 137, 143}
"""Exit codes of the step that a fault may cause: transient, and an end by SIGKILL or SIGTERM."""


class Pods:
    """A namespace with the examples of all trials, and the training that nothing happens to.

    node_command: stops and starts a node by `NODE_COMMAND stop NAME` and `… start NAME`, such as `docker` for kind.
    """

    def __init__(self, stack: ExitStack, node_command: str) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.namespace = Namespace(f"chaos-{uuid.uuid4().hex[:8]}", folder)
        self.node_command = node_command.split()
        stack.callback(self.namespace.kubectl, "delete", "namespace", self.namespace.name, "--wait=false")
        self.namespace.create()
        self.desk = Desk(self.namespace)
        self.desk.start().python(PREPARE)
        self.undisturbed = Run(self.namespace, "undisturbed")
        start = time.monotonic()
        self.undisturbed.start().ends()
        self.seconds = time.monotonic() - start
        self.kinds = {kind: make for kind, make in KINDS.items() if self.node_command or kind != "node stopped"}

    def trial(self, seed: int) -> Outcome:
        """Disturb a training by the faults of `seed`, and start its pod again until it succeeds."""
        random_ = random.Random(seed)
        run = Run(self.namespace, f"chaos-{seed}")
        due = [(random_.random(), random_.choice(list(self.kinds))) for _ in range(random_.choice((1, 2, 3)))]
        outcome = Outcome(seed, NAME, [{"kind": kind, "share": share} for share, kind in sorted(due)])
        start = time.monotonic()
        left = [(start + share * self.seconds, kind) for share, kind in sorted(due)]
        while len(outcome.codes) < TRIES and (not outcome.codes or outcome.codes[-1]):
            outcome.codes.append(self._attempt(run.start(), left, outcome, random_))
            outcome.messages.append(" ".join(run.log[-400:].split()))
        outcome.seconds, outcome.undisturbed_seconds = time.monotonic() - start, self.seconds
        try:
            until(lambda: not self.namespace.left_of(f"ty-{run.name}-"), LEAVING_SECONDS)
            assert_same(self.desk, run, self.undisturbed)
        except AssertionError as error:
            outcome.wrong.append(str(error)[:400])
        return outcome

    def _attempt(self, run: Run, left: list[tuple[float, str]], outcome: Outcome, random_: random.Random) -> int:
        """Make the faults that are due until the pod of the step ends; returns its exit code, 137 if it is gone."""
        made, end = len(outcome.injected), time.monotonic() + SECONDS
        undo: list[tuple[float, Undo]] = []
        try:
            while (phase := run.namespace.phase(run.pod)) in ("Pending", "Running"):
                if time.monotonic() > end:
                    outcome.faulty.append(f"attempt {run.attempt}: hung for {SECONDS} s")
                    run.namespace.kubectl("delete", "pod", run.pod, "--grace-period=0", "--force")
                if left and time.monotonic() >= left[0][0]:
                    kind = left[0][1]
                    with suppress(LookupError, ValueError, AssertionError):  # its moment is still to come
                        detail, over = KINDS[kind](self, run, random_)
                        left.pop(0)
                        outcome.injected.append(Injected(kind, "train", detail, run.attempt))
                        undo.append((time.monotonic() + random_.uniform(3, 20), over))
                for item in [item for item in undo if item[0] < time.monotonic()]:
                    undo.remove(item)
                    item[1]()
                time.sleep(0.2)
        finally:
            for _, over in undo:
                over()
        path = "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"
        code = int(run.namespace.kubectl("get", "pod", run.pod, "-o", path) or 137) if phase else 137
        now = outcome.injected[made:]
        for fault in now:
            fault.survived = code == 0
        if code and (not now or code not in CODES):
            outcome.faulty.append(f"attempt {run.attempt}: exit code {code}")
        return code


def _delete(whom: str, pods: Pods, run: Run, random_: random.Random) -> tuple[str, Undo]:
    pod = run.pod if whom == "launcher" else run.worker(random_.randrange(2))
    how = random_.choice((["--grace-period=0", "--force"], ["--grace-period=10", "--wait=false"]))
    pods.namespace.kubectl("delete", "pod", pod, *how)
    return f"{pod} {' '.join(how)}", lambda: None


def _signal(number: int, pods: Pods, run: Run, random_: random.Random) -> tuple[str, Undo]:
    pod = run.worker(random_.randrange(2))
    signal_training_process(pods.namespace, pod, number)

    def go_on() -> None:
        with suppress(AssertionError):  # the pod may be gone
            signal_training_process(pods.namespace, pod, signal.SIGCONT)

    return pod, go_on if number == signal.SIGSTOP else lambda: None


def _nodes(run: Run) -> dict[str, str]:
    """Return the node by pod, of the pods that have one."""
    pods = run.namespace.get("pods")
    return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]}


def _drain(pods: Pods, run: Run, random_: random.Random) -> tuple[str, Undo]:
    name = _nodes(run)[run.worker(random_.randrange(2))]
    selector = f"--pod-selector=batch.kubernetes.io/job-name={run.gang}"
    pods.namespace.kubectl("drain", name, selector, "--delete-emptydir-data", "--force", "--timeout=60s", check=False)
    return name, partial(pods.namespace.kubectl, "uncordon", name)


def _stop_node(pods: Pods, run: Run, random_: random.Random) -> tuple[str, Undo]:
    """Stop the node of a worker; that of the desk has to stay."""
    nodes = _nodes(run)
    name = nodes[run.worker(random_.randrange(2))]
    if name == nodes["desk"]:
        raise LookupError("another node is needed")
    subprocess.run([*pods.node_command, "stop", name], check=True, capture_output=True)
    return name, partial(subprocess.run, [*pods.node_command, "start", name], check=True, capture_output=True)


def _stop_api_server(_pods: Pods, _run: Run, random_: random.Random) -> tuple[str, Undo]:
    """Stop the API server for some seconds and wait, for every request would wait too."""
    servers = [int(pid) for pid in subprocess.check_output(["pgrep", "-f", "kube-apiserver --"], text=True).split()]
    seconds = random_.uniform(3, 20)
    try:
        for pid in servers:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
    finally:
        for pid in servers:
            os.kill(pid, signal.SIGCONT)
    return f"for {seconds:.0f} s", lambda: None


KINDS: dict[str, Callable[[Pods, Run, random.Random], tuple[str, Undo]]] = {
    "pod of a worker deleted": partial(_delete, "worker"),
    "pod of the step deleted": partial(_delete, "launcher"),
    "training process in a pod killed": partial(_signal, signal.SIGKILL),
    "training process in a pod stopped, continued later": partial(_signal, signal.SIGSTOP),
    "node drained": _drain,
    "node stopped": _stop_node,
    "API server stands still": _stop_api_server,
}
