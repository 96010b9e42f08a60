"""One trial: a command under the faults of its seed, run again until it succeeds, and compared with the undisturbed."""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.local import object_stores

from benchmarks.chaos import faults, programs
from benchmarks.chaos.faults import KINDS, Fault, descendants, wait_until
from benchmarks.chaos.programs import PREDICT, Program
from trainyard.steps.preprocess.readers.bundled import write_breast_cancer

TRIES = 6  # chosen: of a command, before its result is lost
ATTEMPT_SECONDS = 420.0  # chosen: a command that runs longer hangs
STALL_SECONDS = 10  # a call of a training step that takes longer is stopped
ENDING_SECONDS = 20.0  # chosen: for processes to end after the command
DISK_BYTES = 192 << 20
_SUBREAPER = 36  # prctl(2)
# libfaketime 0.9.10 passes a wrong end to clock_nanosleep(2), on which Python 3.11 sleeps: it fails with EINVAL.
_SLEEP_BY_SELECT = "import select, time\ntime.sleep = lambda seconds: select.select([], [], [], seconds) and None\n"


@dataclass
class Injected:
    """A fault that was made. survived: the attempt in which it was made ended the step, or succeeded."""

    kind: str
    step: str
    what: str
    attempt: int
    survived: bool = False


@dataclass
class Outcome:
    """A trial. codes, messages: of each attempt. wrong: names of results that differ. faulty: broken promises."""

    seed: int
    program: str
    faults: list[dict[str, str | float]] = field(default_factory=list)
    injected: list[Injected] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    seconds: float = 0.0
    undisturbed_seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)
    faulty: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """Return it as one line."""
        return json.dumps(asdict(self))


@dataclass
class Undisturbed:
    """A run without faults: its storage, results, and the seconds of each step."""

    root: Path
    results: dict[str, str]
    seconds: dict[str, float]


@dataclass(frozen=True)
class Place:
    """The surroundings of a program: folder, storage below `root`, the folder on the small disk, and bucket."""

    program: Program
    folder: Path
    root: str
    full: Path
    store: object_stores.Store | None
    command: list[str]
    variables: dict[str, str]

    def results(self) -> dict[str, str]:
        """Return the results as `programs.results`."""
        return programs.results(self.root, Path(self.root, "out.csv") if self.program == PREDICT else None)


class Attempt:
    """A command at work, whose screen says which step it is at."""

    def __init__(self, command: list[str], place: Place, variables: dict[str, str] | None = None) -> None:
        self.folder, self.full, self.store = place.folder, place.full, place.store
        self.step, self.begun = "start", time.monotonic()
        self.steps: dict[str, float] = {}
        self.output: list[str] = []
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **(variables or place.variables)},
            start_new_session=True,
        )
        self.pid = self.process.pid
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def processes(self) -> list[int]:
        """Return its processes, the command first."""
        return [self.pid, *descendants(self.pid)]

    def _read(self) -> None:
        for line in self.process.stderr or ():
            self.output.append(line)
            if match := re.match(r"· (\w+)$", line):
                self.step, self.begun = match[1], time.monotonic()
            if match := re.match(r"✓ (\w+) +([0-9.]+) s$", line):
                self.steps[match[1]] = float(match[2])

    def end(self) -> int:
        """Return its exit code; its output is complete then."""
        code = self.process.wait()
        self._reading.join(ENDING_SECONDS)
        return code


@dataclass
class Bench:
    """The folder of all trials, their recipes and undisturbed runs."""

    folder: Path
    _undisturbed: dict[str, Undisturbed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
        programs.write_recipes(self.folder)
        write_breast_cancer(self.folder)

    def undisturbed(self, program: Program) -> Undisturbed:
        """Return the run of `program` without faults, which is made once.

        All runs of a kind of storage have the same folder, which the outputs' names and some documents depend on.
        """
        known = self.folder / "undisturbed" / f"{program.name}.json"
        if program.name not in self._undisturbed and known.exists():
            read = json.loads(known.read_text(encoding="utf-8"))
            self._undisturbed[program.name] = Undisturbed(known.with_suffix(""), read["results"], read["seconds"])
        if program.name not in self._undisturbed:
            if program == PREDICT:
                self.undisturbed(programs.Program("table"))
            with self._place(program) as place:
                if program == PREDICT:
                    shutil.copytree(self.folder / "undisturbed" / "table", place.root)
                start = time.monotonic()
                attempt = Attempt(place.command, place)
                if attempt.end():
                    raise RuntimeError(f"the undisturbed {program.name} failed:\n{''.join(attempt.output)}")
                seconds = {"start": time.monotonic() - start - sum(attempt.steps.values()), **attempt.steps}
                root = self.folder / "undisturbed" / program.name
                if not program.bucket:
                    shutil.copytree(place.root, root)
                self._undisturbed[program.name] = kept = Undisturbed(root, place.results(), seconds)
                known.parent.mkdir(exist_ok=True)
                known.write_text(json.dumps({"results": kept.results, "seconds": seconds}), encoding="utf-8")
        return self._undisturbed[program.name]

    def trial(self, seed: int, program: Program, drawn: list[Fault]) -> Outcome:
        """Disturb `program` by the faults, and run it again until it succeeds."""
        expected = self.undisturbed(program)
        outcome = Outcome(seed, program.name, [fault.to_json() for fault in drawn])
        with self._place(program, drawn) as place:
            steps = list(programs.STEPS)
            if program == PREDICT:
                shutil.copytree(self.folder / "undisturbed" / "table", place.root, dirs_exist_ok=True)
                steps = [PREDICT.name]
            elif not program.bucket and drawn[0].step not in ("start", "preprocess"):
                programs.copy_before(expected.root, Path(place.root), drawn[0].step)
                steps = steps[steps.index(drawn[0].step) :]
            outcome.undisturbed_seconds = sum(expected.seconds[step] for step in ("start", *steps))
            self._try(outcome, place, list(drawn), expected)
            if outcome.codes[-1]:
                outcome.wrong.append("no result")
            else:
                self._compare(outcome, place, expected)
        return outcome

    @contextmanager
    def _place(self, program: Program, drawn: Sequence[Fault] = ()) -> Iterator[Place]:
        folder = self.folder / "run"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "temporary").mkdir(parents=True)
        full = folder / ("temporary" if drawn and drawn[0].pick < 0.3 else "storage")
        with ExitStack() as stack:
            if any(fault.kind == "full disk" for fault in drawn):
                stack.enter_context(_small_disk(full))
            store = stack.enter_context(object_stores.s3_store()) if program.bucket else None
            os.environ.update(store.environment if store else {})
            object_stores.forget_clients()
            if store:
                _empty(store)
            root = f"{store.uri}/chaos" if store else str(folder / "storage")
            variables = _variables(folder, store.environment if store else {})
            command = programs.command(program, self.folder, root, folder)
            yield Place(program, folder, root, full, store, command, variables)

    def _try(self, outcome: Outcome, place: Place, due: list[Fault], expected: Undisturbed) -> None:
        while len(outcome.codes) < TRIES and (not outcome.codes or outcome.codes[-1]):
            number, made = len(outcome.codes) + 1, len(outcome.injected)
            variables, command = place.variables, place.command
            if any(fault.kind == "clock shifted" for fault in due):
                faults.clock_file(place.folder).write_text("+0")
                variables = variables | _clock_variables(place.folder)
            if any(fault.kind == "network cut" for fault in due):
                command = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]
            start, before = time.monotonic(), set(descendants(os.getpid()))
            attempt = Attempt(command, place, variables)
            hung = _disturb(attempt, due, outcome.injected, number, expected.seconds)
            code = attempt.end()
            outcome.seconds += time.monotonic() - start
            outcome.codes.append(code)
            text = "".join(attempt.output)
            outcome.messages.append(" ".join(text[max(0, text.rfind("✗")) :].split())[-400:])
            now = outcome.injected[made:]
            for fault in now:
                fault.survived = code == 0 or attempt.step not in (fault.step, "start")
            outcome.faulty += [f"attempt {number}: {fault}" for fault in _broken(code, text, now, hung)]
            if left := _end_strays(before):
                outcome.faulty.append(f"attempt {number}: processes are left: {left}")

    def _compare(self, outcome: Outcome, place: Place, expected: Undisturbed) -> None:
        try:
            now = place.results()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with them
            outcome.wrong.append(f"{type(error).__name__}: {error}")
            return
        changed = any(fault.kind == "a worker lost, and no place for it" for fault in outcome.injected)
        if changed and now != expected.results:
            drift = programs.drift(place.root, str(expected.root))
            if drift > programs.TOLERANCE or now.keys() != expected.results.keys():
                outcome.wrong.append(f"losses or weights differ by {drift:.1e}")
            return
        outcome.wrong += programs.differences(now, expected.results)
        if not place.store:
            outcome.faulty += [f"left in the storage: {name}" for name in programs.leftovers(Path(place.root))]


def _empty(store: object_stores.Store) -> None:
    """Leave nothing in a bucket: moto keeps its content in this process."""
    for method, path in (("POST", "/moto-api/reset"), ("PUT", f"/{store.bucket}")):
        connection = http.client.HTTPConnection(store.address.removeprefix("http://"))
        connection.request(method, path)
        connection.getresponse().read()
        connection.close()


def _variables(folder: Path, store: dict[str, str]) -> dict[str, str]:
    temporary = str(folder / "temporary")
    stall = {"TRAINYARD_STALL_SECONDS": str(STALL_SECONDS)}
    return {"TMPDIR": temporary, "TRAINYARD_CACHE": f"{temporary}/cache", **stall, **store}


def _clock_variables(folder: Path) -> dict[str, str]:
    (folder / "sitecustomize.py").write_text(_SLEEP_BY_SELECT)
    return {
        "PYTHONPATH": str(folder),
        "LD_PRELOAD": str(faults.CLOCK_LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(faults.clock_file(folder)),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
    }


@contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def _disturb(
    attempt: Attempt, due: list[Fault], injected: list[Injected], number: int, seconds: dict[str, float]
) -> bool:
    """Make the faults that are due until the command ends; returns whether it had to be killed, as it hung."""
    undo: list[tuple[float, faults.Undo]] = []
    deadline = time.monotonic() + ATTEMPT_SECONDS
    hung = False
    with ExitStack() as stack:
        stack.callback(lambda: [action() for _, action in undo])
        while attempt.process.poll() is None:
            now = time.monotonic()
            if due and _is_due(due[0], attempt, seconds):
                fault = due[0]
                try:
                    effect, action = KINDS[fault.kind].make(fault, attempt)
                except LookupError:
                    pass  # its moment is still to come
                except ProcessLookupError:
                    pass
                else:
                    due.pop(0)
                    injected.append(Injected(fault.kind, attempt.step, effect, number))
                    undo.append((now + fault.seconds, action))
            for item in [item for item in undo if item[0] < now]:
                undo.remove(item)
                item[1]()
            if now > deadline:
                hung = True
                for pid in attempt.processes():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
    return hung


def _is_due(fault: Fault, attempt: Attempt, seconds: dict[str, float]) -> bool:
    order = ["start", *programs.STEPS]
    step = PREDICT.name if fault.step == PREDICT.name else attempt.step
    if fault.step != step:
        return fault.step != PREDICT.name and order.index(step) > order.index(fault.step)
    return time.monotonic() - attempt.begun >= fault.share * seconds[fault.step]


def _broken(code: int, output: str, made: list[Injected], hung: bool) -> Iterator[str]:
    """Yield the defects of an attempt that no fault excuses."""
    allowed = {0}.union(*(KINDS[fault.kind].codes for fault in made))
    if hung:
        yield f"hung for {ATTEMPT_SECONDS:.0f} s"
    elif code not in allowed:
        yield f"exit code {code}"
    if "Traceback" in output:
        yield "a traceback"
    if code > 0 and "✗" not in output:
        yield "no message"


def _end_strays(before: set[int]) -> list[str]:
    """End the processes that an attempt left behind, and return their command lines."""

    def strays() -> set[int]:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        return set(descendants(os.getpid())) - before

    if wait_until(lambda: not strays(), ENDING_SECONDS):
        return []
    left = strays()
    lines = [faults.command_line(pid)[-80:] for pid in left]
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return lines
