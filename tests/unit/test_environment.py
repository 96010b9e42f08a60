"""Environments are read strictly, and what cannot work is refused before any cluster is asked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.contract.gang import ElasticGang, elastic_gang
from trainyard.errors import ConfigurationError, ExitCode
from trainyard.spec import environment as environments
from trainyard.spec.hardware.catalog import Toleration, hosts
from trainyard.spec.hardware.pools import Placement, Pool, placement, training_variables
from trainyard.spec.recipe import Recipe
from trainyard.uris import without_secrets
from trainyard_control.cluster.scheduling import count_nodes

ROOT = Path(__file__).parents[2]
CPU = """
  cpu:
    kind: cpu
    resources: {requests: {cpu: 2, memory: 4Gi}, limits: {memory: 4Gi}}
"""
KUBEFLOW = f"""
target: kubeflow
storage: gs://bucket/runs
images: {{cpu: "example/cpu:1"}}
pools:{CPU}
placement: {{default: cpu}}
"""
LOCAL = "target: local\nstorage: runs\n"


def load(tmp_path: Path, text: str) -> environments.Environment:
    file = tmp_path / "own.yaml"
    file.write_text(text)
    return environments.load(str(file))


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigurationError) as error:
        load(tmp_path, text)
    assert error.value.exit_code == ExitCode.CONFIGURATION
    return str(error.value)


@pytest.mark.parametrize("name", ["local", "kind", "gke", "vertex"])
def test_the_environments_that_come_with_trainyard_load_by_name_from_anywhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert environments.load(name).name == f"{name}.yaml"


def test_a_local_storage_is_below_the_folder_where_the_command_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert environments.load("local").storage == str(tmp_path / "runs")


SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AWS_ACCESS_KEY_ID": "minio",
    "HF_TOKEN": "abc",
    "db_password": "hunter2",
    "OPENAI_API_KEY": "abc",
    "X": "-----BEGIN PRIVATE KEY-----",
    "Y": "postgres://trainer:hunter2@db/runs",
    "Z": "AKIAIOSFODNN7EXAMPLE",
    "GOOGLE_CREDENTIALS": '{"type": "service_account", "private_key": "…"}',
    "HEADERS": "Authorization: Bearer abcdef0123456789",
    "HEADER": "Bearer abcdef0123456789",
    "ARGUMENTS": "--workers=2 --password=hunter2",
    "JAVA_OPTS": "-Xmx2g -Djavax.net.ssl.trustStorePassword=x -Dkey.password=hunter2",
    "JSON": '{"user": "me", "password": "hunter2"}',
    "URL": "https://store.example/a?token=hunter2",
    "REGISTRY": "trainer:hunter2@registry.example",
}
PLAIN = {
    "AWS_ENDPOINT_URL_S3": "http://seaweedfs.kubeflow:9000",
    "GOOGLE_APPLICATION_CREDENTIALS": "/var/run/secrets/key.json",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "token",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    "TOKENIZERS_PARALLELISM": "never",
    "AWS_SECRET_NAME": "training",
    "MONKEY": "x",
    "KEY": "image",
    "TF_GPU_ALLOCATOR": "cuda_malloc_async",
    "TF_XLA_FLAGS": "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit",
    "OPTIONS": "--token-file /var/run/token --workers 4",
    "JVM": "-Xmx4g -XX:+UseG1GC",
    "IMAGE": "registry.example:5000/a:1@sha256:0f",
    "NOTE": "bearer of bad news, basic settings",
}


@pytest.mark.parametrize("section", ["variables", "beam: {options"])
def test_a_secret_is_refused_where_packages_would_show_it_and_is_not_repeated(section: str, tmp_path: Path) -> None:
    end = "}" if ":" in section else ""
    message = refusal(tmp_path, f"{KUBEFLOW}\n{section}: {json.dumps(SECRETS | PLAIN)}{end}\n").splitlines()
    name = "beam.options" if end else section
    assert [line.split(": ")[1] for line in message] == [f"{name}.{variable}" for variable in SECRETS]
    assert not any(value in line for line in message for value in SECRETS.values() if len(value) > 5)
    assert message[0].endswith("name that under secrets: AWS_SECRET_ACCESS_KEY: {secret: …, key: …}.")


@pytest.mark.parametrize(
    "section",
    [
        "secrets: {A: hunter2hunter2}",
        "secrets: hunter2hunter2",
        "secrets: {A: {secret: a, key: 'hunter2 hunter2'}}",
        "secrets: {A: [hunter2hunter2]}",
        'images: {cpu: "trainer:hunter2@registry.example/cpu:1"}',
        'images: {cpu: "https://trainer:hunter2@registry.example/cpu:1"}',
    ],
)
def test_a_refusal_repeats_no_value_that_may_be_a_secret(section: str, tmp_path: Path) -> None:
    text = KUBEFLOW.replace('images: {cpu: "example/cpu:1"}\n', "") if section.startswith("images") else KUBEFLOW
    message = refusal(tmp_path, f"{text}\n{section}\n")
    assert "hunter2" not in message and f"own.yaml:{len(text.splitlines()) + 2}: {section[:6]}" in message
    assert "hunter2" not in without_secrets("cannot pull 'trainer:hunter2@registry.example/cpu:1'")


def overlay(name: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the namespace of k8s/overlays/<name>, and its objects of the base and of its own by kind and name."""
    folder = ROOT / "k8s" / "overlays" / name
    files = [*(ROOT / "k8s" / "base").glob("*.yaml"), *folder.glob("*.yaml")]
    objects = [
        manifest
        for file in files
        if file.name != "kustomization.yaml"
        for manifest in yaml.safe_load_all(file.read_text())
    ]
    namespace = yaml.safe_load((folder / "kustomization.yaml").read_text())["namespace"]
    return namespace, {f"{manifest['kind']} {manifest['metadata']['name']}": manifest for manifest in objects}


@pytest.mark.parametrize("name", ["kind", "gke"])
def test_an_environment_names_the_namespace_and_the_accounts_that_its_overlay_makes(name: str) -> None:
    environment, (namespace, objects) = environments.load(name), overlay(name)
    assert environment.namespace == namespace
    accounts = environment.service_accounts
    made = {key.partition(" ")[2] for key in objects if key.startswith("ServiceAccount ")}
    assert {accounts.run, accounts.worker, accounts.server} - {"", "default"} <= made
    if name == "gke":
        assert (accounts.run, accounts.worker) == ("trainyard-launcher", "trainyard-worker")
        without_token = {accounts.worker, accounts.server}
        assert len(without_token) == 2 and without_token == {
            manifest["metadata"]["name"]
            for key, manifest in objects.items()
            if key.startswith("ServiceAccount ") and manifest.get("automountServiceAccountToken") is False
        }
        bound = [manifest for key, manifest in objects.items() if key.startswith("RoleBinding ")]
        roles = {
            binding["roleRef"]["name"]
            for binding in bound
            if accounts.run in [one["name"] for one in binding["subjects"]]
        }
        assert roles == {"trainyard-gang", "trainyard-run"}


def nodes_of_kind() -> list[dict[str, Any]]:
    """Return the nodes that k8s/kind.yaml makes, as Kubernetes lists them; kind taints the control plane itself."""
    nodes = []
    for index, written in enumerate(yaml.safe_load((ROOT / "k8s" / "kind.yaml").read_text())["nodes"]):
        taints = [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]
        if written["role"] == "worker":
            patches = [yaml.safe_load(patch) for patch in written.get("kubeadmConfigPatches", [])]
            taints = [taint for patch in patches for taint in patch["nodeRegistration"]["taints"]]
        metadata = {"name": f"{written['role']}-{index}", "labels": written.get("labels", {})}
        room = {"cpu": "2", "memory": "8Gi", "pods": "110"}
        nodes.append({"metadata": metadata, "spec": {"taints": taints}, "status": {"allocatable": room}})
    return nodes


def test_every_pool_of_kind_has_its_nodes_and_every_node_its_pool() -> None:
    kind, nodes = environments.load("kind"), nodes_of_kind()
    reached = {name: count_nodes(pool, kind.platform, nodes, []).room for name, pool in kind.pools.items()}
    assert reached == {"cpu": 1, "small": 1, "training": 2, "gang": 2}
    assert all(reached[name] >= (pool.nodes or pool.max_workers) for name, pool in kind.pools.items())
    serving = {
        node["metadata"]["name"]: [
            name for name, pool in kind.pools.items() if count_nodes(pool, "kubernetes", [node], []).room
        ]
        for node in nodes
    }
    assert serving == {
        "control-plane-0": [],
        "worker-1": ["cpu", "small"],
        "worker-2": ["training", "gang"],
        "worker-3": ["training", "gang"],
    }
    assert kind.pool_of("train") is kind.pools["training"]


def test_an_unknown_environment_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(ConfigurationError) as error:
        environments.load("gk")
    assert str(error.value) == (
        "no environment 'gk'. Known: gke, kind, local, vertex, or the path of a YAML file. Did you mean 'gke'?"
    )


def test_an_unknown_pool_is_answered_with_the_nearest_name(tmp_path: Path) -> None:
    gke = (environments.BUNDLED / "gke.yaml").read_text()
    message = refusal(tmp_path, gke.replace("train: gpu-l4", "train: gpu-14"))
    assert message == (
        f"{tmp_path}/own.yaml:51: placement.train: no pool 'gpu-14'. Defined: cpu, small, gpu-l4, v5e-8, v5e-16. "
        "Did you mean 'gpu-l4'?"
    )


@pytest.mark.parametrize(
    ("old", "new", "place", "near"),
    [
        ("default: ", "defualt: ", "placement.defualt", "default"),
        ("default: ", "defalt: ", "placement.defalt", "default"),
        ("train: ", "tarin: ", "placement.tarin", "train"),
        ("placement:", "timeout_seconds: {evalute: 60}\nplacement:", "timeout_seconds.evalute", "evaluate"),
        ("placement:", "retries: {exprot: 2}\nplacement:", "retries.exprot", "export"),
    ],
)
def test_a_misspelt_step_is_answered_with_its_name(tmp_path: Path, old: str, new: str, place: str, near: str) -> None:
    local = f"target: kubeflow\nstorage: s3://bucket/runs\nimages: {{cpu: 'i:1'}}\npools:\n  cpu: {CPU_POOL}\n"
    written = local + "placement: {default: cpu, train: cpu}\n"
    (line,) = refusal(tmp_path, written.replace(old, new, 1)).splitlines()
    key = place.partition(".")[2]
    assert f"{place}: no step '{key}'. Known: default, check, preprocess, train, " in line
    assert line.endswith(f"Did you mean '{near}'?")


@pytest.mark.parametrize("step", ["train-1", "trainer", "retrain", "evaluation", "exporter", "publish", "defaults"])
def test_a_step_of_another_pipeline_may_have_any_other_name(tmp_path: Path, step: str) -> None:
    assert step in own(tmp_path, f"placement: {{default: cpu, {step}: cpu}}").placement


CPU_POOL = "{kind: cpu, resources: {requests: {cpu: 1, memory: 2Gi}, limits: {memory: 2Gi}}}"


def own(tmp_path: Path, lines: str) -> environments.Environment:
    file = tmp_path / "own.yaml"
    base = (
        f"target: kubeflow\nstorage: s3://bucket/runs\nimages: {{cpu: 'i:1', gpu: 'i:1'}}\npools:\n  cpu: {CPU_POOL}\n"
    )
    file.write_text(base + lines)
    return environments.load(str(file))


@pytest.mark.parametrize(
    ("accelerator", "memory", "words"),
    [
        ("h100x8", "800Mi", "800Mi of memory for a pod with 8 GPUs. Give at least 4Gi in .* Did you mean '800Gi'"),
        ("l4", "500Mi", "500Mi of memory for a pod with 1 GPU. Give at least 512Mi in .* Did you mean '500Gi'"),
        ("v5e-16", "1Gi", "1Gi of memory for a pod with 4 TPUs. Give at least 2Gi in requests and limits."),
        ("h100x8", "4Gi", ""),
    ],
)
def test_a_pods_memory_must_hold_the_hosts_side_of_its_accelerators(
    tmp_path: Path, accelerator: str, memory: str, words: str
) -> None:
    resources = f"{{requests: {{cpu: 4, memory: {memory}}}, limits: {{memory: {memory}}}}}"
    lines = f"  big: {{accelerator: {accelerator}, resources: {resources}}}\nplacement: {{default: cpu}}\n"
    if not words:
        assert own(tmp_path, lines).pools["big"].count == 8
        return
    with pytest.raises(ConfigurationError, match=f"pools.big.resources: {words}"):
        own(tmp_path, lines)


def test_all_inconsistencies_come_in_one_message(tmp_path: Path) -> None:
    message = refusal(tmp_path, "target: kubeflow\nstorage: runs\nplacement: {train: gpu}\n")
    assert [line.split(":")[2].strip() for line in message.splitlines()] == [
        "placement.train",
        "placement.default",
        "storage",
    ]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("kind: cpu", "kind: cpu\n    count: 1"), "a cpu pool has no accelerator, count or topology"),
        (("kind: cpu", "kind: gpu"), "accelerator: is required: the name of the gpu. Known: nvidia-tesla-t4"),
        (("kind: cpu", "kind: gpu\n    accelerator: nvidia-l40\n    count: 1"), "Did you mean 'nvidia-l4'?"),
        (("kind: cpu", "kind: gpu\n    accelerator: nvidia-l4"), "count: is required"),
        (("limits: {memory: 4Gi}", "limits: {memory: 8Gi}"), "requests.memory (4Gi) and limits.memory (8Gi) differ"),
        (("memory: 4Gi}, limits", "memory: 4 GB}, limits"), "pools.cpu.resources.requests.memory"),
        (("kind: cpu", "kind: cpu\n    nodeselector: {a: b}"), "Did you mean 'nodeSelector'?"),
        (("kind: cpu", "kind: cpu\n    queue: My Queue"), "launcher does not queue. Received: 'My Queue'."),
        (('images: {cpu: "example/cpu:1"}', "images: {}"), "images.cpu: is required"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(tmp_path: Path, change: tuple[str, str], sentence: str) -> None:
    assert change[0] in KUBEFLOW
    message = refusal(tmp_path, KUBEFLOW.replace(*change))
    assert sentence in message and "Known: ." not in message


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{count: 2}", "input_workers.pool: is required for target kubeflow: name a pool. Of kind cpu: cpu, small"),
        (
            "{count: 2, pool: smal}",
            "input_workers.pool: no pool 'smal'. Of kind cpu: cpu, small. Did you mean 'small'?",
        ),
        ("{count: 2, pool: v5e-8}", "input_workers.pool: 'v5e-8' is a tpu pool, and they use its cores alone."),
        ("{count: 65, pool: cpu}", "input_workers.count: Input should be less than or equal to 64"),
        ("{pool: cpu}", "input_workers.count: "),
    ],
)
def test_input_workers_that_cannot_be_are_refused(tmp_path: Path, line: str, sentence: str) -> None:
    gke = (environments.BUNDLED / "gke.yaml").read_text()
    assert load(tmp_path, f"{gke}input_workers: {{count: 2, pool: small}}\n").input_count == 2
    assert sentence in refusal(tmp_path, f"{gke}input_workers: {line}\n")


def test_input_workers_of_this_machine_have_no_pool_and_vertex_and_tensorflow_on_tpus_have_none(tmp_path: Path) -> None:
    local = "target: local\nstorage: runs\ninput_workers: "
    gke = (environments.BUNDLED / "gke.yaml").read_text().replace("train: gpu-l4", "train: v5e-8")
    message = refusal(tmp_path, f"{gke}input_workers: {{count: 2, pool: cpu}}\n")
    assert "input_workers: the tpu image has an older TensorFlow than the cpu image" in message
    assert load(tmp_path, local + "{count: 2}\n").input_count == 2
    assert "'cpu', and target local has no pools. Leave it out" in refusal(tmp_path, local + "{count: 2, pool: cpu}\n")
    vertex = (environments.BUNDLED / "vertex.yaml").read_text()
    message = refusal(tmp_path, f"{vertex}input_workers: {{count: 2, pool: cpu}}\n")
    assert "input_workers: a step of Vertex AI Pipelines is one machine. Leave it out" in message


@pytest.mark.parametrize(
    ("topology", "count", "sentence"),
    [
        ("2x3", 4, "topology: no slice '2x3'. Known: 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16. Did you mean '2x4'?"),
        ("2x4", 2, "count: a host of 2x4 has 8 or 4 chips, 2 was given"),
        (
            "4x4",
            4,
            "workers: 4x4 with 4 chips a host is 4 hosts, and a gang has one worker on each; 1 given. Give 4,",
        ),
        (
            "2x4",
            "8\n    workers: 2",
            "workers: 2x4 with 8 chips a host is 1 host, and a gang has one worker on each; 2 given. Give 1,",
        ),
    ],
)
def test_a_slice_that_would_stay_pending_for_ever_is_refused(
    tmp_path: Path, topology: str, count: int, sentence: str
) -> None:
    pool = f"kind: tpu\n    accelerator: tpu-v6e-slice\n    topology: {topology}\n    count: {count}"
    assert sentence in refusal(tmp_path, KUBEFLOW.replace("kind: cpu", pool))


@pytest.mark.parametrize(
    ("pool", "sentence"),
    [
        ("kind: cpu\n    engine: jax", "engine: JAX trains on gpu and tpu pools. Leave it out"),
        (
            "kind: tpu\n    accelerator: tpu-v6e-slice\n    topology: 4x4\n    count: 4\n    workers: 4\n"
            "    engine: tensorflow",
            "engine: TensorFlow trains on the TPUs of one host. Give jax, or leave it out",
        ),
        (
            "kind: tpu\n    accelerator: tpu7x\n    topology: 2x2x1\n    count: 4\n    engine: tensorflow",
            "engine: TensorFlow has no build for tpu7x. Give jax, or leave it out",
        ),
        (
            "kind: tpu\n    accelerator: tpu-v6e-slice\n    topology: 2x2\n    count: 4\n    engine: jax",
            "images.jax: is required, for steps are placed on the jax pool 'cpu'",
        ),
        (
            "kind: gpu\n    accelerator: nvidia-l4\n    count: 1\n    engine: jax",
            "images.jax-gpu: is required, for steps are placed on the jax-gpu pool 'cpu'",
        ),
        (
            "kind: gpu\n    accelerator: nvidia-l4\n    count: 1\n    workers: {min: 1, max: 2}\n    engine: jax",
            "engine: JAX trains on the GPUs of one node, and 2 workers are given. Give 1 worker, or leave engine out",
        ),
    ],
)
def test_an_engine_that_cannot_train_on_a_pool_is_refused(tmp_path: Path, pool: str, sentence: str) -> None:
    assert sentence in refusal(tmp_path, KUBEFLOW.replace("kind: cpu", pool))


@pytest.mark.parametrize(
    ("accelerator", "topology", "count", "engine", "expected"),
    [
        ("tpu-v6e-slice", "2x2", 4, "auto", "tensorflow"),
        ("tpu-v6e-slice", "2x2", 4, "jax", "jax"),
        ("tpu-v6e-slice", "4x8", 4, "auto", "jax"),
        ("tpu7x", "2x2x1", 4, "auto", "jax"),
    ],
)
def test_jax_trains_where_tensorflow_cannot_or_is_not_wanted(
    accelerator: str, topology: str, count: int, engine: str, expected: str
) -> None:
    resources = {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
    workers = hosts(topology, count)
    fields = {"accelerator": accelerator, "topology": topology, "count": count, "workers": workers, "engine": engine}
    pool = Pool.model_validate({"kind": "tpu", "resources": resources, **fields})
    assert (pool.trained_by, pool.variant) == (expected, "jax" if expected == "jax" else "tpu")
    assert training_variables(pool).get("TRAINYARD_ENGINE", "tensorflow") == expected


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("retries:", "deadline_seconds: 60\nretries:"), "deadline_seconds: only Kubeflow ends a run as a whole"),
        (("count: 1", "count: 1\n    evictable: true"), "pools.gpu-l4.evictable: Vertex AI Pipelines has none"),
        (("kind: cpu", "kind: cpu\n    nodeSelector: {a: b}"), "pools.cpu: Vertex AI has no nodeSelector"),
        (('limits: {cpu: "4", ', "limits: {"), "pools.cpu.resources.limits.cpu: is required"),
        (("count: 1", "count: 1\n    spot: true"), "pools.gpu-l4.spot"),
        (("count: 1", "count: 1\n    queue: research"), "pools.gpu-l4.queue: Vertex AI Pipelines has none"),
        (
            ("kind: cpu", "kind: cpu\n    nodeAffinity: [{key: a, operator: Exists}]"),
            "pools.cpu.nodeAffinity: Vertex AI",
        ),
        (("kind: cpu", "kind: cpu\n    priority_class: a"), "pools.cpu.priority_class: is for the workers of a gang"),
        (("retries:", "keep_seconds: 60\nretries:"), "keep_seconds: only Kubeflow deletes the pods"),
        (
            (
                "kind: gpu\n    accelerator: nvidia-l4\n",
                "kind: tpu\n    topology: 1x1\n    accelerator: tpu-v6e-slice\n",
            ),
            "pools.gpu-l4.accelerator: no step of Vertex AI Pipelines can ask for tpu-v6e-slice",
        ),
    ],
)
def test_what_vertex_would_silently_ignore_is_refused(tmp_path: Path, change: tuple[str, str], sentence: str) -> None:
    vertex = (environments.BUNDLED / "vertex.yaml").read_text()
    assert change[0] in vertex
    assert sentence in refusal(tmp_path, vertex.replace(*change))


BUNDLE = "ca_bundle: {config_map: company-ca, key: ca.crt}"
KEY = "storage_encryption: {kms_key: alias/runs}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"{LOCAL}{BUNDLE}", "ca_bundle: only pods of Kubeflow mount a ConfigMap or Secret. Leave it out. Set AWS_CA_"),
        (f"{KUBEFLOW}ca_bundle: {{key: ca.crt}}", "ca_bundle: takes config_map or secret, one of them"),
        (f"{KUBEFLOW}{BUNDLE[:-1]}, secret: other}}", "ca_bundle: takes config_map or secret, one of them"),
        (f"{KUBEFLOW}{BUNDLE}\nvariables: {{SSL_CERT_FILE: /ca}}", "ca_bundle: sets SSL_CERT_FILE, which the environ"),
        (f"{LOCAL}{KEY}", "storage_encryption: encrypts the objects of a bucket, and storage is '"),
        (f"{KUBEFLOW}{KEY}", "storage_encryption.kms_key: 'alias/runs' is no key of Cloud KMS. Give projects/PROJECT/"),
        (
            "target: local\nstorage: s3://bucket/runs\nstorage_encryption: {kms_key: projects/p/locations/l}",
            "storage_encryption.kms_key: 'projects/p/locations/l' is a key of Cloud KMS, and storage is in S3. Give id",
        ),
        (f"{LOCAL}storage_encryption: {{}}", "storage_encryption.kms_key: is required"),
    ],
)
def test_a_bundle_or_a_key_that_has_no_meaning_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    assert sentence in refusal(tmp_path, f"{text}\n")


def test_dataflow_encrypts_with_the_key_of_the_storage(tmp_path: Path) -> None:
    key = "projects/p/locations/eu/keyRings/r/cryptoKeys/k"
    options = "{project: p, region: r, sdk_container_image: i}"
    text = f"{KUBEFLOW}storage_encryption: {{kms_key: {key}}}\nbeam: {{runner: dataflow, options: {options}}}\n"
    assert f"--dataflow_kms_key={key}" in load(tmp_path, text).beam_options


def test_numbers_are_taken_as_kubernetes_quantities(tmp_path: Path) -> None:
    assert load(tmp_path, KUBEFLOW).pools["cpu"].resources.requests.cpu == "2"


def test_a_spot_gpu_pool_of_gke_selects_its_labels_and_tolerates_its_taints() -> None:
    pool = environments.load("gke").pools["gpu-l4"]
    assert placement(pool, "gke") == Placement(
        node_selector={"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-spot": "true"},
        tolerations=[
            Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule"),
            Toleration(key="cloud.google.com/gke-spot", value="true", effect="NoSchedule"),
        ],
        resource="nvidia.com/gpu",
        count=1,
    )


def test_a_tpu_slice_asks_for_the_chips_of_its_host() -> None:
    pool = environments.load("gke").pools["v5e-8"]
    needs = placement(pool, "gke")
    assert (needs.resource, needs.count) == ("google.com/tpu", 8)
    assert needs.node_selector == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x4",
    }
    assert needs.slice_label == ""


def test_a_slice_of_several_hosts_is_known_by_its_node_pool() -> None:
    needs = placement(environments.load("gke").pools["v5e-16"], "gke")
    assert (needs.resource, needs.count, needs.slice_label) == ("google.com/tpu", 4, "cloud.google.com/gke-nodepool")


def test_the_pools_own_labels_win_over_the_platforms() -> None:
    pool = (
        environments.load("gke")
        .pools["gpu-l4"]
        .model_copy(update={"node_selector": {"cloud.google.com/gke-spot": "false", "team": "a"}})
    )
    assert placement(pool, "gke").node_selector == {
        "cloud.google.com/gke-accelerator": "nvidia-l4",
        "cloud.google.com/gke-spot": "false",
        "team": "a",
    }


def test_a_folder_as_storage_needs_the_volume_that_it_is_on(tmp_path: Path) -> None:
    folder = KUBEFLOW.replace("gs://bucket/runs", "/mnt/runs/trainyard")
    volume = "volume: {claim: runs, path: /mnt/runs}"
    assert load(tmp_path, folder + volume).storage == "/mnt/runs/trainyard"
    assert "or a volume that all of them mount" in refusal(tmp_path, folder)
    elsewhere = folder.replace("/mnt/runs/trainyard", "/mnt/runs2") + volume
    assert "'/mnt/runs2' is not on the volume, which is mounted at /mnt/runs" in refusal(tmp_path, elsewhere)


def test_more_workers_than_nodes_are_refused(tmp_path: Path) -> None:
    pool = KUBEFLOW.replace("    kind: cpu\n", "    kind: cpu\n    workers: 4\n    nodes: 2\n")
    assert "workers: 4 on a pool of 2 nodes" in refusal(tmp_path, pool)


@pytest.mark.parametrize(
    ("workers", "sentence"),
    [
        ("{min: 4, max: 2}", "workers: min is 4, more than max, 2. Give {min: 2, max: 4}."),
        (
            "{min: 0, max: 2}",
            "workers.min: Input should be greater than or equal to 1. Received: '0'. The nearest that works is 1.",
        ),
        ("{max: 2}", "pools.here.workers.min: is required and missing."),
        ("{min: 2, max: 2, mean: 2}", "pools.here.workers.mean: unknown key. Allowed here: max, min."),
        ("0", "pools.here.workers: Input should be greater than or equal to 1. Received: '0'."),
        ("2\n    replace_seconds: 0", "replace_seconds: Input should be greater than or equal to 1. Received: '0'."),
        (
            "3\n    replace_seconds: 30",
            "replace_seconds: is for a gang that trains with fewer workers, and workers is 3. Leave it out, or give "
            "workers: {min: 1, max: 3}.",
        ),
        (
            "[2, 4]",
            "workers: is no number of workers and no range. Give 4, or {min: 2, max: 4}. Received: '[2, 4]'.",
        ),
        ("2-4", "workers: is no number of workers and no range. Give 4, or {min: 2, max: 4}. Received: '2-4'."),
        ("{min: 2, max: 4}\n    nodes: 3", "workers: 4 on a pool of 3 nodes"),
        (
            "{min: 2, max: 4}\n    replace_seconds: 900",
            "replace_seconds: 900 s, and start_deadline_seconds ends a gang without worker 0 after 900 s. "
            "Give less than 900, or raise start_deadline_seconds.",
        ),
        (
            "3",
            "pools.here.workers: on this machine the recipe says how many workers train, and 3 were given. "
            "Leave it out and set train.workers: 3, or give {min: 1, max: 3}.",
        ),
    ],
)
def test_a_range_of_workers_that_cannot_be_is_refused(tmp_path: Path, workers: str, sentence: str) -> None:
    assert sentence in refusal(tmp_path, LOCAL + RANGE.replace("{min: 2, max: 4}", workers, 1))


RANGE = f"pools:{CPU}\nplacement: {{train: here}}\n".replace("cpu:", "here:", 1).replace(
    "    kind: cpu\n", "    kind: cpu\n    workers: {min: 2, max: 4}\n"
)


def test_a_range_of_workers_is_refused_with_what_has_a_fixed_number(tmp_path: Path) -> None:
    assert load(tmp_path, LOCAL + RANGE).pools["here"].max_workers == 4
    assert load(tmp_path, LOCAL + RANGE + "input_workers: {count: 2}\n").input_count == 2
    ranged = KUBEFLOW.replace("    kind: cpu\n", "    kind: cpu\n    workers: {min: 2, max: 4}\n")
    assert load(tmp_path, ranged).pools["cpu"].min_workers == 2
    tpu = "kind: tpu\n    accelerator: tpu-v6e-slice\n    topology: 4x4\n    count: 4"
    message = refusal(tmp_path, ranged.replace("kind: cpu", tpu))
    assert (
        "workers: a TPU slice has a fixed shape, and 4x4 trains on all its hosts or on none. Give 4 instead" in message
    )


def elastic(tmp_path: Path, pool_workers: str, **train: Any) -> ElasticGang | None:
    environment = load(tmp_path, LOCAL + RANGE.replace("{min: 2, max: 4}", pool_workers))
    data, model = {"format": "image_folder", "bundled": "digits"}, {} if "command" in train else {"name": "cnn_small"}
    fields = {"name": "own", "data": data, "model": model, "train": train}
    return elastic_gang(Recipe.model_validate(fields), environment.pools["here"])


def test_a_gang_trains_with_the_numbers_of_workers_that_divide_its_batch(tmp_path: Path) -> None:
    assert elastic(tmp_path, "1", batch_size=64) is None
    gang = elastic(tmp_path, "{min: 1, max: 8}", batch_size=64)
    assert gang is not None and (gang.counts, gang.replace_seconds) == ([1, 2, 4, 8], 60)
    in_parts = elastic(tmp_path, "{min: 2, max: 6}", batch_size=240, accumulation_steps=2)
    assert in_parts is not None and in_parts.counts == [2, 3, 4, 5, 6]
    program = elastic(tmp_path, "{min: 1, max: 4}", batch_size=64, command=["a"])
    assert program is not None and program.counts == [1, 2, 4]
    mixed = elastic(tmp_path, "{min: 2, max: 6}", batch_size=60, augment={"mixup": 0.2})
    assert mixed is not None and mixed.counts == [2, 3, 5, 6]


@pytest.mark.parametrize(
    ("workers", "train", "sentence"),
    [
        (
            "{min: 2, max: 6}",
            {"batch_size": 64},
            "64 examples make no 6 equal parts, one a worker, for the pool's workers: {min: 2, max: 6}.",
        ),
        ("{min: 2, max: 6}", {"batch_size": 64}, "Give max: 4, or a batch of 66."),
        ("{min: 3, max: 8}", {"batch_size": 64}, "Give min: 4, or a batch of 72."),
        ("{min: 2, max: 4}", {"batch_size": 63}, "Give min: 3 and max: 3, or a batch of 64."),
        ("{min: 5, max: 7}", {"batch_size": 64}, "Give a batch of 70."),
        ("{min: 2, max: 4}", {"batch_size": 64, "workers": 2}, "train.workers: 2 processes were asked for"),
        ("{min: 2, max: 3}", {"batch_size": 32, "command": ["a"]}, "Give max: 2, or a batch of 30."),
    ],
)
def test_a_recipe_that_a_range_of_workers_cannot_train_is_refused(
    tmp_path: Path, workers: str, train: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        elastic(tmp_path, workers, **train)


LISTED = yaml.safe_load(
    """
target: kubeflow
storage: gs://bucket/runs
images: {cpu: "example/cpu:1", gpu: "example/gpu:1", tpu: "example/tpu:1", jax-gpu: "example/jax-gpu:1"}
pools:
  cpu: {kind: cpu}
  spot: {kind: gpu, accelerator: nvidia-l4, count: 1, spot: true}
  l4: {kind: gpu, accelerator: nvidia-l4, count: 1}
  jax: {kind: gpu, accelerator: nvidia-l4, count: 1, engine: jax}
  v5e-8: {kind: tpu, accelerator: tpu-v5-lite-podslice, topology: 2x4, count: 8}
  infer: {kind: gpu, accelerator: nvidia-l4, count: 1, trains: false}
placement: {default: cpu}
"""
)


def listed(placement: dict[str, Any], **changes: Any) -> str:
    """Return an environment with a list of pools, as text."""
    resources = {"requests": {"cpu": 2, "memory": "4Gi"}, "limits": {"memory": "4Gi"}}
    pools = {name: pool | {"resources": resources} for name, pool in LISTED["pools"].items()}
    return json.dumps(LISTED | {"pools": pools, "placement": LISTED["placement"] | placement} | changes)


def test_a_training_has_pools_in_the_order_in_which_they_are_tried(tmp_path: Path) -> None:
    environment = load(tmp_path, listed({"train": ["spot", "l4", "cpu"]}))
    assert environment.pool_names("train") == ["spot", "l4", "cpu"]
    assert (environment.pool_name("train"), environment.pool_names("push")) == ("spot", ["cpu"])
    assert environment.placed_pools == ["cpu", "spot", "l4"]


@pytest.mark.parametrize(
    ("placement", "sentence"),
    [
        (
            {"train": []},
            "placement.train: the list names no pool. Give one or more of cpu, spot, l4, jax, v5e-8, infer.",
        ),
        ({"train": ["spot", "l5"]}, "placement.train: no pool 'l5'. Defined: cpu, spot, l4, jax, v5e-8, infer."),
        ({"train": ["spot", "infr"]}, "Did you mean 'infer'?"),
        ({"train": ["spot", "l4", "spot"]}, "names 'spot' 2 times, and no pool is tried again. Give [spot, l4]."),
        (
            {"train": ["spot", "v5e-8", "l4"]},
            "placement.train: 'spot' trains with TensorFlow of the cpu and gpu images and 'v5e-8' with TensorFlow of "
            "the tpu image, and neither resumes from the other's checkpoints. Give [spot, l4].",
        ),
        ({"train": ["spot", "jax"]}, "and 'jax' with JAX of the jax-gpu image"),
        (
            {"train": ["spot", "infer"]},
            "placement.train: 'infer' cannot train: its pool says trains: false. The nearest that trains is 'spot'",
        ),
        (
            {"preprocess": ["spot", "l4"]},
            "placement.preprocess: only train, evaluate, export and predict take a list of pools: Kubeflow starts the "
            "pods of other steps, and places each once. Give one, such as l4.",
        ),
        ({"default": ["cpu"]}, "placement.default: only train, evaluate, export and predict take a list of pools"),
        (
            {"evaluate": ["spot", "v5e-8", "l4"]},
            "placement.evaluate: 'v5e-8' has TensorFlow of the tpu image, and the launcher on a cpu pool names the "
            "output by its own libraries. Give [spot, l4], or one pool.",
        ),
        ({"predict": ["jax"]}, "libraries. Give pools of kind cpu or gpu, or one pool."),
        ({"train": ["spot", 1]}, "placement.train.1: Input should be a valid string. Received: '1'."),
        ({"train": {"first": "spot"}}, "placement.train: Input should be a valid string."),
    ],
)
def test_a_list_of_pools_that_cannot_be_tried_in_turn_is_refused(
    tmp_path: Path, placement: dict[str, Any], sentence: str
) -> None:
    assert sentence in refusal(tmp_path, listed(placement))


@pytest.mark.parametrize("target", ["local", "vertex"])
def test_only_kubeflow_has_a_list_of_pools(tmp_path: Path, target: str) -> None:
    message = refusal(tmp_path, listed({"train": ["spot", "l4"]}, target=target))
    assert (
        f"placement.train: a list of pools is for target kubeflow, and this is {target}. Give one, such as spot."
        in (message)
    )


def test_a_pool_is_not_waited_for_longer_than_the_step_may_take(tmp_path: Path) -> None:
    for step in ("train", "export"):
        message = refusal(tmp_path, listed({step: ["spot", "l4"]}, timeout_seconds={step: 600}))
        assert f"'spot' may be waited for 600 s (pending_seconds), and timeout_seconds.{step} ends the step" in message
        assert load(tmp_path, listed({step: ["spot", "l4"]}, timeout_seconds={step: 601}))
        message = refusal(tmp_path, listed({step: ["spot", "l4", "cpu"]}, timeout_seconds={step: 1200}))
        assert "'spot' and 'l4' may be waited for 1200 s (pending_seconds)" in message
        assert "Give less than 1200 in all" in message


@pytest.mark.parametrize("key", ["preemptions", "pending_seconds"])
def test_a_budget_of_0_is_refused(tmp_path: Path, key: str) -> None:
    text = listed({"train": ["spot", "l4"]}).replace('"spot": true', f'"spot": true, "{key}": 0')
    assert f"pools.spot.{key}: Input should be greater than or equal to 1. Received: '0'." in refusal(tmp_path, text)
