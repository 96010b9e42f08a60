"""The page at the root of a storage: all runs and versions, with links to their reports."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trainyard import events
from trainyard.contract.pushed_versions import PushedVersion, read_versions
from trainyard.errors import DataError
from trainyard.measured import duration_text
from trainyard.report import local_runs
from trainyard.report.local_runs import LocalRunView
from trainyard.storage import storage

FILE = "index.html"
MOST_RUNS = 1000
"""Runs that are listed. Chosen: the page stays below a megabyte."""

MOST_VERSIONS = 10
"""Versions of a recipe that are listed, besides those that serve or have an alias. Chosen."""

_TRIES = 3  # chosen: another run that ends meanwhile is rare


@dataclass(frozen=True)
class ModelVersions:
    """The versions of a recipe, the newest first. count: all of them. caution: what is wrong with what serves."""

    recipe: str
    versions: list[PushedVersion]
    count: int
    caution: str


def write(root: str) -> None:
    """Write the page of the storage `root`. A fault is logged, because no run fails for want of it.

    The page is written again if a run ended while it was made, so that of two runs the last one lists both. A run that
    also began meanwhile is listed by the next write.
    """
    try:
        named = local_runs.names(root)
        for _ in range(_TRIES):
            runs = local_runs.newest(root, MOST_RUNS, named=named)
            storage.write_text(storage.join(root, FILE), render(root, runs, len(named), models(root)))
            active = [run for run in runs if not run.record]
            if not any(local_runs.view(root, run.recipe, run.name).record for run in active):
                return
    except Exception as error:  # noqa: BLE001 - logged
        events.emit("unrecorded", reason=error)


def write_again(models: str) -> None:
    """Write the page of the storage that holds the folder `models` of a recipe's versions, if it has one."""
    root, _, name = models.rpartition("/")[0].rpartition("/")
    if name and FILE in storage.children(root or "."):
        write(root or ".")


def models(root: str) -> list[ModelVersions]:
    """Return the versions of every recipe below the storage `root` that has some."""
    found = []
    for recipe in storage.children(root):
        folder = storage.join(root, recipe, "models")
        try:
            versions, caution = read_versions(folder, PushedVersion, MOST_VERSIONS)
        except DataError as error:
            versions, caution = [], str(error)
        if versions or caution:
            count = sum(name.isdecimal() for name in storage.children(folder))
            found.append(ModelVersions(recipe, versions, count, caution))
    return found


def render(root: str, runs: list[LocalRunView], count: int, models: list[ModelVersions]) -> str:
    """Render the page. runs: the newest of `count`."""
    page: str = _template().render(
        root=root,
        runs=runs,
        count=count,
        models=models,
        reports={(run.recipe, run.name) for run in runs if run.record.get("report")},
        now=datetime.now(UTC).isoformat(),
    )
    return page


def _link(recipe: str, run: str) -> str:
    return "/".join(map(quote, (recipe, "runs", run, "report.html")))


def _time(text: str) -> str:
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%d %H:%M") if text else "–"


@cache
def _template() -> Any:
    from trainyard.report import pages  # with jinja2

    file = Path(__file__).parent / "index.html.j2"
    return pages.template(file, link=_link, time=_time, duration=duration_text)
