"""The number and shape of a recipe's examples, found without reading them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from trainyard.contract import image_formats
from trainyard.contract.artifacts.preprocess import Examples, Feature
from trainyard.contract.epochs import MEMORY_BYTES
from trainyard.errors import ConfigurationError
from trainyard.spec.columns import ENDINGS, Date, Numeric, TableName, Text, holds_rows
from trainyard.spec.recipe import Recipe
from trainyard.storage import tar
from trainyard.storage.listing import list_files

# Source: the data sets that scikit-learn carries, load_digits and load_breast_cancer.
_BUNDLED = {"digits": (1797, 10), "breast_cancer": (569, 2)}
_DIGITS_SIDE = 8
_HEADERS = 4_096  # read from archives to count images; chosen: a fifth of a second


@dataclass(frozen=True)
class DataSummary:
    """The examples of a recipe. image: (height, width, channels). origin: how the number was found."""

    train: int
    eval: int
    classes: int
    image: tuple[int, int, int] | None
    features: list[Feature] = field(default_factory=list)
    origin: str = ""

    @property
    def streamed(self) -> bool:
        """True if the training images are decoded again in every epoch."""
        return self.image is not None and self.train * self.image[0] * self.image[1] * self.image[2] > MEMORY_BYTES


def find(recipe: Recipe, document: Examples | None, examples: int | None) -> DataSummary:
    """Summarize the recipe's data, from its last preprocessing (`document`) or from the source.

    examples: number of training examples, instead of the one found. Raises `ConfigurationError` if it stays unknown.
    """
    if document is not None:
        counts = {split: files.examples for split, files in document.splits.items()}
        shape = document.image
        image = (shape.height, shape.width, shape.channels) if shape else None
        known = DataSummary(
            counts["train"], counts["eval"], document.outputs, image, document.features, "last preprocessing"
        )
    else:
        known = _from_source(recipe, examples)
    if examples is None:
        return known
    scale = examples / max(1, known.train)
    return DataSummary(examples, round(known.eval * scale), known.classes, known.image, known.features, "--examples")


def _from_source(recipe: Recipe, examples: int | None) -> DataSummary:
    data = recipe.data
    total, classes, origin = (*_BUNDLED[data.bundled], "bundled") if data.bundled else _counted(recipe, examples)
    image = None
    if data.is_image:
        size = data.image_size or ((_DIGITS_SIDE, _DIGITS_SIDE) if data.bundled else None)
        if size is None:
            raise ConfigurationError(
                f"{recipe.name}: data.image_size is not set, and no earlier preprocessing says it. "
                "Set it, or run the preprocess step once."
            )
        image = (*size, data.channels)
    classes = len(data.labels) if recipe.task == "regression" else classes
    features = [Feature(name="image", dtype="float32", shape=image, encoded=True)] if image else _columns(recipe)
    train, evaluation = data.split.shares
    used = round(total * train * data.fraction)
    return DataSummary(used, round(total * evaluation), classes, image, features, origin)


def _counted(recipe: Recipe, examples: int | None) -> tuple[int, int, str]:
    """Count the records and classes (two if unknown) of a local source, and say how."""
    path = recipe.data.path or ""
    is_here = "://" not in path and Path(path).exists()
    if recipe.data.format == "image_folder" and is_here and (counted := _images(recipe, Path(path))):
        return counted
    if (format := recipe.data.format) in ENDINGS and "://" not in path and (rows := _rows(format, path)):
        return rows, 2, "rows counted"
    if examples is None:
        raise ConfigurationError(
            f"{recipe.name}: how many training examples {path} holds is not known. "
            "Give --examples N, or run the preprocess step once."
        )
    return round(examples / max(recipe.data.split.shares[0] * recipe.data.fraction, 1e-6)), 2, "--examples"


def _images(recipe: Recipe, path: Path) -> tuple[int, int, str] | None:
    """Count the images in folders and archives, by the first headers of archives; None if there are none.

    The classes in a file of labels are not counted.
    """
    roots = [path]
    if recipe.data.split.by == "folder" and path.is_dir():
        roots = [folder for folder in path.iterdir() if image_formats.split_of(tar.as_folder(folder.name)) == "train"]
    total, classes, origin = 0, set[str](), "files counted"
    files = [(root, file) for root in roots for file in list_files(str(root)).files if not file.reason]
    archives = sum(tar.is_archive(file.name) for _, file in files)
    for root, file in files:
        place = file.name if root.is_dir() else ""
        if file.name.lower().endswith(image_formats.ENDINGS):
            total += 1
            classes |= _class_folders([place])
        elif tar.is_archive(file.name):
            look = tar.list_archive(str(root / place), file.bytes, max(1, _HEADERS // archives))
            folder = f"{tar.as_folder(place)}/" if place else ""
            total += look.count
            classes |= _class_folders(folder + member.name for member in look.members if not member.reason)
            if origin != "estimated from archives":
                origin = "members of archives counted" if look.is_whole else "estimated from archives"
    return (total, 2 if recipe.data.labels_file else len(classes), origin) if total else None


def _class_folders(names: Iterable[str]) -> set[str]:
    """Return the top folders of these image names."""
    return {folder for folder, slash, _ in (name.partition("/") for name in names) if slash}


def _rows(format: TableName, path: str) -> int | None:
    """Count the rows of the local files; None if that is not known."""
    if find_spec("pyarrow") is None:
        return None
    from trainyard.readers.formats import FORMATS
    from trainyard.readers.table_file import TableFile

    listed = list_files(path)
    names = [file.name for file in listed.files if holds_rows(file.name, format, in_folder=listed.is_folder)]
    counts = [FORMATS[format].count(TableFile(f"{listed.root}/{name}", name)) for name in names]
    return None if None in counts else sum(count for count in counts if count)


def _columns(recipe: Recipe) -> list[Feature]:
    """Estimate the features of the columns: a number, three numbers of a date, or ids of the largest vocabulary."""
    columns = []
    for name, column in recipe.data.features.items():
        if isinstance(column, Numeric | Date):
            shape = (3,) if isinstance(column, Date) else ()
            columns.append(Feature(name=name, dtype="float32", shape=shape))
        else:
            size = column.vocabulary_size + column.oov_buckets
            shape = (column.words,) if isinstance(column, Text) else ()
            filler = 0 if isinstance(column, Text) else None
            columns.append(Feature(name=name, dtype="int64", shape=shape, vocabulary_size=size, filler=filler))
    return columns
