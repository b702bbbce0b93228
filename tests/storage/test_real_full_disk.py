"""The real thing: a file system of 200 kB that fills up, and a process that may write no larger file."""

from __future__ import annotations

import errno
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chaffinch.identifiers import TopicPartition
from chaffinch.records.batch import views
from chaffinch.storage.file_system import DiskFileSystem, StorageError
from chaffinch.storage.journal import Journal
from chaffinch.storage.partition_log import LogConfig, PartitionLog
from tests.storage.batches import batch

VALUE = random.Random(1).randbytes(900)
ORDERS = TopicPartition("orders", 0)
CONFIG = LogConfig(segment_bytes=20_000, checkpoint_bytes=8_000, index_interval_bytes=500, retention_bytes=60_000)


def refusal_of(change: Callable[[], object]) -> StorageError:
    """Make the same change until it is refused."""
    for _ in range(1000):
        try:
            change()
        except StorageError as error:
            return error
    pytest.fail("there is space for everything")


def count_of(log: PartitionLog) -> int:
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        view = next(views(log.read(offset, 1)[0]))
        assert view.crc_is_valid()
        offset = view.header.last_offset + 1
    return offset - log.log_start_offset


def test_log_recovers_from_a_full_disk_after_retention(small_disk: Path) -> None:
    files = DiskFileSystem(small_disk)
    log = PartitionLog.open(files, "orders-0", ORDERS, CONFIG, 0)
    journal = Journal.open(files, "", "offsets")
    error = refusal_of(lambda: log.append(batch(value=VALUE), steady_ms=0))
    assert error.error_number == errno.ENOSPC
    appended = log.log_end_offset
    assert count_of(log) == appended > 100
    assert refusal_of(lambda: journal.put({b"%d" % len(journal): bytes(300)})).error_number == errno.ENOSPC
    kept = journal.items()
    assert log.delete_old_segments(0) > 0
    assert log.append(batch(value=VALUE), steady_ms=0).base_offset == appended
    journal.put({b"after": b"x"})
    end = log.log_end_offset
    again = PartitionLog.open(DiskFileSystem(small_disk), "orders-0", ORDERS, CONFIG, 0)
    assert (again.log_end_offset, again.cuts) == (end, [])
    assert count_of(again) == end - again.log_start_offset
    assert Journal.open(DiskFileSystem(small_disk), "", "offsets").items() == {**kept, b"after": b"x"}


def child(root: str) -> None:
    """Append up to the limit and a few times against it; then with the limit lifted."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
    log = PartitionLog.open(DiskFileSystem(root), "orders-0", ORDERS, LogConfig(checkpoint_bytes=3_000), 0)
    for _ in range(10):
        assert refusal_of(lambda: log.append(batch(value=VALUE), steady_ms=0)).error_number == errno.EFBIG
        assert count_of(log) == 10
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert log.append(batch(), steady_ms=0).base_offset == 10


def test_file_size_limit_fails_appends_and_keeps_the_log(tmp_path: Path) -> None:
    program = f"from tests.storage.test_real_full_disk import child; child({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    log = PartitionLog.open(DiskFileSystem(tmp_path), "orders-0", ORDERS, LogConfig(), 0)
    assert (log.log_end_offset, log.cuts) == (11, [])
