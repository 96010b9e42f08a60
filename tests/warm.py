"""Starts the Python processes of tests as forks of a template that has imported TensorFlow: saves 2 to 4 CPU-seconds.

`start()` leaves a template, and `use()` has `subprocess` ask it for `python -m …`, `python -c …`
and scripts. What it forks is a child of the process that asked, with the variables, folder, files, signals, group,
session and command line of one that was executed, and has a template of its own for what it starts in turn. All else
is executed as ever: other programs (and with them what `sh` starts), options of Python or of `Popen` that a fork cannot
follow, and variables that a library reads when it is loaded. Not like in executed processes: all have the template's
seed of hashes, and they end without the destructors of libraries.
"""

from __future__ import annotations

import _posixsubprocess
import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import os
import pickle
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from trainyard.contract.provenance import provenance
from trainyard.graph import STEPS
from trainyard.spec import recipe as recipes
from trainyard.steps.train import devices
from trainyard.steps.train.gang import supervisor

COMMON = [
    "trainyard.data",
    "tensorflow",
    "keras",
    "trainyard.runtime.step",
    "trainyard_control.cli.main",
    "trainyard.steps.train.run",
    "trainyard.steps.train.session",
    "tensorboard.summary",
]
JAX = {"TRAINYARD_ENGINE": "jax", "KERAS_BACKEND": "jax"}
IMPORTED_FOR_JAX = [*COMMON, "trainyard.steps.train.engines.jax_engine"]
IMPORTED = [
    *COMMON,
    "trainyard.steps.train.engines.tensorflow_engine",
    "apache_beam",
    "tensorflow_transform.beam",
    "trainyard.steps.preprocess.prepare",
    "sklearn.ensemble",
    "trainyard.serving.server",
    "trainyard_control.api.run",
    "kfp.dsl.executor",
    *(f"trainyard.steps.{step}.run" for step in ("preprocess", "evaluate", "export", "push")),
]
# Variables that are read when a library is loaded, but for those of TensorFlow and Python that are read later.
AT_START = (
    "TRAINYARD_ENGINE",
    "TF_",
    "XLA_",
    "KERAS_",
    "JAX_",
    "PYTHON",
    "LD_",
    "OMP_",
    "OPENBLAS_",
    "LC_",
    "LANG",
    "GRPC_",
    "CUDA_",
)
LATER = {"TF_CONFIG", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "PYTHONIOENCODING", "PYTHONUNBUFFERED"}
LONGEST = 1 << 20  # bytes of a request
ROOM = 8000  # characters for the command line of a process, in place of the template's
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
LIBC = ctypes.CDLL(None, use_errno=True)
execute = _posixsubprocess.fork_exec


class Template:
    """Asks a template for processes. variables: those it was started with; optional: set by what it has imported.

    process: the template, if this process has executed it.
    """

    def __init__(
        self,
        connection: socket.socket,
        variables: dict[str, str],
        optional: set[str],
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.connection, self.variables, self.optional, self.process = connection, variables, optional, process
        self.owner = os.getpid()
        self.lock = threading.Lock()

    def fits(self, environment: dict[str, str]) -> bool:
        """Return True if its libraries have read what those of a process with `environment` would read."""
        own, asked = (
            {name: value for name, value in variables.items() if name.startswith(AT_START) and name not in LATER}
            for variables in (self.variables, environment)
        )
        return {**{name: own[name] for name in self.optional & own.keys()}, **asked} == own

    def fork(self, request: dict[str, Any], files: list[int]) -> int | None:
        """Return the id of the new process, which the kernel gives to this one when its own parent ends.

        A template that was killed is started again, but for one that was forked: None then.
        """
        with self.lock:
            pid = self._ask(request, files)
            if pid is None and self.process:
                self.end()
                again = _started(self.variables)
                self.connection, self.process = again.connection, again.process
                pid = self._ask(request, files)
            return pid

    def end(self) -> None:
        self.connection.close()
        if self.process:
            self.process.wait()

    def _ask(self, request: dict[str, Any], files: list[int]) -> int | None:
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(self.connection, [pickle.dumps(request)], files)
            return int(self.connection.recv(64) or b"0") or None
        except OSError:
            return None
        except BaseException:  # a signal's, as of a test that takes too long: the next answer would be to this request
            self.connection.close()
            raise
        finally:
            LIBC.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


templates: list[Template] = []


def start(**variables: str) -> Callable[[], None]:
    """Start a template for this process's own processes that have `variables`; returns what ends it."""
    template = _started({**os.environ, **variables})
    templates.append(template)
    return template.end


def _started(variables: dict[str, str]) -> Template:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, str(theirs.fileno()), " " * ROOM]
    # Read by the C library when a process starts, and set by supervisors for their training processes.
    environment = variables | supervisor.HEAP_VARIABLES
    with theirs:
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
    return Template(ours, *pickle.loads(ours.recv(LONGEST)), process)


def use(function: Callable[..., int] | None = None) -> None:
    """Have `subprocess` start processes by `function`, by default from the template."""
    _posixsubprocess.fork_exec = subprocess._fork_exec = function or fork_exec  # type: ignore[attr-defined]


def fork_exec(*given: Any) -> int:
    """Do what `_posixsubprocess.fork_exec` does, whose arguments these are."""
    args, _, close_fds, pass_fds, cwd, env, p2cread, _, _, c2pwrite, _, errwrite, _, errpipe_write = given[:14]
    _restore_signals, new_session, group, gid, gids, uid, umask, preexec_fn = given[14:22]
    words = [os.fsdecode(word) for word in args]
    if words[1:2] == ["-B"] and sys.dont_write_bytecode:
        del words[1]
    environment = dict(os.environ) if env is None else dict(os.fsdecode(pair).split("=", 1) for pair in env)
    if words[0] == "python" and shutil.which("python", path=environment.get("PATH")) == sys.executable:
        words[0] = sys.executable
    dies_with_parent = getattr(preexec_fn, "__qualname__", "") == "end_with_parent.<locals>.ask_kernel"
    fitting = [each for each in templates if each.owner == os.getpid() and each.fits(environment)]
    if (
        not fitting
        or not close_fds
        or not (gid is gids is uid is None and umask == -1)
        or not (preexec_fn is None or dies_with_parent)
        or not _kind(words)
        or words[1] == __file__  # a template
        or "resource_tracker" in words[-1]  # of multiprocessing, which imports nothing
    ):
        return execute(*given)
    streams = [end if end >= 0 else own for own, end in enumerate((p2cread, c2pwrite, errwrite))]
    kept = [number for number in pass_fds if number != errpipe_write]
    request = {
        "parent": os.getpid(),
        "words": words,
        "folder": str(Path(os.fsdecode(cwd or ".")).absolute()),
        "environment": environment,
        "kept": kept,
        "new_session": new_session,
        "group": group,
        "interrupts": signal.getsignal(signal.SIGINT) is not signal.SIG_IGN,
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "cores": os.sched_getaffinity(0),
        "dies_with_parent": dies_with_parent,
    }
    return fitting[0].fork(request, [*streams, *kept]) or execute(*given)


def _kind(words: list[str]) -> str:
    """Return how Python is asked for its program: -m, -c or script; '' if it is no Python, or asked for more."""
    if words[0] == str(Path(sys.executable).with_name("trainyard")):
        return "script"
    if words[0] != sys.executable or len(words) < 2:
        return ""
    return words[1] if words[1] in ("-m", "-c") else "" if words[1].startswith("-") else "script"


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork what is asked for over `connection`: returns the request in each child, and None when nobody can ask."""
    while True:
        text, files, *_ = socket.recv_fds(connection, LONGEST, 64)
        if not text:
            return None
        go_read, go_write = os.pipe()
        id_read, id_write = os.pipe()
        between = os.fork()
        if not between:
            child = os.fork()
            if child:
                os.write(id_write, b"%d" % child)
                os._exit(0)
            for number in (go_write, id_read, id_write):
                os.close(number)
            os.read(go_read, 1)  # until the process between has ended, and the one that asked is the parent
            os.close(go_read)
            connection.close()
            return {**pickle.loads(text), "files": files}
        os.waitpid(between, 0)
        child = int(os.read(id_read, 64))
        for number in (*files, go_read, id_read, id_write):
            os.close(number)
        connection.send(b"%d" % child)
        os.close(go_write)


def _become(request: dict[str, Any], variables: dict[str, str], optional: set[str]) -> socket.socket | None:
    """Make this process what the request asks for; returns, in the process that is its template, who asks there."""
    files, targets = request["files"], [0, 1, 2, *request["kept"]]
    above = max(targets) + 1
    if request["new_session"]:
        os.setsid()
    elif request["group"] >= 0:
        os.setpgid(0, request["group"])
    os.sched_setaffinity(0, request["cores"])
    keep = set()
    templates.clear()
    if not any("run_fork_server" in word for word in request["words"]):  # whose children ask nobody
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if not os.fork():
            for number in (ours.detach(), *files):
                os.close(number)
            return theirs
        theirs.close()
        templates.append(Template(socket.socket(fileno=_move(ours.detach(), above)), variables, optional))
        keep = {templates[0].connection.fileno()}
    moved = [_move(number, above) for number in files]
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in keep.union(moved):
            with suppress(OSError):
                os.close(int(entry.name))
    for number, target in zip(moved, targets, strict=True):
        os.dup2(number, target)
        os.close(number)
    os.chdir(request["folder"])
    set_by_imports = {name: os.environ[name] for name in optional}
    os.environ.clear()
    os.environ.update(set_by_imports | request["environment"])
    if request["dies_with_parent"]:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != request["parent"]:  # it has died meanwhile
        os._exit(255)
    signal.signal(signal.SIGINT, signal.default_int_handler if request["interrupts"] else signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["mask"])
    return None


def _move(number: int, above: int) -> int:
    """Give a file another number, above those that the process is to have."""
    moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, above + 64)
    os.close(number)
    return moved


def _run(words: list[str]) -> None:
    """Run the program of the command line `words` and end as Python does, but for the destructors of libraries."""
    _show(words)
    _open_streams()
    sys.modules["__main__"] = main = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    tempfile.tempdir = None
    sys.modules["numpy"].random.seed()
    try:
        _execute(words, main.__dict__)
        code: Any = 0
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:
        raise  # Python ends by the signal then
    except BaseException:  # noqa: BLE001
        sys.excepthook(*sys.exc_info())
        code = 1
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit((code or 0) & 0xFF)


def _execute(words: list[str], names: dict[str, Any]) -> None:
    sys.orig_argv = words
    if _kind(words) == "-m":
        sys.path[0] = str(Path.cwd())
        sys.argv = ["-m", *words[3:]]
        runpy._run_module_as_main(words[2])  # type: ignore[attr-defined]
    elif _kind(words) == "-c":
        sys.path[0] = ""
        sys.argv = ["-c", *words[3:]]
        exec(words[2], names)
    else:
        sys.argv = words[1:] if words[0] == sys.executable else words
        script = Path(sys.argv[0])
        sys.path[0] = str(script.resolve().parent)
        names["__file__"] = str(script)
        exec(compile(script.read_bytes(), script, "exec"), names)


def _show(words: list[str]) -> None:
    """Have /proc show the command line `words` for this process."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, proc(5)
    line = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - begin - 1]
    ctypes.memmove(begin, line.ljust(end - begin, b"\0"), end - begin)


def _open_streams() -> None:
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    direct = "PYTHONUNBUFFERED" in os.environ
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, f"__{name}__")
        raw: Any = open(number, "wb" if number else "rb", buffering=0 if direct and number else -1, closefd=False)  # noqa: SIM115
        stream = io.TextIOWrapper(
            raw,
            encoding=encoding or before.encoding,
            errors=before.errors if name == "stderr" else errors or ("strict" if encoding else before.errors),
            line_buffering=not direct and (name == "stderr" or os.isatty(number)),
            write_through=direct and number > 0,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _prepare() -> None:
    """Do what each step would do alike: read the sources that its key is of, and measure the device, but shortly."""
    recipe = recipes.load("digits")
    for step in STEPS:
        provenance(recipe, step)
    devices._SECONDS, devices.SIZES["CPU"] = 0.01, (64, 1 << 20)


def _main() -> None:
    for name in supervisor.HEAP_VARIABLES:
        del os.environ[name]
    before = set(os.environ)
    for name in IMPORTED_FOR_JAX if JAX.items() <= os.environ.items() else IMPORTED:
        importlib.import_module(name)
    _prepare()
    gc.freeze()
    variables, optional = dict(os.environ), os.environ.keys() - (before - {"KERAS_BACKEND"})  # which JAX's engine sets
    asking: socket.socket | None = socket.socket(fileno=int(sys.argv[1]))
    assert asking
    asking.send(pickle.dumps((variables, optional)))
    use()
    myself = sys.modules["__main__"]  # lives on when the process has another one
    while asking and (request := _serve(asking)):
        asking = _become(request, variables, optional)
        if not asking:
            _run(request["words"])
    del myself
    os._exit(0)  # what Python does when it ends takes half of a CPU-second with all these modules


if __name__ == "__main__":
    _main()
