"""The image runs every step under a cluster's strictest rules: a random user, only /tmp writable, no capability.

TRAINYARD_IMAGE names the image (images/Dockerfile) of this very code that every node has.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from namespaces import Namespace, until

from trainyard.contract import keys

IMAGE = os.environ.get("TRAINYARD_IMAGE", "")
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(not IMAGE, reason="TRAINYARD_IMAGE names no image")]

USER = 1234567890  # as a platform picks one: no name, no home, no group of the image's
SECONDS = 480  # the default recipe, on a machine that others use

LOOK = """
import ctypes, json, os, shutil, subprocess
from trainyard.contract import keys
def writable(path):
    try:
        open(os.path.join(path, "probe"), "w").close()
        return True
    except OSError:
        return False
raised = subprocess.run("find / -xdev -type f -perm /6000".split(), capture_output=True, text=True).stdout.split()
tools = "gcc g++ cc c++ ld as clang make go rustc pip pip3 uv curl wget".split()
caches = ["/root/.cache", "/var/cache/apt", "/var/lib/apt/lists", "/cache", "/src", "/locks", "/wheels"]
ctypes.CDLL("libgomp.so.1")  # which LightGBM's wheel expects of the system
print("found " + json.dumps({
    "user": os.getuid(),
    "writable": [path for path in ("/", "/opt/trainyard", "/etc", "/var", "/root", "/tmp") if writable(path)],
    "raised": raised,
    "tools": [name for name in tools if shutil.which(name)],
    "caches": [path for path in caches if os.path.isdir(path) and os.access(path, os.R_OK) and os.listdir(path)],
    "bytecode": os.path.exists(keys.__spec__.cached),
    "code": keys.code_digest(),
}))
"""

PREDICT = """
from pathlib import Path
from PIL import Image
from trainyard.steps.predict.run import run
Path('photos').mkdir()
Image.new('L', (8, 8)).save('photos/0.png')
run('runs/digits/models', 'photos', 'answers')
print(Path('answers/predicted.json').read_text())
"""

SERVE = """
import signal, subprocess
server = subprocess.Popen('trainyard serve runs/digits/models --port 0'.split(), stderr=subprocess.PIPE, text=True)
print(next(line for line in server.stderr if 'serves at http' in line))
server.send_signal(signal.SIGTERM)
print('server ended with', server.wait())
"""


def log_of(namespace: Namespace, name: str, *command: str, seconds: float = 120) -> str:
    """Return the log of a pod that ran `command` in the image and ended well."""
    container = {
        "name": "main",
        "image": IMAGE,
        "command": list(command),
        "resources": {"requests": {"cpu": "500m", "memory": "3Gi"}, "limits": {"memory": "3Gi"}},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        "workingDir": "/tmp",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        "containers": [container],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    namespace.kubectl("create", "-f", "-", stdin=json.dumps(pod))
    until(lambda: namespace.phase(name) in ("Succeeded", "Failed"), seconds)
    log = namespace.kubectl("logs", name)
    assert namespace.phase(name) == "Succeeded", log
    return log


def test_the_image_holds_this_code_and_nothing_to_build_or_raise_rights_with(namespace: Namespace) -> None:
    log = log_of(namespace, "look", "python", "-c", LOOK)
    contents = json.loads(next(line for line in log.splitlines() if line.startswith("found ")).removeprefix("found "))
    assert contents == {
        "user": USER,
        "writable": ["/tmp"],
        "raised": [],
        "tools": [],
        "caches": [],
        "bytecode": True,
        "code": keys.code_digest(),
    }


def test_every_step_of_the_default_recipe_runs_without_any_right(namespace: Namespace) -> None:
    commands = f'trainyard run digits --set train.epochs=12 && python -c "{PREDICT}" && python -c "{SERVE}"'
    log = log_of(namespace, "run", "sh", "-c", commands, seconds=SECONDS)
    for step in ("preprocess", "train", "evaluate", "export", "push", '"predicted": 1,', "server ended with 0"):
        assert step in log, log
