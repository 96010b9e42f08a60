"""Measures how fast a recipe trains: short trainings of its own model on its own data, in several settings.

They are ordinary trainings, so that the speed is that of a run, and the planner learns from them as from any other.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trainyard import events
from trainyard.contract import keys
from trainyard.contract.artifacts.export import Answer
from trainyard.contract.artifacts.train import Device, InputSpeed, Training
from trainyard.contract.gang import usd_per_hour
from trainyard.errors import ConfigurationError, DataError, InfrastructureError, TrainyardError
from trainyard.process import memory
from trainyard.spec import recipe as recipes
from trainyard.spec.environment import Environment
from trainyard.spec.hardware.catalog import catalog, named
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage
from trainyard_control.local.local_run import Listener, LocalRun
from trainyard_control.local.step_process import Stop, forked
from trainyard_control.planning import cost, data
from trainyard_control.planning.hardware import local_hardware, needed_bytes, pool_hardware
from trainyard_control.planning.history import last_preprocessed
from trainyard_control.search.bench_report import BenchmarkReport, Speed, interval, quotient
from trainyard_control.search.search_space import override

if TYPE_CHECKING:
    import keras

_EPOCHS, _QUICK_EPOCHS = 6, 3  # chosen: the first warms up, and the others give the range
_FAR_SLOWER = 0.3  # chosen: XLA on a CPU may take a twentieth of the speed, and minutes for that
_INPUT = "input"  # among the settings that are left out
NO_IMAGES = "It has no images: the rows of a table are numbers already, and nothing is decoded."
_EVENT = "input_speed"
_GIB = 1 << 30
_PYTHON = {"python": platform.python_version()}
_START = ("import", "join", "probe", "build", "input", "compile")  # parts of Training.seconds before the first step


class SpeedListener(Listener, Protocol):
    """Receives the events of a benchmark."""

    def training_ended(self, setting: str, turn: int, rounds: int, rate: float) -> None:
        """Called after a training in round `turn` of `rounds`, with its examples/s."""

    def speed_measured(self, speed: Speed, base: Speed) -> None:
        """Called after a setting of a Keras model. base: the first setting."""

    def setting_skipped(self, setting: str, why: str) -> None:
        """Called for a setting that cannot be trained."""


@dataclass(frozen=True)
class Setting:
    """A setting: its name and the values that it changes. cores: the cores to train on, by default all."""

    name: str
    values: dict[str, float | int | str | bool]
    cores: frozenset[int] | None = None


def settings(recipe: Recipe, quick: bool) -> list[Setting]:
    """Return the settings to measure: the recipe's own, other batch sizes, XLA, and another precision."""
    train = recipe.train
    batches = (2,) if quick else (0.5, 2, 4)
    sizes = {factor: max(1, round(train.batch_size * factor)) for factor in batches}
    measured = [Setting("as it is", {})]
    measured += [Setting(f"batch {size}", {"train.batch_size": size}) for size in sizes.values()]
    measured.append(Setting("without XLA" if train.xla else "XLA", {"train.xla": not train.xla}))
    if not quick:
        other = "float32" if train.precision == "bfloat16" else "bfloat16"
        measured.append(Setting(other, {"train.precision": other}))
    return measured


def shortened(overrides: Sequence[str], quick: bool = False) -> list[str]:
    """Return the overrides with the few epochs of a measurement."""
    epochs = _QUICK_EPOCHS if quick else _EPOCHS
    return [*overrides, override("train.epochs", epochs), override("train.early_stopping", None)]


def short(name: str, overrides: Sequence[str]) -> Recipe:
    """Load the recipe. Raises `ConfigurationError` for a custom training program."""
    recipe = recipes.load(name, list(overrides))
    if recipe.train.command is not None:
        raise ConfigurationError(
            f"{recipe.name}: train.command: a program of the recipe's own trains, and the settings that bench compares "
            "are Trainyard's. Compare runs of it with `trainyard runs compare`."
        )
    return recipe


def gangs(recipe: Recipe, workers: int) -> list[Setting]:
    """Return settings of 1, 2, 4 … `workers` workers, each with an equal share of the cores and one worker's batch.

    Raises `ConfigurationError` if there are too few cores, or nothing to compare.
    """
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // max(1, workers)
    if workers < 2 or not share:
        raise ConfigurationError(
            f"workers {workers}: each worker needs its own core, and there are {len(cores)}. "
            f"{f'Give 2 to {len(cores)}' if len(cores) > 1 else 'Measure on a machine with more'}."
        )
    part = max(1, recipe.train.batch_size // recipe.train.workers)
    counts = [*(2**power for power in range(workers.bit_length()) if 2**power < workers), workers]
    return [
        Setting(
            "1 worker" if count == 1 else f"{count} workers",
            {"train.workers": count, "train.batch_size": part * count},
            frozenset(cores[: share * count]),
        )
        for count in counts
    ]


def measure(
    name: str,
    overrides: list[str],
    environment: Environment,
    quick: bool,
    workers: int | None,
    rounds: int,
    listener: SpeedListener,
) -> BenchmarkReport:
    """Train the recipe `name` for a few epochs in each setting, `rounds` times in turn.

    workers: compare up to this number of workers instead of settings. A setting that does not fit the devices or the
    recipe is left out, with its reason; one that is far slower than the first is trained once. Raises the error of the
    recipe's own training, and `ConfigurationError` before anything starts if it needs more memory than there is.
    """
    start, input_seconds = time.monotonic(), 0.0
    overrides = shortened(overrides, quick)
    recipe = short(name, overrides)
    measured = settings(recipe, quick) if workers is None else gangs(recipe, workers)
    trainings: dict[str, list[Training]] = {}
    skipped = {} if recipe.data.is_image else {_INPUT: NO_IMAGES}
    inputs: list[list[InputSpeed]] = []
    outputs = storage.join(environment.storage, recipe.name)
    with storage.reading(outputs):
        for turn in range(rounds):
            for number, setting in enumerate(measured):
                if setting.name in skipped or _far_slower(trainings.get(setting.name), trainings.get(measured[0].name)):
                    continue
                folder = storage.join(outputs, "certificate", str(number))
                try:
                    variant = recipes.load(name, [*overrides, *starmap(override, setting.values.items())])
                    training, examples = _trained(variant, environment, setting, folder, listener)
                except ConfigurationError as error:
                    if setting is measured[0]:
                        raise
                    trainings.pop(setting.name, None)
                    skipped[setting.name] = str(error)
                    listener.setting_skipped(setting.name, str(error))
                    continue
                trainings.setdefault(setting.name, []).append(training)
                listener.training_ended(setting.name, turn + 1, rounds, epoch_rate(training))
            if workers is None and _INPUT not in skipped:
                before = time.monotonic()
                try:
                    inputs.append(measure_input(recipe, examples))
                except (ConfigurationError, DataError, InfrastructureError) as error:
                    skipped[_INPUT], inputs = str(error), []
                input_seconds += time.monotonic() - before
    speeds = [
        over_rounds(setting, recipe.train.batch_size, trainings[setting.name], trainings[measured[0].name])
        for setting in measured
        if setting.name in trainings
    ]
    done = [training for runs in trainings.values() for training in runs]
    trained = sum(sum(training.seconds.values()) for training in done)
    spent = {"trainings": trained, "input": input_seconds, "all": time.monotonic() - start}
    seconds = {part: round(value, 1) for part, value in spent.items()}
    sources = mean_inputs(inputs)
    return report_from_trainings(recipe.name, done, _machine_name(), speeds, skipped, sources, seconds)


def _trained(
    variant: Recipe, environment: Environment, setting: Setting, folder: str, listener: SpeedListener
) -> tuple[Training, str]:
    """Train `variant` on the setting's cores; return the training and the folder of its examples."""
    require_memory(variant, environment)
    # Train again: an earlier speed may not hold now.
    run = LocalRun(variant, environment, "", "train", listener, folder=folder, cores=setting.cores)
    examples = run.preprocess()
    return Training.read(run.train(None)), examples


def _far_slower(trainings: Sequence[Training] | None, base: Sequence[Training] | None) -> bool:
    """Return True if a setting was so slow in the first round that more rounds cannot make it the fastest."""
    return trainings is not None and base is not None and epoch_rate(trainings[0]) < _FAR_SLOWER * epoch_rate(base[0])


def measure_input(recipe: Recipe, examples: str) -> list[InputSpeed]:
    """Measure how fast the input yields the images of the preprocess output `examples`, from each source.

    Raises `InfrastructureError` with the reason if the process fails.
    """
    speeds, last = [], ""
    with forked(_emit_speeds, (recipe.model_dump_json(), examples), "input", Stop()) as running:
        for line in running.child.lines:
            fields = events.parse(line)
            if fields.pop("event", "") == _EVENT:
                speeds.append(InputSpeed.model_validate(fields))
            last = line.strip() or last
        code = running.wait()
    running.require_undisturbed("bench")
    if code:
        raise InfrastructureError(f"Not measured: {last[:300] or f'its process ended with {code}'}.")
    return speeds


def mean_inputs(rounds: Sequence[Sequence[InputSpeed]]) -> list[InputSpeed]:
    """Return the mean of each source over the rounds, with its 95 % interval; of one round, its own numbers."""
    if len(rounds) < 2:
        return list(rounds[0]) if rounds else []
    speeds = []
    for source_rounds in zip(*rounds, strict=True):
        rate, low, high = interval([speed.examples_per_second for speed in source_rounds])
        values = {"examples_per_second": round(rate, 1), "low": round(low, 1), "high": round(high, 1)}
        speeds.append(source_rounds[0].model_copy(update=values))
    return speeds


def _emit_speeds(recipe: str, examples: str) -> None:
    """Emit an event for each source, in a child process."""
    from trainyard.steps.train.input_speed import speeds

    for speed in speeds(Recipe.model_validate_json(recipe), examples):
        events.emit(_EVENT, **speed.model_dump())


def measure_model(model: keras.Model, quick: bool, listener: SpeedListener) -> BenchmarkReport:
    """Measure training steps of a Keras model on the CPU and on each kind of accelerator.

    Raises as `step_speeds`.
    """
    from trainyard.models.costs.cost import cost
    from trainyard.models.costs.speed import answers, device_names, require_measurable, setting_name, step_speeds

    require_measurable(model)
    work, names = cost(model), device_names()
    speeds: list[Speed] = []
    skipped: dict[str, str] = {}
    for measured in step_speeds(model, quick):
        if isinstance(measured, tuple):
            skipped[measured[0]] = measured[1]
            listener.setting_skipped(*measured)
            continue
        rate = sum(measured.rates) / len(measured.rates)
        tflops, peak = rate * work.flops_per_example / 1e12, published_tflops(names[measured.device], "float32")
        speed = Speed(
            setting=setting_name(measured.device, measured.batch_size, measured.xla),
            batch_size=measured.batch_size,
            examples_per_second=round(rate, 2),
            low=round(min(measured.rates), 2),
            high=round(max(measured.rates), 2),
            input_examples_per_second=round(rate, 2),
            tflops=float(f"{tflops:.4g}"),
            published_share=round(tflops / peak, 4) if peak else None,
            first_step_seconds=round(measured.first_step_seconds, 2),
        )
        speeds.append(speed)
        listener.speed_measured(speed, speeds[0])
    if not speeds:
        raise ConfigurationError(f"{model.name}: no device takes a step: {next(iter(skipped.values()))}.")
    latencies = [
        Answer(accelerator=named(names[device]) or names[device], **took.model_dump())
        for device, took in answers(model)
    ]
    return BenchmarkReport(
        recipe=model.name,
        model=model.name,
        parameters=work.parameters,
        flops_per_example=work.flops_per_example,
        machine=_machine_name(),
        cores=len(os.sched_getaffinity(0)),
        devices=[
            Device(name=name, product=product, memory_bytes=0, tflops=0, gb_per_second=0)
            for name, product in names.items()
        ],
        versions=_PYTHON | {name: metadata.version(name) for name in ("tensorflow", "keras")},
        measured=_now(),
        speeds=speeds,
        skipped=skipped,
        answers=latencies,
    )


def epoch_rate(training: Training) -> float:
    """Return the examples/s of a training without its first epoch, which warms up."""
    return statistics.harmonic_mean([epoch.examples_per_second for epoch in training.history[1:]])


def over_rounds(setting: Setting, batch_size: int, trainings: Sequence[Training], base: Sequence[Training]) -> Speed:
    """Return the speed of a setting from its trainings, one per round, compared with `base` in the same rounds."""
    speeds = [speed_from_training(setting, batch_size, training) for training in trainings]
    first = speeds[0]
    if len(trainings) == 1:
        return first
    rates = [epoch_rate(training) for training in trainings]
    rate, low, high = interval(rates)
    times, times_low, times_high = quotient(rates, [epoch_rate(training) for training in base])
    share = rate / first.examples_per_second
    peak = max(map(_peak, (*trainings, *base)))  # on a busy machine a single measurement is too low
    split = {part: statistics.fmean(speed.step_split_ms[part] for speed in speeds) for part in first.step_split_ms}
    return first.model_copy(
        update={
            "examples_per_second": round(rate, 2),
            "low": round(low, 2),
            "high": round(high, 2),
            "rounds": [round(value, 2) for value in rates],
            "times": round(times, 4),
            "times_low": round(times_low, 4),
            "times_high": round(times_high, 4),
            "input_examples_per_second": round(
                max(rate, statistics.geometric_mean(speed.input_examples_per_second for speed in speeds)), 2
            ),
            "tflops": float(f"{first.tflops * share:.4g}"),
            "peak_share": round(first.tflops * share / peak, 4) if peak else None,
            "published_share": None if first.published_share is None else round(first.published_share * share, 4),
            "first_step_seconds": round(statistics.fmean(speed.first_step_seconds for speed in speeds), 2),
            "step_split_ms": {part: round(value, 3) for part, value in split.items()},
        }
    )


def _peak(training: Training) -> float:
    """Return the measured TFLOP/s of the devices: the chief's, times the workers."""
    return training.gang.workers * sum(device.tflops for device in training.machine.measured)


def speed_from_training(setting: Setting, batch_size: int, training: Training, chips: int | None = None) -> Speed:
    """Return the speed of one training, without its first epoch, which warms up.

    batch_size: the recipe's, used if the setting has no other. chips: accelerators that trained together, by default
    one per replica.
    """
    batch_size = int(setting.values.get("train.batch_size", batch_size))
    rates = [epoch.examples_per_second for epoch in training.history[1:]]
    rate = epoch_rate(training)
    peak = _peak(training)
    published = published_tflops(training.machine.hardware, training.precision)
    tflops = rate * training.costs.flops_per_example / 1e12
    ceiling = 1000 * batch_size / training.speed.cached_step_ms if training.speed.cached_step_ms else 0.0
    return Speed(
        setting=setting.name,
        values=setting.values,
        batch_size=batch_size,
        examples_per_second=round(rate, 2),
        low=round(min(rates), 2),
        high=round(max(rates), 2),
        input_examples_per_second=round(max(ceiling, rate), 2),
        tflops=float(f"{tflops:.4g}"),
        peak_share=round(tflops / peak, 4) if peak else 0.0,
        published_share=round(tflops / published / (chips or training.gang.replicas), 4) if published else None,
        first_step_seconds=round(sum(training.seconds.get(part, 0.0) for part in _START), 2),
        workers=training.gang.workers,
        step_split_ms=training.speed.step_split_ms,
    )


def report_from_trainings(
    name: str,
    trainings: Sequence[Training],
    machine: str,
    speeds: list[Speed],
    skipped: dict[str, str],
    inputs: Sequence[InputSpeed] = (),
    seconds: dict[str, float] | None = None,
) -> BenchmarkReport:
    """Build the report of `speeds`, measured by `trainings` of one model."""
    base = trainings[0]
    devices = {device.name: device for training in trainings for device in training.machine.measured}
    return BenchmarkReport(
        recipe=name,
        model=base.model,
        parameters=base.parameters,
        flops_per_example=base.costs.flops_per_example,
        machine=machine,
        cores=max(training.machine.cores for training in trainings),
        devices=list(devices.values()),
        versions=_PYTHON | base.machine.versions,
        measured=_now(),
        speeds=speeds,
        skipped=skipped,
        inputs=list(inputs),
        seconds=seconds or {},
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _machine_name() -> str:
    """Return the processor's name and architecture."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        return f"{name}, {platform.machine()}"
    return platform.machine()


def published_tflops(hardware: str, precision: str) -> float | None:
    """Return the published TFLOP/s of a chip in `precision`, None if the catalog has no figure.

    hardware: the catalog's name, or the driver's product name.
    """
    known = catalog().accelerators.get(hardware) or catalog().accelerators.get(named(hardware) or "")
    if known is None:
        return None
    return known.float32_tflops if precision == "float32" else known.mixed_tflops


def require_memory(recipe: Recipe, environment: Environment, pool: str | None = None) -> None:
    """Raise `ConfigurationError` if a step needs more memory than a device of `pool`, by default of this machine.

    Nothing is raised if the sizes are not known yet, such as of images that were never read.
    """
    try:
        hardware = (
            local_hardware(recipe) if pool is None else pool_hardware(recipe, environment, environment.pools[pool])
        )
    except ConfigurationError:  # the catalog has no figures of it
        return
    available = memory.usable_bytes() if pool is None and hardware.cpu else hardware.memory_bytes
    if available is None:
        return
    try:
        root = environment.storage
        document = None if storage.is_bucket(root) else last_preprocessed(recipe, root)  # a bucket may not answer
        work = cost.from_recipe(recipe, data.find(recipe, document, 1))  # the number of examples does not matter
    except TrainyardError:
        return
    train = recipe.train
    # The workers of a gang on this machine share its memory.
    needed = (hardware.workers if hardware.cpu and pool is None else 1) * needed_bytes(
        work, train.batch_size, hardware, train.accumulation_steps
    )
    if needed > available:
        place = f"pool '{pool}'" if pool else "this machine"
        raise ConfigurationError(
            f"{recipe.name}: train.batch_size {train.batch_size:,} needs at least {needed / _GIB:,.1f} GiB of memory, "
            f"and {place} has {available / _GIB:,.1f} GiB. Give fewer examples, or split it by "
            "train.accumulation_steps."
        )


def collect(
    recipe: Recipe, environment: Environment, runs: Mapping[str, str]
) -> tuple[BenchmarkReport | None, list[str]]:
    """Build the report of finished runs, None without any, and list the pools that are not measured yet.

    runs: names of runs by pool; the first is the base of the comparison.

    Raises `TransientError` if a bucket cannot be reached.
    """
    results = {
        pool: result[1] for pool, run in runs.items() if (result := find_training(environment, recipe.name, run))
    }
    missing = [pool for pool in runs if pool not in results]
    if not results:
        return None, missing
    speeds = [_speed(recipe, environment, pool, training) for pool, training in results.items()]
    place = f"pools of {environment.name}"
    skipped = dict.fromkeys(missing, "It has not been measured yet.")
    return report_from_trainings(recipe.name, list(results.values()), place, speeds, skipped), missing


def find_training(environment: Environment, recipe: str, run: str) -> tuple[str, Training] | None:
    """Return the model's folder and the training of the run with this name, None if there is none yet."""
    folder = storage.join(environment.storage, recipe, "train")
    for name in storage.children(folder):
        output = storage.join(folder, name)
        if output.endswith(keys.labeled("", run)) and storage.committed(output) is not None:
            return output, Training.read(output)
    return None


def _speed(recipe: Recipe, environment: Environment, pool: str, training: Training) -> Speed:
    node, price = environment.pools[pool], usd_per_hour(environment, environment.pools[pool])
    hardware = (
        training.machine.hardware
        if training.gang.replicas == 1
        else f"{training.gang.replicas} x {training.machine.hardware}"
    )
    chips = node.max_workers * (node.count or 1)
    return speed_from_training(Setting(pool, {}), recipe.train.batch_size, training, chips).model_copy(
        update={
            "pool": pool,
            "hardware": hardware,
            "dollars_per_hour": None if price is None else round(price, 4),
        }
    )
