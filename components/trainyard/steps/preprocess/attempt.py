"""An attempt at the step: the tasks that it has done, and where it leaves them for the next one.

    <output>.parts/               beside the output, so that it outlives the process
      <task>-0000.arrow           1. the rows of a task (`parts`)
      done/<task>.json            2. its document, a `TaskResult`: the task is done from then on
      counts/<task>-0000.arrow    3. how often each value and word is in its training rows
      <digest>/                   4. transform graph and shards, of the second pipeline

    a task:   open --- finish ---> done --- reuse ---> its result
              open <-- reuse ----- done, but a row is missing, or a file was unreadable
              open --- reuse ---> done, by links to the output beside this one that has it

Names are digests of all that a task depends on. So the attempt after a kill resumes from completed work, and a run over
data that only grew takes over the tasks of the same files. Links are taken, not copies: whoever removes a folder takes
nothing from another one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from trainyard.beam.runner import is_in_process
from trainyard.contract import keys
from trainyard.contract.document import Split
from trainyard.contract.provenance import provenance
from trainyard.errors import TrainyardError, TransientError
from trainyard.quality.conformity import Conformity
from trainyard.readers.rows import BadRow
from trainyard.runtime import step
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess.parts import Part
from trainyard.steps.preprocess.statistics import Summary
from trainyard.steps.preprocess.task_store import TaskStore
from trainyard.storage import storage
from trainyard.uris import is_bucket

_DONE = "done"


@dataclass
class TaskResult:
    """The document of one task, or of several: the parts with its rows, and what else it counted and met.

    splits: empty while the rows are only read, and get their splits afterwards. fatal: sentences about files that
    cannot be read at all.
    """

    __pydantic_config__ = ConfigDict(ser_json_inf_nan="constants")

    parts: list[Part] = field(default_factory=list)
    splits: dict[Split, Summary] = field(default_factory=dict)
    bad: list[BadRow] = field(default_factory=list)
    unselected: int = 0
    fatal: list[str] = field(default_factory=list)
    conformity: Conformity = field(default_factory=Conformity)

    def merge(self, other: TaskResult) -> None:
        """Add the result of the next task."""
        self.parts += other.parts
        for split, summary in other.splits.items():
            self.splits.setdefault(split, Summary()).merge(summary)
        self.bad += other.bad
        self.unselected += other.unselected
        self.fatal += other.fatal
        self.conformity.merge(other.conformity)


_RESULT = TypeAdapter(TaskResult)


@dataclass
class Attempt:
    """The folder of an attempt, and those of other outputs of the same recipe beside it. uri: as in `TaskStore`."""

    folder: Path
    beam_options: str = ""
    uri: str = ""
    other_folders: Sequence[Path] = ()
    _superseded: set[Path] = field(default_factory=set)

    @property
    def work(self) -> TaskStore:
        """The files that the workers write."""
        return TaskStore(str(self.folder), self.uri)

    def done(self) -> set[str]:
        """Return the names of the tasks that are done."""
        return {Path(document).stem for document in self.work.below(_DONE).names()}

    def is_done(self, task: str) -> bool:
        """Return True if the task is done."""
        return self.work.exists(_document(task))

    def finish(self, task: str, result: TaskResult) -> None:
        """Make the task done; its rows are written."""
        self.work.write_bytes(_document(task), _RESULT.dump_json(result))

    def result(self, task: str) -> TaskResult:
        """Return the document of a task that is done. Raises `ConfigurationError` if it is not there."""
        return _RESULT.validate_json(self.work.content(_document(task)))

    def reuse(self, tasks: Iterable[str]) -> dict[str, TaskResult]:
        """Return the documents of those `tasks` that are done, here or in another folder; all others are open then."""
        here = self.done()  # of a bucket, one listing for all of them
        reused = {}
        for task in tasks:
            result = (_whole(task, self.work) if task in here else None) or self._taken_over(task)
            if result:
                reused[task] = result
            elif task in here:
                self.work.remove(_document(task))
        return reused

    def remove_superseded(self) -> None:
        """Remove the folders that something was taken over from, but one that another process works in."""
        for other in self._superseded:
            with suppress(TransientError), storage.lease(str(other.with_suffix(""))):
                shutil.rmtree(other, ignore_errors=True)

    def _taken_over(self, task: str) -> TaskResult | None:
        for other in self.other_folders:
            result = _whole(task, TaskStore(str(other)))
            if result and self._linked(other, [*(part.name for part in result.parts), _document(task)]):
                self._superseded.add(other)
                return result
        return None

    def _linked(self, other: Path, names: Iterable[str]) -> bool:
        """Link the files `names` of the folder `other` into this one; return whether all are here now."""
        try:
            for path in (self.folder / name for name in names):
                path.parent.mkdir(exist_ok=True)
                path.unlink(missing_ok=True)
                os.link(other / path.relative_to(self.folder), path)
        except OSError:  # removed meanwhile, or on a volume without links
            return False
        return True


def _document(task: str) -> str:
    return f"{_DONE}/{task}.json"


def _whole(task: str, work: TaskStore) -> TaskResult | None:
    """Return the document of a task that is done, None if it cannot be reused."""
    try:
        result = _RESULT.validate_json(work.read(_document(task)) or b"")
    except ValidationError:  # not there, or the machine was switched off as it was written
        return None
    # A file that was wrong as a whole may have been fixed without a trace, as by chmod.
    return result if not result.fatal and all(part.is_whole(work) for part in result.parts) else None


def digests(recipe: Recipe, tasks: Iterable[object]) -> list[str]:
    """Return a name for the work on each of `tasks`, which JSON can describe.

    It changes with the recipe's own part of the output's key, the code and the libraries too.
    """
    made_by = f"{provenance(recipe, 'preprocess').digest}\0{keys.sections(recipe, 'preprocess')}\0"
    return [hashlib.sha256((made_by + json.dumps(task)).encode()).hexdigest()[:32] for task in tasks]


@contextmanager
def attempt_of(recipe: Recipe, output: Path, beam_options: str) -> Iterator[Attempt]:
    """Yield the attempt of the step that writes `output`; `recipe` says whether to keep its folder after success.

    It stays if the process is ended or a source did not answer, as the step will be tried again; it goes after any
    other error, which the same data would meet again. If the output is in a bucket, the workers of an engine leave
    theirs there; this process alone keeps its own with the output, and so loses it.
    """
    final = step.current_output()
    if final and not is_bucket(final):
        folder = Path(keys.parts(final))
        folder.mkdir(exist_ok=True)
        with _removed(str(folder), stays=recipe.data.keeps_parts):
            folders = sorted(other for other in folder.parent.glob(keys.parts("*")) if other != folder)
            attempt = Attempt(folder, beam_options, other_folders=folders)
            yield attempt
            if recipe.data.keeps_parts:
                attempt.remove_superseded()
        return
    folder = output / ".work"
    folder.mkdir()
    if final and not is_in_process(beam_options):
        with _removed(keys.parts(final)):
            yield Attempt(folder, beam_options, keys.parts(final))
    else:
        yield Attempt(folder, beam_options)
    shutil.rmtree(folder)


@contextmanager
def _removed(uri: str, stays: bool = False) -> Iterator[None]:
    """Remove the folder at the end of the block, unless `stays` or a transient error will repeat the step."""
    try:
        yield
    except TransientError:
        raise
    except Exception:
        with suppress(TrainyardError):
            storage.remove(uri)
        raise
    if not stays:
        storage.remove(uri)
