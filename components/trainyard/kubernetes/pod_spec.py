"""Builds pods from pools: selectors, tolerations, resources, security context and volumes.

`place` writes them into the package, a gang's Job and `doctor` build on them, and `pools` counts nodes with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainyard.kubernetes import labels
from trainyard.kubernetes.client import Manifest
from trainyard.spec.environment import CA_FOLDER, CaBundle, SecretKey, Volume
from trainyard.spec.hardware.catalog import Platform
from trainyard.spec.hardware.pools import EPHEMERAL_STORAGE, SHARED_MEMORY, Pool, placement

USER = 65532  # our images' user; numeric, so that the kubelet can verify it for Pod Security "restricted"
DISK = "ephemeral-storage"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a mount in the pod, not this machine's
_TEMPORARY = "/tmp"  # noqa: S108


def pod_spec(
    pool: Pool,
    platform: Platform,
    volume: Volume | None = None,
    pull_secrets: Sequence[str] = (),
    ca_bundle: CaBundle | None = None,
    *,
    worker: bool = False,
) -> Manifest:
    """Build a pod on `pool`.

    Its container has no name, image or command yet. worker: of a gang, with a read-only root file system and its own
    /dev/shm and /tmp; the pod of a step has its own if the pool gives their sizes, and /dev/shm if several GPUs talk
    through it. To a step Kubeflow gives one resource beside cores and memory: its accelerators, otherwise disk.
    """
    needs = placement(pool, platform)
    disk = _disk(pool, worker)
    extra = {DISK: disk} if disk and (worker or not needs.resource) else {}
    if needs.resource:
        extra[needs.resource] = str(needs.count)
    group = {"runAsGroup": USER, "fsGroup": USER, "fsGroupChangePolicy": "OnRootMismatch"} if worker else {}
    mounts = _mounts(pool, volume, worker)
    if ca_bundle:
        mounts.append(("ca-bundle", CA_FOLDER, bundle_source(ca_bundle)))
    container = {
        "resources": {
            "requests": pool.resources.requests.model_dump() | extra,
            "limits": pool.resources.limits.model_dump(exclude_none=True) | extra,
        },
        "volumeMounts": [{"name": name, "mountPath": path} for name, path, _ in mounts],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            **({"readOnlyRootFilesystem": True} if worker else {}),
            "capabilities": {"drop": ["ALL"]},
        },
    }
    spec: Manifest = {
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            **group,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": name, **source} for name, _, source in mounts],
    }
    if needs.node_selector:
        spec["nodeSelector"] = needs.node_selector
    if needs.tolerations:
        spec["tolerations"] = [toleration.model_dump(exclude_none=True) for toleration in needs.tolerations]
    if pool.node_affinity:
        conditions = (requirement.model_dump() for requirement in pool.node_affinity)
        expressions = [{key: value for key, value in condition.items() if value} for condition in conditions]
        terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    if pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in pull_secrets]
    return spec


def bundle_source(bundle: CaBundle) -> Manifest:
    """Return the source of a volume with all keys of the ConfigMap or Secret that has the certificates."""
    if bundle.secret:
        return {"secret": {"secretName": bundle.secret}}
    return {"configMap": {"name": bundle.config_map}}


def short_pod(name: str, spec: Manifest, seconds: int) -> Manifest:
    """Return the pod `name` of `spec` that a command starts: without a token, it ends after `seconds` at most."""
    spec = spec | {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": seconds,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
    }
    metadata = {"name": name, "labels": {labels.APPLICATION: "trainyard"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def variables(values: Mapping[str, str], secrets: Mapping[str, SecretKey]) -> list[Manifest]:
    """Return a container's environment variables sorted by name, those from Secrets last."""
    return [
        *({"name": name, "value": value} for name, value in sorted(values.items())),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": source.secret, "key": source.key}}}
            for name, source in sorted(secrets.items())
        ),
    ]


def literal_json(text: str) -> str:
    """Return the JSON `text` without $, which Kubernetes expands in variables and commands: $(NAME)."""
    return text.replace("$", r"\u0024")


def literal_value(text: str) -> str:
    """Return the value of a variable that a container gets as `text`, with the $ that Kubernetes would expand."""
    return text.replace("$", "$$")


def variable(spec: Manifest, name: str) -> str:
    """Return the value of an environment variable of the pod's containers, '' if none has it."""
    entries = [entry for container in spec["containers"] for entry in container.get("env") or []]
    return next((str(entry.get("value", "")) for entry in entries if entry["name"] == name), "")


def _disk(pool: Pool, worker: bool) -> str | None:
    return pool.ephemeral_storage or (EPHEMERAL_STORAGE if worker else None)


def _mounts(pool: Pool, volume: Volume | None, worker: bool) -> list[tuple[str, str, Manifest]]:
    """Return name, path and source of each volume."""
    mounts: list[tuple[str, str, Manifest]] = []
    if worker or pool.shared_memory or (pool.kind == "gpu" and pool.count > 1):
        memory = {"emptyDir": {"medium": "Memory", "sizeLimit": pool.shared_memory or SHARED_MEMORY}}
        mounts.append(("shared-memory", _SHARED_MEMORY, memory))
    if disk := _disk(pool, worker):
        mounts.append(("tmp", _TEMPORARY, {"emptyDir": {"sizeLimit": disk}}))
    if volume:
        mounts.append(("storage", volume.path, {"persistentVolumeClaim": {"claimName": volume.claim}}))
    return mounts
