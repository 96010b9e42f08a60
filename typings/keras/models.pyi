from collections.abc import Callable
from os import PathLike
from typing import Any

from keras import Model

def clone_model(
    model: Model, input_tensors: object = ..., clone_function: Callable[[Any], Any] | None = None
) -> Model: ...
def load_model(filepath: str | PathLike[str], *, compile: bool, safe_mode: bool) -> Model: ...
def model_from_json(json_string: str) -> Model: ...
