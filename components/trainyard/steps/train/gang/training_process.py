"""The training process of a worker, and the supervisor's view of its progress and exit."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from trainyard import events, uris
from trainyard.errors import ExitCode, PeerLost, failure_fields, known_code
from trainyard.heartbeat import Heartbeat
from trainyard.process import child_process, memory
from trainyard.process.child_process import ChildProcess
from trainyard.steps.train.loop.watchdog import call_seconds
from trainyard.steps.train.peers import settings
from trainyard.steps.train.peers.channel import Message
from trainyard.storage import cache

_HEARTBEAT_SECONDS = 5.0  # chosen
_FIELDS = {"recovered": "restart", "workers": "count", "straggler": "straggler"}
"""The field of a message to the rendezvous that holds an event of the training, by kind."""


class TrainingProcess:
    """A running training process. Its output goes to stderr; its events report its progress."""

    def __init__(self, rank: int, addresses: list[str], options: dict[str, str], past: str) -> None:
        """Start the process with the arguments of `train`."""
        # Removed at the end of each start, because leftovers of killed processes would fill a pod's small disk.
        self._files = ExitStack()
        temporary = self._files.enter_context(cache.temporary_folder())
        self.child = ChildProcess(train, (rank, addresses, options, past, temporary), "training")
        self.step = 0
        self.failure: Message = {}
        self.peak_mib = 0
        self._program = 0  # the process id of a custom program
        self._oom_kills_before = memory.oom_kills()
        self._output_at = time.monotonic()
        self._messages: list[tuple[str, Message]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def take_messages(self) -> list[tuple[str, Message]]:
        """Return kind and fields of the messages about start and recovery since the last call."""
        messages, self._messages = self._messages, []
        return messages

    def silent_seconds(self) -> float:
        """Return the seconds since its last output; also measures its memory."""
        self.peak_mib = max(self.peak_mib, memory.peak_mib(self._program or self.child.pid))
        return time.monotonic() - self._output_at

    def break_message(self, worker: int) -> Message:
        """Return the fields of the message about its failure.

        cause: True if no other worker's loss can have caused it. crashed: True if the process left no failure.
        """
        code = self.child.code or 0
        known = int(known_code(code, ExitCode.PEER_LOST))
        if self.failure:
            return {"code": known, **self.failure}
        if code == -signal.SIGKILL:
            oom_killed = memory.oom_kills() > self._oom_kills_before
            peak = f"{self.peak_mib:,} MiB"
            text = f"worker {worker}'s training process was killed by SIGKILL. Its peak memory was {peak}"
            if oom_killed:
                text = f"worker {worker}'s training process was killed{memory.oom_message(self.peak_mib, 'train')}"
            return {**failure_fields(PeerLost(text)), "cause": True, "out_of_memory": oom_killed}
        text = f"worker {worker}'s training process {child_process.describe_exit(code)}"
        return {**failure_fields(PeerLost(text)), "code": known, "crashed": True}

    def dump(self) -> None:
        """Make the process write every thread's stack."""
        if self.child.is_alive():
            os.kill(self.child.pid, signal.SIGUSR1)
            time.sleep(1)

    def end(self, grace_seconds: float = 0.0) -> None:
        """End the process after at most `grace_seconds` and read the rest of its output."""
        self.child.kill(grace_seconds)
        if self._program:
            self.child.kill_group()
        self._files.close()
        self._reader.join(timeout=2)

    def _read(self) -> None:
        with self.child.lines as lines:
            for line in lines:
                self._output_at = time.monotonic()
                event = events.parse(line)
                if events.is_alive(event):
                    continue
                sys.stderr.write(line)
                sys.stderr.flush()
                # A line that only looks like an event may come from a recipe's module.
                with contextlib.suppress(Exception):
                    self._handle_event(event)

    def _handle_event(self, event: Message) -> None:
        kind = event.pop("event", "")
        if kind == "progress":
            self.step = max(self.step, int(event["done"]))
        elif kind == "program":
            self._program = int(event["process"])
        elif kind in _FIELDS:
            self._messages.append((kind, {_FIELDS[kind]: event}))
        elif kind == "began":
            self._messages.append((kind, {"began_at": int(event["began_at"])}))
        elif kind == "failed":
            self.failure = {"error": str(event["error"]), "message": str(event["message"])}


def train(worker: int, addresses: list[str], options: dict[str, str], past: str, temporary: Path) -> None:
    """Train with the rank `worker` in the TensorFlow cluster at `addresses`; exits the process.

    past: the gang's history. temporary: the folder for all temporary files.

    The chief commits the output and exits with 0. Other workers exit with an error code if they fail and otherwise wait
    to be stopped, because TensorFlow treats a worker that leaves early as lost.
    """
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Heartbeat("alive", min(_HEARTBEAT_SECONDS, call_seconds() / 4), events.emit_alive).start()
    cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": worker}}
    os.environ["TF_CONFIG"] = json.dumps(cluster)
    uris.bypass_proxy([*addresses, *settings.input_addresses()])
    os.environ[cache.CACHE] = str(temporary.parent)  # else it would be in `temporary`
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)

    from trainyard.runtime import step
    from trainyard.spec import recipe
    from trainyard.steps.train.process import train_in_process

    if worker == 0:
        options = {**options, "past": past}
        step.main(train_in_process, [f"--{name}={value}" for name, value in options.items()], unfetched={"examples"})
    code = 0
    try:
        with step.recorded("train", lambda: options["output"]), tempfile.TemporaryDirectory() as discarded:
            loaded = recipe.load(options["recipe"])
            train_in_process(
                loaded, options["examples"], options["checkpoints"], Path(discarded), start=options["start"]
            )
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            while True:
                signal.pause()
    except SystemExit as end:
        code = int(end.code or 0)
    sys.stderr.flush()
    os._exit(code)
