"""The runs of this machine, and several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from trainyard_control.api.arguments import LOCAL, at_least_one, of_this_machine
from trainyard_control.api.run import Run
from trainyard_control.local import local_runs
from trainyard_control.search import comparison
from trainyard_control.search.comparison import Comparison

ELSEWHERE = "Its runs are on a cluster: see `trainyard runs`."


class Runs(Sequence[Run]):
    """The newest runs of a storage, the newest first. An index is a number, or what names a run in `compare`."""

    def __init__(self, root: str, runs: Sequence[Run] = ()) -> None:
        self._root, self._runs = root, list(runs)

    def __len__(self) -> int:
        return len(self._runs)

    @overload
    def __getitem__(self, index: int | str) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> Runs: ...
    def __getitem__(self, index: int | str | slice) -> Run | Runs:
        if isinstance(index, str):
            return Run.of(local_runs.find(self._root, index))
        return Runs(self._root, self._runs[index]) if isinstance(index, slice) else self._runs[index]

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self._runs))}]"

    def compare(self, *runs: Run | str) -> Comparison:
        """Return runs side by side, by default all of these; a notebook draws it.

        A text is a run's name or folder, or a recipe for its newest run. Raises `ConfigurationError` for fewer than
        two or for one given twice.
        """
        return comparison.compare([self[run] if isinstance(run, str) else run for run in runs or self._runs])


def runs(environment: str = LOCAL, *, count: int = 20, recipe: str = "") -> Runs:
    """Return the newest `count` runs of this machine, of one `recipe` or of all, as `trainyard runs list` has them.

    Raises `ConfigurationError` if the environment's runs are elsewhere.

    >>> import trainyard as ty
    >>> ty.runs(recipe="digits")[:2].compare()  # doctest: +SKIP
    """
    at_least_one("count", count)
    where = of_this_machine(environment, ELSEWHERE)
    return Runs(where.storage, [Run.of(view) for view in local_runs.newest(where.storage, count, recipe)])
