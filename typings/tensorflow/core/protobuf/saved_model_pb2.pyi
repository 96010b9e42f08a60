from collections.abc import Sequence

from google.protobuf.internal.containers import MessageMap, RepeatedCompositeFieldContainer
from google.protobuf.message import Message

class _TensorProto(Message):
    dtype: int

class _AttrValue(Message):
    s: bytes
    tensor: _TensorProto

class _NodeDef(Message):
    name: str
    op: str
    attr: MessageMap[str, _AttrValue]

class _OpDef(Message):
    name: str

class _ArgAttrs(Message):
    attr: MessageMap[str, _AttrValue]

class _FunctionDef(Message):
    signature: _OpDef
    arg_attr: MessageMap[int, _ArgAttrs]
    node_def: RepeatedCompositeFieldContainer[_NodeDef]

class _FunctionDefLibrary(Message):
    function: RepeatedCompositeFieldContainer[_FunctionDef]

class _GraphDef(Message):
    node: Sequence[_NodeDef]
    library: _FunctionDefLibrary

class _MetaGraphDef(Message):
    graph_def: _GraphDef

class SavedModel(Message):
    meta_graphs: Sequence[_MetaGraphDef]
    @staticmethod
    def FromString(s: bytes) -> SavedModel: ...
