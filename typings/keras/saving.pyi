from collections.abc import Mapping
from typing import Any

def deserialize_keras_object(config: Mapping[str, Any], *, safe_mode: bool) -> Any: ...

class KerasFileEditor:
    weights_dict: Mapping[str, Any]
    object_metadata: Mapping[str, Mapping[str, object]]
    def __init__(self, filepath: str) -> None: ...
    def _extract_weights_from_store(
        self, data: Mapping[str, Any], metadata: dict[str, Mapping[str, object]] | None = None, inner_path: str = ""
    ) -> tuple[dict[str, Any], dict[str, Mapping[str, object]]]: ...
