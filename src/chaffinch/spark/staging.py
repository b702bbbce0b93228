"""Where tasks leave encoded batches for the committing process: inside their message, or in a file beyond 1 MiB (decision 36).

Any file system that pyarrow knows. A file belongs to one task attempt alone and is complete before its message exists, so
attempts never meet: retried, speculated and zombie tasks are harmless. Layout below the staging location:
`<query id>/<batch id>/<task>-<random>`; the committing process removes the batch's folder, and older ones, after the commit.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from chaffinch.errors.codes import Group
from chaffinch.identifiers import TopicPartition
from chaffinch.spark.commit_messages import INLINE_BYTES_MAX, StagedBatch, StagedBytes
from chaffinch.spark.refusals import Refusal

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_HADOOP_SCHEMES = {"s3a": "s3", "s3n": "s3"}


def name_of(query: str) -> str:
    """A query's id, token or name as the name of a folder or file; where characters had to go, a digest tells it from its like."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", query)[:80]
    return query if plain == query else f"{plain}-{hashlib.sha256(query.encode()).hexdigest()[:12]}"


class Folder:
    """A folder on any file system, by its URI or local path. Pickled as its location; opened on first use.

    Errors of the file system become a Refusal that names `option`, the location, the path and the reason.
    """

    def __init__(self, location: str, option: str) -> None:
        self.location = location
        self.option = option
        self._opened: tuple[Any, str] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return Folder, (self.location, self.option)

    def below(self, *names: str) -> Folder:
        path, mark, query = _split(self.location)
        return Folder("/".join((path.rstrip("/"), *names)) + mark + query, self.option)

    def parent(self) -> Folder:
        """Of a folder that `below` has made."""
        path, mark, query = _split(self.location)
        return Folder(path.rpartition("/")[0] + mark + query, self.option)

    def opened(self) -> tuple[FileSystem, str]:
        """The file system and the folder's path on it."""
        if self._opened is None:
            from pyarrow import fs

            try:
                if "://" in (location := _normalised(self.location)):
                    self._opened = fs.FileSystem.from_uri(location)
                else:
                    self._opened = fs.LocalFileSystem(), os.path.abspath(location)
            except (OSError, ValueError, ImportError) as error:
                raise self.refusal("cannot be opened", error) from None
        return self._opened

    def refusal(self, what: str, error: Exception) -> Refusal:
        reason = " ".join(str(error).split())
        text = f"{self.option}={self.location} {what}: {reason}; name a folder that driver and executors can write to"
        return Refusal(Group.INVALID_CONFIGURATION, "LOCATION_NOT_USABLE", text)

    def path(self, name: str) -> str:
        return f"{self.opened()[1].rstrip('/')}/{name}"

    def probe(self) -> None:
        """Refuses a folder that cannot be written: creates it, writes a small file and removes it."""
        name = f".probe-{secrets.token_hex(4)}"
        self.write(name, [b"chaffinch"])
        self.remove(name)

    def write(self, name: str, parts: Iterable[Any]) -> None:
        """A file with these bytes, whole and synced under its name."""
        with self.replacing(name) as temporary, self.opened()[0].open_output_stream(temporary) as out:
            for part in parts:
                out.write(part)

    @contextmanager
    def replacing(self, name: str) -> Iterator[str]:
        """A path for a file that takes `name`'s place, whole and synced, when all went well, and is removed when it did not."""
        filesystem, folder = self.opened()
        temporary = self.path(f".{name}.{secrets.token_hex(4)}.tmp")
        try:
            filesystem.create_dir(folder, recursive=True)
            yield temporary
            self.settle(temporary, name)
        except BaseException as error:
            with suppress(OSError):
                filesystem.delete_file(temporary)
            if isinstance(error, OSError):
                raise self.refusal("cannot be written", error) from None
            raise

    def sweep(self, name: str) -> None:
        """Removes what a killed process left of files that were to take names of this pattern (a regular expression)."""
        for found in self.names():
            if re.fullmatch(rf"\.{name}\.[0-9a-f]{{8}}\.tmp", found):
                self.remove(found)

    def settle(self, temporary: str, name: str) -> None:
        """Renames a finished file to its name, over an older one, and makes both durable where the file system is a local one."""
        filesystem, folder = self.opened()
        is_local = filesystem.type_name == "local"
        if is_local:
            _sync(temporary)
        else:
            self.remove(name)
        filesystem.move(temporary, self.path(name))
        if is_local:
            _sync(folder)

    def read(self, name: str) -> bytes | None:
        """A whole small file; None where there is none."""
        filesystem, _ = self.opened()
        try:
            with filesystem.open_input_stream(self.path(name)) as file:
                data: bytes = file.read()
                return data
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self.refusal(f"has a file {name} that cannot be read", error) from None

    def remove(self, name: str) -> None:
        """Removes a file; none there is fine."""
        filesystem, _ = self.opened()
        try:
            filesystem.delete_file(self.path(name))
        except FileNotFoundError:
            return
        except OSError as error:
            raise self.refusal(f"has a file {name} that cannot be removed", error) from None

    def remove_all(self) -> None:
        """Removes the folder with everything in it; none there is fine."""
        filesystem, folder = self.opened()
        try:
            filesystem.delete_dir(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self.refusal("cannot be removed", error) from None

    def names(self) -> list[str]:
        """Names in the folder; none where it does not exist."""
        from pyarrow import fs

        filesystem, folder = self.opened()
        try:
            return [found.base_name for found in filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))]
        except OSError as error:
            raise self.refusal("cannot be listed", error) from None


class StagedWriter:
    """Collects what one task attempt stages: in memory up to `inline_bytes_max`, then in one file below `folder`.

    Positions are those of the file; without one, `staged` cuts the bytes out of memory.
    """

    def __init__(self, folder: Folder | None, name: str, *, missing_folder: str, inline_bytes_max: int = INLINE_BYTES_MAX) -> None:
        self._folder = folder
        self._name = f"{name}-{secrets.token_hex(8)}"
        self._missing_folder = missing_folder
        self._inline_bytes_max = inline_bytes_max
        self._parts: list[bytes | bytearray | memoryview] = []
        self._position = 0
        self._file: Any = None

    def append(self, data: bytes | bytearray | memoryview) -> tuple[int, int]:
        """Takes the bytes; returns position and count for `staged`. Raises Refusal where they need a file and none can be written."""
        start = self._position
        self._position += len(data)
        if self._file is None and self._position > self._inline_bytes_max:
            self._spill()
        if self._file is None:
            self._parts.append(data)
        else:
            self._write(data)
        return start, len(data)

    def staged(self, span: tuple[int, int]) -> StagedBytes:
        """What `append` returned, as it travels in the message; only after `close`."""
        position, count = span
        if self._file is not None:
            return StagedBytes(file=self._name, position=position, byte_count=count)
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return StagedBytes(data=bytes(self._parts[0][position : position + count]), byte_count=count)

    def close(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                assert self._folder is not None
                raise self._folder.refusal("cannot be written", error) from None

    def discard(self) -> None:
        """Removes what was staged: the attempt has failed. Never raises, so that its own reason is told."""
        if self._file is not None:
            assert self._folder is not None
            with suppress(OSError, ValueError):
                self._file.close()
            with suppress(Refusal):
                self._folder.remove(self._name)

    def _spill(self) -> None:
        if self._folder is None:
            raise Refusal(Group.INVALID_CONFIGURATION, "STAGING_LOCATION_MISSING", self._missing_folder)
        filesystem, folder = self._folder.opened()
        try:
            filesystem.create_dir(folder, recursive=True)
            self._file = filesystem.open_output_stream(self._folder.path(self._name))
        except OSError as error:
            raise self._folder.refusal("cannot be written", error) from None
        for part in self._parts:
            self._write(part)
        self._parts = []

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            assert self._folder is not None
            raise self._folder.refusal("cannot be written", error) from None


class StagedReader:
    """Reads what tasks staged; keeps the files open until `close`."""

    def __init__(self, folder: Folder | None) -> None:
        self._folder = folder
        self._files: dict[str, Any] = {}

    def read(self, staged: StagedBytes) -> bytearray:
        """The bytes, in a buffer of the caller's own. Raises Refusal where the file is gone or shorter than promised."""
        if staged.data is not None:
            return bytearray(staged.data)
        assert staged.file is not None
        if self._folder is None:
            raise Refusal(Group.APPLICATION_RECOVERABLE, "STAGING_LOST", f"staged file {staged.file} has no location in this process")
        try:
            file = self._files.get(staged.file)
            if file is None:
                file = self._files[staged.file] = self._folder.opened()[0].open_input_file(self._folder.path(staged.file))
            found = bytearray(memoryview(file.read_buffer(staged.byte_count) if file.tell() == staged.position else self._at(file, staged)))
        except OSError as error:
            raise self._lost(staged, str(error)) from None
        if len(found) != staged.byte_count:
            raise self._lost(staged, f"{len(found)} bytes at {staged.position} where {staged.byte_count} were staged")
        return found

    @staticmethod
    def _at(file: Any, staged: StagedBytes) -> Any:
        file.seek(staged.position)
        return file.read_buffer(staged.byte_count)

    def _lost(self, staged: StagedBytes, reason: str) -> Refusal:
        location = self._folder.location if self._folder is not None else ""
        text = (
            f"staged file {location}/{staged.file} cannot be read back: {' '.join(reason.split())}; the batch is staged again by a restart"
        )
        return Refusal(Group.APPLICATION_RECOVERABLE, "STAGING_LOST", text)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def staged_batches(writer: StagedWriter, spans: Iterable[tuple[TopicPartition, int, tuple[int, int]]]) -> tuple[StagedBatch, ...]:
    """Batches of a closed writer, from (partition, record count, span)."""
    return tuple(
        StagedBatch(topic_partition=topic_partition, record_count=count, bytes=writer.staged(span))
        for topic_partition, count, span in spans
    )


def _normalised(location: str) -> str:
    """Hadoop's spellings of a location (`file:/x`, `s3a://x`) as pyarrow's."""
    if found := re.match(r"^file:/+(.*)$", location):
        return f"/{found[1]}"
    if found := re.match(r"^([A-Za-z][A-Za-z0-9+.-]*):/(?!/)(.*)$", location):
        location = f"{found[1]}:///{found[2]}"
    scheme, separator, rest = location.partition("://")
    return f"{_HADOOP_SCHEMES.get(scheme, scheme)}{separator}{rest}"


def _split(location: str) -> tuple[str, str, str]:
    """A location as path, `?` and query: pyarrow takes options of a file system there; a local path may hold the character."""
    return location.partition("?") if "://" in location else (location, "", "")


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
