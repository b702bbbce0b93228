"""A real process on a real disk, ended by SIGKILL between and inside its writes; the parent then opens what it left.

The child kills itself at a named write, so nothing depends on timing. Inside a write: a few bytes of the batch go out first, as when
the kernel stops a large write half way.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.records.batch import read_header, views
from chaffinch.storage.file_system import DiskFileSystem
from chaffinch.storage.journal import Journal
from chaffinch.storage.partition_log import LogConfig, PartitionLog
from tests.storage.batches import batch

ORDERS = TopicPartition("orders", 0)
CONFIG = LogConfig(segment_bytes=2000, checkpoint_bytes=700, index_interval_bytes=200)
SIZE = len(batch(2, identity=ProducerIdentity(1, 0), base_sequence=0))


def child(root: str, kill_at: int, bytes_before: int) -> None:
    """Append for ever, saying what is acknowledged; die at write number `kill_at`, after `bytes_before` bytes of it."""
    import os
    import signal

    write = os.write
    writes = 0

    def counting(descriptor: int, data: bytes) -> int:
        nonlocal writes
        if descriptor == 1:
            return write(descriptor, data)
        writes += 1
        if writes == kill_at:
            write(descriptor, memoryview(data)[:bytes_before])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(descriptor, data)

    os.write = counting  # type: ignore[assignment]
    files = DiskFileSystem(root, descriptors_max=2)
    log = PartitionLog.open(files, "orders-0", ORDERS, CONFIG, 0)
    journal = Journal.open(files, "", "offsets", rewrite_bytes_min=1000)
    for number in range(10_000):
        log.append(batch(2, identity=ProducerIdentity(1, 0), base_sequence=2 * number), steady_ms=0)
        os.write(1, b"log %d\n" % number)
        journal.put({b"position": b"%d" % number, b"%d" % (number % 4): b"x"})
        os.write(1, b"journal %d\n" % number)


@pytest.mark.parametrize(("kill_at", "bytes_before"), [(1, 0), (5, 30), (40, 0), (61, 1), (150, 70), (303, 10_000)])
def test_acknowledged_writes_survive_sigkill(tmp_path: Path, kill_at: int, bytes_before: int) -> None:
    program = f"from tests.storage.test_kill import child; child({str(tmp_path)!r}, {kill_at}, {bytes_before})"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    lines = done.stdout.splitlines()
    appended = sum(line.startswith("log") for line in lines)
    put = sum(line.startswith("journal") for line in lines)

    files = DiskFileSystem(tmp_path)
    log = PartitionLog.open(files, "orders-0", ORDERS, CONFIG, 0)
    assert log.log_end_offset in (2 * appended, 2 * appended + 2)
    offset = 0
    while data := log.read(offset, 1 << 20):
        for view in views(data[0]):
            assert view.crc_is_valid()
            assert (view.header.base_offset, view.header.base_sequence) == (offset, offset)
            offset += 2
    assert offset == log.log_end_offset
    if appended:
        last = read_header(batch(2, identity=ProducerIdentity(1, 0), base_sequence=2 * appended - 2))
        assert log.find_duplicate(last) is not None
    log.close()
    position = Journal.open(files, "", "offsets").get(b"position")
    assert position in ([b"%d" % (put - 1), b"%d" % put] if put else [None, b"0"])
