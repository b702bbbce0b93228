"""Benchmark of `chaffinch broker`: ready-made batches from one pipelined connection, with all validation enabled.

The topic is compacted with CreateTime, so the key and timestamp of each record are validated. Values have 100 bytes, the data directory is
on disk. Acknowledged records are read back and counted. It also measures the start until the first metadata response, and idle memory.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time

from benchmarks.brokers import BrokerProcess, chaffinch_broker
from benchmarks.wire_client import WireClient, produce_request
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.protocol.messages.produce import ProduceResponse
from chaffinch.records import batch
from chaffinch.records.columns import RecordColumns

TOPIC = "bench"
VALUE_BYTES = 100
WARM_UP_SECONDS_MIN = 3.0
WARM_UP_SECONDS_MAX = 30.0
WARM_UP_ROUND = 200
"""The broker loads its compiled loops with the first records; until then the Python implementation runs at half the speed. So rounds of
requests are sent until its log reports the loops, and then until the last four rounds are not faster than the best one before."""

STARTS = 9
START_SECONDS_MAX, IDLE_MB_MAX = 0.5, 150.0
AIMS = {2000: 5.0, 150: 2.5}
"""Records per batch -> target in millions of records a second."""


def ready_made_batch(records_per_batch: int) -> bytes:
    """A batch of records with keys, 100-byte values and the current time."""
    keys = [b"key-%06d" % index for index in range(records_per_batch)]
    wall_ms = time.time_ns() // 1_000_000
    return bytes(batch.encode(RecordColumns.from_lists(keys, [bytes(VALUE_BYTES)] * records_per_batch, [wall_ms] * records_per_batch)))


def produce(broker: BrokerProcess, records_per_batch: int, record_count: int) -> str:
    """Send `record_count` records and count them in the log. Returns a line with the figures."""
    data = ready_made_batch(records_per_batch)
    request = produce_request(TOPIC, 0, data)
    client = WireClient(broker)
    response = client.request(request)
    assert isinstance(response, ProduceResponse)
    first = response.responses[0].partition_responses[0]
    assert first.error_code == 0, first
    frame, response_bytes = client.frame(request)
    count = record_count // records_per_batch
    warm_up = warm_up_broker(broker, client, frame, response_bytes)
    cpu, started = broker.cpu_seconds, time.perf_counter()
    client.pipeline(frame, response_bytes, count)
    seconds, cpu = time.perf_counter() - started, broker.cpu_seconds - cpu
    written = (count + warm_up + 2) * records_per_batch
    found = client.read_back(TOPIC, 0, first.base_offset)
    client.close()
    assert found == written, f"{written} records acknowledged, {found} read back"
    rate = count * records_per_batch / seconds / 1e6
    return (
        f"{records_per_batch:>6} records a batch ({len(data) / 1024:.0f} KB): {rate:5.2f} M records/s (aim {AIMS[records_per_batch]}), "
        f"{rate * len(data) / records_per_batch:.0f} MB/s, {cpu / (count * records_per_batch / 1e6):.3f} CPU-s per M; {found} read back"
    )


def warm_up_broker(broker: BrokerProcess, client: WireClient, frame: bytes, response_bytes: int) -> int:
    """Send the frame until the broker gets no faster. Returns how often it was sent. Raises TimeoutError after `WARM_UP_SECONDS_MAX`."""
    rounds: list[float] = []  # Seconds of each round at full speed.
    sent = 0
    began = time.perf_counter()
    while True:
        started = time.perf_counter()
        client.pipeline(frame, response_bytes, WARM_UP_ROUND)
        now = time.perf_counter()
        sent += WARM_UP_ROUND
        if rounds or broker.is_at_full_speed:
            rounds.append(now - started)
        is_steady = len(rounds) > 8 and min(rounds[-4:]) > 0.9 * min(rounds[:-4])
        if is_steady and now - began > WARM_UP_SECONDS_MIN:
            return sent
        if now - began > WARM_UP_SECONDS_MAX:
            raise TimeoutError(f"{broker.name} is not at full speed after {WARM_UP_SECONDS_MAX:.0f} s")


def start_and_idle() -> list[str]:
    """Print the median time to the first metadata response over some starts, and idle memory. Returns the missed targets."""
    seconds, resident = [], 0.0
    for _ in range(STARTS):
        with tempfile.TemporaryDirectory() as directory, chaffinch_broker(directory, [f"{TOPIC},cleanup.policy=compact"]) as broker:
            connecting = time.perf_counter()
            client = WireClient(broker)
            client.request(MetadataRequest(topics=None))
            seconds.append(broker.seconds_to_ready + time.perf_counter() - connecting)
            client.close()
            resident = broker.resident_mb
    median, best = statistics.median(seconds), min(seconds)
    print(f"start until the first metadata response: {median:.2f} s (best {best:.2f}); idle {resident:.0f} MB")
    missed = [f"started in {median:.2f} s, at most {START_SECONDS_MAX:g}"] if median > START_SECONDS_MAX else []
    return missed + ([f"{resident:.0f} MB idle, at most {IDLE_MB_MAX:g}"] if resident > IDLE_MB_MAX else [])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=6_000_000, help="records per load")
    arguments = parser.parse_args()
    start_and_idle()
    for records_per_batch in AIMS:
        with tempfile.TemporaryDirectory() as directory, chaffinch_broker(directory, [f"{TOPIC},cleanup.policy=compact"]) as broker:
            print(produce(broker, records_per_batch, arguments.records), f"; resident {broker.resident_mb:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
