"""How long a broker with a large log takes to accept again after a kill under load."""

from __future__ import annotations

import contextlib
import itertools
import threading
from pathlib import Path

from benchmarks.broker import ready_made_batch
from benchmarks.brokers import BrokerProcess
from benchmarks.wire_client import WireClient, produce_request
from tests.soak.killed_broker import KilledBroker

SECONDS_MAX = 2.0
PARTITIONS = 4
RECORDS_PER_BATCH = 2000
ROUND = 50
RESTARTS = 3


def timed_restart(data_dir: Path, log_bytes: int) -> list[str]:
    """Fill four partitions, kill while more comes, start; three times. Faults found."""
    faults = []
    with KilledBroker(data_dir, flush_policy="os", topics=[f"large:{PARTITIONS}"]) as broker:
        _fill(broker, log_bytes)
        for _ in range(RESTARTS):
            load = threading.Thread(target=_fill_until_cut, args=(broker,))
            load.start()
            threading.Event().wait(0.5)
            broker.kill()
            load.join()
            broker.start()
            print(f"restart of {log_bytes / 1e9:.1f} GB after a kill under load: {broker.seconds_to_ready:.2f} s (at most {SECONDS_MAX})")
            if broker.seconds_to_ready > SECONDS_MAX:
                faults.append(f"restart took {broker.seconds_to_ready:.2f} s, allowed {SECONDS_MAX}")
    return faults


def _client(broker: KilledBroker) -> WireClient:
    return WireClient(BrokerProcess("chaffinch", 0, broker.bootstrap_servers, 0.0))


def _fill(broker: KilledBroker, log_bytes: int) -> None:
    client, data = _client(broker), ready_made_batch(RECORDS_PER_BATCH)
    try:
        written = 0
        for partition in itertools.cycle(range(PARTITIONS)):
            frame, answer_bytes = client.frame(produce_request("large", partition, data))
            client.pipeline(frame, answer_bytes, ROUND)
            written += (ROUND + 1) * len(data)
            if written >= log_bytes:
                return
    finally:
        client.close()


def _fill_until_cut(broker: KilledBroker) -> None:
    with contextlib.suppress(OSError):
        _fill(broker, 1 << 50)
