"""The Kubernetes objects of a gang: an Indexed Job of equal workers, a Service and a NetworkPolicy.

Input workers are a separate gang, owned by the training's Job. All objects are pure functions of a `Gang`, so they
can be tested without a cluster.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, replace

from trainyard.errors import ExitCode
from trainyard.kubernetes import labels
from trainyard.kubernetes.client import Manifest
from trainyard.kubernetes.diagnosis import CONTAINER
from trainyard.kubernetes.pod_spec import pod_spec, variables
from trainyard.spec.environment import CaBundle, SecretKey, Volume
from trainyard.spec.hardware.catalog import Platform
from trainyard.spec.hardware.pools import Pool, placement
from trainyard.steps.train.peers import liveness, settings

PORT = 2222  # a worker's barrier; TensorFlow's gRPC listens on the next one
_SLICE_PORT = 8471  # the runtimes of a TPU slice's hosts
BACKOFF_LIMIT = 3  # chosen, for each worker: a gang-wide failure ends a pod of every worker
_PROBE_SECONDS, _SILENT_PROBES = 10, 3  # chosen: longer than the gang waits for a heartbeat; a busy pod answers
KEEP_SECONDS = 3600  # chosen: how long a finished Job waits for a launcher that was itself restarted

# Permanent faults. A code in neither tuple, such as that of a crash, counts like COUNTED.
FINAL = (
    *(ExitCode.USAGE, ExitCode.DATA, ExitCode.CONFIGURATION, ExitCode.INFRASTRUCTURE, ExitCode.BUG),
    ExitCode.INTERRUPTED,
)
COUNTED = (ExitCode.TRANSIENT,)

_SLUG = 36  # longest part of the run's name in a Job's: pod names, <job>-<index>, have at most 63 characters


@dataclass(frozen=True, kw_only=True)
class Gang:
    """One gang: `workers` pods that run `command` in `image`, one on each node of `pool`.

    step: what they execute; one pod if it does not train. pool_name: '' if its attempts are not noted.
    min_workers: it trains with so many too, if the others do not come; 0 if it needs all.
    pending_seconds: how long a worker may have no node before another pool is tried; None on the last pool.
    preemptions: how many for each worker; None without a limit.
    input: the gang of its input workers, None without any. feeds: the name of the gang that these input workers serve,
    '' for a training.
    """

    run: str
    image: str
    command: tuple[str, ...]
    workers: int
    pool: Pool
    platform: Platform
    step: str = "train"
    pool_name: str = ""
    min_workers: int = 0
    pending_seconds: int | None = None
    preemptions: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, SecretKey] = field(default_factory=dict)
    volume: Volume | None = None
    ca_bundle: CaBundle | None = None
    pull_secrets: tuple[str, ...] = ()
    service_account: str = "default"
    timeout_seconds: int = 86400
    input: Gang | None = None
    feeds: str = ""

    @property
    def name(self) -> str:
        """The name of its Job and Service: one for each run and step, so that there are never two gangs."""
        if self.feeds:
            return f"{self.feeds}-input"
        digest = hashlib.sha256(f"{self.run}\0{self.step}".encode()).hexdigest()[:8]
        slug = re.sub(r"[^a-z0-9]+", "-", f"{self.run}-{self.step}".lower()).strip("-")
        return f"ty-{slug[:_SLUG].rstrip('-')}-{digest}"

    @property
    def is_elastic(self) -> bool:
        """True if it trains with fewer than `workers` too."""
        return 0 < self.min_workers < self.workers

    @property
    def resumes(self) -> str:
        """': it resumes from its last checkpoint' for a training, '' for other steps."""
        return ": it resumes from its last checkpoint" if self.step == "train" else ""

    @property
    def addresses(self) -> str:
        """host:port of every worker's barrier, as `settings.addresses` reads them.

        In full, those of 1,024 pods would be 110 KB in each of these pods, and all would be listed every second.
        """
        return f"{self.name}-[0-{self.workers - 1}].{self.name}:{PORT}"


def owner_reference(api_version: str, kind: str, name: str, uid: str) -> Manifest:
    """Return an ownerReference: deleting the owner deletes the object."""
    names = {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid}
    # blockOwnerDeletion would need permission on the owner's finalizers.
    return {**names, "controller": False, "blockOwnerDeletion": False}


def worker_job(gang: Gang, owner: Manifest | None = None) -> Manifest:
    """Return the Indexed Job of `gang`; deleting `owner`, an `owner_reference`, deletes it."""
    spec = {
        "completionMode": "Indexed",
        "completions": gang.workers,
        "parallelism": gang.workers,
        "backoffLimit": BACKOFF_LIMIT * gang.workers,
        "activeDeadlineSeconds": gang.timeout_seconds,
        "ttlSecondsAfterFinished": KEEP_SECONDS,
        # Replace a pod only after it has ended: never two workers with one index.
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": _failure_rules()},
        "suspend": bool(gang.pool.queue),
        "template": {
            "metadata": {
                "labels": _task_labels(gang) | labels.NO_MESH,
                "annotations": labels.NO_MESH | ({} if gang.pool.is_evictable else labels.KEPT),
            },
            "spec": _pod(gang),
        },
    }
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    task_labels = _task_labels(gang) | ({labels.QUEUE: gang.pool.queue} if gang.pool.queue else {})
    metadata: Manifest = {"name": gang.name, "labels": task_labels}
    metadata["annotations"] = {labels.RUN: gang.run, labels.PLAN: digest[:16]}
    if gang.is_elastic and gang.pool.queue:
        metadata["annotations"] |= {labels.QUEUE_MINIMUM: str(gang.min_workers), labels.QUEUE_COMPLETIONS: "true"}
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def headless_service(gang: Gang, job_uid: str) -> Manifest:
    """Return the Service that gives every worker a host name; owned by the Job with `job_uid`."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _owned_metadata(gang, job_uid),
        "spec": {
            "clusterIP": "None",
            "ipFamilyPolicy": "PreferDualStack",
            "selector": {labels.JOB: gang.name},
            # Workers meet before any of them is ready.
            "publishNotReadyAddresses": True,
            "ports": [{"name": "barrier", "port": PORT}, {"name": "grpc", "port": PORT + 1}],
        },
    }


def network_policy(gang: Gang, job_uid: str) -> Manifest:
    """Return the NetworkPolicy that admits only the gang's workers; input workers admit only the training.

    Needed because the gRPC of TensorFlow and of JAX authenticates nobody. Owned by the Job with `job_uid`.
    """
    workers = {"podSelector": {"matchLabels": _labels(gang)}}
    clients = {"podSelector": {"matchLabels": {**_labels(gang), labels.INSTANCE: gang.feeds or gang.name}}}
    ports: list[Manifest] = [{"protocol": "TCP", "port": PORT, "endPort": PORT + settings.PORT_RANGE}]
    if placement(gang.pool, gang.platform).slice_label:
        ports.append({"protocol": "TCP", "port": _SLICE_PORT})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _owned_metadata(gang, job_uid),
        "spec": {**workers, "policyTypes": ["Ingress"], "ingress": [{"from": [clients], "ports": ports}]},
    }


def dependents(gang: Gang, job_uid: str) -> dict[str, Manifest]:
    """Return the objects that the Job with `job_uid` owns, by resource name, in the order of creation."""
    return {"networkpolicies": network_policy(gang, job_uid), "services": headless_service(gang, job_uid)}


def input_job(gang: Gang, training_uid: str) -> Manifest:
    """Return the Job of the input workers `gang`; the training Job's uid is their token, and its deletion theirs."""
    owner = owner_reference("batch/v1", "Job", gang.feeds, training_uid)
    return worker_job(replace(gang, environment={**gang.environment, settings.GANG_TOKEN: training_uid}), owner)


def gang_objects(gang: Gang, owner: Manifest | None, job_uid: str, input_uid: str) -> list[Manifest]:
    """Return all objects of `gang` in the order in which its launcher creates them.

    owner: as in `worker_job`. job_uid, input_uid: the uids of its Job and of its input workers' Job.
    """
    objects = [worker_job(gang, owner), *dependents(gang, job_uid).values()]
    if gang.input:
        objects += [input_job(gang.input, job_uid), *dependents(gang.input, input_uid).values()]
    return objects


def _failure_rules() -> list[Manifest]:
    """Return the Job's podFailurePolicy: the first matching rule decides; a pod without a match counts."""

    def on_exit(action: str, *codes: ExitCode) -> Manifest:
        values = sorted(map(int, codes))
        return {"action": action, "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": values}}

    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        on_exit("Ignore", ExitCode.PREEMPTED),
        on_exit("FailJob", *FINAL),
        on_exit("Count", *COUNTED),
    ]


def _pod(gang: Gang) -> Manifest:
    base = pod_spec(gang.pool, gang.platform, gang.volume, gang.pull_secrets, gang.ca_bundle, worker=True)
    spec: Manifest = {
        "restartPolicy": "Never",
        "subdomain": gang.name,
        "serviceAccountName": gang.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": gang.pool.grace_seconds,
        "securityContext": base["securityContext"],
        "topologySpreadConstraints": [_spread(gang)],
        **base,
        "containers": [_container(gang, base["containers"][0])],
    }
    if slice_label := placement(gang.pool, gang.platform).slice_label:
        spec["affinity"] = spec.get("affinity", {}) | _exclusive_slice(gang, slice_label)
    if gang.pool.priority_class:
        spec["priorityClassName"] = gang.pool.priority_class
    return spec


def _spread(gang: Gang) -> Manifest:
    """Place one worker on each node as far as there is room; a full node must not block the gang."""
    return {
        "maxSkew": 1,
        "topologyKey": labels.HOST,
        "whenUnsatisfiable": "ScheduleAnyway",
        "nodeTaintsPolicy": "Honor",
        "labelSelector": {"matchLabels": {labels.JOB: gang.name}},
    }


def _exclusive_slice(gang: Gang, slice_label: str) -> Manifest:
    """Place all workers on one TPU slice, without other gangs: two gangs of equal shape could take half each.

    Source: JobSet's exclusive placement, https://jobset.sigs.k8s.io/docs/tasks/tpu_multislice/.
    """

    ours: Manifest = {"key": labels.JOB, "operator": "In", "values": [gang.name]}
    other_gangs: Manifest = {"key": labels.JOB, "operator": "NotIn", "values": [gang.name]}

    def required(*expressions: Manifest) -> Manifest:
        term = {"labelSelector": {"matchExpressions": [*expressions]}, "topologyKey": slice_label}
        return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}

    return {
        "podAffinity": required(ours),
        "podAntiAffinity": required({"key": labels.JOB, "operator": "Exists"}, other_gangs),
    }


def _container(gang: Gang, base: Manifest) -> Manifest:
    return {
        "name": CONTAINER,
        "image": gang.image,
        "command": list(gang.command),
        "env": _environment(gang),
        "ports": [{"name": "barrier", "containerPort": PORT}, {"name": "grpc", "containerPort": PORT + 1}],
        **_probes(gang),
        "resources": base["resources"],
        "volumeMounts": base["volumeMounts"],
        # The launcher reads the reason of a failure from the pod, even if the log is gone.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": base["securityContext"],
    }


def _probes(gang: Gang) -> Manifest:
    """Return the probes by which the kubelet detects a frozen pod; the startup probe allows a slow start."""

    def probe(failures: int) -> Manifest:
        request = {"path": "/", "port": liveness.PORT}
        seconds = {"periodSeconds": _PROBE_SECONDS, "timeoutSeconds": _PROBE_SECONDS}
        return {"httpGet": request, **seconds, "failureThreshold": failures}

    starts = -(-gang.pool.start_deadline_seconds // _PROBE_SECONDS)
    return {"startupProbe": probe(starts), "livenessProbe": probe(_SILENT_PROBES)}


def _environment(gang: Gang) -> list[Manifest]:
    values = {
        **gang.environment,
        settings.INPUT_WORKERS if gang.feeds else settings.WORKERS: gang.addresses,
        **({settings.INPUT_WORKERS: gang.input.addresses} if gang.input else {}),
        settings.START_DEADLINE_SECONDS: str(gang.pool.start_deadline_seconds),
    }
    # The Job's uid: random, equal in all pods of this Job, and known only to those who may read the Job.
    token = {} if settings.GANG_TOKEN in gang.environment else {settings.GANG_TOKEN: labels.JOB_UID}
    from_labels = {settings.WORKER_INDEX: labels.INDEX, **token}
    fields = {name: f"metadata.labels['{label}']" for name, label in from_labels.items()}
    return variables(values, gang.secrets) + [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in {**fields, settings.NODE: "spec.nodeName"}.items()
    ]


def _labels(gang: Gang) -> dict[str, str]:
    return {**labels.step_labels(gang.step), labels.INSTANCE: gang.name}


def _task_labels(gang: Gang) -> dict[str, str]:
    pool = {labels.POOL: gang.pool_name} if gang.pool_name else {}
    return _labels(gang) | pool | ({labels.USE: labels.INPUT} if gang.feeds else {})


def _owned_metadata(gang: Gang, job_uid: str) -> Manifest:
    owner = owner_reference("batch/v1", "Job", gang.name, job_uid)
    return {"name": gang.name, "labels": _labels(gang), "ownerReferences": [owner]}
