"""Predicts with a pushed model: reading, predicting and writing overlap."""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.contract.artifacts.predict import PredictionCounts
from trainyard.contract.version import EXTRA
from trainyard.errors import DataError
from trainyard.events import stderr_hidden
from trainyard.graph import remedy
from trainyard.readers.rows import BadRow
from trainyard.steps.predict.inputs import items_of, source_items
from trainyard.steps.predict.pushed_model import PushedModel
from trainyard.steps.predict.results import Results, Sink, Table, rejected_file
from trainyard.steps.predict.source import InputFiles, Items, find_source
from trainyard.storage import storage
from trainyard.values.columns import block_pandas_import

if TYPE_CHECKING:
    from trainyard.steps.predict.served import Answers, ServedModel

_AHEAD_BYTES = 16 << 20  # measured: 100,000 rows of 30 numbers, read while the first call compiles
_PROGRESS_SECONDS = 0.5

Progress = Callable[[int, int, str], None]


class PredictionSummary(PredictionCounts):
    """The summary of one input's predictions and their destination. seconds: includes loading TensorFlow."""

    input: str
    out: str
    rejected_file: str | None
    seconds: float
    predict_seconds: float


def predict(model: PushedModel, path: str, out: Path, key: str | None, progress: Progress) -> PredictionSummary:
    """Write the predictions of `model` for the input `path` to `out`, and beside it what has none.

    progress: called with how many inputs are done, how many there are (0 if that is unknown) and what they are.
    Raises `DataError` if there is no such input, the first file lacks a column, or nothing could be read;
    `ConfigurationError` if there is no column that `key` could name.
    """
    start = time.monotonic()
    block_pandas_import()
    source = find_source(path, images=model.pixels is not None)
    items = source_items(source, model, key)
    first = list(itertools.islice(items, 1))  # faults of the header end here, before TensorFlow is loaded
    served = served_model(model)
    loaded = time.monotonic()
    with Results(out, model) as results:
        answer_all(itertools.chain(first, items), served, results, _Reporter(source, progress).report)
        results.publish()
    done = time.monotonic()
    rejected = results.reasons.total()
    if not results.predicted:
        raise DataError(nothing(source.path, results.reasons, results.first))
    return PredictionSummary(
        model=model.folder,
        input=path,
        kind=source.kind,
        files=len(source.files),
        ignored=source.ignored,
        predicted=results.predicted,
        rejected=rejected,
        reasons=dict(results.reasons.most_common()),
        classes=dict(results.classes.most_common()),
        unknown=results.unknown.counts(),
        out=str(out),
        rejected_file=str(rejected_file(out)) if rejected else None,
        seconds=round(done - start, 2),
        predict_seconds=round(done - loaded, 2),
    )


class Predictor:
    """A pushed model that answers inputs of this process, again and again.

    TensorFlow is loaded with the first inputs, or by `load`.
    """

    def __init__(self, model: PushedModel) -> None:
        self.model = model
        self._served: ServedModel | None = None

    def load(self) -> ServedModel:
        """Return the model, ready to answer. Raises `DataError` if its files are damaged."""
        if self._served is None:
            self._served = served_model(self.model)
        return self._served

    def predict(self, inputs: Any, key: str | None) -> Table:
        """Return the answers to `inputs` (see `inputs.items_of`); `predict` gives the same for a file.

        Raises `DataError` as `predict` does, and if the inputs are of no form that is read.
        """
        items = items_of(inputs, self.model, key)
        first = list(itertools.islice(items, 1))
        served = self.load()
        results = Table(self.model)
        answer_all(itertools.chain(first, items), served, results, lambda _: None)
        if not results.predicted:
            raise DataError(nothing("predict", results.reasons, results.first))
        return results


def served_model(model: PushedModel) -> ServedModel:
    """Return the model, ready to answer. This loads TensorFlow."""
    # Before TensorFlow is imported, which takes seconds: damaged files are refused at once.
    folder = storage.local(model.folder, remedy("push"), lambda name: not name.startswith(f"{EXTRA}/"))
    with stderr_hidden():  # lines of TensorFlow's C++, when it is imported and when it looks for a GPU
        from trainyard.steps.predict.served import ServedModel

        return ServedModel(model, folder)


def answer_all(items: Items, served: ServedModel, results: Sink, report: Callable[[Sink], None]) -> None:
    """Give `results` the answers to all items, in their order, calling `report` after each batch.

    At least one batch is read while another is answered, and more while they fit into `_AHEAD_BYTES`.
    """
    waiting: deque[tuple[Future[list[Answers | BadRow]] | BadRow, int]] = deque()
    ahead = 0

    def take() -> int:
        item, size = waiting.popleft()
        for answer in [item] if isinstance(item, BadRow) else item.result():
            if isinstance(answer, BadRow):
                results.reject(answer)
            else:
                results.add(*answer)
        report(results)
        return size

    with ThreadPoolExecutor(1) as asking:
        for item in items:
            if isinstance(item, BadRow):
                waiting.append((item, 0))
            else:
                results.unknown.add_batch(item)
                waiting.append((asking.submit(served.answer, item), size := item.nbytes))
                ahead += size
            while waiting and (_is_ready(waiting[0][0]) or (len(waiting) > 1 and ahead > _AHEAD_BYTES)):
                ahead -= take()
        while waiting:
            take()


def _is_ready(item: Future[list[Answers | BadRow]] | BadRow) -> bool:
    return isinstance(item, BadRow) or item.done()


class _Reporter:
    """Tells of progress, at most a few times a second."""

    def __init__(self, source: InputFiles, progress: Progress) -> None:
        self._total = len(source.files) if source.kind == "images" else 0
        self._unit = "images" if source.kind == "images" else "rows"
        self._progress = progress
        self._at = 0.0

    def report(self, results: Sink) -> None:
        if time.monotonic() - self._at > _PROGRESS_SECONDS:
            self._at = time.monotonic()
            self._progress(results.predicted + results.reasons.total(), self._total, self._unit)


def nothing(place: str, reasons: Counter[str], first: str) -> str:
    """Return the sentence for an input without any answer; first: which input was rejected first, and why."""
    if not first:
        return f"{place}: holds no rows. Name a file with data."
    counts = ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common(5))
    return (
        f"{place}: none of {reasons.total():,} inputs could be read ({counts}), the first is "
        f"{first.rstrip('.')}. Name an input like the data that the model was trained on."
    )
