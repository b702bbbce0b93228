"""Directories on any pyarrow file system, for staging files, checkpoints and dead letters.

Files are written atomically: a file appears under its name complete and synced, or not at all.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from chaffinch.errors.codes import Group
from chaffinch.spark.refusals import Refusal, Remedy

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_HADOOP_SCHEMES = {"s3a": "s3", "s3n": "s3"}
_REASON_MAX: Final = 500
# File system options with secrets, such as `client_secret=...`.
_SECRET: Final = re.compile(r"([^&=]*(?:key|secret|token|password|credential|sig)[^&=]*=)[^&]*", re.IGNORECASE)
# Replaces the pyarrow message, which lists a hundred searched paths the first time and none later.
_HDFS_ADVICE: Final = (
    "pyarrow does not find the HDFS driver libhdfs.so, or the Java that it needs: install a Hadoop client and Java there, and set "
    "HADOOP_HOME, JAVA_HOME, and CLASSPATH to the output of `hadoop classpath --glob`"
)


STORAGE_FAILED: Final = "STORAGE_FAILED"
# Errors of the file system itself, not of the path: a retry may succeed.
_TRANSIENT_ERRNOS: Final = frozenset({
    errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ENOLCK,
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EPIPE, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EHOSTUNREACH,
    errno.ENETUNREACH, errno.ENETDOWN,
})  # fmt: skip
# The same for object stores, which report texts. curl code 6 means that the host does not exist.
_TRANSIENT_TEXT: Final = re.compile(
    r"AWS Error (?:NETWORK_CONNECTION(?!.*curlCode: 6\b)|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|REQUEST_TIMEOUT|THROTTLING)"
    r"|\bHTTP (?:status |status code )?5\d\d\b",
    re.DOTALL,
)


def _is_transient(error: Exception) -> bool:
    return isinstance(error, OSError) and (error.errno in _TRANSIENT_ERRNOS or _TRANSIENT_TEXT.search(str(error)) is not None)


def safe_name(query: str) -> str:
    """A query's id, token or name as the name of a folder or file. If characters are replaced, a digest keeps the name unique."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", query)[:80]
    return query if plain == query else f"{plain}-{hashlib.sha256(query.encode()).hexdigest()[:12]}"


class Folder:
    """A directory on any file system, given by its URI or local path. It pickles as its location and opens on first use.

    Errors of the file system become a Refusal that names `option`, the location, the path and the reason: LOCATION_NOT_USABLE, or
    STORAGE_FAILED if a retry may succeed.
    """

    def __init__(self, location: str, option: str) -> None:
        self.location = location
        self.option = option
        self._opened: tuple[Any, str] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return Folder, (self.location, self.option)

    def _at(self, location: str) -> Folder:
        return Folder(location, self.option)

    def below(self, *names: str) -> Folder:
        path, mark, query = _split(self.location)
        return self._at("/".join((path.rstrip("/"), *names)) + mark + query)

    def parent(self) -> Folder:
        """The parent of a folder that `below` returned."""
        path, mark, query = _split(self.location)
        return self._at(path.rpartition("/")[0] + mark + query)

    def opened(self) -> tuple[FileSystem, str]:
        """The file system and the folder's path on it."""
        if self._opened is None:
            from pyarrow import fs

            try:
                if "\0" in self.location:  # Pyarrow only notices it on first use, where the option is no longer known.
                    raise ValueError("a path cannot contain a null character")
                if "://" in (location := _normalized(self.location)):
                    self._opened = fs.FileSystem.from_uri(location)
                else:
                    self._opened = fs.LocalFileSystem(), os.path.abspath(location)
            except (OSError, ValueError, ImportError) as error:
                raise self.refusal("cannot be opened", error) from None
            if not self._opened[1]:
                self._opened = None
                raise self.refusal("cannot be opened", ValueError("it does not name a folder"))
        return self._opened

    @property
    def shown(self) -> str:
        """The location for messages, without credentials in the host part and without secret options."""
        # An unescaped password, which is why the location cannot be opened, may contain any character.
        shown = re.sub(r"(?<=://)([^/?]*|[^/?]*:.*)@", "...@", self.location)
        path, mark, query = _split(shown)
        return path + mark + _SECRET.sub(r"\1...", query)

    def refusal(self, what: str, error: Exception, remedy: str = "name a folder that driver and executors can write to") -> Refusal:
        reason = str(error)
        for form in (self.location, _normalized(self.location)):
            reason = reason.replace(form, self.shown)
        reason = _HDFS_ADVICE if re.search("libhdfs|libjvm", reason) else textwrap.shorten(reason, _REASON_MAX, placeholder=" ...")
        text = f"{self.option}={self.shown} {what}: {reason}"
        if _is_transient(error):
            return Refusal(Group.APPLICATION_RECOVERABLE, STORAGE_FAILED, text, Remedy.AGAIN)
        return Refusal(Group.INVALID_CONFIGURATION, "LOCATION_NOT_USABLE", f"{text}; {remedy}")

    @contextmanager
    def refusing(self, what: str) -> Iterator[None]:
        """Raise errors of the file system inside the block as a Refusal whose text contains `what`."""
        try:
            yield
        except OSError as error:
            raise self.refusal(what, error) from None

    def in_spark(self, name: str) -> str:
        """The location of a file for Spark: without the options of pyarrow, which Spark takes from its own configuration."""
        return f"{_split(self.location)[0].rstrip('/')}/{name}"

    def path(self, name: str) -> str:
        return f"{self.opened()[1].rstrip('/')}/{name}"

    def probe(self) -> None:
        """Check that the folder is writable: create it, write a small file and remove the file. Raises Refusal."""
        name = f".probe-{secrets.token_hex(4)}"
        self.write(name, [b"chaffinch"])
        self.remove(name)

    def write(self, name: str, parts: Iterable[Any]) -> None:
        """Write a file with these bytes atomically."""
        with self.replacing(name) as out:
            for part in parts:
                out.write(part)

    @contextmanager
    def replacing(self, name: str) -> Iterator[Any]:
        """A temporary file that replaces `name`, complete and synced, when the block succeeds. It is removed if the block fails."""
        filesystem, _ = self.opened()
        temporary = f".{name}.{secrets.token_hex(4)}.tmp"
        with self.refusing("cannot be written"):
            try:
                with self.created(temporary) as out:
                    yield out
                self._settle(self.path(temporary), name)
            except BaseException:
                with suppress(OSError):
                    filesystem.delete_file(self.path(temporary))
                raise

    def created(self, name: str) -> Any:
        """Open a new file for writing. Creates the folder if it is missing. Raises OSError."""
        filesystem, folder = self.opened()
        filesystem.create_dir(folder, recursive=True)
        return filesystem.open_output_stream(self.path(name))

    def sweep(self, pattern: str) -> None:
        """Remove the files whose whole names match a regular expression."""
        for found in self.names():
            if re.fullmatch(pattern, found):
                self.remove(found)

    def rename(self, name: str, new: str) -> None:
        """Rename a finished file, replacing an older file. No effect if it is missing, since another process may have renamed it."""
        filesystem, folder = self.opened()
        try:
            self._move(self.path(name), self.path(new))
            if filesystem.type_name == "local":
                _sync(folder)
        except OSError as error:
            with suppress(OSError):
                if not self._has(self.path(name)):
                    return
            raise self.refusal(f"has a file {name} that cannot be renamed to {new}", error) from None

    def _move(self, source: str, target: str) -> None:
        """Move a file, replacing an older one. If the file system cannot replace a file, like HDFS, the older one is deleted first.

        That is not atomic: a process that dies in between leaves neither file, and a concurrent caller may delete a file that was just
        renamed.
        """
        filesystem, _ = self.opened()
        try:
            filesystem.move(source, target)
        except OSError:
            if filesystem.type_name == "local" or not self._has(source):
                raise
            with suppress(FileNotFoundError):
                filesystem.delete_file(target)
            filesystem.move(source, target)

    def _has(self, path: str) -> bool:
        from pyarrow import fs

        return bool(self.opened()[0].get_file_info(path).type != fs.FileType.NotFound)

    def _settle(self, temporary: str, name: str) -> None:
        """Rename a finished file, replacing an older one. On a local file system, sync the file before and the folder after."""
        filesystem, folder = self.opened()
        is_local = filesystem.type_name == "local"
        if is_local:
            _sync(temporary)
        self._move(temporary, self.path(name))
        if is_local:
            _sync(folder)

    def read(self, name: str) -> bytes | None:
        """The contents of a small file; None if it does not exist."""
        filesystem, _ = self.opened()
        what = f"has a file {name} that cannot be read"
        with self.refusing(what), suppress(FileNotFoundError), filesystem.open_input_stream(self.path(name)) as file:
            data: bytes = file.read()
            return data
        return None

    def remove(self, name: str) -> None:
        """Remove a file. No effect if it does not exist."""
        filesystem, _ = self.opened()
        with self.refusing(f"has a file {name} that cannot be removed"), suppress(FileNotFoundError):
            filesystem.delete_file(self.path(name))

    def remove_all(self) -> None:
        """Remove the folder with everything in it. No effect if it does not exist."""
        filesystem, folder = self.opened()
        with self.refusing("cannot be removed"), suppress(FileNotFoundError):
            filesystem.delete_dir(folder)

    def names(self) -> list[str]:
        """Names in the folder; empty if it does not exist."""
        from pyarrow import fs

        filesystem, folder = self.opened()
        with self.refusing("cannot be listed"):
            return [found.base_name for found in filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))]


def create_private_directory(root: str) -> None:
    """Create a local directory for this user only, if it is missing.

    Its name is predictable, so another user may have created it first: raises PermissionError unless this user owns it and no other user
    can write to it.
    """
    with suppress(FileExistsError):
        os.makedirs(root, 0o700)
    found = os.lstat(root)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        seen = f"it belongs to user {found.st_uid}, with mode {stat.filemode(found.st_mode)}"
        raise PermissionError(f"{seen}; it must be a folder of user {os.getuid()} that no other user can write to")
    os.chmod(root, 0o700)


class PrivateFolder(Folder):
    """A private local directory under a predictable name: `root`, or a folder below it.

    It is created on first use, for this user only. A directory that another user may have created first is refused.
    """

    def __init__(self, root: str, option: str, location: str | None = None) -> None:
        super().__init__(root if location is None else location, option)
        self._root = root

    def __reduce__(self) -> tuple[object, ...]:
        return PrivateFolder, (self._root, self.option, self.location)

    def _at(self, location: str) -> Folder:
        return PrivateFolder(self._root, self.option, location)

    def opened(self) -> tuple[FileSystem, str]:
        if self._opened is None:
            self._create_root()
        return super().opened()

    def _create_root(self) -> None:
        with Folder(self._root, self.option).refusing("cannot be used"):
            create_private_directory(self._root)


def _normalized(location: str) -> str:
    """Converts locations of Hadoop (`file:/x`, `s3a://x`) to those of pyarrow."""
    # After two slashes comes a host, which pyarrow and Spark refuse: the rest is not the intended path.
    if found := re.match(r"^file:(?!//[^/])/+(.*)$", location):
        return f"/{found[1]}"
    if found := re.match(r"^([A-Za-z][A-Za-z0-9+.-]*):/(?!/)(.*)$", location):
        location = f"{found[1]}:///{found[2]}"
    scheme, separator, rest = location.partition("://")
    return f"{_HADOOP_SCHEMES.get(scheme, scheme)}{separator}{rest}"


def _split(location: str) -> tuple[str, str, str]:
    """Splits a location into path, `?` and query; the query holds pyarrow's file system options. A local path may contain `?`."""
    return location.partition("?") if "://" in location else (location, "", "")


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
