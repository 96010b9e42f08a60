from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from pyarrow import RecordBatch, Schema, Table

class RowGroupMetaData:
    num_rows: int
    total_byte_size: int

class FileMetaData:
    num_rows: int
    num_row_groups: int
    def row_group(self, i: int) -> RowGroupMetaData: ...

class ParquetFile(AbstractContextManager[ParquetFile]):
    metadata: FileMetaData
    num_row_groups: int
    schema_arrow: Schema
    def __init__(self, source: str | IO[bytes], *, coerce_int96_timestamp_unit: str | None = None) -> None: ...
    def __exit__(self, *error: object) -> None: ...
    def iter_batches(
        self, batch_size: int, *, row_groups: Sequence[int] | None = None, columns: Sequence[str]
    ) -> Iterator[RecordBatch]: ...
    def read(self, columns: Sequence[str]) -> Table: ...
    def read_row_group(self, i: int, *, columns: Sequence[str]) -> Table: ...

class ParquetWriter:
    def __init__(
        self,
        where: IO[bytes] | Path,
        schema: Schema,
        *,
        compression: str,
        use_dictionary: list[str] | bool = True,
    ) -> None: ...
    def write_table(self, table: Table) -> None: ...
    def write_batch(self, batch: RecordBatch) -> None: ...
    def close(self) -> None: ...

def read_metadata(where: str | IO[bytes]) -> FileMetaData: ...
def read_schema(where: str | IO[bytes]) -> Schema: ...
