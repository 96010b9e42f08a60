"""The base of every document between two steps."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from trainyard.errors import DataError
from trainyard.graph import remedy
from trainyard.storage import storage

Split = Literal["train", "eval", "test"]
SPLITS: tuple[Split, ...] = ("train", "eval", "test")


def _with_zone(time: str) -> str:
    if time and datetime.fromisoformat(time).tzinfo is None:
        raise ValueError("the time has no zone")
    return time


Time = Annotated[str, AfterValidator(_with_zone)]
"""A time in ISO 8601 with its zone; '' if it is unknown."""


class FrozenModel(BaseModel):
    """A frozen part of a document; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Document(FrozenModel):
    """A JSON file with a fixed name in a folder. made_by: the step whose output it describes, if it is that."""

    file: ClassVar[str]
    made_by: ClassVar[str] = ""

    @classmethod
    def read(cls, folder: str) -> Self:
        """Return the document of the committed `folder`; raises `DataError` if there is none of this version."""
        made_by = cls.made_by
        content = storage.read(folder, cls.file, remedy(made_by) if made_by else storage.ADVICE)
        if content is None:
            step, advice = (made_by, f"Run with --from {made_by}.") if made_by else ("step that writes one", "")
            raise DataError(
                f"{folder}: no {cls.file}, so it is no output of {step}, or the file was deleted. {advice}".rstrip()
            )
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            fault = error.errors()[0]
            raise DataError(
                f"{folder}/{cls.file}: another version of Trainyard wrote it "
                f"({'.'.join(map(str, fault['loc']))}: {fault['msg']}). Run the step again."
            ) from error

    def write(self, folder: Path) -> None:
        """Write the document into the (staging) `folder`."""
        (folder / self.file).write_text(self.model_dump_json(indent=1), encoding="utf-8")
