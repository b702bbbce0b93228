"""Listening sockets: one per declared node. A stopped node keeps its port reserved."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import re
import resource
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chaffinch.broker.core.replicas.declared_replicas import Node
from chaffinch.errors import ConfigException

LOG = logging.getLogger("chaffinch.broker")

LogRateLimited = Callable[[str, str, str], None]
"""(kind, address without port, line): logs a line; many lines of one kind are counted instead of repeated."""

LISTEN_BACKLOG: Final = 1024

RECEIVE_BUFFER_BYTES: Final = 2 << 20
"""Requested socket receive buffer (SO_RCVBUF). As much as a busy producer has in flight, so that it need not wait while the broker
processes earlier requests. The system default starts slightly too small for that."""

ACCEPTED_PER_TURN: Final = 100
"""Connections accepted in one event loop turn, so that existing connections are served in between."""

PORT_MAX: Final = 65535

NAME_LENGTH_MAX: Final = 253
LABEL_LENGTH_MAX: Final = 63
_NAME: Final = re.compile(r"[\w-]+(?:\.[\w-]+)*\.?")
_ADDRESS: Final = re.compile(r"[0-9a-fA-F:.]+(?:%[\w.-]+)?", re.ASCII)

RETRY_SECONDS: Final = 1.0
"""Retry interval after the operating system refused to accept a connection."""

COUNT_SECONDS_MAX: Final = 60.0
"""Longest interval between two log lines about refused accepts. After this long without a refusal the next one is logged with its
explanation again."""

HANDSHAKES_MAX: Final = 1000
"""Unfinished TLS handshakes of one listener; beyond this the oldest is dropped. A well-behaved client takes milliseconds."""

HANDSHAKE_FAILURE: Final = bytes((0x15, 3, 3, 0, 2, 2, 40))
"""A fatal TLS alert (handshake_failure). OpenSSL creates a more specific one, but event loops drop it; without any alert a client assumes a
network problem."""

SHUTDOWN_SECONDS: Final = 2.0
"""Longest wait for a client's reply to the TLS close notification."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS configuration of a listener. `failed(address, reason)` is called for each failed handshake."""

    context: ssl.SSLContext
    handshake_seconds: float
    failed: Callable[[str, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Address to listen on or to advertise; port 0 requests a free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_host(text: str) -> bool:
    """Whether the text is an IP address or a syntactically valid host name. Does not resolve it."""
    if ":" not in text:
        return len(text) <= NAME_LENGTH_MAX and _NAME.fullmatch(text) is not None and _has_idna(text)
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return _ADDRESS.fullmatch(text) is not None  # Python accepts any text as a scope id.


def _has_idna(name: str) -> bool:
    """Whether a name has a valid IDNA encoding within the length limit; Python resolves non-ASCII names with it."""
    try:
        return len(name.encode("idna")) <= NAME_LENGTH_MAX
    except UnicodeError:
        return False


def is_every_address(host: str) -> bool:
    """Whether this address means all interfaces, in any notation of 0.0.0.0 and `::`."""
    if host in ("", "*"):
        return True
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        pass
    try:
        return not any(socket.inet_aton(host))
    except (OSError, UnicodeError):
        return False


def shown(peer_name: Any) -> str:
    """Format a peer address for messages."""
    return f"{peer_name[0]}:{peer_name[1]}" if isinstance(peer_name, tuple) else str(peer_name)


def listen(address: Address, count: int) -> list[socket.socket]:
    """Open one listening socket per declared node: the first at `address`, the others at the following ports, or at free ports for port 0.

    Raises ConfigException if there are not enough ports, OSError with the address in its text; no socket stays open then.
    """
    check_ports(address, count)
    listeners: list[socket.socket] = []
    try:
        for node_id in range(count):
            port = address.port + node_id if address.port else 0
            listeners.append(listening_socket(Address(host=address.host, port=port)))
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def check_ports(address: Address, count: int) -> None:
    """Raises ConfigException if `count` ports starting at this address exceed the highest port number."""
    if address.port and address.port + count - 1 > PORT_MAX:
        requested = f"{count} declared nodes from {address} on" if count > 1 else f"a listener at {address}"
        raise ConfigException(f"{requested}: the last port would be {address.port + count - 1}, the highest is {PORT_MAX}")


def listening_socket(address: Address) -> socket.socket:
    """Raises OSError, with the address in its text."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            _bind(listener, target)
            listener.listen(LISTEN_BACKLOG)
        except OSError:
            listener.close()
            raise
    except UnicodeError as error:  # Not a valid DNS name, for example `kafka..example`.
        raise OSError(errno.EINVAL, f"cannot listen on {address}: {error}") from error
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror or error}") from error
    return listener


def _bind(listener: socket.socket, target: Any) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit this option, so vanished clients are detected eventually, as in Apache Kafka.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if _may_have(RECEIVE_BUFFER_BYTES):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)  # Inherited as well.
    listener.setblocking(False)
    listener.bind(target)


def _may_have(size: int) -> bool:
    """Whether the operating system grants this receive buffer size. If its limit is lower, setting the option would yield less than the
    default. Linux reports twice the granted size, see socket(7).
    """
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        return probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * size
    return False


def nodes_of(listeners: Sequence[socket.socket], host: str, advertised: Address | None = None) -> list[Node]:
    """The declared nodes with their advertised addresses: those of the listeners, or `advertised` and the following ports."""
    nodes = []
    for node_id, listener in enumerate(listeners):
        port = listener.getsockname()[1]
        if advertised is None:
            nodes.append(Node(id=node_id, host=host, port=port))
        else:
            own = str(Address(host=host, port=port))
            advertised_port = advertised.port + node_id if advertised.port else port
            nodes.append(Node(id=node_id, host=advertised.host, port=advertised_port, listens_at=own))
    return nodes


class AcceptFailures:
    """Log lines about failing accepts, which recur every second: first the reason and what to do, then counts at increasing intervals.

    A successful accept between two failures does not end a series, because waiting clients take each freed descriptor at once.
    """

    def __init__(self) -> None:
        self._last_at = self._logged_at = -COUNT_SECONDS_MAX
        self._interval = 0.0
        self._count = 0

    def line(self, port: int, error: OSError, now: float) -> str | None:
        """Count one failure at time `now` (seconds); return the line to log, if any."""
        is_first = now - self._last_at >= COUNT_SECONDS_MAX
        self._last_at = now
        self._count = 0 if is_first else self._count + 1
        if not is_first and now - self._logged_at < self._interval:
            return None
        self._logged_at = now
        self._interval = 2 * RETRY_SECONDS if is_first else min(2 * self._interval, COUNT_SECONDS_MAX / 2)
        text, count = f"cannot accept connections on port {port}: {error.strerror or error}", self._count
        self._count = 0
        return text + _advice(error) if is_first else f"{text}: {count} more times since the last line"


def _advice(error: OSError) -> str:
    waits = f"; new connections wait in the queue, accepting is retried every {RETRY_SECONDS:g} s"
    if error.errno != errno.EMFILE:
        return waits
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f": the limit of this process is {limit}, for connections and log files together; start it with a higher limit (ulimit -n){waits}"
    )


class Listener:
    """One listening socket. While it is stopped, its port stays bound but refuses connections, because the socket does not listen.

    It accepts connections itself: a closed asyncio server leaks the connections it was about to create, because no code closes them.
    """

    def __init__(self, listening: socket.socket, tls: Tls | None = None, *, send_buffer_bytes: int = -1) -> None:
        """`send_buffer_bytes`: requested socket send buffer (SO_SNDBUF) for responses; -1 for the system default."""
        self._socket = listening
        self._send_buffer_bytes = send_buffer_bytes
        self._tls = tls
        self._target = listening.getsockname()
        self._new_connection: Callable[[], asyncio.BaseProtocol] | None = None
        self._failures = AcceptFailures()
        self._accepting: set[asyncio.Task[None]] = set()
        self._shaking_hands: dict[socket.socket, None] = {}  # Oldest first.

    @property
    def port(self) -> int:
        return int(self._target[1])

    def start(self, new_connection: Callable[[], asyncio.BaseProtocol]) -> None:
        """Start accepting. A connection may still be created after `stop`. Raises OSError with the address in its text."""
        try:
            if self._socket.fileno() < 0:
                self._keep_port()
            if self._send_buffer_bytes >= 0:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer_bytes)  # Inherited by accepted sockets.
            self._socket.listen(LISTEN_BACKLOG)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on port {self.port} again: {error.strerror or error}") from error
        self._new_connection = new_connection
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def stop(self) -> None:
        """Stop accepting; open connections stay. Raises OSError if another process takes the port at this moment."""
        self.close()
        self._keep_port()

    def close(self) -> None:
        """Close the listener for good and release the port."""
        if self._new_connection is not None:
            self._new_connection = None
            asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def _keep_port(self) -> None:
        bound = socket.socket(self._socket.family, self._socket.type, self._socket.proto)
        try:
            _bind(bound, self._target)
        except OSError:
            bound.close()
            raise
        self._socket = bound

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTED_PER_TURN):
            try:
                connection, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # Most likely out of file descriptors; waiting connections stay in the system's queue.
                line = self._failures.line(self.port, error, loop.time())
                if line is not None:
                    LOG.error("%s", line)
                loop.remove_reader(self._socket)
                loop.call_later(RETRY_SECONDS, self._accept_again)
                return
            connection.setblocking(False)
            task = loop.create_task(self._connect(connection, str(address[0]) if isinstance(address, tuple) else "?"))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)
            if self._tls is not None:
                self._shaking_hands[connection] = None
                if len(self._shaking_hands) > HANDSHAKES_MAX:
                    self._end_oldest_handshake()

    def _end_oldest_handshake(self) -> None:
        oldest = next(iter(self._shaking_hands))
        del self._shaking_hands[oldest]
        with contextlib.suppress(OSError):  # The client has already closed it.
            oldest.shutdown(socket.SHUT_RDWR)

    def _accept_again(self) -> None:
        if self._new_connection is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._accept)

    async def _connect(self, connection: socket.socket, address: str) -> None:
        if self._new_connection is None:
            connection.close()
            return
        loop, tls = asyncio.get_running_loop(), self._tls
        if tls is None:
            try:
                await loop.connect_accepted_socket(self._new_connection, connection)
            except OSError:  # The peer is gone.
                connection.close()
            return
        duplicate = None
        try:
            duplicate = connection.dup()
            await loop.connect_accepted_socket(
                self._new_connection,
                connection,
                ssl=tls.context,
                ssl_handshake_timeout=tls.handshake_seconds,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except OSError as error:  # The peer is gone, its TLS is not accepted, or no file descriptor is left.
            connection.close()
            if duplicate is not None:
                with contextlib.suppress(OSError):
                    duplicate.send(HANDSHAKE_FAILURE)
            tls.failed(address, _reason(error))
        finally:
            if duplicate is not None:
                duplicate.close()
            self._shaking_hands.pop(connection, None)


def _reason(error: OSError) -> str:
    """OpenSSL's reason without its source location."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, str):
        return reason.replace("_", " ").lower()
    return str(error) or "the client has disconnected"
