from collections.abc import Callable
from typing import IO

class Group:
    def visititems(self, func: Callable[[str, Group | Dataset], object]) -> object: ...

class File(Group):
    def __init__(self, name: IO[bytes], mode: str) -> None: ...
    def __enter__(self) -> File: ...
    def __exit__(self, *error: object) -> None: ...

class Dataset:
    nbytes: int
    is_virtual: bool
    external: list[tuple[str, int, int]] | None
