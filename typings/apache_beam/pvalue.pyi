from typing import Any

from apache_beam import PCollection

class TaggedOutput:
    def __init__(self, tag: str, value: object) -> None: ...

class DoOutputsTuple:
    def __getitem__(self, tag: str) -> PCollection[Any]: ...
