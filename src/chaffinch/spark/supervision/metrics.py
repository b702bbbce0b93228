"""Prometheus endpoint `/metrics` of a supervised query: the counts that its sinks store in the checkpoint.

Spark has no metrics for Python sinks, so the sink stores its counts in `<checkpoint>/chaffinch/state.json`, each named sink in its own
subfolder. They are read for each request. Counts continue after a restart of the query.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from chaffinch import plain_text
from chaffinch.errors import ConfigException
from chaffinch.runtime.exposure import host_of, is_expected, warning
from chaffinch.runtime.prometheus import CONTENT_TYPE, Family
from chaffinch.spark.commit.marker import STATE_FILE, CheckpointState
from chaffinch.spark.commit.messages import BatchCounts
from chaffinch.spark.folders import Folder
from chaffinch.spark.refusals import ErrorTag, Refusal
from chaffinch.spark.session import default_file_system
from chaffinch.spark.sink.paths import to_pyarrow_location

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = plain_text.logger("chaffinch.spark")

PREFIX: Final = "chaffinch_spark_"
PEER_SECONDS_MAX: Final = 10.0
"""A connection that is idle for this long is closed."""


class Metrics:
    """HTTP server of the metrics, with the facts that the checkpoint does not have: restarts and the name of the query. Use it with
    `with`.
    """

    def __init__(self, address: str, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        self._folder = self._state_folder(None)
        self._restarts: Counter[str] = Counter()
        self._query = ""
        self._server = _listening(address, self.text)
        self._thread = threading.Thread(target=self._server.serve_forever, name="chaffinch-metrics", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        _log.info("metrics at http://%s/metrics", self.address)
        risk = "clients that reach it can read names of queries and sinks, and their counts; use a loopback address, or a firewall"
        option, host = f"metrics={self.address}", str(self._server.server_address[0])
        if (text := warning(option, host, has_tls=False, has_login=False, risk=risk)) is not None:
            _log.warning("%s", text)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def address(self) -> str:
        """host:port, with the actual port for port 0."""
        host, port = map(str, self._server.server_address[:2])
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def watch(self, query: StreamingQuery) -> None:
        """Serve the metrics of a query that was started. The label of its series is its name, or else its id. Its sinks store their
        counts on the default file system of the session that started it.
        """
        self._query = query.name or str(query.id)
        self._folder = self._state_folder(default_file_system())

    def _state_folder(self, default: str | None) -> Folder:
        return Folder(to_pyarrow_location(self._checkpoint, default), "checkpoint").below("chaffinch")

    def restarted(self, tag: ErrorTag) -> None:
        """Count a restart for this error."""
        self._restarts[tag.group.value] += 1

    def text(self) -> str:
        return "".join(family.text for family in families(self._query, self._states(), self._restarts))

    def _states(self) -> dict[str, CheckpointState]:
        """Name of each sink -> its state; the name of the query's own sink is empty. Unreadable states are logged and left out."""
        found: dict[str, CheckpointState] = {}
        try:
            for name in ("", *self._folder.names()):
                folder = self._folder.below(name) if name else self._folder
                data = None if "." in name else folder.read(STATE_FILE)
                if data is not None:
                    state = CheckpointState.from_text(data.decode())
                    found[state.sink or name] = state
        except (Refusal, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("counts in %s cannot be read: %s", self._folder.shown, error)
        return found


def families(query: str, states: Mapping[str, CheckpointState], restarts: Mapping[str, int]) -> Iterator[Family]:
    """All metric families, in output order. Series of a named sink have the label `sink`."""
    labels = {name: {"query": query} | ({"sink": name} if name else {}) for name in states}
    totals = {name: state.totals or BatchCounts() for name, state in states.items()}
    newest = {name: state.remembered for name, state in states.items() if state.remembered is not None}
    yield Family(f"{PREFIX}rows_written_total", "rows written to Kafka",
                 [(labels[name], counts.rows_written) for name, counts in totals.items()])  # fmt: skip
    for what, help_text in (("rejected", "rejected rows, by error"), ("dropped", "rows dropped by the exception handler, by error")):
        series = [
            (labels[name] | {"error": error}, count)
            for name, counts in totals.items() for error, count in sorted(getattr(counts, what).items())
        ]  # fmt: skip
        yield Family(f"{PREFIX}rows_{what}_total", help_text, series)
    for field, name, help_text in (
        ("byte_count", "bytes_total", "bytes of record batches written to Kafka, including dead letters"),
        ("staged_bytes", "staged_bytes_total", "bytes of these record batches that were read from staging files"),
    ):
        yield Family(PREFIX + name, help_text, [(labels[sink], getattr(counts, field)) for sink, counts in totals.items()])
    yield Family(f"{PREFIX}restarts_total", "restarts, by error group",
                 [({"query": query, "group": group}, count) for group, count in sorted(restarts.items())])  # fmt: skip
    yield Family(f"{PREFIX}last_batch_id", "the newest batch", [(labels[name], batch.batch_id) for name, batch in newest.items()])
    pushed = [(labels[name], batch.counts.push_ms / 1000) for name, batch in newest.items() if batch.counts is not None]
    yield Family(f"{PREFIX}push_seconds", "time to push the newest batch to Kafka", pushed)


class _Server(ThreadingTCPServer):
    """Not the class of http.server: that one resolves its own address, and blocks if no name server responds."""

    allow_reuse_address = True
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Log one line, for example for a closed connection; socketserver would print a traceback."""
        _log.warning("metrics could not be sent to %s: %s", client_address, sys.exception())


def _listening(address: str, text: Callable[[], str]) -> _Server:
    host, separator, port = address.rpartition(":")
    if not (separator and host and port.isascii() and port.isdecimal() and int(port) <= 65_535):
        raise ConfigException(f"metrics cannot be {address!r}: it must be HOST:PORT, such as 127.0.0.1:9464; port 0 selects a free one")

    class Handler(BaseHTTPRequestHandler):
        timeout = PEER_SECONDS_MAX

        def do_GET(self) -> None:
            status, error = self._refusal()
            body = json.dumps({"error": error}).encode() if error else text().encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if error else CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def _refusal(self) -> tuple[int, str]:
            """Status and error of a request; the error is empty for a valid request."""
            header = self.headers.get("Host", "")
            if not is_expected(header, [host.strip("[]")]):  # DNS rebinding: a web page whose domain resolves to this address.
                return 403, f"Host {host_of(header)!r} is neither an address nor the host of metrics=: use its address"
            if self.path.partition("?")[0] != "/metrics":
                return 404, f"there is no {self.path}: only /metrics"
            return 200, ""

        def log_message(self, format: str, *arguments: Any) -> None:
            _log.debug(format, *arguments)

    class Server(_Server):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    try:
        return Server((host.strip("[]"), int(port)), Handler)
    except OSError as error:
        raise ConfigException(f"metrics={address}: cannot listen on it: {error.strerror or error}; choose another port or host") from None
