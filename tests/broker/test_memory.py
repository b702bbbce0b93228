"""What would end an Apache Kafka with a 1 GiB heap costs a refusal here: on a real process, whose memory the system measures."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.records.batch_header import write_crc
from chaffinch.records.compression import Compression, compress
from tests.broker.batches import batch_of
from tests.broker.core_client import produce_request
from tests.broker.socket_client import TIMEOUT_SECONDS, SocketClient

MIB = 1 << 20

UNFINISHED = 30
CLAIMED = 99 * MIB
SENT = 98 * MIB

UNFINISHED_MIB_MAX = 512
"""The broker's default for `queued.max.request.bytes`."""

UNPACKED_MIB_MAX = 128
"""Its default for `max.decompressed.bytes`."""

RESIDENT_MIB_MAX = 800
"""All unfinished requests, one that is copied while it grows, and the process itself: idle it takes less than 150 MiB."""

TOPIC = f"orders,max.message.bytes={16 * MIB}"
"""Room for a gigabyte of zeros under the weakest codec."""

BATCH_HEAD_BYTES = 61

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")


class Process:
    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.pid = process.pid
        self.address = address

    @property
    def resident_mib_max(self) -> int:
        """The most it ever had."""
        (line,) = [line for line in Path(f"/proc/{self.pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) // 1024


@pytest.fixture
def broker() -> Iterator[Process]:
    command = [
        sys.executable,
        "-c",
        "from chaffinch.cli.main import main; main()",
        "broker",
        "--listen",
        "127.0.0.1:0",
        "--topic",
        TOPIC,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield Process(process, process.stdout.readline().strip().partition("=")[2])
        finally:
            process.kill()


def test_thirty_unfinished_requests_of_99_mebibytes(broker: Process) -> None:
    before = broker.resident_mib_max
    data = struct.pack(">i", CLAIMED) + bytes(SENT - 4)
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(SocketClient(broker.address, greet=False)) for _ in range(UNFINISHED)]
        refused = 0
        for client in clients:
            try:
                client.socket.sendall(data)
            except ConnectionError:
                refused += 1
        assert refused == UNFINISHED - UNFINISHED_MIB_MAX // 98
        with SocketClient(broker.address) as other:
            assert other.ask(MetadataRequest(topics=None)).topics[0].name == "orders"
            assert other.ask(produce_request("orders", batch_of(b"a"))).responses[0].partition_responses[0].error_code == 0
        assert before + UNFINISHED_MIB_MAX // 2 < broker.resident_mib_max < RESIDENT_MIB_MAX


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_a_record_that_unpacks_to_a_gigabyte(broker: Process, codec: Compression) -> None:
    with SocketClient(broker.address) as client:
        client.socket.settimeout(TIMEOUT_SECONDS)
        answer = client.ask(produce_request("orders", bomb(codec))).responses[0].partition_responses[0]
        assert answer.error_code in (10, 87), answer
        assert str(UNPACKED_MIB_MAX * MIB) in answer.error_message
        assert client.ask(produce_request("orders", batch_of(b"a"))).responses[0].partition_responses[0].base_offset == 0
    assert broker.resident_mib_max < 150 + 2 * UNPACKED_MIB_MAX


def bomb(codec: Compression) -> bytearray:
    """A batch whose one record is a gigabyte of zeros: compressed mebibytes end to end, which these codecs read as one stream."""
    good = batch_of(bytes(100), compression=codec)
    mebibyte = bytes(compress(codec, bytes(MIB)))
    batch = good[:BATCH_HEAD_BYTES] + mebibyte * 1024
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    write_crc(batch)
    return batch
