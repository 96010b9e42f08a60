"""The recipe: what to train. It does not depend on hardware; the environment says where."""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args
from zoneinfo import available_timezones

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    model_validator,
)

from trainyard import uris
from trainyard.errors import ConfigurationError, did_you_mean
from trainyard.spec import code, contradictions, devices, documents, formula, packages, plain_yaml, trees
from trainyard.spec.archive import Archive
from trainyard.spec.code import MAX_FILES, Content, FileName
from trainyard.spec.columns import (
    ENDINGS,
    MAX_COLUMNS,
    Category,
    Column,
    Comment,
    Count,
    Date,
    Delimiter,
    Encoding,
    Examples,
    Numeric,
    Quote,
    Separator,
    SkippedRows,
    SplitRows,
    TableName,
    Text,
)
from trainyard.spec.data_schema import ImageSchema, TableSchema, is_schema, load_schema, parse_schema
from trainyard.spec.documents import Strict
from trainyard.spec.formula import Condition, Formula
from trainyard.spec.gates import Gate, Task, ThresholdAim, TimeTo
from trainyard.spec.model import ModelConfig
from trainyard.spec.networks import IMAGENET
from trainyard.spec.packages import (
    MAX_LOCKED,
    MAX_PACKAGES,
    PackageName,
    PackageText,
    PackageVersion,
    RequirementsFile,
    Wheel,
)
from trainyard.spec.schedule import Bounds
from trainyard.spec.train import Train
from trainyard.uris import Output, Source
from trainyard.values.zones import DEFAULT_ZONE, time_zone

# Every number has a least and a greatest value, every text and list a greatest length: tests/unit/test_documents.py
# holds it. If no note says otherwise the greatest are chosen, far beyond what was ever of use.
Fraction = Annotated[float, Field(ge=0, le=1)]
Pixels = Annotated[int, Field(ge=1, le=8192)]
LabelsFile = Annotated[str, Field(max_length=1024, pattern=r"^[^/\x00-\x1f][^\x00-\x1f]*\.[ct]sv$")]
ImageStore = Literal["original", "training_size", "raw"]
NAME = r"^[a-z]([a-z0-9-]{0,39}[a-z0-9])?$"
"""The form of a recipe's name."""

Prose = Annotated[str, Field(max_length=2000, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f]*$")]


_BUNDLED = {"digits": "image_folder", "breast_cancer": "csv"}


def _no_boolean(value: object) -> object:
    """Reject booleans, which Python accepts as integers."""
    return str(value) if isinstance(value, bool) else value


def _is_time_zone(name: str) -> str:
    try:
        time_zone(name)
    except ValueError as error:
        raise ValueError(
            f"{error}.{did_you_mean(name, available_timezones())} Give UTC, +05:30, or a name such as Asia/Tokyo"
        ) from error
    return name


TimeZone = Annotated[str, Field(max_length=64), AfterValidator(_is_time_zone)]


Declared = Mapping[str, tuple[str, list[str]]]
"""The type of each feature that declares values as missing, and these values as canonical texts, by its name."""


class Data(Strict):
    """The records to read."""

    model_config = ConfigDict(serialize_by_alias=True)

    format: Literal["image_folder", TableName, "tfds", "none"] = Field(
        description="image_folder: one folder of images per class; a .tar is read as a folder of its name. tfrecord:"
        " tf.Example. csv: with a header, .gz too. parquet: folders name=value are columns too. tfds: a "
        "prepared TensorFlow Datasets folder. none: train.command reads other data."
    )
    path: Source | None = Field(
        None, description="Folder, file or glob, local, gs:// or s3://; relative to the recipe's file."
    )
    window_days: Annotated[int, Field(ge=1, le=3660)] | None = Field(
        None,
        description="Number of days to read before the run's day in time_zone (default: the schedule's). path then "
        "names one day, such as gs://b/day=%Y-%m-%d.",
    )
    max_missing_days: Annotated[int, Field(ge=0, le=3660)] = Field(
        0, description="Maximum number of days in the window without files; more end the run."
    )
    bundled: Literal["digits", "breast_cancer"] | None = Field(
        None, description="Data set of scikit-learn, used instead of path and written in `format`."
    )
    delimiter: Delimiter = Field(",", description='csv: delimiter of the cells; "\\t" is a tab.')
    quote: Quote = Field(
        '"',
        description="csv: quote character of cells; doubled, it is part of the cell. none: quotes are ordinary "
        "characters.",
    )
    decimal: Literal[".", ","] = Field(
        ".",
        description="csv: decimal separator of the numbers. With ',' 1234,5 is a number, and one with a point, such as "
        "1.234 or 1.234,5, is refused. It is for columns that are read as numbers: a category stays as it is.",
    )
    encoding: Encoding = Field(
        "utf-8", description="csv: encoding of the files. cp1252 is what Windows and Excel call ANSI, or Latin-1."
    )
    skip_rows: SkippedRows = Field(
        0,
        description="csv: lines that are no rows: how many stand above the header, or a list of their numbers, such as "
        "[1, 3] for a title and, below the header in line 2, units.",
    )
    comment: Comment | None = Field(
        None, description="csv: lines that begin with this are no rows, such as '#'; not inside a quoted cell."
    )
    absent_columns: Literal["refused", "missing"] = Field(
        "refused",
        description="csv and parquet: how a file is read that lacks a column of other files. missing: its rows have no "
        "value there; label, weight and split.column are always required.",
    )
    labels_file: LabelsFile | None = Field(
        None,
        alias="labels",
        description="image_folder: CSV file in path with a row for each image: its name in the column file, and its "
        "label or targets; instead of class folders. It is read by delimiter, quote, decimal, encoding, "
        "skip_rows and comment.",
    )
    label: Column = Field("label", description="Column or feature to predict, or one of derive.")
    label_separator: Separator | None = Field(
        None,
        description="multi_label: separator of the classes in a cell, such as ';' in rock;pop. An empty cell has no "
        "class; a Parquet list needs no separator in its values.",
    )
    label_min_count: Count = Field(
        1,
        description="multi_label: minimum count of a class in all rows; rarer classes are dropped, their rows stay.",
    )
    targets: list[Column] = Field(
        [],
        max_length=100,
        description="regression: several columns to predict, instead of label.",
    )
    features: dict[Column, Annotated[Numeric | Category | Date | Text, Field(discriminator="type")]] = Field(
        default_factory=dict,
        max_length=MAX_COLUMNS,
        description="csv, parquet and tabular tfrecord: the columns to learn from, including derived ones. Others "
        "are ignored.",
    )
    derive: dict[Column, Formula] = Field(
        default_factory=dict,
        max_length=100,
        description="Derived columns as name: expression, such as tipped_well: tip > 0.2 * fare. Each is the label, "
        "the weight, split.column or a feature, which the served model computes.",
    )
    weight: Column | None = Field(
        None,
        description="Column with sample weights, 0 or more, for training and all metrics; only ratios matter.",
    )
    where: Condition | None = Field(None, description="Filter for the rows to read, such as fare > 0.")
    time_zone: TimeZone = Field(
        DEFAULT_ZONE,
        description="Time zone of the days of window_days, and in which dates and split.by: time count the days, hours "
        "and weekdays of times with an offset: UTC, an offset such as +05:30, or a name such as Asia/Tokyo.",
    )
    image_size: Annotated[tuple[Pixels, Pixels], Field(strict=False)] | None = Field(
        None, description="Height and width to resize images to; default: those of the first image."
    )
    channels: Annotated[Literal[1, 3], BeforeValidator(_no_boolean)] = Field(
        3, description="Channels of images: 1 is grayscale, 3 is color."
    )
    white_level: Annotated[float, Field(gt=0, le=2**32, allow_inf_nan=False)] | None = Field(
        None,
        description="Value of white in images of more than 8 bits a channel, such as 4095 of a 12-bit camera, or "
        "1.0; larger values are white. Default: 65535; required for float and 32-bit images.",
    )
    store: ImageStore | None = Field(
        None,
        description="How images are stored in shards. original: unchanged. training_size (default with image_size): "
        "shrunk to a seventh more than image_size. raw: decoded pixels at image_size.",
    )
    samples: bool = Field(
        False,
        description="Keep the 20 most frequent texts of each column in the statistics, which the report and a pushed "
        "model contain. Default: only words and lengths of text features, and only values of other columns that have "
        "at most 40 characters and two rows.",
    )
    split: SplitRows = SplitRows()
    fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0,
        description="Share of the training split to train on; a smaller share is part of a larger one. eval and test"
        " stay complete.",
    )
    max_bad_fraction: Fraction = Field(0.01, description="Maximum share of bad records; more end the run.")
    max_image_pixels: Count = Field(
        50_000_000, description="Maximum pixels of an image; larger ones are quarantined by their header."
    )
    shard_examples: Examples | None = Field(
        None,
        description="Approximate examples per shard. Default: 4,096, more if a split would have over 1,024 shards.",
    )
    schema_: Annotated[str, Field(min_length=1, max_length=1_000_000)] | None = Field(
        None,
        alias="schema",
        description="File next to the recipe from `trainyard data schema`, or its content: preprocess fails if the "
        "data do not match.",
    )
    incremental: bool | None = Field(
        None,
        description="Keep parsed files next to the output, so that later runs read only new files; takes the space "
        "of the data again. Default: with window_days. Not for outputs in buckets.",
    )
    near_duplicates: bool = Field(
        False, description="Warn of near duplicates in different splits; costs about 0.5 ms an image."
    )

    @model_validator(mode="after")
    def _source(self) -> Self:
        if self.format == "none":
            if names := documents.changed(self, {"format"}):
                raise ValueError(
                    f"format none has no data that {names[0]} could be of. Leave it out, or give the format"
                )
            return self
        if (self.path is None) == (self.bundled is None):
            raise ValueError("give either path or bundled")
        if self.bundled is not None and self.format != (form := _BUNDLED[self.bundled]):
            raise ValueError(f"bundled: {self.bundled} is written as {form}, not as {self.format}. Set format: {form}")
        _check_window(self.path or "", self.window_days, self.format)
        if self.format in ENDINGS and self.format != "tfrecord" and not self.features:
            raise ValueError(f"format {self.format} needs features: name at least one column to learn from")
        return self

    @property
    def skipped_rows(self) -> tuple[int, ...]:
        """The numbers of the lines that are no rows."""
        rows = self.skip_rows
        return tuple(range(1, rows + 1) if isinstance(rows, int) else sorted({*rows}))

    @property
    def may_lack(self) -> list[str]:
        """The columns that a file may lack: none of what every row needs."""
        required = {*self.labels, self.split.column, self.weight}
        return [name for name in self.columns if name not in required] if self.absent_columns == "missing" else []

    @property
    def keeps_parts(self) -> bool:
        """True if the read rows stay for the next run."""
        return self.window_days is not None if self.incremental is None else self.incremental

    @property
    def expected(self) -> TableSchema | ImageSchema | None:
        """The schema to compare the data with."""
        return parse_schema(self.schema_, "data.schema") if self.schema_ else None

    @property
    def zone(self) -> datetime.tzinfo:
        """The time zone in which days are counted."""
        return time_zone(self.time_zone)

    @property
    def counts_days(self) -> bool:
        """True if the days of times in the data matter."""
        return self.split.by == "time" or bool(self.dates)

    @property
    def columns(self) -> list[str]:
        """The table columns to read, each once."""
        named = [*self.features, *self.labels, *filter(None, [self.split.column, self.weight])]
        formulas = [*self.derive.values(), *([self.where] if self.where else [])]
        computed = [name for text in formulas for name in formula.columns(formula.parse(text))]
        return list(dict.fromkeys([*(name for name in named if name not in self.derive), *computed]))

    @property
    def judging(self) -> set[str]:
        """The columns of a table that only say what is predicted and what it weighs: no split depends on them."""
        named = [*self.labels, *filter(None, [self.weight])]
        nodes = [formula.parse(self.derive[name]) for name in named if name in self.derive]
        read = {name for node in nodes for name in formula.columns(node)}
        return ({name for name in named if name not in self.derive} | read) - {*self.inputs}

    @property
    def hashes_rows(self) -> bool:
        """True if the rows of a table decide what split, or what fraction of it, they are in."""
        return not self.is_image and (not self.split.by_value or self.fraction < 1)

    @property
    def listed_columns(self) -> list[str]:
        """The columns to read in the file `labels`: what is predicted, and the column of the split."""
        return list(dict.fromkeys([*self.labels, *([self.split.column] if self.split.column else [])]))

    @property
    def labels(self) -> list[str]:
        """The columns to predict."""
        return self.targets or [self.label]

    @property
    def derived_features(self) -> dict[str, str]:
        """The formulas of computed features."""
        return {name: text for name, text in self.derive.items() if name in self.features}

    @property
    def inputs(self) -> dict[str, Numeric | Category | Date | Text]:
        """The input columns of a served model: the features of the data, and the sources of computed ones."""
        inputs = {name: feature for name, feature in self.features.items() if name not in self.derive}
        for name, kind in formula.kinds(self.derived_features.values()).items():
            read = Numeric(type="numeric") if kind == "number" else Category(type="category")
            inputs.setdefault(name, read)
        return inputs

    @property
    def separators(self) -> dict[str, str]:
        """The columns that may hold a list in each row, with their separators."""
        texts = {name: feature for name, feature in self.features.items() if feature.type == "text"}
        lists = {name: text.separator for name, text in texts.items() if text.separator}
        return lists | ({self.label: self.label_separator} if self.label_separator else {})

    @property
    def declared(self) -> Declared:
        """The features that declare values as missing."""
        return {
            name: (feature.type, [str(value) for value in feature.missing])
            for name, feature in self.features.items()
            if feature.type != "text" and feature.missing
        }

    @property
    def dates(self) -> list[str]:
        """The features that are dates."""
        return [name for name, feature in self.features.items() if feature.type == "date"]

    @property
    def prose(self) -> dict[str, str | None]:
        """The text columns for which statistics keep words only, with their separators."""
        texts = {name: feature for name, feature in self.inputs.items() if feature.type == "text"}
        return {} if self.samples else {name: text.separator for name, text in texts.items()}

    @property
    def is_image(self) -> bool:
        """True if the examples are images: true unless columns are named."""
        return not self.features

    @property
    def stored(self) -> ImageStore:
        """The format of images in the shards: `store`, or its default."""
        return self.store or ("training_size" if self.image_size else "original")


def _check_window(path: str, days: int | None, format: str) -> None:
    named = re.findall("%.?", path)
    dated = sorted(named) == ["%Y", "%d", "%m"]
    if days is None and dated:
        raise ValueError("path names a day by %Y, %m and %d. Say by window_days how many of them to read")
    if days is not None and not dated:
        raise ValueError("window_days needs a path with %Y, %m and %d in it, each once, such as /data/day=%Y-%m-%d")
    if days is not None and format == "tfds":
        raise ValueError("window_days is not for format tfds: a prepared data set is one folder")


class Evaluate(Strict):
    """The evaluation of the model."""

    slices: list[Column] = Field([], max_length=100, description="Features for which metrics are computed by value.")
    bootstrap: Annotated[int, Field(ge=1, le=100_000)] = Field(
        1000,
        description="Number of bootstrap resamples for each interval; of more than 50,000 examples they draw 2,000 "
        "random groups.",
    )
    gates: list[Gate] = Field(
        [],
        max_length=100,
        description="Conditions that the model must meet before it is exported and pushed.",
    )
    time_to: TimeTo | None = Field(
        None,
        description="classification: record the time to an accuracy, and its cost if the pool has a price.",
    )
    boosted: bool = Field(True, description="Tables: train gradient-boosted trees on the same split as a baseline.")
    worst: Annotated[int, Field(ge=0, le=100)] = Field(
        24, description="Number of worst examples in the report, and of those that the champion answers differently."
    )


Limit = Annotated[float, Field(gt=0, le=1e9)]
DeviceName = Annotated[str, Field(pattern=devices.NAME)]
Format = Literal[
    "saved_model",
    "keras",
    "litert_float32",
    "litert_float16",
    "litert_dynamic",
    "litert_int8",
    "litert_batch",
    "onnx",
]
DEFAULT_FORMATS: tuple[Format, ...] = ("saved_model", "keras", "litert_float32", "litert_float16", "litert_int8")
"""The formats of a recipe without `export.formats`."""


LiteFormat = Literal["litert_float32", "litert_float16", "litert_dynamic", "litert_int8"]


class Onnx(Strict):
    """Settings of the onnx file."""

    opset: Annotated[int, Field(ge=14, le=18)] = Field(
        18, description="Version of ONNX's operators: at most what the reader of the file supports."
    )


class DeviceLimits(Strict):
    """The file that a device measures, and its limits."""

    format: LiteFormat = Field("litert_int8", description="The file that is measured.")
    latency_ms_p95: Limit | None = Field(
        None, description="Maximum 95th percentile of an answer, with one thread or all, whichever is faster."
    )
    size_mb: Limit | None = Field(None, description="Maximum size of the file, in 1,000,000 bytes.")
    memory_mb: Limit | None = Field(None, description="Maximum peak memory of the Python process.")


class Export(Strict):
    """Files to export, and how far each may differ from the trained model.

    max_accuracy_drop refers to the task's main metric; for a regression it is the relative rise of the mean absolute
    error.
    """

    formats: list[Format] | None = Field(
        None,
        max_length=len(get_args(Format)),
        description="Formats to export. Default: all but litert_dynamic, litert_batch and onnx; litert_int8 only if "
        "close enough to the trained model. saved_model is required, because push serves it.",
    )
    max_accuracy_drop: Annotated[float, Field(ge=0, le=100)] = Field(
        0.01, description="Maximum drop of accuracy, or relative rise of the mean absolute error, of any file."
    )
    calibration_examples: Examples = Field(200, description="Number of training examples to calibrate int8.")
    devices: dict[DeviceName, DeviceLimits] = Field(
        {},
        max_length=20,
        description="Machines that measure a file before the push, by their names in `trainyard devices`.",
    )
    min_mapped_share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="Minimum share of the operations of litert_int8, and of its multiply-adds, that a Coral Edge TPU "
        "runs. Default: reported, not required.",
    )

    onnx: Onnx = Field(Onnx(), description="Settings of the onnx file.")
    demo: bool = Field(
        False,
        description="Also write demo.html, a page that runs the onnx file of an image model in a browser or phone.",
    )

    @property
    def files(self) -> list[Format]:
        """The formats to write."""
        return list(DEFAULT_FORMATS if self.formats is None else self.formats)

    def is_optional(self, format: Format) -> bool:
        """Return True if a file of this format may be left out."""
        needed = self.min_mapped_share is not None or any(each.format == format for each in self.devices.values())
        return self.formats is None and format == "litert_int8" and not needed


class Push(Strict):
    """The destination of a blessed model."""

    path: Output | None = Field(
        None,
        description="Folder of versions, gs://bucket/folder or s3://bucket/folder; default: models next to the "
        "outputs.",
    )
    approve: bool = Field(
        False,
        description="The model waits as `candidate` until a person approves it: `trainyard models approve`.",
    )
    license: Annotated[str, Field(max_length=100, pattern=r"^[a-z0-9][a-z0-9.-]*$")] | None = Field(
        None, description="License in the model card, by its identifier on the Hugging Face Hub, such as apache-2.0."
    )
    intended_use: Prose = Field("", description="Intended use of the model, for the model card.")


def _form(value: object) -> str:
    """Return the form of a value that is a list or has keys, so that a fault is one of the form that was given."""
    return "name" if isinstance(value, dict) else "list"


def _files_form(value: object) -> str:
    is_archive = isinstance(value, dict) and value.keys() == Archive.model_fields.keys()
    return "archive" if is_archive or isinstance(value, Archive) else _form(value)


class Recipe(Strict):
    """A recipe: data, model, schedule, gates and exports."""

    name: Annotated[str, Field(pattern=NAME)] = Field(
        description="Name of the recipe, its output folder and its pipeline: at most 41 of a to z, 0 to 9, and -."
    )
    description: Prose = Field("", description="Free text, not used.")
    module: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        None, description="Python file next to the recipe with preprocessing_fn, build_model or metrics."
    )
    files: Annotated[
        Annotated[list[FileName], Field(max_length=MAX_FILES), Tag("list")]
        | Annotated[dict[FileName, Content], Field(max_length=MAX_FILES), Tag("name")]
        | Annotated[Archive, Tag("archive")],
        Discriminator(_files_form),
    ] = Field(
        [],
        description="More files and folders next to the recipe for its module or train.command, which travel with it. "
        "The module, files that the command names, and local files that they import are included. At most 100 MiB "
        "together.",
    )
    packages: Annotated[
        Annotated[list[PackageText], Field(max_length=MAX_PACKAGES), Tag("list")]
        | Annotated[dict[PackageName, Wheel | PackageVersion], Field(max_length=MAX_LOCKED), Tag("name")],
        Discriminator(_form),
    ] = Field(
        [],
        description="Python packages for the module or train.command, such as lightgbm==4.6.0, and wheels next to the "
        "recipe, such as ./shop-1.0-py3-none-any.whl. Versions fit the image's own packages.",
    )
    requirements: RequirementsFile | None = Field(
        None, description="File next to the recipe with more packages, one a line."
    )
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(1, description="Random seed.")
    task: Task = Field(
        "classification",
        description="classification: the label is a class. multi_label: any number of classes. regression: a number.",
    )
    data: Data = Field(Data(format="none"), description="Required, unless train.command reads other data.")
    model: ModelConfig = ModelConfig()
    train: Train = Train()
    threshold: ThresholdAim | None = Field(
        None,
        description="Decision threshold, chosen on the eval split and exported with the model. Default: the most "
        "probable class is predicted, or the classes above 0.5.",
    )
    evaluate: Evaluate = Evaluate()
    export: Export = Export()
    push: Push = Push()
    drift: Bounds = Field(
        Bounds(),
        description="Drift bounds, for schedules with when.drift and for a warning in evaluate.",
    )

    @property
    def comma_numbers(self) -> tuple[str, ...]:
        """The columns of CSV whose numbers have a decimal comma: those that are read as numbers, or none."""
        data = self.data
        if data.decimal == ".":
            return ()
        kinds = formula.kinds([*data.derive.values(), *filter(None, [data.where])])
        kinds |= {name: "number" if each.type == "numeric" else "text" for name, each in data.features.items()}
        judging = [*(data.labels if self.task == "regression" else []), *filter(None, [data.weight])]
        kinds |= dict.fromkeys(judging, "number")
        return tuple(name for name, kind in kinds.items() if kind == "number" and name not in data.derive)

    @property
    def named_classes(self) -> dict[str, str | None]:
        """The classes that keys of the recipe name, by the key."""
        named = {f"evaluate.gates.{index}.class": gate.class_name for index, gate in enumerate(self.evaluate.gates)}
        chosen = self.train.selected
        return named | {
            "threshold.class": self.threshold.class_name if self.threshold else None,
            "train.select.class": chosen.class_name if chosen else None,
        }

    @model_validator(mode="after")
    def _consistent(self, info: ValidationInfo) -> Self:
        folder = (info.context or {}).get(documents.FOLDER)
        missing = (
            [*code.missing_files(self, folder), *packages.missing_files(self, folder)] if folder is not None else []
        )
        if faults := [*missing, *contradictions.find_contradictions(self)]:
            raise documents.contradictory(faults)
        return self


BUNDLED = Path(__file__).parent.parent / "recipes"


_NO_FOLDER = Path(os.devnull)
"""The folder of a recipe in a bucket: no file is found there; absolute paths are still local."""


def load(name: str, overrides: list[str] | None = None) -> Recipe:
    """Return the recipe `name` (see `documents.find`, or a bucket's URI), with absolute paths.

    If an override names the model, the file's settings that this model lacks are those of `left_out`. Raises
    `ConfigurationError`, `TransientError` if the bucket does not answer.
    """
    overrides = [
        *(f"{key}={json.dumps(value)}" for key, value in left_out(name, overrides or [])),
        *(overrides or []),
    ]
    if uris.is_bucket(name):
        recipe, folder = _load_from_bucket(name, overrides), _NO_FOLDER
    elif uris.scheme(name):
        raise ConfigurationError(
            f"{documents.safe(name)}: is no known place of a recipe. Name a file, or a gs:// or s3:// URI."
        )
    else:
        path = documents.find("recipe", name, BUNDLED)
        recipe, folder = documents.load(path, Recipe, overrides), path.parent
    source = recipe.data.path
    push, weights = recipe.push.path, recipe.model.weights
    data = {"path": source and uris.resolve(folder, source), "schema_": _schema(recipe.data, folder)}
    weights = weights if weights in (None, IMAGENET) else uris.resolve(folder, weights)
    return recipe.model_copy(
        update={
            **code.collect(recipe, folder),
            **packages.collect(recipe, folder),
            "data": recipe.data.model_copy(update=data),
            "model": recipe.model.model_copy(update={"weights": weights}),
            "train": _train(recipe.train, folder),
            "push": recipe.push.model_copy(update={"path": push and uris.resolve(Path(), push)}),
        }
    )


def parameter(recipe: Recipe) -> str:
    """Return the text of `recipe` that a pod gets: with all defaults, or without them if they make it too long.

    Raises `ConfigurationError` if it is too long without them.
    """
    for short in (False, True):
        text = plain_yaml.dump(recipe.model_dump(mode="json", exclude_defaults=short), inline_leaves=short)
        written = len(json.dumps(text))
        if written <= code.MAX_WRITTEN:
            return text
    count = len(recipe.data.features)
    raise ConfigurationError(
        f"{recipe.name}: takes {written:,} bytes without defaults, and a pod's argument holds {code.MAX_WRITTEN:,}. "
        f"Leave out files or data.features (of {count:,} about {count * code.MAX_WRITTEN // written:,} fit), or train "
        "on one machine, with `trainyard run`."
    )


def left_out(name: str, overrides: Sequence[str]) -> list[tuple[str, Any]]:
    """Return the settings of the recipe `name` that the model named in `overrides` lacks, by key, with their defaults.

    Networks have no `model.trees`, and trees no `train.epochs`: so one override is enough to try the other.
    """
    named = [each.partition("=")[2] for each in overrides if each.partition("=")[0].strip() == "model.name"]
    if not named:
        return []
    remaining = [each for each in overrides if each.partition("=")[0].strip() != "model.name"]
    for kept in ([], remaining):  # some recipes are complete with overrides alone
        with suppress(ConfigurationError):
            name_wanted = str(plain_yaml.YamlText(named[-1], "model.name").content)
            return list(trees.foreign_settings(load(name, kept), name_wanted))
    return []


def _load_from_bucket(uri: str, overrides: list[str]) -> Recipe:
    """Return the recipe at `uri`. Raises `ConfigurationError`, also for relative paths."""
    text = documents.read_object(uri)
    recipe = documents.parse(text, Recipe, name=uri, overrides=overrides)
    teacher, train = recipe.train.teacher, recipe.train
    carried, unread = code.carried_and_named(recipe)
    weights = None if recipe.model.weights == IMAGENET else recipe.model.weights
    schema = recipe.data.schema_
    scripts = [argument for argument in train.command or [] if argument.endswith(".py")]
    named = [
        ("module", recipe.module if recipe.module not in carried else None),
        ("data.path", recipe.data.path),
        ("data.schema", None if schema is None or is_schema(schema) else schema),
        ("model.weights", weights),
        ("train.teacher.model", teacher and teacher.model),
        *(("files", name) for name in unread),
        *(
            ("packages", name)
            for name in recipe.packages
            if isinstance(recipe.packages, list) and name.endswith(".whl")
        ),
        ("requirements", recipe.requirements),
        *(("train.command", name) for name in scripts if name not in carried),
    ]
    relative = [
        f"{uri}: {key}: '{documents.safe(path)}' is relative, and beside a recipe in a bucket no files are read. "
        "Write an absolute path or a URI, or copy the recipe to this machine."
        for key, path in named
        if path and not uris.is_bucket(path) and not os.path.isabs(os.path.expanduser(path))  # noqa: PTH111, PTH117
    ]
    if relative:
        raise ConfigurationError(*relative)
    return documents.parse(text, Recipe, name=uri, overrides=overrides, folder=_NO_FOLDER)


def _train(train: Train, folder: Path) -> Train:
    if train.teacher is not None:
        model = uris.resolve(folder, train.teacher.model)
        train = train.model_copy(update={"teacher": train.teacher.model_copy(update={"model": model})})
    return train


def _schema(data: Data, folder: Path) -> str | None:
    """Return the text of the schema that `data` names or holds, because a pod does not see the file."""
    if data.schema_ is None:
        return None
    schema = data.expected if is_schema(data.schema_) else load_schema(Path(uris.resolve(folder, data.schema_)))
    if schema is not None and isinstance(schema, ImageSchema) != data.is_image:
        kinds = "images, and the schema that of a table" if data.is_image else "rows, and the schema that of images"
        raise ConfigurationError(f"data.schema: the data are {kinds}. Name another schema.")
    return None if schema is None else plain_yaml.dump(schema.model_dump(mode="json", exclude_none=True))
