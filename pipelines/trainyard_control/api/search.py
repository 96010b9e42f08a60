"""Sweeps over a recipe's settings, and benchmarks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.errors import ConfigurationError, did_you_mean
from trainyard.events import stderr_hidden
from trainyard.spec import recipe as recipes
from trainyard.spec.networks import MODEL_FAMILIES
from trainyard.spec.selection import compared
from trainyard_control.api.arguments import LOCAL, at_least_one, local_environment, overrides
from trainyard_control.api.progress import BenchScreen, SweepScreen
from trainyard_control.cluster import environments

if TYPE_CHECKING:
    import keras

    from trainyard_control.search.bench_report import BenchmarkReport
    from trainyard_control.search.search_space import BlockSpace, Dimension
    from trainyard_control.search.study import Sweep
    from trainyard_control.search.trials import Result

_ROUNDS = 3  # chosen: the smallest number with a useful 95 % interval


def sweep(
    recipe: str,
    over: Mapping[str, str | Sequence[Any]] | Sequence[str] = (),
    *,
    family: str | None = None,
    blocks: str | None = None,
    latency_budget: str | None = None,
    trials: int | None = None,
    max_parallel: int = 1,
    environment: str = LOCAL,
    name: str | None = None,
    set_: Sequence[str] = (),
    prune: bool = True,
    **settings: Any,
) -> Result:
    """Search the best variant of a recipe.

    Data is preprocessed once. The eval split selects; nothing is pushed. The same call resumes a sweep, or extends it
    with more trials. over: values or a range by key, or texts `KEY=VALUES`. family: of networks, basic or
    efficient. blocks: of cnn_small, to sample from, such as "2:4 conv|residual:16|32:1|2". latency_budget: maximum
    latency of a prediction on one core, such as "2ms"; slower networks are skipped before they are trained. trials:
    number of trials; by default all combinations of values, otherwise 12. max_parallel: trials at a time, each on its
    share of the cores or as a run on the environment's cluster. name: prefix of the names of those runs; the same name
    resumes the sweep. prune: stop trials that are worse than the median of the earlier ones. settings, set_: values of
    every trial, as in `run`.

    Raises `ConfigurationError` for values that no recipe takes, and the error of the trials if all of them fail.

    >>> import trainyard as ty
    >>> found = ty.sweep("digits", {"train__batch_size": [32, 64]}, train__epochs=2)  # doctest: +SKIP
    >>> found.best.values, found.test.metrics  # doctest: +SKIP
    """
    options = SweepOptions(
        over=over,
        family=family,
        blocks=blocks,
        latency_budget=latency_budget,
        trials=trials,
        max_parallel=max_parallel,
        environment=environment,
        name=name,
        prune=prune,
    )
    return run_sweep(describe_sweep(recipe, overrides(set_, settings), options))


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """The options of `sweep`."""

    over: Mapping[str, str | Sequence[Any]] | Sequence[str]
    family: str | None
    blocks: str | None
    latency_budget: str | None
    trials: int | None
    max_parallel: int
    environment: str
    name: str | None
    prune: bool


def describe_sweep(recipe: str, sets: list[str], options: SweepOptions) -> Sweep:
    """Build the sweep of `sweep` without running it. Raises `ConfigurationError` for values that no recipe takes."""
    at_least_one("trials", options.trials)
    dimensions = _dimensions(recipe, sets, options)
    budget = None if options.latency_budget is None else _milliseconds(options.latency_budget)
    loaded_environment = environments.load(options.environment)
    if loaded_environment.target == "local" and options.name is not None:
        raise ConfigurationError("name: is for runs of a cluster. Name its environment, or leave it out.")
    if find_spec("optuna") is None:
        raise ConfigurationError("optuna is not installed; sweeps need it. Install trainyard[search].")
    from trainyard_control.search.study import Sweep

    described = Sweep(
        recipe, sets, dimensions, loaded_environment, options.trials, options.prune, options.max_parallel, budget
    )
    if loaded_environment.target == "local":
        return described
    return replace(described, run=options.name or f"{described.recipe.name}-sweep-{described.digest[:6]}")


def _dimensions(recipe: str, sets: list[str], options: SweepOptions) -> list[Dimension | BlockSpace]:
    """Build the search space. Raises `ConfigurationError` if it is empty or the recipe does not take a value."""
    from trainyard_control.search import search_space

    recipes.load(recipe, sets)
    over = [*_networks(options.family), *_as_texts(options.over)]
    dimensions: list[Dimension | BlockSpace] = [*search_space.parse(recipe, sets, over)]
    if options.blocks is not None:
        dimensions.append(search_space.parse_blocks(recipe, sets, options.blocks))
        if len({dimension.key for dimension in dimensions}) < len(dimensions):
            raise ConfigurationError("blocks: draws model.blocks, and over names them too. Leave one out.")
    if not dimensions:
        raise ConfigurationError("Nothing to try. Give over KEY=VALUES, a family, blocks, or several.")
    return dimensions


def run_sweep(sweep: Sweep, pending_limit: float = math.inf) -> Result:
    """Run or resume a sweep. pending_limit: as in `cluster_trials.run`."""
    with SweepScreen(sweep.count, str(compared(sweep.recipe))) as screen:
        if sweep.environment.target == "local":
            from trainyard_control.search import sweep as sweeps

            return sweeps.run(sweep, screen)
        environments.writable_storage(sweep.environment)
        from trainyard_control.kubeflow.runs import KubeflowRuns
        from trainyard_control.search import cluster_trials

        return cluster_trials.run(sweep, screen, pending_limit, KubeflowRuns(sweep.environment))


def _milliseconds(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*(us|ms|s)", text)
    if match is None or not float(match[1]):
        raise ConfigurationError(f"latency_budget {text[:50]!r}: not a duration. Write it such as 2ms, 500us or 0.1s.")
    return float(match[1]) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[match[2]]


def _networks(family: str | None) -> list[str]:
    if family is None:
        return []
    if family not in MODEL_FAMILIES:
        raise ConfigurationError(
            f"family {family[:100]!r}: unknown.{did_you_mean(family, MODEL_FAMILIES)} "
            f"Known: {', '.join(MODEL_FAMILIES)}."
        )
    return [f"model.name={','.join(MODEL_FAMILIES[family])}"]


def _as_texts(over: Mapping[str, str | Sequence[Any]] | Sequence[str]) -> list[str]:
    """Format each dimension as `KEY=VALUES`."""
    if not isinstance(over, Mapping):
        return list(over)
    texts = {key: values if isinstance(values, str) else ",".join(map(str, values)) for key, values in over.items()}
    return [f"{key.replace('__', '.')}={text}" for key, text in texts.items()]


def bench(
    recipe: str | keras.Model = "digits",
    *,
    environment: str = LOCAL,
    set_: Sequence[str] = (),
    quick: bool = False,
    workers: int | None = None,
    rounds: int | None = None,
    **settings: Any,
) -> BenchmarkReport:
    """Measure how fast a recipe trains on this machine.

    Short trainings of the recipe's own model on its own data compare batch sizes, XLA and precisions; `plan` learns
    from them. The input pipeline is measured alone as well. quick: three settings instead of six, and fewer epochs.
    rounds: how often all settings are trained in turn, by default three times, so that the intervals cover other load
    of the machine. workers: compare 1, 2, 4 … `workers` workers instead of settings, each with its own cores and batch.
    settings, set_: as in `run`.

    recipe can also be a Keras model or a .keras file: its training steps are measured on random inputs, on the CPU and
    on each kind of accelerator that TensorFlow sees, with XLA and without. environment and settings do not apply to it.

    Raises the error of the recipe's own training, if it fails.

    >>> import trainyard as ty
    >>> ty.bench("digits", quick=True).speeds[0].examples_per_second  # doctest: +SKIP
    """
    from trainyard_control.search import bench as benchmark
    from trainyard_control.search.bench_report import MAX_ROUNDS

    if not isinstance(recipe, str) or recipe.endswith(".keras"):
        if settings or set_ or environment != LOCAL or workers is not None or rounds is not None:
            raise ConfigurationError(
                "bench: settings, environments, workers and rounds are for recipes, and this is a model."
            )
        with BenchScreen() as screen:
            return benchmark.measure_model(_loaded(recipe), quick, screen)
    sets = overrides(set_, settings)
    turns = _ROUNDS if rounds is None else rounds
    if not 1 <= turns <= MAX_ROUNDS:
        raise ConfigurationError(f"rounds {turns}: not from 1 to {MAX_ROUNDS}. Three show how much a machine changes.")
    loaded_environment = local_environment(environment, "A speed is measured on this machine.")
    with BenchScreen() as screen:
        return benchmark.measure(recipe, sets, loaded_environment, quick, workers, turns, screen)


def _loaded(model: str | keras.Model) -> keras.Model:
    if not isinstance(model, str):
        return model
    if not Path(model).is_file():
        raise ConfigurationError(f"{model}: there is no such file. Name a recipe, or a model that Keras saved.")
    with stderr_hidden():  # hides TensorFlow's C++ log lines on import and GPU discovery
        from trainyard.data.trained import load_foreign

    return load_foreign(Path(model))
