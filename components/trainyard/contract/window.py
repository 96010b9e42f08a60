"""Rolling windows: which folders of data that are kept by day a run reads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta

from trainyard.contract.artifacts.preprocess import Window
from trainyard.errors import ConfigurationError, DataError, listed
from trainyard.spec.recipe import Data

_LISTED = 5
_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_FIRST_YEAR = 1970


def time_of(scheduled: str) -> datetime:
    """Return the ISO time or day `scheduled` in UTC; now if that is ''.

    Now too if KFP has left the pipeline's placeholder for the time as it is, as old servers do.
    Raises `ConfigurationError`.
    """
    if not scheduled or scheduled.startswith("{{"):
        return datetime.now(UTC)
    try:
        time = datetime.fromisoformat(scheduled)
        time = time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(f"'{scheduled[:80]}' is no day. Write it as YYYY-MM-DD.") from error
    if time.year < _FIRST_YEAR:
        raise ConfigurationError(f"'{scheduled[:80]}' is no day of a run. Write one since {_FIRST_YEAR} as YYYY-MM-DD.")
    return time


def day_of(scheduled: str, data: Data) -> str:
    """Return the day YYYY-MM-DD of a run: `scheduled`, or that time's (now if it is '') in `data.time_zone`."""
    time = time_of(scheduled)
    if _DAY.fullmatch(scheduled):
        return scheduled
    return time.astimezone(data.zone).date().isoformat()


def paths(data: Data, day: str) -> dict[str, str]:
    """Return the path of each of the window's days, which end the day before `day`, by the day in the order of time.

    Raises `ConfigurationError` if `day` is none.
    """
    end = date.fromisoformat(day_of(day, data))
    days = [end - timedelta(days=back) for back in range(data.window_days or 0, 0, -1)]
    return {day.isoformat(): _on(day, data.path or "") for day in days}


def require(data: Data, files: Iterable[tuple[str, int]]) -> Window:
    """Return the window of days with `files` files; raises `DataError` if too many days have none."""
    counts = dict(files)
    first, last = min(counts), max(counts)
    missing = [day for day, count in sorted(counts.items()) if not count]
    if len(missing) == len(counts):
        raise DataError(
            f"data.path: {data.path}: no files found on any day from {first} to {last}. "
            "Correct data.path in the recipe."
        )
    if len(missing) > data.max_missing_days:
        raise DataError(
            f"data.path: {data.path}: no files found on {len(missing)} of the {len(counts)} days "
            f"from {first} to {last}: {listed(missing, _LISTED)}. "
            f"data.max_missing_days allows {data.max_missing_days}. "
            "Wait for their data, or allow more."
        )
    return Window(first=first, last=last, missing=missing)


def _on(day: date, pattern: str) -> str:
    # strftime refuses a file's name that is not UTF-8.
    return pattern.replace("%Y", f"{day.year:04}").replace("%m", f"{day.month:02}").replace("%d", f"{day.day:02}")
