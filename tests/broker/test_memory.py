"""What would end an Apache Kafka with a 1 GiB heap costs a refusal here: on a real process, whose memory the system measures."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from chaffinch.errors import codes
from chaffinch.protocol.frames import EAGER_BYTES_MAX
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.records.batch_header import write_crc
from chaffinch.records.compression import Compression, compress
from tests.broker.batches import batch_of
from tests.broker.core_client import produce_request
from tests.broker.socket_client import TIMEOUT_SECONDS, SocketClient

MIB = 1 << 20

UNFINISHED = 30
CLAIMED_MIB = 99
SENT_MIB = 24

UNFINISHED_MIB_MAX = 128
"""`queued.max.request.bytes` here; the default is four times that."""

UNPACKED_MIB_MAX = 128
"""Its default for `max.decompressed.bytes`."""

IDLE_MIB_MAX = 150
"""What the process takes before its first request."""

TOPIC = f"orders,max.message.bytes={64 * MIB}"
"""Room for a gigabyte of zeros under the weakest codec: Snappy makes 50 MB of it."""

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


@contextlib.contextmanager
def running(*options: str) -> Iterator[Process]:
    command = [sys.executable, "-c", "from chaffinch.cli.main import main; main()", "broker", "--listen", "127.0.0.1:0", "--topic", TOPIC]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield Process(process, process.stdout.readline().strip().partition("=")[2])
        finally:
            process.kill()


@pytest.fixture(scope="module")
def broker() -> Iterator[Process]:
    """One for all codecs: the limit is the same for each, so the most that it ever had says enough."""
    with running() as process:
        yield process


@pytest.mark.parametrize("piece_mib", [1, SENT_MIB], ids=["side by side", "one after the other"])
def test_thirty_unfinished_99_mib_requests_stay_within_the_limit(piece_mib: int) -> None:
    with running("--config", f"queued.max.request.bytes={UNFINISHED_MIB_MAX * MIB}") as broker, contextlib.ExitStack() as opened:
        idle = broker.resident_mib_max
        assert idle < IDLE_MIB_MAX
        clients = [opened.enter_context(SocketClient(broker.address, greet=False)) for _ in range(UNFINISHED)]
        for client in clients:
            client.socket.sendall(struct.pack(">i", CLAIMED_MIB * MIB))
        sockets = [client.socket for client in clients]
        send_in_turns(sockets, bytes(piece_mib * MIB), SENT_MIB // piece_mib)
        await_refusals(sockets, UNFINISHED - UNFINISHED_MIB_MAX // SENT_MIB)
        # Before the first records come: then the compiled loops are loaded.
        held = broker.resident_mib_max - idle
        begun = UNFINISHED * EAGER_BYTES_MAX // MIB
        assert UNFINISHED_MIB_MAX // 2 < held < UNFINISHED_MIB_MAX + begun + 2 * SENT_MIB, "what came, its beginnings, what is copied"
        with SocketClient(broker.address) as other:
            assert other.ask(MetadataRequest(topics=None)).topics[0].name == "orders"
            assert other.ask(produce_request("orders", batch_of(b"a"))).responses[0].partition_responses[0].error_code == 0


def send_in_turns(sockets: Sequence[socket.socket], piece: bytes, count: int) -> None:
    """Send the piece `count` times to each socket that is not closed."""
    for _ in range(count):
        for one in sockets:
            with contextlib.suppress(ConnectionError):
                one.sendall(piece)


def await_refusals(sockets: Sequence[socket.socket], count: int) -> None:
    """Return when the broker has closed `count` sockets; fail when it closes fewer or more."""
    is_open = set(sockets)
    while len(sockets) - len(is_open) < count:
        closed = select.select(is_open, [], [], TIMEOUT_SECONDS)[0]
        assert closed, f"{len(sockets) - len(is_open)} refused"
        is_open -= set(closed)
    assert len(is_open) == len(sockets) - count


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
def test_record_that_decompresses_to_a_gigabyte_is_refused(broker: Process, codec: Compression) -> None:
    with SocketClient(broker.address) as client:
        client.socket.settimeout(TIMEOUT_SECONDS)
        before, answer, after = (
            client.ask(produce_request("orders", batch)).responses[0].partition_responses[0]
            for batch in (batch_of(b"a"), bomb(codec), batch_of(b"a"))
        )
        assert answer.error_code == codes.INVALID_RECORD.number, answer
        assert str(UNPACKED_MIB_MAX * MIB) in answer.error_message
        assert (before.error_code, after.error_code, after.base_offset) == (0, 0, before.base_offset + 1)
    assert broker.resident_mib_max < IDLE_MIB_MAX + 2 * UNPACKED_MIB_MAX


def bomb(codec: Compression) -> bytearray:
    """A batch whose one record is a gigabyte of zeros: compressed mebibytes end to end, which these codecs read as one stream."""
    good = batch_of(bytes(100), compression=codec)
    mebibyte = bytes(compress(codec, bytes(MIB)))
    batch = good[:BATCH_HEAD_BYTES] + mebibyte * 1024
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    write_crc(batch)
    return batch
