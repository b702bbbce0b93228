"""What commands write to: stdout, or a file by its name."""

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
"""As many as Linux follows."""
_NOT_REPLACEABLE_ERRNOS: Final = (errno.EBUSY, errno.EPERM, errno.EACCES)
_WRITE_ERRNOS: Final = (*DISK_FULL_ERRNOS, errno.EIO, errno.EBADF)


class Output(NamedTuple):
    """`publish`: what is in `file` by now is what was wanted. `may_block`: a write may last until somebody reads.
    `is_streamed`: what is written is with whoever reads it, whatever becomes of the rest."""

    file: IO[bytes]
    publish: Callable[[], None]
    may_block: bool
    is_streamed: bool


@contextmanager
def open_output(path: str | None) -> Iterator[IO[bytes]]:
    """A file to write, or stdout; where it takes no more, the error names it, which the system's does not."""
    with _name_in_errors(path):
        if path is None:
            yield sys.stdout.buffer
            return
        descriptor = _own_descriptor(path)
        with open(path if descriptor is None else os.dup(descriptor), "wb") as file:
            yield file


def _own_descriptor(path: str) -> int | None:
    """Of what this process, or the shell for it, has opened: opened anew by its name, a file would be cut off and begun again."""
    found = _match_descriptor(path)
    return int(found["number"]) if found is not None and found["process"] in (None, str(os.getpid())) else None


def _match_descriptor(path: str) -> re.Match[str] | None:
    """What a process has opened, if that is what has this name. Links are followed one by one, as /dev/stdout is one: the last of them
    would lead on to the file."""
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
    """As `open_output`, but a file gets its name when it is kept; until then, and without that, the one that has the name stays.

    What is no file, a pipe or a device, is written as it is, and so is a file that cannot be replaced, or that `is_followed` while it
    grows."""
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
    """What has this name: no file, one that a process holds open, as /dev/stdout, or one in a folder that takes no other."""
    if not os.path.exists(path):
        return False
    return (
        _match_descriptor(path) is not None or not os.path.isfile(path) or not os.access(os.path.dirname(os.path.realpath(path)), os.W_OK)
    )


def _copy_mode(file: IO[bytes], path: str) -> None:
    """Who may read a file stays as it was, and who may not write it may not replace it."""
    with suppress(FileNotFoundError), open(path, "r+b") as before:
        os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(before.fileno()).st_mode))


def _rename(file: IO[bytes], temporary: str, name: str) -> None:
    file.flush()
    os.fsync(file.fileno())  # Else nothing may be left under the name where the machine fails soon after.
    try:
        os.replace(temporary, name)
    except OSError as error:  # As of one that was mounted by itself into a container, or that is another user's, in a common folder.
        if error.errno not in _NOT_REPLACEABLE_ERRNOS:
            raise
        with open(temporary, "rb") as source, open(name, "r+b") as target:
            shutil.copyfileobj(source, target)
            target.truncate()
            target.flush()
            os.fsync(target.fileno())


@contextmanager
def _name_in_errors(path: str | None, temporary: str | None = None) -> Iterator[None]:
    """Errors name what was asked for, and not what is written in its place."""
    try:
        yield
    except OSError as error:
        if error.errno in _WRITE_ERRNOS or (temporary is not None and error.filename == temporary):
            raise OSError(error.errno, os.strerror(error.errno or 0), path or STDOUT) from None
        raise
