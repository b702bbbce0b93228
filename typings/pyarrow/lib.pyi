"""Arrow's numbers for types, what `DataType.id` gives, and what writers have in common."""

from types import TracebackType
from typing import Self

from pyarrow import RecordBatch, Table

Type_NA: int
Type_BINARY: int
Type_STRING: int
Type_LARGE_BINARY: int
Type_LARGE_STRING: int
Type_BINARY_VIEW: int
Type_STRING_VIEW: int
Type_FIXED_SIZE_BINARY: int
Type_LIST: int
Type_LARGE_LIST: int
Type_MAP: int
Type_DICTIONARY: int
Type_STRUCT: int

class _CRecordBatchWriter:
    def write_batch(self, batch: RecordBatch) -> None: ...
    def write_table(self, table: Table, max_chunksize: int | None = None) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> None: ...
