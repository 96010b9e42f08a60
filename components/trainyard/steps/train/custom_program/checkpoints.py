"""The checkpoint folder of a custom training program: local files, with committed copies in the storage.

The program's libraries write files, which a bucket does not offer. So each worker's program gets a local folder. When
worker 0's folder changes, a copy becomes the committed folder `save-<number>` in the storage:

    files/...      the folder's files
    folder.json    its links, which a bucket cannot store
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard import events
from trainyard.contract.document import Document
from trainyard.errors import DataError, TrainyardError, TransientError
from trainyard.graph import producer, remedy
from trainyard.heartbeat import Heartbeat
from trainyard.process.signals import on_sigterm
from trainyard.storage import storage

_KEPT = 2  # chosen: copies; the older one is used if the newer one is damaged
_LOOK_SECONDS = 0.5  # chosen: between two checks of the folder; it is copied when two of them agree
_LONGEST_LOOKS = 10  # chosen: then the folder of a program that never pauses is copied between two writes
_TICK_SECONDS = 0.02  # chosen: above the resolution of file times, 4 ms on Linux
_LAST_TRIES = 3  # chosen: at the end, if a leftover process of the program still writes
_CHANGES_BEFORE_WARNING = 6  # chosen: copies in a row during which the folder changed
_FILES = "files"
_PRODUCER = producer("train")

_State = dict[str, tuple[int, int, int] | str]
"""By name: size, modification time and inode of a file, or the target of a link."""


class _Links(Document):
    """The links of the folder and their targets, by name."""

    file = "folder.json"

    links: dict[str, str]


class _Changed(Exception):
    """A file changed or disappeared while the folder was copied."""


class ProgramCheckpoints:
    """The local `folder` of a program and its copies below `uri`.

    killed: a signal ended the program, perhaps during a write.
    """

    def __init__(self, uri: str, folder: Path) -> None:
        self.killed = False
        self._uri, self._folder = uri, folder
        self._saved: _State = {}
        self._seen: _State = {}
        self._settled: _State = {}
        self._checks = self._changes = 0
        self._fault: TrainyardError | None = None

    def restore(self) -> None:
        """Fill the empty folder from the newest copy, if there is one; skip damaged or missing copies."""
        skipped: set[int] = set()
        # Listed each time: worker 0 may save, and remove older copies, while another worker restores.
        while left := [number for number in self._numbers() if number not in skipped]:
            try:
                self._restore(left[-1])
                break
            except (DataError, _Changed) as error:
                skipped.add(left[-1])
                shutil.rmtree(self._folder)
                self._folder.mkdir()
                events.warn(f"{self._path(left[-1])}: skipped, the one before is used if there is one ({error})")
        self._saved = self._seen = self._state()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Save the folder whenever it has changed while the block runs, and at its end.

        Sends SIGTERM to this process and raises if saving becomes impossible. A store that does not answer causes a
        warning and a retry.
        """
        storage.remove_unfinished(self._uri)
        watcher = Heartbeat(f"{self._uri}: the checkpoints were not saved", _LOOK_SECONDS, self._look)
        watcher.start()
        try:
            yield
        finally:
            with on_sigterm(lambda: None):  # it was received already, or the program has ended by itself
                watcher.stop()
                watcher.join()
                if self._fault is None:
                    self._save_last()
        if self._fault is not None:
            raise self._fault

    def _look(self) -> None:
        state = self._state()
        settled, self._seen = state == self._seen, state
        self._settled = state if settled else self._settled
        self._checks = 0 if state == self._saved else self._checks + 1
        if not self._checks or not (settled or self._checks % _LONGEST_LOOKS == 0):
            return
        try:
            self._save(state)
        except _Changed:
            self._changes += 1
            if self._changes == _CHANGES_BEFORE_WARNING:
                events.warn(
                    "train.command: the files in $TRAINYARD_CHECKPOINTS change faster than they can be copied, "
                    "so a restart finds older ones. Save less often."
                )
        except TransientError:
            raise  # becomes a warning; the next check tries again
        except TrainyardError as error:
            self._fault = error
            os.kill(os.getpid(), signal.SIGTERM)  # passed on to the program

    def _save_last(self) -> None:
        for _ in range(_LAST_TRIES):
            state = self._state()
            if state == self._saved or (self.killed and state != self._settled):
                return
            try:
                self._save(state)
            except _Changed:
                continue
            except TrainyardError as error:  # the program's exit matters more
                events.warn(f"{self._uri}: the last checkpoints were not saved: {error}")
            return
        events.warn(f"{self._uri}: the last checkpoints were not saved: files are still written.")

    def _save(self, state: _State) -> None:
        """Commit a copy of the folder in `state`. Raises `_Changed` if it changes meanwhile."""
        start, numbers = time.monotonic(), self._numbers()
        number = numbers[-1] + 1 if numbers else 1
        time.sleep(_TICK_SECONDS)  # so that a later change always changes a file's time
        with storage.stage(self._path(number), producer=_PRODUCER) as staging:
            (staging / _FILES).mkdir()
            for name, entry in state.items():
                if not isinstance(entry, str):
                    _copy(self._folder / name, staging / _FILES / name)
            _Links(links={name: entry for name, entry in state.items() if isinstance(entry, str)}).write(staging)
            if self._state() != state:
                raise _Changed
        self._saved, self._changes = state, 0
        for old in numbers[: 1 - _KEPT]:
            storage.remove(self._path(old))
        sizes = [entry[0] for entry in state.values() if not isinstance(entry, str)]
        seconds = round(time.monotonic() - start, 2)
        events.emit("checkpoints_saved", number=number, files=len(sizes), bytes=sum(sizes), seconds=seconds)

    def _restore(self, number: int) -> None:
        path = self._path(number)
        local = storage.local(path, remedy("train"))
        links = _Links.read(str(local)).links
        for name in storage.require(str(local), remedy("train")).files:
            if name.startswith(f"{_FILES}/"):
                _copy(local / name, self._folder / name.removeprefix(f"{_FILES}/"))
        for name, target in links.items():
            (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self._folder / name).symlink_to(target)
        events.emit("checkpoints_restored", number=number, uri=path)

    def _state(self) -> _State:
        """Return the regular files and links of the folder, without those that disappear meanwhile."""
        state: _State = {}
        for folder, folders, files in os.walk(self._folder):
            for path in (Path(folder, name) for name in [*folders, *files]):
                try:
                    status = path.lstat()
                    name = path.relative_to(self._folder).as_posix()
                    if stat.S_ISLNK(status.st_mode):
                        state[name] = self._target(path)
                    elif stat.S_ISREG(status.st_mode):
                        state[name] = status.st_size, status.st_mtime_ns, status.st_ino
                except FileNotFoundError:
                    continue
        return dict(sorted(state.items()))

    def _target(self, link: Path) -> str:
        """Return the target of `link`, relative if it is inside the folder, because the folder's path changes."""
        target = os.readlink(link)  # noqa: PTH115 - a Path would change it
        inside = target.startswith(f"{self._folder}/")
        return os.path.relpath(target, link.parent) if inside else target

    def _numbers(self) -> list[int]:
        names = [name.removeprefix("save-") for name in storage.children(self._uri) if name.startswith("save-")]
        return sorted(int(name) for name in names if name.isdigit())

    def _path(self, number: int) -> str:
        return storage.join(self._uri, f"save-{number}")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(source, target)
    except FileNotFoundError as error:
        raise _Changed(f"{source}: is gone") from error
