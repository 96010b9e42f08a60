"""The first pipeline: reads, checks and splits the records, and counts what the run is judged by.

The records go in tasks: a file of many, a piece of a large one, or some hundred images. A task leaves its rows in parts
and, last and under its final name at once, a document of what it found. The results are merged in the order of the
tasks, so that they do not depend on who did which, nor on which attempt. If `data.split` goes by class, there are tasks
after these, one a part: only when all is read, each row has its split.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
from pydantic import ConfigDict, TypeAdapter, ValidationError

from trainyard import events
from trainyard.beam import progress
from trainyard.beam.tasks import do_tasks
from trainyard.contract.artifacts.document import SPLITS, Part, Split
from trainyard.contract.artifacts.preprocess import Quarantined, Window
from trainyard.errors import ConfigurationError, DataError
from trainyard.quality.schema.conformity import Conformity
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess.by_class import Limits, class_limits, place_by_class
from trainyard.steps.preprocess.facts import near_duplicates
from trainyard.steps.preprocess.facts.expectation import conformity
from trainyard.steps.preprocess.facts.near_duplicates import with_looks
from trainyard.steps.preprocess.facts.summary import SplitSummary, Summary
from trainyard.steps.preprocess.kept import Kept, digests
from trainyard.steps.preprocess.parts import BUCKETS, PartFile, PartWriter, buckets, finished, fixed_bytes
from trainyard.steps.preprocess.readers.files import WHOLE, Files, Piece, is_archive
from trainyard.steps.preprocess.readers.sources import Fatal, Reader, pieces
from trainyard.steps.preprocess.readers.tfds import Dataset
from trainyard.steps.preprocess.split import assign, draw, place

_EXAMPLES_SHOWN = 5
_IMAGES = 512  # chosen: images a task on average, some seconds of work
_DIGESTS = 1 << 24  # chosen: digests of 8 bytes that are compared at once


class Repeated(Part):
    """Examples of equal content: their names in order (at most five), labels and splits."""

    splits: list[Split]
    times: int
    labels: list[str]
    sources: list[str]


@dataclass(frozen=True)
class Collected:
    """What the first pipeline found.

    folder, parts: where the rows are, for the second one. name: a digest of all that they depend on. left_out: the
    files that are not of the format. bytes: of the files that are.
    """

    folder: str
    name: str
    bytes: int
    parts: list[PartFile]
    splits: dict[Split, SplitSummary]
    bad: list[Quarantined]
    repeated: list[Repeated]
    window: Window | None = None
    left_out: tuple[str, ...] = ()
    conformity: Conformity = field(default_factory=Conformity)
    near: tuple[str, ...] = ()


@dataclass
class _Found:
    """What one task found; fatal: the sentences of files that are wrong as a whole."""

    __pydantic_config__ = ConfigDict(ser_json_inf_nan="constants")

    parts: list[PartFile] = field(default_factory=list)
    splits: dict[Split, Summary] = field(default_factory=dict)
    bad: list[Quarantined] = field(default_factory=list)
    fatal: list[str] = field(default_factory=list)
    conformity: Conformity = field(default_factory=Conformity)


_FOUND = TypeAdapter(_Found)
_Placed = tuple[pa.RecordBatch, dict[Split, int]]  # rows as a PartWriter takes them, and the digests of each split
_Work = TypeVar("_Work")


@dataclass(frozen=True)
class _Task:
    """What one task reads: files; of a table a piece."""

    paths: list[str]
    piece: Piece = WHOLE

    @property
    def files(self) -> int:
        """How many of the files are read to their end."""
        return len(self.paths) if self.piece.end is None else 0


def collect(recipe: Recipe, files: Files, dataset: Dataset | None, kept: Kept, beam_options: str) -> Collected:
    """Leave every good record in the folder of `kept`, but for what was kept of them, and return what was counted.

    Raises `DataError` that names the file if one is wrong as a whole, `ConfigurationError` if the workers do not
    see the folder.
    """
    work = str(kept.folder)
    tasks = _tasks(recipe, files, dataset)
    name = digests(recipe, [list(tasks)])[0]
    with progress.reported(len(files.paths), "files", lambda: _finished(tasks, work)):
        read = _Collect(recipe, Reader(recipe, files, dataset), work)
        found = _results(read, tasks, kept, beam_options, files.bytes)
    fatal = sorted({sentence for each in found for sentence in each.fatal})
    if fatal:
        raise DataError("\n".join(fatal[:_EXAMPLES_SHOWN]))
    bad = (*files.bad, *(item for each in found for item in each.bad))
    placed = found
    if recipe.data.split.by == "class":
        placed = _place_by_class(recipe, found, name, kept, beam_options, files.bytes)
    parts = [part for each in placed for part in each.parts]
    return Collected(
        folder=work,
        name=name,
        bytes=files.bytes,
        parts=parts,
        splits={split: _summary(split, placed, parts, work) for split in SPLITS},
        bad=sorted(bad, key=lambda item: (item.source, item.reason)),
        repeated=sorted(_repeated(parts, work), key=lambda item: item.sources),
        window=files.window,
        left_out=files.left_out,
        conformity=_conformity(found),
        near=tuple(near_duplicates.warnings(parts, work)) if recipe.data.near_duplicates else (),
    )


def _place_by_class(
    recipe: Recipe, read: list[_Found], name: str, kept: Kept, beam_options: str, data_bytes: int
) -> list[_Found]:
    """Return what there is in each split after the parts that were `read` are written again with their splits.

    name: a digest of all that was read, for a class is cut by all its rows.
    """
    work = str(kept.folder)
    parts = [part for each in read for part in each.parts]
    tasks = dict(zip(digests(recipe, ([name, part.name] for part in parts)), parts, strict=True))
    limits = class_limits(parts, work, recipe.data.split)
    examples = {name: sum(part.rows.values()) for name, part in tasks.items()}
    events.emit("splitting", by="class", classes=len(limits), examples=sum(examples.values()))

    def placed() -> int:
        return sum(rows for name, rows in examples.items() if _document(work, name).exists())

    with progress.reported(sum(examples.values()), "examples", placed):
        return _results(_PlaceByClass(recipe, limits, work), tasks, kept, beam_options, data_bytes)


def _results(do: _Do[_Work], tasks: dict[str, _Work], kept: Kept, beam_options: str, data_bytes: int) -> list[_Found]:
    """Return what each of `tasks` found, done now if it is not `kept`."""
    work = str(kept.folder)
    done = {name: its for name in tasks if (its := _kept(name, kept))}
    if done:
        events.emit("kept", done=len(done), total=len(tasks), unit="tasks")
    do_tasks(
        do,
        lambda: [task for task in tasks.items() if not _document(work, task[0]).exists()],
        beam_options,
        data_bytes,
        "trainyard.steps.preprocess.run",
    )
    return [done.get(name) or _read_found(_document(work, name)) for name in tasks]


class _Do(Generic[_Work]):
    """Does a task: leaves its rows in parts, and a document of what it found."""

    def __init__(self, recipe: Recipe, work: str) -> None:
        self._recipe, self._work = recipe, work
        self._targets = recipe.data.labels if recipe.task == "regression" else []

    def __call__(self, named: tuple[str, _Work]) -> None:
        """Do a task.

        Raises `TransientError` if a bucket does not answer any more, `ConfigurationError` if the folder is not here.
        """
        name, task = named
        if not Path(self._work).is_dir():
            raise _unseen(self._work)
        final = _document(self._work, name)
        if final.exists():  # done by an attempt of the runner that it took for lost
            return
        writer, found = PartWriter(Path(self._work), name), _Found()
        for rows, added in self._rows(task, found):
            for split, digest in added.items():
                found.splits.setdefault(split, Summary()).merge(Summary(digests=f"{digest:x}"))
            self._count(found, writer.add(rows))
        self._count(found, writer.flush())
        found.parts = writer.parts
        with finished(final) as temporary:
            temporary.write_bytes(_FOUND.dump_json(found))

    def _rows(self, task: _Work, found: _Found) -> Iterator[_Placed]:
        """Yield the good rows of `task`; what else there is goes to `found`."""
        raise NotImplementedError

    def _count(self, found: _Found, slices: Iterator[tuple[Split, pa.RecordBatch]]) -> None:
        for split, rows in slices:
            if found.splits:  # not while the rows are only read, by class
                found.splits[split].merge(Summary.of(rows, self._targets))


class _Collect(_Do[_Task]):
    def __init__(self, recipe: Recipe, reader: Reader, work: str) -> None:
        super().__init__(recipe, work)
        self._reader = reader
        self._looks = recipe.data.near_duplicates and recipe.data.is_image

    def _rows(self, task: _Task, found: _Found) -> Iterator[_Placed]:
        recipe = self._recipe
        for item in self._reader.read(task.paths, task.piece):
            if isinstance(item, Fatal):
                found.fatal.append(item.sentence)
            elif isinstance(item, Quarantined):
                found.bad.append(item)
            else:
                item = with_looks(item) if self._looks else item
                found.conformity.merge(conformity(item, recipe.data))
                if recipe.data.split.by == "class":
                    yield draw(item, recipe.seed), {}
                else:
                    yield assign(item, recipe.seed, recipe.data)


class _PlaceByClass(_Do[PartFile]):
    """Writes a part again, with the split of each row."""

    def __init__(self, recipe: Recipe, limits: Limits, work: str) -> None:
        super().__init__(recipe, work)
        self._limits = limits

    def _rows(self, task: PartFile, _: _Found) -> Iterator[_Placed]:
        rows = task.open(self._work)
        splits = place_by_class(rows, self._limits)
        yield place(rows.drop_columns("order"), splits, self._recipe.seed, self._recipe.data)


def _conformity(found: list[_Found]) -> Conformity:
    together = Conformity()
    for each in found:
        together.merge(each.conformity)
    return together


def _tasks(recipe: Recipe, files: Files, dataset: Dataset | None) -> dict[str, _Task]:
    """Return each task by a name that changes whenever what the task finds may change."""
    is_alone = is_archive if recipe.data.format == "image_folder" else lambda _: True
    loose = [path for path in files.paths if not is_alone(path)]
    ends = [end for end, path in enumerate(loose, 1) if end == len(loose) or _ends_task(path)]
    tasks = [_Task(loose[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    tasks += [_Task([path], piece) for path in files.paths if is_alone(path) for piece in pieces(path, recipe.data)]
    states = dict(zip(files.paths, files.states, strict=True))
    about: object = dataclasses.asdict(dataset) if dataset else None
    if files.official:
        official = json.dumps(dataclasses.asdict(files.official), sort_keys=True)
        about = [about, hashlib.sha256(official.encode()).hexdigest()]
    described = (
        [about, dataclasses.astuple(task.piece), [(files.name(path), states[path]) for path in task.paths]]
        for task in tasks
    )
    return dict(zip(digests(recipe, described), tasks, strict=True))


def _ends_task(path: str) -> bool:
    """Return whether a task of images ends with `path`: by the name alone, so that another file moves no other end."""
    return zlib.crc32(os.fsencode(path)) % _IMAGES == 0


def _finished(tasks: dict[str, _Task], work: str) -> int:
    """Return how many files the tasks have whose documents are there."""
    done = (tasks.get(document.stem) for document in Path(work).glob("*.json"))
    return sum(task.files for task in done if task)


def _kept(name: str, kept: Kept) -> _Found | None:
    """Return what an earlier attempt found in the task `name`, or a run before, if its rows are there."""
    if found := _whole(name, kept.folder):
        return found
    for other in kept.others:
        found = _whole(name, other)
        document = _document(str(other), name).name
        if found and kept.take_over(other, [*(part.name for part in found.parts), document]):
            return found
    _document(str(kept.folder), name).unlink(missing_ok=True)
    return None


def _whole(name: str, folder: Path) -> _Found | None:
    try:
        found = _FOUND.validate_json(_document(str(folder), name).read_bytes())
        whole = all(len(part.open(str(folder))) == sum(part.rows.values()) for part in found.parts)
    except (OSError, ValidationError, pa.ArrowInvalid):  # not there, or the machine was switched off as it was written
        return None
    # A file that was wrong as a whole may have been mended without a trace, as by chmod.
    return found if whole and not found.fatal else None


def _document(work: str, name: str) -> Path:
    return Path(work) / f"{name}.json"


def _read_found(document: Path) -> _Found:
    try:
        return _FOUND.validate_json(document.read_bytes())
    except FileNotFoundError as error:
        raise _unseen(str(document.parent)) from error


def _unseen(folder: str) -> ConfigurationError:
    return ConfigurationError(
        f"{folder}: Beam's workers do not see this folder of the step. "
        "Mount one volume on all of them under the same path, or preprocess with the runner direct."
    )


def _summary(split: Split, found: list[_Found], parts: list[PartFile], work: str) -> SplitSummary:
    summary = Summary()
    for each in found:
        if split in each.splits:
            summary.merge(each.splits[split])
    counts = np.zeros(BUCKETS, np.int64)
    for part in parts:
        if part.rows[split]:
            counts += np.bincount(buckets(part.split(work, split)), minlength=BUCKETS)
    return summary.document({int(bucket): int(counts[bucket]) for bucket in np.flatnonzero(counts)})


def _repeated(parts: list[PartFile], work: str) -> list[Repeated]:
    """Return the groups of rows of equal content, found by the first 8 bytes of the digests, a share at a time."""
    shares = 1 + sum(sum(part.rows.values()) for part in parts) // _DIGESTS
    groups: dict[bytes, list[tuple[str, str, Split]]] = {}
    for share in range(shares):
        suspects = _equal_digests(parts, work, shares, share)
        if not len(suspects):
            continue
        for part in parts:
            rows = part.open(work)
            digests = _digests(rows)
            splits = [split for split in SPLITS for _ in range(part.rows[split])]
            for row in np.flatnonzero(np.isin(digests, suspects)).tolist():
                member = (rows["source"][row].as_py(), rows["label"][row].as_py(), splits[row])
                groups.setdefault(rows["content"][row].as_py(), []).append(member)
    return [_group(sorted(members)) for members in groups.values() if len(members) > 1]


def _equal_digests(parts: list[PartFile], work: str, shares: int, share: int) -> np.ndarray:
    columns = (_digests(part.open(work)) for part in parts)
    chosen = [column[column % np.uint64(shares) == share] for column in columns]
    digests = np.sort(np.concatenate(chosen or [np.zeros(0, np.uint64)]))
    return np.unique(digests[1:][digests[1:] == digests[:-1]])


def _digests(rows: pa.RecordBatch) -> np.ndarray:
    return fixed_bytes(rows["content"])[:, :8].copy().view(np.uint64)[:, 0]


def _group(members: list[tuple[str, str, Split]]) -> Repeated:
    return Repeated(
        splits=sorted({split for _, _, split in members}, key=SPLITS.index),
        times=len(members),
        labels=sorted({label for _, label, _ in members}),
        sources=[source for source, _, _ in members[:_EXAMPLES_SHOWN]],
    )
