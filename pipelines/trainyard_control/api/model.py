"""A pushed model and its predictions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from trainyard import uris
from trainyard.contract import keys
from trainyard.contract.champion import champion
from trainyard.errors import ConfigurationError, DataError
from trainyard.escape import shell
from trainyard.quality.source import require_libraries
from trainyard.spec import documents
from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard_control.api.arguments import LOCAL
from trainyard_control.api.drawing import Console, as_html, markup, plain_table

if TYPE_CHECKING:
    import pyarrow as pa

    from trainyard.readers.rows import BadRow
    from trainyard.steps.predict.prediction import Predictor
    from trainyard.steps.predict.pushed_model import PushedModel

_SHOWN = 20  # rows in a notebook; chosen


@dataclass(frozen=True)
class Predictions:
    """Predictions. table: an Arrow table with the columns of `trainyard predict`: key, prediction, score and others.

    rejected: the inputs without a prediction, each with `key`, `reason` and `detail`.
    """

    table: pa.Table
    rejected: list[BadRow]

    def __len__(self) -> int:
        return self.table.num_rows

    def __getitem__(self, column: str) -> list[Any]:
        """Return a column as a list, such as `predictions["prediction"]`."""
        return self.table.column(column).to_pylist()

    def __repr__(self) -> str:
        return f"<Predictions of {len(self):,} inputs, {len(self.rejected):,} rejected>"

    def to_pandas(self) -> Any:
        """Convert the table to a pandas data frame."""
        return self.table.to_pandas()

    def _repr_html_(self) -> str:
        return as_html(self._print_to)

    def _print_to(self, console: Console) -> None:
        names = [name for name in self.table.column_names if not name.startswith("score_")]
        table = plain_table(*map(markup, names))
        for row in self.table.select(names).slice(0, _SHOWN).to_pylist():
            table.add_row(
                *(f"{value:.4f}" if isinstance(value, float) else markup(str(value)) for value in row.values())
            )
        console.print(table)
        more = f"{len(self) - _SHOWN:,} more rows" if len(self) > _SHOWN else ""
        rejected = f"{len(self.rejected):,} rejected, see .rejected" if self.rejected else ""
        console.print("; ".join(filter(None, [more, rejected])), style="dim")


class Model:
    """A pushed version of a model."""

    def __init__(self, pushed: PushedModel) -> None:
        self.pushed = pushed

    @property
    def folder(self) -> str:
        """The folder or URI of the version."""
        return self.pushed.folder

    @property
    def labels(self) -> list[str] | None:
        """The classes in the order of their ids, None for regression."""
        return None if self.pushed.labels is None else list(self.pushed.labels)

    @property
    def inputs(self) -> list[str]:
        """The names of the input columns, or `image`."""
        return [feature.name for feature in self.pushed.inputs]

    def __repr__(self) -> str:
        return f"<Model {self.folder}>"

    def predict(self, inputs: Any, *, key: str | None = None) -> Predictions:
        """Predict a class or a number, and scores, for every row or image.

        inputs: a path (folder, file or glob, gs:// and s3:// too) or a list of paths. For a model of columns also a
        pandas or Arrow table or a dict of columns. For a model of images also a uint8 array (n, height, width) or (n,
        height, width, channels), or a list of such images or of encoded images as bytes. key: the column that names
        each row, instead of its position. The first call loads TensorFlow.

        Raises `DataError` if no input can be read or a column is missing; single bad inputs are listed in `rejected`.

        >>> import trainyard as ty
        >>> ty.load("digits").predict("photos/")["prediction"]  # doctest: +SKIP
        """
        answers = self._predictor.predict(inputs, key)
        return Predictions(answers.table, answers.rejected)

    @cached_property
    def _predictor(self) -> Predictor:
        require_tensorflow()
        from trainyard.steps.predict.prediction import Predictor

        return Predictor(self.pushed)


def require_tensorflow() -> None:
    """Raise `ConfigurationError` if the libraries for prediction are not installed."""
    require_libraries()
    if find_spec("tensorflow") is None:
        raise ConfigurationError("tensorflow is not installed; predictions need it. Install trainyard[cpu].")


def load(model: str | os.PathLike[str], *, environment: str = LOCAL) -> Model:
    """Load a pushed model.

    model: the folder or URI of a version or of a folder of versions, or a recipe, whose champion in `environment` is
    loaded. Raises `DataError` if there is no model.

    >>> import trainyard as ty
    >>> ty.load("digits").labels  # doctest: +SKIP
    """
    from trainyard.steps.predict.pushed_model import find_model, open_model

    name = os.fspath(model)
    why = uris.path_error(name)
    if why and uris.is_bucket(name):
        raise DataError(f"{uris.without_secrets(name)}: {why}.")
    in_bucket = uris.is_bucket(name) and not documents.is_file_name(name)
    if in_bucket or (not why and os.path.isdir(name)):  # noqa: PTH112 - False for impossible names
        return Model(find_model(name.rstrip("/")))
    recipe = recipes.load(name)
    folder = keys.models_folder(environments.load(environment).storage, recipe)
    best = champion(folder)
    if best is None:
        raise DataError(
            f"{recipe.name}: nothing was pushed to {folder} yet. Run `trainyard run {shell(name)}`, or name another "
            "environment, or a model's folder."
        )
    return Model(open_model(best.path))
