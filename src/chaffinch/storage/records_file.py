"""The file of a segment for those who send from it."""

from __future__ import annotations

from chaffinch.storage.files import CorruptLog, HeldFile, ReadableFile


class RecordsFile:
    """A `Source` of stretches."""

    __slots__ = ("_file",)

    def __init__(self, file: ReadableFile) -> None:
        self._file = file

    def read(self, position: int, length: int) -> bytes:
        """Raises StorageError; CorruptLog if the file ends before."""
        data = self._file.read(position, length)
        if len(data) != length:
            raise CorruptLog(self._file.path, position + len(data), "the file ends here, before a batch that was written")
        return data

    def descriptor(self) -> int | None:
        return self._file.descriptor()

    def held(self) -> HeldRecordsFile | None:
        held = self._file.held()
        return None if held is None else HeldRecordsFile(held)


class HeldRecordsFile(RecordsFile):
    """One that is there until `close`, whatever becomes of the segment."""

    __slots__ = ("close",)

    def __init__(self, file: HeldFile) -> None:
        super().__init__(file)
        self.close = file.close
