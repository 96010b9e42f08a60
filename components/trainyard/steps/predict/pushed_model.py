"""The inputs and outputs of a pushed model, read from its version without TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from trainyard.contract import version
from trainyard.contract.artifacts.evaluate import thresholds_by_id
from trainyard.contract.pushed_versions import candidate, serving_version, split_name
from trainyard.contract.version import EXTRA, PREPROCESSING, Champion, champion
from trainyard.errors import DataError
from trainyard.graph import remedy
from trainyard.quality.decoding import PixelForm
from trainyard.readers.table_file import Dialect
from trainyard.spec.columns import Encoding, Quote
from trainyard.storage import storage
from trainyard.values.zones import DEFAULT_ZONE


class _Lenient(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)


class RawColumn(_Lenient):
    """The recipe's entry of a column."""

    type: Literal["numeric", "category", "date", "text"]
    hour: bool = False
    separator: str | None = None
    missing: tuple[str, ...] = ()


class Learned(_Lenient):
    """The learned constants of a column; vocabulary: a file of its values or words, in which `missing` may be."""

    vocabulary: str | None = None
    missing: str | None = None


class RawInput(_Lenient):
    """One input of the serving signature; column: what the recipe calls it, None if its own module transforms it."""

    name: str
    dtype: Literal["float32", "int64", "string"]
    column: RawColumn | None = None
    learned: Learned | None = None

    @property
    def vocabulary(self) -> str | None:
        """The file of the values that have an id."""
        return self.learned.vocabulary if self.learned else None

    @property
    def is_date(self) -> bool:
        """True if it is a day, YYYY-MM-DD."""
        return self.column is not None and self.column.type == "date"


class _Image(_Lenient):
    channels: Literal[1, 3]
    white_level: float | None = None


class _Preprocessing(_Lenient):
    transform: Literal["columns", "image", "module"]
    inputs: list[RawInput] = Field(alias="raw_features")
    image: _Image | None = None
    label_separator: str | None = None
    thresholds: dict[str, float] = {}
    quote: Quote = '"'
    encoding: Encoding = "utf-8"
    skip_rows: tuple[int, ...] = ()
    comment: str | None = None
    comma_numbers: tuple[str, ...] = ()
    absent_columns: Literal["refused", "missing"] = "refused"
    time_zone: str = DEFAULT_ZONE


class PushedModel(_Lenient):
    """The version in `folder`. labels: the classes in the order of their ids, None of a model that predicts numbers.

    label_separator: stands between the classes of one answer, if it may have several. thresholds: pairs of a class id
    and its decision threshold. targets: the names of the numbers, if there are several. pixels: of the images that it
    takes; None if it takes the columns `inputs`. dialect: of CSV files, whose delimiter each file says. may_lack:
    files may lack some inputs. time_zone: in which days of times with an offset are counted.
    """

    folder: str
    inputs: tuple[RawInput, ...]
    labels: tuple[str, ...] | None = None
    label_separator: str | None = None
    thresholds: tuple[tuple[int, float], ...] = ()  # a model is hashed
    targets: tuple[str, ...] | None = None
    pixels: PixelForm | None = None
    dialect: Dialect = Dialect(None)
    may_lack: bool = False
    time_zone: str = DEFAULT_ZONE

    def required(self, key: str | None, extras: Sequence[str] = ()) -> list[str]:
        """Return the columns to read: the inputs, `key` and `extras`, each once."""
        return list(dict.fromkeys([*(feature.name for feature in self.inputs), *([key] if key else []), *extras]))


def find_model(folder: str) -> PushedModel:
    """Return the model that `version_folder` finds. Raises `DataError` as well if Trainyard did not push it."""
    return open_model(version_folder(folder))


def version_folder(folder: str) -> str:
    """Return `folder` if it is a pushed version, else the version that serves of a folder of versions.

    `folder`@NAME is the version of an alias or a number. Raises `DataError` if there is none, `ConfigurationError` for
    an unknown name.
    """
    names = storage.children(folder)
    if version.SERVED in names:
        return folder
    best = champion(folder) if Champion.file in names else None
    if best is not None:
        return best.path
    versions, name = split_name(folder)
    if name and not names:
        return serving_version(versions, name)
    if (waiting := candidate(folder, best)) is not None:
        raise DataError(f"{folder}: no version serves, and version {waiting.version} waits for approval. Approve it.")
    raise DataError(
        f"{folder}: no model. Name the folder of a pushed version, which holds {version.SERVED}, a folder of versions "
        f"with its {Champion.file}, or a recipe."
    )


def open_model(folder: str) -> PushedModel:
    """Return the inputs and outputs of the version in `folder`. Raises `DataError` if Trainyard did not push it."""
    name = f"{EXTRA}/{PREPROCESSING}"
    if storage.committed(folder) is None:
        raise DataError(
            f"{folder}: no manifest, so Trainyard did not push it, or it was copied in part. Copy the whole folder, or "
            "name a version that `push` wrote."
        )
    text = storage.read(folder, name, remedy("push"))
    if text is None and storage.read(folder, f"{EXTRA}/{version.METRICS}", remedy("push")) is not None:
        raise DataError(f"{folder}: a custom program trained it, and its files are for that program's server.")
    if text is None:
        raise DataError(f"{folder}: no {name}, so Trainyard did not push it. Name a version that `push` wrote.")
    try:
        document = _Preprocessing.model_validate_json(text)
        labels, targets = version.names(folder, version.LABELS), version.names(folder, version.TARGETS)
        thresholds = thresholds_by_id(document.thresholds, labels or [])
    except ValueError as error:  # pydantic's too
        raise DataError(f"{folder}/{name}: another version of Trainyard wrote it. Push the model again.") from error
    takes_images = document.image is not None or [
        (feature.name, feature.dtype, feature.column) for feature in document.inputs
    ] == [("image", "string", None)]
    return PushedModel(
        folder=folder,
        inputs=tuple(document.inputs),
        labels=None if labels is None else tuple(labels),
        label_separator=document.label_separator,
        thresholds=tuple(thresholds.items()),
        targets=None if targets is None else tuple(targets),
        pixels=_pixels(document.image) if takes_images else None,
        dialect=Dialect(
            None, document.quote, document.encoding, document.skip_rows, document.comment, document.comma_numbers
        ),
        may_lack=document.absent_columns == "missing",
        time_zone=document.time_zone,
    )


def _pixels(image: _Image | None) -> PixelForm:
    return PixelForm(image.channels, image.white_level) if image else PixelForm(3)
