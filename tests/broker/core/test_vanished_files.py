"""Files of a data directory that are removed, emptied or cut: the next start rebuilds them without loss, or refuses and names the file."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chaffinch.broker.core.transactions.power_loss import RECOVERED_IN
from chaffinch.identifiers import ProducerIdentity
from chaffinch.records.batch import views
from chaffinch.storage.data_directory import META_NAME
from chaffinch.storage.file_system import MemoryFileSystem, StorageError
from chaffinch.storage.partition_log import PartitionLog
from tests.broker.batches import batch_of
from tests.broker.core.maintained_log import HOUR, MINUTE
from tests.broker.core.test_full_disk import commit
from tests.broker.core.transactions.transactional_writer import Writer
from tests.broker.core_client import Cluster

pytestmark = pytest.mark.long

ACCEPTED = "accept.data.loss"
REBUILT = (".index", ".txnindex", ".closed", ".start", ".snapshot")
"""Files whose contents are known elsewhere; snapshots not where segments were deleted."""


def remove(files: MemoryFileSystem, path: str) -> None:
    files.remove(path)


def empty(files: MemoryFileSystem, path: str) -> None:
    files.open(path, create=False).truncate(0)


def halve(files: MemoryFileSystem, path: str) -> None:
    file = files.open(path, create=False)
    file.truncate(file.size // 2)


def shorten(files: MemoryFileSystem, path: str) -> None:
    """By one byte."""
    file = files.open(path, create=False)
    file.truncate(max(0, file.size - 1))


HARMS = [remove, empty, halve, shorten]


def stopped(cluster: Cluster) -> None:
    cluster.core.close()


def killed(cluster: Cluster) -> None:
    cluster.core.abandon()
    cluster.file_system.kill()


def without_power(cluster: Cluster) -> None:
    cluster.core.abandon()
    cluster.file_system.crash(lambda path, unsynced: 0)


def used(flush_policy: str, *, lives: int = 2) -> Cluster:
    """A broker with logs of all kinds: of one segment, of several, compacted, with deleted records, with an aborted transaction."""
    config = {"flush.policy": flush_policy, "log.retention.check.interval.ms": "1000", "group.initial.rebalance.delay.ms": "0"}
    cluster = Cluster(config)
    cluster.topic("small")
    cluster.topic("rolled", segment_ms="1000", index_interval_bytes="100", retention_ms="-1")
    cluster.topic("compacted", cleanup_policy="compact", segment_ms="1")
    cluster.topic("expired", segment_ms="1000", retention_ms="1200000")
    cluster.topic("orders")
    cluster.topic("unused")
    sequence = 0
    for life in range(lives):
        client = cluster.client()
        for number in range(20):
            value = b"%d" % number * 20
            identity = ProducerIdentity(50, 0)
            assert client.produce("small", batch_of(value)).error_code == 0
            aged = cluster.steady_ms - HOUR // 2 + 2000 * (number // 5)
            assert client.produce("rolled", batch_of(value, timestamps=[aged])).error_code == 0
            assert client.produce("compacted", batch_of(value, timestamps=[cluster.steady_ms - 100 + number])).error_code == 0
            assert client.produce("expired", batch_of(value, timestamps=[aged], identity=identity, sequence=sequence)).error_code == 0
            sequence += 1
        for commits in (True, False, True):
            writer = Writer(client, "writer")
            writer.write(b"a")
            assert writer.end(commit=commits) == 0
        assert commit(client) == 0
        cluster.advance(MINUTE)
        if life + 1 < lives:
            cluster.restart(kill=False)
    return cluster


def paths(files: MemoryFileSystem, directory: str = "") -> Iterator[str]:
    for name in files.list(directory):
        path = f"{directory}/{name}" if directory else name
        try:
            files.list(path)
        except StorageError:
            yield path
        else:
            yield from paths(files, path)


def records(log: PartitionLog) -> list[tuple[int, bytes]]:
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1)
        if not data:
            break
        view = next(views(data[0]))
        found.append((view.header.base_offset, bytes(view.data)))
        offset = view.header.last_offset + 1
    return found


def state(cluster: Cluster) -> dict[str, Any]:
    known: dict[str, Any] = {name: dict(journal.items()) for name, journal in cluster.core._journals.items()}
    known["transactions"].pop(RECOVERED_IN, None)
    for partition in cluster.core.topics.partitions():
        log = partition.log
        known[str(partition.topic_partition)] = log.log_start_offset, log.log_end_offset, records(log)
        known[f"producers of {partition.topic_partition}"] = {
            producer_id: (found.epoch, [entry.base_offset for entry in found.batches]) for producer_id, found in log.producers.states()
        }
        known[f"aborted in {partition.topic_partition}"] = log.aborted_transactions(log.log_start_offset, log.log_end_offset)
    return known


def started(files: MemoryFileSystem, cluster: Cluster, **config: str) -> Cluster:
    again = copy.copy(cluster)
    again.disk, again.config = files, {**cluster.config, **config}
    again.clients, again.lines = {}, []
    again.core = again._core()
    return again


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize(("flush_policy", "end"), [("os", stopped), ("os", killed), ("always", killed), ("always", without_power)])
def test_each_file_is_rebuilt_or_refused_by_name(
    flush_policy: str, end: Callable[[Cluster], None], harm: Callable[[MemoryFileSystem, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    cluster = used(flush_policy)
    cluster.advance(MINUTE)
    before = state(cluster)
    end(cluster)
    cluster.file_system.life += 1
    assert state(started(copy.deepcopy(cluster.file_system), cluster)) == before
    for path in paths(cluster.file_system):
        files = copy.deepcopy(cluster.file_system)
        harm(files, path)
        refusal = to_refusal(files, cluster)
        if refusal is None:
            assert state(started(files, cluster)) == before, f"silent loss: {path}"
            continue
        assert not path.endswith(REBUILT) or "/expired" in path, f"{path}: {refusal}"
        assert path.rpartition("/")[0] in refusal, f"{path} is not named: {refusal}"
        if path != META_NAME:
            accept(files, cluster, path, caplog)
            assert are_left(state(started(files, cluster)), before), path


def to_refusal(files: MemoryFileSystem, cluster: Cluster) -> str | None:
    try:
        started(files, cluster)
    except StorageError as error:
        return str(error)
    finally:
        files.kill()
    return None


def are_left(after: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether logs have the records that they had, but for some, and no offset can be given a second time."""
    names = [name for name in before if "orders" in name or "small" in name or "rolled" in name]
    logs = [(after[name], before[name]) for name in names if name in after and isinstance(before[name], tuple)]
    return all(left[1] >= had[1] and {found for found in left[2] if found[0] < had[1]} <= set(had[2]) for left, had in logs)


def accept(files: MemoryFileSystem, cluster: Cluster, path: str, caplog: pytest.LogCaptureFixture) -> None:
    """With the option the broker starts and logs what is lost; later it starts without the option."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        started(files, cluster, **{ACCEPTED: "true"})
    assert "the loss is accepted" in caplog.text, path
    files.kill()
    caplog.clear()
    started(files, cluster).core.close()
    assert "the loss is accepted" not in caplog.text, path
