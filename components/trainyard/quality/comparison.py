"""What two data sets that are to be compared are like, wherever that is written down."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from trainyard.contract.champion import EXTRA
from trainyard.contract.statistics.drift import Statistics
from trainyard.errors import DataError
from trainyard.quality.inspect import inspect
from trainyard.quality.profile import Profile


def statistics_of(name: str, label: str | None = None) -> Statistics:
    """Return the statistics of `name`: a source as of `inspect`, or what says what one was like.

    That is statistics.json, a folder with one (an output of preprocess, a pushed version), or what
    `trainyard data inspect -o json` wrote. Raises `DataError` if there is nothing of the kind.
    """
    for file in (Path(name), Path(name) / Statistics.file, Path(name) / EXTRA / Statistics.file):
        with suppress(OSError):  # a name too long for a path is no path
            if file.suffix == ".json" and file.is_file():
                return _read(file)
    return inspect(name, label).statistics()


def _read(file: Path) -> Statistics:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}). Check its permissions.") from error
    for kind in (Statistics, Profile):
        try:
            document = kind.model_validate_json(content)
        except ValidationError:
            continue
        return document.statistics() if isinstance(document, Profile) else document
    raise DataError(
        f"{file}: is neither statistics.json of a preprocess step of this version nor what `trainyard data inspect "
        "-o json` writes. Name one of them, or the data themselves."
    )
