from google.protobuf.message import Message

class FingerprintDef(Message):
    uuid: str
    graph_def_program_hash: int
    @staticmethod
    def FromString(s: bytes) -> FingerprintDef: ...
