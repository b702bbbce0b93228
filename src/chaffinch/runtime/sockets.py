"""Non-blocking sockets for clients, and file descriptors that wake a waiting thread.

Only system calls and the translation of their errors; `client/network.py` does the waiting.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import selectors
import socket
from collections.abc import Callable, Sequence
from io import FileIO
from typing import Any, Final

_IN_PROGRESS: Final = frozenset({errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EAGAIN, errno.EALREADY})


class SocketFailed(Exception):
    """A socket error in a few words (`refused`, `name not known`). `is_refusal`: retrying does not help."""

    is_refusal = False


def resolve(host: str, port: int, *, is_number: bool = False) -> list[tuple[int, Any]]:
    """The (family, socket address) pairs of a name, in the system's order of preference. May take as long as DNS does.

    `is_number`: accept only an IP address, which needs no lookup.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST if is_number else 0)
    except (OSError, UnicodeError) as error:  # UnicodeError: not a valid DNS name, such as `kafka..example`.
        raise SocketFailed(f"name not known: {getattr(error, 'strerror', None) or error}") from error
    return [(family, address) for family, _, _, _, address in found]


def open_connecting(family: int, address: Any, send_buffer_bytes: int = -1, receive_buffer_bytes: int = -1) -> socket.socket:
    """Start a connection without waiting; the socket becomes writable when the outcome is known (`connect_outcome`).

    `send_buffer_bytes` and `receive_buffer_bytes` set the system's buffers; -1 keeps its defaults.
    """
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise SocketFailed(reason_of(error)) from error
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, size in ((socket.SO_SNDBUF, send_buffer_bytes), (socket.SO_RCVBUF, receive_buffer_bytes)):
            if size >= 0:
                sock.setsockopt(socket.SOL_SOCKET, option, size)
        number = sock.connect_ex(address)
    except OSError as error:
        sock.close()
        raise SocketFailed(reason_of(error)) from error
    if number not in _IN_PROGRESS and number != 0:
        sock.close()
        raise SocketFailed(reason_of(OSError(number, os.strerror(number))))
    return sock


def connect_outcome(sock: socket.socket) -> None:
    """Check a connecting socket that has become writable. Raises SocketFailed with the reason if it did not connect.

    Within one machine a connection can, by chance of port numbers, connect to itself; then nothing listens there.
    """
    number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if number:
        raise SocketFailed(reason_of(OSError(number, os.strerror(number))))
    try:
        if sock.getsockname() == sock.getpeername():
            raise SocketFailed("refused")
    except OSError as error:
        raise SocketFailed(reason_of(error)) from error


def send_some(sock: socket.socket, buffers: Sequence[memoryview]) -> int:
    """Write as much of `buffers` as fits now, in one call; returns the number of bytes, 0 if nothing fits."""
    try:
        return sock.sendmsg(buffers)
    except (BlockingIOError, InterruptedError):
        return 0
    except OSError as error:
        raise SocketFailed(reason_of(error)) from error


def receive_some(sock: socket.socket, buffer: memoryview) -> int | None:
    """Read available bytes into `buffer`: the number of bytes, None if there are none now. A closed peer raises SocketFailed."""
    try:
        count = sock.recv_into(buffer)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError as error:
        raise SocketFailed(reason_of(error)) from error
    if count == 0:
        raise SocketFailed("closed by the broker")
    return count


def close_quietly(sock: socket.socket | FileIO) -> None:
    """Close, ignoring errors."""
    with contextlib.suppress(OSError):
        sock.close()


_REASONS: Final = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset by the broker",
    errno.EPIPE: "closed by the broker",
    errno.ETIMEDOUT: "timed out",
    errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network unreachable",
}


def reason_of(error: OSError) -> str:
    """The operating system's error in a few words."""
    return _REASONS.get(error.errno or 0) or (error.strerror or str(error)).lower()


class EventFd:
    """An eventfd that wakes a polling thread: `fileno()` is readable from `notify` until `consume`. Linux only."""

    def __init__(self) -> None:
        self._file = FileIO(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC), "r+b")
        self.fileno: Final = self._file.fileno

    def notify(self) -> None:
        """Wake the thread. Callable from any thread; no effect after `close`."""
        with contextlib.suppress(ValueError):
            os.eventfd_write(self.fileno(), 1)

    def consume(self) -> None:
        """Reset after waking; no effect if there was no `notify`, and after `close`."""
        with contextlib.suppress(BlockingIOError, ValueError):
            os.eventfd_read(self.fileno())

    def close(self) -> None:
        close_quietly(self._file)


class InlineSocket:
    """A socket for one exchange on another thread, while the thread of its selector sleeps. Methods raise OSError.

    Needs epoll and eventfd (Linux). `epoll`: the selector's own, see `epoll_of`.
    """

    IS_SUPPORTED: Final = hasattr(select, "epoll") and hasattr(os, "eventfd")

    __slots__ = ("_epoll", "_fileno", "event_fd", "look", "receive", "send")

    def __init__(self, sock: socket.socket, epoll: select.epoll, event_fd: EventFd) -> None:
        self.event_fd = event_fd
        """Notified when the exchange need not wait any longer."""
        self.send: Final[Callable[[bytes], int]] = sock.send
        """Write as much as fits now; returns the number of bytes."""
        self.receive: Final[Callable[[int], bytes]] = sock.recv
        """Read at most this many bytes; empty if the peer has closed the connection."""
        self._epoll = epoll
        self._fileno = sock.fileno()
        poll = select.poll()
        poll.register(self._fileno, select.POLLIN)
        poll.register(event_fd.fileno(), select.POLLIN)
        self.look: Final[Callable[[int], list[tuple[int, int]]]] = poll.poll
        """Wait this many ms for bytes, the end of the connection, or `event_fd`. For one thread at a time."""

    def suspend_reads(self) -> None:
        """Exclude the socket from the selector's read events."""
        self._epoll.modify(self._fileno, 0)

    def resume_reads(self) -> None:
        """Include the socket again; bytes already received wake the selector at once."""
        self._epoll.modify(self._fileno, select.EPOLLIN)


def epoll_of(selector: selectors.BaseSelector) -> select.epoll:
    """A duplicate of the selector's epoll, which is closed independently."""
    return select.epoll.fromfd(os.dup(selector.fileno()))  # type: ignore[attr-defined]  # Selectors with epoll have one.


class Waker:
    """Wakes a selector from another thread: register `fileno()` for reading, call `wake` from any thread, `drain` when readable.

    A pipe, which transfers a byte in half the time of a socket pair.
    """

    def __init__(self) -> None:
        # FileIO objects, because a closed number may be reused for another file. Created in one step: after Ctrl-C nothing would close a
        # bare number.
        self._reader, self._writer = map(FileIO, os.pipe(), ("rb", "wb"))
        for end in (self._reader, self._writer):
            os.set_blocking(end.fileno(), False)
        self._is_awake = False

    def fileno(self) -> int:
        return self._reader.fileno()

    def wake(self) -> None:
        """Wake the selector. Thread-safe, cheap when repeated before `drain`; no effect after `close`."""
        if self._is_awake:
            return
        self._is_awake = True
        try:
            self._writer.write(b"\0")  # A full pipe means that a wake-up is pending.
        except (OSError, ValueError):
            pass  # Closed: no thread waits.
        except BaseException:  # Ctrl-C: the byte may not be sent, so the next call must send it.
            self._is_awake = False
            raise

    def drain(self) -> None:
        """Consume the wake-ups so far; check for work after this call, not before. No effect after `close`."""
        try:
            while len(self._reader.read(4096) or b"") == 4096:
                pass
        except ValueError:
            return  # Closed.
        self._is_awake = False

    def close(self) -> None:
        self._is_awake = True
        close_quietly(self._reader)
        close_quietly(self._writer)
