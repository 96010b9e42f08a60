"""Reads the profiles of two data sets to compare, from data or from written documents."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from trainyard.contract.champion import EXTRA
from trainyard.contract.statistics.drift import Statistics
from trainyard.errors import DataError
from trainyard.quality.inspect import inspect
from trainyard.quality.profile import Profile


def statistics_of(before: str, now: str, label: str | None = None) -> tuple[Statistics, Statistics]:
    """Return the statistics of `before` and `now`: a source as of `inspect`, or what says what one was like.

    That is statistics.json, a folder with one (an output of preprocess, a pushed version), or what
    `trainyard data inspect -o json` wrote. If `now` lacks the label, as rows do that a server was asked about, nothing
    of `before` is compared with it. Raises `DataError` if there is nothing of the kind.
    """
    old = _described(before, label)
    label = label or (old.label if isinstance(old, Profile) else None)
    new = _described(now, label, is_served=True)
    first = old.statistics(new if isinstance(new, Statistics) else None) if isinstance(old, Profile) else old
    second = new.statistics(old if isinstance(old, Statistics) else None) if isinstance(new, Profile) else new
    if isinstance(new, Profile) and new.label is None:
        features = {name: feature for name, feature in first.features.items() if name != label}
        first = first.model_copy(update={"features": features, "classes": {}})
    return first, second


def _described(name: str, label: str | None, *, is_served: bool = False) -> Profile | Statistics:
    for file in (Path(name), Path(name) / Statistics.file, Path(name) / EXTRA / Statistics.file):
        with suppress(OSError):  # a name too long for a path is no path
            if file.suffix == ".json" and file.is_file():
                return _read(file)
    profile = inspect(name, label, requires_label=not is_served)
    # A guess may name a feature of a model whose label the rows lack.
    return profile.model_copy(update={"label": None, "classes": {}}) if is_served and label is None else profile


def _read(file: Path) -> Profile | Statistics:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}). Check its permissions.") from error
    for kind in (Statistics, Profile):
        with suppress(ValidationError):
            return kind.model_validate_json(content)
    raise DataError(
        f"{file}: is neither statistics.json of a preprocess step of this version nor what `trainyard data inspect "
        "-o json` writes. Name one of them, or the data themselves."
    )
