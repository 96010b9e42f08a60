"""Pipeline packages of recipes, and their submission to a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from trainyard.contract import keys
from trainyard.contract.pushed_versions import split_name
from trainyard.errors import ConfigurationError, TrainyardError
from trainyard.graph import PREDICT
from trainyard.report import local_runs
from trainyard.spec import code, documents
from trainyard.spec import recipe as recipes
from trainyard.spec.environment import with_training_on
from trainyard.storage import storage
from trainyard_control.api import uploads
from trainyard_control.api.arguments import LOCAL, known_step, overrides
from trainyard_control.cluster import environments

if TYPE_CHECKING:
    from trainyard.contract.artifacts.predict import Predicted
    from trainyard.spec.environment import Environment
    from trainyard.spec.recipe import Recipe
    from trainyard_control.compiler.compilation import Submission

_ANSWER_SECONDS = 20.0  # chosen: a person waits for the last line


def compile(recipe: str = "digits", *, environment: str = LOCAL, set_: Sequence[str] = (), **settings: Any) -> str:
    """Compile a recipe to a pipeline package in YAML, placed on the pools of an environment.

    settings, set_: as `run` has them. Raises `ConfigurationError` if the recipe cannot run there.

    >>> import trainyard as ty
    >>> "epochs: 3" in ty.compile("digits", environment="kind", train__epochs=3)
    True
    """
    from trainyard_control.compiler.compilation import compiled, to_yaml

    placed = compiled(recipes.load(recipe, overrides(set_, settings)), environments.load(environment))
    return to_yaml(placed.documents)


@dataclass(frozen=True)
class Submitted:
    """A submitted run. attached: a run of this name existed. pipeline, version: ids at Kubeflow, '' on Vertex AI.

    expected: the plan's forecast of its training, '' if there is none.
    """

    run_id: str
    name: str
    attached: bool
    pipeline: str = ""
    version: str = ""
    expected: str = ""

    def document(self) -> dict[str, Any]:
        """Return the JSON fields."""
        return {name: value for name, value in asdict(self).items() if value != "" and name != "expected"}


def submit(
    recipe: str = "digits",
    *,
    environment: str,
    name: str | None = None,
    day: str = "",
    from_step: str | None = None,
    upload_limit: str = uploads.LIMIT,
    set_: Sequence[str] = (),
    **settings: Any,
) -> Submitted:
    """Compile a recipe, upload it and run it on Kubeflow Pipelines or Vertex AI.

    Data, weights and a teacher on this machine are uploaded first, at most `upload_limit` in all.

    name: the run's name; submitting it twice gives one run. from_step: recompute this step and the later ones. day,
    settings, set_: as in `run`. Raises `ConfigurationError` if the environment is local, and `TransientError` or
    `InfrastructureError` if the server cannot be reached.

    >>> import trainyard as ty
    >>> ty.submit("digits", environment="kind").run_id  # doctest: +SKIP
    """
    submission = prepare(recipe, environment, overrides(set_, settings), name, day, from_step)
    uploads.send(submission.uploads, submission.environment, upload_limit)
    return send(submission)


def prepare(
    recipe: str, environment: str, sets: list[str], name: str | None, day: str, from_step: str | None
) -> Submission:
    """Build the submission of `submit` without sending it. Local files are read, to name their place in the storage."""
    from trainyard_control.compiler import compilation
    from trainyard_control.compiler.compilation import compiled
    from trainyard_control.planning.expectation import expect

    loaded_environment = _cluster(environment, "Use `trainyard run`")
    loaded = recipes.load(recipe, sets)
    run = name or _run_name(loaded.name)
    remote, uploaded = uploads.with_uploads(loaded, loaded_environment)
    placed = compiled(remote, loaded_environment, day=day, again=known_step(from_step) or "")
    submission = compilation.submission(loaded.name, loaded_environment, placed, run)
    paths = {key: upload.path for key, upload in uploaded.items() if not upload.is_cached}
    expected = expect(loaded, loaded_environment) if loaded_environment.target == "kubeflow" else None
    metadata = replace(submission.metadata, expected=expected, uploads=paths)
    files = {name: len(code.as_bytes(content)) for name, content in code.files(loaded).items()}
    return replace(submission, metadata=metadata, uploads=uploaded, files=files)


@dataclass(frozen=True)
class Benchmarks:
    """Benchmark runs by pool. recipe: shortened to a few epochs. name: prefix of the runs' names."""

    recipe: Recipe
    name: str
    runs: dict[str, Submission]


def prepare_benchmarks(
    recipe: str, environment: str, sets: Sequence[str], pools: Sequence[str], name: str | None
) -> Benchmarks:
    """Build a run of a few epochs for each of `pools` without sending it.

    name: prefix of the runs' names, generated by default. Raises `ConfigurationError` if the recipe cannot train on one
    of the pools.
    """
    from trainyard_control.compiler import compilation
    from trainyard_control.compiler.compilation import compiled_benchmark
    from trainyard_control.search.bench import require_memory, short, shortened

    loaded_environment, loaded = _cluster(environment, "Leave --pools out"), short(recipe, shortened(sets))
    if repeated := [pool for pool in pools if list(pools).count(pool) > 1]:
        raise ConfigurationError(f"--pools: '{repeated[0]}' is named twice. Name each pool once.")
    runs, name = {}, name or _run_name(loaded.name)
    remote, code_upload = compilation.with_code(loaded, loaded_environment)
    for pool in pools:
        run, placed = f"{name}-{pool}", with_training_on(loaded_environment, pool)
        require_memory(loaded, loaded_environment, pool)
        package = compiled_benchmark(remote, placed, label=run)
        submission = compilation.submission(loaded.name, placed, package, run, trains_on=pool)
        runs[pool] = replace(submission, pipeline=f"trainyard-benchmark-{loaded.name}", uploads=code_upload)
    return Benchmarks(loaded, name, runs)


def prepare_prediction(
    model: str, inputs: str, environment: str, out: str, key: str | None, name: str | None = None
) -> Submission:
    """Build the submission of a prediction without sending it.

    model: a folder that the steps see; a recipe or its name, which stands for its champion; or a run that pushed one.
    @NAME chooses another version.

    Raises `ConfigurationError` if the environment is local, or an input or output is on this machine.
    """
    from trainyard_control.api.model import model_uri
    from trainyard_control.compiler import compilation
    from trainyard_control.compiler.compilation import compiled_prediction, reachable

    loaded_environment = _cluster(environment, "Leave --submit out")
    base, version = split_name(model)
    if documents.is_file_name(base) or not reachable(base, loaded_environment):
        try:
            folder = keys.models_folder(loaded_environment.storage, recipes.load(base))
        except ConfigurationError:
            model = model_uri(model, loaded_environment)  # the storage knows recipes whose file is elsewhere, and runs
        else:
            model = f"{folder}@{version}" if version else folder
    placed = compiled_prediction(model, inputs, out.rstrip("/"), key or "", loaded_environment)
    return compilation.submission(PREDICT, loaded_environment, placed, name or _run_name(PREDICT))


def predicted(folder: str) -> Predicted | None:
    """Read the summary of the prediction in `folder`, None if this machine cannot read it."""
    from trainyard.contract.artifacts.predict import Predicted

    with suppress(TrainyardError), storage.deadline(_ANSWER_SECONDS):
        return Predicted.read(folder)
    return None


def _cluster(environment: str, instead: str) -> Environment:
    loaded_environment = environments.load(environment)
    if loaded_environment.target == "local":
        raise ConfigurationError(
            f"--environment {environment}: its target is local. {instead}, or name an environment of a cluster with -e."
        )
    return loaded_environment


def _run_name(recipe: str) -> str:
    return f"{recipe}-{local_runs.new_name()}"


def send(submission: Submission) -> Submitted:
    """Upload the package and start the run, or attach to the run of that name."""
    if submission.environment.target == "vertex":
        from trainyard_control.targets import vertex

        resource, attached = vertex.send(submission)
        return Submitted(resource, submission.run, attached)
    from trainyard_control.kubeflow import kubeflow_api as kubeflow
    from trainyard_control.kubeflow.kubeflow_api import KubeflowServer

    run_id, attached = kubeflow.submit(submission, KubeflowServer(submission.environment))
    expected = str(submission.metadata.expected or "")
    return Submitted(run_id, submission.run, attached, submission.pipeline, submission.version, expected)
