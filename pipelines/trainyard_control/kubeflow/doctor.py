"""Runs the checks of `doctor`. It leaves a probe file in the storage, and starts pods only if it is asked to."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata

from trainyard.contract import gang
from trainyard.errors import ExitCode, InfrastructureError, TrainyardError
from trainyard.kubernetes import client, kueue, labels
from trainyard.kubernetes.client import Cluster, Manifest
from trainyard.spec.environment import LISTED, Environment
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage
from trainyard.storage.buckets import s3
from trainyard_control.cluster import argo, checks, image_pods
from trainyard_control.cluster.checks import Check, bad, good, pool_pod, unknown
from trainyard_control.cluster.egress import way
from trainyard_control.cluster.environments import ENDPOINTS
from trainyard_control.cluster.queues import Quota, admission, cohort_of, flavors_of, pod_integration
from trainyard_control.kubeflow.kubeflow_api import KubeflowServer

_ACCOUNT = "DEFAULTPIPELINERUNNERSERVICEACCOUNT"
_VIEWER = "viewer"  # the role in Kubeflow's dashboard that may not start runs
_ACCESS = ("GOOGLE_", "STORAGE_EMULATOR_HOST")  # prefixes of variables that give access to a bucket


def examine(environment: Environment, recipe: Recipe | None, contents: bool = False) -> Iterator[Check]:
    """Yield the checks of the environment, and of `recipe` if one is given. contents: start a pod of each image."""
    if recipe is not None:
        yield from _guarded("recipe", lambda: _recipe(recipe, environment))
    yield from (checks.image(variant, name) for variant, name in environment.images.items())
    if recipe is not None and recipe.train.image:
        yield checks.image("train", recipe.train.image)
    yield from _guarded("storage", lambda: _storage(environment))
    if environment.target == "kubeflow":
        yield from _guarded("kubeflow", lambda: _kubeflow(environment))
        yield from _guarded("kubernetes", lambda: _kubernetes(environment))
        if contents:
            yield from _guarded("contents of images", lambda: _contents(environment, recipe))
    elif environment.target == "vertex":
        yield unknown("vertex", "the project, its permissions and quotas are not checked")


def _guarded(name: str, look: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """Yield the checks of `look`; an error becomes one bad check."""
    try:
        yield from look()
    except TrainyardError as error:
        code = error.exit_code if error.exit_code in checks.SEVERITY else ExitCode.CONFIGURATION
        yield bad(name, str(error).rstrip("."), code)


def _recipe(recipe: Recipe, environment: Environment) -> Iterator[Check]:
    from trainyard_control.compiler.compilation import compiled, with_code

    placed = compiled(with_code(recipe, environment)[0], environment)
    yield good("recipe", f"{recipe.name} compiles for {environment.name} ({len(placed.documents)} documents)")


def _storage(environment: Environment) -> Iterator[Check]:
    root = environment.storage
    if environment.volume and not storage.is_bucket(root):
        yield unknown("storage", f"{root} is on the volume '{environment.volume.claim}', which is not mounted here")
        return
    if root.startswith("s3://"):
        try:
            s3.connect()
        except TrainyardError as error:
            yield unknown("storage", f"{root} cannot be checked from here: {str(error).rstrip('.')}")
            return
    access = [name for name in (*environment.variables, *environment.secrets) if name.startswith(_ACCESS)]
    if storage.is_bucket(root) and (missing := [name for name in access if name not in os.environ]):
        yield unknown(
            "storage", f"{root} is reached with {', '.join(missing)}, which the pods have and this shell has not"
        )
        return
    probe = storage.join(root, f".doctor-{secrets.token_hex(4)}")
    storage.write_text(probe, "probe")
    read = storage.read_text(probe)
    storage.remove(probe)
    if read == "probe":
        yield good("storage", f"{root} can be written and read from here")
    else:
        yield bad("storage", f"{root} does not give back what was written. Name another storage")


def _kubeflow(environment: Environment) -> Iterator[Check]:
    server = KubeflowServer(environment)
    theirs = server.version()
    yield good("kubeflow", f"{server.host} answers")
    yield checks.version(theirs, metadata.version("kfp"))
    multi_user = server.multi_user()
    yield checks.space(environment, multi_user)
    if server.login.source or multi_user:
        yield from _person(environment, server, multi_user)


def _person(environment: Environment, server: KubeflowServer, multi_user: bool) -> Iterator[Check]:
    """Check who the login is, and that it may run in the environment's namespace."""
    group, (named, expires) = server.workgroup(), server.login.user()
    user, source = str(group.get("user") or named), server.login.source
    until = f", until {datetime.fromtimestamp(expires, UTC):%Y-%m-%d %H:%M} UTC" if expires else ""
    by = f", by {source}{until}" if source else ""
    yield good("kubeflow login", f"you are {user}{by}") if user else unknown("kubeflow login", f"no name{by}")
    if not multi_user:
        return
    own = environment.namespace
    spaces = {str(one.get("namespace")): str(one.get("role")) for one in group.get("namespaces") or []}
    role = spaces.get(own, "")
    try:
        if experiment := server.find_experiment():
            server.try_to_run(experiment)
    except InfrastructureError as error:
        permitted = ", ".join(f"{name} ({role})" for name, role in spaces.items())
        why = f"you may not run in '{own}'. You may in: {permitted}. Set namespace, or be added as a contributor"
        yield bad("your namespace", why if permitted and not role else str(error).rstrip("."))
        return
    if role == _VIEWER:
        yield bad("your namespace", f"you may only look at runs in '{own}' ({role}). Be added as a contributor")
    elif experiment or role:
        yield good("your namespace", f"you may run in '{own}'" + (f" ({role})" if role else ""))
    else:
        yield unknown(
            "your namespace", f"you may look at runs in '{own}'; the first submit shows whether you may start them"
        )


def _kubernetes(environment: Environment) -> Iterator[Check]:
    cluster = client.connect(environment.namespace)
    space = _allowed(cluster, f"/api/v1/namespaces/{environment.namespace}")
    if space is _REFUSED:
        yield unknown("namespace", f"{environment.namespace}: may not be read")
    elif space is None:
        yield bad(
            "namespace",
            f"no namespace '{environment.namespace}'. Create it, or correct namespace",
            ExitCode.CONFIGURATION,
        )
        return
    else:
        yield good("namespace", f"{environment.namespace} exists")
        yield checks.pod_security(space)
    yield from _rights(cluster, environment)
    yield from _objects(cluster, environment)
    path = f"/api/v1/namespaces/{environment.kubeflow.namespace}/configmaps/workflow-controller-configmap"
    config = _allowed(cluster, path)
    read = None if config is _REFUSED else config
    yield from _way(cluster, environment)
    yield from _queues(cluster, environment, space, read)
    yield from _pools(cluster, environment, read)
    yield _controller(cluster, environment.kubeflow.namespace)
    yield checks.retries(read, environment.kubeflow.namespace)
    yield checks.deadlines(read, environment.kubeflow.namespace)


def _contents(environment: Environment, recipe: Recipe | None) -> Iterator[Check]:
    """Look into the images of the steps, each in a pod."""
    cluster = client.connect(environment.namespace)
    if missing := [_permission(need) for need in checks.POD_NEEDS if not _is_allowed(cluster, need)]:
        yield unknown("contents of images", f"you may not {', '.join(missing)} in {environment.namespace}")
        return
    variants = dict.fromkeys(environment.pools[name].variant for name in checks.used_pools(environment))
    images = {f"contents of image {variant}": (variant, environment.images[variant]) for variant in variants}
    if recipe is not None and recipe.train.image:
        images["contents of image train"] = (environment.pool_of(gang.STEP).variant, recipe.train.image)
    yield from image_pods.look(cluster, environment, images)


def _controller(cluster: Cluster, namespace: str) -> Check:
    try:
        since = argo.silent_since(cluster, namespace)
    except InfrastructureError:
        return unknown("workflow controller", f"its Lease in namespace {namespace} may not be read")
    if since is None:
        return unknown("workflow controller", f"there is no Lease workflow-controller in namespace {namespace}")
    if since:
        return bad("workflow controller", argo.silence_sentence(since, namespace))
    return good("workflow controller", "runs")


def _rights(cluster: Cluster, environment: Environment) -> Iterator[Check]:
    """Ask the API server for the permissions of the caller and of the launcher's account."""
    missing = [_permission(need) for need in checks.PERSON_NEEDS if not _is_allowed(cluster, need)]
    if missing:
        yield bad(
            "your rights", f"you may not {', '.join(missing)} in {environment.namespace}: runs and explain need it"
        )
    else:
        yield good("your rights", "all that runs and explain need")
    if not any(gang.launches(environment, step) for step in LISTED):
        return
    namespace = environment.kubeflow.namespace
    account = environment.service_accounts.run or _default_account(cluster, namespace)
    if not account:
        yield unknown(
            "launcher's rights",
            "service_accounts.run is empty, and which account Kubeflow gives its runs may not be read (Deployment "
            f"ml-pipeline in namespace {namespace}). Name it in service_accounts.run",
        )
        return
    try:
        lacking = [_permission(need) for need in checks.LAUNCHER_NEEDS if not _is_allowed(cluster, need, account)]
    except InfrastructureError:
        yield unknown("launcher's rights", f"you may not ask what the account '{account}' may do")
        return
    if lacking:
        yield bad(
            "launcher's rights",
            f"the account '{account}' may not {', '.join(lacking)}. Apply k8s/base/gang-rbac.yaml, and bind its Role: "
            f"kubectl -n {cluster.namespace} create rolebinding trainyard-gang-runs --role=trainyard-gang "
            f"--serviceaccount={cluster.namespace}:{account}",
        )
    else:
        yield good("launcher's rights", f"the account '{account}' may launch gangs")


def _default_account(cluster: Cluster, namespace: str) -> str:
    """Return the account that Kubeflow gives a run without one, '' if its API server's settings may not be read.

    Source: Kubeflow Pipelines 2.17.0, backend/src/apiserver/common (GetStringConfigWithDefault of `_ACCOUNT`).
    """
    deployment = _allowed(cluster, f"/apis/apps/v1/namespaces/{namespace}/deployments/ml-pipeline")
    if deployment is None or deployment is _REFUSED:
        return ""
    for container in deployment["spec"]["template"]["spec"]["containers"]:
        own: Manifest = next((entry for entry in container.get("env") or [] if entry["name"] == _ACCOUNT), {})
        if own.get("value"):
            return str(own["value"])
        maps = [(source.get("configMapRef") or {}).get("name") for source in container.get("envFrom") or []]
        settings = [(name, _ACCOUNT) for name in maps if name]
        if key := (own.get("valueFrom") or {}).get("configMapKeyRef"):
            settings.insert(0, (key["name"], key["key"]))
        for name, entry in settings:
            config = _allowed(cluster, f"/api/v1/namespaces/{namespace}/configmaps/{name}")
            if config is _REFUSED:
                return ""
            if value := ((config or {}).get("data") or {}).get(entry):
                return str(value)
    return "pipeline-runner"


def _objects(cluster: Cluster, environment: Environment) -> Iterator[Check]:
    """Check that accounts, Secrets, the volume and priority classes of the environment exist."""
    space = f"/api/v1/namespaces/{environment.namespace}"
    accounts = environment.service_accounts
    for name in dict.fromkeys(filter(None, (accounts.run, accounts.worker, accounts.server))):
        yield _exists(_allowed(cluster, f"{space}/serviceaccounts/{name}"), f"service account {name}")
    named = [*(source.secret for source in environment.secrets.values()), *environment.image_pull_secrets]
    for name in dict.fromkeys(named):
        yield _exists(_allowed(cluster, f"{space}/secrets/{name}"), f"secret {name}", "; its keys are not checked")
    if bundle := environment.ca_bundle:
        kind, title = ("secrets", "secret") if bundle.secret else ("configmaps", "config map")
        found = _allowed(cluster, f"{space}/{kind}/{bundle.secret or bundle.config_map}")
        yield _exists(found, f"{title} {bundle.secret or bundle.config_map}")
    if environment.volume:
        claim = _allowed(cluster, f"{space}/persistentvolumeclaims/{environment.volume.claim}")
        yield (unknown("volume", "may not be read") if claim is _REFUSED else checks.claim(environment, claim))
    pools = [environment.pools[name] for name in checks.used_pools(environment)]
    for name in dict.fromkeys(pool.priority_class for pool in pools if pool.priority_class):
        found = _allowed(cluster, f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")
        yield _exists(found, f"priority class {name}")


def _way(cluster: Cluster, environment: Environment) -> Iterator[Check]:
    """Check that the pods of steps may connect to the endpoint of their storage."""
    endpoint = next((environment.variables[name] for name in ENDPOINTS if name in environment.variables), "")
    if not endpoint or not environment.storage.startswith("s3://"):
        return
    found = _allowed(cluster, f"/apis/networking.k8s.io/v1/namespaces/{environment.namespace}/networkpolicies")
    if found is _REFUSED or found is None:
        yield unknown("way to the storage", "NetworkPolicies may not be read")
    else:
        yield way(endpoint, environment.namespace, found["items"], labels.step_labels(gang.STEP))


def _queues(
    cluster: Cluster, environment: Environment, namespace: Manifest, controller: Manifest | None
) -> Iterator[Check]:
    """Check that the LocalQueues of the pools exist, and that their quota can hold a gang or a step of the pool.

    controller: the ConfigMap of the workflow controller, None if it cannot be read.
    """
    pools = {name: environment.pools[name].queue for name in checks.used_pools(environment)}
    queues = dict.fromkeys(filter(None, pools.values()))
    found = {queue: _kueue(cluster, f"namespaces/{environment.namespace}/localqueues/{queue}") for queue in queues}
    remedy = "Install Kueue and create the LocalQueue, or take it out of the pool"
    yield from (_exists(found[queue], f"queue {queue}", remedy=remedy) for queue in queues)
    if not any(queue not in (None, _REFUSED) for queue in found.values()):
        return
    if any(queue and checks.has_step_pods(environment, name) for name, queue in pools.items()):
        config = _allowed(cluster, "/api/v1/namespaces/kueue-system/configmaps/kueue-manager-config")
        yield pod_integration(None if config is _REFUSED else config)
    own = namespace.get("metadata", {}).get("labels")
    for name, queue in pools.items():
        local_queue = found.get(queue)
        if local_queue and local_queue is not _REFUSED:
            quota = _quota(cluster, local_queue)
            if quota is None:
                yield unknown(f"quota of queue {queue}", "its ClusterQueue may not be read")
                continue
            count = checks.queued_pods(environment, name)
            pod = checks.with_argo(pool_pod(environment, name), controller)
            yield admission(name, pod, count, local_queue, quota, own)


def _quota(cluster: Cluster, local_queue: Manifest) -> Quota | None:
    """Return the quota of a queue, None if it may not be read."""
    cluster_queue = _kueue(cluster, f"clusterqueues/{local_queue['spec'].get('clusterQueue', '')}")
    if cluster_queue is None:
        return Quota(None)
    if cluster_queue is _REFUSED:
        return None
    flavors = {name: _kueue(cluster, f"resourceflavors/{name}") for name in flavors_of(cluster_queue["spec"])}
    quota = Quota(
        cluster_queue, {name: flavor for name, flavor in flavors.items() if flavor and flavor is not _REFUSED}
    )
    cohort = cohort_of(cluster_queue["spec"])
    # A Cohort object may have a quota, or a parent cohort.
    if not cohort or _kueue(cluster, f"cohorts/{cohort}") is not None:
        return quota
    queues = (_kueue(cluster, "clusterqueues") or {}).get("items")
    own = cluster_queue["metadata"]["name"]
    lenders = [one for one in queues or () if cohort_of(one["spec"]) == cohort and one["metadata"]["name"] != own]
    return quota if queues is None else replace(quota, lenders=lenders)


def _kueue(cluster: Cluster, path: str) -> Manifest | None:
    """Return an object or a list of Kueue's API, in the newer version that the cluster serves."""
    newer, older = (f"/{version}/{path}" for version in kueue.VERSIONS)
    return _allowed(cluster, newer) or _allowed(cluster, older)


def _pools(cluster: Cluster, environment: Environment, config: Manifest | None) -> Iterator[Check]:
    """Check nodes and admission of each pool. config: of the workflow controller, None if it cannot be read."""
    nodes, pods = ((_allowed(cluster, f"/api/v1/{kind}") or {}).get("items") for kind in ("nodes", "pods"))
    for name in checks.used_pools(environment):
        if nodes is None:
            yield unknown(f"pool {name}", "nodes may not be read")
        else:
            yield checks.pool_capacity(environment, name, nodes, pods)
        pod = checks.with_argo(pool_pod(environment, name), config)
        yield _admitted(cluster, f"pool {name}", pod, "a pod of it", "Ask for less, or have it allowed")
    remedy = (
        "Have it allowed, or set executor.resources in workflow-controller-configmap of namespace "
        f"{environment.kubeflow.namespace}"
    )
    yield _admitted(cluster, "kubeflow's pods", checks.driver_pod(environment, config), "the driver of a step", remedy)


def _admitted(cluster: Cluster, name: str, pod: Manifest, title: str, remedy: str) -> Check:
    """Submit a pod as a dry run, to check Pod Security, quotas, limit ranges and webhooks."""
    if not _is_allowed(cluster, ("create", "", "pods", "")):
        return unknown(name, "you may not try a pod there; quotas and admission are not checked")
    if refusal := cluster.refusal(f"{cluster.path('pods')}?dryRun=All", pod):
        return bad(name, f"{title} is refused: {refusal}. {remedy}")
    return good(name, f"the API server would take {title} (dry run)")


_REFUSED: Manifest = {"refused": True}


def _allowed(cluster: Cluster, path: str) -> Manifest | None:
    """Return the object at `path`, None if there is none, `_REFUSED` if it may not be read."""
    try:
        return cluster.get(path, metadata_only="/secrets/" in path)
    except InfrastructureError:
        return _REFUSED


def _exists(
    found: Manifest | None, name: str, note: str = "", remedy: str = "Create it, or correct the environment"
) -> Check:
    """Check that `found`, as `_allowed` returns it, exists."""
    if found is _REFUSED:
        return unknown(name, "may not be read")
    return good(name, f"exists{note}") if found else bad(name, f"does not exist. {remedy}")


def _is_allowed(cluster: Cluster, need: tuple[str, str, str, str], account: str = "") -> bool:
    asked = dict(zip(("verb", "group", "resource", "subresource"), need, strict=True))
    spec: Manifest = {"resourceAttributes": {"namespace": cluster.namespace, **asked}}
    kind = "SubjectAccessReview" if account else "SelfSubjectAccessReview"
    if account:
        spec["user"] = f"system:serviceaccount:{cluster.namespace}:{account}"
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    answer = cluster.post(f"/apis/authorization.k8s.io/v1/{kind.lower()}s", body)
    return bool(answer.get("status", {}).get("allowed"))


def _permission(need: tuple[str, str, str, str]) -> str:
    verb, _, resource, part = need
    return f"{verb} {resource}{part and f'/{part}'}"
