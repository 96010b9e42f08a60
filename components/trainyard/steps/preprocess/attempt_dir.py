"""The files that an attempt leaves for the next one: rows of each task, the transform graph and the shards.

It lies beside the output, in `<output>.parts`, under names that are digests of all that it depends on. So the attempt
after a kill resumes from completed work, and a run over data that only grew takes the tasks of the same files over from
the outputs beside its own. Links are taken, not copies: whoever removes a folder takes nothing from another one.
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

from trainyard.beam.runner import is_in_process
from trainyard.contract import keys
from trainyard.contract.provenance import provenance
from trainyard.errors import TrainyardError, TransientError
from trainyard.runtime import step
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess.task_store import TaskStore
from trainyard.storage import storage
from trainyard.uris import is_bucket


@dataclass
class AttemptDir:
    """The folder of an attempt, and those of other outputs of the same recipe beside it.

    uri: as in `TaskStore`.
    """

    folder: Path
    other_dirs: Sequence[Path] = ()
    uri: str = ""
    _superseded: set[Path] = field(default_factory=set)

    @property
    def work(self) -> TaskStore:
        """The files that the workers write."""
        return TaskStore(str(self.folder), self.uri)

    def take_over(self, other: Path, names: Iterable[str]) -> bool:
        """Link the files `names` of the folder `other` into this one; return whether all are here now."""
        try:
            for name in names:
                (self.folder / name).parent.mkdir(exist_ok=True)
                (self.folder / name).unlink(missing_ok=True)
                os.link(other / name, self.folder / name)
        except OSError:  # removed meanwhile, or on a volume without links
            return False
        self._superseded.add(other)
        return True

    def remove_superseded(self) -> None:
        """Remove the folders that something was taken over from, but one that another process works in."""
        for other in self._superseded:
            with suppress(TransientError), storage.lease(str(other.with_suffix(""))):
                shutil.rmtree(other, ignore_errors=True)


@contextmanager
def workspace(recipe: Recipe, output: Path, beam_options: str) -> Iterator[AttemptDir]:
    """Yield the attempt folder of the step that writes `output`; `recipe` says whether to keep it after success.

    It stays if the process is ended or a source did not answer, as the step will be tried again; it goes after any
    other error, which the same data would meet again. If the output is in a bucket, the workers of an engine leave
    theirs there; this process alone keeps its own with the output, and so loses it.
    """
    final = step.current_output()
    if final and not is_bucket(final):
        folder = Path(keys.parts(final))
        folder.mkdir(exist_ok=True)
        with _removed(str(folder), stays=recipe.data.keeps_parts):
            this = AttemptDir(folder, sorted(other for other in folder.parent.glob(keys.parts("*")) if other != folder))
            yield this
            if recipe.data.keeps_parts:
                this.remove_superseded()
        return
    folder = output / ".work"
    folder.mkdir()
    if final and not is_in_process(beam_options):
        with _removed(keys.parts(final)):
            yield AttemptDir(folder, uri=keys.parts(final))
    else:
        yield AttemptDir(folder)
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


def digests(recipe: Recipe, tasks: Iterable[object]) -> list[str]:
    """Return a name for the work on each of `tasks`, which JSON can describe.

    It changes with the recipe's own part of the output's key, the code and the libraries too.
    """
    made_by = f"{provenance(recipe, 'preprocess').digest}\0{keys.sections(recipe, 'preprocess')}\0"
    return [hashlib.sha256((made_by + json.dumps(task)).encode()).hexdigest()[:32] for task in tasks]
