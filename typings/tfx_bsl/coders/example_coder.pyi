from collections.abc import Sequence

from pyarrow import RecordBatch

class ExamplesToRecordBatchDecoder:
    def __init__(self) -> None: ...
    def DecodeBatch(self, examples: Sequence[bytes]) -> RecordBatch: ...
