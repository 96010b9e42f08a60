from collections.abc import MutableSequence, Sequence
from typing import Literal

from google.protobuf.internal.containers import MessageMap
from google.protobuf.message import Message

class BytesList(Message):
    value: MutableSequence[bytes]
    def __init__(self, *, value: Sequence[bytes] = ...) -> None: ...

class FloatList(Message):
    value: MutableSequence[float]
    def __init__(self, *, value: Sequence[float] = ...) -> None: ...

class Int64List(Message):
    value: MutableSequence[int]
    def __init__(self, *, value: Sequence[int] = ...) -> None: ...

class Feature(Message):
    bytes_list: BytesList
    float_list: FloatList
    int64_list: Int64List
    def __init__(
        self, *, bytes_list: BytesList = ..., float_list: FloatList = ..., int64_list: Int64List = ...
    ) -> None: ...
    def WhichOneof(self, oneof_group: str) -> Literal["bytes_list", "float_list", "int64_list"] | None: ...

class Features(Message):
    feature: MessageMap[str, Feature]
    def __init__(self, *, feature: dict[str, Feature] = ...) -> None: ...

class Example(Message):
    features: Features
    def __init__(self, *, features: Features = ...) -> None: ...
    @staticmethod
    def FromString(s: bytes) -> Example: ...
