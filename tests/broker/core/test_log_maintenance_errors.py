"""What ends a compaction before its time: disks, damage; and when it is tried again."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from unittest import mock

import pytest

from chaffinch.broker.core import log_maintenance
from chaffinch.broker.core.events import TimePassed
from chaffinch.broker.core.log_maintenance import WORK_PER_CALL
from chaffinch.records.errors import CorruptBatch, Fault
from chaffinch.storage.compaction import Compaction
from chaffinch.storage.file_system import CorruptLog, StorageError
from tests.broker.core.maintained_log import CLEANER_BACKOFF, HOUR, MINUTE, compacted, fill, offsets
from tests.broker.core_client import Cluster


def lines_of_a_minute_without_room(cluster: Cluster) -> int:
    """How many there are after it: what is compacted by then is dirty again, and finds no space."""
    fill(cluster, *range(20, -1, -2))
    cluster.file_system.bytes_free = 50
    cluster.advance(MINUTE)
    return len([line for line in cluster.lines if " failed" in line])


def test_unreadable_records_end_the_compaction_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(self: Compaction) -> bool:
        raise CorruptBatch(Fault.RECORD_COUNT)

    cluster = Cluster()
    compacted(cluster)
    monkeypatch.setattr(Compaction, "step", unreadable)
    cluster.advance(HOUR)
    assert len([line for line in cluster.lines if " failed" in line]) == 1


def test_compaction_on_a_full_disk_is_retried() -> None:
    cluster = Cluster()
    log = compacted(cluster)
    cluster.file_system.bytes_free = 50
    cluster.advance(MINUTE)
    assert any(line.startswith("compaction of orders-0 failed: cannot append") for line in cluster.lines)
    assert len(offsets(log)) == 5
    assert not [name for name in cluster.file_system.list(log.directory) if name.endswith(".cleaned")]
    cluster.file_system.bytes_free = None
    fill(cluster, 0)
    cluster.advance(2 * MINUTE)
    assert len(offsets(log)) == 2


def test_compaction_backs_off_while_the_disk_is_full() -> None:
    cluster = Cluster()
    log = compacted(cluster)
    cluster.file_system.bytes_free = 50
    begun = cluster.steady_ms
    tried = []
    for _ in range(8 * HOUR // CLEANER_BACKOFF):
        cluster.advance(CLEANER_BACKOFF)
        cluster.lines = [line for line in cluster.lines if not line.startswith("the next start may not detect")]
        if cluster.lines:
            assert [line.partition(":")[0] for line in cluster.lines] == ["compaction of orders-0 failed"]
            cluster.lines.clear()
            tried.append((cluster.steady_ms - begun) // CLEANER_BACKOFF)
    waits = [after - before for before, after in pairwise(tried)]
    assert waits[:8] == [1, 2, 4, 8, 16, 32, 64, 64]
    assert set(waits[8:]) == {64}
    cluster.file_system.bytes_free = None
    cluster.advance(65 * CLEANER_BACKOFF)
    assert len(offsets(log)) == 2
    assert lines_of_a_minute_without_room(cluster) == 3, "after a success it begins with short waits again"


def test_new_segment_does_not_shorten_the_backoff() -> None:
    cluster = Cluster()
    compacted(cluster)
    cluster.file_system.bytes_free = 1000
    failing = mock.patch.object(Compaction, "step", side_effect=StorageError("log", "append", "No space left on device"))
    with failing as step:
        for _ in range(20):
            cluster.advance(CLEANER_BACKOFF)
            cluster.file_system.bytes_free = None
            fill(cluster, 0)
    assert step.call_count == 5


def test_damaged_log_is_given_up_and_logged_once() -> None:
    cluster = Cluster()
    log = compacted(cluster)
    reads = log.files.segments[0].log.read

    def damaged(position: int, length: int) -> bytes:
        return reads(position, length)[:-1] + b"\xff"

    log.files.segments[0].log.read = damaged  # type: ignore[method-assign]
    cluster.advance(HOUR)
    assert len([line for line in cluster.lines if " failed" in line]) == 1
    assert len(log.files.segments) == 5


def test_log_damaged_before_its_compaction_is_given_up_and_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: object) -> None:
        raise CorruptLog("a.log", 7, "damaged")

    monkeypatch.setattr(log_maintenance, "cleanable", damaged)
    cluster = Cluster()
    compacted(cluster)
    cluster.advance(24 * HOUR)
    assert len([line for line in cluster.lines if " failed" in line]) == 1


def test_new_topic_of_the_name_of_a_damaged_log_is_compacted() -> None:
    cluster = Cluster()
    log = compacted(cluster)
    reads = log.files.segments[0].log.read
    log.files.segments[0].log.read = lambda position, length: reads(position, length)[:-1] + b"\xff"  # type: ignore[method-assign]
    cluster.advance(MINUTE)
    assert len([line for line in cluster.lines if " failed" in line]) == 1
    cluster.core.topics.delete("orders")
    log = compacted(cluster)
    cluster.advance(MINUTE)
    assert offsets(log) == [3, 4]


def test_disk_error_while_checking_is_logged() -> None:
    cluster = Cluster()
    log = compacted(cluster)

    def hook(operation: str, path: str, size: int) -> None:
        if operation == "read" and path.endswith(".log"):
            raise StorageError(path, operation, "Input/output error")

    cluster.file_system.hook = hook
    cluster.advance(MINUTE)
    assert any(" failed" in line for line in cluster.lines)
    cluster.file_system.hook = None
    cluster.advance(2 * MINUTE)
    assert offsets(log) == [3, 4]


@pytest.mark.parametrize("still_compacts", [True, False])
def test_files_left_by_a_compaction_are_removed_in_slices(still_compacts: bool) -> None:
    """All at once it would block every client. No log may have anything left to compact."""
    cluster = Cluster()
    log = compacted(cluster, sealed=4 * WORK_PER_CALL)
    refused = f"{log.directory}/{1:020d}.log"
    removed: list[str] = []

    def hook(operation: str, path: str, size: int) -> None:
        if operation == "remove" and path.endswith(".log"):
            removed.append(path)
            if path == refused and removed.count(path) == 1:
                raise StorageError(path, operation, "Device or resource busy")

    cluster.file_system.hook = hook
    while not any(" failed" in line for line in cluster.lines):
        cluster.advance(1000)
    assert log.files.state.swap is not None
    log.config = replace(log.config, compacts=still_compacts)
    for _ in range(100):
        before = len(removed)
        cluster.steady_ms += CLEANER_BACKOFF // 10
        cluster.carry_out(cluster.core.handle(TimePassed(), cluster.steady_ms))
        assert len(removed) - before <= WORK_PER_CALL
    assert len(removed) == 4 * WORK_PER_CALL, "the one twice"
    assert log.files.state.swap is None
    assert len(offsets(log)) == 2


@pytest.mark.parametrize("operation", ["remove", "append"])
def test_failing_removal_backs_off(operation: str) -> None:
    cluster = Cluster()
    log = compacted(cluster)
    refused = {"remove": f"{log.directory}/{1:020d}.log", "append": f"{log.directory}/log.state.new"}[operation]

    def hook(done: str, path: str, size: int) -> None:
        if (done, path) == (operation, refused) and log.files.state.swap is not None:
            raise StorageError(path, done, "Operation not permitted")

    cluster.file_system.hook = hook
    cluster.advance(8 * HOUR)
    assert len(cluster.lines) == 35, "after 1, 2, 4 ... 32 intervals, then every 64"
    assert log.files.state.swap is not None
    cluster.file_system.hook = None
    cluster.advance(65 * CLEANER_BACKOFF)
    assert log.files.state.swap is None
    cluster.lines.clear()
    assert lines_of_a_minute_without_room(cluster) == 3, "after a success it begins with short waits again"


def test_damaged_compacted_segment_is_given_up_and_logged_once() -> None:
    cluster = Cluster()
    log = compacted(cluster)

    def hook(operation: str, path: str, size: int) -> None:
        if operation == "remove" and path == f"{log.directory}/{1:020d}.log":
            raise StorageError(path, operation, "Device or resource busy")

    cluster.file_system.hook = hook
    while not cluster.lines:
        cluster.advance(1000)
    cluster.file_system.hook = None
    cluster.file_system.open(f"{log.directory}/{0:020d}.log").append((b"x",))
    cluster.advance(8 * HOUR)
    assert len(cluster.lines) == 2
    assert "the compacted segment has" in cluster.lines[-1]
