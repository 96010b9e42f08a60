"""The python_function flavor of a version in MLflow: `mlflow.pyfunc.load_model` and `mlflow models serve` load it.

Source: https://mlflow.org/docs/latest/python_api/mlflow.pyfunc.html, "Filesystem format".
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from trainyard.errors import DataError
from trainyard.steps.predict.prediction import Predictor
from trainyard.steps.predict.pushed_model import open_model


class MlflowModel:
    """Answers as `trainyard predict` does, without the column `key`."""

    def __init__(self, folder: str) -> None:
        self._predictor = Predictor(open_model(folder))
        self._predictor.load()  # before MLflow's server says that it is ready: it ends a request after 60 s

    def predict(self, inputs: Any, params: dict[str, Any] | None = None) -> Any:
        """Return a pandas data frame with a row for each input.

        inputs: a data frame with the columns of the model, or with a column `image` of encoded images, bytes or base64.
        params: the model takes none. Raises `DataError` if an input has no answer.
        """
        if params:
            raise DataError("params: the model takes none. Leave them out.")
        if self._predictor.model.pixels is not None:
            inputs = _images(inputs)
        found = self._predictor.predict(inputs, None)
        if found.rejected:
            first = found.rejected[0]
            raise DataError(f"the inputs: {first.key} has no answer ({first.reason}: {first.detail}). Correct it.")
        return found.table.select([name for name in found.table.column_names if name != "key"]).to_pandas()


def _images(inputs: Any) -> list[bytes]:
    """Return the encoded images of a data frame or a dict of arrays."""
    try:
        return [
            base64.b64decode(value, validate=True) if isinstance(value, str) else value for value in inputs["image"]
        ]
    except (KeyError, IndexError, TypeError, binascii.Error) as error:
        raise DataError("image: a column of encoded images is expected, as bytes or base64. Add it.") from error


def _load_pyfunc(path: str) -> MlflowModel:
    """Load the version in `path`, as MLflow asks its `loader_module`."""
    return MlflowModel(path)
