from collections.abc import Sequence

from google.protobuf.message import Message
from pyarrow import RecordBatch, Schema

class TensorAdapterConfig:
    arrow_schema: Schema

class RecordBatchToExamplesEncoder:
    def encode(self, record_batch: RecordBatch) -> list[bytes]: ...

class TFExampleBeamRecord:
    def __init__(self, *, physical_format: str, telemetry_descriptors: Sequence[str], schema: Message) -> None: ...
    def TensorAdapterConfig(self) -> TensorAdapterConfig: ...
