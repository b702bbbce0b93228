"""Data directories of earlier versions open, and hold what was put into them.

`stored/format_1_closed.zip` and `format_1_killed.zip` were made by version 1 of the format, once closed, once killed: two topics, three
large batches of an idempotent producer, an aborted, a committed and an open transaction, a committed offset and a transactional id.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.records.batch import decode, read_header, views
from chaffinch.storage.data_directory import FORMAT_VERSION, META_NAME
from chaffinch.storage.file_system import DiskFileSystem
from chaffinch.storage.partition_log import PartitionLog
from tests.broker.batches import batch_of
from tests.broker.core_client import Cluster

STORED = Path(__file__).parent / "stored"
READERS = TopicPartition("orders", 0)


def unpacked(root: Path, how: str) -> Cluster:
    with zipfile.ZipFile(STORED / f"format_1_{how}.zip") as archive:
        archive.extractall(root)
    return Cluster(file_system=DiskFileSystem(root), nodes=2)


def log_of(cluster: Cluster, topic: str) -> PartitionLog:
    partition = cluster.core.topics.partition(topic, 0)
    assert partition is not None
    return partition.log


def values(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        view = next(views(log.read(offset, 1)[0]))
        assert view.crc_is_valid()
        if not view.header.is_control:
            columns = decode(view)
            assert columns.offsets is not None
            found += [(int(columns.offsets[index]), (columns.value(index) or b"")[:9]) for index in range(columns.count)]
        offset = view.header.last_offset + 1
    return found


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_directory_of_version_1_opens_with_its_contents(tmp_path: Path, how: str) -> None:
    cluster = unpacked(tmp_path, how)
    log = log_of(cluster, "orders")
    assert values(log) == [
        (0, b"0xxxxxxxx"),
        (1, b"1xxxxxxxx"),
        (2, b"2xxxxxxxx"),
        (3, b"aborted"),
        (5, b"committed"),
        (7, b"open"),
    ]
    # No coordinator knows of the open transaction: as after a loss of power it is aborted.
    assert (log.log_end_offset, log.last_stable_offset) == (9, 9)
    assert log.aborted_transactions(0, 9) == [(78, 3), (78, 7)]
    assert log.find_duplicate(read_header(batch_of(b"2", identity=ProducerIdentity(77, 0), sequence=2))) is not None
    assert not log.ongoing_transactions()
    assert len(values(log_of(cluster, "keyed"))) == 5
    offset = cluster.core.state.offsets.fetch("readers", READERS)
    assert offset is not None
    assert (offset.offset, offset.metadata) == (2, "here")
    metadata = cluster.core.state.transactions.describe("writer")
    assert metadata is not None
    assert metadata.producer_id == 0
    assert (tmp_path / META_NAME).read_bytes().startswith(b"format.version=%d\n" % FORMAT_VERSION)


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_directory_of_version_1_accepts_changes(tmp_path: Path, how: str) -> None:
    """Appends, a compaction, retention, and another start."""
    cluster = unpacked(tmp_path, how)
    orders, keyed = log_of(cluster, "orders"), log_of(cluster, "keyed")
    orders.append(batch_of(b"3", identity=ProducerIdentity(77, 0), sequence=3), steady_ms=cluster.steady_ms)
    keyed.roll(cluster.steady_ms)
    orders.delete_records_before(2, cluster.steady_ms)
    cluster.advance(3_600_000)
    assert [offset for offset, _ in values(keyed)] == [3, 4]
    cluster.core.close()
    again = Cluster(file_system=DiskFileSystem(tmp_path), nodes=2)
    assert values(log_of(again, "orders"))[0] == (2, b"2xxxxxxxx")
    assert [offset for offset, _ in values(log_of(again, "keyed"))] == [3, 4]
    again.core.close()
