"""Server that responds as scripted by a test, over real sockets and the broker side of the protocol."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from chaffinch.protocol.apis import APIS
from chaffinch.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey
from chaffinch.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from chaffinch.protocol.server_connection import ServerConnection
from chaffinch.protocol.violations import ProtocolViolation

HANG_UP = object()
STAY_SILENT = object()

Script = Callable[["ScriptedServer", Any], Any]


class ScriptedServer:
    """Listens on a free port. `script(server, message)` gives the answer, HANG_UP, STAY_SILENT or None for the default."""

    def __init__(self, script: Script | None = None, *, features: tuple[str, ...] = (), topics: dict[str, int] | None = None) -> None:
        self.script = script or (lambda server, message: None)
        self.features = features
        self.topics = topics if topics is not None else {"orders": 3}
        self.seen: list[Any] = []
        self.bytes_per_write: int | None = None
        """Answers go in pieces of this size; None: whole."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._peers: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.close_connections()

    def close_connections(self) -> None:
        """Close every connection."""
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    @property
    def connection_count(self) -> int:
        """Connections so far, those included that are closed."""
        return len(self._peers)

    def requests(self, kind: type) -> list[Any]:
        return [message for message in self.seen if isinstance(message, kind)]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                self._peers.append(peer)
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        connection = ServerConnection()
        with peer, contextlib.suppress(OSError, ProtocolViolation):
            while count := peer.recv_into(connection.get_buffer()):
                for request in map(connection.request, connection.buffer_updated(count)):
                    self.seen.append(request.message)
                    answer = self.script(self, request.message)
                    answer = self._default(request.message) if answer is None else answer
                    if answer is HANG_UP:
                        return
                    if answer is not STAY_SILENT and request.expects_response:
                        frame = b"".join(connection.encode_response(request, answer))
                        size = self.bytes_per_write or max(1, len(frame))
                        for start in range(0, len(frame), size):
                            peer.sendall(frame[start : start + size])

    def _default(self, message: Any) -> Any:
        if isinstance(message, ApiVersionsRequest):
            rows = [ApiVersion(api_key=api.key, min_version=api.served[0], max_version=api.served[-1]) for api in APIS.values()]
            features = [SupportedFeatureKey(name=name, min_version=1, max_version=1) for name in self.features]
            return ApiVersionsResponse(api_keys=rows, supported_features=features)
        assert isinstance(message, MetadataRequest), f"the script has no answer for {message}"
        return metadata(self.topics, {1: self.port})


def metadata(topics: dict[str, int], ports: dict[int, int], *, leader_id: int = 1) -> MetadataResponse:
    """Metadata of a cluster on this machine: topics by partition count, all led by one node."""
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=node, host="127.0.0.1", port=port) for node, port in ports.items()],
        cluster_id="scripted",
        controller_id=leader_id,
        topics=[
            MetadataResponseTopic(
                name=name,
                partitions=[
                    MetadataResponsePartition(partition_index=i, leader_id=leader_id, leader_epoch=0, replica_nodes=[1], isr_nodes=[1])
                    for i in range(count)
                ],
            )
            for name, count in topics.items()
        ],
    )
