"""Sockets for clients: opened without blocking, closed without raising, and a pipe to wake up a thread that waits for others.

Only system calls and the translation of their errors; who waits for what is `client/network.py`'s business.
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
    """What the operating system said about a socket, in a few words (`refused`, `name not known`). `is_refusal`: it stays so."""

    is_refusal = False


def resolve(host: str, port: int) -> list[tuple[int, Any]]:
    """The (family, socket address) pairs of a name, in the system's order of preference. May take as long as DNS does."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: no name of DNS could look so, `kafka..example` say.
        raise SocketFailed(f"name not known: {getattr(error, 'strerror', None) or error}") from error
    return [(family, address) for family, _, _, _, address in found]


def open_connecting(family: int, address: Any, send_buffer_bytes: int = -1, receive_buffer_bytes: int = -1) -> socket.socket:
    """A socket that is connecting, without waiting for it: it becomes writable when the outcome is known (`connect_outcome`).

    The system's buffers have these sizes, or those that it likes for -1."""
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
    """Called when a connecting socket has become writable: SocketFailed says why it did not connect.

    A connection within one machine can, by chance of port numbers, connect to itself; nobody listens then.
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
    """Write what fits now, of several buffers in one call: the number of bytes, 0 when nothing fits."""
    try:
        return sock.sendmsg(buffers)
    except (BlockingIOError, InterruptedError):
        return 0
    except OSError as error:
        raise SocketFailed(reason_of(error)) from error


def receive_some(sock: socket.socket, buffer: memoryview) -> int | None:
    """Read what is there into `buffer`: the number of bytes, None when there is nothing now. A closed peer is SocketFailed."""
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
    """Close; what the system may say about it helps nobody."""
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
    """Wakes a thread that waits for one of several things: `fileno()` is readable until it has `heard`. Only on Linux."""

    def __init__(self) -> None:
        self._file = FileIO(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC), "r+b")
        self.fileno: Final = self._file.fileno

    def notify(self) -> None:
        """From any thread, and after `close` without effect."""
        with contextlib.suppress(ValueError):
            os.eventfd_write(self.fileno(), 1)

    def consume(self) -> None:
        """It is awake; without effect if something else woke it, and after `close`."""
        with contextlib.suppress(BlockingIOError, ValueError):
            os.eventfd_read(self.fileno())

    def close(self) -> None:
        close_quietly(self._file)


class InlineSocket:
    """A socket for one exchange of another thread, while the thread whose selector has it sleeps. OSError is the system's.

    Needs epoll and eventfd (Linux). `epoll`: the selector's own, see `epoll_of`.
    """

    IS_SUPPORTED: Final = hasattr(select, "epoll") and hasattr(os, "eventfd")

    __slots__ = ("_epoll", "_fileno", "event_fd", "look", "receive", "send")

    def __init__(self, sock: socket.socket, epoll: select.epoll, event_fd: EventFd) -> None:
        self.event_fd = event_fd
        """Rung when there is nothing to wait for any more."""
        self.send: Final[Callable[[bytes], int]] = sock.send
        """Write what fits now; the number of bytes."""
        self.receive: Final[Callable[[int], bytes]] = sock.recv
        """Read at most this many bytes; none if the peer has closed the connection."""
        self._epoll = epoll
        self._fileno = sock.fileno()
        poll = select.poll()
        poll.register(self._fileno, select.POLLIN)
        poll.register(event_fd.fileno(), select.POLLIN)
        self.look: Final[Callable[[int], list[tuple[int, int]]]] = poll.poll
        """Wait this many ms for bytes, for the end of the connection, or for the bell. For one thread at a time."""

    def suspend_reads(self) -> None:
        """The selector no longer wakes up for what comes."""
        self._epoll.modify(self._fileno, 0)

    def resume_reads(self) -> None:
        """The selector wakes up again, at once if something has come."""
        self._epoll.modify(self._fileno, select.EPOLLIN)


def epoll_of(selector: selectors.BaseSelector) -> select.epoll:
    """The selector's epoll under a second number, so that each is closed by itself."""
    return select.epoll.fromfd(os.dup(selector.fileno()))  # type: ignore[attr-defined]  # Selectors with epoll have one.


class Waker:
    """Wakes a selector from another thread: register `fileno()` for reading, call `wake` from anywhere, `drain` when readable.

    A pipe, on which a byte takes half as long as on a pair of sockets.
    """

    def __init__(self) -> None:
        # Files, not numbers: once closed they cannot be mistaken for what has their number since. Made at once: nobody closes a number
        # after Ctrl-C.
        self._reader, self._writer = map(FileIO, os.pipe(), ("rb", "wb"))
        for end in (self._reader, self._writer):
            os.set_blocking(end.fileno(), False)
        self._is_awake = False

    def fileno(self) -> int:
        return self._reader.fileno()

    def wake(self) -> None:
        """Safe from any thread, cheap when called again before `drain`, and after `close` without effect."""
        if self._is_awake:
            return
        self._is_awake = True
        try:
            self._writer.write(b"\0")  # If it is full, a wake-up is on its way already.
        except (OSError, ValueError):
            pass  # Closed: nobody waits any more.
        except BaseException:  # Ctrl-C: perhaps it was not sent, and the next one must not rely on it.
            self._is_awake = False
            raise

    def drain(self) -> None:
        """Forget the wake-ups so far. What was announced before this call must be looked at after it. After `close` without effect."""
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
