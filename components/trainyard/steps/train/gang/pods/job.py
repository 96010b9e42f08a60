"""The Kubernetes objects of a training gang: an Indexed Job of equal workers, the Service that names them, and their NetworkPolicy.

They are pure functions of a `Gang`, so that what a cluster is asked for can be read and tested without one.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from trainyard.errors import ExitCode
from trainyard.spec.environment import SecretKey, Volume
from trainyard.spec.pools import Placement, Resources

Manifest = dict[str, Any]

PORT = 2222  # a worker's barrier; TensorFlow's gRPC listens on the next one
_PORTS = 8  # behind it, of which TensorFlow, JAX and the ring take the first free ones (`supervisor`, `sums`)
_SLICE_PORT = 8471  # the runtimes of a TPU slice's hosts
CONTAINER = "worker"
USER = 65532  # the images' user; numeric, for Pod Security "restricted" asks the kubelet to verify it
BACKOFF_LIMIT = 3  # chosen, for each worker: what ends one gang-wide ends a pod of every worker at once
KEEP_SECONDS = 3600  # chosen: how long a finished Job waits for a launcher that was itself restarted
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
JOB_LABEL = "batch.kubernetes.io/job-name"
JOB_UID_LABEL = "batch.kubernetes.io/controller-uid"
PLAN_ANNOTATION = "trainyard/plan"

# Faults that stay whatever is tried again. A code in neither tuple, such as that of a crash, counts like COUNTED.
FINAL = (
    *(ExitCode.USAGE, ExitCode.DATA, ExitCode.CONFIGURATION, ExitCode.INFRASTRUCTURE, ExitCode.BUG),
    ExitCode.INTERRUPTED,
)
COUNTED = (ExitCode.TRANSIENT,)

_SLUG = 36  # longest part of the run's name in a Job's: pods are called <job>-<index> and have at most 63 characters


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The object whose deletion deletes the gang, as an ownerReference spells it."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, kw_only=True)
class Gang:
    """What one gang is: `workers` pods that run `command` in `image`, one a node of the pool that `placement` names.

    start_deadline_seconds: how long a worker may not be running, at the start or after its pod was lost.
    grace_seconds: from SIGTERM to SIGKILL; it must hold a checkpoint.
    shared_memory: size of /dev/shm; it counts as the container's memory.
    ephemeral_storage: size of /tmp, where inputs from a bucket and staged outputs are, and of the log.
    queue: Kueue's LocalQueue, which then admits the Job; '' for none.
    """

    run: str
    image: str
    command: tuple[str, ...]
    workers: int
    placement: Placement
    resources: Resources
    step: str = "train"
    environment: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, SecretKey] = field(default_factory=dict)
    volume: Volume | None = None
    service_account: str = "default"
    priority_class: str = ""
    queue: str = ""
    shared_memory: str = "1Gi"
    ephemeral_storage: str = "10Gi"
    grace_seconds: int = 30
    start_deadline_seconds: int = 300
    timeout_seconds: int = 86400

    @property
    def name(self) -> str:
        """The name of its Job and Service: one for one run and step, so that there are never two gangs of them."""
        digest = hashlib.sha256(f"{self.run}\0{self.step}".encode()).hexdigest()[:8]
        slug = re.sub(r"[^a-z0-9]+", "-", f"{self.run}-{self.step}".lower()).strip("-")
        return f"ty-{slug[:_SLUG].rstrip('-')}-{digest}"

    @property
    def addresses(self) -> list[str]:
        """host:port of every worker's barrier, in the order of their indices."""
        return [f"{self.name}-{index}.{self.name}:{PORT}" for index in range(self.workers)]


def worker_job(gang: Gang, owner: Owner | None = None) -> Manifest:
    """Return the Indexed Job of `gang`; deleting `owner` deletes it."""
    spec = {
        "completionMode": "Indexed",
        "completions": gang.workers,
        "parallelism": gang.workers,
        "backoffLimit": BACKOFF_LIMIT * gang.workers,
        "activeDeadlineSeconds": gang.timeout_seconds,
        "ttlSecondsAfterFinished": KEEP_SECONDS,
        # The index of a pod that is still ending is not given away: never two workers of one index.
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": _failure_rules()},
        "suspend": bool(gang.queue),
        "template": {"metadata": {"labels": _labels(gang)}, "spec": _pod(gang)},
    }
    labels = _labels(gang) | ({"kueue.x-k8s.io/queue-name": gang.queue} if gang.queue else {})
    metadata: Manifest = {"name": gang.name, "labels": labels}
    metadata["annotations"] = {"trainyard/run": gang.run, PLAN_ANNOTATION: _digest(spec)}
    if owner is not None:
        metadata["ownerReferences"] = [_reference(owner)]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def headless_service(gang: Gang, job_uid: str) -> Manifest:
    """Return the Service that gives every worker its host name; it goes when the Job with `job_uid` goes."""
    owner = Owner(api_version="batch/v1", kind="Job", name=gang.name, uid=job_uid)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": gang.name, "labels": _labels(gang), "ownerReferences": [_reference(owner)]},
        "spec": {
            "clusterIP": "None",
            "selector": {JOB_LABEL: gang.name},
            # Workers meet before any of them is ready.
            "publishNotReadyAddresses": True,
            "ports": [{"name": "barrier", "port": PORT}, {"name": "grpc", "port": PORT + 1}],
        },
    }


def network_policy(gang: Gang, job_uid: str) -> Manifest:
    """Return what lets a gang's workers reach each other, and nobody else reach them, another gang's neither.

    The gRPC of TensorFlow and of JAX asks nobody who they are. The policy goes when the Job with `job_uid` goes.
    """
    owner = Owner(api_version="batch/v1", kind="Job", name=gang.name, uid=job_uid)
    workers = {"podSelector": {"matchLabels": _labels(gang)}}
    ports: list[Manifest] = [{"protocol": "TCP", "port": PORT, "endPort": PORT + _PORTS}]
    if gang.placement.slice_label:
        ports.append({"protocol": "TCP", "port": _SLICE_PORT})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": gang.name, "labels": _labels(gang), "ownerReferences": [_reference(owner)]},
        "spec": {**workers, "policyTypes": ["Ingress"], "ingress": [{"from": [workers], "ports": ports}]},
    }


def _failure_rules() -> list[Manifest]:
    """Return the Job's podFailurePolicy: the first rule that fits decides; a pod that none fits counts."""

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
    spec: Manifest = {
        "restartPolicy": "Never",
        "subdomain": gang.name,
        "serviceAccountName": gang.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": gang.grace_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [_spread(gang)],
        "containers": [_container(gang)],
        "volumes": [
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": gang.shared_memory}},
            {"name": "tmp", "emptyDir": {"sizeLimit": gang.ephemeral_storage}},
        ],
    }
    if gang.volume is not None:
        spec["volumes"].append({"name": "storage", "persistentVolumeClaim": {"claimName": gang.volume.claim}})
    if gang.placement.node_selector:
        spec["nodeSelector"] = gang.placement.node_selector
    if gang.placement.tolerations:
        spec["tolerations"] = [each.model_dump(exclude_none=True) for each in gang.placement.tolerations]
    if gang.placement.slice_label:
        spec["affinity"] = _whole_slice(gang)
    if gang.priority_class:
        spec["priorityClassName"] = gang.priority_class
    return spec


def _spread(gang: Gang) -> Manifest:
    """One worker a node as far as there is room: a node that is full of other work must not keep the gang waiting."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "nodeTaintsPolicy": "Honor",
        "labelSelector": {"matchLabels": {JOB_LABEL: gang.name}},
    }


def _whole_slice(gang: Gang) -> Manifest:
    """All workers on the hosts of one TPU slice, and no other gang's among them: two of equal shape could take halves.

    Source: JobSet's exclusive placement, https://jobset.sigs.k8s.io/docs/tasks/tpu_multislice/.
    """

    ours: Manifest = {"key": JOB_LABEL, "operator": "In", "values": [gang.name]}
    others: Manifest = {"key": JOB_LABEL, "operator": "NotIn", "values": [gang.name]}

    def required(*expressions: Manifest) -> Manifest:
        term = {"labelSelector": {"matchExpressions": [*expressions]}, "topologyKey": gang.placement.slice_label}
        return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}

    return {
        "podAffinity": required(ours),
        "podAntiAffinity": required({"key": JOB_LABEL, "operator": "Exists"}, others),
    }


def _container(gang: Gang) -> Manifest:
    mounts = [
        {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - a mount in the pod, not this machine's
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
    ]
    if gang.volume is not None:
        mounts.append({"name": "storage", "mountPath": gang.volume.path})
    return {
        "name": CONTAINER,
        "image": gang.image,
        "command": list(gang.command),
        "env": _environment(gang),
        "ports": [{"name": "barrier", "containerPort": PORT}, {"name": "grpc", "containerPort": PORT + 1}],
        "resources": _resources(gang),
        "volumeMounts": mounts,
        # The launcher reads the reason of a failure from the pod, even when the log is gone.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _environment(gang: Gang) -> list[Manifest]:
    index: Manifest = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX_LABEL}']"}}}
    values = {
        **gang.environment,
        "TRAINYARD_WORKERS": ",".join(gang.addresses),
        "TRAINYARD_START_DEADLINE_SECONDS": str(gang.start_deadline_seconds),
    }
    entries: list[Manifest] = [{"name": name, "value": value} for name, value in sorted(values.items())]
    for name, source in sorted(gang.secrets.items()):
        reference = {"name": source.secret, "key": source.key}
        entries.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    entries.append({"name": "TRAINYARD_WORKER_INDEX", **index})
    # The Job's uid: random, the same in all pods of this very Job, and known to those alone who may read it.
    token = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{JOB_UID_LABEL}']"}}}
    entries.append({"name": "TRAINYARD_GANG_TOKEN", **token})
    return entries


def _resources(gang: Gang) -> Manifest:
    extra = {"ephemeral-storage": gang.ephemeral_storage}
    if gang.placement.resource:
        extra[gang.placement.resource] = str(gang.placement.count)
    return {
        "requests": gang.resources.requests.model_dump() | extra,
        "limits": gang.resources.limits.model_dump(exclude_none=True) | extra,
    }


def _labels(gang: Gang) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "trainyard",
        "app.kubernetes.io/component": gang.step,
        "app.kubernetes.io/instance": gang.name,
    }


def _reference(owner: Owner) -> Manifest:
    # blockOwnerDeletion would need a permission on the owner's finalizers.
    return {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid} | {
        "controller": False,
        "blockOwnerDeletion": False,
    }


def _digest(spec: Manifest) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
