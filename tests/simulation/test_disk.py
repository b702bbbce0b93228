"""Deaths in the middle of disk operations: written bytes stay, torn; synced bytes survive a power loss."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable

import pytest

from chaffinch.identifiers import TopicPartition
from chaffinch.storage.compaction import Compaction
from chaffinch.storage.file_system import Interrupted, StorageError
from chaffinch.storage.journal import Journal
from chaffinch.storage.partition_log import LogConfig, PartitionLog
from simulation.brokers.disk import Death, Disk
from simulation.world import World
from tests.storage.batches import batch


def test_process_dies_in_the_armed_operation() -> None:
    disk = Disk(World(1))
    file = disk.file_system.open("a")
    disk.arm(2)
    file.append((b"one",))
    assert file.read(0, 3) == b"one", "reading is no operation to die in"
    file.append((b"two",))
    with pytest.raises(Interrupted):
        file.append((b"three",))
    disk.end(Death.KILLED)
    with pytest.raises(StorageError):
        file.append((b"of a process that has ended",))
    data = disk.file_system.open("a").read(0, 100)
    assert data.startswith(b"onetwo")
    assert b"onetwothree".startswith(data)


def roll(disk: Disk) -> None:
    log = PartitionLog.open(disk.file_system, "orders-0", TopicPartition("orders", 0), LogConfig(compacts=True))
    for _ in range(2):
        log.append(batch(), steady_ms=0)
        log.roll(0)


def compact(disk: Disk) -> None:
    roll(disk)
    log = PartitionLog.open(disk.file_system, "orders-0", TopicPartition("orders", 0), LogConfig(compacts=True))
    job = Compaction(log, log.log_end_offset, 0, map_bytes_max=1 << 20)
    while not job.step():
        pass


def rewrite(disk: Disk) -> None:
    journal = Journal.open(disk.file_system, "", "groups", rewrite_bytes_min=200)
    for number in range(4):
        journal.put({b"key": b"%d" % number * 50})


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (roll, {"segment roll": 2 * len(["make the segment", "make the checkpoint", "write it", "name it"])}),
        (compact, {"segment roll": 8, "compaction": 3 * len(["make the segment or log.state", "write it", "sync it", "name it"])}),
        (rewrite, {"journal rewrite": len(["make the file", "write it", "sync it", "name it"])}),
    ],
)
def test_death_is_counted_by_interrupted_work(work: Callable[[Disk], None], expected: dict[str, int]) -> None:
    """At each operation of it, and at no other."""
    names: Counter[str] = Counter()
    for operations in range(100):
        world = World(1)
        disk = Disk(world)
        disk.arm(operations)
        try:
            work(disk)
        except Interrupted:
            names.update(world.counters)
        else:
            break
    assert names.pop("deaths inside a disk operation") == operations
    assert names == {f"deaths inside a {name}": count for name, count in expected.items()}


def test_appends_are_torn_at_different_bytes() -> None:
    sizes = set()
    for seed in range(40):
        disk = Disk(World(seed))
        file = disk.file_system.open("a")
        disk.arm(0)
        with pytest.raises(Interrupted):
            file.append((b"three",))
        disk.end(Death.KILLED)
        sizes.add(disk.file_system.open("a").size)
    assert sizes == {0, 1, 2, 3, 4, 5}


def test_end_disarms_the_disk() -> None:
    disk = Disk(World(1))
    disk.arm(0)
    disk.end(Death.KILLED)
    disk.file_system.open("a").append((b"lives",))


def test_power_loss_keeps_synced_bytes_and_some_others() -> None:
    seen = set()
    for seed in range(40):
        disk = Disk(World(seed))
        file = disk.file_system.open("a")
        file.append((b"synced",))
        file.sync()
        disk.file_system.sync_directory("")
        file.append((b"rest",))
        disk.end(Death.POWER_LOST)
        data = disk.file_system.open("a").read(0, 100)
        assert data.startswith(b"synced")
        seen.add(data)
    assert {b"synced", b"syncedrest"} < seen


def test_full_disk_refuses_appends_until_freed() -> None:
    disk = Disk(World(1))
    file = disk.file_system.open("a")
    disk.fill(5)
    file.append((b"three",))
    with pytest.raises(StorageError) as caught:
        file.append((b"x",))
    assert (caught.value.error_number, disk.is_full, file.size) == (errno.ENOSPC, True, 5)
    disk.file_system.rename("a", "b")
    disk.empty()
    file.append((b"x",))
    assert (disk.is_full, file.size) == (False, 6)


def test_kill_keeps_written_bytes() -> None:
    disk = Disk(World(1))
    disk.file_system.open("a").append((b"written",))
    disk.end(Death.KILLED)
    assert disk.file_system.open("a").read(0, 100) == b"written"
