"""Staging of encoded batches for the committing process: in the task message up to 1 MiB, otherwise in a file (decision 36).

Any file system of pyarrow. A file belongs to one task attempt and is complete before its message exists, so retried, speculative and
zombie tasks cannot interfere. Layout below the staging location: `<query id>/<batch id>/<task>-<random>`. After the commit the
committing process removes the batch's folder and older ones.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from chaffinch.errors.codes import Group
from chaffinch.identifiers import TopicPartition
from chaffinch.records.uninitialized_buffer import uninitialized_buffer
from chaffinch.spark.commit.messages import INLINE_BYTES_MAX, STAGING_LOST, StagedBatch, StagedBytes
from chaffinch.spark.folders import Folder
from chaffinch.spark.refusals import Refusal, Remedy
from chaffinch.spark.worker_cache import LruCache

_UNWRITTEN = "cannot be written"
FILES_OPEN_MAX = 256
"""Each task has one file. Many systems limit a process to 1024 open files, including sockets."""


class StagedWriter:
    """Stages the bytes of one task attempt: in memory up to `inline_bytes_max`, then in one file in the folder that `spill` returns.

    `spill` is called when a file is needed, and raises Refusal if none can be created. Positions are offsets in the file, or in memory
    if there is no file.
    """

    def __init__(self, spill: Callable[[], Folder], name: str, *, inline_bytes_max: int = INLINE_BYTES_MAX) -> None:
        self._spill_folder = spill
        self._folder: Folder | None = None
        self._name = f"{name}-{secrets.token_hex(8)}"
        self._inline_bytes_max = inline_bytes_max
        self._parts: list[bytes | bytearray | memoryview] = []
        self._position = 0
        self._crcs: dict[int, int] = {}
        self._file: Any = None

    def append(self, data: bytes | bytearray | memoryview) -> tuple[int, int]:
        """Add bytes; returns their position and count for `staged`. Raises Refusal if a file is needed and cannot be written."""
        start = self._position
        self._position += len(data)
        self._crcs[start] = _crc(data)
        if self._file is None and self._position > self._inline_bytes_max:
            self._spill()
        if self._file is None:
            self._parts.append(data)
        else:
            self._write(data)
        return start, len(data)

    def staged(self, span: tuple[int, int]) -> StagedBytes:
        """The staged bytes of an `append`, for the task message. Call it after `close`."""
        position, count = span
        if self._file is not None:
            return StagedBytes(file=self._name, position=position, byte_count=count, crc=self._crcs[position])
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return StagedBytes(data=bytes(self._parts[0][position : position + count]), byte_count=count)

    def close(self) -> None:
        if self._file is not None:
            assert self._folder is not None
            with self._folder.refusing(_UNWRITTEN):
                self._file.close()

    def discard(self) -> None:
        """Remove the staged file of a failed attempt. Never raises, so that the cause of the failure is reported."""
        if self._file is not None:
            assert self._folder is not None
            with suppress(OSError, ValueError):
                self._file.close()
            with suppress(Refusal):
                self._folder.remove(self._name)

    def _spill(self) -> None:
        self._folder = self._spill_folder()
        with self._folder.refusing(_UNWRITTEN):
            self._file = self._folder.created(self._name)
        for part in self._parts:
            self._write(part)
        self._parts = []

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        assert self._folder is not None
        with self._folder.refusing(_UNWRITTEN):
            self._file.write(data)


class DeadLetterStore:
    """Holds dead letters that the committing process creates, until they are pushed: in memory up to `inline_bytes_max`, then in files of
    about that size. Call `discard` at the end of the commit.
    """

    def __init__(self, folder: Folder, *, inline_bytes_max: int = INLINE_BYTES_MAX) -> None:
        """`folder`: the staging folder of the batch."""
        self.files: list[str] = []
        self._folder = folder
        self._inline_bytes_max = inline_bytes_max
        self._inline_bytes = 0
        self._open: bytearray | None = None
        """Content of the last file, not written yet."""

    def keep(self, data: bytes | bytearray) -> StagedBytes:
        """Add bytes. Raises Refusal if a file is needed and cannot be written."""
        if self._inline_bytes + len(data) <= self._inline_bytes_max:
            self._inline_bytes += len(data)
            return StagedBytes(data=bytes(data), byte_count=len(data))
        if self._open is None:
            self._open = bytearray()
            self.files.append(f"broker-{secrets.token_hex(8)}")
        staged = StagedBytes(file=self.files[-1], position=len(self._open), byte_count=len(data), crc=_crc(data))
        self._open += data
        if len(self._open) >= self._inline_bytes_max:
            self.flush()
        return staged

    def flush(self) -> None:
        """Write the open file, so that everything added so far can be read."""
        if self._open is None:
            return
        data, self._open = self._open, None
        with self._folder.refusing(_UNWRITTEN), self._folder.created(self.files[-1]) as out:
            out.write(data)

    def discard(self) -> None:
        """Remove the files. Never raises, because leftover files only take space."""
        self._open = None
        for name in self.files:
            with suppress(Refusal):
                self._folder.remove(name)


class StagedReader:
    """Reads staged bytes of tasks. Keeps the most recently used files open, up to `FILES_OPEN_MAX`, until `close`."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._files: LruCache[str, Any] = LruCache(lambda file: file.close(), count_max=FILES_OPEN_MAX)

    def read(self, staged: StagedBytes) -> bytearray:
        """Read staged bytes into a new buffer. Raises Refusal if the file is missing, too short, or does not match its checksum."""
        if staged.data is not None:
            return bytearray(staged.data)
        assert staged.file is not None
        found = uninitialized_buffer(staged.byte_count)
        try:
            file = self._file(staged.file)
            if file.tell() != staged.position:
                file.seek(staged.position)
            count = file.readinto(found)
        except OSError as error:
            raise self._lost(staged, str(error)) from None
        if count != staged.byte_count:
            raise self._lost(staged, f"{count} bytes at {staged.position} where {staged.byte_count} were staged")
        if staged.crc is not None and (seen := _crc(found)) != staged.crc:
            raise self._lost(staged, f"{count} bytes at {staged.position} have checksum {seen:08x}, those staged had {staged.crc:08x}")
        return found

    def _file(self, name: str) -> Any:
        return self._files.get(name, lambda: self._folder.opened()[0].open_input_file(self._folder.path(name)))

    def _lost(self, staged: StagedBytes, reason: str) -> Refusal:
        text = f"staged file {self._folder.shown}/{staged.file} cannot be read back: {' '.join(reason.split())}"
        return Refusal(Group.APPLICATION_RECOVERABLE, STAGING_LOST, text, Remedy.AGAIN)

    def close(self) -> None:
        self._files.clear()


def _crc(data: bytes | bytearray | memoryview) -> int:
    from chaffinch.records.checksum import crc32c  # Imported late: planners import this module and never compute checksums.

    return crc32c(data)


def staged_batches(writer: StagedWriter, spans: Iterable[tuple[TopicPartition, int, tuple[int, int]]]) -> tuple[StagedBatch, ...]:
    """Batches of a closed writer, from (partition, record count, span)."""
    return tuple(
        StagedBatch(topic_partition=topic_partition, record_count=count, bytes=writer.staged(span))
        for topic_partition, count, span in spans
    )
