"""A pushed model, its predictions and its server."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from trainyard import uris
from trainyard.contract import keys
from trainyard.contract.pushed_versions import find_version, is_pushed_to, split_name, version_numbers
from trainyard.contract.version import SERVED, Champion
from trainyard.errors import ConfigurationError, DataError, did_you_mean, listed
from trainyard.escape import shell
from trainyard.measured import metric_text
from trainyard.report import local_runs
from trainyard.spec import documents
from trainyard.spec import recipe as recipes
from trainyard.spec.environment import Environment
from trainyard.storage import storage
from trainyard.storage.manifest import MANIFEST
from trainyard_control.api.arguments import LOCAL
from trainyard_control.api.drawing import Console, as_html, markup, plain_table
from trainyard_control.cluster import environments

if TYPE_CHECKING:
    import pyarrow as pa

    from trainyard.readers.rows import BadRow
    from trainyard.serving.options import Addresses, Options
    from trainyard.steps.predict.prediction import Predictor
    from trainyard.steps.predict.pushed_model import PushedModel

_SHOWN = 20  # rows in a notebook; chosen
_SERVED_NAME = re.compile(r"[\w.-]+")


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
                *(metric_text(value) if isinstance(value, float) else markup(str(value)) for value in row.values())
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
    from trainyard.quality.source import require_libraries  # with NumPy, which no compilation loads

    require_libraries()
    if find_spec("tensorflow") is None:
        raise ConfigurationError("tensorflow is not installed; predictions need it. Install trainyard[cpu].")


def load(model: str | os.PathLike[str], *, environment: str = LOCAL) -> Model:
    """Load a pushed model.

    model: as `model_uri` takes it. Raises `DataError` if there is no model, `ConfigurationError` for an unknown name.

    >>> import trainyard as ty
    >>> ty.load("digits").labels  # doctest: +SKIP
    """
    from trainyard.steps.predict.pushed_model import find_model

    return Model(find_model(model_uri(os.fspath(model), environments.load(environment))))


def model_uri(model: str, environment: Environment) -> str:
    """Return the folder or URI of a version or of a folder of versions, with @NAME if `model` has it.

    model: that itself; a recipe or its name, for its folder of versions in `environment`; or a run of that storage, by
    its name or folder, for the version that it pushed. @NAME chooses another version by its alias or number. A folder
    with a recipe's name and no versions, such as that of its images, is not meant.

    Raises `DataError` if nothing was pushed, `ConfigurationError` for an unknown recipe or run, or an impossible URI.
    """
    base, name = split_name(model)
    why = uris.path_error(base)
    is_run = bool(local_runs.begun(model)) or _is_run_folder(model)
    if why and uris.is_bucket(model):
        raise ConfigurationError(f"{uris.without_secrets(model)}: {why}.")
    if not is_run and any(_is_folder(name) and not _is_other_folder(name) for name in (model, base)):
        return model.rstrip("/")
    root = environments.readable_storage(environment)
    if is_run:
        run = local_runs.find(root, model)
        if pushed := run.record.get("pushed"):
            return str(pushed["path"])
        raise DataError(f"{run.name}: pushed no model, it is {run.state}. {run.reason}".rstrip())
    try:
        recipe = recipes.load(base)
    except ConfigurationError as error:
        folder = storage.join(root, base, "models")  # as `models list` calls a recipe whose file is elsewhere
        if not re.fullmatch(recipes.NAME, base) or not is_pushed_to(folder):
            raise _unknown(base, root, error) from error
        return f"{folder}@{name}" if name else folder
    folder = keys.models_folder(root, recipe)
    if not is_pushed_to(folder):
        raise DataError(
            f"{recipe.name}: nothing was pushed to {folder} yet. Run `trainyard run {shell(base)}`, or name another "
            "environment, or a model's folder."
        )
    return f"{folder}@{name}" if name else folder


def _unknown(base: str, root: str, error: ConfigurationError) -> ConfigurationError:
    """Return the error for a model that is not there. error: why `base` is no recipe."""
    if documents.is_file_name(base):
        return error
    parent, _, last = base.rstrip("/").rpartition("/")
    if parent or "/" in base:
        if last.isdecimal() and version_numbers(parent):
            find_version(parent, last)  # raises, with the nearest number
        near = did_you_mean(last, storage.children(parent or "."))
        return ConfigurationError(
            f"{documents.safe(base)}: no such folder.{near} Name a recipe, a run, or a folder that `push` wrote to."
        )
    pushed = [name for name in storage.children(root) if is_pushed_to(storage.join(root, name, "models"))]
    have = f" Pushed to {root}: {listed(pushed, _SHOWN)}." if pushed else ""
    near = did_you_mean(base, [*pushed, *local_runs.recipes_by_run(root)])
    here = f"{base}: no versions of a model in this folder, and " if _is_folder(base) else ""
    return ConfigurationError(here + (f"no model '{documents.safe(base)}'.{have}{near}" if near else f"{error}{have}"))


def _is_run_folder(name: str) -> bool:
    """Return True if the folder `name` lies in a folder of runs."""
    return name.rstrip("/").rpartition("/")[0].endswith("/runs") and _is_folder(name)


def _is_other_folder(name: str) -> bool:
    """Return True if the folder `name` may be a recipe's name, and neither is a version nor has one."""
    if not re.fullmatch(recipes.NAME, name):
        return False
    places = [name, *(storage.join(name, str(number)) for number in version_numbers(name))]
    return not any({MANIFEST, SERVED, Champion.file} & set(storage.children(place)) for place in places)


def _is_folder(name: str) -> bool:
    """Return True for a folder that exists, and for each URI of a bucket that is not a recipe's file."""
    in_bucket = uris.is_bucket(name) and not documents.is_file_name(name)
    return in_bucket or (not uris.path_error(name) and os.path.isdir(name))  # noqa: PTH112 - False for impossible names


def serve(
    model: str,
    *,
    environment: str,
    options: Options,
    started: Callable[[Addresses], None],
) -> None:
    """Serve `model`, named as for `load`, until SIGTERM or Ctrl-C; see `trainyard.serving.server.serve`.

    options: without the folder, and with the shadow named as `model`; the name is that of `default_name` if it is ''.

    Raises `DataError` if there is no model, `ConfigurationError` if it cannot be served here.
    """
    loaded = environments.load(environment)
    folder = model_uri(model, loaded)
    name = options.name or default_name(folder)
    if not _SERVED_NAME.fullmatch(name):
        raise ConfigurationError(
            f"--model-name {name[:100]!r}: letters, digits, '.', '_' and '-' are allowed. Give another."
        )
    require_tensorflow()
    if find_spec("aiohttp") is None or find_spec("prometheus_client") is None:
        raise ConfigurationError("aiohttp is not installed; the server needs it. Install trainyard[cpu].")
    if options.workers > 1:
        from trainyard.serving.workers import serve
    else:
        from trainyard.serving.server import serve

    shadow = model_uri(options.shadow, loaded) if options.shadow else ""
    serve(replace(options, folder=folder, name=name, shadow=shadow), started)


def default_name(folder: str) -> str:
    """Return the name in URLs of a model in `folder`: the folder above its versions."""
    parts = split_name(folder)[0].rstrip("/").split("/")
    names = [part for part in parts if part not in ("", ".", "..", "models") and not part.isdecimal()]
    return re.sub(r"[^\w.-]+", "-", names[-1]) if names else "model"
