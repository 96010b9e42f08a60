"""The training program of one worker: its folder, environment, output and exit."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from trainyard import events
from trainyard.child_process import end_with_parent, start_program
from trainyard.errors import CommandFailed, ExitCode, PeerLost, Preempted
from trainyard.signals import on_sigterm
from trainyard.spec import command as commands
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.custom_program.program_record import ProgramRecord
from trainyard.steps.train.peers import settings
from trainyard.steps.train.peers.settings import Rank
from trainyard.uris import BRACKETS

_LAST_LINES = 3  # chosen: shown if no line looks like a Python error
_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b.*")
_LONGEST_LINE = 300
_LONGEST_READ = 1 << 20  # chosen: characters of a line; the rest counts as another line
_LAST_WORDS_SECONDS = 5.0  # chosen: a leftover process of the program may hold its output open forever


def prepare(recipe: Recipe, folder: Path) -> None:
    """Write the program's files and recipe.json into the empty working `folder`."""
    for name, text in commands.texts(recipe.train).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "recipe.json").write_text(recipe.model_dump_json(exclude={"train": {"files"}}), encoding="utf-8")


def variables(rank: Rank, addresses: list[str], own_variables: dict[str, str]) -> dict[str, str]:
    """Return the program's environment: this process's, the addresses of all workers, and `own_variables`.

    addresses: host:port of each worker, a free port. TF_CONFIG is for TensorFlow's strategies, MASTER_ADDR and its
    companions for torch.distributed (docs.pytorch.org/docs/stable/distributed.html), JAX_COORDINATOR_ADDRESS for
    jax.distributed.initialize.
    """
    host, _, port = addresses[0].rpartition(":")
    env = {name: value for name, value in os.environ.items() if name not in (settings.GANG_TOKEN, settings.RECIPE)}
    if rank.workers == 1:
        env.pop("TF_CONFIG", None)
    threads = {"OMP_NUM_THREADS": env["TF_NUM_INTRAOP_THREADS"]} if "TF_NUM_INTRAOP_THREADS" in env else {}
    return {
        **threads,
        **env,
        # `python` is Trainyard's interpreter.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",
        "RANK": str(rank.index),
        "WORLD_SIZE": str(rank.workers),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": host.strip(BRACKETS),
        "MASTER_PORT": port,
        "JAX_COORDINATOR_ADDRESS": addresses[0],
        **own_variables,
    }


@dataclass(frozen=True)
class Ended:
    """The exit of a program: exit code, whether it got SIGTERM, and its last words."""

    name: str
    code: int
    stopped: bool
    last_words: str

    def check(self) -> None:
        """Return if the exit status was 0.

        Raises `CommandFailed` for any other status, `PeerLost` for 75, `Preempted` after SIGTERM. A signal that ended
        the program ends this process too.
        """
        if not self.code:
            return
        if self.stopped:
            raise Preempted
        if self.code < 0:
            if -self.code != signal.SIGKILL:
                signal.signal(-self.code, signal.SIG_DFL)
            os.kill(os.getpid(), -self.code)
        if self.code == ExitCode.PEER_LOST:
            raise PeerLost(f"train.command: '{self.name}' asked to be started again (exit status {self.code}).")
        raise CommandFailed(
            f"train.command: '{self.name}' ended with exit status {self.code}: {self.last_words}. Correct the program; "
            "the log of train has all that it wrote."
        )


def run(command: list[str], folder: Path, environment: dict[str, str], record: ProgramRecord) -> Ended:
    """Run `command` in `folder` to its end; `record` reads each output line.

    Passes SIGTERM on. Raises `CommandFailed` if the program could not be started.
    """
    try:
        program = start_program(command, environment, folder, own_session=False, first=end_with_parent())
    except OSError as error:
        raise CommandFailed(
            f"train.command: '{command[0]}' could not be started ({error.strerror}). "
            "Name a program that the machine or the image has."
        ) from error
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        program.terminate()

    events.emit("program", process=program.pid, command=" ".join(command))
    record.process = program.pid
    last: deque[str] = deque(maxlen=_LAST_LINES)
    faults: list[Exception] = []
    named = ""

    def read() -> None:
        nonlocal named
        try:
            for line in iter(lambda: program.stdout.readline(_LONGEST_READ) if program.stdout else "", ""):
                last.append(line.strip()[:_LONGEST_LINE])
                named = last[-1] if _ERROR.match(line) else named
                record.read(line)
        except Exception as error:  # noqa: BLE001 - raised below: else the program would wait for a reader
            faults.append(error)
            program.kill()

    reader = threading.Thread(target=read, daemon=True)
    with on_sigterm(stop):
        reader.start()
        code = program.wait()
    reader.join(_LAST_WORDS_SECONDS)
    if faults:
        raise faults[0]
    return Ended(command[0], code, stopped, named or " | ".join(filter(None, last)) or "it wrote nothing")
