"""Every legal topic name has its directory on a disk, where a name has 255 bytes at most."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.broker.core.topics.creation_rules import NAME_LENGTH_MAX
from chaffinch.storage.file_system import DiskFileSystem
from tests.broker.batches import batch_of
from tests.broker.core_client import Cluster

PARTITIONS = 12
LENGTHS = [1, 2, 215, 216, 217, 221, 222, 223, 224, 225, 247, 248, NAME_LENGTH_MAX]
LONG = "n" * (NAME_LENGTH_MAX - 1)
ALIKE = {
    "the last character": (LONG + "a", LONG + "b"),
    "the case": ("Orders", "orders"),
    "the case of a long one": (LONG + "a", LONG + "A"),
    "dots at the end": ("a", "a-.", "a-..", "a-..."),
    "only dots": ("...", "....."),
    "names of devices": ("CON", "con-", "NUL.log"),
    "names of our own files": (
        "chaffinch.meta-",
        "x.journal",
        "00000000000000000000.log",
        "log.state",
        "0",
        "x.new",
        "x.cleaned",
        "x.deleted",
    ),
    "another topic's directory": ("orders", "orders." + "0" * 32),
}


def cluster_on(root: Path) -> Cluster:
    return Cluster(file_system=DiskFileSystem(root))


def use(cluster: Cluster, name: str, value: bytes) -> None:
    cluster.topic(name, PARTITIONS, cleanup_policy="compact,delete", segment_ms="1")
    for partition in (0, PARTITIONS - 1):
        for number in range(3):
            sent = batch_of(value, timestamps=[cluster.steady_ms - 100 + 10 * number])
            assert cluster.client().produce(name, sent, partition=partition).error_code == 0
    cluster.advance(60_000)  # It is compacted.


def end_offsets(cluster: Cluster, name: str) -> list[int]:
    found = [cluster.core.topics.partition(name, partition) for partition in (0, PARTITIONS - 1)]
    return [partition.log.log_end_offset for partition in found if partition is not None]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_name_of_every_length_is_created_deleted_and_created_again(tmp_path: Path, length: int) -> None:
    name = "n" * length
    cluster = cluster_on(tmp_path)
    for kill in (True, False):
        use(cluster, name, b"a")
        cluster.restart(kill=kill)
        assert end_offsets(cluster, name) == [3, 3]
        cluster.core.topics.delete(name)
        assert list((tmp_path / "logs").iterdir()) == []
        use(cluster, name, b"b")
        cluster.restart(kill=kill)
        assert end_offsets(cluster, name) == [3, 3]
        cluster.core.topics.delete(name)
        cluster.restart(kill=kill)
        assert cluster.core.topics.get(name) is None
    cluster.core.close()


@pytest.mark.parametrize("names", ALIKE.values(), ids=ALIKE.keys())
def test_similar_names_are_separate_topics(tmp_path: Path, names: tuple[str, ...]) -> None:
    cluster = cluster_on(tmp_path)
    for count, name in enumerate(names, 1):
        cluster.topic(name)
        for _ in range(count):
            assert cluster.client().produce(name, batch_of(b"a")).error_code == 0
    directories = [topic.directory.lower() for topic in cluster.core.topics]
    assert len(set(directories)) == len(names), "on a disk that ignores case, too"
    cluster.restart()
    for count, name in enumerate(names, 1):
        partition = cluster.core.topics.partition(name, 0)
        assert partition is not None
        assert partition.log.log_end_offset == count
    cluster.core.topics.delete(names[0])
    cluster.restart()
    assert sorted(topic.name for topic in cluster.core.topics) == sorted(names[1:])
    cluster.core.close()


@pytest.mark.parametrize("name", [".", "..", "", "a/b", "a\0b", "n" * (NAME_LENGTH_MAX + 1)])
def test_illegal_name_creates_no_directory(tmp_path: Path, name: str) -> None:
    cluster = cluster_on(tmp_path)
    with pytest.raises(RequestRefused):
        cluster.topic(name)
    assert not (tmp_path / "logs").exists()
    cluster.core.close()
