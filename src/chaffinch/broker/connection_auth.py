"""Connection authentication: TLS context, login timeout, and the request size limit before a login.

Until its login is complete, a connection may send small requests only, and must complete TLS and login within
`connections.max.unauthenticated.ms`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

from chaffinch.broker.connections import Peer
from chaffinch.broker.core.security.authentication import Authentication
from chaffinch.broker.listeners import LogRateLimited, Tls
from chaffinch.protocol.security_options import TLS_PROTOCOLS
from chaffinch.runtime.tls import TlsSettings, server_context


def tls_context(settings: Mapping[str, Any]) -> ssl.SSLContext | None:
    """The TLS context, or None without TLS. Raises ConfigException for unusable certificates or keys."""
    return server_context(TlsSettings.of(settings)) if settings["security.protocol"] in TLS_PROTOCOLS else None


class ConnectionAuth:
    """Authentication state of all connections of one broker."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        authentication: Authentication,
        context: ssl.SSLContext | None,
        loop: asyncio.AbstractEventLoop,
        log_rate_limited: LogRateLimited,
    ) -> None:
        self._authentication = authentication
        self._loop = loop
        self._log_rate_limited = log_rate_limited
        self._limit_s = settings["connections.max.unauthenticated.ms"] / 1000
        self._unknown_bytes_max: int = settings["sasl.server.max.receive.size"]
        self._frame_bytes_max: int = settings["socket.request.max.bytes"]
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self.tls = None
        if context is not None:
            self.tls = Tls(context=context, handshake_seconds=self._limit_s, failed=self._handshake_failed)

    def connection_opened(self, peer: Peer) -> None:
        """Register a new connection. If logins are required, start its timeout and limit its request size."""
        if self._authentication.is_needed:
            peer.is_known = False
            peer.frames.frame_bytes_max = min(self._unknown_bytes_max, self._frame_bytes_max)
            self._timers[peer.connection_id] = self._loop.call_later(self._limit_s, self._login_timed_out, peer)

    def check_login(self, peer: Peer) -> None:
        """After a request of an unauthenticated client: lift its limits if the login is complete."""
        if self._authentication.is_known(peer.connection_id):
            peer.is_known = True
            peer.frames.frame_bytes_max = self._frame_bytes_max
            self.connection_closed(peer)

    def connection_closed(self, peer: Peer) -> None:
        """Cancel the login timeout: the connection is authenticated or closed."""
        timer = self._timers.pop(peer.connection_id, None)
        if timer is not None:
            timer.cancel()

    def _login_timed_out(self, peer: Peer) -> None:
        del self._timers[peer.connection_id]
        self._authentication.counts["failed"] += 1
        text = f"connection from {peer.address} closed: no login within {self._limit_s:g} s"
        self._log_rate_limited("failed logins", peer.address.rpartition(":")[0], text)
        peer.abort()

    def _handshake_failed(self, address: str, reason: str) -> None:
        self._authentication.counts["failed"] += 1
        self._log_rate_limited("failed TLS handshakes", address, f"connection from {address} closed: TLS handshake failed: {reason}")
