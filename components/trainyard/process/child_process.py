"""Child processes: each in its own session, its output in a pipe, and ended when its parent dies.

They are forked by a fork server, which has imported what is slow:

    this process ── asks for a child ──▶ fork server     imports the modules, then only forks
         │                                    │ fork
         ├──── the call ────────────────▶  keeper        the child's parent: waits for it, and ends it when the process
         │◀─── process id, exit code ─────    │ fork     that asked is gone
         └◀─── lines of stdout, stderr ──  child         runs target(*args), and may ask the server for children too

All that ask share one Unix socket to the server. A request is one byte and three descriptors: the keeper's end of a new
connection, the pipe for the child's output, and the shared socket for the child. The call follows through the
connection, pickled; the keeper answers with the process id and, later, the exit code. Without an exit code its end
means that the keeper was killed, and its child with it.

The server and the keepers get no SIGTERM, which `timeout` and others send to every process of a group. A server that
is killed all the same costs its children nothing; the next start replaces it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import IO, Any, NoReturn

from trainyard.errors import TransientError

LAST_LINES_SECONDS = 5.0
"""Chosen: for a thread to read what the pipe of an ended process holds."""
LOST = 255
"""The exit code of a child that was lost together with its keeper, so that it is unknown."""

_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6, 2.0)  # chosen; seconds after each start that failed
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LONGEST_LINE = 300  # characters of a program's last line; chosen
_BLOCKED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}  # by server and keepers, so that they outlive their children
_NUMBER = 10  # bytes of a process id or an exit code, in decimal


def prepare_fork_server(modules: list[str], fork: bool = False) -> None:
    """Leave a fork server running that imports `modules` before its first child, unless this process has one.

    fork: this process has imported `modules`, and the server is forked from it. Threads do not survive that, so
    TensorFlow must not have computed anything here.
    """
    _current_server(modules, fork)


class ChildProcess:
    """A process that runs `target(*args)`, which are pickled, with this process's variables and folder of now.

    lines: what it writes to stdout and stderr. sentinel: a file descriptor to wait on until the process has ended.
    orphan_signal: what ends it when this process is gone; SIGKILL ends its group too.
    """

    def __init__(
        self,
        target: Callable[..., None],
        args: tuple[Any, ...],
        name: str = "a process",
        orphan_signal: signal.Signals = signal.SIGKILL,
    ) -> None:
        """Start it. Raises `TransientError` if a fresh fork server is killed as well."""
        call = pickle.dumps((target, args))
        request = pickle.dumps((orphan_signal, dict(os.environ), str(Path.cwd()), sys.path, call))
        reader, writer = os.pipe()
        self.lines: IO[str] = os.fdopen(reader, encoding="utf-8", errors="replace")
        try:
            self._keeper, self.pid = _start_child(request, writer, name)
        finally:
            os.close(writer)
        self.sentinel = self._keeper.fileno()

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs, LOST if its keeper was killed."""
        try:
            return int(self._keeper.recv(_NUMBER, socket.MSG_PEEK | socket.MSG_DONTWAIT) or LOST)  # others read it too
        except BlockingIOError:
            return None

    def is_alive(self) -> bool:
        """Return True if it runs."""
        return self.code is None

    def join(self, seconds: float | None = None) -> None:
        """Wait until the process has ended, at most `seconds`."""
        connection.wait([self.sentinel], seconds)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._send(signal.SIGTERM)

    def interrupt(self) -> None:
        """Send it SIGINT."""
        self._send(signal.SIGINT)

    def kill(self, grace_seconds: float = 0.0) -> None:
        """Leave nothing of it running, after at most `grace_seconds` in which it may end by itself."""
        self.join(grace_seconds)
        self._send(signal.SIGKILL)
        self.join()

    def kill_group(self) -> None:
        """Leave none of the processes running that it started, as far as they stayed in its session's first group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _send(self, signal_: signal.Signals) -> None:
        if self.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal_)


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
        return "was killed, or the process that waited for it"
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


@dataclass(frozen=True)
class _ForkServer:
    """A fork server that has imported `modules`. requests: this process's end of the shared socket."""

    modules: list[str]
    requests: socket.socket
    process: subprocess.Popen[bytes] | None = None  # for the process that has executed it

    @classmethod
    def start(cls, modules: list[str], fork: bool = False) -> _ForkServer:
        """Start a server as `prepare_fork_server` does."""
        ours, theirs = socket.socketpair()
        process, before = None, signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        try:
            if not fork:
                program = f"import sys; sys.path[:] = {sys.path!r}; from trainyard.process import child_process; "
                program += f"child_process.run_fork_server({theirs.fileno()}, {modules!r})"
                command = [sys.executable, "-c", program]
                process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
            elif not os.fork():
                ours.close()
                _serve(theirs, modules, {})
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        return cls(modules, ours, process)

    def start_child(self, request: bytes, output: int) -> tuple[socket.socket, int]:
        """Return the connection to the keeper of a new child, and the child's process id.

        Raises `ConnectionError` if the server was killed.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self.requests, [b"\0"], [theirs.fileno(), output, self.requests.fileno()])
            ours.sendall(request)
            if number := ours.recv(_NUMBER):
                return ours, int(number)
            raise ConnectionResetError
        except BaseException:  # a signal's too: the keeper ends the child if it has started one
            ours.close()
            raise


def _start_child(request: bytes, output: int, name: str) -> tuple[socket.socket, int]:
    """Start a child as `_ForkServer.start_child`, from a fresh server if the server was killed."""
    server = None
    # Starts count and not seconds: the machine may stall, or be suspended, in the moment of a single kill.
    for pause in _PAUSES:
        server = _current_server([], killed=server)
        with suppress(ConnectionError):
            return server.start_child(request, output)
        time.sleep(pause)
    raise TransientError(
        f"{name}: could not be started, the fork server was killed again and again. "
        "Run the same command again; if it happens again, give it more memory."
    )


_server: _ForkServer | None = None
_STARTING = threading.Lock()


def _current_server(modules: list[str], fork: bool = False, killed: _ForkServer | None = None) -> _ForkServer:
    """Return this process's server, which is started if there is none, or only the `killed` one."""
    global _server
    with _STARTING:
        if _server is None or _server is killed:
            _server = _ForkServer.start(_server.modules if _server else modules, fork)
        return _server


def run_fork_server(requests: int, modules: list[str]) -> NoReturn:
    """Run the program of a fork server that has imported `modules`. requests: the socket to read requests from."""
    before = dict(os.environ)
    for module in modules:
        with suppress(Exception):  # the child meets it again
            importlib.import_module(module)
    set_by_imports = {name: value for name, value in os.environ.items() if before.get(name) != value}
    _serve(socket.socket(fileno=requests), modules, set_by_imports)


def _serve(requests: socket.socket, modules: list[str], variables: dict[str, str]) -> NoReturn:
    """Fork a keeper for each of the `requests` until no process is left that could send one.

    variables: what a child has beside those of the process that asks for it.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a keeper
    while True:
        request, files, *_ = socket.recv_fds(requests, 1, 3)
        if not request:
            os._exit(0)
        if not os.fork():
            requests.close()
            answers, output, shared = files
            os.set_inheritable(shared, False)
            _keep(socket.socket(fileno=answers), output, _ForkServer(modules, socket.socket(fileno=shared)), variables)
        for file in files:
            os.close(file)


def _keep(answers: socket.socket, output: int, server: _ForkServer, variables: dict[str, str]) -> NoReturn:
    """Start the child that is asked for, and end with it."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        orphan_signal, environment, folder, path, call = pickle.load(answers.makefile("rb"))  # noqa: S301 - of our own process
        end_with_keeper = end_with_parent()
        child = os.fork()
        if not child:
            answers.close()
            if end_with_keeper:
                end_with_keeper()
            _run(call, output, server, variables | environment, folder, path)
        os.close(output)
        server.requests.close()
        answers.sendall(b"%*d" % (_NUMBER, child))
        threading.Thread(target=_end_with_creator, args=(answers, child, orphan_signal), daemon=True).start()
        _, status = os.waitpid(child, 0)
        answers.sendall(b"%*d" % (_NUMBER, os.waitstatus_to_exitcode(status)))
    finally:
        os._exit(1)


def _end_with_creator(answers: socket.socket, child: int, orphan_signal: signal.Signals) -> None:
    """Send `orphan_signal` to `child` once the process that asked for it is gone, SIGKILL to its whole group."""
    with suppress(ConnectionError):
        answers.recv(1)  # nothing comes but the end
    # What it has started, a recipe's own program say, goes with it: nobody is left who would call `kill_group`.
    for send in (os.killpg, os.kill) if orphan_signal == signal.SIGKILL else (os.kill,):
        with suppress(ProcessLookupError):
            send(child, orphan_signal)


def _run(
    call: bytes, output: int, server: _ForkServer, environment: dict[str, str], folder: str, path: list[str]
) -> NoReturn:
    """Become the child: call its function, and end as the interpreter does."""
    global _server, _STARTING
    os.setsid()  # Ctrl-C reaches the parent alone, which passes it on once
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
    for number, name in ((1, "stdout"), (2, "stderr")):  # `lines` reads UTF-8, whatever the terminal of the parent is
        os.dup2(output, number)
        setattr(sys, name, open(number, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False))  # noqa: SIM115
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    _server, _STARTING = server, threading.Lock()
    sys.path[:], code = path, 0
    try:
        os.chdir(folder)
        target, args = pickle.loads(call)  # noqa: S301 - as above
        target(*args)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - an interrupt too
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
