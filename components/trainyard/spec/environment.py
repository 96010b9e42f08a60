"""The environment: where a recipe runs. It names pools, storage and images, and does not depend on a model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Discriminator, Field, PrivateAttr, Tag, model_validator

from trainyard.errors import ConfigurationError, did_you_mean
from trainyard.graph import PREDICT, STEPS
from trainyard.quantity import in_bytes
from trainyard.spec import beam, documents, notify
from trainyard.spec.beam import Beam, Text, Variable
from trainyard.spec.documents import Strict, is_secret
from trainyard.spec.hardware import machines
from trainyard.spec.hardware.catalog import Name, Namespace, Platform, catalog
from trainyard.spec.hardware.pools import GANG_ONLY, Pool, Variant, nearest_that_trains
from trainyard.spec.notify import Notify
from trainyard.spec.plain_yaml import Location
from trainyard.storage.buckets.objects import KMS_VARIABLE, is_google_key
from trainyard.uris import Image, Output, is_bucket, resolve

BUNDLED = Path(__file__).parent.parent / "environments"
DEFAULT = "default"
TRAIN = "train"  # the step that needs a pool on which a training can run
LISTED = (TRAIN, "evaluate", "export", PREDICT)  # the steps that a launcher can run on one pool after the other

# Chosen: time for nodes, images and locks beyond the steps' own time.
WAIT_SECONDS = 86400
LONGEST_SECONDS = (1 << 31) - 1  # what Kubeflow's field of a run's deadline holds: 68 years
# Chosen: the first pause outlasts an object store's 503; the longest is shorter than a gang waits for
# the retry of its launcher (steps/train/peers/launcher_heartbeat.py).
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 30, 600

ACCELERATOR_MEMORY = 1 << 29  # chosen, for each: less than TensorFlow takes before it has read a batch
MAX_INPUT_WORKERS = 64  # chosen: each reads the serialized records of all

_GOOGLE_KEY = re.compile(r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+")

Step = Annotated[str, Field(min_length=1, max_length=128)]


def _form(pools: object) -> str:
    return "list" if isinstance(pools, list) else "name"


# Told apart by their form, so that a fault is one of the form that was given.
Pools = Annotated[
    Annotated[Step, Tag("name")] | Annotated[list[Step], Field(max_length=16), Tag("list")],
    Discriminator(_form),
]


def _endpoint(url: str) -> str:
    """Reject an invalid address: a port beyond 65535, or brackets without an IPv6 address."""
    if url:
        parsed = urlsplit(url)
        if not parsed.hostname or parsed.port == 0:  # raises if it is no number of a port
            raise ValueError("names no host and port")
    return url


class Volume(Strict):
    """A PersistentVolumeClaim mounted in every pod; it must be ReadWriteMany."""

    claim: Name = Field(description="Name of the PersistentVolumeClaim, in the runs' namespace.")
    path: Annotated[str, Field(max_length=1024, pattern=r"^/[^/:\x00-\x1f][^:\x00-\x1f]*$")] = Field(
        description="Mount path, such as /mnt/runs."
    )


class SecretKey(Strict):
    """A value of a Secret in the runs' namespace; it is never part of a package."""

    secret: Name = Field(description="Name of the Secret.")
    key: Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]{1,253}$")] = Field(description="Key in the Secret.")


CA_FOLDER = "/etc/trainyard/ca"
"""The folder of pods in which `ca_bundle` is mounted."""
CA_VARIABLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
"""Variables by which libraries find trusted certificates: boto3; requests, so Google's client; OpenSSL and Go."""


class CaBundle(Strict):
    """Certificates of private authorities (PEM), in a ConfigMap or Secret of the runs' namespace."""

    config_map: Name | Literal[""] = Field("", description="Name of the ConfigMap.")
    secret: Name | Literal[""] = Field("", description="Name of the Secret, instead of a ConfigMap.")
    key: Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]{1,253}$")] = Field(description="Key in it, such as ca.crt.")

    @property
    def path(self) -> str:
        """The file in a pod."""
        return f"{CA_FOLDER}/{self.key}"


class StorageEncryption(Strict):
    """Encryption of written objects with your own key."""

    kms_key: Annotated[str, Field(max_length=2048, pattern=r"^[^\s?#]+$")] = Field(
        description="s3: id, ARN or alias of a key of AWS KMS. gs: "
        "projects/PROJECT/locations/LOCATION/keyRings/RING/cryptoKeys/KEY."
    )


class InputWorkers(Strict):
    """Processes that read, decode and augment batches for a training whose host has too few cores."""

    count: Annotated[int, Field(ge=1, le=MAX_INPUT_WORKERS)] = Field(
        description="Number of input workers for the whole gang."
    )
    pool: Step | Literal[""] = Field(
        "", description="A cpu pool, one pod each. Not for target local, where they are local processes."
    )


class ServiceAccounts(Strict):
    """Service accounts of the pods."""

    run: Name | Literal[""] = Field(
        "", description="Account of the run's pods, including launchers; empty: the server's default."
    )
    worker: Name = Field("default", description="Account of a gang's workers, without a token.")
    server: Name | Literal[""] = Field(
        "", description="Account of a served model's pods, without a token; empty: that of run."
    )


_Url = Annotated[
    str,
    Field(max_length=1024, pattern=r"^(https?://[A-Za-z0-9._\[\]:-]+(/[^\s?#]*)?)?$"),
    AfterValidator(_endpoint),
]


class Kubeflow(Strict):
    """Connection to the Kubeflow Pipelines API."""

    endpoint: _Url = Field(
        "",
        description="URL of the API. Empty: its Service inside a cluster, otherwise through the Kubernetes API server.",
    )
    namespace: Namespace = Field("kubeflow", description="Namespace of Kubeflow Pipelines, for an empty endpoint.")
    token_file: Text = Field(
        "", description="File with a bearer token, read for every request; for an endpoint or inside a cluster."
    )
    token_command: list[Text] = Field(
        [],
        max_length=100,
        description="Program and arguments that print a bearer token or an ExecCredential, as for kubectl; run again "
        "before the token expires.",
    )
    cookie_file: Text = Field(
        "", description="File with the session cookie of a browser (NAME=VALUE), read for every request."
    )
    model_registry: _Url = Field(
        "",
        description="URL of the Model Registry, for `publish kubeflow`. Empty: its Service, through the Kubernetes API "
        "server.",
    )
    experiment: Annotated[str, Field(max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")] = Field(
        "trainyard", description="Kubeflow experiment of the runs."
    )


class Vertex(Strict):
    """Google Cloud project for Vertex AI Pipelines."""

    project: Annotated[str, Field(pattern=r"^([a-z0-9.-]{1,253}:)?[a-z]([a-z0-9-]{0,28}[a-z0-9])?$")] = Field(
        description="Id of the Google Cloud project."
    )
    location: Annotated[str, Field(pattern=r"^[a-z]{1,32}-[a-z]{1,32}[0-9]{1,3}$")] = Field(
        description="Region, such as europe-west4."
    )
    service_account: Annotated[str, Field(pattern=r"^([a-z0-9-]{1,63}@[a-z0-9.-]{1,253})?$")] = Field(
        "", description="Service account of the steps; empty: the project's default."
    )


class Environment(Strict):
    """The target of a recipe: this machine, Kubeflow Pipelines, or Vertex AI Pipelines."""

    target: Literal["local", "kubeflow", "vertex"] = Field(
        description="local: this machine. kubeflow: Kubeflow Pipelines on Kubernetes. vertex: Vertex AI Pipelines."
    )
    platform: Platform = Field(
        "kubernetes", description="Kind of cluster, which determines the nodes' labels and taints."
    )
    storage: Output = Field(description="Root of all outputs: a folder, gs://bucket/folder or s3://bucket/folder.")
    images: dict[Variant, Image] = Field(
        {},
        description="Container image of each variant: the pool kinds, and jax or jax-gpu if JAX trains on a tpu or gpu "
        "pool.",
    )
    beam: Beam = Beam()
    namespace: Namespace = Field("kubeflow", description="Kubernetes namespace of the runs.")
    volume: Volume | None = Field(None, description="A shared volume, so that storage can be a folder on it.")
    storage_encryption: StorageEncryption | None = Field(
        None, description="Key for all objects that Trainyard writes. Default: that of the bucket."
    )
    ca_bundle: CaBundle | None = Field(
        None,
        description="Certificates that all pods and your machine trust, instead of the container images'. Include "
        "public authorities if steps use public servers.",
    )
    variables: dict[Variable, Annotated[str, Field(max_length=32_768)]] = Field(
        {},
        max_length=1000,
        description="Environment variables of every step, such as AWS_ENDPOINT_URL_S3. Packages contain them: no "
        "secrets.",
    )
    secrets: dict[Variable, SecretKey] = Field(
        {}, max_length=1000, description="Environment variables from Kubernetes Secrets."
    )
    image_pull_secrets: list[Name] = Field(
        [], max_length=100, description="Kubernetes Secrets with the logins of the images' registries."
    )
    service_accounts: ServiceAccounts = ServiceAccounts()
    run_as_user: Annotated[int, Field(ge=1, le=(1 << 31) - 1)] | None = Field(
        None,
        description="User id for steps of pipelines other than Trainyard's, with HOME=/tmp. Default: that of their "
        "image.",
    )
    kubeflow: Kubeflow = Kubeflow()
    vertex: Vertex | None = Field(None, description="Required for submit, not for compile.")
    pools: dict[Step, Pool] = Field({}, max_length=1000, description="Node pools, by name.")
    placement: dict[Step, Pools] = Field(
        {},
        max_length=1000,
        description="Pool of each step; default is for all others. train, evaluate, export and predict also take a "
        "list: the next pool is tried if one has no nodes or loses them.",
    )
    input_workers: InputWorkers | None = Field(
        None, description="Processes that prepare batches for train. Default: none."
    )
    notify: Notify | None = Field(None, description="Messages about the ends of runs. Default: none.")
    timeout_seconds: dict[Step, Annotated[int, Field(ge=1, le=LONGEST_SECONDS)]] = Field(
        {},
        max_length=1000,
        description="Maximum run time of a step's pod, by step or default. Default: 7 days for train, less for others.",
    )
    deadline_seconds: Annotated[int, Field(ge=0, le=LONGEST_SECONDS)] | None = Field(
        None,
        description="Maximum time of a run, with waits; 0: no limit. Default: the timeouts of its steps with all "
        "retries, and a day.",
    )
    keep_seconds: Annotated[int, Field(ge=1, le=LONGEST_SECONDS)] | None = Field(
        None, description="Seconds that the pods and logs of a finished run are kept. Default: the server's."
    )
    retries: dict[Step, Annotated[int, Field(ge=0, le=10)]] = Field(
        {},
        max_length=1000,
        description="Number of retries, by step or default. Default: 3 for train, 1 for others.",
    )
    _name: str = PrivateAttr("environment")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if faults := list(_contradictions(self)):
            raise documents.contradictory(faults)
        return self

    @property
    def name(self) -> str:
        """The environment's file, for messages."""
        return self._name

    @property
    def beam_options(self) -> str:
        """Beam's command line for preprocess."""
        return beam.command_line(self.beam, self.target, self.namespace, self.storage, self.kms_key)

    @property
    def kms_key(self) -> str:
        """The key that encrypts written objects, '' for the bucket's own."""
        return self.storage_encryption.kms_key if self.storage_encryption else ""

    @property
    def pod_variables(self) -> dict[str, str]:
        """The environment variables of every step."""
        bundle = dict.fromkeys(CA_VARIABLES, self.ca_bundle.path) if self.ca_bundle else {}
        webhook = {notify.SETTINGS_VARIABLE: self.notify.model_dump_json()} if self.notify else {}
        return bundle | ({KMS_VARIABLE: self.kms_key} if self.kms_key else {}) | webhook | self.variables

    def timeout_of(self, step: str) -> int | None:
        """Return the maximum seconds of a pod of `step`, None for a step of a foreign pipeline."""
        timeouts = self.timeout_seconds
        return timeouts.get(step, timeouts.get(DEFAULT, STEPS[step].timeout_seconds if step in STEPS else None))

    def deadline_of(self, steps: Iterable[tuple[str, int | None]]) -> int | None:
        """Return the maximum seconds of a run of `steps`, None without a limit.

        steps: step and timeout of every task. Each may use all its retries and the pauses before them. Without a
        deadline in the environment, one is known only for Trainyard's own steps, which have no loops.
        """
        if self.deadline_seconds is not None:
            return self.deadline_seconds or None
        total = WAIT_SECONDS
        for step, seconds in steps:
            if step not in STEPS or seconds is None:
                return None
            retries = self.retries_of(step)
            total += (retries + 1) * seconds + sum(pauses(retries))
        return min(total, LONGEST_SECONDS)

    def retries_of(self, step: str) -> int:
        """Return the number of retries of a failed `step`."""
        return self.retries.get(step, self.retries.get(DEFAULT, STEPS[step].retries if step in STEPS else 0))

    @property
    def input_count(self) -> int:
        """The number of input workers of a training."""
        return self.input_workers.count if self.input_workers else 0

    def pool_of(self, step: str) -> Pool:
        """Return the pool of `step`, the first of a list."""
        return self.pools[self.pool_name(step)]

    def pool_name(self, step: str) -> str:
        """Return the name of the pool of `step`, the first of a list, '' without a placement."""
        return next(iter(self.pool_names(step)), "")

    def pool_names(self, step: str) -> list[str]:
        """Return the names of the pools on which `step` runs, in the order in which they are tried."""
        return _names(self.placement.get(step, self.placement.get(DEFAULT, [])))

    @property
    def placed_pools(self) -> list[str]:
        """The names of the pools of all steps, each once."""
        return list(dict.fromkeys(name for pools in self.placement.values() for name in _names(pools)))


def _names(pools: str | list[str]) -> list[str]:
    return pools if isinstance(pools, list) else [pools]


def pauses(retries: int) -> list[int]:
    """Return the seconds before each of `retries`: doubled each time, or equal if that grows too long.

    Argo gets no maximum pause from KFP, so nothing would stop the doubling.

    >>> pauses(3)
    [30, 60, 120]
    """
    doubled = [PAUSE_SECONDS * 2**index for index in range(retries)]
    return doubled if max(doubled, default=0) <= LONGEST_PAUSE_SECONDS else [LONGEST_PAUSE_SECONDS // 2] * retries


def load(name: str) -> Environment:
    """Return the environment `name` (see `documents.find`), validated, with an absolute storage folder.

    Raises `ConfigurationError` with every fault.
    """
    path = documents.find("environment", name, BUNDLED)
    environment = documents.load(path, Environment)
    environment._name = path.name
    return environment.model_copy(update={"storage": resolve(Path(), environment.storage)})


def with_training_on(environment: Environment, pool: str) -> Environment:
    """Return `environment` with the training placed on `pool`. Raises `ConfigurationError` if it cannot train there."""
    placed = environment.model_copy(update={"placement": environment.placement | {TRAIN: pool}})
    if faults := [why for _, why in _placement_faults(placed)]:
        raise ConfigurationError(*(f"{environment.name}: {why}" for why in faults))
    return placed


def _contradictions(environment: Environment) -> Iterator[tuple[Location, str]]:
    """Yield the location and the reason of each value that contradicts others."""
    yield from _misspelt_steps(environment)
    yield from _placement_faults(environment)
    yield from _memory_faults(environment)
    yield from _input_faults(environment)
    yield from _gang_only_faults(environment)
    yield from _storage_faults(environment)
    yield from _target_faults(environment)
    yield from _secret_faults(environment)
    yield from _bundle_faults(environment)
    yield from _encryption_faults(environment)
    for place, why in beam.faults(environment.beam, environment.target, environment.storage):
        yield ("beam", *place), why
    if environment.notify:
        for place, why in notify.faults(environment.notify, environment.target, set(environment.secrets)):
            yield ("notify", *place), why
    for name, pool in environment.pools.items():
        for place, why in machines.faults(pool, environment.platform):
            yield ("pools", name, *place), why
    for name in environment.variables.keys() & environment.secrets.keys():
        yield ("secrets", name), "stands in variables too. Leave one of them out"


def _misspelt_steps(environment: Environment) -> Iterator[tuple[Location, str]]:
    """Yield the keys that are a step's name with a slip of the finger; any other may be a step of another pipeline."""
    known = dict.fromkeys((DEFAULT, *STEPS, PREDICT))
    for field in ("placement", "timeout_seconds", "retries"):
        for key in getattr(environment, field):
            near = next((name for name in known if _is_slip(key, name)), "")
            if near and key not in known:
                yield (field, key), f"no step '{key}'. Known: {', '.join(known)}. Did you mean '{near}'?"


def _is_slip(key: str, name: str) -> bool:
    """Return True if `key` is `name` with letters in another order, or one too many or too few, between both ends."""
    more, fewer = Counter(key) - Counter(name), Counter(name) - Counter(key)
    return (key[:1], key[-1:]) == (name[:1], name[-1:]) and more.total() + fewer.total() <= 1


def _memory_faults(environment: Environment) -> Iterator[tuple[Location, str]]:
    """Yield pods whose memory cannot hold the host's side of their accelerators."""
    for name, pool in environment.pools.items():
        if pool.kind not in ("gpu", "tpu"):
            continue
        memory, least = pool.resources.requests.memory, pool.count * ACCELERATOR_MEMORY
        if in_bytes(memory) < least:
            devices = f"{pool.count} {pool.kind.upper()}{'s' if pool.count > 1 else ''}"
            slip, enough = memory.replace("Mi", "Gi"), f"{least >> 20}Mi" if least % (1 << 30) else f"{least >> 30}Gi"
            near = f" Did you mean '{slip}'?" if slip != memory else ""
            why = f"{memory} of memory for a pod with {devices}. Give at least {enough} in requests and limits.{near}"
            yield ("pools", name, "resources"), why


def _placement_faults(environment: Environment) -> Iterator[tuple[Location, str]]:
    defined = f"Defined: {', '.join(environment.pools) or 'none'}"
    for step, pools in environment.placement.items():
        for pool in _names(pools):
            if pool not in environment.pools:
                yield ("placement", step), f"no pool '{pool}'. {defined}.{did_you_mean(pool, environment.pools)}"
        if isinstance(pools, list):
            yield from ((("placement", step), why) for why in _list_faults(environment, step, pools))
    if environment.target == "local":
        yield from _local_training_faults(environment)
        return
    if not any(key == DEFAULT or _is_slip(key, DEFAULT) for key in environment.placement):
        yield ("placement", DEFAULT), f"is required for target {environment.target}: name a pool. {defined}"
    yield from _training_faults(environment)
    for name in environment.placed_pools:
        used = environment.pools.get(name)
        if used and used.variant not in environment.images:
            yield ("images", used.variant), f"is required, for steps are placed on the {used.variant} pool '{name}'"


def _local_training_faults(environment: Environment) -> Iterator[tuple[Location, str]]:
    """Yield a fixed number of workers of the training's pool: on this machine the recipe gives it."""
    name = environment.pool_name(TRAIN)
    pool = environment.pools.get(name)
    if pool and pool.max_workers > 1 and not pool.is_elastic:
        number = pool.max_workers
        instead = "" if pool.kind == "tpu" else f", or give {{min: 1, max: {number}}}"
        why = f"on this machine the recipe says how many workers train, and {number} were given"
        yield ("pools", name, "workers"), f"{why}. Leave it out and set train.workers: {number}{instead}"


def _list_faults(environment: Environment, step: str, names: list[str]) -> Iterator[str]:
    """Yield the reasons against running `step` on the pools `names`, one after the other."""
    if not names:
        yield f"the list names no pool. Give one or more of {', '.join(environment.pools)}"
    elif environment.target != "kubeflow":
        yield f"a list of pools is for target kubeflow, and this is {environment.target}. Give one, such as {names[0]}"
    elif step not in LISTED:
        yield (
            f"only {', '.join(LISTED[:-1])} and {LISTED[-1]} take a list of pools: Kubeflow starts the pods of other "
            f"steps, and places each once. Give one, such as {names[-1]}"
        )
    if (once := list(dict.fromkeys(names))) != names:
        twice = next(name for name in once if names.count(name) > 1)
        yield f"names '{twice}' {names.count(twice)} times, and no pool is tried again. Give [{', '.join(once)}]"
    limit = environment.timeout_of(step) or LONGEST_SECONDS
    waits = {f"'{name}'": environment.pools[name].pending_seconds for name in once[:-1] if name in environment.pools}
    if (waited := sum(waits.values())) >= limit:
        yield (
            f"{' and '.join(waits)} may be waited for {waited} s (pending_seconds), and timeout_seconds.{step} "
            f"ends the step after {limit} s. Give less than {limit}{' in all' if len(waits) > 1 else ''}"
        )
    known = {name: _trainer(environment.pools[name]) for name in once if name in environment.pools}
    if step == TRAIN:
        yield from _mixture(known)
        return
    for name, image in known.items():
        if image != _TENSORFLOW:
            fitting = ", ".join(name for name in known if known[name] == _TENSORFLOW)
            yield (
                f"'{name}' has {image}, and the launcher on a cpu pool names the output by its own libraries. "
                f"Give {f'[{fitting}]' if fitting else 'pools of kind cpu or gpu'}, or one pool"
            )


def _mixture(known: dict[str, str]) -> Iterator[str]:
    """Yield the reason against a training on all pools of `known`, whose values are as `_trainer`."""
    first = next(iter(known), "")
    if other := next((name for name in known if known[name] != known[first]), ""):
        fitting = ", ".join(name for name in known if known[name] == known[first])
        yield (
            f"'{first}' trains with {known[first]} and '{other}' with {known[other]}, and neither resumes from the "
            f"other's checkpoints. Give [{fitting}]"
        )


_TENSORFLOW = "TensorFlow of the cpu and gpu images"


def _trainer(pool: Pool) -> str:
    """Return the framework that trains on `pool` and its image: cpu and gpu images have the same TensorFlow."""
    if pool.variant in ("cpu", "gpu"):
        return _TENSORFLOW
    return f"{'TensorFlow' if pool.trained_by == 'tensorflow' else 'JAX'} of the {pool.variant} image"


def _input_faults(environment: Environment) -> Iterator[tuple[Location, str]]:
    """Yield the faults of the input workers' pool."""
    if environment.input_workers is None:
        return
    at, name = ("input_workers", "pool"), environment.input_workers.pool
    pools = {key: pool for key, pool in environment.pools.items() if pool.kind == "cpu"}
    defined = f"Of kind cpu: {', '.join(pools) or 'none'}"
    if environment.target == "vertex":
        yield at[:1], "a step of Vertex AI Pipelines is one machine. Leave it out"
    elif environment.target == "local":
        if name:
            yield at, f"'{name}', and target local has no pools. Leave it out: they are processes of this machine"
    elif not name:
        yield at, f"is required for target kubeflow: name a pool. {defined}"
    elif name not in environment.pools:
        yield at, f"no pool '{name}'. {defined}.{did_you_mean(name, pools)}"
    elif name not in pools:
        yield at, f"'{name}' is a {environment.pools[name].kind} pool, and they use its cores alone. {defined}"
    elif "cpu" not in environment.images:
        yield ("images", "cpu"), f"is required, for input workers are placed on the cpu pool '{name}'"
    trains = environment.pools.get(environment.pool_name(TRAIN))
    if trains and trains.variant == "tpu":
        yield (
            at[:1],
            "the tpu image has an older TensorFlow than the cpu image, and both exchange graphs. "
            "Leave it out, or have JAX train (engine: jax of the pool)",
        )


def _gang_only_faults(environment: Environment) -> Iterator[tuple[Location, str]]:
    """Yield settings of a gang on pools without one: Kubeflow has none of them for the pod of a step."""
    if environment.target == "local":
        return
    inputs = environment.input_workers
    for name, pool in environment.pools.items():
        listed = any(isinstance(pools, list) and name in pools for pools in environment.placement.values())
        trains = inputs and name in (inputs.pool, environment.pool_name(TRAIN))
        gang = listed or trains or pool.max_workers > 1
        for key in GANG_ONLY if not gang else ():
            if getattr(pool, key) != Pool.model_fields[key].default:
                why = (
                    "is for the workers of a gang, and the pod of a step cannot have it. Leave it out, or give workers"
                )
                yield ("pools", name, key), f"{why}, or list the pool as {TRAIN}: [{name}]"


def _training_faults(environment: Environment) -> Iterator[tuple[Location, str]]:
    """Yield steps placed on pools without nodes, and a training placed where it cannot run."""
    for step, names in environment.placement.items():
        for name in _names(names):
            pool = environment.pools.get(name)
            if pool and pool.why_no_nodes:
                yield ("placement", step), f"'{name}': {pool.why_no_nodes}. {nearest_that_trains(environment.pools)}"
    step = TRAIN if TRAIN in environment.placement else DEFAULT
    for name in environment.pool_names(TRAIN):
        pool = environment.pools.get(name)
        if pool and pool.why_no_training:
            why = f"'{name}' cannot train: {pool.why_no_training}. {nearest_that_trains(environment.pools)}"
            advice = "" if step == TRAIN else f"; name it under placement.{TRAIN}"
            yield ("placement", step), why + advice


def _secret_faults(environment: Environment) -> Iterator[tuple[Location, str]]:
    """Yield secrets in the environment: everybody who may see a pipeline can read its package."""
    instead = "Put it into a Secret of the cluster, and name that under secrets: {name}: {{secret: …, key: …}}."
    if environment.target == "vertex":
        instead = "Leave it out, and give the steps' service account the right."
    for section, values in (("variables", environment.variables), ("beam.options", environment.beam.options)):
        for name, value in values.items():
            if is_secret(name, str(value)):
                advice = instead.format(name=name.upper())
                why = f"looks like a secret, and every package and run would show it. {advice}"
                yield (*section.split("."), name), why


def _target_faults(environment: Environment) -> Iterator[tuple[Location, str]]:
    logins = [name for name in ("token_file", "token_command", "cookie_file") if getattr(environment.kubeflow, name)]
    if len(logins) > 1:
        yield ("kubeflow", logins[1]), f"is a second login beside {logins[0]}. Leave one of them out"
    for name in logins:
        if name != "token_file" and not (environment.kubeflow.endpoint or environment.kubeflow.model_registry):
            yield ("kubeflow", name), "is for the server at kubeflow.endpoint. Give its URL, or leave it out"
    if environment.deadline_seconds is not None and environment.target != "kubeflow":
        yield ("deadline_seconds",), "only Kubeflow ends a run as a whole. Give timeout_seconds to the steps"
    if environment.keep_seconds is not None and environment.target != "kubeflow":
        yield ("keep_seconds",), "only Kubeflow deletes the pods of a finished run. Leave it out"
    if environment.target != "vertex":
        return
    for section in ("volume", "secrets", "image_pull_secrets", "run_as_user"):
        if getattr(environment, section):
            yield (section,), "Vertex AI Pipelines has none. Leave it out"
    for name, pool in environment.pools.items():
        at = ("pools", name)
        if pool.node_selector or pool.tolerations:
            yield at, "Vertex AI has no nodeSelector and no tolerations. Leave them out"
        for key in ("node_affinity", "queue", "shared_memory", "ephemeral_storage"):
            if getattr(pool, key):
                yield (*at, Pool.model_fields[key].alias or key), "Vertex AI Pipelines has none. Leave it out"
        if pool.evictable is not None:
            yield (*at, "evictable"), "Vertex AI Pipelines has none. Leave it out"
        if pool.max_workers > 1:
            yield (*at, "workers"), "a step of Vertex AI Pipelines is one machine. Leave it out"
        if pool.resources.limits.cpu is None:
            yield (*at, "resources", "limits", "cpu"), "is required: Vertex AI picks the machine by its limits"
        if pool.spot:
            yield (*at, "spot"), "a step of Vertex AI Pipelines cannot ask for Spot. Leave it out"
        if pool.accelerator and catalog().accelerators[pool.accelerator].vertex is None:
            yield (*at, "accelerator"), f"no step of Vertex AI Pipelines can ask for {pool.accelerator}"


def _bundle_faults(environment: Environment) -> Iterator[tuple[Location, str]]:
    bundle, at = environment.ca_bundle, ("ca_bundle",)
    if bundle is None:
        return
    if environment.target != "kubeflow":
        instead = "Add the certificates to the container images"
        if environment.target == "local":
            instead = f"Set {', '.join(CA_VARIABLES)} to a file with the certificates"
        yield at, f"only pods of Kubeflow mount a ConfigMap or Secret. Leave it out. {instead}"
    if bool(bundle.config_map) == bool(bundle.secret):
        yield at, "takes config_map or secret, one of them. Name the one that has the certificates"
    for name in CA_VARIABLES:
        if name in environment.variables or name in environment.secrets:
            yield at, f"sets {name}, which the environment gives too. Leave one of them out"


def _encryption_faults(environment: Environment) -> Iterator[tuple[Location, str]]:
    key, storage = environment.kms_key, environment.storage
    if not key:
        return
    if not is_bucket(storage):
        yield ("storage_encryption",), f"encrypts the objects of a bucket, and storage is '{storage}'. Leave it out"
    elif storage.startswith("gs://") and not _GOOGLE_KEY.fullmatch(key):
        known = "projects/PROJECT/locations/LOCATION/keyRings/RING/cryptoKeys/KEY"
        yield ("storage_encryption", "kms_key"), f"'{key}' is no key of Cloud KMS. Give {known}"
    elif storage.startswith("s3://") and is_google_key(key):
        why = f"'{key}' is a key of Cloud KMS, and storage is in S3. Give id, ARN or alias of a key of AWS KMS"
        yield ("storage_encryption", "kms_key"), why


def _storage_faults(environment: Environment) -> Iterator[tuple[Location, str]]:
    storage, volume = environment.storage, environment.volume
    if environment.target == "local" or is_bucket(storage):
        return
    if volume is None:
        yield (
            ("storage",),
            f"'{storage}' is a folder of one machine, and the steps run on many. "
            "Give gs://bucket/folder, s3://bucket/folder, or a volume that all of them mount",
        )
    elif not f"{storage}/".startswith(f"{volume.path.rstrip('/')}/"):
        yield (
            ("storage",),
            f"'{storage}' is not on the volume, which is mounted at {volume.path}. Give a folder below it",
        )
