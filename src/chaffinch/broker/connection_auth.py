"""What is asked of clients before they are let in: TLS, a login, and that both come soon.

Until then a connection may send small requests only, and has `connections.max.unauthenticated.ms`.
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
    """None where no TLS is spoken. Raises ConfigException for certificates and keys that cannot be used."""
    return server_context(TlsSettings.of(settings)) if settings["security.protocol"] in TLS_PROTOCOLS else None


class ConnectionAuth:
    """Of one broker, all its listeners."""

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
        """A connection is there. Where a login is asked for nobody is known yet."""
        if self._authentication.is_needed:
            peer.is_known = False
            peer.frames.frame_bytes_max = min(self._unknown_bytes_max, self._frame_bytes_max)
            self._timers[peer.connection_id] = self._loop.call_later(self._limit_s, self._login_timed_out, peer)

    def check_login(self, peer: Peer) -> None:
        """An unknown client has sent something: was it the end of its login?"""
        if self._authentication.is_known(peer.connection_id):
            peer.is_known = True
            peer.frames.frame_bytes_max = self._frame_bytes_max
            self.connection_closed(peer)

    def connection_closed(self, peer: Peer) -> None:
        """The connection is closed, or known: it is waited for no longer."""
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
        self._log_rate_limited("failed TLS handshakes", address, f"connection from {address} closed: no TLS with it: {reason}")
