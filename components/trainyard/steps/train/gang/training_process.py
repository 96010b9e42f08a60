"""The training process of a worker, as its supervisor sees it: how far it is, and how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

from trainyard import child_process, events, memory
from trainyard.child_process import ChildProcess
from trainyard.errors import ExitCode, known_code
from trainyard.steps.train.gang.worker import WorkerStart
from trainyard.steps.train.gang.worker import main as train
from trainyard.steps.train.peers.messages import Message


class TrainingProcess:
    """A running training process. What it writes goes to stderr; its events say how far it is."""

    def __init__(self, start: WorkerStart) -> None:
        self.child = ChildProcess(train, (start,), "training")
        self.step = 0
        self.failure: Message = {}
        self.peak_mib = 0
        self._program = 0  # the process of the recipe's own program
        self._oom_kills_before = memory.oom_kills()
        self._output_at = time.monotonic()
        self._messages: list[tuple[str, Message]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def take_messages(self) -> list[tuple[str, Message]]:
        """Return the messages about its beginning and its recovery since the last call, with their kinds."""
        messages, self._messages = self._messages, []
        return messages

    def silent_seconds(self) -> float:
        """Return the seconds since it wrote anything; measures its memory as well."""
        self.peak_mib = max(self.peak_mib, memory.peak_mib(self._program or self.child.pid))
        return time.monotonic() - self._output_at

    def break_message(self, worker: int) -> Message:
        """Return the fields of the message about its end, which was no success.

        cause: true if no other worker's loss can have ended it.
        """
        code = self.child.code or 0
        known = int(known_code(code, ExitCode.PEER_LOST))
        if self.failure:
            return {"code": known, **self.failure}
        if code == -signal.SIGKILL:
            oom_killed = memory.oom_kills() > self._oom_kills_before
            text = f"worker {worker}'s training process was killed by SIGKILL. Its peak memory was {self.peak_mib} MiB"
            if oom_killed:
                text = f"worker {worker}'s training process was killed{memory.oom_message(self.peak_mib, 'train')}"
            end = {"code": int(ExitCode.PEER_LOST), "error": "PeerLost", "message": text}
            return {**end, "cause": True, "out_of_memory": oom_killed}
        text = f"worker {worker}'s training process {child_process.describe_exit(code)}"
        return {"code": known, "error": "PeerLost", "message": text}

    def dump(self) -> None:
        """Have it write every thread's stack."""
        if self.child.is_alive():
            os.kill(self.child.pid, signal.SIGUSR1)
            time.sleep(1)

    def end(self, grace_seconds: float = 0.0) -> None:
        """Leave no process behind and nothing unread of what it wrote, after at most `grace_seconds`."""
        self.child.kill(grace_seconds)
        if self._program:
            self.child.kill_group()
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
                # A line that only looks like an event of ours was printed by a recipe's module.
                with contextlib.suppress(Exception):
                    self._handle_event(event)

    def _handle_event(self, event: Message) -> None:
        kind = event.pop("event", "")
        if kind == "progress":
            self.step = max(self.step, int(event["done"]))
        elif kind == "program":
            self._program = int(event["process"])
        elif kind == "recovered":
            self._messages.append((kind, {"restart": event}))
        elif kind == "began":
            self._messages.append((kind, {"began_at": int(event["began_at"])}))
        elif kind == "failed":
            self.failure = {"error": str(event["error"]), "message": str(event["message"])}
