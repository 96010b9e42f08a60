"""The one table of exit codes, and the errors that carry them.

The CLI, every step, a Job's podFailurePolicy, the supervisor and `explain` read this table, so that a failure keeps
its class wherever it is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from enum import IntEnum
from traceback import walk_tb
from typing import Any, TypeVar

from trainyard.escape import one_line

RECIPE_PACKAGE = "trainyard_recipe"
"""The package of the recipe's Python files, and the folder that holds them."""

_T = TypeVar("_T")


class ExitCode(IntEnum):
    """The exit codes of Trainyard's processes."""

    DONE = 0
    USAGE = 2
    DATA = 10
    CONFIGURATION = 20
    TRANSIENT = 30
    INFRASTRUCTURE = 40
    BUG = 50
    REFUSED = 60
    PEER_LOST = 75
    INTERRUPTED = 130
    PREEMPTED = 143


class TrainyardError(Exception):
    """Faults that a person can act on, a sentence each: where, what is wrong, what is allowed, what to do.

    A sentence is one line. It may repeat text that comes from data, so characters that act on a terminal are escaped.
    """

    exit_code: ExitCode = ExitCode.BUG

    def __init__(self, *sentences: object) -> None:
        super().__init__(*map(one_line, sentences))

    def __str__(self) -> str:
        return "\n".join(self.args)


class DataError(TrainyardError):
    """The data cannot be used as they are."""

    exit_code = ExitCode.DATA


class ConfigurationError(TrainyardError):
    """A recipe, an environment or an option is wrong."""

    exit_code = ExitCode.CONFIGURATION


class CommandFailed(ConfigurationError):
    """A training program of the recipe's own failed; in a gang perhaps because another worker was lost."""


class TransientError(TrainyardError):
    """Something was unreachable or busy; the same command may succeed later."""

    exit_code = ExitCode.TRANSIENT


class InfrastructureError(TrainyardError):
    """A disk, a permission or a device is wrong and stays wrong until somebody changes it."""

    exit_code = ExitCode.INFRASTRUCTURE


class GateRefused(TrainyardError):
    """The gate refused the model, and the caller asked for a blessed one."""

    exit_code = ExitCode.REFUSED


class Cancelled(TrainyardError):
    """A person ended the run."""

    exit_code = ExitCode.INTERRUPTED


class PeerLost(TrainyardError):
    """Another worker of the gang is lost: all workers must start again."""

    exit_code = ExitCode.PEER_LOST


class Preempted(TrainyardError):
    """The process got SIGTERM and has saved what it could."""

    exit_code = ExitCode.PREEMPTED
    SENTENCE = "stopped by SIGTERM. Run the same command again to resume."

    def __init__(self, message: str = SENTENCE) -> None:
        super().__init__(message)


def known_code(number: int | None, otherwise: _T) -> ExitCode | _T:
    """Return the code of the table that `number` is, `otherwise` if it is none."""
    return otherwise if number is None or number not in set(ExitCode) else ExitCode(number)


def bug_sentence(error: BaseException) -> str:
    """Return the sentence about an unexpected `error`, without its full stop."""
    return f"{type(error).__name__}: {one_line(error)}. This is a fault of Trainyard"


def failure_fields(error: TrainyardError) -> dict[str, Any]:
    """Return the fields for `error` in events and messages, from which `from_code` rebuilds it."""
    return {"code": int(error.exit_code), "error": type(error).__name__, "message": str(error)}


def from_code(code: int, message: str, name: str = "") -> TrainyardError:
    """Return the error that a process recorded with its exit `code` and the `name` of its class.

    If no class of that name has the code, it is of the first that has; of no class of ours if there is none.
    """
    named = from_name(name, message)
    if named.exit_code == code:
        return named
    classes = {int(kind.exit_code): kind for kind in TrainyardError.__subclasses__()}
    return classes.get(code, TrainyardError)(*message.split("\n"))


def from_name(name: str, message: str) -> TrainyardError:
    """Return the error of the class `name`; of no class of ours if that is none."""
    kind = next((kind for kind in _below(TrainyardError) if kind.__name__ == name), TrainyardError)
    return kind(*message.split("\n"))


def _below(kind: type[TrainyardError]) -> Iterator[type[TrainyardError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)


def listed(items: Sequence[str], limit: int, separator: str = ", ") -> str:
    """Return the first `limit` of `items` for a sentence, and how many more there are.

    >>> listed(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f"{separator.strip(', ')} and {len(items) - limit} more" if len(items) > limit else ""
    return separator.join(items[:limit]) + more


def module_line(error: BaseException) -> str:
    """Return ' (pets.py:8)', where `error` left the recipe's files, or an empty string if it is not of there."""
    files = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    places = [(file.rpartition(f"/{RECIPE_PACKAGE}/")[2], line) for file, line in files if RECIPE_PACKAGE in file]
    return f" ({places[-1][0]}:{places[-1][1]})" if places else ""


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return ' Did you mean X?' for the nearest of `known`, '' if no name is as similar as `cutoff`."""
    by_letters = {other.lower(): other for other in known}
    near = get_close_matches(name.lower(), by_letters, 1, cutoff)
    return f" Did you mean '{by_letters[near[0]]}'?" if near else ""
