"""The first pipeline: reads, checks and splits the records, and counts what the run is judged by.

The records go in tasks: a file of many, a piece of a large one, or some hundred images. A task leaves its rows in parts
and, last and under its final name at once, a document of what it found. The results are merged in the order of the
tasks, so that they do not depend on who did which, nor on which attempt. If rows then change their split, as
`split.final_splits` says, there are tasks after these, one a part.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
from pydantic import ConfigDict, TypeAdapter, ValidationError

from trainyard import events
from trainyard.beam import progress
from trainyard.beam.tasks import run_tasks
from trainyard.contract.artifacts.preprocess import Window
from trainyard.contract.document import SPLITS, Split
from trainyard.errors import DataError
from trainyard.quality.conformity import Conformity
from trainyard.readers.rows import WHOLE, BadRow, Piece
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess import near_duplicates
from trainyard.steps.preprocess.attempt_dir import AttemptDir, digests
from trainyard.steps.preprocess.near_duplicates import with_hashes
from trainyard.steps.preprocess.parts import BUCKETS, SortedRun, SortedRunWriter, buckets
from trainyard.steps.preprocess.readers.files import Files
from trainyard.steps.preprocess.readers.records import Unselected
from trainyard.steps.preprocess.readers.sources import Reader, pieces
from trainyard.steps.preprocess.readers.tfds import Dataset
from trainyard.steps.preprocess.repeats import Repeated, Repeats, find_repeated
from trainyard.steps.preprocess.split import Numbers, assign, final_splits, rewrites, with_splits
from trainyard.steps.preprocess.statistics import SplitSummary, Summary, conformity
from trainyard.steps.preprocess.task_store import TaskStore
from trainyard.storage.tar import is_archive

_EXAMPLES_SHOWN = 5
_IMAGES = 512  # chosen: images a task on average, some seconds of work
_DONE = "done"


@dataclass(frozen=True)
class Collected:
    """The result of the first pipeline.

    work, parts: where the rows are, for the second one. name: a digest of all that they depend on. ignored: the
    files that are not of the format. bytes: of the files that are. is_folder: images have the
    class of their folder. deeper_folders: those in class folders. is_split_by_row: equal rows lie in different splits.
    rare_classes: dropped ones, with their counts. unselected: how many rows `data.where` leaves out.
    """

    work: TaskStore
    name: str
    bytes: int
    parts: list[SortedRun]
    splits: dict[Split, SplitSummary]
    bad: list[BadRow]
    repeated: list[Repeated]
    unselected: int = 0
    window: Window | None = None
    ignored: tuple[str, ...] = ()
    is_folder: bool = False
    deeper_folders: tuple[str, ...] = ()
    conformity: Conformity = field(default_factory=Conformity)
    near: tuple[str, ...] = ()
    is_split_by_row: bool = False
    rare_classes: dict[str, int] = field(default_factory=dict)


@dataclass
class _Result:
    """The result of one task; fatal: sentences about files that cannot be read at all."""

    __pydantic_config__ = ConfigDict(ser_json_inf_nan="constants")

    parts: list[SortedRun] = field(default_factory=list)
    splits: dict[Split, Summary] = field(default_factory=dict)
    bad: list[BadRow] = field(default_factory=list)
    unselected: int = 0
    fatal: list[str] = field(default_factory=list)
    conformity: Conformity = field(default_factory=Conformity)


_RESULT = TypeAdapter(_Result)
_SplitRows = tuple[
    pa.RecordBatch, dict[Split, int]
]  # rows as a SortedRunWriter takes them, and the digests of each split
_Work = TypeVar("_Work")


@dataclass(frozen=True)
class _Task:
    """The input of one task: files, or a piece of a table."""

    paths: list[str]
    piece: Piece = WHOLE

    @property
    def files(self) -> int:
        """The number of files that are read to their end."""
        return len(self.paths) if self.piece.end is None else 0


def collect(recipe: Recipe, files: Files, dataset: Dataset | None, space: AttemptDir, beam_options: str) -> Collected:
    """Leave every good record where `space` says, but for what was kept of them, and return what was counted.

    Raises `DataError` that names the file if one is wrong as a whole, `ConfigurationError` if the workers do not
    see the folder.
    """
    work = space.work
    tasks = _tasks(recipe, files, dataset)
    name = digests(recipe, [list(tasks)])[0]
    with progress.reported(len(files.paths), "files", lambda: _finished(tasks, work)):
        read = _Collect(recipe, Reader(recipe, files, dataset), work)
        results = _results(read, tasks, space, beam_options, files.bytes)
    found = _conformity(results)
    fatal = sorted({sentence for result in results for sentence in result.fatal})
    if fatal:
        raise DataError(*fatal[:_EXAMPLES_SHOWN])
    bad = (*files.bad, *(item for result in results for item in result.bad))
    unselected = sum(result.unselected for result in results)
    parts = [part for result in results for part in result.parts]
    repeated = find_repeated(parts, work)
    repeats = Repeats.from_parts(parts, repeated)
    splits = final_splits(parts, work, recipe, repeats)
    if splits is not None:
        results = _split_again(recipe, splits, parts, name, space, beam_options, files.bytes)
        parts = [part for result in results for part in result.parts]
        repeated = find_repeated(parts, work)
    is_folder = recipe.data.format == "image_folder" and recipe.data.labels_file is None
    return Collected(
        work=work,
        name=name,
        bytes=files.bytes,
        parts=parts,
        splits={split: _summary(split, results, parts, work, recipe.data.samples) for split in SPLITS},
        bad=sorted(bad, key=lambda item: (item.key, item.reason)),
        unselected=unselected,
        repeated=sorted(repeated, key=lambda item: item.sources),
        window=files.window,
        ignored=files.ignored,
        is_folder=is_folder,
        deeper_folders=tuple(files.deeper_folders) if is_folder else (),
        is_split_by_row=recipe.data.hashes_rows and repeats.are_natural,
        conformity=found,
        near=tuple(near_duplicates.warnings(parts, work)) if recipe.data.near_duplicates else (),
    )


def _split_again(
    recipe: Recipe,
    splits: dict[str, Numbers],
    parts: list[SortedRun],
    name: str,
    space: AttemptDir,
    beam_options: str,
    data_bytes: int,
) -> list[_Result]:
    """Write the `parts` again with their final `splits`, and return the content of each split.

    name: a digest of all that was read, for every row may depend on all.
    """
    work = space.work
    for part in parts:
        work.write(_splits_file(part), partial(_write_numbers, splits[part.name]))
    tasks = dict(zip(digests(recipe, ([name, part.name] for part in parts)), parts, strict=True))
    examples = {name: sum(part.rows.values()) for name, part in tasks.items()}
    events.emit("splitting", by=recipe.data.split.by, examples=sum(examples.values()))

    def assigned() -> int:
        done = _done(work)
        return sum(rows for name, rows in examples.items() if name in done)

    with progress.reported(sum(examples.values()), "examples", assigned):
        return _results(_SplitAgain(recipe, work), tasks, space, beam_options, data_bytes)


def _write_numbers(numbers: Numbers, path: Path) -> None:
    path.write_bytes(numbers.tobytes())


def _splits_file(part: SortedRun) -> str:
    return f"{part.name}.splits"


def _results(
    do: _TaskFn[_Work], tasks: dict[str, _Work], space: AttemptDir, beam_options: str, data_bytes: int
) -> list[_Result]:
    """Return the result of each of `tasks`, computed now if it is missing."""
    work = space.work
    before = _done(work)
    done = {name: result for name in tasks if (result := _reused(name, space, name in before))}
    if done:
        events.emit("kept", done=len(done), total=len(tasks), unit="tasks")

    def pending() -> list[tuple[str, _Work]]:
        finished = _done(work)
        return [task for task in tasks.items() if task[0] not in finished]

    run_tasks(do, pending, beam_options, data_bytes, "trainyard.steps.preprocess.prepare")
    return [done.get(name) or _read_result(work, name) for name in tasks]


class _TaskFn(Generic[_Work]):
    """Runs a task: writes its rows as parts, and a document about them."""

    def __init__(self, recipe: Recipe, work: TaskStore) -> None:
        self._recipe, self._work = recipe, work
        self._targets = recipe.data.labels if recipe.task == "regression" else []
        self._prose, self._dates, self._weight = recipe.data.prose, recipe.data.dates, recipe.data.weight

    def __call__(self, named: tuple[str, _Work]) -> None:
        """Do a task.

        Raises `TransientError` if a bucket does not answer any more, `ConfigurationError` if the folder is not here.
        """
        name, task = named
        self._work.require()
        if self._work.exists(_document(name)):  # done by an attempt of the runner that it took for lost
            return
        writer, result = SortedRunWriter(self._work, name), _Result()
        for rows, added in self._rows(task, result):
            for split, digest in added.items():
                result.splits.setdefault(split, Summary()).merge(Summary(digests=f"{digest:x}"))
            self._count(result, writer.add(rows))
        self._count(result, writer.flush())
        result.parts = writer.parts
        self._work.write(_document(name), lambda path: path.write_bytes(_RESULT.dump_json(result)))

    def _rows(self, task: _Work, result: _Result) -> Iterator[_SplitRows]:
        """Yield the good rows of `task`; what else there is goes to `result`."""
        raise NotImplementedError

    def _count(self, result: _Result, slices: Iterator[tuple[Split, pa.RecordBatch]]) -> None:
        for split, rows in slices:
            if result.splits:  # not while the rows are only read, by class
                summary = Summary.from_rows(rows, self._targets, self._prose, self._dates, self._weight)
                result.splits[split].merge(summary)


class _Collect(_TaskFn[_Task]):
    def __init__(self, recipe: Recipe, reader: Reader, work: TaskStore) -> None:
        super().__init__(recipe, work)
        self._reader = reader
        self._hashes_images = recipe.data.near_duplicates and recipe.data.is_image

    def _rows(self, task: _Task, result: _Result) -> Iterator[_SplitRows]:
        recipe = self._recipe
        for item in self._reader.read(task.paths, task.piece):
            if isinstance(item, DataError):
                result.fatal.append(str(item))
            elif isinstance(item, BadRow):
                result.bad.append(item)
            elif isinstance(item, Unselected):
                result.unselected += item.rows
            else:
                item = with_hashes(item) if self._hashes_images else item
                result.conformity.merge(conformity(item, recipe.data))
                rows, added = assign(item, recipe.seed, recipe.data)
                yield rows, {} if rewrites(recipe.data) else added


class _SplitAgain(_TaskFn[SortedRun]):
    """Writes a part again, with the final split of each row."""

    def _rows(self, task: SortedRun, _: _Result) -> Iterator[_SplitRows]:
        numbers, start = np.frombuffer(self._work.content(_splits_file(task)), np.int8), 0
        for rows in task.batches(self._work):
            yield with_splits(rows, numbers[start : start + len(rows)], self._recipe.data)
            start += len(rows)


def _conformity(results: list[_Result]) -> Conformity:
    together = Conformity()
    for result in results:
        together.merge(result.conformity)
    return together


def _tasks(recipe: Recipe, files: Files, dataset: Dataset | None) -> dict[str, _Task]:
    """Return each task by a name that changes whenever what the task finds may change."""
    is_alone = is_archive if recipe.data.format == "image_folder" else lambda _: True
    loose = [path for path in files.paths if not is_alone(path)]
    ends = [end for end, path in enumerate(loose, 1) if end == len(loose) or _ends_task(path)]
    tasks = [_Task(loose[start:end]) for start, end in pairwise([0, *ends])]
    alone = [(path, size) for path, (_, size) in files.states.items() if is_alone(path)]
    tasks += [_Task([path], piece) for path, size in alone for piece in pieces(path, size, recipe.data)]
    about: object = dataclasses.asdict(dataset) if dataset else None
    if files.labels:
        labels = json.dumps(dataclasses.asdict(files.labels), sort_keys=True)
        about = [about, hashlib.sha256(labels.encode()).hexdigest()]
    if files.official:
        official = json.dumps(dataclasses.asdict(files.official), sort_keys=True)
        about = [about, hashlib.sha256(official.encode()).hexdigest()]
    described = (
        [about, dataclasses.astuple(task.piece), [(files.name(path), files.states[path][0]) for path in task.paths]]
        for task in tasks
    )
    return dict(zip(digests(recipe, described), tasks, strict=True))


def _ends_task(path: str) -> bool:
    """Return True if a task of images ends with `path`: by the name alone, so that added files move no other end."""
    return zlib.crc32(os.fsencode(path)) % _IMAGES == 0


def _finished(tasks: dict[str, _Task], work: TaskStore) -> int:
    """Return the number of files in finished tasks."""
    done = (tasks.get(name) for name in _done(work))
    return sum(task.files for task in done if task)


def _reused(name: str, space: AttemptDir, has_document: bool) -> _Result | None:
    """Return the result of the task `name` from an earlier attempt or run, if its rows still exist.

    has_document: whether it left a document, which of a bucket's is known for all tasks by one listing.
    """
    if has_document and (result := _whole(name, space.work)):
        return result
    for other in space.other_dirs:
        result = _whole(name, TaskStore(str(other)))
        if result and space.take_over(other, [*(part.name for part in result.parts), _document(name)]):
            return result
    if has_document:
        space.work.remove(_document(name))
    return None


def _whole(name: str, work: TaskStore) -> _Result | None:
    content = work.read(_document(name))
    try:
        result = _RESULT.validate_json(content or b"")
    except ValidationError:  # not there, or the machine was switched off as it was written
        return None
    # A file that was wrong as a whole may have been fixed without a trace, as by chmod.
    return result if not result.fatal and all(part.is_whole(work) for part in result.parts) else None


def _document(name: str) -> str:
    return f"{_DONE}/{name}.json"


def _done(work: TaskStore) -> set[str]:
    return {Path(document).stem for document in work.below(_DONE).names()}


def _read_result(work: TaskStore, name: str) -> _Result:
    return _RESULT.validate_json(work.content(_document(name)))


def _summary(
    split: Split, results: list[_Result], parts: list[SortedRun], work: TaskStore, samples: bool
) -> SplitSummary:
    summary = Summary()
    for result in results:
        if split in result.splits:
            summary.merge(result.splits[split])
    counts = np.zeros(BUCKETS, np.int64)
    for rows in (rows for part in parts for rows in part.light_batches(work, split)):
        counts += np.bincount(buckets(rows), minlength=BUCKETS)
    return summary.document({int(bucket): int(counts[bucket]) for bucket in np.flatnonzero(counts)}, samples)
