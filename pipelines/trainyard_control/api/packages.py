"""A recipe as a pipeline package, and as a run on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from trainyard.contract import keys
from trainyard.errors import ConfigurationError, TrainyardError
from trainyard.graph import PREDICT
from trainyard.spec import documents
from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard.storage import storage
from trainyard_control.api.arguments import LOCAL, known_step, overrides
from trainyard_control.local import local_runs

if TYPE_CHECKING:
    from trainyard.contract.artifacts.predict import Predicted
    from trainyard.spec.environment import Environment
    from trainyard.spec.recipe import Recipe
    from trainyard_control.compiler.submission import Submission

_ANSWER_SECONDS = 20.0  # chosen: a person waits for the last line


def compile(recipe: str = "digits", *, environment: str = LOCAL, set_: Sequence[str] = (), **settings: Any) -> str:
    """Return a recipe as a pipeline package in YAML, placed on the pools of an environment.

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
    """A run on a cluster. attached: it was submitted before, under this name. pipeline, version: of Kubeflow alone.

    expected: what the plan expects of its training, '' if it says nothing.
    """

    run_id: str
    name: str
    attached: bool
    pipeline: str = ""
    version: str = ""
    expected: str = ""

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {name: value for name, value in asdict(self).items() if value != "" and name != "expected"}


def submit(
    recipe: str = "digits",
    *,
    environment: str,
    name: str | None = None,
    day: str = "",
    from_step: str | None = None,
    set_: Sequence[str] = (),
    **settings: Any,
) -> Submitted:
    """Compile a recipe, upload it and run it on Kubeflow Pipelines or Vertex AI.

    name: the run's; given twice, there is one run. from_step: do this step and the later ones again, whatever is there.
    day: as in `run`, and settings and set_ too. Raises `ConfigurationError` if the environment is no cluster, and
    `TransientError` or `InfrastructureError` if it cannot be reached.

    >>> import trainyard as ty
    >>> ty.submit("digits", environment="kind").run_id  # doctest: +SKIP
    """
    return send(prepare(recipe, environment, overrides(set_, settings), name, day, from_step))


def prepare(
    recipe: str, environment: str, sets: list[str], name: str | None, day: str, from_step: str | None
) -> Submission:
    """Return what `submit` sends; nothing is sent."""
    from trainyard_control.compiler.compilation import compiled
    from trainyard_control.compiler.submission import submission
    from trainyard_control.planning.expectation import expect

    where = _cluster(environment, "Use `trainyard run`")
    loaded = recipes.load(recipe, sets)
    run = name or _run_name(loaded.name)
    what = submission(loaded.name, where, compiled(loaded, where, day=day, again=known_step(from_step) or ""), run)
    if where.target == "kubeflow":
        what = replace(what, about=replace(what.about, expected=expect(loaded, where)))
    return what


@dataclass(frozen=True)
class Benchmarks:
    """A run on each of some pools, by pool. recipe: of a few epochs. name: what the runs' names begin with."""

    recipe: Recipe
    name: str
    runs: dict[str, Submission]


def prepare_benchmarks(
    recipe: str, environment: str, sets: Sequence[str], pools: Sequence[str], name: str | None
) -> Benchmarks:
    """Return a run of a few epochs on each of `pools`; nothing is sent.

    name: what the runs' names begin with, by default one of its own. Raises `ConfigurationError` if the recipe cannot
    train on one of the pools.
    """
    from trainyard_control.compiler.compilation import compiled_benchmark
    from trainyard_control.compiler.submission import submission
    from trainyard_control.search.bench import require_memory, short, shortened

    where, loaded = _cluster(environment, "Leave --pools out"), short(recipe, shortened(sets))
    if repeated := [pool for pool in pools if list(pools).count(pool) > 1]:
        raise ConfigurationError(f"--pools: '{repeated[0]}' is named twice. Name each pool once.")
    runs, name = {}, name or _run_name(loaded.name)
    for pool in pools:
        run, placed = f"{name}-{pool}", environments.with_training_on(where, pool)
        require_memory(loaded, where, pool)
        what = submission(loaded.name, placed, compiled_benchmark(loaded, placed, label=run), run)
        purpose = replace(what.about, trains_on=pool)
        runs[pool] = replace(what, pipeline=f"trainyard-benchmark-{loaded.name}", about=purpose)
    return Benchmarks(loaded, name, runs)


def prepare_prediction(
    model: str, inputs: str, environment: str, out: str, key: str | None, name: str | None = None
) -> Submission:
    """Return what has a cluster predict; nothing is sent. model: of a recipe its champion in that environment.

    Raises `ConfigurationError` if the environment is no cluster, or one of the places is on this machine.
    """
    from trainyard_control.compiler.compilation import compiled_prediction, reachable
    from trainyard_control.compiler.submission import submission

    where = _cluster(environment, "Leave --submit out")
    if documents.is_file_name(model) or not reachable(model, where):
        model = keys.models_folder(where.storage, recipes.load(model))
    placed = compiled_prediction(model, inputs, out.rstrip("/"), key or "", where)
    return submission(PREDICT, where, placed, name or _run_name(PREDICT))


def predicted(folder: str) -> Predicted | None:
    """Return the document of the prediction in `folder`, None if this machine cannot read it."""
    from trainyard.contract.artifacts.predict import Predicted

    with suppress(TrainyardError), storage.deadline(_ANSWER_SECONDS):
        return Predicted.read(folder)
    return None


def _cluster(environment: str, instead: str) -> Environment:
    where = environments.load(environment)
    if where.target == "local":
        raise ConfigurationError(
            f"--environment {environment}: its target is local. {instead}, or name an environment of a cluster with -e."
        )
    return where


def _run_name(of: str) -> str:
    return f"{of}-{local_runs.new_name()}"


def send(what: Submission) -> Submitted:
    """Upload it and start the run, or find the one that has its name."""
    if what.environment.target == "vertex":
        from trainyard_control.compiler import vertex

        resource, attached = vertex.send(what)
        return Submitted(resource, what.run, attached)
    from trainyard_control.kubeflow import submit as kubeflow
    from trainyard_control.kubeflow.kubeflow_api import KubeflowServer

    run_id, attached = kubeflow.submit(what, KubeflowServer(what.environment))
    expected = str(what.about.expected or "")
    return Submitted(run_id, what.run, attached, what.pipeline, what.version, expected)
