"""Looks into container images of an environment: a short pod of each, and what it lacks for Trainyard's steps."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainyard.contract import keys
from trainyard.errors import ExitCode, listed
from trainyard.kubernetes.client import Cluster, Manifest
from trainyard.kubernetes.pod_spec import pod_spec, short_pod, variables
from trainyard.spec.environment import Environment
from trainyard.uris import is_bucket
from trainyard_control.cluster import checks, image_program
from trainyard_control.cluster.checks import Check
from trainyard_control.cluster.explanation import Evidence, explain
from trainyard_control.planning.python_packages import PYTHON, image_versions

_LIFE_SECONDS = 900  # chosen: a node pulls the image of GPUs, of 7 GB
_POLL_SECONDS = 0.5
_SHOWN = 5  # packages in a sentence; chosen
_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}}


def image_pod(environment: Environment, image: str, name: str) -> Manifest:
    """Build the pod `name` that looks into `image`, on the pool of push, under the rules for a worker of a gang."""
    pool = environment.pools[environment.pool_name("push")].model_copy(update={"ephemeral_storage": None})
    spec = pod_spec(pool, environment.platform, environment.volume, environment.image_pull_secrets, worker=True)
    program = Path(image_program.__file__).read_text(encoding="utf-8")
    folders = ["/tmp", environment.variables.get("TRAINYARD_CACHE", "/tmp")]  # noqa: S108 - the pod's
    if environment.volume and not is_bucket(environment.storage):
        folders.append(environment.storage)
    spec["containers"][0] |= {
        "name": "main",
        "image": image,
        # As Kubeflow starts a step.
        "command": ["sh", "-ec", 'exec python3 -c "$@"', "sh", program, *dict.fromkeys(folders)],
        "env": variables(environment.variables, {}),
        "resources": _RESOURCES,
    }
    return short_pod(name, spec, _LIFE_SECONDS)


def look(cluster: Cluster, environment: Environment, images: Mapping[str, tuple[str, str]]) -> Iterator[Check]:
    """Start a pod of each image at once, and yield what it lacks. images: variant and image, by name.

    The pods are deleted. Raises as `Cluster.post`.
    """
    pods: dict[str, str] = {}
    try:
        for title, (_, image) in images.items():
            pod = f"trainyard-image-{secrets.token_hex(4)}"
            cluster.post(cluster.path("pods"), image_pod(environment, image, pod))
            pods[title] = pod
        for title, (variant, image) in images.items():
            yield _found(cluster, pods[title], title, variant, image)
    finally:
        for pod in pods.values():
            cluster.delete(cluster.path("pods", pod))


def _found(cluster: Cluster, pod: str, title: str, variant: str, image: str) -> Check:
    deadline = time.monotonic() + _LIFE_SECONDS
    while True:
        finding = explain(Evidence(cluster.get(cluster.path("pods", pod)) or {}))
        if finding.state == "done":
            break
        if finding.permanent or finding.state == "failed" or time.monotonic() > deadline:
            last = cluster.log(pod, "main", tail=1).strip()[:200]
            said = f" ({last})" if last else ""
            return checks.bad(title, f"{image}: {finding.sentence.rstrip('.')}{said}")
        time.sleep(_POLL_SECONDS)
    text = cluster.log(pod, "main", tail=1)
    try:
        contents = dict(json.loads(text))
    except ValueError:
        return checks.bad(title, f"{image}: its python3 prints something else than was asked ({text.strip()[:100]})")
    return verdict(title, variant, image, contents)


def verdict(title: str, variant: str, image: str, contents: Mapping[str, Any]) -> Check:
    """Compare the contents of an image, as `image_program` prints them, with what steps of its variant need."""
    has, needed = contents["distributions"], image_versions()[variant]
    python, wanted = (".".join(map(str, version)) for version in (contents["python"], PYTHON))
    lacks = [f"{name} {version}" for name, version in needed.items() if name not in has]
    different = [
        f"{name} {has[name]} instead of {version}"
        for name, version in needed.items()
        if has.get(name, version) != version
    ]
    faults = [] if python == wanted else [f"has Python {python} instead of {wanted}"]
    if contents["error"]:
        faults.append(f"cannot import Trainyard ({contents['error']})")
    elif contents["code"] != keys.code_digest():
        faults.append("has another Trainyard than this machine")
    if lacks:
        faults.append(f"lacks {len(lacks)} packages: {listed(lacks, _SHOWN)}")
    faults += [f"user {contents['user']} cannot write in {path}" for path in contents["unwritable"]]
    notes = [f"has {listed(different, _SHOWN)}"] if different else []
    if not contents["libgomp"]:
        notes.append("lacks libgomp.so.1, which wheels such as LightGBM's need")
    sentence = f"{image} {'; '.join([*faults, *notes])}"
    if faults:
        remedy = f"Build it FROM Trainyard's {variant} image of this version"
        return checks.bad(title, f"{sentence}. {remedy}", ExitCode.CONFIGURATION)
    if notes:
        return checks.unknown(title, sentence)
    return checks.good(title, f"{image} has Python {python}, this Trainyard and its {len(needed)} packages")
