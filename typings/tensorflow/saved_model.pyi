from collections.abc import Mapping

from tensorflow import Module, _ConcreteFunction

class _Loaded:
    signatures: Mapping[str, _ConcreteFunction]
    transform_fn: _ConcreteFunction  # of tf.Transform's graphs

def load(export_dir: str) -> _Loaded: ...
def save(obj: Module, export_dir: str, signatures: Mapping[str, _ConcreteFunction] | None = None) -> None: ...
