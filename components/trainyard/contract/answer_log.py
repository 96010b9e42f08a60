"""The description of the files in a server's log of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Self

from pydantic import ValidationError, model_validator

from trainyard.contract.document import FrozenModel
from trainyard.errors import DataError

METADATA = b"trainyard.answers"
"""The key of the metadata of a Parquet file under which its `AnswersDescription` is."""

FORMAT: Final = "parquet"
"""The format of the files."""

HOUR = "%Y-%m-%dT%H"
"""The hour in UTC with which the name of a file starts."""

PROBABILITIES = "probabilities"


class AnswersDescription(FrozenModel):
    """Describes a file of answers, also after its version was pruned.

    version, folder, digest: of the model. labels: the classes in the order of their `PROBABILITIES`, None of a model
    that predicts numbers. label_separator, thresholds and targets: as of `PushedModel`. own: the column of each thing
    that the server adds: `id`, `time`, `version`, `shadow` and the answer. left_out: inputs that are not in the file,
    such as private ones. shadow: the version was not the one that served.
    """

    version: int
    folder: str
    digest: str
    labels: list[str] | None
    label_separator: str | None
    thresholds: dict[int, float]
    targets: list[str] | None
    own: dict[str, str]
    left_out: list[str]
    shadow: bool = False

    @model_validator(mode="after")
    def _has_its_columns(self) -> Self:
        needed = {"id", "time", "version", *answer_names(self.labels, self.targets)}
        if self.own.keys() - {"shadow"} != needed:
            raise ValueError(f"own: is not of {', '.join(sorted(needed))}")
        return self

    @classmethod
    def from_metadata(cls, metadata: Mapping[bytes, bytes] | None, file: str) -> AnswersDescription | None:
        """Return the description in the metadata of the Parquet file `file`, None if it is of other data.

        Raises `DataError` if it is of another form.
        """
        text = (metadata or {}).get(METADATA)
        try:
            return cls.model_validate_json(text) if text else None
        except ValidationError as error:
            raise DataError(
                f"{file}: another version of Trainyard logged these answers, or the file was edited. Leave it out."
            ) from error

    @property
    def predictions(self) -> list[str]:
        """The columns of the predicted class or numbers."""
        return [column for name, column in self.own.items() if name.startswith("prediction")]


def answer_names(labels: Sequence[str] | None, targets: Sequence[str] | None) -> list[str]:
    """Return the names of the columns of an answer."""
    if labels is not None:
        return ["prediction", PROBABILITIES]
    return [f"prediction_{target}" for target in targets] if targets else ["prediction"]


def own_columns(names: Sequence[str], inputs: Sequence[str]) -> dict[str, str]:
    """Return the column of each of `names`; one with the name of an input has an underscore at its end.

    >>> own_columns(["id", "time"], ["time"])
    {'id': 'id', 'time': 'time_'}
    """
    columns: dict[str, str] = {}
    for name in names:
        column = name
        while column in inputs or column in columns.values():
            column += "_"
        columns[name] = column
    return columns
