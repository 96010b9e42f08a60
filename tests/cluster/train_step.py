"""The train step on a cluster as Kubeflow Pipelines runs it: a pod of the compiled pipeline, under the gang's Role.

What stands for Kubeflow: a ConfigMap for the Workflow that owns the pod, and this file for the driver, which resolves
the step's inputs. The pod runs the compiled command itself.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import yaml
from namespaces import Namespace, until

from trainyard.contract import keys
from trainyard.contract.pipeline import Pipeline, TrainingPlan
from trainyard.spec import recipe as recipes
from trainyard.spec.documents import parse
from trainyard.spec.environment import Environment
from trainyard_control.compiler.compilation import compiled
from trainyard_control.compiler.placement import PlacedSpec

IMAGE = os.environ.get("TRAINYARD_IMAGE", "")
STORAGE = "/runs/store"
SECONDS = 400  # two idle cores train a gang of two in half a minute; other work may go on beside it

ENVIRONMENT = """
target: kubeflow
platform: gke
storage: {storage}
images: {{cpu: {image}, gpu: {image}}}
{reached}
pools:
  cpu:
    kind: cpu
    nodeSelector: {{cloud.google.com/gke-nodepool: cpu}}
    resources: {{requests: {{cpu: 250m, memory: 1Gi}}, limits: {{memory: 1Gi}}}}
  train: {pool}
  first: {first}
placement: {{default: cpu, train: {placement}, evaluate: {placement}}}
{input_workers}
"""
POOL: dict[str, Any] = {
    "kind": "cpu",
    "workers": 2,
    "nodeSelector": {"cloud.google.com/gke-nodepool": "cpu"},
    "shared_memory": "64Mi",
    "grace_seconds": 10,
    "start_deadline_seconds": 240,
    "resources": {"requests": {"cpu": "500m", "memory": "3Gi"}, "limits": {"memory": "3Gi"}},
}
THREADS = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
RECIPE = ["train.batch_size=64", "train.checkpoints.every_steps=10", "model.name=cnn_small", "evaluate.bootstrap=20"]
EPOCHS = 6  # what comes before the first step takes four times as long
PREPARE = f"""
import os, pathlib, sys
pathlib.Path("{STORAGE}").mkdir(exist_ok=True)
path = pathlib.Path("/runs/recipe.yaml")
data = "data: {{format: image_folder, bundled: digits, channels: 1}}"
path.write_text(f"name: digits\\n{{data}}\\nmodel: {{{{name: cnn_small}}}}\\n")
command = ["python", "-m", "trainyard.steps", "preprocess", f"--recipe={{path}}", "--output={STORAGE}/examples"]
os.execvp("python", command)
"""
_TRAINING = """
import sys
from trainyard.contract.artifacts.train import Training
print(Training.read(sys.argv[1]).model_dump_json())
"""
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "runs"},
    "spec": {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "standard-rwx",
        "resources": {"requests": {"storage": "1Gi"}},
    },
}


@dataclass(frozen=True)
class Location:
    """Where runs store their outputs, and what their environment says so that they reach it."""

    storage: str = STORAGE
    reached: dict[str, Any] = field(
        default_factory=lambda: {"volume": {"claim": "runs", "path": "/runs"}, "variables": THREADS}
    )


@dataclass
class Run:
    """One run of the train step, or of evaluate after it; its recipe bears its name, so that its output is its own."""

    namespace: Namespace
    name: str
    pool: dict[str, Any] = field(default_factory=dict)
    first: dict[str, Any] = field(default_factory=dict)  # changes of the pool that is tried before, if it has any
    attempt: int = 0
    location: Location = field(default_factory=Location)
    epochs: int = EPOCHS
    file: str = ""  # of another recipe than digits
    label: str = ""  # as that of a benchmark
    input_workers: int = 0
    task: str = "train"

    @property
    def pod(self) -> str:
        return f"{self.name}-{self.task}-{self.attempt}"

    @property
    def run_id(self) -> str:
        return f"{self.name}-id"

    @property
    def log(self) -> str:
        return self.namespace.cluster.log(self.pod, "main")

    @property
    def gang(self) -> str:
        """The name of the run's Job."""
        return next((job["metadata"]["name"] for job in self.namespace.get("jobs") if self._owns(job)), "")

    def _owns(self, job: dict[str, Any]) -> bool:
        return any(owner["name"] == self.name for owner in job["metadata"].get("ownerReferences", []))

    def start(self) -> Run:
        """Create the pod of the step's next attempt, as Argo does."""
        self.attempt += 1
        if self.attempt == 1 and self.task == "train":
            self.namespace.kubectl("create", "configmap", self.name)
        run = json.loads(self.namespace.kubectl("get", "configmap", self.name, "-o", "json"))["metadata"]
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": self.name, "uid": run["uid"]}
        metadata = {"name": self.pod, "labels": {"pipeline/runid": self.run_id}, "ownerReferences": [owner]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": self._spec()}
        self.namespace.kubectl("create", "-f", "-", stdin=json.dumps(pod))
        return self

    def says(self, text: str, seconds: float = SECONDS) -> None:
        until(lambda: re.search(text, self.log) or self.has_ended(), seconds)
        assert re.search(text, self.log), self.log

    def step(self) -> int:
        log = self.namespace.cluster.log(self.pod, "main", tail=20)
        done = re.findall(r'"event": "progress", "done": (\d+)', log)
        return int(done[-1]) if done else 0

    def reaches(self, step: int) -> None:
        until(lambda: self.step() >= step or self.has_ended(), SECONDS)
        assert not self.has_ended(), self.log

    def has_ended(self) -> bool:
        return self.namespace.phase(self.pod) in ("Succeeded", "Failed")

    def ends(self, code: int = 0, seconds: float = SECONDS) -> None:
        """Wait for the step's pod; its exit code is `code`."""
        until(self.has_ended, seconds)
        path = "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"
        assert int(self.namespace.kubectl("get", "pod", self.pod, "-o", path)) == code, self.log

    def moment(self, text: str) -> float:
        """Return when the log first had a line with `text`, in seconds since 1970."""
        log = self.namespace.kubectl("logs", self.pod, "--timestamps")
        line = next(line for line in log.splitlines() if re.search(text, line))
        return datetime.fromisoformat(line.split()[0][:26] + "+00:00").timestamp()

    def event(self, kind: str) -> list[dict[str, Any]]:
        """Return what the worker whose log is passed on has told of `kind`."""
        lines = [line for line in self.log.splitlines() if line.startswith('{"event"')]
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def worker(self, index: int, suffix: str = "") -> str:
        """The name of the newest pod of a worker. suffix: '-input' for an input worker."""
        job = self.gang + suffix
        pods = [pod for pod in self.namespace.pods(job) if f"{job}-{index}-" in pod["metadata"]["name"]]
        return str(max(pods, key=lambda pod: pod["metadata"]["creationTimestamp"])["metadata"]["name"])

    def _spec(self) -> dict[str, Any]:
        placed = compiled(self.recipe, self.environment)
        container = placed.pipeline["deploymentSpec"]["executors"][f"exec-{self.task}"]["container"]
        parameters = placed.pipeline["root"]["inputDefinitions"]["parameters"]
        values = {name: parameters[name]["defaultValue"] for name in ("recipe", "storage", "code", "gang")}
        pipeline = Pipeline(self.location.storage, self.recipe, {"preprocess": self.examples})
        maker = self.run_id if "price_per_hour" in self.pool else ""  # so that the step notes its attempts
        plan = TrainingPlan(model=pipeline.place("train").output, maker=maker)
        values |= {
            "examples": self.examples,
            "fingerprint": "test",
            "plan": plan.model_dump_json(),
            "label": self.label,
        }
        if self.task == "evaluate":
            values = {name: values[name] for name in ("recipe", "storage", "code", "examples")}
            values |= {"model": plan.model, "run_id": self.run_id}
        component = placed.pipeline["components"][f"comp-{self.task}"]["outputDefinitions"]
        artifacts = {
            name: {"artifacts": [{"name": name, "type": one["artifactType"], "uri": f"minio://bucket/{name}"}]}
            for name, one in component["artifacts"].items()
        }
        outputs = {
            "parameters": {name: {"outputFile": f"/tmp/kfp/{name}"} for name in component["parameters"]},
            "artifacts": artifacts,
            "outputFile": "/tmp/kfp/output.json",
        }
        executor_input = json.dumps({"inputs": {"parameterValues": values}, "outputs": outputs})
        name = {"name": "KFP_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        mounts = [
            {"name": "tmp", "mountPath": "/tmp"},
            # Kubeflow Pipelines mounts an empty folder for each kind of object store.
            {"name": "minio", "mountPath": "/minio"},
        ]
        volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}, {"name": "minio", "emptyDir": {}}]
        if "volume" in self.location.reached:
            mounts.append({"name": "runs", "mountPath": "/runs"})
            volumes.append({"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}})
        return {
            "restartPolicy": "Never",
            "serviceAccountName": "trainyard-launcher",
            "terminationGracePeriodSeconds": 20,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "nodeSelector": {"cloud.google.com/gke-nodepool": "cpu"},
            "containers": [
                {
                    "name": "main",
                    "image": container["image"],
                    "command": container["command"],
                    "args": [executor_input if argument == "{{$}}" else argument for argument in container["args"]],
                    "env": [*container["env"], *_secrets(placed), name],
                    "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
                    "securityContext": RESTRICTED,
                    "volumeMounts": mounts,
                }
            ],
            "volumes": volumes,
        }

    @property
    def recipe(self) -> recipes.Recipe:
        if self.file:
            return recipes.load(self.file, [f"name={self.name}"])
        return recipes.load("digits", [*RECIPE, f"train.epochs={self.epochs}", f"name={self.name}"])

    @property
    def environment(self) -> Environment:
        return parse(self.environment_text, Environment, name="environment")

    @property
    def environment_text(self) -> str:
        return ENVIRONMENT.format(
            storage=self.location.storage,
            image=IMAGE,
            reached=yaml.safe_dump(self.location.reached),
            pool=json.dumps(POOL | self.pool),
            first=json.dumps(POOL | self.first),
            placement="[first, train]" if self.first else "train",
            input_workers=f"input_workers: {{count: {self.input_workers}, pool: train}}" if self.input_workers else "",
        )

    @property
    def examples(self) -> str:
        return f"{self.location.storage}/examples"

    @property
    def output(self) -> str:
        pipeline = Pipeline(self.location.storage, self.recipe, outputs={"preprocess": self.examples})
        return keys.labeled(pipeline.place("train").output, self.label)


def _secrets(placed: PlacedSpec) -> list[dict[str, Any]]:
    """Return the variables from Secrets that Kubeflow gives the step's pod."""
    assert placed.platform
    executor = placed.platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train"]  # as all have
    return [
        {"name": key["envVar"], "valueFrom": {"secretKeyRef": {"name": secret["secretName"], "key": key["secretKey"]}}}
        for secret in executor.get("secretAsEnv", [])
        for key in secret["keyToEnv"]
    ]


class Desk:
    """A pod of the image that stays, to read and write the shared volume with."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace

    def start(self) -> Desk:
        spec = Run(self.namespace, "desk")._spec()
        spec["containers"][0] |= {"command": ["sleep", "infinity"], "args": []}
        spec["containers"][0]["resources"] = {"requests": {"cpu": "100m", "memory": "3Gi"}, "limits": {"memory": "3Gi"}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "desk"}, "spec": spec}
        for manifest in (CLAIM, pod):
            self.namespace.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
        self.namespace.kubectl("wait", "pod/desk", "--for=condition=Ready", "--timeout=300s")
        return self

    def python(self, program: str, *arguments: str, **variables: str) -> str:
        values = [f"{name}={value}" for name, value in variables.items()]
        return self.namespace.kubectl("exec", "desk", "--", "env", *values, "python", "-c", program, *arguments)

    def attempts(self, run: Run) -> list[dict[str, Any]]:
        """Return the attempts of `run` on its pools, as its record will have them."""
        folder = keys.run_folder(run.location.storage, run.recipe.name, run.run_id)
        return list(json.loads(self.python(f"print(open('{folder}/{run.task}.json').read())"))["attempts"])

    def training(self, run: Run) -> dict[str, Any]:
        """Return the training.json of `run`."""
        return dict(json.loads(self.python(_TRAINING, run.output).splitlines()[-1]))


def signal_training_process(namespace: Namespace, pod: str, number: int = 9) -> float:
    """Signal the training process in a worker's pod; return the moment before it, in seconds since 1970."""
    program = (
        "import os, pathlib\n"
        "for each in pathlib.Path('/proc').glob('[0-9]*'):\n"
        "    pid = int(each.name)\n"
        "    if pid not in (1, os.getpid()) and os.getsid(pid) == pid:\n"
        "        print('signalled', pid)\n"
        f"        os.kill(pid, {number})\n"
    )
    before = time.time()
    output = namespace.kubectl("exec", pod, "--", "python", "-c", program)
    assert "signalled" in output, output
    return before
