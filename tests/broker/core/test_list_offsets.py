"""ListOffsets: by timestamp, and the special places of a log."""

from __future__ import annotations

import pytest

from chaffinch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.broker.batches import NOW_MS, batch_of
from tests.broker.core.transactional_writer import Writer
from tests.broker.core_client import Cluster


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.topic("orders", 2)
    return cluster


def list_offsets(timestamp: int, *, committed: bool = False, topic: str = "orders") -> ListOffsetsRequest:
    asked = [ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
    return ListOffsetsRequest(isolation_level=int(committed), topics=[ListOffsetsTopic(name=topic, partitions=asked)])


class TestListOffsets:
    @pytest.mark.parametrize(
        ("timestamp", "offset", "found_timestamp"),
        [
            (-1, 4, -1),
            (-2, 0, -1),
            (-3, 1, NOW_MS + 50),
            (-4, 0, -1),
            (-5, -1, -1),
            (0, 0, NOW_MS),
            (NOW_MS + 1, 1, NOW_MS + 50),
            (NOW_MS + 51, -1, -1),
        ],
    )
    def test_places(self, cluster: Cluster, timestamp: int, offset: int, found_timestamp: int) -> None:
        client = cluster.client()
        client.produce("orders", batch_of(b"a", b"b", timestamps=[NOW_MS, NOW_MS + 50]))
        client.produce("orders", batch_of(b"c", b"d", timestamps=[NOW_MS + 10, NOW_MS + 20]))
        (answer,) = client.ask(list_offsets(timestamp)).topics[0].partitions
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, offset, found_timestamp)

    def test_the_last_stable_offset_ends_committed_logs(self, cluster: Cluster) -> None:
        client = cluster.client()
        client.produce("orders", batch_of(b"a"))
        Writer(client, "t").write(b"b")
        assert client.ask(list_offsets(-1)).topics[0].partitions[0].offset == 2
        assert client.ask(list_offsets(-1, committed=True)).topics[0].partitions[0].offset == 1

    def test_an_empty_log(self, cluster: Cluster) -> None:
        client = cluster.client()
        found = [client.ask(list_offsets(timestamp)).topics[0].partitions[0].offset for timestamp in (-1, -2, -3, 0)]
        assert found == [0, 0, -1, -1]

    def test_unknown_places(self, cluster: Cluster) -> None:
        client = cluster.client()
        assert client.ask(list_offsets(-1, topic="missing")).topics[0].partitions[0].error_code == 3
