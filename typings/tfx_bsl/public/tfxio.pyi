from collections.abc import Sequence

from google.protobuf.message import Message
from pyarrow import Schema

class TensorAdapterConfig:
    arrow_schema: Schema

class TFExampleBeamRecord:
    def __init__(self, *, physical_format: str, telemetry_descriptors: Sequence[str], schema: Message) -> None: ...
    def TensorAdapterConfig(self) -> TensorAdapterConfig: ...
