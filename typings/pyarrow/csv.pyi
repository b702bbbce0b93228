"""Files of CSV."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from pyarrow import DataType, RecordBatch, RecordBatchReader, Schema, Sink, Source, Table

class InvalidRow(NamedTuple):
    expected_columns: int
    actual_columns: int
    number: int | None
    text: str

class ReadOptions:
    def __init__(
        self, *, use_threads: bool | None = None, block_size: int | None = None, column_names: Sequence[str] | None = None
    ) -> None: ...

class ParseOptions:
    def __init__(
        self,
        *,
        newlines_in_values: bool | None = None,
        invalid_row_handler: Callable[[InvalidRow], Literal["skip", "error"]] | None = None,
    ) -> None: ...

class ConvertOptions:
    def __init__(
        self,
        *,
        column_types: Mapping[str, DataType] | None = None,
        null_values: Sequence[str] | None = None,
        strings_can_be_null: bool | None = None,
        quoted_strings_can_be_null: bool | None = None,
    ) -> None: ...

class CSVStreamingReader(RecordBatchReader): ...

class CSVWriter:
    def __init__(self, sink: Sink, schema: Schema) -> None: ...
    def write_batch(self, batch: RecordBatch) -> None: ...
    def close(self) -> None: ...

def open_csv(
    input_file: Source,
    read_options: ReadOptions | None = None,
    parse_options: ParseOptions | None = None,
    convert_options: ConvertOptions | None = None,
) -> CSVStreamingReader: ...
def read_csv(
    input_file: Source,
    read_options: ReadOptions | None = None,
    parse_options: ParseOptions | None = None,
    convert_options: ConvertOptions | None = None,
) -> Table: ...
