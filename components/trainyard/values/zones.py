"""Time zones by name, from one database on every machine: the package `tzdata`."""

from __future__ import annotations

import datetime
import re
from functools import lru_cache
from pathlib import Path
from zoneinfo import ZoneInfo

DEFAULT_ZONE = "UTC"
_OFFSET = re.compile(r"([+-])([01][0-9]|2[0-3]):([0-5][0-9])")
_NAME = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")


@lru_cache
def time_zone(name: str) -> datetime.tzinfo:
    """Return the time zone `name`: UTC, an offset such as +05:30, or a name such as Asia/Tokyo.

    Raises `ValueError` if there is none of this name.
    """
    if match := _OFFSET.fullmatch("+00:00" if name == DEFAULT_ZONE else name):
        offset = datetime.timedelta(hours=int(match[2]), minutes=int(match[3]))
        return datetime.timezone(-offset if match[1] == "-" else offset)
    try:
        if _NAME.fullmatch(name):
            return _from_database(name)
    except (OSError, ValueError, KeyError):
        pass
    raise ValueError(f"no time zone {name!r}")


def _from_database(name: str) -> ZoneInfo:
    try:
        import tzdata
    except ImportError:  # on a device
        return ZoneInfo(name)
    with (Path(tzdata.__file__).parent / "zoneinfo" / name).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)
