"""The served broker under ready-made batches: `chaffinch broker` as a process of its own, one pipelined connection, every check on.

A compacted topic with CreateTime, so that each record's key and timestamp are looked at; 100-byte values; the data directory on disk. What
was acknowledged is read back and counted. Also: how long a start takes until the first metadata answer, and what an idle broker holds.
"""

from __future__ import annotations

import argparse
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chaffinch.protocol.client_connection import ClientConnection
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from chaffinch.protocol.schema import Message
from chaffinch.records import batch
from chaffinch.records.columns import RecordColumns

TOPIC = "bench"
VALUE_BYTES = 100
IN_FLIGHT_BYTES = 1 << 20
REQUESTS_IN_FLIGHT_MIN = 5
"""How much the client sends ahead of the answers: enough that neither side waits for the other."""

WARM_UP_SECONDS = 2.0
"""The broker loads its compiled loops when the first records come; until then their plain twins work."""

FETCH_BYTES = 16 << 20
STARTS = 5
AIMS = {2000: 5.0, 150: 2.5}
"""Records per batch -> millions of records a second that the broker is to reach."""


@dataclass(frozen=True, slots=True)
class Served:
    """A running broker process."""

    process: subprocess.Popen[str]
    host: str
    port: int
    seconds_to_ready: float

    @property
    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def resident_mb(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


@contextmanager
def served(data_dir: str) -> Iterator[Served]:
    """`chaffinch broker` on a free port."""
    command = [str(Path(sys.executable).with_name("chaffinch")), "broker", "--listen", "127.0.0.1:0", "--data-dir", data_dir]
    command += ["--topic", f"{TOPIC},cleanup.policy=compact"]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        host, _, port = line.strip().partition("=")[2].rpartition(":")
        yield Served(process, host, int(port), time.perf_counter() - started)
    finally:
        process.terminate()
        process.wait()


class Client:
    """One connection: blocking requests, and a pipeline of one ready-made frame."""

    def __init__(self, broker: Served) -> None:
        self._socket = socket.create_connection((broker.host, broker.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = ClientConnection("bench")
        self.request(self._connection.api_versions_request())

    def request(self, message: Message) -> Message:
        self._socket.sendall(b"".join(self._connection.encode_request(message)[1]))
        while True:
            buffer = self._connection.get_buffer()
            responses = self._connection.buffer_updated(self._socket.recv_into(buffer))
            if responses:
                return responses[0].message

    def frame(self, message: Message) -> tuple[bytes, int]:
        """A request's bytes, and the size of its answer, learnt by asking once."""
        _, parts = ClientConnection.encode_request(self._connection, message)
        frame = b"".join(parts)
        self._socket.sendall(frame)
        size = struct.unpack(">i", _exactly(self._socket, 4))[0]
        body = _exactly(self._socket, size)
        self._connection.receive(struct.pack(">i", size) + body)
        return frame, 4 + size

    def pipeline(self, frame: bytes, answer: bytes, count: int) -> None:
        """Send the frame `count` times, pipelined; every answer must be as long as `answer`: one with an error is longer."""
        window = max(REQUESTS_IN_FLIGHT_MIN, IN_FLIGHT_BYTES // len(frame))
        expected, received, sent = len(answer) * count, 0, 0
        while received < expected:
            while sent < count and sent * len(answer) - received < window * len(answer):
                self._socket.sendall(frame)
                sent += 1
            received += len(self._socket.recv(1 << 16))

    def close(self) -> None:
        self._socket.close()


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return data


def produce(broker: Served, records_per_batch: int, record_count: int) -> str:
    """Push `record_count` records and count them in the log."""
    now_ms = time.time_ns() // 1_000_000
    keys = [b"key-%06d" % index for index in range(records_per_batch)]
    columns = RecordColumns.from_lists(keys, [bytes(VALUE_BYTES)] * records_per_batch, [now_ms] * records_per_batch)
    data = bytes(batch.encode(columns))
    request = ProduceRequest(
        acks=-1, timeout_ms=30_000, topics=[TopicProduceData(name=TOPIC, partitions=[PartitionProduceData(index=0, records=data)])]
    )
    client = Client(broker)
    response = client.request(request)
    assert isinstance(response, ProduceResponse)
    first = response.responses[0].partition_responses[0]
    assert first.error_code == 0, first
    frame, answer_bytes = client.frame(request)
    count = record_count // records_per_batch
    warm_up = 0
    started = time.perf_counter()
    while time.perf_counter() - started < WARM_UP_SECONDS:
        client.pipeline(frame, bytes(answer_bytes), 50)
        warm_up += 50
    cpu, started = broker.cpu_seconds, time.perf_counter()
    client.pipeline(frame, bytes(answer_bytes), count)
    seconds, cpu = time.perf_counter() - started, broker.cpu_seconds - cpu
    written = (count + warm_up + 2) * records_per_batch
    found = read_back(client, first.base_offset)
    client.close()
    assert found == written, f"{written} records acknowledged, {found} read back"
    rate = count * records_per_batch / seconds / 1e6
    return (
        f"{records_per_batch:>6} records a batch ({len(data) / 1024:.0f} KB): {rate:5.2f} M records/s (aim {AIMS[records_per_batch]}), "
        f"{rate * len(data) / records_per_batch:.0f} MB/s, {cpu / (count * records_per_batch / 1e6):.3f} CPU-s per M; {found} read back"
    )


def read_back(client: Client, offset: int) -> int:
    """Records from `offset` to the end, counted in the headers of batches whose checksum is right."""
    count = 0
    while True:
        asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        response = client.request(FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic=TOPIC, partitions=[asked])]))
        partition = response.responses[0].partitions[0]  # type: ignore[attr-defined]
        assert partition.error_code == 0, partition
        views = list(batch.views(partition.records, may_be_cut_short=True))
        if not views:
            return count
        assert all(view.crc_is_valid() for view in views)
        count += sum(view.header.count for view in views)
        offset = views[-1].header.last_offset + 1


def start_times() -> str:
    """Seconds until the first metadata answer (best and median of some starts), and idle memory."""
    seconds, resident = [], 0.0
    for _ in range(STARTS):
        with tempfile.TemporaryDirectory() as directory, served(directory) as broker:
            asked = time.perf_counter()
            client = Client(broker)
            client.request(MetadataRequest(topics=None))
            seconds.append(broker.seconds_to_ready + time.perf_counter() - asked)
            client.close()
            resident = broker.resident_mb
    seconds.sort()
    median, best = seconds[STARTS // 2], seconds[0]
    return f"start until the first metadata answer: {median:.2f} s (best {best:.2f}, aim 0.5); idle {resident:.0f} MB (aim 150)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=6_000_000, help="records per load")
    arguments = parser.parse_args()
    print(start_times())
    for records_per_batch in AIMS:
        with tempfile.TemporaryDirectory() as directory, served(directory) as broker:
            print(produce(broker, records_per_batch, arguments.records), f"; resident {broker.resident_mb:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
