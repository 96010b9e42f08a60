"""Launches a gang as pods from one step's process, watches and reports it, and removes it at the end."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from kubernetes import client
from urllib3.exceptions import HTTPError

from trainyard import events
from trainyard.contract.gang import Attempt
from trainyard.errors import ConfigurationError, InfrastructureError, TransientError
from trainyard.kubernetes import kueue, labels
from trainyard.kubernetes.client import JOBS, Cluster, Manifest
from trainyard.kubernetes.diagnosis import CONTAINER, conditions, owner_uids
from trainyard.process.signals import Terminated
from trainyard.report import notify
from trainyard.steps.train.gang.pods import outcome
from trainyard.steps.train.gang.pods.job import Gang, dependents, input_job, owner_reference, worker_job
from trainyard.steps.train.gang.pods.outcome import Worker

_POLL_SECONDS = 0.5  # chosen: the API server answers lists of a few pods from memory
_LONGEST_POLL_SECONDS = 5.0  # chosen: polls take a quarter of the time at most; a list of 1,024 pods has 5 MB
_BROKEN_SECONDS = 60  # chosen: a registry recovers from short outages by then; at most 2 minutes
_TOLD_SECONDS = 600  # chosen: a node pool that can grow has grown by then
_WHY_SECONDS = 10  # chosen: between questions why a queue does not admit the gang
_NO_ANSWER = "the API server does not answer"
# Its pods are deleted by force. Source: https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/.
_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_GONE_SECONDS = 60  # chosen: time beyond the grace period for the pods to end


class PassedOver(TransientError):
    """The nodes of a pool do not come, or go too often, and the training has another pool."""


def launch(
    gang: Gang,
    cluster: Cluster,
    launcher: str = "",
    on_start: Callable[[float], None] | None = None,
    attempt: Attempt | None = None,
) -> None:
    """Run the gang until every worker has succeeded, then remove its Job, pods, Service and NetworkPolicy.

    launcher: the pod of this process, '' outside the cluster. A Job that an earlier launcher of the same run and step
    left is reused. On an error, and if this process gets SIGTERM, the gang is stopped and removed. It stays for a
    successor if only the launcher's pod goes while its run continues, and if the API server does not answer; without a
    successor it ends by itself.

    on_start: called once with the seconds from the Job's creation to worker 0's start, even if an earlier launcher
    created it. attempt: what is noted of the gang while it runs.

    Raises the error that ended the gang, by its exit code; `PassedOver` if another pool is to be tried;
    `TransientError` if a worker did not run for `gang.pool.start_deadline_seconds`, `InfrastructureError` if it never
    can.
    """
    launcher_pod = cluster.get(cluster.path("pods", launcher)) if launcher else None
    log, attempt = WorkerLog(cluster), attempt or Attempt()
    detached, job = "", None
    try:
        job, how = _create_or_attach(gang, cluster, _owner(launcher_pod) if launcher_pod else None)
        _complete(gang, cluster, job, how)  # if it fails, no pod stays without its NetworkPolicy
        watch = _Watch(gang, cluster, on_start, attempt)
        asked = time.monotonic()
        while not watch.finished(job["metadata"]["uid"], log):
            time.sleep(min(max(_POLL_SECONDS, 3 * (time.monotonic() - asked)), _LONGEST_POLL_SECONDS))
            asked = time.monotonic()
    except TransientError:
        detached = _NO_ANSWER if cluster.unreachable else ""
        raise
    except Terminated:
        detached = _why_detached(cluster, launcher_pod) if launcher_pod else ""
        job = job or _job(gang, cluster)  # it may have been created just before the signal came
        raise
    finally:
        if detached:
            events.emit("gang_detached", job=gang.name, reason=detached)
        elif job is not None:
            _remove(gang, cluster, job["metadata"]["uid"])
            if gang.input:
                clear(gang.input, cluster)
            attempt.observe(0, False, set())
        log.close()


def clear(gang: Gang, cluster: Cluster) -> None:
    """Remove the Job of a gang whose launcher was killed at its end, with its pods and dependents."""
    for left in filter(None, (gang, gang.input)):
        if job := _job(left, cluster):
            _remove(left, cluster, job["metadata"]["uid"])


class _Watch:
    """Polls the gang, reports changes, and raises errors."""

    def __init__(
        self, gang: Gang, cluster: Cluster, on_start: Callable[[float], None] | None, attempt: Attempt
    ) -> None:
        self._gang = gang
        self._cluster = cluster
        self._on_start = on_start
        self._attempt = attempt
        self._input = _Watch(gang.input, cluster, None, Attempt()) if gang.input else None
        self._start = time.monotonic()
        self._missing_since: dict[int, float] = {}
        self._unplaced_since: dict[int, float] = {}
        self._told = False
        self._why, self._why_asked = "", -math.inf
        self._reported: dict[str, object] = {}

    def finished(self, uid: str, log: WorkerLog) -> bool:
        """Return True if the gang is done. Raises as `launch`."""
        job = _job(self._gang, self._cluster)
        if job is None or job["metadata"]["uid"] != uid:
            raise TransientError(f"{self._gang.name}: somebody else deleted the Job. Run the same command again.")
        pods = self._cluster.items("pods", f"{labels.JOB}={self._gang.name}")
        workers = outcome.workers(self._gang.workers, pods)
        if workers[0].state in ("running", "done", "failed"):
            log.follow(workers[0].pod)
        if self._on_start and (waited := outcome.queue_seconds(job, pods)) is not None:
            self._on_start(waited)
            self._on_start = None
        gone = [worker for worker in workers if worker.state not in ("running", "done")]
        running = sum(worker.state == "running" for worker in workers)
        self._attempt.observe(running, bool(self._needed(gone)), outcome.preempted(pods))
        if self._check_end(job, workers, pods):
            return True
        self._check_preemptions()
        if self._gang.is_elastic and not self._gang.pool.queue:  # Kueue stops a Job of another size than it admitted
            self._resize(job, workers)
        if self._input and not outcome.suspended(job):
            self._input.keep_input(uid)
        return False

    def keep_input(self, uid: str) -> None:
        """Create or check the input workers of the training Job with this `uid`. Raises as `launch`."""
        job = _job(self._gang, self._cluster)
        if job is None:
            _create_input(self._gang, self._cluster, uid)
        elif uid not in owner_uids(job):
            # It belongs to an earlier Job of the training and is about to be deleted with it.
            self._cluster.delete(self._cluster.path("jobs", self._gang.name, JOBS), job["metadata"]["uid"])
        else:
            pods = self._cluster.items("pods", f"{labels.JOB}={self._gang.name}")
            self._check_end(job, outcome.workers(self._gang.workers, pods), pods)

    def _check_end(self, job: Manifest, workers: list[Worker], pods: list[Manifest]) -> bool:
        self._report(job, workers)
        if outcome.complete(job) or (self._gang.is_elastic and outcome.trained(workers)):
            return True
        if error := outcome.failure(self._gang, job, pods):
            raise error
        self._check_deadlines(job, workers)
        return False

    def _report(self, job: Manifest, workers: list[Worker]) -> None:
        missing = next((worker for worker in workers if worker.state not in ("running", "done")), None)
        state: dict[str, object] = {
            "job": self._gang.name,
            "workers": len(workers),
            "running": sum(worker.state == "running" for worker in workers),
            "done": sum(worker.state == "done" for worker in workers),
        }
        if outcome.suspended(job):
            state["waiting"] = self._admission(job)
        else:
            self._why_asked = -math.inf
            if missing:
                state["waiting"] = outcome.missing(self._gang, missing)
        if state != self._reported:
            events.emit("gang", **state, seconds=round(time.monotonic() - self._start, 1))
            self._reported = state

    def _admission(self, job: Manifest) -> str:
        """Return the words for a suspended Job, with Kueue's reason."""
        if time.monotonic() > self._why_asked + _WHY_SECONDS:
            self._why_asked = time.monotonic()
            try:
                self._why = kueue.why_waiting(self._cluster, job["metadata"]["uid"])
            except InfrastructureError:  # a Role of an earlier version
                self._why = "Kueue's reason may not be read; apply k8s/base/gang-rbac.yaml again"
        return f"waiting to be admitted by queue '{self._gang.pool.queue}'" + (f": {self._why}" if self._why else "")

    def _resize(self, job: Manifest, workers: list[Worker]) -> None:
        """Give a worker 0 without a node that of the last worker: without worker 0 no other trains.

        A Job with fewer completions deletes the pods of the highest indexes. It gets all of them again once worker 0
        runs. Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#elastic-indexed-jobs.
        """
        gang, size = self._gang, job["spec"]["completions"]
        running = [worker.index for worker in workers if worker.state == "running"]
        starved = not workers[0].placed and self._missing_seconds(0) > gang.pool.replace_seconds
        wanted = size
        if 0 in running:
            wanted = gang.workers
        elif starved and gang.min_workers <= len(running) < size:
            wanted = len(running)
        if wanted != size:
            spec = {"completions": wanted, "parallelism": wanted}
            body = {"metadata": {"uid": job["metadata"]["uid"]}, "spec": spec}
            self._cluster.patch(self._cluster.path("jobs", gang.name, JOBS), body)
            events.emit("gang_resized", job=gang.name, workers=wanted, of=gang.workers)
            # Worker 0 gets its whole time for the node that becomes free, before another gives up its own.
            self._missing_since.pop(0, None)
            self._unplaced_since.pop(0, None)

    def _missing_seconds(self, worker: int) -> float:
        now = time.monotonic()
        return now - self._missing_since.get(worker, now)

    def _check_deadlines(self, job: Manifest, workers: list[Worker]) -> None:
        """Raise if a worker is missing for too long; waiting for a queue's admission does not count.

        An elastic gang misses only worker 0, and those that make it too small.
        """
        now = time.monotonic()
        self._check_pending(job, workers, now)
        admitted = [] if outcome.suspended(job) else workers
        gone = [worker for worker in admitted if worker.state not in ("running", "done")]
        self._missing_since = {worker.index: self._missing_since.get(worker.index, now) for worker in gone}
        for worker in self._needed(gone):
            if self._gang.pending_seconds is not None and not worker.placed:
                continue
            waited = now - self._missing_since[worker.index]
            if worker.broken and waited > _BROKEN_SECONDS:
                raise InfrastructureError(
                    f"{self._gang.name}: {outcome.missing(self._gang, worker)} for {round(waited)} s. "
                    "Correct the image in the environment, or what the pod needs to start it."
                )
            if waited > self._gang.pool.start_deadline_seconds:
                remedy = "Free or add nodes of the pool, or correct its nodeSelector, tolerations and resources"
                if worker.lost_node:
                    remedy = _free(worker.lost_node)
                raise TransientError(
                    f"{self._gang.name}: {outcome.missing(self._gang, self._with_reason(worker))} for "
                    f"{round(waited)} s. {remedy}; then run the same command again."
                )

    def _needed(self, gone: list[Worker]) -> list[Worker]:
        """Return the workers of `gone` without which the gang cannot train."""
        enough = self._gang.is_elastic and self._gang.workers - len(gone) >= self._gang.min_workers
        return [worker for worker in gone if not (enough and worker.index)]

    def _check_pending(self, job: Manifest, workers: list[Worker], now: float) -> None:
        """Tell of a worker without a node, or a Job without admission, and raise `PassedOver` if a pool is left."""
        unplaced = [worker for worker in workers if not worker.placed]
        self._unplaced_since = {worker.index: self._unplaced_since.get(worker.index, now) for worker in unplaced}
        allowed = self._gang.pending_seconds
        for worker in self._needed(unplaced):
            waited = now - self._unplaced_since[worker.index]
            is_news, is_over = waited > _TOLD_SECONDS and not self._told, allowed is not None and waited > allowed
            if not (is_news or is_over):
                continue
            missing = outcome.missing(self._gang, self._with_reason(worker))
            why = self._admission(job) if outcome.suspended(job) else missing
            if is_news:
                self._told = True
                text = f"Run {self._gang.run}, {self._gang.step}: {why} for {round(waited)} s."
                notify.send(notify.from_variables(), notify.Message("waits", text, {"run": self._gang.run}))
            if is_over:
                raise PassedOver(f"{why} for {round(waited)} s")

    def _check_preemptions(self) -> None:
        """Raise if more workers were preempted than the pool's budget allows."""
        gang, preempted = self._gang, len(self._attempt.preempted)
        if gang.preemptions is None or preempted <= gang.preemptions * gang.workers:
            return
        each = "" if gang.workers == 1 else f" for each of {gang.workers} workers"
        why = f"preempted {preempted} times, and {gang.preemptions}{each} are allowed"
        if gang.pending_seconds is not None:
            raise PassedOver(why)
        raise InfrastructureError(
            f"{gang.name}: {why}. Raise preemptions of the pool, or name a pool without Spot nodes after it in "
            f"placement.{gang.step}; then run the same command again{gang.resumes}."
        )

    def _with_reason(self, worker: Worker) -> Worker:
        """Return `worker` with the reason from the Job's warnings if it has no pod."""
        if worker.state != "absent":
            return worker
        fields = f"involvedObject.kind=Job,involvedObject.name={self._gang.name},type=Warning"
        warnings = self._cluster.items("events", fields=fields)
        last = max(warnings, key=lambda event: str(event.get("lastTimestamp")), default=None)
        return Worker(worker.index, worker.state, reason=f"no pod: {last.get('message')}") if last else worker


def _create_or_attach(gang: Gang, cluster: Cluster, owner: Manifest | None) -> tuple[Manifest, str]:
    """Return the gang's only Job, and if it was created or attached; waits for a Job under deletion."""
    planned = worker_job(gang, owner)
    deadline = time.monotonic() + gang.pool.grace_seconds + _GONE_SECONDS
    while True:
        job = cluster.create("jobs", planned)
        how = "created" if job else "attached"
        job = job or _job(gang, cluster)
        if job is not None and not job["metadata"].get("deletionTimestamp"):
            break
        if time.monotonic() > deadline:
            pods = outcome.workers(gang.workers, cluster.items("pods", f"{labels.JOB}={gang.name}"))
            remedy = next((f"{_free(pod.lost_node)}; then run" for pod in pods if pod.lost_node), "Run")
            raise TransientError(
                f"{gang.name}: an earlier gang of this run does not end. {remedy} the same command again."
            )
        time.sleep(_POLL_SECONDS)
    if job["metadata"].get("annotations", {}).get(labels.PLAN) != planned["metadata"]["annotations"][labels.PLAN]:
        raise ConfigurationError(
            f"{gang.name}: a Job of this run and step exists that was made by another plan. "
            f"Delete it (kubectl delete job {gang.name}) or give the run another name."
        )
    return job, how


def _free(node: str) -> str:
    """Return the commands that free the pods of a node that lost power."""
    return f"Delete node {node}, or run kubectl taint nodes {node} {_OUT_OF_SERVICE}=nodeshutdown:NoExecute"


def _create_input(gang: Gang, cluster: Cluster, training: str) -> None:
    """Create the Job of the input workers `gang` for the `training` Job (its uid)."""
    if job := cluster.create("jobs", input_job(gang, training)):
        _complete(gang, cluster, job, "created")


def _complete(gang: Gang, cluster: Cluster, job: Manifest, how: str) -> None:
    """Create what the Job owns if it is missing."""
    for kind, manifest in dependents(gang, job["metadata"]["uid"]).items():
        cluster.create(kind, manifest)
    events.emit("launched", job=gang.name, how=how, workers=gang.workers)


def _job(gang: Gang, cluster: Cluster) -> Manifest | None:
    return cluster.get(cluster.path("jobs", gang.name, JOBS))


def _remove(gang: Gang, cluster: Cluster, uid: str) -> None:
    """Delete the Job with its pods and dependents; report if they remain."""
    start = time.monotonic()
    cluster.delete(cluster.path("jobs", gang.name, JOBS), uid)
    while (job := _job(gang, cluster)) is not None and job["metadata"]["uid"] == uid:
        if time.monotonic() - start > gang.pool.grace_seconds + _GONE_SECONDS:
            events.emit("gang_remains", job=gang.name, reason="its pods do not end; they go with their nodes")
            return
        time.sleep(_POLL_SECONDS)
    events.emit("gang_removed", job=gang.name, seconds=round(time.monotonic() - start, 1))


def _owner(pod: Manifest) -> Manifest:
    """Return the owner of the launcher's pod (a KFP run's Workflow), which outlives a restart, otherwise the pod."""
    for owner in pod["metadata"].get("ownerReferences") or []:
        return owner_reference(owner["apiVersion"], owner["kind"], owner["name"], owner["uid"])
    return owner_reference("v1", "Pod", pod["metadata"]["name"], pod["metadata"]["uid"])


def _why_detached(cluster: Cluster, launcher_pod: Manifest) -> str:
    """Return the reason why the gang outlives this launcher (in `launcher_pod`, which got SIGTERM); '' if it does not.

    It does if the pod goes while its run continues: on a drain, a preemption or a deletion. Cancelling an Argo run ends
    the processes in its pods and deletes none. A pod deleted by force, as with a lost node, is gone at once; if its run
    is deleted too, so is the gang, by its ownerReference.
    """
    try:
        pod = cluster.get(cluster.path("pods", launcher_pod["metadata"]["name"]))
    except TransientError:
        return _NO_ANSWER
    moved = "the launcher's pod goes, its run stays"
    if (
        pod is None
        or pod["metadata"]["uid"] != launcher_pod["metadata"]["uid"]
        or "DisruptionTarget" in conditions(pod)
    ):
        return moved
    metadata = pod["metadata"]
    return moved if metadata.get("deletionTimestamp") and metadata.get("ownerReferences") else ""


_AGAIN_SECONDS = 1.0  # chosen: pause before a broken log stream is opened again
_LAST_LINES_SECONDS = 5.0  # chosen: wait for the last lines at the end of a run


class WorkerLog:
    """Copies the log of the followed pod to stderr, each line once, even if the stream breaks."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pod = ""
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def follow(self, pod: str) -> None:
        """Follow `pod` from its first line, unless it is followed already."""
        if pod != self._pod:
            self.close()
            self._pod, self._ended = pod, threading.Event()
            self._thread = threading.Thread(target=self._copy, args=(pod, self._ended), daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Wait a few seconds for the last lines of a pod that has ended."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_LAST_LINES_SECONDS)

    def _copy(self, pod: str, ended: threading.Event) -> None:
        last, opened = "", time.monotonic()
        while True:
            since = round(time.monotonic() - opened) + 2 if last else None
            opened = time.monotonic()
            try:
                for stamp, line in _lines(self._cluster.follow_log(pod, CONTAINER, since)):
                    if stamp > last:
                        last, opened = stamp, time.monotonic()
                        events.write(line)
            except client.ApiException as error:
                if error.status == 404:
                    return
            except (HTTPError, OSError):
                pass
            except Exception as error:  # noqa: BLE001 - whatever it is: the log continues
                with suppress(Exception):
                    events.warn(f"{pod}: its log stream broke ({error}); it is opened again.")
            if ended.wait(_AGAIN_SECONDS):
                return


def _lines(pieces: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    """Yield (time, text) of each complete line. The kubelet's times have equal width and compare as text."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            stamp, _, text = line.decode(errors="replace").partition(" ")
            yield stamp, text
