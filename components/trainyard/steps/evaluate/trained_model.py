"""The verdict on a trained model, by its answers on the test split."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainyard import events
from trainyard.contract.artifacts.evaluate import (
    Boosted,
    ClassMetrics,
    ClassThreshold,
    Evaluation,
    TargetMetrics,
    thresholds_by_id,
)
from trainyard.contract.artifacts.gate import Interval
from trainyard.contract.artifacts.preprocess import ComputedFeature, RawFeature
from trainyard.contract.document import Split
from trainyard.data.examples import ExampleFolder, Tensors, open_examples
from trainyard.data.formulas import computed
from trainyard.errors import ConfigurationError, DataError, did_you_mean
from trainyard.graph import remedy
from trainyard.quality.tables.cells import UnknownCounter, Vocabulary
from trainyard.spec import code, packages
from trainyard.spec.gates import MAIN_METRIC, METRIC_SPECS, Against, Gate, require_classes
from trainyard.spec.networks import TREES
from trainyard.spec.recipe import Data, Recipe
from trainyard.steps.evaluate import curves
from trainyard.steps.evaluate.baselines import baseline, baseline_predictions, boosted_predictions, importances
from trainyard.steps.evaluate.curves import choose_thresholds
from trainyard.steps.evaluate.gate import (
    ChampionState,
    MetricPair,
    Subject,
    drifted,
    judge,
    judge_drift,
    judge_one_answer,
)
from trainyard.steps.evaluate.metrics import custom as custom_metrics
from trainyard.steps.evaluate.metrics.bootstrap import CONFIDENCE, differences, intervals, measure_with_intervals
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions
from trainyard.steps.evaluate.metrics.registry import Answers, measure
from trainyard.steps.evaluate.predict import (
    answer_batch,
    batch_size,
    champion_predictions,
    model_predictions,
    replicated,
)
from trainyard.steps.evaluate.slices import Columns, Masks, largest_gap, slice_masks, slice_metrics, slices_of
from trainyard.steps.evaluate.worst import JudgedExamples, disagreement, worst_examples
from trainyard.storage import storage

SPLIT: Split = "test"

_CLASS_METRICS = ("precision", "recall", "f1")
_MOST_CLASS_EXAMPLES = 1_000_000  # times the classes; chosen: some 20 s with 1,000 resamples

Custom = custom_metrics.Metrics


def judge_trained(recipe: Recipe, examples: str, model: str, output: Path, champion_uri: str) -> None:
    """Write what `run` writes of a model that was trained on the examples."""
    folder = open_examples(examples)
    require_classes(recipe.named_classes, folder.document.labels or [])
    size = batch_size(recipe, folder, SPLIT)
    unknown = UnknownCounts(recipe.data, folder)
    batches = folder.batches(SPLIT, size, unknown.columns)
    replicas = replicated(model, folder)
    thresholds = thresholds_of(recipe, model, folder)
    candidate, keys = model_predictions(replicas, model, folder, SPLIT, batches, unknown.add_raw)
    decided = {threshold.label: threshold.value for threshold in thresholds}
    candidate = replace(candidate, thresholds=thresholds_by_id(decided, folder.document.labels or []))
    champion, status = _champion(champion_uri, folder, size)
    grows = recipe.evaluate.boosted and recipe.model.name != TREES  # trees beside trees say nothing
    trees = boosted_predictions(folder, SPLIT, recipe.seed) if grows else None
    columns, train_columns = _columns(recipe, folder, candidate)
    train_weights = folder.weights("train") if train_columns else None
    masks = slice_masks(recipe, columns, train_columns, folder.document.labels, train_weights)
    if candidate.weights is not None:
        masks = {name: mask for name, mask in masks.items() if candidate.weights[mask].any()}
    custom = custom_metrics.find(recipe.module, code.files(recipe), packages.wheels(recipe)) if recipe.module else None
    metrics, bounds = _metrics(recipe, candidate, custom)
    _require_known(recipe, metrics)
    rivals: dict[Against, SplitPredictions | None] = {"champion": champion, "boosted": trees and trees[0]}
    if any(gate.against == "baseline" for gate in recipe.evaluate.gates):
        rivals["baseline"] = baseline_predictions(candidate, folder.document)
    measured = _measured(recipe, candidate, rivals, masks, folder.document.labels or [], custom)
    moved = drifted(recipe, examples, champion_uri)
    verdict = judge_drift(judge(recipe.evaluate.gates, measured, list(masks), status), moved, recipe.drift)
    labels, is_class = folder.document.labels, recipe.task == "classification"
    if labels and is_class and (only := _only_answer(candidate)) is not None:
        verdict = judge_one_answer(verdict, recipe, labels[only], candidate.count(candidate.labels != only))
    judged = JudgedExamples(keys, folder.document, batches)
    evaluation = Evaluation(
        split=SPLIT,
        examples=len(keys),
        metrics=metrics,
        intervals=bounds,
        classes=_classes(recipe, candidate, labels) if labels else [],
        confusion=curves.confusion(candidate, len(labels)) if labels and is_class else [],
        roc=curves.roc_curves(candidate, labels) if labels else [],
        slices=slice_metrics(recipe, masks, candidate),
        worst=worst_examples(recipe.evaluate.worst, candidate, judged, output),
        champion=champion_uri or None,
        gate=verdict,
        champion_metrics=measure(recipe.task, champion) if champion else {},
        disagreement=disagreement(recipe.evaluate.worst, candidate, champion, judged, output) if champion else None,
        drift=moved,
        calibration=curves.calibration(candidate) if is_class else [],
        scatter=[] if labels or recipe.data.targets else curves.scatter(candidate, recipe.seed),
        baseline=baseline(candidate, folder.document),
        boosted=_beside(recipe, candidate, *trees) if trees else None,
        importance=importances(recipe, folder, SPLIT, replicas.first),
        targets=[_target(recipe, name, candidate.one_target(at)) for at, name in enumerate(recipe.data.targets)],
        unknown=unknown.counts(),
        thresholds=thresholds,
    )
    evaluation.write(output)
    for name, counts in evaluation.unknown.items():
        if sentence := counts.warning(name):
            events.warn(f"{SPLIT} split: {sentence}")
    (output / "verdict.json").write_text(verdict.model_dump_json(indent=1), encoding="utf-8")
    saved: dict[str, Any] = {"keys": keys, "labels": candidate.labels, "outputs": candidate.outputs}
    if candidate.weights is not None:
        saved["weights"] = candidate.weights
    _save(output / "predictions.npz", saved)
    events.emit("evaluated", examples=len(keys), verdict=verdict.verdict, **metrics)


def _only_answer(answers: SplitPredictions) -> int | None:
    """Return the class that is predicted for all examples which count, None if there are several."""
    counted = answers.predicted if answers.weights is None else answers.predicted[answers.weights > 0]
    only = np.unique(counted)
    return int(only[0]) if len(only) == 1 else None


def _save(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write `arrays` as `np.savez_compressed`, at the level that is over twice as fast and a tenth larger."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _champion(uri: str, examples: ExampleFolder, size: int) -> tuple[SplitPredictions | None, ChampionState]:
    if not uri:
        return None, ChampionState(present=False)
    try:
        folder = str(storage.local(uri, remedy("push")))
        return champion_predictions(folder, examples, SPLIT, size), ChampionState(present=True)
    except DataError as error:
        events.emit("champion_not_comparable", reason=error)
        return None, ChampionState(present=True, fault=str(error))


def _require_known(recipe: Recipe, metrics: Collection[str]) -> None:
    """Raise `ConfigurationError` for a gate's metric that neither Trainyard nor the recipe's module has."""
    for index, gate in enumerate(recipe.evaluate.gates):
        if gate.metric not in METRIC_SPECS and gate.metric not in metrics:
            raise ConfigurationError(
                f"evaluate.gates.{index}.metric: neither Trainyard nor the recipe's module has a metric "
                f"'{gate.metric}'.{did_you_mean(gate.metric, metrics)} Known: {', '.join(metrics)}."
            )


def _metrics(
    recipe: Recipe, candidate: SplitPredictions, custom: Custom | None
) -> tuple[dict[str, float], dict[str, Interval]]:
    resamples = recipe.evaluate.bootstrap
    metrics, bounds = measure_with_intervals(recipe.task, candidate, resamples, recipe.seed)
    if custom is not None:
        values, custom_bounds = custom_metrics.measure(custom, candidate, resamples, recipe.seed)
        metrics, bounds = {**metrics, **values}, {**bounds, **custom_bounds}
    return metrics, bounds


def _classes(recipe: Recipe, candidate: SplitPredictions, labels: list[str]) -> list[ClassMetrics]:
    """Return the metrics of each class, with their intervals if these take seconds."""
    classes = curves.class_metrics(candidate, labels)
    if len(labels) * len(candidate) > _MOST_CLASS_EXAMPLES:
        return classes
    drawn = recipe.evaluate.bootstrap, recipe.seed
    for index, each in enumerate(classes):
        one = candidate.one_class(index)
        bounds = intervals(recipe.task, one, measure(recipe.task, one, _CLASS_METRICS), *drawn)
        classes[index] = each.model_copy(update={"intervals": bounds})
    return classes


def _target(recipe: Recipe, name: str, candidate: SplitPredictions) -> TargetMetrics:
    metrics = measure(recipe.task, candidate)
    shown = {each: value for each, value in metrics.items() if each in ("mae", "mean_ratio")}
    bounds = intervals(recipe.task, candidate, shown, recipe.evaluate.bootstrap, recipe.seed)
    return TargetMetrics(
        name=name,
        metrics=metrics,
        interval=bounds.get("mae"),
        ratio_interval=bounds.get("mean_ratio"),
        baseline=candidate.mean(np.abs(candidate.labels - candidate.mean(candidate.labels))),
        scatter=curves.scatter(candidate, recipe.seed),
    )


def _beside(recipe: Recipe, candidate: SplitPredictions, trees: SplitPredictions, examples: int) -> Boosted:
    """Compare the trees, trained on `examples` examples, with the candidate."""
    metrics = measure(recipe.task, trees)
    compared = metrics.keys() & {"roc_auc", MAIN_METRIC[recipe.task]}
    paired = differences(recipe.task, compared, candidate, trees, recipe.evaluate.bootstrap, recipe.seed)
    return Boosted(examples=examples, metrics=metrics, differences=paired)


def _measured(
    recipe: Recipe,
    candidate: SplitPredictions,
    rivals: Mapping[Against, SplitPredictions | None],
    masks: Masks,
    labels: Sequence[str],
    custom: Custom | None,
) -> dict[Subject, MetricPair]:
    """Measure the subjects of the recipe's gates that are defined; rivals: other predictions for the examples."""
    measured: dict[Subject, MetricPair] = {}
    for gate in recipe.evaluate.gates:
        subject, rival = Subject.from_gate(gate), rivals[gate.against]
        if subject in measured or (gate.slice is not None and gate.slice not in masks):
            continue
        if gate.largest_gap_between is not None:
            measured[subject] = _gap(recipe, gate, candidate, masks, labels)
            continue
        mask = None if gate.slice is None else masks[gate.slice]
        judged, beside = (answers and _part(recipe, gate, answers, mask, labels) for answers in (candidate, rival))
        values = judged and _measure(recipe, gate, judged, beside, custom)
        if values:
            measured[subject] = values
    return measured


def _gap(recipe: Recipe, gate: Gate, answers: SplitPredictions, masks: Masks, labels: Sequence[str]) -> MetricPair:
    between = slices_of(gate.largest_gap_between or "", recipe, masks)
    parts = {name: _part(recipe, gate, answers, mask, labels) for name, mask in between.items()}
    drawn = recipe.evaluate.bootstrap, recipe.seed, gate.confidence or CONFIDENCE
    return largest_gap(recipe.task, gate.metric, parts, between, *drawn)


def _part(
    recipe: Recipe, gate: Gate, answers: SplitPredictions, mask: NDArray[np.bool_] | None, labels: Sequence[str]
) -> Answers:
    """Return the part of the `answers` that `gate` judges, of those in `mask` (n,)."""
    part = answers if mask is None else answers.take(mask)
    if gate.class_name is not None:
        return part.one_class(labels.index(gate.class_name))
    return part if gate.target is None else part.one_target(recipe.data.targets.index(gate.target))


def _measure(
    recipe: Recipe, gate: Gate, candidate: Answers, rival: Answers | None, custom: Custom | None
) -> MetricPair | None:
    metric, drawn = gate.metric, (recipe.evaluate.bootstrap, recipe.seed, gate.confidence or CONFIDENCE)
    if custom and metric not in METRIC_SPECS and isinstance(candidate, SplitPredictions):
        return custom_metrics.compare(
            custom, metric, candidate, rival if isinstance(rival, SplitPredictions) else None, *drawn
        )
    values = measure(recipe.task, candidate, [metric])
    if not values:
        return None
    interval = intervals(recipe.task, candidate, values, *drawn).get(metric)
    if rival is None:
        return MetricPair(values[metric], interval)
    rival_value = measure(recipe.task, rival, [metric]).get(metric)
    paired = differences(recipe.task, [metric], candidate, rival, *drawn)
    return MetricPair(values[metric], interval, rival_value, paired.get(metric))


def _columns(recipe: Recipe, examples: ExampleFolder, candidate: SplitPredictions) -> tuple[Columns, Columns]:
    """Return the columns that slices are made of: of the judged split, and the numbers of the training split."""
    label = recipe.data.label
    derive = recipe.data.derived_features
    numbers = {feature.name: feature.dtype != "string" for feature in examples.document.raw_features}
    numbers |= {name: recipe.data.features[name].type == "numeric" for name in derive}
    sliced = [name for name in numbers if name in recipe.evaluate.slices and name != label]
    judged = _raw(examples, SPLIT, sliced, derive)
    train = _raw(examples, "train", [name for name in sliced if numbers[name]], derive)
    if label in recipe.evaluate.slices:
        judged[label] = candidate.labels
        if recipe.task == "regression":
            train[label] = examples.labels("train")
    return judged, train


def _raw(examples: ExampleFolder, split: Split, names: list[str], derive: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    if not names:
        return {}
    known: dict[Any, Any] = {}  # a text that many examples have is in memory once
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    for raw, _label in examples.raw_batches(split, 1024, None if derive else names):
        columns = raw | computed(raw, derive)
        for name in names:
            column = columns[name].numpy()
            if column.dtype == object:
                column = np.array([known.setdefault(value, value) for value in column], object)
            parts[name].append(column)
    return {name: np.concatenate(batches) for name, batches in parts.items()}


def thresholds_of(recipe: Recipe, model: str, folder: ExampleFolder) -> list[ClassThreshold]:
    """Return the thresholds of train's output `model` that meet the recipe's aim, none if it has no aim.

    They are chosen by the answers of the model in float32, as it is exported.
    Raises `ConfigurationError` as `choose_thresholds`, `DataError` if the eval split is empty or an answer is not
    finite, and as `trained.load`.
    """
    if recipe.threshold is None:
        return []
    replicas = replicated(model, folder, in_float32=True)
    batches = folder.batches("eval", batch_size(recipe, folder, "eval"))
    outputs = [answers for _batch, answers in replicas.map(answer_batch, batches)]
    if not outputs:
        raise DataError(f"{folder.uri}: the eval split is empty. Run with --from preprocess.")
    probabilities = np.concatenate(outputs)
    if not np.isfinite(probabilities).all():
        raise DataError(
            f"{model}: the model gives NaN or infinity on the eval split. Train again with a smaller "
            "train.optimizer.learning_rate."
        )
    labels = folder.document.labels or []
    return choose_thresholds(recipe.threshold, labels, folder.labels("eval"), probabilities, folder.weights("eval"))


class UnknownCounts(UnknownCounter):
    """Counts by category and text of `data`, from the batches of a split; none for images and custom transforms."""

    def __init__(self, data: Data, examples: ExampleFolder) -> None:
        document, vocabularies = examples.document, dict[str, Vocabulary]()
        features: list[RawFeature | ComputedFeature] = [*document.raw_features, *document.computed_features]
        for feature in features:
            if (learned := feature.learned) and learned.vocabulary is not None:
                file = storage.join(examples.uri, "transform", "transform_fn", "assets", learned.vocabulary)
                values = pa.array(Path(file).read_text(encoding="utf-8").split("\n")[:-1], pa.string())
                column = data.features[feature.name]
                separator = column.separator if column.type == "text" else None
                vocabularies[feature.name] = Vocabulary(values, column.type == "text", separator, learned.missing)
        super().__init__(vocabularies)
        derives = any(feature.name in vocabularies for feature in document.computed_features)
        self._formulas = data.derived_features if derives else {}
        names = [feature.name for feature in document.raw_features]
        self.columns = [name for name in names if vocabularies and (derives or name in vocabularies)]
        """The raw columns that `add_raw` needs."""

    def add_raw(self, raw: Tensors) -> None:
        """Count the cells of raw features (n,)."""
        if self.vocabularies:
            columns = raw | computed(raw, self._formulas)
            cells = {name: pa.array(columns[name].numpy(), pa.binary()) for name in self.vocabularies}
            self.add({name: binary.cast(pa.string()) for name, binary in cells.items()})
