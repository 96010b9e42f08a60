"""The skew proof: raw records get the same answer by every path, from the records to the answer."""

from __future__ import annotations

import runpy
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from trainyard.contract.artifacts.export import SkewPath
from trainyard.contract.artifacts.gate import Threshold
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.data.examples import ExampleFolder, load_transform
from trainyard.data.trained import Tensors, output_name
from trainyard.data.values import as_read
from trainyard.spec.recipe import Recipe
from trainyard.steps.export import served
from trainyard.steps.export.formats import FORMATS
from trainyard.steps.export.on_device import predict
from trainyard.steps.export.parity import MAX_SKEW, Array, ExportedModel, Predictor

RECORDS = 32
"""Of the eval split; chosen: all kinds of values are likely among them, and images answer in a moment."""

_MAX_DEVICE_SKEW = 1e-4  # chosen: preprocess.py's inputs differ by up to 1e-6, which a network may multiply
_MAX_INTEGER_SKEW = (
    0.2  # chosen: such a difference may turn an integer into the next one, in each layer; 0.055 was seen
)
_PREPROCESS = "preprocess.py"
_KEY_CHARACTERS = 100


@dataclass(frozen=True)
class _Records:
    """Records of the eval split: the raw columns (n,), what preprocess made of them (n, ...), and their keys."""

    raw: Tensors
    features: Tensors
    keys: list[str]

    def differing(self, features: Mapping[str, Any], row: int, document: Examples) -> str:
        """Return the column of record `row` whose `features` differ from those of preprocess; '' if none do."""
        columns = [feature.name for feature in document.columns]
        for name, expected in self.features.items():
            if not np.allclose(np.asarray(features[name])[row], np.asarray(expected)[row], 1e-5, 1e-5, equal_nan=True):
                return max((column for column in columns if f"{name}_".startswith(f"{column}_")), key=len, default=name)
        return ""


def compare_paths(
    output: Path,
    recipe: Recipe,
    folder: ExampleFolder,
    candidates: Sequence[ExportedModel],
    float32: Predictor,
    start_server: bool,
) -> list[SkewPath]:
    """Return the largest difference of every path for the first `RECORDS` of the eval split.

    The SavedModel and, with `start_server`, a server of the files in `output` are compared with the trained model
    `float32` on the examples of preprocess. A file for devices after preprocess.py is compared with itself on those
    examples, so that its bits do not count; `parity` compares it with the trained model. candidates: the exported
    files.
    """
    raw, _labels = next(iter(folder.raw_batches("eval", RECORDS)))
    features, _labels, keys = next(iter(folder.batches("eval", RECORDS)))
    records = _Records(raw, features, [key.decode(errors="replace") for key in keys.numpy()])
    comparison = _Comparison(recipe, folder, records, float32(features, raw))
    runtime = preprocessing(output)
    paths: list[SkewPath] = []
    for candidate in candidates:
        if candidate.format == "saved_model":
            paths.append(comparison.compare("saved_model", MAX_SKEW, candidate.predict(features, raw)))
        elif runtime is not None and FORMATS[candidate.format].border:
            paths.append(comparison.compare_device(candidate, runtime))
    if start_server:
        binary = shutil.which(served.BINARY)
        server = f"server ({served.BINARY if binary else 'trainyard serve'})"
        try:
            with served.serving(output, binary) as url:
                answers = served.answers(url, raw, output_name(recipe.task))
            paths.append(comparison.compare(server, MAX_SKEW, answers))
        except served.NotServed as error:
            paths.append(comparison.failure(server, MAX_SKEW, f"{error}. See the log of export"))
    return paths


def threshold(paths: Sequence[SkewPath]) -> Threshold:
    """Return the one condition of a gate over all paths; its note says what is wrong with each that fails."""
    shares = [None if path.difference is None else path.difference / path.bound for path in paths]
    known = [share for share in shares if share is not None]
    return Threshold(
        name="raw records, by every path: difference / bound <= 1",
        value=max(known, default=0.0) if len(known) == len(shares) else None,
        bound=1.0,
        passed=all(path.passed for path in paths),
        note="; ".join(f"{path.path}: {path.note}" for path in paths if path.note),
    )


@dataclass(frozen=True)
class _Comparison:
    """Compares the answers by each path with those of the trained model, `expected` (n, ...)."""

    recipe: Recipe
    folder: ExampleFolder
    records: _Records
    expected: Array

    def compare(self, path: str, bound: float, answers: Array) -> SkewPath:
        """Compare `answers`; a difference of the SavedModel's transform names the column."""
        if answers.shape != self.expected.shape:
            note = f"answers {list(answers.shape)} numbers, {list(self.expected.shape)} are expected"
            return self.failure(path, bound, note)

        def path_features() -> Tensors:
            return load_transform(self.folder.uri)(as_read(self.records.raw, self.recipe.data))

        return self._path(path, bound, answers, self.expected, path_features)

    def compare_device(self, candidate: ExportedModel, runtime: Any) -> SkewPath:
        """Compare the answers of a file for devices after preprocess.py with its own on the examples."""
        path = f"{candidate.format} after {_PREPROCESS}"
        bound = _MAX_INTEGER_SKEW if FORMATS[candidate.format].in_integers else _MAX_DEVICE_SKEW
        file, ask = candidate.path.name, predict.opened(candidate.path)
        columns = {name: tensor.numpy().tolist() for name, tensor in self.records.raw.items()}
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        examples = [_example(row, is_image=self.folder.document.image is not None) for row in rows]
        answers = []
        for key, example in zip(self.records.keys, examples, strict=True):
            try:
                answers.append(numbers(runtime.answer(ask(runtime.inputs(example, file)), file)))
            except ValueError as error:
                return self.failure(path, bound, f"refuses record '{key[:_KEY_CHARACTERS]}': {error}")

        def path_features() -> dict[str, Array]:
            features = [runtime.features(example) for example in examples]
            return {name: np.concatenate([each[name] for each in features]) for name in features[0]}

        own = candidate.predict(self.records.features, self.records.raw)
        compared = self._path(path, bound, np.array(answers, np.float32), own, path_features)
        if FORMATS[candidate.format].in_integers and compared.passed:  # whose bound is wide
            features = path_features()
            for row, key in enumerate(self.records.keys):
                if column := self.records.differing(features, row, self.folder.document):
                    note = f"has another column '{column}' than preprocess on record '{key[:_KEY_CHARACTERS]}'"
                    return compared.model_copy(update={"passed": False, "note": note})
        return compared

    def failure(self, path: str, bound: float, note: str) -> SkewPath:
        """Return a path that gave no answers, for the reason in `note`."""
        return SkewPath(path=path, records=len(self.records.keys), bound=bound, passed=False, note=note)

    def _path(
        self, path: str, bound: float, answers: Array, expected: Array, path_features: Callable[[], Mapping[str, Any]]
    ) -> SkewPath:
        """Compare `answers` with those `expected`. path_features: returns the features that the path has in between."""
        differences = self._differences(answers, expected)
        if not np.isfinite(differences).all():
            return self.failure(path, bound, "answers NaN or infinity")
        worst, note = int(differences.argmax()), ""
        if differences[worst] > bound:
            column = self.records.differing(path_features(), worst, self.folder.document)
            key = self.records.keys[worst][:_KEY_CHARACTERS]
            note = f"differs by {differences[worst]:.3g} (at most {bound:g}) on record '{key}'"
            note += f" by its column '{column}'" if column else ""
        return SkewPath(
            path=path,
            records=len(differences),
            difference=float(differences[worst]),
            to_trained=float(self._differences(answers, self.expected).max()),
            bound=bound,
            passed=not note,
            note=note,
        )

    def _differences(self, answers: Array, expected: Array) -> Array:
        """Return the largest difference of each record (n,), of outputs above 1 as a share of the largest."""
        scale = np.maximum(1, np.abs(expected).max(axis=0))
        return cast(Array, (np.abs(answers - expected) / scale).reshape(len(answers), -1).max(axis=1))


def preprocessing(output: Path) -> Any:
    """Return `Preprocessing` of the preprocess.py in `output`, or None if there is no such file."""
    path = output / _PREPROCESS
    if not path.exists():
        return None
    return runpy.run_path(str(path))["Preprocessing"](output)  # an import would leave its byte code in the export


def _example(row: dict[str, Any], is_image: bool) -> Any:
    """Return a raw record as preprocess.py takes it: a row of numbers and texts, or the bytes of an image."""
    if is_image:
        return next(iter(row.values()))
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in row.items()}


def numbers(answer: dict[str, Any]) -> Any:
    """Return the numbers of an answer of preprocess.py: probabilities, one prediction or those of all targets."""
    numbers = answer.get("probabilities", answer.get("prediction"))
    return list(numbers.values()) if isinstance(numbers, dict) else numbers
