"""The faults: each is made in a running command by its seed, and ends by itself or with the command."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from tests.local import object_stores

from benchmarks.chaos.programs import PREDICT, STEPS, Program

CLOCK_LIBRARY = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
_SUPERVISOR = "trainyard.steps.train.gang.supervisor"
_BLOCK = 1 << 16
_TURN_SECONDS = 0.05  # chosen: for which a slowed process runs, and stands still


class Target(Protocol):
    """A running command. store: the bucket behind its proxy. full: what is on the small disk."""

    pid: int
    folder: Path
    store: object_stores.Store | None
    full: Path

    def processes(self) -> list[int]:
        """Return its processes, the command first."""
        ...


@dataclass(frozen=True)
class Fault:
    """A fault to make. share: of the undisturbed seconds of `step`, when it starts. pick: which process, 0 to 1.

    seconds: how long it lasts; 0 if it is over at once, infinite if it lasts as long as the command.
    """

    kind: str
    step: str
    share: float
    pick: float
    seconds: float

    def to_json(self) -> dict[str, str | float]:
        """Return its fields; JSON knows no infinity."""
        return asdict(self) | {"seconds": min(self.seconds, 1e9)}


Undo = Callable[[], None]


@dataclass(frozen=True)
class Kind:
    """A kind of fault. codes: exit codes that it may cause. lasting: least and most seconds; forever: its chance."""

    make: Callable[[Fault, Target], tuple[str, Undo]]
    codes: set[int]
    lasting: tuple[float, float] = (0, 0)
    forever: float = 0
    fits: Callable[[Program], bool] = lambda _: True
    weight: float = 1


def _nothing() -> None:
    """A fault that is over at once."""


def _send(number: signal.Signals, whom: str) -> Callable[[Fault, Target], tuple[str, Undo]]:
    def make(fault: Fault, target: Target) -> tuple[str, Undo]:
        processes = target.processes()
        chosen = {"command": [target.pid], "all": processes, "one": [processes[int(fault.pick * len(processes))]]}
        names = ", ".join(_name(pid, target) for pid in chosen[whom])
        for pid in chosen[whom]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return names, _nothing

    return make


def _stop(fault: Fault, target: Target) -> tuple[str, Undo]:
    processes = target.processes()
    return _stop_process(processes[int(fault.pick * len(processes))], target)


def _freeze_worker(fault: Fault, target: Target) -> tuple[str, Undo]:
    """Freeze the training process of a worker of the gang."""
    return _stop_process(_training_process(fault, target), target)


def _slow_worker(fault: Fault, target: Target) -> tuple[str, Undo]:
    """Let the training process of a worker of the gang run half of the time."""
    pid, over = _training_process(fault, target), threading.Event()

    def slow() -> None:
        with suppress(ProcessLookupError):
            while not over.wait(_TURN_SECONDS):
                os.kill(pid, signal.SIGSTOP)
                over.wait(_TURN_SECONDS)
                os.kill(pid, signal.SIGCONT)

    slowing = threading.Thread(target=slow)
    slowing.start()

    def end() -> None:
        over.set()
        slowing.join()

    return _name(pid, target), end


def _training_process(fault: Fault, target: Target) -> int:
    supervisors = [pid for pid in target.processes() if _SUPERVISOR in command_line(pid)]
    leaders = [
        child
        for pid in supervisors
        for child in descendants(pid)
        if os.getsid(child) == child and child not in supervisors
    ]
    if not leaders:
        raise LookupError("no worker trains yet")
    return leaders[int(fault.pick * len(leaders))]


def _stop_process(pid: int, target: Target) -> tuple[str, Undo]:
    name = _name(pid, target)
    os.kill(pid, signal.SIGSTOP)

    def go_on() -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    return name, go_on


def _fill_disk(_: Fault, target: Target) -> tuple[str, Undo]:
    over = threading.Event()
    ballast = target.full / "ballast"

    def fill() -> None:
        with suppress(FileNotFoundError), ballast.open("wb", buffering=0) as stream:
            while not over.is_set():
                try:
                    stream.write(bytes(_BLOCK))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    with suppress(OSError):
                        stream.write(bytes(512))
                    over.wait(0.01)

    filling = threading.Thread(target=fill)
    filling.start()

    def free() -> None:
        over.set()
        filling.join()
        ballast.unlink(missing_ok=True)

    return target.full.name, free


def _fail_requests(answers: tuple[str, ...]) -> Callable[[Fault, Target], tuple[str, Undo]]:
    def make(fault: Fault, target: Target) -> tuple[str, Undo]:
        assert target.store
        store, draw = target.store, random.Random(fault.pick)
        some = draw.choice((0.2, 0.5, 1.0)) if len(answers) > 1 else 0.5
        store.fault = lambda _: draw.choice(answers) if draw.random() < some else None
        return f"{some:.0%} of the requests", store.calm

    return make


def _hold_requests(_: Fault, target: Target) -> tuple[str, Undo]:
    assert target.store
    store, over = target.store, threading.Event()
    store.before = lambda _: over.wait(600) and False

    def release() -> None:
        over.set()
        store.calm()

    return "all requests", release


def _shift_clock(fault: Fault, target: Target) -> tuple[str, Undo]:
    hours = random.Random(fault.pick).choice((-24 * 30, -2, -1, 1, 2, 24 * 400))
    file = clock_file(target.folder)
    file.write_text(f"{hours * 3600:+d}")

    def set_right() -> None:
        file.write_text("+0")

    return f"{hours:+d} h", set_right


def clock_file(folder: Path) -> Path:
    """Return the file that says how far the clock of a command is shifted."""
    return folder / "clock"


def _cut_network(fault: Fault, target: Target) -> tuple[str, Undo]:
    inside = ["nsenter", "-t", str(target.pid), "-n", "iptables"]
    rule = ["INPUT", "-p", "tcp", "-j", "REJECT" if fault.pick < 0.3 else "DROP"]
    subprocess.run([*inside, "-A", *rule], check=True, capture_output=True)

    def repair() -> None:  # without effect once the command, and with it its network, has ended
        subprocess.run([*inside, "-D", *rule], check=False, capture_output=True)

    return rule[-1], repair


def _lose_capacity(_: Fault, target: Target) -> tuple[str, Undo]:
    """Kill a worker's supervisor, and let the launcher start none as long as the fault lasts."""
    supervisors = [pid for pid in target.processes() if _SUPERVISOR in command_line(pid)]
    if len(supervisors) < 2:
        raise LookupError("the gang has not started yet")
    launcher, files = _parent(supervisors[1]), resource.RLIMIT_NOFILE
    limits = resource.prlimit(launcher, files)
    resource.prlimit(launcher, files, (len(list(Path(f"/proc/{launcher}/fd").iterdir())), limits[1]))
    os.kill(supervisors[1], signal.SIGKILL)

    def give_back() -> None:
        with suppress(ProcessLookupError):
            resource.prlimit(launcher, files, limits)

    return "worker 1", give_back


def _in_bucket(program: Program) -> bool:
    return program.bucket


def _on_disk(program: Program) -> bool:
    return not program.bucket


def _as_root(program: Program) -> bool:
    return _on_disk(program) and os.geteuid() == 0


KINDS: dict[str, Kind] = {
    "SIGKILL of one process": Kind(_send(signal.SIGKILL, "one"), {-9, 30}, weight=3),
    "SIGKILL of the command": Kind(_send(signal.SIGKILL, "command"), {-9}),
    "SIGKILL of all processes": Kind(_send(signal.SIGKILL, "all"), {-9}, weight=2),
    "SIGTERM to the command": Kind(_send(signal.SIGTERM, "command"), {143}),
    "SIGTERM to one process": Kind(_send(signal.SIGTERM, "one"), {143, 30}),
    "SIGTERM to all processes": Kind(_send(signal.SIGTERM, "all"), {143}),
    "SIGINT to the command": Kind(_send(signal.SIGINT, "command"), {130}),
    "SIGSTOP of one process, SIGCONT later": Kind(_stop, set(), lasting=(0.5, 6)),
    "SIGSTOP of a gang's worker for good": Kind(
        _freeze_worker, set(), forever=1, fits=lambda program: program.workers > 1
    ),
    "a gang's worker slowed by half": Kind(
        _slow_worker, set(), lasting=(3, 20), fits=lambda program: program.workers > 1, weight=2
    ),
    "full disk": Kind(_fill_disk, {40}, lasting=(0.5, 4), forever=0.6, fits=_as_root, weight=2),
    "storage answers 503, 429 or nothing": Kind(
        _fail_requests(("503", "429", "reset", "lost answer")), {30}, lasting=(1, 20), fits=_in_bucket, weight=3
    ),
    "storage cuts its answers": Kind(_fail_requests(("truncated",)), {30}, lasting=(1, 20), fits=_in_bucket, weight=2),
    "storage stalls within its answers": Kind(
        _fail_requests(("stalled",)), {30}, lasting=(1, 20), fits=_in_bucket, weight=2
    ),
    "storage holds its answers": Kind(_hold_requests, {30}, lasting=(1, 20), fits=_in_bucket, weight=2),
    "clock shifted": Kind(
        _shift_clock,
        set(),
        lasting=(1, 5),
        forever=0.5,
        fits=lambda program: _on_disk(program) and CLOCK_LIBRARY.exists(),
    ),
    "network cut": Kind(
        _cut_network,
        {30},
        lasting=(1, 20),
        fits=lambda program: program.workers > 1 and _as_root(program),
        weight=3,
    ),
    "a worker lost, and no place for it": Kind(
        _lose_capacity, set(), lasting=(3, 20), fits=lambda program: program.elastic, weight=3
    ),
}


def draw(seed: int, programs: tuple[Program, ...]) -> tuple[Program, list[Fault]]:
    """Return the program and the faults of a seed, in the order of their moments."""
    random_ = random.Random(seed)
    program = random_.choice(programs)
    kinds = [name for name, kind in KINDS.items() if kind.fits(program)]
    weights = [KINDS[name].weight for name in kinds]
    faults = []
    for _ in range(random_.choice((1, 2, 3, 4))):
        name = random_.choices(kinds, weights)[0]
        kind = KINDS[name]
        seconds = float("inf") if random_.random() < kind.forever else random_.uniform(*kind.lasting)
        within = (
            ["train"]
            if kind.make in (_freeze_worker, _slow_worker, _lose_capacity, _cut_network)
            else ["start", *STEPS]
        )
        step = PREDICT.name if program == PREDICT else random_.choice(within)
        faults.append(Fault(name, step, random_.random(), random_.random(), seconds))
    order = ["start", *STEPS, PREDICT.name]
    return program, sorted(faults, key=lambda fault: (order.index(fault.step), fault.share))


def descendants(pid: int) -> list[int]:
    """Return the processes below `pid` but for the templates of tests/warm.py."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, path.read_text().split()):
                below = descendants(child)
                found += below if _is_template(child) else [child, *below]
    return found


def _is_template(pid: int) -> bool:
    return "warm.py" in command_line(pid) or _state(pid) == "Z"


def _state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def command_line(pid: int) -> str:
    """Return the command line of a process, empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _name(pid: int, target: Target) -> str:
    """Return the role of a process: the command, a supervisor, otherwise the line that it was started with."""
    line = command_line(pid)
    if pid == target.pid:
        return "command"
    if _SUPERVISOR in line:
        return "supervisor"
    if "run_fork_server" in line:
        return "step or training process" if os.getsid(pid) == pid != target.pid else "fork server"
    return line[-60:].strip() or "?"


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Return True as soon as `condition` holds, False if the time passes before."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
