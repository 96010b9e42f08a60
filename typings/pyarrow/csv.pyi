from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from pyarrow import BufferReader, DataType, RecordBatch, Schema, Table

class ReadOptions:
    def __init__(self, *, use_threads: bool, block_size: int, column_names: Sequence[str]) -> None: ...

class ParseOptions:
    def __init__(
        self,
        *,
        delimiter: str = ",",
        newlines_in_values: bool,
        ignore_empty_lines: bool = True,
        invalid_row_handler: Callable[[Any], str] | None = None,
    ) -> None: ...

class ConvertOptions:
    def __init__(
        self,
        *,
        check_utf8: bool = True,
        column_types: Mapping[str, DataType],
        include_columns: Sequence[str] = (),
        null_values: Sequence[str] = (),
        strings_can_be_null: bool = False,
        decimal_point: str = ".",
    ) -> None: ...

class CSVWriter:
    def __init__(self, sink: IO[bytes], schema: Schema) -> None: ...
    def write_batch(self, batch: RecordBatch) -> None: ...
    def close(self) -> None: ...

def read_csv(
    input_file: BufferReader,
    read_options: ReadOptions,
    parse_options: ParseOptions,
    convert_options: ConvertOptions,
) -> Table: ...
