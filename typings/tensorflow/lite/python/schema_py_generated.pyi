from flatbuffers import Builder
from numpy import int32, uint8
from numpy.typing import NDArray

class BuiltinOperator:
    ADD: int
    EXP: int
    MUL: int

class TensorType:
    FLOAT32: int
    INT8: int

class BuiltinOptions:
    AddOptions: int
    ExpOptions: int
    MulOptions: int

class AddOptionsT: ...
class ExpOptionsT: ...
class MulOptionsT: ...

class BufferT:
    data: NDArray[uint8] | None

class TensorT:
    name: bytes
    type: int
    shape: NDArray[int32] | None
    buffer: int

class OperatorCodeT:
    builtinCode: int
    deprecatedBuiltinCode: int

class OperatorT:
    opcodeIndex: int
    inputs: NDArray[int32]
    outputs: NDArray[int32]
    builtinOptionsType: int
    builtinOptions: AddOptionsT | ExpOptionsT | MulOptionsT

class SubGraphT:
    tensors: list[TensorT]
    outputs: NDArray[int32]
    operators: list[OperatorT]

class TensorMapT:
    name: bytes
    tensorIndex: int

class SignatureDefT:
    outputs: list[TensorMapT]

class ModelT:
    subgraphs: list[SubGraphT]
    operatorCodes: list[OperatorCodeT]
    buffers: list[BufferT]
    signatureDefs: list[SignatureDefT]
    @classmethod
    def InitFromPackedBuf(cls, buf: bytes) -> ModelT: ...
    def Pack(self, builder: Builder) -> int: ...
