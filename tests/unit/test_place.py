"""Placing the compiled pipeline gives what kfp and kfp-kubernetes calls in its body would have given."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import json_format
from kfp import dsl, kubernetes
from kfp.dsl import PipelineTask

from trainyard.errors import ConfigurationError
from trainyard.graph import STEPS
from trainyard.spec import environment as environments
from trainyard.spec.hardware.catalog import NodeRequirement
from trainyard.spec.hardware.pools import Pool
from trainyard.steps.evaluate.component import evaluate
from trainyard.steps.export.component import export
from trainyard.steps.preprocess.component import preprocess
from trainyard.steps.push.component import push
from trainyard.steps.train.component import train
from trainyard_control.catalog.train import train_pipeline
from trainyard_control.compiler.conditions import flattened
from trainyard_control.compiler.placement import bounded_retries, place, table

TaskChange = Callable[[PipelineTask, str], PipelineTask]


def documents(pipeline: Any) -> list[dict[str, Any]]:
    platform = json_format.MessageToDict(pipeline.platform_spec)
    return [json_format.MessageToDict(pipeline.pipeline_spec), *([platform] if platform else [])]


def written_with_calls(
    change: TaskChange, deadline: int | None = None, keep: int | None = None
) -> list[dict[str, Any]]:
    """The pipeline of the catalog, with every task passed through `hand` in its body."""
    config = dsl.PipelineConfig(active_deadline_seconds=deadline, ttl_seconds_after_finished=keep)

    @dsl.pipeline(name="trainyard-train", description=train_pipeline.description, pipeline_config=config)
    def expected_pipeline(
        recipe: str,
        storage: str,
        code: str = "",
        beam_options: str = "",
        gang: str = "",
        scheduled: str = "",
        again: str = "",
        about: str = "",
    ) -> None:
        shared = {"recipe": recipe, "storage": storage, "code": code}
        run_id = dsl.PIPELINE_JOB_ID_PLACEHOLDER
        own = {"run_id": run_id, "again": again}
        data = preprocess(**shared, **own, beam_options=beam_options, scheduled=scheduled)
        data.set_caching_options(False)
        examples = change(data, "preprocess").outputs["examples"]
        outputs = {name: data.outputs[name] for name in ("examples", "fingerprint", "plan")}
        trained = train(**shared, **outputs, gang=gang)
        model = change(trained, "train").outputs["model"]
        judged = evaluate(**shared, **own, examples=examples, model=model).set_caching_options(False)
        change(judged, "evaluate")
        with dsl.If(judged.outputs["Output"] == "blessed", name="evaluate-blessed"):
            decided = {name: judged.outputs[name] for name in ("maker", "thresholds")}
            files = change(export(**shared, examples=examples, model=model, **decided), "export")
            with dsl.If(files.outputs["Output"] == "blessed", name="export-blessed"):
                pushed = push(
                    **shared,
                    run_id=run_id,
                    evaluation=judged.outputs["evaluation"],
                    exported=files.outputs["exported"],
                )
                change(pushed.set_caching_options(False), "push")

    return documents(expected_pipeline)


def without_descriptions(spec: dict[str, Any]) -> dict[str, Any]:
    """Leave out what KFP reads from the pipeline's docstring."""
    spec = copy.deepcopy(spec)
    spec["pipelineInfo"].pop("description", None)
    for parameter in spec["root"]["inputDefinitions"]["parameters"].values():
        parameter.pop("description", None)
    return spec


def placed(environment: str) -> list[dict[str, Any]]:
    spec, *_ = documents(train_pipeline)
    return place(spec, environments.load(environment)).documents


def assert_equal(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Kubeflow's package, of two documents, has the conditions of Trainyard's steps flattened."""
    spec = theirs[0]
    if len(theirs) == 2:
        spec = flattened(spec, spec["deploymentSpec"]["executors"]["exec-push"]["container"]["image"])
    assert without_descriptions(ours[0]) == without_descriptions(spec)
    assert ours[1:] == theirs[1:]


def marked(task: PipelineTask, step: str, pool: str) -> PipelineTask:
    kubernetes.set_security_context(task, run_as_user=65532, run_as_non_root=True)
    return labeled(task, step, pool)


def labeled(task: PipelineTask, step: str, pool: str) -> PipelineTask:
    for key, value in {
        "app.kubernetes.io/name": "trainyard",
        "app.kubernetes.io/component": step,
        "trainyard/pool": pool,
    }.items():
        kubernetes.add_pod_label(task, key, value)
    if pool != "gpu-l4":  # of Spot
        kubernetes.add_pod_annotation(task, "cluster-autoscaler.kubernetes.io/safe-to-evict", "false")
        kubernetes.add_pod_annotation(task, "karpenter.sh/do-not-disrupt", "true")
    return task


def reaching_the_store_of_kind(task: PipelineTask) -> PipelineTask:
    task.set_env_variable("AWS_ENDPOINT_URL_S3", "http://seaweedfs.kubeflow:9000")
    task.set_env_variable("AWS_DEFAULT_REGION", "us-east-1")
    for variable, key in {"AWS_ACCESS_KEY_ID": "accesskey", "AWS_SECRET_ACCESS_KEY": "secretkey"}.items():
        kubernetes.use_secret_as_env(task, "mlpipeline-minio-artifact", {key: variable})
    return task


NEVER = "2147483647s"  # Argo ends all attempts of a step together at that time


def on_kind(task: PipelineTask, step: str) -> PipelineTask:
    pool = {"train": "training", "push": "small"}.get(step, "cpu")
    small = pool == "small"
    memory = "1Gi" if small else "3Gi"
    task.set_container_image("trainyard/cpu:0.1.0")
    reaching_the_store_of_kind(task)
    task.set_cpu_request("100m" if small else "500m").set_memory_request(memory).set_memory_limit(memory)
    task.set_retry(1, "30s", 2.0, NEVER)
    kubernetes.set_timeout(task, 1800)
    if pool == "training":
        kubernetes.add_node_selector(task, "trainyard/pool", "training")
        kubernetes.add_toleration(task, key="trainyard/pool", operator="Equal", value="training", effect="NoSchedule")
    return marked(task, step, pool)


def promise_an_l4(task: PipelineTask) -> None:
    task.set_env_variable("TRAINYARD_DEVICES", '{"kind": "gpu", "accelerator": "nvidia-l4", "count": 1}')


def on_gke(task: PipelineTask, step: str) -> PipelineTask:
    pool = {"train": "gpu-l4", "push": "small"}.get(step, "cpu")
    cpu, memory = {"gpu-l4": ("6", "24Gi"), "small": ("250m", "1Gi"), "cpu": ("4", "16Gi")}[pool]
    variant = "gpu" if pool == "gpu-l4" else "cpu"
    task.set_container_image(f"registry.example.com/trainyard/{variant}:0.1.0")
    task.set_cpu_request(cpu).set_memory_request(memory).set_memory_limit(memory)
    task.set_retry(5 if step == "train" else 2, "30s", 2.0, NEVER)
    kubernetes.set_timeout(task, 86400 if step == "train" else 7200)
    if pool == "gpu-l4":
        promise_an_l4(task)
        task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(1)
        kubernetes.add_node_selector(task, "cloud.google.com/gke-accelerator", "nvidia-l4")
        kubernetes.add_node_selector(task, "cloud.google.com/gke-spot", "true")
        kubernetes.add_toleration(task, key="nvidia.com/gpu", operator="Exists", effect="NoSchedule")
        kubernetes.add_toleration(
            task, key="cloud.google.com/gke-spot", operator="Equal", value="true", effect="NoSchedule"
        )
    return marked(task, step, pool)


def on_vertex(task: PipelineTask, step: str) -> PipelineTask:
    gpu = step == "train"
    if gpu:
        promise_an_l4(task)
    task.set_container_image(f"registry.example.com/trainyard/{'gpu' if gpu else 'cpu'}:0.1.0")
    task.set_cpu_limit("8" if gpu else "4").set_memory_limit("32G" if gpu else "16G")
    if gpu:
        task.set_accelerator_type("NVIDIA_L4").set_accelerator_limit(1)
    task.set_env_variable("TRAINYARD_TIMEOUT_SECONDS", str(STEPS[step].timeout_seconds))
    task.set_retry(2, "30s", 2.0, "600s")
    return task


DAY = 86400
ON_KIND = DAY + 5 * (2 * 1800 + 30)  # a day for waits; five steps tried twice, with their pauses
ON_GKE = DAY + 6 * DAY + 30 * 31 + 4 * (3 * 7200 + 30 * 3)


@pytest.mark.parametrize(
    ("environment", "change", "deadline"),
    [("kind", on_kind, ON_KIND), ("gke", on_gke, ON_GKE), ("vertex", on_vertex, None)],
)
def test_placing_equals_the_calls_of_kfp_in_the_body_for_every_step(
    environment: str, change: TaskChange, deadline: int | None
) -> None:
    assert_equal(placed(environment), written_with_calls(change, deadline))


def test_no_bound_on_all_attempts_together_ends_a_step_before_its_last_ones_timeout() -> None:
    """Argo kills a retry `backoffMaxDuration` after the first attempt's start, waits for nodes included."""
    kind = environments.load("kind")
    eager = kind.model_copy(update={"retries": {"default": 10}, "timeout_seconds": {"default": 7 * DAY}})
    spec = place(documents(train_pipeline)[0], eager).pipeline
    dags = [part["dag"] for part in (spec["root"], *spec["components"].values()) if "dag" in part]
    tasks = [task for dag in dags for task in dag["tasks"].values()]
    policies = [task["retryPolicy"] for task in tasks if "retryPolicy" in task]
    assert len(policies) == 5
    for policy in policies:
        assert (policy["backoffDuration"], policy["backoffFactor"]) == ("300s", 1.0)
        assert int(policy["backoffMaxDuration"].removesuffix("s")) > 11 * 7 * DAY + 10 * 300 + 365 * DAY


def test_a_local_environment_leaves_the_pipeline_as_it_was_compiled() -> None:
    assert placed("local") == documents(train_pipeline)


def test_vertex_gets_one_document_and_kubeflow_two() -> None:
    assert {name: len(placed(name)) for name in ("vertex", "kind", "gke")} == {"vertex": 1, "kind": 2, "gke": 2}


def test_placing_changes_no_argument_and_placing_again_changes_nothing() -> None:
    gke = environments.load("gke")
    spec, *_ = documents(train_pipeline)
    before = copy.deepcopy(spec)
    once = place(spec, gke)
    assert spec == before
    again = place(once.pipeline, gke, once.platform)
    assert again == once


@dsl.component(base_image="python:3.12", install_kfp_package=False)
def train_own(text: str) -> str:
    return text


def test_a_pipeline_of_ones_own_keeps_its_images_and_settings_however_deep_its_steps_are() -> None:
    def body(task_change: Callable[[PipelineTask], PipelineTask]) -> Any:
        @dsl.pipeline(name="own")
        def own() -> None:
            first = task_change(train_own(text="a"))
            with dsl.ParallelFor(["b", "c"]) as item, dsl.If(item == "b"):
                second = train_own(text=first.output).set_env_variable("AWS_DEFAULT_REGION", "eu-west-1")
                kubernetes.use_secret_as_env(second, secret_name="s", secret_key_to_env={"k": "K"})
                task_change(second)

        return own

    def change(task: PipelineTask) -> PipelineTask:
        task.set_cpu_request("500m").set_memory_request("3Gi").set_memory_limit("3Gi").set_retry(1, "30s", 2.0, NEVER)
        kubernetes.set_timeout(task, 1800)
        region = (task.container_spec.env or {}).get("AWS_DEFAULT_REGION")
        reaching_the_store_of_kind(task)
        if region:  # the second one
            task.set_env_variable("AWS_DEFAULT_REGION", region)
            kubernetes.add_pod_label(task, "trainyard/use", "2")
        return labeled(task, "train-own", "cpu")

    spec, platform = documents(body(lambda task: task))
    ours = place(spec, environments.load("kind"), platform)
    theirs = documents(body(change))
    assert ours.documents == theirs
    assert set(spec["deploymentSpec"]["executors"]) == {"exec-train-own", "exec-train-own-2"}


def one_step(change: Callable[[PipelineTask], Any]) -> list[dict[str, Any]]:
    @dsl.pipeline(name="own")
    def own() -> None:
        change(train_own(text="a"))

    return documents(own)


def own_step(
    environment: environments.Environment, change: Callable[[PipelineTask], Any] = lambda task: None
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return a placed step of somebody else's pipeline: its container, its platform config and its task."""
    placed = place(*(written := one_step(change))[:1], environment, *written[1:])
    assert placed.platform is not None
    return (
        placed.pipeline["deploymentSpec"]["executors"]["exec-train-own"]["container"],
        placed.platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train-own"],
        placed.pipeline["root"]["dag"]["tasks"]["train-own"],
    )


def test_what_the_author_of_a_pipeline_set_stays() -> None:
    def change(task: PipelineTask) -> None:
        task.set_memory_limit("512Mi").set_cpu_request("50m").set_retry(4, "1s", 1.0, "2s")
        kubernetes.set_timeout(task, 60)
        kubernetes.set_security_context(task, run_as_user=1000, run_as_non_root=True)
        kubernetes.add_node_selector(task, "trainyard/pool", "mine")
        kubernetes.add_pod_label(task, "app.kubernetes.io/name", "mine")
        kubernetes.use_secret_as_env(task, "mine", {"id": "AWS_ACCESS_KEY_ID"})
        kubernetes.use_config_map_as_env(task, "mine", {"region": "AWS_DEFAULT_REGION"})

    before = one_step(change)
    kind = environments.load("kind")
    kind = kind.model_copy(update={"placement": {"default": "training"}, "run_as_user": 65532})
    container, config, task = own_step(kind, change)
    executor = before[0]["deploymentSpec"]["executors"]["exec-train-own"]["container"]
    assert container["resources"] == executor["resources"]  # a request of the pool's would not fit the author's limit
    assert task["retryPolicy"] == before[0]["root"]["dag"]["tasks"]["train-own"]["retryPolicy"]
    assert (config["activeDeadlineSeconds"], config["securityContext"]["runAsUser"]) == ("60", "1000")
    assert config["nodeSelector"] == {"labels": {"trainyard/pool": "mine"}}
    assert config["podMetadata"]["labels"]["app.kubernetes.io/name"] == "mine"
    secrets = [(one["secretName"], key["envVar"]) for one in config["secretAsEnv"] for key in one["keyToEnv"]]
    assert secrets == [("mine", "AWS_ACCESS_KEY_ID"), ("mlpipeline-minio-artifact", "AWS_SECRET_ACCESS_KEY")]
    assert {one["name"] for one in container["env"]} == {"AWS_ENDPOINT_URL_S3", "HOME"}


def test_a_step_that_is_not_trainyards_keeps_the_user_of_its_image_unless_the_environment_names_one() -> None:
    kind = environments.load("kind")
    container, config, _ = own_step(kind)
    assert "securityContext" not in config and "HOME" not in {one["name"] for one in container["env"]}
    container, config, _ = own_step(kind.model_copy(update={"run_as_user": 65532}))
    assert config["securityContext"] == {"runAsUser": "65532", "runAsNonRoot": True}
    assert {"name": "HOME", "value": "/tmp"} in container["env"]


@pytest.mark.parametrize(
    ("count", "size", "mounted"), [(1, None, ""), (1, "8Gi", "8Gi"), (2, None, "1Gi"), (2, "8Gi", "8Gi")]
)
def test_a_step_with_several_gpus_or_a_size_has_shared_memory_as_kfp_mounts_it(
    count: int, size: str | None, mounted: str
) -> None:
    gke = environments.load("gke")
    pool = gke.pools["gpu-l4"].model_copy(update={"count": count, "shared_memory": size})
    gke = gke.model_copy(update={"pools": gke.pools | {"gpu-l4": pool}, "placement": {"default": "gpu-l4"}})

    def change(task: PipelineTask, path: str = "/dev/shm", size: str = mounted) -> None:
        kubernetes.empty_dir_mount(task, "shared-memory", path, medium="Memory", size_limit=size)

    def mounts(config: dict[str, Any]) -> Any:
        return config.get("emptyDirMounts")

    by_kfp = one_step(change)[1]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train-own"]
    assert mounts(own_step(gke)[1]) == (mounts(by_kfp) if mounted else None)
    ((own,)) = mounts(own_step(gke, lambda task: change(task, size="1Gi"))[1])
    assert own["sizeLimit"] == "1Gi"


def test_affinity_pull_secrets_disk_and_the_time_to_live_are_what_kfp_compiles() -> None:
    requirement = NodeRequirement(key="zone", operator="In", values=["a", "b"])
    changes = {"node_affinity": [requirement], "ephemeral_storage": "50Gi", "queue": "research"}
    kind = environments.load("kind")
    pools = {name: pool.model_copy(update=changes) for name, pool in kind.pools.items()}
    environment = kind.model_copy(
        update={"pools": pools, "image_pull_secrets": ["login"], "keep_seconds": 7200, "deadline_seconds": 0}
    )

    def hand(task: PipelineTask, step: str) -> PipelineTask:
        on_kind(task, step).set_accelerator_type("ephemeral-storage").set_accelerator_limit(50 * 2**30)
        kubernetes.add_node_affinity(task, [{"key": "zone", "operator": "In", "values": ["a", "b"]}])
        kubernetes.set_image_pull_secrets(task, ["login"])
        kubernetes.empty_dir_mount(task, volume_name="tmp", mount_path="/tmp", size_limit="50Gi")
        return kubernetes.add_pod_label(task, "kueue.x-k8s.io/queue-name", "research")

    spec, *_ = documents(train_pipeline)
    placed = place(spec, environment)
    assert_equal(placed.documents, written_with_calls(hand, keep=7200))
    assert place(placed.pipeline, environment, placed.platform) == placed


def test_an_author_hears_that_kubeflow_ends_all_attempts_of_a_task_together() -> None:
    @dsl.component(base_image="their/own:1")
    def train_own() -> None: ...

    @dsl.pipeline(name="own")
    def own() -> None:
        train_own().set_retry(2, "30s")

    kind = environments.load("kind").model_copy(update={"retries": {}, "timeout_seconds": {}})
    spec, *_ = documents(own)
    (warning,) = bounded_retries(place(spec, kind), kind)
    assert warning.startswith("train-own: its 2 retries end 3600 s after the first attempt began, the running one too")
    short = kind.model_copy(update={"timeout_seconds": {"default": 1000}})
    assert bounded_retries(place(spec, short), short) == []
    longer = kind.model_copy(update={"timeout_seconds": {"default": 1200}})
    assert len(bounded_retries(place(spec, longer), longer)) == 1
    vertex = environments.load("vertex").model_copy(update={"retries": {}})
    assert bounded_retries(place(spec, vertex), vertex) == []


def test_a_volume_is_mounted_in_every_step_as_kfp_mounts_a_claim() -> None:
    volume = {"claim": "runs", "path": "/mnt/runs"}
    kind = environments.load("kind").model_copy(update={"volume": environments.Volume.model_validate(volume)})

    def change(task: PipelineTask, step: str) -> PipelineTask:
        return kubernetes.mount_pvc(on_kind(task, step), "runs", "/mnt/runs")

    once = place(documents(train_pipeline)[0], kind)
    assert_equal(once.documents, written_with_calls(change, ON_KIND))
    assert place(once.pipeline, kind, once.platform) == once


@pytest.mark.parametrize("kind", ["config_map", "secret"])
def test_a_bundle_of_certificates_is_mounted_in_every_step_as_kfp_mounts_it(kind: str) -> None:
    bundle = environments.CaBundle.model_validate({kind: "company-ca", "key": "ca.crt"})
    environment = environments.load("kind").model_copy(update={"ca_bundle": bundle})
    use = kubernetes.use_secret_as_volume if kind == "secret" else kubernetes.use_config_map_as_volume

    def change(task: PipelineTask, step: str) -> PipelineTask:
        for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
            task.set_env_variable(name, "/etc/trainyard/ca/ca.crt")
        return use(on_kind(task, step), "company-ca", "/etc/trainyard/ca")

    once = place(documents(train_pipeline)[0], environment)
    assert_equal(once.documents, written_with_calls(change, ON_KIND))
    assert place(once.pipeline, environment, once.platform) == once


def test_a_step_that_the_pipeline_does_not_have_is_answered_with_the_nearest_name() -> None:
    kind = environments.load("kind")
    wrong = kind.model_copy(update={"placement": kind.placement | {"trian": "cpu"}, "retries": {"exprot": 1}})
    with pytest.raises(ConfigurationError) as error:
        place(documents(train_pipeline)[0], wrong)
    first, second = str(error.value).splitlines()
    assert "placement.trian: no step 'trian'" in first
    assert first.endswith("Did you mean 'train'?")
    assert second.endswith("Did you mean 'export'?")


@pytest.mark.parametrize(("cpu", "cores"), [("100m", 0.1), ("0.5", 0.5), ("4", 4.0)])
@pytest.mark.parametrize(
    ("memory", "gigabytes"),
    [("1Gi", 1.073741824), ("512Mi", 0.536870912), ("1500M", 1.5), ("2Ti", 2199.023255552), ("1000000000", 1.0)],
)
def test_quantities_have_the_value_that_kfp_gives_them(cpu: str, cores: float, memory: str, gigabytes: float) -> None:
    kind = environments.load("kind")
    resources = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}}
    pool = Pool.model_validate({"kind": "cpu", "resources": resources})
    spec = place(documents(train_pipeline)[0], kind.model_copy(update={"pools": kind.pools | {"cpu": pool}})).pipeline
    written = spec["deploymentSpec"]["executors"]["exec-preprocess"]["container"]["resources"]
    assert written["cpuRequest"] == pytest.approx(cores)
    assert written["memoryLimit"] == pytest.approx(gigabytes)


@pytest.mark.parametrize(
    ("kind", "changes", "variant"),
    [("tpu", {}, "tpu"), ("tpu", {"engine": "jax"}, "jax"), ("gpu", {"engine": "jax"}, "jax-gpu")],
)
def test_every_step_knows_the_image_that_trains_if_its_libraries_are_others(
    kind: str, changes: Any, variant: str
) -> None:
    gke = environments.load("gke")
    name, pool = next((name, pool) for name, pool in gke.pools.items() if pool.kind == kind)
    pools, images = gke.pools | {name: pool.model_copy(update=changes)}, gke.images | {"jax-gpu": "example/jax-gpu:1"}
    placement = gke.placement | {"train": name}
    gke = gke.model_copy(update={"pools": pools, "placement": placement, "images": images})
    executors = place(documents(train_pipeline)[0], gke).pipeline["deploymentSpec"]["executors"].values()
    trainer = {"name": "TRAINYARD_TRAINER", "value": variant}
    assert all(trainer in executor["container"]["env"] for executor in executors)
    local_libraries = place(documents(train_pipeline)[0], environments.load("kind"))
    assert "TRAINYARD_TRAINER" not in str(local_libraries.pipeline)


@dsl.component(base_image="python:3.12", install_kfp_package=False)
def train_1(text: str) -> str:
    return text + "1"


@dsl.component(base_image="python:3.12", install_kfp_package=False)
def train_own_2(text: str) -> str:
    return text + "2"


@dsl.pipeline(name="twins")
def twins() -> None:
    """Components whose names look like second uses, and second uses of both."""
    first = train_own(text="a")
    second = train_own(text=first.output).set_cpu_limit("1")
    third = train_own_2(text=second.output)
    fourth = train_own_2(text=third.output).set_cpu_limit("1")
    fifth = train_1(text=fourth.output)
    train_1(text=fifth.output).set_cpu_limit("1")


def test_a_component_is_known_by_its_program_and_not_by_a_number_in_its_name() -> None:
    kind = environments.load("kind")
    names = {"default": "cpu", "train-1": "small", "train-own-2": "training"}
    kind = kind.model_copy(update={"placement": names})
    spec, *_ = documents(twins)
    rows = {task: (step, pool) for task, step, pool, _ in table(spec, kind)}
    assert sorted(rows.values()) == [
        *[("train-1", "small")] * 2,
        *[("train-own", "cpu")] * 2,
        *[("train-own-2", "training")] * 2,
    ]
    platform = place(spec, kind).platform
    assert platform is not None
    configs = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values()
    uses = [
        (labels["trainyard/pool"], labels.get("trainyard/use"))
        for labels in (c["podMetadata"]["labels"] for c in configs)
    ]
    assert sorted(uses, key=str) == sorted(
        [(pool, use) for pool in ("small", "cpu", "training") for use in (None, "2")], key=str
    )


@pytest.mark.parametrize(
    ("change", "pool", "sentence"),
    [
        (lambda task: task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(1), "cpu", "has no accel"),
        (lambda task: task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(4), "gpu-l4", "has 1 x nvidia"),
        (lambda task: task.set_accelerator_type("amd.com/gpu").set_accelerator_limit(1), "gpu-l4", "has 1 x nvidia"),
        (lambda task: task.set_memory_request("900Gi"), "gpu-l4", "has nodes of g2-standard-8"),
        (lambda task: task.set_cpu_request("64"), "gpu-l4", "has nodes of g2-standard-8"),
    ],
)
def test_a_request_that_no_node_of_the_pool_meets_is_refused(
    change: Callable[[PipelineTask], Any], pool: str, sentence: str
) -> None:
    gke = environments.load("gke")
    l4 = gke.pools["gpu-l4"].model_copy(update={"machine": "g2-standard-8"})
    gke = gke.model_copy(update={"placement": {"default": pool}, "pools": gke.pools | {"gpu-l4": l4}})
    with pytest.raises(ConfigurationError, match=rf"the step 'train-own' requests .* and pool '{pool}' {sentence}"):
        own_step(gke, change)

    def on_own_nodes(task: PipelineTask) -> None:
        change(task)
        kubernetes.add_node_selector(task, "mine", "yes")

    own_step(gke, on_own_nodes)


def test_each_request_that_no_node_meets_has_a_line_of_its_own() -> None:
    with pytest.raises(ConfigurationError) as refused:
        own_step(environments.load("gke"), lambda task: task.set_memory_request("9000Gi").set_cpu_request("900"))
    start = "gke.yaml: placement: the step 'train-own' requests "
    assert [line.startswith(start) for line in str(refused.value).splitlines()] == [True, True]


def test_a_request_that_the_pool_meets_is_placed() -> None:
    gke = environments.load("gke")
    gke = gke.model_copy(update={"placement": {"default": "gpu-l4"}})
    container, *_ = own_step(gke, lambda task: task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(1))
    assert container["resources"]["accelerator"]["resourceCount"] == "1"
