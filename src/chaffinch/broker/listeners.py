"""Listening sockets: one per declared node, under the addresses that clients are told. A node that is stopped keeps its port."""

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
"""(what, address without port, the line): for the log, where it is counted when there are many of its kind."""

LISTEN_BACKLOG: Final = 1024

RECEIVE_BUFFER_BYTES: Final = 2 << 20
"""What the system is asked to keep of a connection until it is read: as much as a busy producer has on its way, which so need not wait for
room while the broker works on what came before. By itself a system gives less at first, and then just too little."""

ACCEPTED_PER_TURN: Final = 100
"""Connections taken in one turn of the loop; others are not kept waiting by those who come."""

PORT_MAX: Final = 65535

NAME_LENGTH_MAX: Final = 253
LABEL_LENGTH_MAX: Final = 63
_NAME: Final = re.compile(r"[\w-]+(?:\.[\w-]+)*\.?")
_ADDRESS: Final = re.compile(r"[0-9a-fA-F:.]+(?:%[\w.-]+)?", re.ASCII)

RETRY_SECONDS: Final = 1.0
"""When accepting is tried again that the system refused."""

COUNT_SECONDS_MAX: Final = 60.0
"""How often, at last, it is said that the system goes on refusing; after so long without a refusal the next one is explained again."""

HANDSHAKES_MAX: Final = 1000
"""Connections of one listener whose TLS handshake is not done: beyond it the oldest is dropped. Of honest clients it takes milliseconds."""

HANDSHAKE_FAILURE: Final = bytes((0x15, 3, 3, 0, 2, 2, 40))
"""A fatal alert of TLS. OpenSSL makes one that says more, but event loops drop it; without any a client takes it for a bad network."""

SHUTDOWN_SECONDS: Final = 2.0
"""A client that does not answer the end of TLS is not waited for any longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How a listener speaks TLS. `failed(address, reason)` is told of each handshake that came to nothing."""

    context: ssl.SSLContext
    handshake_seconds: float
    failed: Callable[[str, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to listen, or what to tell clients; port 0 asks the system for a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_host(text: str) -> bool:
    """Whether it is an address, or looks as the name of a machine may: whether there is such a machine is not looked up."""
    if ":" not in text:
        return len(text) <= NAME_LENGTH_MAX and _NAME.fullmatch(text) is not None and _has_idna(text)
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return _ADDRESS.fullmatch(text) is not None  # Python takes anything for a scope.


def _has_idna(name: str) -> bool:
    """Python looks up what is not ASCII by what IDNA makes of it, which also counts the letters of each part."""
    try:
        return len(name.encode("idna")) <= NAME_LENGTH_MAX
    except UnicodeError:
        return False


def is_every_address(host: str) -> bool:
    """Whether listening there is listening on every address of the machine, in any spelling of 0.0.0.0 and ::."""
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
    """The other side of a connection, for people."""
    return f"{peer_name[0]}:{peer_name[1]}" if isinstance(peer_name, tuple) else str(peer_name)


def listen(address: Address, count: int) -> list[socket.socket]:
    """One listening socket per declared node: the first at `address`, the others at the ports after it, or any free ones for port 0.

    Raises ConfigException when there are not so many ports, OSError, with the address in its text; nothing stays open then.
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
    """Whether there are as many ports from this one on. Raises ConfigException."""
    if address.port and address.port + count - 1 > PORT_MAX:
        requested = f"{count} declared nodes from {address} on" if count > 1 else f"a listener at {address}"
        raise ConfigException(f"{requested}: the last port would be {address.port + count - 1}, and there is none above {PORT_MAX}")


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
    except UnicodeError as error:  # No name of DNS could look so, `kafka..example` say.
        raise OSError(errno.EINVAL, f"cannot listen on {address}: {error}") from error
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror or error}") from error
    return listener


def _bind(listener: socket.socket, target: Any) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit it: a client that is gone without a word is noticed in the end, as by Apache Kafka.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if _may_have(RECEIVE_BUFFER_BYTES):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)  # Inherited, too.
    listener.setblocking(False)
    listener.bind(target)


def _may_have(size: int) -> bool:
    """Whether a socket that asks for so large a receive buffer gets it: from a system with a lower limit it gets less than unasked.
    Linux says twice the size that it gave, see socket(7)."""
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        return probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * size
    return False


def nodes_of(listeners: Sequence[socket.socket], host: str, advertised: Address | None = None) -> list[Node]:
    """The declared nodes under the addresses that clients are told: those of the listeners, or `advertised` and the ports after it."""
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
    """What the log says of connections that cannot be accepted, each second anew: the first time why and what to do, then counts, ever more
    seldom. One that is accepted between two refusals is no end of it: whoever waited takes each descriptor that is given back."""

    def __init__(self) -> None:
        self._last_at = self._logged_at = -COUNT_SECONDS_MAX
        self._interval = 0.0
        self._count = 0

    def line(self, port: int, error: OSError, now: float) -> str | None:
        """One more refusal, at this time in seconds."""
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
    waits = f"; those who connect wait, and it is tried again each {RETRY_SECONDS:g} s"
    if error.errno != errno.EMFILE:
        return waits
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return f": this process may have {limit} of them, connections and logs together; start it with a higher limit (ulimit -n){waits}"


class Listener:
    """One listening socket. While it is stopped, connecting is refused and the port is kept: it is bound, and nobody listens.

    Accepts by itself, because a server of asyncio's that is closed loses the connections it was about to make: nobody closes them.
    """

    def __init__(self, listening: socket.socket, tls: Tls | None = None, *, send_buffer_bytes: int = -1) -> None:
        """`send_buffer_bytes`: what the system is asked to keep of a connection's answers until they are read; -1: what it takes itself."""
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
        """Accept. A connection may be made when the listener is stopped already. Raises OSError, with the address in its text."""
        try:
            if self._socket.fileno() < 0:
                self._keep_port()
            if self._send_buffer_bytes >= 0:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer_bytes)  # Accepted ones inherit it.
            self._socket.listen(LISTEN_BACKLOG)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on port {self.port} again: {error.strerror or error}") from error
        self._new_connection = new_connection
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def stop(self) -> None:
        """Accept no more; connections that are there stay. Raises OSError when the port is taken in this very moment."""
        self.close()
        self._keep_port()

    def close(self) -> None:
        """For good: the port is free."""
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
            except OSError as error:  # Out of descriptors, most likely: those who wait stay in the queue of the system.
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
        with contextlib.suppress(OSError):  # The client was faster.
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
        except OSError as error:  # The peer is gone, or speaks no TLS that we accept; or there is no descriptor left.
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
    """OpenSSL's own words, without where in its source they come from."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, str):
        return reason.replace("_", " ").lower()
    return str(error) or "the client has gone"
