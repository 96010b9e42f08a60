"""One training run in this process, from the examples to the saved model and its training record."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import trainyard.data  # noqa: F401 - first: sets what TensorFlow reads while it is imported

# isort: split
import keras
import numpy as np
import tensorflow as tf

from trainyard import events
from trainyard.contract import keys
from trainyard.contract.artifacts.train import (
    Device,
    Epoch,
    ExampleCosts,
    Gang,
    Machine,
    Training,
    TrainingSpeed,
    TrainingStart,
)
from trainyard.contract.epochs import backbone_share, operations
from trainyard.data.examples import ExampleFolder, open_examples, reading
from trainyard.errors import ConfigurationError, PeerLost
from trainyard.models.costs.cost import cost
from trainyard.models.weights import load_weights
from trainyard.spec.gates import require_classes
from trainyard.spec.recipe import Recipe
from trainyard.spec.selection import BY_LOSS, selection
from trainyard.steps.train.engines import engine as engines
from trainyard.steps.train.engines import pushed_models
from trainyard.steps.train.engines.engine import Engine
from trainyard.steps.train.engines.network import deployable, network
from trainyard.steps.train.engines.objective import (
    UNSCALED,
    Moments,
    TargetScale,
    class_weights,
    learned_targets,
    objective,
    target_moments,
)
from trainyard.steps.train.engines.peer_loss import is_peer_loss
from trainyard.steps.train.engines.scores import score_of
from trainyard.steps.train.engines.steps import Steps
from trainyard.steps.train.input.input import Input
from trainyard.steps.train.input.micro_batches import LocalReplicas
from trainyard.steps.train.input.service.client import InputService
from trainyard.steps.train.input.shard_ranges import Feed
from trainyard.steps.train.loop import speed
from trainyard.steps.train.loop.checkpoint import CheckpointFolder
from trainyard.steps.train.loop.goodput import GangHistory
from trainyard.steps.train.loop.loop import Loop
from trainyard.steps.train.loop.summary import write_summary
from trainyard.steps.train.loop.watchdog import training_watchdog
from trainyard.steps.train.peers import launcher_heartbeat
from trainyard.steps.train.peers.settings import Rank, current_rank
from trainyard.storage import storage

_NO_TARGETS: Moments = (0.0, 1.0)
_LONGEST_REASON = 200  # characters of a framework's message; chosen


def train(
    recipe: Recipe,
    examples: str,
    checkpoints: str,
    identity: str,
    output: Path,
    past: GangHistory | None = None,
    champion: str = "",
    feed: Feed | None = None,
    service: InputService | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> Training:
    """Write model.keras and tensorboard/ to `output` and return the training record, without the seconds of imports.

    Resumes from the newest checkpoint below `checkpoints` with the same `identity`. Without one, starts from the
    weights of the pushed version in the folder `champion`, if given. If TF_CONFIG describes a gang, all its workers
    must call this; only the chief writes a model. feed: fetches the shards that are not in `examples`. service: the
    input workers. on_epoch: called for each epoch, including those before a resume.

    Raises `PeerLost` if another worker is lost.
    """
    rank, engine = current_rank(), engines.create_engine()
    watchdog, past = training_watchdog(rank), past or GangHistory()
    fetching = feed.errors(watchdog.note_progress) if feed else nullcontext()
    serving = service.errors() if service else nullcontext()
    with _peer_losses(engine, rank), watchdog.watching(), reading(examples), fetching, serving:
        measured, seconds = _start(engine)
        start = time.perf_counter()
        folder = open_examples(examples)
        document = folder.document
        is_regression = document.task == "regression"
        target, targets = learned_targets(recipe.train.target, folder) if is_regression else (UNSCALED, _NO_TARGETS)
        precision = engine.precision(recipe.train)
        data, steps = prepare(recipe, folder, engine, targets, precision, feed, service, target)
        if recipe.model.weights is not None:
            # A pod's local disk is deleted with the pod.
            durable = storage.is_bucket(checkpoints) or "KUBERNETES_SERVICE_HOST" in os.environ
            published = keys.published_weights(checkpoints) if durable else ""
            load_weights(recipe.model, steps.model, document.labels, published)
        if champion:
            pushed_models.load_champion(champion, steps.model, examples, document, recipe.train.target.scale)
        seconds["build"] = time.perf_counter() - start
        _emit_training(steps, data, engine, rank, precision, sum(seconds.values()))
        writer = tf.summary.create_file_writer(str(output / "tensorboard"))
        keep, chosen = recipe.train.checkpoints.keep, selection(recipe)
        saved = CheckpointFolder(checkpoints, identity, keep, rank.chief, chosen)

        def note(epoch: Epoch) -> None:
            write_summary(writer, epoch)
            if on_epoch:
                on_epoch(epoch)

        loop = Loop(recipe.train, steps, data, saved, note, rank, past, watchdog)
        try:
            loop.run()
        finally:
            writer.close()
        training = _finish(recipe, loop, engine, output, seconds, targets, precision, measured, past)
        engine.leave()
        queue = launcher_heartbeat.read_queue_seconds()
        goodput = past.goodput(training.steps, training.speed.step_ms / 1000, training.seconds, queue)
        return training.model_copy(update={"goodput": goodput})


@contextmanager
def _peer_losses(engine: Engine, rank: Rank) -> Iterator[None]:
    """Raise `PeerLost` if the block fails because another worker is lost."""
    start = time.perf_counter()
    try:
        yield
    except Exception as error:
        if rank.workers == 1 or not is_peer_loss(engine.status(error), str(error)):
            raise
        raise PeerLost(
            f"worker {rank.index} of {rank.workers}: lost another worker after {time.perf_counter() - start:.1f} s "
            f"({type(error).__name__}: {str(error)[:_LONGEST_REASON]}). Start all of them again."
        ) from error


def _start(engine: Engine) -> tuple[list[Device], dict[str, float]]:
    """Start the devices; return their measured speeds and the seconds of joining and probing."""
    start = time.perf_counter()
    engine.check()
    engine.join()
    joined = time.perf_counter()
    measured = engine.probe()
    return measured, {"join": joined - start, "probe": time.perf_counter() - joined}


def _emit_training(steps: Steps, data: Input, engine: Engine, rank: Rank, precision: str, seconds: float) -> None:
    events.emit(
        "training",
        model=steps.model.name,
        parameters=steps.model.count_params(),
        devices=",".join(engine.devices()),
        worker=rank.index,
        workers=rank.workers,
        replicas=data.replicas.total,
        precision=precision,
        examples=data.folder.document.splits["train"].examples,
        steps_per_epoch=data.steps_per_epoch,
        seconds_to_build=round(seconds, 2),
    )


def _local_replicas(recipe: Recipe, replicas: int, rank: Rank) -> LocalReplicas:
    """Return the replicas of this process. Raises `ConfigurationError` if a batch does not divide equally."""
    local = replicas // rank.workers
    if why := recipe.train.unequal_parts(rank.workers, local):
        raise ConfigurationError(f"train.{why}. Give {recipe.train.nearest_batch(rank.workers, local)}.")
    return LocalReplicas(replicas, rank.index * local, local)


def prepare(
    recipe: Recipe,
    folder: ExampleFolder,
    engine: Engine,
    targets: Moments,
    precision: str,
    feed: Feed | None = None,
    service: InputService | None = None,
    target: TargetScale = UNSCALED,
) -> tuple[Input, Steps]:
    """Return the input and the steps of a run with initial weights, before anything is traced.

    targets: mean and standard deviation of what a regression learns, which is on the scale of `target`.
    """
    document = folder.document
    require_classes(recipe.named_classes, document.labels or [])  # known now, and not after hours
    weights = class_weights(recipe, document.labels, document.splits["train"].class_totals)
    replicas = _local_replicas(recipe, engine.replicas, current_rank())
    data = Input(recipe, folder, weights, replicas, feed, service=service)
    score = score_of(selection(recipe), document, np.atleast_1d(_eval_spread(folder)))
    minimized = objective(document, recipe.train.label_smoothing, targets[1], target, score, weights)
    # Resets the numbering of layers, so that their names do not depend on earlier models.
    keras.utils.clear_session(free_memory=False)

    def build() -> keras.Model:
        return network(recipe, document, targets, precision)

    load_teacher = partial(pushed_models.load_teacher, recipe, folder.uri, document)
    return data, engine.steps(build, recipe, data.steps_per_epoch, minimized, precision, load_teacher)


def _eval_spread(folder: ExampleFolder) -> float | list[float]:
    """Return the standard deviation of each target in the eval split."""
    document = folder.document
    if document.task != "regression":
        return 1.0
    known = [deviation for _, deviation in document.eval_target_moments]
    return known or target_moments(folder.labels("eval"), folder.weights("eval"))[1]


def _finish(
    recipe: Recipe,
    loop: Loop,
    engine: Engine,
    output: Path,
    seconds: dict[str, float],
    targets: Moments,
    precision: str,
    measured: list[Device],
    past: GangHistory,
) -> Training:
    calls, epochs = loop.cached_step_seconds(), loop.step_seconds
    cached, real = statistics.median(calls), statistics.fmean(epochs)
    rank, replicas = loop.rank, loop.data.replicas.total
    all_reduce = loop.all_reduce_seconds() if replicas > 1 else 0.0
    gradient_bytes = loop.steps.gradient_bytes if replicas > 1 else 0
    best = loop.restore_best()
    model = loop.steps.model
    work, teacher = cost(model), loop.steps.teacher
    share = math.ceil(backbone_share(recipe))  # if all layers ever learn, they do so in the last epochs
    taught = operations(cost(teacher.model).flops_per_example, 0) if teacher else 0
    deployable(model, recipe, loop.data.folder, targets).save(output / "model.keras")
    stepped = max(1, loop.history[-1].step - (loop.resumed_from or 0))
    parts = speed.split(real, cached, all_reduce) | {"checkpoint": loop.seconds["save"] / stepped}
    return Training(
        model=recipe.model.name or model.name,
        parameters=model.count_params(),
        steps=loop.history[-1].step,
        epochs=len(loop.history),
        best_epoch=best.epoch,
        selection=BY_LOSS if best.selected is None else loop.checkpoints.selection,
        precision=precision,
        history=loop.history,
        rollbacks=loop.rollbacks,
        seconds={name: round(value, 3) for name, value in {**seconds, **loop.seconds}.items()},
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        xla=recipe.train.xla,
        speed=TrainingSpeed(
            examples_per_second=loop.data.batch_size / real,
            bottleneck=speed.bottleneck(epochs, calls),
            step_ms=1000 * real,
            cached_step_ms=1000 * cached,
            step_range_ms=[round(1000 * end, 3) for end in (min(epochs), max(epochs))],
            cached_step_range_ms=[round(1000 * end, 3) for end in (min(calls), max(calls))],
            step_split_ms={name: round(1000 * value, 3) for name, value in parts.items()},
            all_reduce_ms=1000 * all_reduce,
            checkpoint_writes=loop.writer.count,
            checkpoint_write_seconds=round(loop.writer.seconds, 3),
            input_workers=loop.data.input_workers,
        ),
        gang=Gang(
            workers=rank.workers,
            replicas=replicas,
            gradient_bytes=gradient_bytes,
            restarts=past.restarts,
            worker_counts=past.worker_counts,
            stragglers=past.stragglers,
        ),
        machine=Machine(
            devices=engine.devices(),
            hardware=engine.hardware(),
            cores=len(os.sched_getaffinity(0)),
            measured=measured,
            engine=engines.engine_name(),
            versions=engine.versions(),
        ),
        costs=ExampleCosts(
            flops_per_example=operations(work.flops_per_example, share) + taught,
            activations_per_example=work.activations_per_example,
            saved_activations_per_example=work.saved_activations_per_example,
            backbone_share=share,
        ),
        start=TrainingStart(
            resumed_from=loop.resumed_from,
            weights=recipe.model.weights or "",
            teacher=recipe.train.teacher.model if recipe.train.teacher else "",
        ),
    )
