from collections.abc import Mapping
from typing import Any

class KerasFileEditor:
    weights_dict: Mapping[str, Any]
    object_metadata: Mapping[str, Mapping[str, object]]
    def __init__(self, filepath: str) -> None: ...
