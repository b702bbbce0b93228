"""What happens to a broker: the words in which a shell tells the core. Given to `BrokerCore.handle`, one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from chaffinch.protocol.server_connection import ReceivedRequest


@dataclass(slots=True, eq=False)
class RequestReceived:
    """A whole request is to be done; none may wait on its connection (`BrokerCore.waits`). Not frozen, and made without names of arguments
    by a busy shell, only because building it takes four times and twice as long; nobody changes it.

    `connection_id` is unique for the life of the core; `node_id` is the declared node on whose listener it came; `client_host` is where
    it came from, as Kafka writes it ("/127.0.0.1");
    `client_software_name` is what the connection's ApiVersions request said ("" before it, KIP-511).
    """

    connection_id: int
    request: ReceivedRequest
    node_id: int = 0
    client_software_name: str = ""
    client_host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLost:
    """The connection is gone: what it still waits for is dropped."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing came, but `BrokerCore.next_deadline_ms` has been reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStopped:
    """A declared node is to stop: in order, or `abruptly`, without a word to the others."""

    node_id: int
    abruptly: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStarted:
    """A declared node is to run again."""

    node_id: int


Event: TypeAlias = RequestReceived | ConnectionLost | TimePassed | NodeStopped | NodeStarted
