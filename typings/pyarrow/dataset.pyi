"""Folders of files as one table."""

from collections.abc import Iterator
from os import PathLike

from pyarrow import RecordBatch

class Dataset:
    def to_batches(self) -> Iterator[RecordBatch]: ...

def dataset(source: str | PathLike[str], *, format: str | None = None, exclude_invalid_files: bool | None = None) -> Dataset: ...
