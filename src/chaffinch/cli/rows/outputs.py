"""Output files of commands: stdout, a file written in place, or a file replaced atomically."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Final, NamedTuple

from chaffinch.cli.main import DISK_FULL_ERRNOS, STDOUT
from chaffinch.cli.rows.standard_input import can_block

_DESCRIPTOR_PATH: Final = re.compile(r"(?:/dev|/proc/(?P<process>\d+)(?:/task/\d+)?)/fd/(?P<number>\d{1,9})")
_LINKS_MAX: Final = 40
"""Limit of Linux on the symbolic links in a path."""
_NOT_REPLACEABLE_ERRNOS: Final = (errno.EBUSY, errno.EPERM, errno.EACCES)
_WRITE_ERRNOS: Final = (*DISK_FULL_ERRNOS, errno.EIO, errno.EBADF)


class Output(NamedTuple):
    """An open output file. `publish()` replaces the old file with the content of `file`.

    `may_block`: a write may block until the other end reads. `is_streamed`: the reader gets written bytes immediately, even if a later
    write fails.
    """

    file: IO[bytes]
    publish: Callable[[], None]
    may_block: bool
    is_streamed: bool


@contextmanager
def open_output(path: str | None) -> Iterator[IO[bytes]]:
    """Open a file for writing, or stdout. Errors about a full disk name the file, which the system's own errors do not."""
    with _name_in_errors(path):
        if path is None:
            yield sys.stdout.buffer
            return
        descriptor = _own_descriptor(path)
        with open(path if descriptor is None else os.dup(descriptor), "wb") as file:
            yield file


def _own_descriptor(path: str) -> int | None:
    """The descriptor of this process that `path` names (/dev/stdout), or None. Opening such a file by name would truncate it."""
    found = _match_descriptor(path)
    return int(found["number"]) if found is not None and found["process"] in (None, str(os.getpid())) else None


def _match_descriptor(path: str) -> re.Match[str] | None:
    """Match of a path that names an open descriptor of a process, or None.

    Symbolic links are followed one by one: /dev/stdout is a link, and the last link would lead to the file itself.
    """
    for _ in range(_LINKS_MAX):
        folder, name = os.path.split(os.path.abspath(path))
        path = os.path.join(os.path.realpath(folder), name)
        if (found := _DESCRIPTOR_PATH.fullmatch(path)) is not None:
            return found
        if not os.path.islink(path):
            break
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    return None


@contextmanager
def open_replacement(path: str | None, *, is_followed: bool) -> Iterator[Output]:
    """Like `open_output`, but the old file stays until `publish` replaces it, and stays if `publish` is not called.

    Pipes, devices and files that cannot be replaced are written in place, as well as a file that `is_followed` while it grows.
    """
    if path is None or is_followed or _must_write_in_place(path):
        with open_output(path) as file:
            yield Output(file, lambda: None, can_block(file), is_streamed=True)
        return
    name = os.path.realpath(path)
    temporary = os.path.join(os.path.dirname(name), f".chaffinch-{secrets.token_hex(8)}")
    with _name_in_errors(path, temporary):
        try:
            with open(temporary, "xb") as file:
                _copy_mode(file, path)
                yield Output(file, lambda: _rename(file, temporary, name), may_block=False, is_streamed=False)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)


def _must_write_in_place(path: str) -> bool:
    """Whether the path exists and is not a regular file, is an open descriptor, or lies in a directory without write permission."""
    if not os.path.exists(path):
        return False
    return (
        _match_descriptor(path) is not None or not os.path.isfile(path) or not os.access(os.path.dirname(os.path.realpath(path)), os.W_OK)
    )


def _copy_mode(file: IO[bytes], path: str) -> None:
    """Copy the mode of the old file. Raises OSError if the user has no permission to write it."""
    with suppress(FileNotFoundError), open(path, "r+b") as before:
        os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(before.fileno()).st_mode))


def _rename(file: IO[bytes], temporary: str, name: str) -> None:
    file.flush()
    os.fsync(file.fileno())  # Otherwise the file could be empty after a power failure.
    try:
        os.replace(temporary, name)
    except OSError as error:  # For example a bind mount in a container, or another user's file in a shared directory.
        if error.errno not in _NOT_REPLACEABLE_ERRNOS:
            raise
        with open(temporary, "rb") as source, open(name, "r+b") as target:
            shutil.copyfileobj(source, target)
            target.truncate()
            target.flush()
            os.fsync(target.fileno())


@contextmanager
def _name_in_errors(path: str | None, temporary: str | None = None) -> Iterator[None]:
    """Errors name the requested path instead of the temporary file."""
    try:
        yield
    except OSError as error:
        if error.errno in _WRITE_ERRNOS or (temporary is not None and error.filename == temporary):
            raise OSError(error.errno, os.strerror(error.errno or 0), path or STDOUT) from None
        raise
