"""Child processes: each in its own session, its output in a pipe, and ended when its parent dies.

They are forked out of Python's fork server, which has imported what is slow, or out of this process while it has done
no more than import it. The server gets no SIGTERM: `timeout`, systemd and others send it to every process of a group,
and a server that went with it would take its children's exit codes along. One that is killed all the same is replaced
by the next start, in its children as in their creator.
"""

from __future__ import annotations

import ctypes
import fcntl
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe, connection, forkserver, resource_tracker, util
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Literal

from trainyard.errors import TransientError

LAST_LINES_SECONDS = 5.0
"""Chosen: for a thread to read what the pipe of an ended process holds."""
LOST = 255
"""The exit code that multiprocessing gives to a child that was lost together with the server, so that it is unknown."""

_LONGEST_FOLDER = 70  # a socket's path has 107 characters at most (unix(7)), of which multiprocessing takes some 30
_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6, 2.0)  # seconds between starts; chosen: a killed server takes a moment to be dead
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LONGEST_LINE = 300  # characters of a program's last line; chosen
_ORPHAN_SECONDS = 5.0  # chosen: what the kernel may take to end a process that was killed
# multiprocessing asks for the exit codes of all children when it starts one, and each can be read once: two threads
# that read one at the same moment would take it for lost. No thread starts a child while another replaces the server.
_EXIT_CODES = threading.RLock()
# The names of the variables that this process has, or had, and those of its creators: the server may have any of them.
_variables: set[str] = set()


def prepare_fork_server(modules: list[str], sockets: Path | None = None) -> None:
    """Leave a fork server running that imports `modules` before its first child; it may be imported by now or not.

    sockets: where multiprocessing makes its folder, if this process has none yet; by default among temporary files.
    """
    _variables.update(os.environ)
    forkserver.set_forkserver_preload(modules)
    _place_sockets(sockets)
    _ensure_server()


class ChildProcess:
    """A process that runs `target(*args)` with this process's variables of now. Unlike multiprocessing's it does not
    outlive the server unnoticed: if its exit code is lost, it is killed.

    lines: what it writes to stdout and stderr. orphan_signal: what ends it when this process is gone. context: `fork`
    starts it from this process instead of the server. Threads do not survive that, so TensorFlow must not have computed
    anything here.
    """

    def __init__(
        self,
        target: Callable[..., None],
        args: tuple[Any, ...],
        name: str | None = None,
        orphan_signal: signal.Signals = signal.SIGKILL,
        context: Literal["fork", "forkserver"] = "forkserver",
    ) -> None:
        """Start it. Raises `TransientError` if a fresh server is killed as well."""
        reader, writer = Pipe(duplex=False)
        _variables.update(os.environ)
        with reader, writer:
            environment = dict(os.environ), set(_variables)
            self._process = _start((target, args, writer, orphan_signal, *environment), name, context)
            self.lines: IO[str] = os.fdopen(os.dup(reader.fileno()), encoding="utf-8", errors="replace")
        self.pid = self._process.pid or 0
        self._start_time = start_time(self.pid)
        self._orphan_ended = False

    @property
    def sentinel(self) -> int:
        """A file descriptor to wait on until the process has ended."""
        return int(self._process.sentinel)

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs, LOST if it and the server were killed."""
        with _EXIT_CODES:
            code: int | None = self._process.exitcode
        if code == LOST and not self._orphan_ended:
            self._end_orphan()
        return code

    def is_alive(self) -> bool:
        """Return True if it runs."""
        return self.code is None

    def join(self, seconds: float | None = None) -> None:
        """Wait until the process has ended, at most `seconds`."""
        connection.wait([self.sentinel], seconds)
        with _EXIT_CODES:
            self._process.join(0)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._process.terminate()

    def interrupt(self) -> None:
        """Send it SIGINT."""
        if self.is_alive():
            os.kill(self.pid, signal.SIGINT)

    def kill(self, grace_seconds: float = 0.0) -> None:
        """Leave nothing of it running, after at most `grace_seconds` in which it may end by itself."""
        self.join(grace_seconds)
        if self.is_alive():
            self._process.kill()
            self.join()
        _ = self.code  # an orphan goes too

    def kill_group(self) -> None:
        """Leave none of the processes running that it started, as far as they stayed in its session's first group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _end_orphan(self) -> None:
        """Kill what may live on without the server; process 1 becomes its parent, and waits for it."""
        self._orphan_ended = True
        end = time.monotonic() + _ORPHAN_SECONDS
        while start_time(self.pid) == self._start_time and time.monotonic() < end:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
            if not self._start_time:  # this system has no /proc
                return
            time.sleep(0.01)


def start_program(
    command: list[str],
    environment: dict[str, str],
    folder: Path | None = None,
    own_session: bool = True,
    first: Callable[[], None] | None = None,
) -> subprocess.Popen[str]:
    """Start `command` outside of the fork server; its stdout has all that it writes.

    folder: it works in, by default this process's. first: what the new process calls before anything else.
    """
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment | {"PYTHONIOENCODING": "utf-8:backslashreplace"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=own_session,
        preexec_fn=first,
    )


class ProgramFailed(Exception):
    """A program ended with another status than 0; the message is the last line of its stderr."""


def program_output(command: list[str]) -> str:
    """Return the stdout of `command`, which is killed when this process ends. Raises `ProgramFailed`."""
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=end_with_parent()
    )
    if ended.returncode:
        last = ended.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise ProgramFailed(last[0][:_LONGEST_LINE])
    return ended.stdout


def end_with_parent() -> Callable[[], None] | None:
    """Return a preexec hook that kills the child when its parent dies, whatever ends that (Linux only, otherwise None).

    The kernel takes the thread that forks for the parent.
    """
    if sys.platform != "linux":
        return None
    library, parent = ctypes.CDLL(None, use_errno=True), os.getpid()

    def ask_kernel() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the kernel knew
            os.kill(os.getpid(), signal.SIGKILL)

    return ask_kernel


def end_programs(programs: Iterable[subprocess.Popen[str]], grace_seconds: float) -> None:
    """Send SIGTERM to `programs`, and kill those that have not ended after `grace_seconds`."""
    programs, end = list(programs), time.monotonic() + grace_seconds
    for program in programs:
        program.terminate()
    for program in programs:
        with suppress(subprocess.TimeoutExpired):
            program.wait(max(0.1, end - time.monotonic()))
        program.kill()
        program.wait()


def describe_exit(code: int) -> str:
    """Describe an exit `code`, as the end of a sentence."""
    if code == LOST:
        return "was killed, or the fork server that had started it"
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL)"
    return f"ended with {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"


def start_time(process: int) -> str:
    """Return the start time of `process` in kernel ticks, or '' if none runs. Process ids are reused.

    One that has ended, but whose parent has not asked how, runs no more.
    """
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return ""


def _start(args: tuple[Any, ...], name: str | None, context: Literal["fork", "forkserver"]) -> Any:
    def start() -> Any:
        multiprocessing_context: Any = multiprocessing.get_context(context)
        process = multiprocessing_context.Process(target=_run, args=args, name=name)
        with _EXIT_CODES:
            if context == "forkserver":
                _ensure_server()
            try:
                with _main_hidden():
                    process.start()
            except lost:
                _leave_inherited_server()
                raise
        return process

    # Starts count and not seconds: the machine may stall, or be suspended, in the moment of a single kill.
    lost = (EOFError, ConnectionError)
    for pause in _PAUSES:
        with suppress(*lost):
            return start()
        time.sleep(pause)
    try:
        return start()
    except lost as error:
        raise TransientError(
            f"{name or 'a process'}: could not be started, the fork server was killed again and again. "
            "Run the same command again; if it happens again, give it more memory."
        ) from error


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Have multiprocessing find no main module while a process is started, which it would run again in the process.

    A person's script that calls `trainyard.run` would train once more there, and KFP's would be imported for seconds.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _ensure_server() -> None:
    server: Any = forkserver._forkserver
    if server._forkserver_pid is None and server._forkserver_address is not None:
        # A child of a fork server: multiprocessing means to reuse that one, and would start another (seen with
        # CPython 3.11), which imports TensorFlow again.
        server.ensure_running = resource_tracker.ensure_running
        return
    _place_sockets()
    resource_tracker.ensure_running()  # it would let SIGTERM through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_inherited_server() -> None:
    """Have the next start launch a server of this process, if it used that of its parent, which was killed."""
    server: Any = forkserver._forkserver
    if server._forkserver_pid is None and server._forkserver_address is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_address = server._forkserver_alive_fd = None


def _place_sockets(folder: Path | None = None) -> None:
    """Let multiprocessing make its folder, once a process, in `folder`; in /tmp if that is too long for a socket."""
    default = tempfile.gettempdir()
    wanted = str(folder or default)
    if len(os.fsencode(wanted)) > _LONGEST_FOLDER:
        wanted = "/tmp"  # noqa: S108 - multiprocessing creates its own folder there
    if wanted == default:
        return
    tempfile.tempdir = wanted
    try:
        util.get_temp_dir()
    finally:
        tempfile.tempdir = default


def _run(
    target: Callable[..., None],
    args: tuple[Any, ...],
    output: connection.Connection,
    orphan_signal: signal.Signals,
    environment: dict[str, str],
    variables: set[str],
) -> None:
    os.setsid()  # Ctrl-C reaches the parent alone, which passes it on once
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    for stream in (sys.stdout, sys.stderr):  # `lines` reads UTF-8, whatever the terminal of the parent is
        if isinstance(stream, io.TextIOWrapper):
            # Before the pipe comes, in which a stream that began as a file cannot seek.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
        os.dup2(output.fileno(), stream.fileno())
    output.close()
    _variables.update(variables)
    for name in variables - environment.keys():
        os.environ.pop(name, None)
    os.environ.update(environment)
    _end_with_creator(orphan_signal)
    target(*args)


def _end_with_creator(orphan_signal: signal.Signals) -> None:
    """Have `orphan_signal` sent to this process when the one that created it dies; SIGKILL to its whole group.

    The kernel's signal of a parent's death is of no use here: the parent is the fork server, which lives as long as one
    of its children. So the kernel watches the pipe whose other end the creator alone holds. A thread would not do:
    TensorFlow holds the interpreter's lock while it connects to a worker, for ever if that is gone.
    """
    creator = multiprocessing.parent_process()
    if creator is None:
        return
    sentinel, group = creator.sentinel, orphan_signal == signal.SIGKILL
    if sys.platform == "linux":
        fcntl.fcntl(sentinel, fcntl.F_SETOWN, -os.getpid() if group else os.getpid())
        fcntl.fcntl(sentinel, fcntl.F_SETSIG, orphan_signal)
        fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | fcntl.FASYNC)
        if connection.wait([sentinel], 0):  # it died before the kernel watched
            _end_orphan(orphan_signal)
    else:
        threading.Thread(target=lambda: connection.wait([sentinel]) and _end_orphan(orphan_signal), daemon=True).start()


def _end_orphan(orphan_signal: signal.Signals) -> None:
    # What it has started, a recipe's own program say, goes with it: nobody is left who would call `kill_group`.
    send = os.killpg if orphan_signal == signal.SIGKILL else os.kill
    send(os.getpid(), orphan_signal)
