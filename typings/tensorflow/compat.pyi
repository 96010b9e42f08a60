from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from numpy.typing import NDArray
from tensorflow import Graph

class v1:
    @staticmethod
    def get_default_graph() -> Graph: ...

    class Session:
        def __init__(self, *, graph: Graph) -> None: ...
        def __enter__(self) -> v1.Session: ...
        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None: ...
        def run(self, fetches: Sequence[str], feed_dict: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]: ...
