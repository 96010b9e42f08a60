"""The first pipeline: reads, checks and splits the records, and counts what the run is judged by.

    files ──> tasks: some hundred images, a table, or a piece of a large one
                │ _Read: rows with a split; what is not usable goes to the task's document
                v
              parts and documents (`parts`, `attempt`) ──> merged in the order of the tasks
                │ final_splits: splits that one row cannot know, such as a share of a class
                v
              one task a part, _SplitAgain: the same rows, sorted again; only if rows change their split
                v
              Collected

The order of the tasks is that of the files, so the result depends neither on who did which task, nor on which attempt.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa

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
from trainyard.steps.preprocess.attempt import Attempt, TaskResult, digests
from trainyard.steps.preprocess.near_duplicates import with_hashes
from trainyard.steps.preprocess.parts import Part, Parts, PartWriter
from trainyard.steps.preprocess.readers.files import Files
from trainyard.steps.preprocess.readers.records import Unselected
from trainyard.steps.preprocess.readers.sources import Reader, pieces
from trainyard.steps.preprocess.readers.tfds import Dataset
from trainyard.steps.preprocess.repeats import Repeated, Repeats, find_repeated
from trainyard.steps.preprocess.split import Numbers, assign, final_splits, rewrites, with_splits
from trainyard.steps.preprocess.statistics import SplitSummary, Summary, conformity
from trainyard.storage.tar import is_archive

_EXAMPLES_SHOWN = 5
_SPLITS = ".splits"  # suffix of the numbers of the final splits of a part
_IMAGES = 512  # chosen: images a task on average, some seconds of work


@dataclass(frozen=True)
class Collected:
    """The result of the first pipeline.

    parts: the rows, for the second pipeline. name: digest of recipe and files. ignored: names of files
    in another format. bytes: total size of the files that were read. is_folder: images have the
    class of their folder. deeper_folders: those in class folders. is_split_by_row: equal rows lie in different splits.
    rare_classes: dropped ones, with their counts. unselected: how many rows `data.where` leaves out.
    """

    parts: Parts
    name: str
    bytes: int
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


_Rows = tuple[pa.RecordBatch, dict[Split, int]]  # as a PartWriter takes them, and the digests of each split
_Task = TypeVar("_Task")


@dataclass(frozen=True)
class _Source:
    """The files that one task reads, or a piece of a table."""

    paths: list[str]
    piece: Piece = WHOLE

    @property
    def files(self) -> int:
        """The number of files that are read to their end."""
        return len(self.paths) if self.piece.end is None else 0


def collect(recipe: Recipe, files: Files, dataset: Dataset | None, attempt: Attempt) -> Collected:
    """Leave every good record in the `attempt`, but for what was kept of them, and return what was counted.

    Raises `DataError` that names the file if one is wrong as a whole, `ConfigurationError` if the workers do not
    see the folder.
    """
    sources = _sources(recipe, files, dataset)
    name = digests(recipe, [list(sources)])[0]

    def files_read() -> int:
        return sum(sources[task].files for task in attempt.done() & sources.keys())

    with progress.reported(len(files.paths), "files", files_read):
        read = _Read(recipe, attempt, Reader(recipe, files, dataset))
        result = _run(read, sources, files.bytes)
    if result.fatal:
        raise DataError(*sorted(set(result.fatal))[:_EXAMPLES_SHOWN])
    parts, summaries = Parts(attempt.work, result.parts), result.splits
    repeated = find_repeated(parts)
    repeats = Repeats.from_parts(parts, repeated)
    splits = final_splits(parts, recipe, repeats)
    if splits is not None:
        again = _split_again(recipe, attempt, splits, parts, name, files.bytes)
        parts, summaries = Parts(attempt.work, again.parts), again.splits
        repeated = find_repeated(parts)
    is_folder = recipe.data.format == "image_folder" and recipe.data.labels_file is None
    return Collected(
        parts=parts,
        name=name,
        bytes=files.bytes,
        splits={
            split: summaries.get(split, Summary()).document(parts.bucket_counts(split), recipe.data.samples)
            for split in SPLITS
        },
        bad=sorted([*files.bad, *result.bad], key=lambda item: (item.key, item.reason)),
        unselected=result.unselected,
        repeated=sorted(repeated, key=lambda item: item.sources),
        window=files.window,
        ignored=files.ignored,
        is_folder=is_folder,
        deeper_folders=tuple(files.deeper_folders) if is_folder else (),
        is_split_by_row=recipe.data.hashes_rows and repeats.are_natural,
        conformity=result.conformity,
        near=tuple(near_duplicates.warnings(parts)) if recipe.data.near_duplicates else (),
    )


def _split_again(
    recipe: Recipe, attempt: Attempt, splits: dict[str, Numbers], parts: Parts, name: str, data_bytes: int
) -> TaskResult:
    """Write the `parts` again with their final `splits`. name: a digest of all that was read, as rows depend on all."""
    for part in parts.parts:
        attempt.work.write_bytes(f"{part.name}{_SPLITS}", splits[part.name].tobytes())
    tasks = dict(zip(digests(recipe, ([name, part.name] for part in parts.parts)), parts.parts, strict=True))
    events.emit("splitting", by=recipe.data.split.by, examples=len(parts))

    def assigned() -> int:
        return sum(sum(tasks[task].rows.values()) for task in attempt.done() & tasks.keys())

    with progress.reported(len(parts), "examples", assigned):
        return _run(_SplitAgain(recipe, attempt), tasks, data_bytes)


def _run(do: _TaskFn[_Task], tasks: dict[str, _Task], data_bytes: int) -> TaskResult:
    """Do the unfinished `tasks`, and return the results of all."""
    reused = do.attempt.reuse(tasks)
    if reused:
        events.emit("kept", done=len(reused), total=len(tasks), unit="tasks")

    def pending() -> list[tuple[str, _Task]]:
        done = do.attempt.done()
        return [task for task in tasks.items() if task[0] not in done]

    run_tasks(do, pending, do.attempt.beam_options, data_bytes, "trainyard.steps.preprocess.prepare")
    together = TaskResult()
    for name in tasks:
        together.merge(reused.get(name) or do.attempt.result(name))
    return together


class _TaskFn(Generic[_Task]):
    """Does a task: writes its rows as parts, then its document."""

    def __init__(self, recipe: Recipe, attempt: Attempt) -> None:
        self.attempt = attempt
        self._recipe = recipe
        self._targets = recipe.data.labels if recipe.task == "regression" else []
        self._prose, self._dates, self._weight = recipe.data.prose, recipe.data.dates, recipe.data.weight

    def __call__(self, named: tuple[str, _Task]) -> None:
        """Do a task.

        Raises `TransientError` if a bucket does not answer any more, `ConfigurationError` if the folder is not here.
        """
        name, task = named
        self.attempt.work.require()
        if self.attempt.is_done(name):  # by a worker that the runner took for lost
            return
        writer, result = PartWriter(self.attempt.work, name), TaskResult()
        for rows, added in self._rows(task, result):
            for split, digest in added.items():
                result.splits.setdefault(split, Summary()).merge(Summary(digests=f"{digest:x}"))
            self._count(result, writer.add(rows))
        self._count(result, writer.flush())
        result.parts = writer.parts
        self.attempt.finish(name, result)

    def _rows(self, task: _Task, result: TaskResult) -> Iterator[_Rows]:
        """Yield the good rows of `task`; what else there is goes to `result`."""
        raise NotImplementedError

    def _count(self, result: TaskResult, written: Iterator[tuple[Split, pa.RecordBatch]]) -> None:
        for split, rows in written:
            if result.splits:  # not while the rows are only read, by class
                summary = Summary.from_rows(rows, self._targets, self._prose, self._dates, self._weight)
                result.splits[split].merge(summary)


class _Read(_TaskFn[_Source]):
    def __init__(self, recipe: Recipe, attempt: Attempt, reader: Reader) -> None:
        super().__init__(recipe, attempt)
        self._reader = reader
        self._hashes_images = recipe.data.near_duplicates and recipe.data.is_image

    def _rows(self, task: _Source, result: TaskResult) -> Iterator[_Rows]:
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


class _SplitAgain(_TaskFn[Part]):
    """Writes a part again, with the final split of each row."""

    def _rows(self, task: Part, _: TaskResult) -> Iterator[_Rows]:
        work = self.attempt.work
        numbers, start = np.frombuffer(work.content(f"{task.name}{_SPLITS}"), np.int8), 0
        for rows in task.batches(work):
            yield with_splits(rows, numbers[start : start + len(rows)], self._recipe.data)
            start += len(rows)


def _sources(recipe: Recipe, files: Files, dataset: Dataset | None) -> dict[str, _Source]:
    """Return each task by a name that changes whenever what the task finds may change."""
    is_alone = is_archive if recipe.data.format == "image_folder" else lambda _: True
    loose = [path for path in files.paths if not is_alone(path)]
    ends = [end for end, path in enumerate(loose, 1) if end == len(loose) or _ends_task(path)]
    sources = [_Source(loose[start:end]) for start, end in pairwise([0, *ends])]
    alone = [(path, size) for path, (_, size) in files.states.items() if is_alone(path)]
    sources += [_Source([path], piece) for path, size in alone for piece in pieces(path, size, recipe)]
    about: object = dataclasses.asdict(dataset) if dataset else None
    for listed in (files.labels, files.official):
        if listed:
            content = json.dumps(dataclasses.asdict(listed), sort_keys=True)
            about = [about, hashlib.sha256(content.encode()).hexdigest()]
    described = (
        [about, dataclasses.astuple(source.piece), [(files.name(path), files.states[path][0]) for path in source.paths]]
        for source in sources
    )
    return dict(zip(digests(recipe, described), sources, strict=True))


def _ends_task(path: str) -> bool:
    """Return True if a task of images ends with `path`: by the name alone, so that added files move no other end."""
    return zlib.crc32(os.fsencode(path)) % _IMAGES == 0
