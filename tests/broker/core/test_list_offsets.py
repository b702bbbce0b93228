"""ListOffsets: by timestamp, and the special places of a log."""

from __future__ import annotations

import pytest

from chaffinch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.broker.batches import NOW_MS, batch_of
from tests.broker.core.transactions.transactional_writer import Writer
from tests.broker.core_client import Cluster


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.topic("orders", 2)
    return cluster


def list_offsets(timestamp: int, *, committed: bool = False, topic: str = "orders") -> ListOffsetsRequest:
    requested = [ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
    return ListOffsetsRequest(isolation_level=int(committed), topics=[ListOffsetsTopic(name=topic, partitions=requested)])


class TestListOffsets:
    @pytest.mark.parametrize(
        ("timestamp", "offset", "found_timestamp"),
        [
            (-1, 4, -1),
            (-2, 0, -1),
            (-3, 1, NOW_MS + 50),
            (-4, 0, -1),
            (-5, -1, -1),
            (-6, -1, -1),
            (0, 0, NOW_MS),
            (NOW_MS + 1, 1, NOW_MS + 50),
            (NOW_MS + 51, -1, -1),
        ],
    )
    def test_special_timestamps_return_their_offset(self, cluster: Cluster, timestamp: int, offset: int, found_timestamp: int) -> None:
        client = cluster.client()
        client.produce("orders", batch_of(b"a", b"b", timestamps=[NOW_MS, NOW_MS + 50]))
        client.produce("orders", batch_of(b"c", b"d", timestamps=[NOW_MS + 10, NOW_MS + 20]))
        (answer,) = client.ask(list_offsets(timestamp), 11).topics[0].partitions
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, offset, found_timestamp)

    def test_latest_offset_of_committed_readers_is_the_last_stable_offset(self, cluster: Cluster) -> None:
        client = cluster.client()
        client.produce("orders", batch_of(b"a"))
        Writer(client, "t").write(b"b")
        assert client.ask(list_offsets(-1)).topics[0].partitions[0].offset == 2
        assert client.ask(list_offsets(-1, committed=True)).topics[0].partitions[0].offset == 1

    def test_empty_log_returns_start_and_end(self, cluster: Cluster) -> None:
        client = cluster.client()
        found = [client.ask(list_offsets(timestamp)).topics[0].partitions[0].offset for timestamp in (-1, -2, -3, 0)]
        assert found == [0, 0, -1, -1]

    @pytest.mark.parametrize(("start", "latest"), [(0, 1), (1, 1), (2, 4), (4, 4), (5, 6), (6, 6), (7, -1)])
    @pytest.mark.parametrize("rolls", [False, True])
    def test_max_timestamp_is_that_of_the_remaining_records(self, cluster: Cluster, start: int, latest: int, rolls: bool) -> None:
        client, log = cluster.client(), cluster.partition("orders", 0).log
        for times in ((10, 90, 20), (40, 50), (30, 35)):
            client.produce("orders", batch_of(*[b"a"] * len(times), timestamps=[NOW_MS + time for time in times]))
            if rolls:
                log.roll(NOW_MS)
        log.delete_records_before(start, NOW_MS)
        (answer,) = client.ask(list_offsets(-3)).topics[0].partitions
        assert (answer.error_code, answer.offset) == (0, latest)

    def test_records_without_timestamps_have_no_max_timestamp(self, cluster: Cluster) -> None:
        client = cluster.client()
        client.produce("orders", batch_of(b"a", b"b", timestamps=[-1, -1]))
        (answer,) = client.ask(list_offsets(-3)).topics[0].partitions
        assert (answer.error_code, answer.offset, answer.timestamp, answer.leader_epoch) == (0, -1, -1, -1)

    def test_unknown_topic_is_refused(self, cluster: Cluster) -> None:
        client = cluster.client()
        assert client.ask(list_offsets(-1, topic="missing")).topics[0].partitions[0].error_code == 3

    @pytest.mark.parametrize(
        ("timestamp", "since"), [(-1, 1), (-2, 1), (-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 12), (-(2**63), 12), (0, 1)]
    )
    def test_special_timestamp_is_refused_before_its_version(self, cluster: Cluster, timestamp: int, since: int) -> None:
        client = cluster.client()
        for version in range(1, 12):
            (answer,) = client.ask(list_offsets(timestamp), version).topics[0].partitions
            assert answer.error_code == (0 if version >= since else 35)

    def test_partition_named_twice_is_refused(self, cluster: Cluster) -> None:
        request = list_offsets(-1)
        request.topics[0].partitions += [
            ListOffsetsPartition(partition_index=1, timestamp=-1),
            ListOffsetsPartition(partition_index=0, timestamp=-2),
        ]
        answers = cluster.client().ask(request).topics[0].partitions
        assert [(answer.partition_index, answer.error_code) for answer in answers] == [(0, 42), (1, 0), (0, 42)]

    def test_leader_epoch_is_that_of_the_record(self) -> None:
        """KIP-320: a consumer remembers under which leader it read."""
        cluster = Cluster(nodes=2)
        cluster.topic("orders", 1, 2)
        partition = cluster.partition("orders", 0)
        first = partition.replicas.leader
        cluster.client(node=first).produce("orders", batch_of(b"a"))
        cluster.stop_node(first)
        client = cluster.client(node=1 - first)
        client.produce("orders", batch_of(b"b", timestamps=[NOW_MS + 1]))
        cluster.stop_node(1 - first)
        cluster.start_node(1 - first)
        epochs = [client.ask(list_offsets(timestamp)).topics[0].partitions[0].leader_epoch for timestamp in (-2, 0, NOW_MS + 1, -3, -1)]
        current = partition.replicas.leader_epoch
        assert epochs == [0, 0, 1, 1, current]
        assert current > 1

    def test_timestamps_end_at_the_high_watermark(self, cluster: Cluster) -> None:
        client = cluster.client()
        for step in range(3):
            client.produce("orders", batch_of(b"a", timestamps=[NOW_MS + step]))
        cluster.partition("orders", 0).log.high_watermark = 2
        found = [client.ask(list_offsets(timestamp)).topics[0].partitions[0].offset for timestamp in (-1, NOW_MS + 1, NOW_MS + 2, -3)]
        assert found == [2, 1, -1, -1]
