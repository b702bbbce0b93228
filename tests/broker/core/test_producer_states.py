"""What partitions know of producers, seen through requests: sequences, expiry, and tools that look for hanging transactions (KIP-664)."""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.broker.core.log_maintenance import PARTITIONS_PER_CALL
from chaffinch.identifiers import SEQUENCE_MODULUS, ProducerIdentity
from chaffinch.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersTopicRequest
from chaffinch.protocol.messages.describe_transactions import DescribeTransactionsRequest
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.protocol.messages.list_transactions import ListTransactionsRequest
from chaffinch.protocol.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from tests.broker.batches import NOW_MS, batch_of
from tests.broker.core.transactions.test_transactions import add, add_group, end, identity_of, write
from tests.broker.core_client import Client, Cluster

DAY_MS = 86_400_000
CHECK_MS = 600_000


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.topic("orders", 2)
    return cluster


def idempotent(client: Client) -> ProducerIdentity:
    answer = client.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0))
    return ProducerIdentity(answer.producer_id, answer.producer_epoch)


def send(client: Client, identity: ProducerIdentity, sequence: int, count: int = 1, partition: int = 0) -> tuple[int, int]:
    """(error code, base offset)."""
    answer = client.produce("orders", batch_of(*[b"a"] * count, identity=identity, sequence=sequence), partition=partition)
    return answer.error_code, answer.base_offset


class TestSequences:
    def test_last_five_batches_are_duplicates(self, cluster: Cluster) -> None:
        client = cluster.client()
        identity = idempotent(client)
        assert [send(client, identity, sequence) for sequence in range(6)] == [(0, offset) for offset in range(6)]
        assert [send(client, identity, sequence) for sequence in range(1, 6)] == [(0, offset) for offset in range(1, 6)]
        assert send(client, identity, 0)[0] == 45, "the sixth last one is forgotten"
        assert cluster.core.counters.total("OutOfOrderSequenceBatchesPerSec", "orders") == 1
        assert cluster.partition("orders", 0).log.log_end_offset == 6

    def test_sequence_wraps_to_zero(self, cluster: Cluster) -> None:
        """2^31-1 is followed by 0, within a batch and between two, and through a restart."""
        client = cluster.client()
        identity = idempotent(client)
        assert send(client, identity, SEQUENCE_MODULUS - 3, 2) == (0, 0)
        assert send(client, identity, 1)[0] == 45
        assert send(client, identity, SEQUENCE_MODULUS - 1, 3) == (0, 2)
        assert send(client, identity, SEQUENCE_MODULUS - 1, 3) == (0, 2), "sent again"
        cluster.restart()
        client = cluster.client()
        assert send(client, identity, SEQUENCE_MODULUS - 1, 3) == (0, 2)
        assert send(client, identity, 0)[0] == 45
        assert send(client, identity, 2) == (0, 5)


class TestExpiry:
    def test_idle_producer_expires_and_may_use_any_sequence(self, cluster: Cluster) -> None:
        client = cluster.client()
        identity = idempotent(client)
        send(client, identity, 0)
        cluster.advance(DAY_MS - CHECK_MS)
        assert send(client, identity, 7)[0] == 45
        cluster.advance(2 * CHECK_MS)
        assert send(client, identity, 7) == (0, 1)

    def test_writing_producer_does_not_expire(self, cluster: Cluster) -> None:
        """By the broker's clock, whatever the records' own timestamps say."""
        client = cluster.client()
        identity = idempotent(client)
        for sequence in range(4):
            assert send(client, identity, sequence)[0] == 0
            cluster.advance(DAY_MS // 2)
        assert send(client, identity, 9)[0] == 45

    def test_expiration_option_applies_at_once(self) -> None:
        cluster = Cluster({"producer.id.expiration.ms": "1000", "producer.id.expiration.check.interval.ms": "100"})
        cluster.topic("orders")
        client = cluster.client()
        identity = idempotent(client)
        send(client, identity, 0)
        cluster.advance(999)
        assert send(client, identity, 5)[0] == 45
        cluster.advance(1100)
        assert send(client, identity, 5)[0] == 0

    def test_producer_with_an_open_transaction_does_not_expire(self) -> None:
        cluster = Cluster({"producer.id.expiration.ms": "1000", "producer.id.expiration.check.interval.ms": "100"})
        cluster.topic("orders")
        client = cluster.client()
        identity = identity_of(client)
        add(client, identity, 0)
        write(client, identity)
        cluster.advance(50_000)
        assert write(client, identity, 1) == 0
        assert end(client, identity, True) == 0
        cluster.advance(5_000)
        assert len(cluster.partition("orders", 0).log.producers) == 0

    def test_expiry_runs_in_slices(self) -> None:
        cluster = Cluster()
        cluster.topic("wide", PARTITIONS_PER_CALL + 1)
        (task,) = [task for task in cluster.core.state.scheduled_tasks if type(task).__name__ == "ProducerExpiry"]
        due_ms = task.next_deadline_ms
        assert due_ms is not None
        task.run_due(due_ms)
        assert task.next_deadline_ms == due_ms, "the rest at once, after what clients want"
        task.run_due(due_ms)
        assert task.next_deadline_ms == due_ms + CHECK_MS


class TestTools:
    def describe(self, client: Client, *names: str) -> list[Any]:
        states: list[Any] = client.ask(DescribeTransactionsRequest(transactional_ids=list(names))).transaction_states
        return states

    def test_describe_transactions(self, cluster: Cluster) -> None:
        client = cluster.client()
        identity = identity_of(client)
        add(client, identity, 1, 0)
        add_group(client, identity)
        (state,) = self.describe(client, "t")
        assert (state.error_code, state.transaction_state, state.transaction_timeout_ms) == (0, "Ongoing", 60_000)
        assert (state.transaction_start_time_ms, state.producer_id, state.producer_epoch) == (cluster.steady_ms, *identity)
        assert [(topic.topic, topic.partitions) for topic in state.topics] == [("orders", [0, 1])]
        started_ms = cluster.steady_ms
        cluster.advance(10)
        end(client, identity, True)
        (state,) = self.describe(client, "t")
        assert (state.transaction_state, state.transaction_start_time_ms, state.topics) == ("CompleteCommit", started_ms, [])
        assert [state.error_code for state in self.describe(client, "never", "")] == [105, 42]

    def test_only_the_coordinator_describes_and_lists(self) -> None:
        cluster = Cluster(nodes=2)
        clients = {node: cluster.client(node=node) for node in (0, 1)}
        coordinator = cluster.coordinator_of("t")
        identity_of(clients[coordinator])
        assert self.describe(clients[1 - coordinator], "t")[0].error_code == 16
        listed = {node: client.ask(ListTransactionsRequest()).transaction_states for node, client in clients.items()}
        assert {node: [row.transactional_id for row in rows] for node, rows in listed.items()} == {coordinator: ["t"], 1 - coordinator: []}

    @pytest.mark.parametrize(
        ("filters", "found"),
        [
            ({}, ["a", "bb", "t"]),
            ({"state_filters": ["Ongoing"]}, ["t"]),
            ({"state_filters": ["Empty", "Nonsense"]}, ["a", "bb"]),
            ({"state_filters": ["Nonsense"]}, []),
            ({"producer_id_filters": [1, 99]}, ["bb"]),
            ({"duration_filter": 999, "state_filters": ["Ongoing"]}, ["t"]),
            ({"duration_filter": 1000, "state_filters": ["Ongoing"]}, []),
            ({"transactional_id_pattern": "b+|t"}, ["bb", "t"]),
            ({"transactional_id_pattern": "b"}, []),
            ({"transactional_id_pattern": ""}, ["a", "bb", "t"]),
        ],
        ids=str,
    )
    def test_list_transactions(self, cluster: Cluster, filters: dict[str, Any], found: list[str]) -> None:
        client = cluster.client()
        for name in ("a", "bb"):
            client.ask(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000))
        add(client, identity_of(client), 0)
        cluster.advance(1000)
        answer = client.ask(ListTransactionsRequest(**filters))
        assert (answer.error_code, sorted(row.transactional_id for row in answer.transaction_states)) == (0, found)
        assert answer.unknown_state_filters == [title for title in filters.get("state_filters", []) if title == "Nonsense"]

    @pytest.mark.parametrize("pattern", ["(", "(?=t)t"])
    def test_invalid_transactional_id_pattern_is_refused(self, cluster: Cluster, pattern: str) -> None:
        """RE2's syntax, as in Kafka: it does not look around."""
        assert cluster.client().ask(ListTransactionsRequest(transactional_id_pattern=pattern)).error_code == 128

    def test_pattern_matches_long_transactional_ids(self, cluster: Cluster) -> None:
        client = cluster.client()
        name = "a" * 300 + "\u00e9"
        client.ask(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000))
        for pattern, found in (("(a+)+\u00e9", [name]), ("a+.", [name]), ("(a+)+[^\u00e8]", [name]), ("(a+)+b", [])):
            answer = client.ask(ListTransactionsRequest(transactional_id_pattern=pattern))
            assert [row.transactional_id for row in answer.transaction_states] == found

    def test_describe_producers(self, cluster: Cluster) -> None:
        client = cluster.client()
        identity, plain = identity_of(client), idempotent(client)
        add(client, identity, 0)
        send(client, plain, 0, 3)
        write(client, identity, 0)
        topics = [DescribeProducersTopicRequest(name="orders", partition_indexes=[0, 1, 7])]
        first, second, third = client.ask(DescribeProducersRequest(topics=topics)).topics[0].partitions
        rows = {(row.producer_id, row.producer_epoch): row for row in first.active_producers}
        shown = ("last_sequence", "last_timestamp", "coordinator_epoch", "current_txn_start_offset")
        rows = {identity: tuple(getattr(row, name) for name in shown) for identity, row in rows.items()}
        assert rows == {tuple(plain): (2, NOW_MS, -1, -1), tuple(identity): (0, NOW_MS, -1, 3)}
        assert (second.error_code, second.active_producers) == (0, [])
        assert (third.error_code, "orders-7" in third.error_message) == (3, True)
        end(client, identity, False)
        cluster.restart()
        (row,) = [
            row
            for row in cluster.client().ask(DescribeProducersRequest(topics=topics)).topics[0].partitions[0].active_producers
            if row.producer_id == identity.producer_id
        ]
        assert (row.producer_epoch, row.coordinator_epoch, row.current_txn_start_offset) == (identity.epoch, 0, -1)

    def mark(
        self,
        client: Client,
        identity: ProducerIdentity,
        *,
        commit: bool = False,
        coordinator_epoch: int = 0,
        level: int = 0,
        partition: int = 0,
    ) -> int:
        marker = WritableTxnMarker(
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            transaction_result=commit,
            topics=[WritableTxnMarkerTopic(name="orders", partition_indexes=[partition])],
            coordinator_epoch=coordinator_epoch,
            transaction_version=level,
        )
        result = client.ask(WriteTxnMarkersRequest(markers=[marker])).markers[0]
        code: int = result.topics[0].partitions[0].error_code
        return code

    def test_marker_of_a_tool_ends_a_hanging_transaction(self, cluster: Cluster) -> None:
        """One that the coordinator knows nothing of: its last stable offset would stand still for ever."""
        client = cluster.client()
        identity = identity_of(client)
        add(client, identity, 0)
        write(client, identity)
        log = cluster.partition("orders", 0).log
        assert self.mark(client, identity) == 0
        assert (log.last_stable_offset, log.aborted_transactions(0, 9)) == (2, [(identity.producer_id, 0)])

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            ({"partition": 9}, 3),
            ({"coordinator_epoch": -2}, 52),
            ({"level": 2}, 47),
            ({"level": 1}, 0),
        ],
        ids=str,
    )
    def test_invalid_marker_is_refused(self, cluster: Cluster, change: dict[str, Any], code: int) -> None:
        client = cluster.client()
        identity = identity_of(client)
        add(client, identity, 0)
        write(client, identity)
        assert self.mark(client, identity, **change) == code
        assert self.mark(client, ProducerIdentity(identity.producer_id, identity.epoch - 1)) == 47

    def test_invented_coordinator_epoch_does_not_fence_the_coordinator(self, cluster: Cluster) -> None:
        """There is one coordinator: were its markers refused as old ones, the next transaction would never end here."""
        client = cluster.client()
        identity = identity_of(client)
        add(client, identity, 0)
        write(client, identity)
        assert self.mark(client, identity, coordinator_epoch=7) == 0
        assert write(client, identity, 1) == 0
        assert end(client, identity, True) == 0
        log = cluster.partition("orders", 0).log
        assert (log.ongoing_transactions(), log.last_stable_offset, log.aborted_transactions(0, 9)) == ([], 4, [(identity.producer_id, 0)])

    def test_repeated_marker_of_version_2_is_written_again(self, cluster: Cluster) -> None:
        """Where nothing is open the same marker is written once more, as in Kafka; where a transaction is open it needs a higher epoch."""
        client = cluster.client()
        identity = identity_of(client)
        add(client, identity, 0)
        write(client, identity)
        higher = ProducerIdentity(identity.producer_id, identity.epoch + 1)
        assert self.mark(client, higher, level=2) == 0
        assert self.mark(client, higher, level=2) == 0
        assert cluster.partition("orders", 0).log.log_end_offset == 3

    def test_marker_at_another_node_is_refused(self) -> None:
        cluster = Cluster(nodes=2)
        cluster.topic("orders")
        follower = 1 - cluster.partition("orders", 0).replicas.leader
        assert self.mark(cluster.client(node=follower), ProducerIdentity(5, 0)) == 6
