"""Cost of partitions and idle connections in `chaffinch broker` for growing numbers; it should be linear."""

from __future__ import annotations

import resource
import sys
import tempfile
import time

from benchmarks.brokers import chaffinch_broker
from benchmarks.wire_client import WireClient

PARTITION_COUNTS = (100, 1000, 10_000)
PARTITIONS_SECONDS_MAX = 10.0
CONNECTION_COUNTS = (100, 300, 1000)
CONNECTIONS_MB_MAX = 100.0


def partitions() -> list[str]:
    """Topics with growing numbers of partitions, each in its own broker: time to create, memory, restart time. Returns missed targets."""
    missed = []
    for count in PARTITION_COUNTS:
        with tempfile.TemporaryDirectory() as folder:
            with chaffinch_broker(folder) as broker:
                before = broker.resident_mb
                client = WireClient(broker)
                started = time.perf_counter()
                client.create_topic("many", count)
                seconds = time.perf_counter() - started
                grown = broker.resident_mb - before
                client.close()
                stopping = time.perf_counter()
            stopped = time.perf_counter() - stopping
            with chaffinch_broker(folder) as broker:
                restart_seconds = broker.seconds_to_ready
        figures = f"created in {seconds:.2f} s, {grown:.0f} MB more, stopped in {stopped:.2f} s, started again in {restart_seconds:.2f} s"
        print(f"{count:>6} partitions: {figures}")
        if count == PARTITION_COUNTS[-1] and seconds > PARTITIONS_SECONDS_MAX:
            missed.append(f"{count} partitions in {seconds:.1f} s, at most {PARTITIONS_SECONDS_MAX:g}")
    return missed


def connections() -> list[str]:
    """Memory of idle connections that have sent ApiVersions, as clients do. Returns missed targets."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    opened: list[WireClient] = []
    missed = []
    with tempfile.TemporaryDirectory() as folder, chaffinch_broker(folder) as broker:
        before = broker.resident_mb
        for count in CONNECTION_COUNTS:
            while len(opened) < count:
                opened.append(WireClient(broker))
            grown = broker.resident_mb - before
            print(f"{count:>6} idle connections: {grown:.1f} MB more, {1024 * grown / count:.0f} KB each")
            if count == CONNECTION_COUNTS[-1] and grown > CONNECTIONS_MB_MAX:
                missed.append(f"{count} connections hold {grown:.0f} MB, at most {CONNECTIONS_MB_MAX:g}")
        for client in opened:
            client.close()
    return missed


def growth() -> list[str]:
    """Measure both. Returns the missed targets."""
    return partitions() + connections()


if __name__ == "__main__":
    sys.exit(1 if growth() else 0)
