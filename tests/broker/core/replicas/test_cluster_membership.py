"""Declared nodes that stop and start: leaders, in-sync sets, high watermarks, and the answers to producers and readers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from chaffinch.broker.core.broker_state import BrokerState
from chaffinch.broker.core.topics.registry import Partition
from chaffinch.errors import ConfigException
from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from chaffinch.protocol.messages.describe_cluster import DescribeClusterRequest
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chaffinch.protocol.messages.find_coordinator import FindCoordinatorRequest
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from tests.broker.batches import batch_of
from tests.broker.core.groups.members import GROUP, SESSION_MS, ClassicMember
from tests.broker.core_client import Client, Cluster, produce_request

LAG_MS = 30_000


def cluster_of_three(in_sync_min: int = 1, **config: str) -> tuple[Cluster, Partition, list[int]]:
    """Topic `orders` with one partition on all three nodes; its partition, and its replicas with the leader first."""
    cluster = Cluster(config, nodes=3)
    cluster.topic("orders", 1, 3, min_insync_replicas=str(in_sync_min))
    partition = cluster.core.topics.partition("orders", 0)
    assert partition is not None
    return cluster, partition, list(partition.replicas.assigned)


def produce(client: Client, timeout_ms: int = 60_000, *, acks: int = -1, **options: Any) -> None:
    request = produce_request("orders", batch_of(b"a", **options), acks=acks)
    client.send(request.replace(timeout_ms=timeout_ms))


def answer_of(client: Client) -> tuple[int, int, str | None]:
    (response,) = client.answers
    answer = response.responses[0].partition_responses[0]
    client.answers.clear()
    return answer.error_code, answer.base_offset, answer.error_message


def fetch(client: Client, offset: int = 0, wait_ms: int = 0) -> None:
    requested = [FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)]
    client.send(
        FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, topics=[FetchTopic(topic="orders", partitions=requested)]), 11
    )


def fetched(client: Client) -> tuple[int, int, bool]:
    """Code, high watermark, whether there are records."""
    (response,) = client.answers
    client.answers.clear()
    data = response.responses[0].partitions[0]
    return data.error_code, data.high_watermark, bool(data.records)


class TestLagging:
    """A replica that stopped abruptly is in the in-sync set until `replica.lag.time.max.ms` is over."""

    def test_produce_waits_for_the_lagging_replica(self) -> None:
        cluster, partition, (leader, follower, _) = cluster_of_three(2)
        cluster.stop_node(follower, abruptly=True)
        assert partition.replicas.in_sync == partition.replicas.assigned
        client = cluster.client(node=leader)
        produce(client)
        cluster.advance(LAG_MS - 1)
        assert (client.answers, partition.log.log_end_offset, partition.log.high_watermark) == ([], 1, 0)
        cluster.start_node(follower)
        assert answer_of(client) == (0, 0, None)
        assert partition.log.high_watermark == 1

    def test_lagging_replica_leaves_the_in_sync_set_and_produce_succeeds(self) -> None:
        cluster, partition, (leader, follower, other) = cluster_of_three(2)
        cluster.stop_node(follower, abruptly=True)
        client = cluster.client(node=leader)
        produce(client)
        cluster.advance(LAG_MS)
        assert answer_of(client) == (0, 0, None)
        assert set(partition.replicas.in_sync) == {leader, other}
        assert any(f"node {follower}" in line for line in cluster.lines)

    def test_too_few_in_sync_replicas_fail_after_the_append(self) -> None:
        cluster, partition, (leader, *followers) = cluster_of_three(2)
        for follower in followers:
            cluster.stop_node(follower, abruptly=True)
        client = cluster.client(node=leader)
        produce(client)
        cluster.advance(LAG_MS)
        code, offset, message = answer_of(client)
        assert (code, offset) == (20, 0)
        assert message is not None
        assert "1 of 3 replicas" in message
        assert (partition.log.log_end_offset, partition.log.high_watermark) == (1, 1)
        assert any("NOT_ENOUGH_REPLICAS_AFTER_APPEND" in line for line in cluster.lines)
        produce(client)
        assert answer_of(client)[0] == 19, "now it is known before the append"
        assert partition.log.log_end_offset == 1

    def test_timed_out_produce_can_be_repeated(self) -> None:
        cluster, partition, (leader, follower, _) = cluster_of_three()
        cluster.stop_node(follower, abruptly=True)
        client = cluster.client(node=leader)
        producer: dict[str, Any] = {"identity": ProducerIdentity(7, 0), "sequence": 0}
        produce(client, 1000, **producer)
        cluster.advance(999)
        assert client.answers == []
        cluster.advance(1)
        code, _, message = answer_of(client)
        assert code == 7
        assert message is not None
        assert f"[{follower}]" in message
        produce(client, 1000, **producer)
        assert client.answers == [], "a repetition waits as the batch did"
        cluster.start_node(follower)
        assert answer_of(client) == (0, 0, None)
        assert partition.log.log_end_offset == 1

    @pytest.mark.parametrize("timeout_ms", [0, -5])
    def test_zero_timeout_times_out_at_once(self, timeout_ms: int) -> None:
        cluster, _, (leader, follower, _) = cluster_of_three()
        cluster.stop_node(follower, abruptly=True)
        client = cluster.client(node=leader)
        produce(client, timeout_ms)
        cluster.advance(0)
        assert answer_of(client)[0] == 7

    def test_acks_1_is_acknowledged_before_the_high_watermark_moves(self) -> None:
        cluster, _, (leader, follower, _) = cluster_of_three()
        writer, reader = cluster.client(node=leader), cluster.client(node=leader)
        produce(writer, acks=1)
        assert answer_of(writer)[0] == 0
        cluster.stop_node(follower, abruptly=True)
        produce(writer, acks=1)
        assert answer_of(writer)[:2] == (0, 1)
        fetch(reader)
        assert fetched(reader) == (0, 1, True)
        fetch(reader, 1, wait_ms=600_000)
        assert reader.answers == []
        cluster.start_node(follower)
        assert fetched(reader) == (0, 2, True)

    def test_stopped_leader_answers_with_the_new_leader(self) -> None:
        cluster, partition, (leader, follower, other) = cluster_of_three()
        cluster.stop_node(other, abruptly=True)
        client = cluster.client(node=leader)
        produce(client)
        cluster.stop_node(leader)  # The shell cuts its connections; here the answer can be looked at.
        response = client.answers.pop()
        answer = response.responses[0].partition_responses[0]
        assert (answer.error_code, answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (6, follower, 1)
        assert [(node.node_id, node.port) for node in response.node_endpoints] == [(follower, 9092 + follower)]
        assert partition.log.high_watermark == 0, "the lagging replica still lags"

    def test_stopped_leader_hands_over_and_lags(self) -> None:
        cluster, partition, (leader, follower, _) = cluster_of_three()
        cluster.stop_node(leader, abruptly=True)
        assert (partition.replicas.leader, partition.replicas.in_sync) == (follower, partition.replicas.assigned)
        client = cluster.client(node=follower)
        produce(client)
        assert client.answers == []
        cluster.stop_node(leader)  # In order after all: it need not be waited for.
        assert answer_of(client)[0] == 0

    def test_waiting_produce_of_a_deleted_topic_fails(self) -> None:
        cluster, _, (leader, follower, _) = cluster_of_three()
        cluster.stop_node(follower, abruptly=True)
        client = cluster.client(node=leader)
        produce(client)
        cluster.client(node=leader).ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")], topic_names=["orders"]))
        assert answer_of(client)[0] == 3

    def test_lost_connection_removes_the_waiting_produce(self) -> None:
        cluster, _, (leader, follower, _) = cluster_of_three()
        cluster.stop_node(follower, abruptly=True)
        client = cluster.client(node=leader)
        produce(client)
        client.lose()
        assert not cluster.core._waits
        cluster.start_node(follower)
        assert client.answers == []

    def test_stopping_twice_does_not_restart_the_lag_time(self) -> None:
        cluster, partition, (_, follower, _) = cluster_of_three()
        cluster.stop_node(follower, abruptly=True)
        cluster.advance(LAG_MS - 1)
        cluster.stop_node(follower, abruptly=True)
        cluster.advance(1)
        assert follower not in partition.replicas.in_sync
        cluster.stop_node(follower, abruptly=True)
        assert follower not in partition.replicas.in_sync


class TestStopped:
    def test_only_the_last_in_sync_node_leads_again(self) -> None:
        cluster, partition, nodes = cluster_of_three()
        for node in nodes:
            cluster.stop_node(node)
        assert (partition.replicas.leader, partition.replicas.in_sync) == (-1, (nodes[-1],))
        answer = cluster.client(node=nodes[0]).ask(MetadataRequest(topics=None))
        assert (answer.brokers, answer.controller_id, answer.topics[0].partitions[0].error_code) == ([], -1, 5)
        cluster.start_node(nodes[0])
        assert partition.replicas.leader == -1
        cluster.start_node(nodes[-1])
        assert partition.replicas.leader == nodes[-1]

    def test_after_an_abrupt_stop_of_all_the_first_started_node_leads(self) -> None:
        cluster, partition, nodes = cluster_of_three()
        for node in nodes:
            cluster.stop_node(node, abruptly=True)
        cluster.advance(2 * LAG_MS)
        assert partition.replicas.leader == -1
        cluster.start_node(nodes[1])
        assert (partition.replicas.leader, partition.replicas.in_sync) == (nodes[1], (nodes[1],))
        client = cluster.client(node=nodes[1])
        produce(client)
        assert answer_of(client)[0] == 0

    def test_waiting_fetch_fails_when_the_leader_stops(self) -> None:
        cluster, _, (leader, _, _) = cluster_of_three()
        reader = cluster.client(node=leader)
        fetch(reader, wait_ms=600_000)
        assert reader.answers == []
        cluster.stop_node(leader)
        assert fetched(reader)[0] == 6

    def test_topic_created_during_a_stop_is_led_by_running_nodes(self) -> None:
        cluster = Cluster(nodes=3)
        cluster.stop_node(1)
        cluster.topic("orders", 6, 2)
        for partition in cluster.core.topics.partitions():
            assert partition.replicas.leader != 1
            assert 1 not in partition.replicas.in_sync
        cluster.start_node(1)
        assert all(partition.replicas.in_sync == partition.replicas.assigned for partition in cluster.core.topics.partitions())

    @pytest.mark.parametrize("node_id", [-1, 3])
    @pytest.mark.parametrize("change", [Cluster.stop_node, Cluster.start_node])
    def test_missing_node_is_refused(self, change: Callable[[Cluster, int], None], node_id: int) -> None:
        with pytest.raises(ConfigException, match=f"node {node_id} does not exist: this broker has nodes 0 to 2"):
            change(Cluster(nodes=3), node_id)

    def test_leader_epochs_do_not_decrease_over_a_restart(self) -> None:
        cluster, partition, (leader, follower, _) = cluster_of_three()
        assert partition.replicas.leader_epoch == 0
        epochs = []
        for node in (leader, follower):
            cluster.stop_node(node)
            epochs.append(partition.replicas.leader_epoch)
        cluster.restart()
        again = cluster.core.topics.partition("orders", 0)
        assert again is not None
        epochs.append(again.replicas.leader_epoch)
        assert epochs == sorted(set(epochs))
        assert again.replicas.leader == leader, "another process, all nodes run"
        cluster.restart(kill=False)
        last = cluster.core.topics.partition("orders", 0)
        assert last is not None
        assert last.replicas.leader_epoch > epochs[-1]

    @pytest.mark.parametrize("counts", [[3, 1, 3], [3, 1, 1, 3], [3, 2, 1, 3, 3], [1, 3, 1]], ids=str)
    @pytest.mark.parametrize("is_stopped", [False, True], ids=["nothing stops", "a node stops in each life"])
    def test_leader_epochs_do_not_decrease_when_nodes_are_removed(self, counts: list[int], is_stopped: bool) -> None:
        cluster = Cluster(nodes=counts[0])
        cluster.topic("orders", 6, counts[0])
        seen: list[list[tuple[int, int]]] = []
        for count in counts:
            cluster.node_count = count
            cluster.restart()
            partitions = list(cluster.core.topics.partitions())
            seen.append([(partition.replicas.leader_epoch, partition.replicas.leader) for partition in partitions])
            if is_stopped:
                cluster.stop_node(count - 1)
                seen.append([(partition.replicas.leader_epoch, partition.replicas.leader) for partition in partitions])
        for before, after in pairwise(seen):
            for (old_epoch, old_leader), (epoch, leader) in zip(before, after, strict=True):
                assert epoch > old_epoch or (epoch, leader) == (old_epoch, old_leader)

    def test_leader_epochs_stay_zero_without_changes(self) -> None:
        cluster = Cluster(nodes=3)
        cluster.topic("orders")
        cluster.restart()
        cluster.restart(kill=False)
        assert [partition.replicas.leader_epoch for partition in cluster.core.topics.partitions()] == [0]


class TestPreferredLeaders:
    def spread(self, **config: Any) -> tuple[Cluster, list[Partition]]:
        """Six partitions on three nodes, node 1 stopped and started again."""
        cluster = Cluster(config, nodes=3)
        cluster.topic("orders", 6, 3)
        partitions = list(cluster.core.topics.partitions())
        cluster.stop_node(1)
        cluster.start_node(1)
        assert all(partition.replicas.leader != 1 for partition in partitions)
        return cluster, partitions

    def test_leadership_returns_to_preferred_replicas_after_the_interval(self) -> None:
        cluster, partitions = self.spread()
        reader = cluster.client(node=next(partition.replicas.leader for partition in partitions if partition.replicas.assigned[0] == 1))
        cluster.advance(299_999)
        assert all(partition.replicas.leader != 1 for partition in partitions)
        cluster.advance(1)
        assert [partition.replicas.leader for partition in partitions] == [partition.replicas.assigned[0] for partition in partitions]
        assert {partition.replicas.leader_epoch for partition in partitions if partition.replicas.leader == 1} == {2}
        assert {partition.replicas.leader_epoch for partition in partitions if partition.replicas.leader != 1} == {0}
        assert "leadership of 2 partitions returned to the preferred replica" in cluster.lines
        assert not reader.answers
        cluster.restart()
        assert all(partition.replicas.leader_epoch > 2 for partition in cluster.core.topics.partitions())

    def test_each_node_start_restarts_the_interval(self) -> None:
        cluster, partitions = self.spread()
        cluster.advance(299_999)
        cluster.stop_node(1)
        cluster.advance(1_000_000)
        assert all(partition.replicas.leader != 1 for partition in partitions)
        cluster.start_node(1)
        cluster.advance(300_000)
        assert sum(partition.replicas.leader == 1 for partition in partitions) == 2

    @pytest.mark.parametrize(
        ("config", "after_ms", "count"),
        [({"auto.leader.rebalance.enable": False}, 10**7, 0), ({"leader.imbalance.check.interval.seconds": 1}, 1000, 2)],
    )
    def test_rebalance_options_apply(self, config: dict[str, Any], after_ms: int, count: int) -> None:
        cluster, partitions = self.spread(**config)
        cluster.advance(after_ms)
        assert sum(partition.replicas.leader == 1 for partition in partitions) == count


def test_fenced_brokers_are_described_on_request() -> None:
    cluster = Cluster(nodes=3)
    cluster.stop_node(1)
    client = cluster.client()
    shown = client.ask(DescribeClusterRequest(include_fenced_brokers=True), 2).brokers
    assert [(node.broker_id, node.is_fenced) for node in shown] == [(0, False), (1, True), (2, False)]
    assert [node.broker_id for node in client.ask(DescribeClusterRequest(), 2).brokers] == [0, 2]


class TestCoordinators:
    KEYS = tuple(f"group-{number}" for number in range(30))

    def coordinators(self, cluster: Cluster) -> dict[str, int]:
        node = next(iter(cluster.core.state.nodes.live_ids))
        found = cluster.client(node=node).ask(FindCoordinatorRequest(coordinator_keys=list(self.KEYS)), 4).coordinators
        return {coordinator.key: coordinator.node_id for coordinator in found}

    def test_only_coordinators_of_the_stopped_node_move(self) -> None:
        cluster = Cluster(nodes=3)
        before = self.coordinators(cluster)
        assert set(before.values()) == {0, 1, 2}
        cluster.stop_node(1)
        during = self.coordinators(cluster)
        assert {key for key in self.KEYS if before[key] != during[key]} == {key for key in self.KEYS if before[key] == 1}
        assert 1 not in during.values()
        cluster.start_node(1)
        assert self.coordinators(cluster) == before

    def test_only_one_node_is_the_coordinator(self) -> None:
        cluster = Cluster(nodes=2)
        state: BrokerState = cluster.core.state
        assert [state.is_coordinator(node, "a") for node in (0, 1)] == [False, True]
        cluster.stop_node(1)
        assert [state.is_coordinator(node, "a") for node in (0, 1)] == [True, False]

    @pytest.mark.parametrize("waits_for", ["join", "sync"])
    def test_waiting_member_is_answered_when_its_group_moves(self, waits_for: str) -> None:
        """A started node takes its groups back; what waits at the one that had them must not wait for the end of a rebalance there."""
        cluster = Cluster(nodes=2)
        state: BrokerState = cluster.core.state
        home = next(node for node in (0, 1) if state.is_coordinator(node, GROUP))
        cluster.stop_node(home)
        members = [ClassicMember(cluster) for _ in range(2)]
        for member in members:
            member.client = cluster.client(node=1 - home)
            member.send_join()
        if waits_for == "sync":
            cluster.advance(SESSION_MS - 1)
            waiting = [member for member in members if member.taken().leader != member.id]
            waiting[0].send_sync()
        else:
            waiting = members
        assert not any(member.client.answers for member in waiting)
        cluster.start_node(home)
        assert [member.taken().error_code for member in waiting] == [16] * len(waiting)
        assert not cluster.core._waits


class TestTransactionsAndOffsets:
    """Markers and committed offsets are exempt from KIP-579's check and wait for no replica; what readers may see does."""

    def transaction(self) -> tuple[Cluster, Partition, list[int], ProducerIdentity]:
        """An open transaction with one record."""
        cluster, partition, nodes = cluster_of_three(2)
        answer = self.coordinator(cluster).ask(InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000))
        identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
        topics = [AddPartitionsToTxnTopic(name="orders", partitions=[0])]
        added = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="t",
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=topics,
        )
        self.coordinator(cluster).ask(added, 3)
        records = batch_of(b"a", identity=identity, sequence=0, transactional=True)
        assert cluster.client(node=nodes[0]).produce("orders", records, txn="t", version=11).error_code == 0
        return cluster, partition, nodes, identity

    def coordinator(self, cluster: Cluster, key: str = "t") -> Client:
        node = cluster.core.state.nodes.coordinator_of(key)
        assert node is not None
        return cluster.client(node=node.id)

    def end(self, cluster: Cluster, identity: ProducerIdentity) -> int:
        request = EndTxnRequest(transactional_id="t", producer_id=identity.producer_id, producer_epoch=identity.epoch, committed=True)
        return int(self.coordinator(cluster).ask(request, 3).error_code)

    def test_marker_is_written_with_too_few_replicas(self) -> None:
        cluster, partition, (_, *followers), identity = self.transaction()
        for follower in followers:
            cluster.stop_node(follower)
        assert self.end(cluster, identity) == 0
        assert (partition.log.log_end_offset, partition.log.last_stable_offset) == (2, 2)

    def test_last_stable_offset_waits_for_every_replica(self) -> None:
        cluster, partition, (_, follower, _), identity = self.transaction()
        cluster.stop_node(follower, abruptly=True)
        assert self.end(cluster, identity) == 0
        assert (partition.log.log_end_offset, partition.log.high_watermark, partition.log.last_stable_offset) == (2, 1, 0)
        cluster.advance(LAG_MS)
        assert (partition.log.high_watermark, partition.log.last_stable_offset) == (2, 2)

    def test_offsets_are_committed_with_too_few_replicas(self) -> None:
        cluster, _, (_, *followers) = cluster_of_three(2)
        for follower in followers:
            cluster.stop_node(follower)
        topics = [OffsetCommitRequestTopic(name="orders", partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=5)])]
        answer = self.coordinator(cluster, "g").ask(OffsetCommitRequest(group_id="g", topics=topics), 8)
        assert answer.topics[0].partitions[0].error_code == 0

    def test_transaction_continues_at_the_new_coordinator(self) -> None:
        cluster, _, _, identity = self.transaction()
        first = cluster.core.state.nodes.coordinator_of("t")
        assert first is not None
        old = self.coordinator(cluster)
        cluster.stop_node(first.id)
        request = EndTxnRequest(transactional_id="t", producer_id=identity.producer_id, producer_epoch=identity.epoch, committed=True)
        assert old.ask(request, 3).error_code == 16
        assert self.end(cluster, identity) == 0


def test_fetch_names_the_new_leader_and_its_address() -> None:
    cluster, _, (leader, follower, other) = cluster_of_three()
    cluster.stop_node(leader)
    topic = cluster.core.topics.get("orders")
    assert topic is not None
    requested = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100, current_leader_epoch=0)]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=100, topics=[FetchTopic(topic_id=topic.topic_id, partitions=requested)])
    answer = cluster.client(node=other).ask(request, 16)
    data = answer.responses[0].partitions[0]
    assert (data.error_code, data.current_leader.leader_id, data.current_leader.leader_epoch) == (74, follower, 1)
    assert [(node.node_id, node.host, node.port) for node in answer.node_endpoints] == [(follower, f"node{follower}", 9092 + follower)]
