"""Transaction version 2 on the wire: batches and offsets that add themselves, ends that give the next identity, what late batches get."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaffinch.broker.core.transactions.metadata import EPOCH_EXHAUSTED
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chaffinch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from chaffinch.protocol.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from chaffinch.storage.file_system import StorageError
from tests.broker.batches import batch_of
from tests.broker.core.transactions.test_transactions import add, commit_offset, committed, end, identity_of, write
from tests.broker.core.transactions.transactional_ends import finish
from tests.broker.core_client import Client, Cluster

PRODUCE, OFFSETS = 12, 5
"""The first versions that speak of transactions in this way."""


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.topic("orders", 2)
    return cluster


def committed_fetch(offset: int = 0, max_wait_ms: int = 0) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="orders", partitions=[partition])]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, isolation_level=1, topics=topics)


def fetch_committed(client: Client, offset: int = 0) -> Any:
    """What a reader of committed records gets of orders-0."""
    return client.ask(committed_fetch(offset), 12).responses[0].partitions[0]


def test_version_2_adds_partitions_and_groups_implicitly(cluster: Cluster) -> None:
    client = cluster.client()
    identity = identity_of(client)
    assert write(client, identity, version=PRODUCE) == 0
    assert commit_offset(client, identity, version=OFFSETS) == 0
    assert committed(client, stable=True) == (-1, "", 88)
    assert fetch_committed(client).last_stable_offset == 0
    code, following = finish(client, identity, True)
    assert (code, following) == (0, ProducerIdentity(identity.producer_id, identity.epoch + 1))
    assert committed(client, stable=True) == (5, "m", 0)
    assert fetch_committed(client).last_stable_offset == 2
    assert write(client, following, version=PRODUCE) == 0, "the next transaction begins with sequence 0"


def test_partitions_of_one_request_are_added_with_one_write(cluster: Cluster) -> None:
    """Those that are there: the others are refused, and the rest is not."""
    client = cluster.client()
    identity = identity_of(client)
    writes = []
    cluster.file_system.hook = lambda operation, path, size: writes.append(path) if operation == "append" else None
    batch = batch_of(b"a", identity=identity, sequence=0, transactional=True)
    data = [PartitionProduceData(index=index, records=bytes(batch)) for index in (0, 1, 7)]
    request = ProduceRequest(transactional_id="t", acks=-1, timeout_ms=0, topics=[TopicProduceData(name="orders", partitions=data)])
    answer = client.ask(request, PRODUCE)
    assert [row.error_code for row in answer.responses[0].partition_responses] == [0, 0, 3]
    assert sum(path.startswith("journals/transactions") for path in writes) == 1
    assert cluster.transaction("t").partitions == {TopicPartition("orders", 0), TopicPartition("orders", 1)}


def test_partitions_of_other_leaders_are_not_added() -> None:
    cluster = Cluster(nodes=2)
    cluster.topic("orders", 2)
    leaders = [partition.replicas.leader for partition in cluster.topic_named("orders").partitions]
    assert sorted(leaders) == [0, 1]
    identity = identity_of(cluster.client(node=cluster.coordinator_of("t")))
    batch = batch_of(b"a", identity=identity, sequence=0, transactional=True)
    data = [PartitionProduceData(index=index, records=bytes(batch)) for index in (0, 1)]
    request = ProduceRequest(transactional_id="t", acks=-1, timeout_ms=0, topics=[TopicProduceData(name="orders", partitions=data)])
    answer = cluster.client(node=0).ask(request, PRODUCE)
    led = leaders.index(0)
    assert answer.responses[0].partition_responses[led].error_code == 0
    assert cluster.transaction("t").partitions == {TopicPartition("orders", led)}


@pytest.mark.parametrize("commit", [True, False])
def test_late_batch_is_fenced(cluster: Cluster, commit: bool) -> None:
    client = cluster.client()
    identity = identity_of(client)
    write(client, identity, version=PRODUCE)
    _, following = finish(client, identity, commit)
    assert write(client, identity, 1, version=PRODUCE) == 47
    assert write(client, following, version=PRODUCE) == 0
    assert write(client, identity, 1, version=PRODUCE) == 47
    assert write(client, identity, 0, version=PRODUCE) == 47, "nor does a repetition of what was stored, as in Kafka"


class TestFirstBatches:
    @pytest.mark.parametrize(("version", "code"), [(11, 0), (12, 45)])
    def test_unknown_producer_must_begin_at_zero_in_version_2(self, cluster: Cluster, version: int, code: int) -> None:
        client = cluster.client()
        identity = identity_of(client)
        add(client, identity, 0)
        assert write(client, identity, 7, version=version) == code

    def test_unknown_producer_outside_transactions_begins_anywhere(self, cluster: Cluster) -> None:
        records = batch_of(b"a", identity=ProducerIdentity(900, 0), sequence=7)
        assert cluster.client().produce("orders", records, version=PRODUCE).error_code == 0

    def test_second_batch_is_refused_until_the_first_arrives(self, cluster: Cluster) -> None:
        """Version 1: the first batch is refused for a reason that passes; the second one must not take its place."""
        client = cluster.client()
        identity = identity_of(client)
        assert write(client, identity, 0, version=11) == 120, "the partition is added too late"
        add(client, identity, 0)
        assert write(client, identity, 1, version=11) == 45
        assert write(client, identity, 0, version=11) == 0
        assert write(client, identity, 1, version=11) == 0

    def test_refused_producer_leaves_no_state(self, cluster: Cluster) -> None:
        client = cluster.client()
        identity = identity_of(client)
        assert write(client, ProducerIdentity(identity.producer_id, identity.epoch + 1), 0, version=11) == 47
        assert write(client, ProducerIdentity(identity.producer_id + 1, identity.epoch), 0, version=11) == 49
        add(client, identity, 0)
        assert write(client, identity, 3, version=11) == 0

    @pytest.mark.parametrize(("version", "code"), [(11, 19), (12, 51)])
    def test_batch_during_the_end_of_the_last_transaction_is_retriable(self, cluster: Cluster, version: int, code: int) -> None:
        """Older clients get 19, which they repeat without looking for another leader."""
        client = cluster.client()
        identity = identity_of(client)
        write(client, identity, version=PRODUCE)
        following = self.end_on_a_full_disk(cluster, client, identity)
        assert write(client, following, version=version) == code
        cluster.advance(1000)
        assert write(client, following, version=PRODUCE) == 0

    def test_batch_during_an_end_with_exhausted_epochs_is_retriable(self, cluster: Cluster) -> None:
        client = cluster.client()
        identity_of(client)
        transactions = cluster.core.state.transactions
        transactions._transactions["t"] = replace(cluster.transaction("t"), producer_epoch=EPOCH_EXHAUSTED)
        identity = cluster.transaction("t").identity
        assert write(client, identity, version=PRODUCE) == 0
        following = self.end_on_a_full_disk(cluster, client, identity)
        assert following.producer_id != identity.producer_id
        assert write(client, following, version=PRODUCE) == 51
        cluster.advance(1000)
        assert write(client, following, version=PRODUCE) == 0

    @staticmethod
    def end_on_a_full_disk(cluster: Cluster, client: Client, identity: ProducerIdentity) -> ProducerIdentity:
        def full(operation: str, path: str, size: int) -> None:
            if operation == "append" and path.startswith("logs/"):
                raise StorageError(path, "append to", "no space left")

        cluster.file_system.hook = full
        code, following = finish(client, identity, True)
        cluster.file_system.hook = None
        assert code == 0, "the decision stands"
        return following

    def test_batch_is_retriable_when_the_coordinator_cannot_write(self, cluster: Cluster) -> None:
        client = cluster.client()
        identity = identity_of(client)

        def full(operation: str, path: str, size: int) -> None:
            if operation == "append" and path.startswith("journals/transactions"):
                raise StorageError(path, "append to", "no space left")

        cluster.file_system.hook = full
        assert write(client, identity, version=PRODUCE) == 19
        cluster.file_system.hook = None
        assert write(client, identity, version=PRODUCE) == 0

    def test_verification_off_does_not_stop_implicit_adding(self) -> None:
        cluster = Cluster({"transaction.partition.verification.enable": "false"})
        cluster.topic("orders")
        client = cluster.client()
        identity = identity_of(client)
        write(client, identity, version=PRODUCE)
        finish(client, identity, True)
        assert fetch_committed(client).last_stable_offset == 2


class TestRepeatedEnds:
    def test_repeated_end_has_the_same_response(self, cluster: Cluster) -> None:
        client = cluster.client()
        identity = identity_of(client)
        write(client, identity, version=PRODUCE)
        first = finish(client, identity, True)
        assert finish(client, identity, True) == first
        assert finish(client, identity, False) == (48, ProducerIdentity(-1, -1))

    def test_empty_abort_bumps_the_epoch(self, cluster: Cluster) -> None:
        client = cluster.client()
        identity = identity_of(client)
        code, following = finish(client, identity, False)
        assert (code, following.epoch) == (0, identity.epoch + 1)
        assert finish(client, following, True)[0] == 48

    def test_end_of_version_1_keeps_the_epoch(self, cluster: Cluster) -> None:
        client = cluster.client()
        identity = identity_of(client)
        add(client, identity, 0)
        write(client, identity)
        assert end(client, identity, True, version=4) == 0
        assert write(client, identity, 1, version=PRODUCE) == 0

    @pytest.mark.parametrize("commit", [True, False])
    def test_marker_is_written_once_over_a_crash(self, cluster: Cluster, commit: bool) -> None:
        """The process ends between the marker and the completion: the restart finds the marker by its epoch."""
        client = cluster.client()
        identity = identity_of(client)
        write(client, identity, version=PRODUCE)
        journal_writes = []

        def die_at_completion(operation: str, path: str, size: int) -> None:
            if operation == "append" and path.startswith("journals/transactions"):
                journal_writes.append(path)
                if len(journal_writes) == 2:
                    raise StorageError(path, "append to", "the process is about to end")

        cluster.file_system.hook = die_at_completion
        finish(client, identity, commit)
        cluster.file_system.hook = None
        cluster.restart()
        log = cluster.partition("orders", 0).log
        assert (log.log_end_offset, log.ongoing_transactions()) == (2, [])


class TestBrokersRequests:
    """AddPartitionsToTxn from version 4 on: several transactions, some only to be looked at."""

    def ask(self, client: Client, identity: ProducerIdentity, *, verify_only: bool, partitions: list[int], name: str = "t") -> list[int]:
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=name,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            verify_only=verify_only,
            topics=[AddPartitionsToTxnTopic(name="orders", partitions=partitions)],
        )
        answer = client.ask(AddPartitionsToTxnRequest(transactions=[transaction]), 5)
        (result,) = answer.results_by_transaction
        assert (answer.error_code, result.transactional_id) == (0, name)
        return [row.partition_error_code for row in result.topic_results[0].results_by_partition]

    def test_add_partitions_verifies_and_adds(self, cluster: Cluster) -> None:
        client = cluster.client()
        identity = identity_of(client)
        assert self.ask(client, identity, verify_only=True, partitions=[0, 1]) == [120, 120]
        assert self.ask(client, identity, verify_only=False, partitions=[1]) == [0]
        assert self.ask(client, identity, verify_only=True, partitions=[0, 1]) == [120, 0]
        assert self.ask(client, identity, verify_only=True, partitions=[0, 9]) == [55, 3]

    def test_wrong_identity_or_id_is_refused(self, cluster: Cluster) -> None:
        client = cluster.client()
        identity = identity_of(client)
        fenced = ProducerIdentity(identity.producer_id, identity.epoch + 1)
        for verify_only in (True, False):
            assert self.ask(client, fenced, verify_only=verify_only, partitions=[0]) == [90]
            assert self.ask(client, identity, verify_only=verify_only, partitions=[0], name="other") == [49]
            assert self.ask(client, identity, verify_only=verify_only, partitions=[0], name="") == [42]


class TestReaders:
    @pytest.mark.parametrize("by_tool", [False, True])
    def test_waiting_reader_is_woken_by_the_marker(self, cluster: Cluster, by_tool: bool) -> None:
        client, reader = cluster.client(), cluster.client()
        identity = identity_of(client)
        write(client, identity, version=PRODUCE)
        reader.send(committed_fetch(max_wait_ms=500), 12)
        assert reader.answers == []
        if by_tool:
            topics = [WritableTxnMarkerTopic(name="orders", partition_indexes=[0])]
            marker = WritableTxnMarker(producer_id=identity.producer_id, producer_epoch=0, transaction_result=True, topics=topics)
            client.ask(WriteTxnMarkersRequest(markers=[marker]))
        else:
            finish(client, identity, True)
        (answer,) = reader.answers
        assert answer.responses[0].partitions[0].last_stable_offset == 2

    def test_fetch_lists_several_aborted_transactions_of_one_producer(self, cluster: Cluster) -> None:
        """Markers have a higher epoch than the records they end; the list names each transaction by its first offset."""
        client = cluster.client()
        identity = identity_of(client)
        begins = []
        for commit in (False, True, False, False):
            begins.append(cluster.partition("orders", 0).log.log_end_offset)
            write(client, identity, 0, version=PRODUCE)
            write(client, identity, 1, version=PRODUCE)
            _, identity = finish(client, identity, commit)
        fetched = fetch_committed(client)
        aborted = [begins[0], begins[2], begins[3]]
        assert [(entry.producer_id, entry.first_offset) for entry in fetched.aborted_transactions] == [
            (identity.producer_id, offset) for offset in aborted
        ]
        assert fetched.last_stable_offset == 12

    def test_last_stable_offset_waits_for_the_oldest_transaction(self, cluster: Cluster) -> None:
        client, other = cluster.client(), cluster.client()
        identity = identity_of(client)
        write(client, identity, version=PRODUCE)
        plain = batch_of(b"plain")
        assert other.produce("orders", plain).error_code == 0
        assert fetch_committed(other).last_stable_offset == 0
        finish(client, identity, False)
        fetched = fetch_committed(other)
        assert fetched.last_stable_offset == 3
        assert [entry.first_offset for entry in fetched.aborted_transactions] == [0]


class TestDeletedTopics:
    def test_transaction_commits_after_one_topic_is_deleted(self, cluster: Cluster) -> None:
        cluster.topic("lines")
        client = cluster.client()
        identity = identity_of(client)
        write(client, identity, version=PRODUCE)
        records = batch_of(b"a", identity=identity, sequence=0, transactional=True)
        assert client.produce("lines", records, txn="t", version=PRODUCE).error_code == 0
        client.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="lines")]))
        assert finish(client, identity, True)[0] == 0
        assert fetch_committed(client).last_stable_offset == 2

    def test_recreated_topic_gets_a_marker_without_effect(self, cluster: Cluster) -> None:
        """As in Kafka, whose coordinator knows partitions by name."""
        client = cluster.client()
        identity = identity_of(client)
        write(client, identity, version=PRODUCE)
        client.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")]))
        cluster.topic("orders", 2)
        assert finish(client, identity, False)[0] == 0
        log = cluster.partition("orders", 0).log
        assert (log.log_end_offset, log.last_stable_offset, log.aborted_transactions(0, 10)) == (1, 1, [])

    def test_markers_reach_partitions_of_a_stopped_node(self) -> None:
        cluster = Cluster(nodes=2)
        cluster.core.create_topic("orders", 1, 2, steady_ms=cluster.steady_ms)
        partition = cluster.partition("orders", 0)
        writers = {node: cluster.client(node=node) for node in (0, 1)}
        coordinator = cluster.coordinator_of("t")
        identity = identity_of(writers[coordinator])
        assert write(writers[partition.replicas.leader], identity, version=PRODUCE) == 0
        cluster.stop_node(1 - coordinator)
        assert finish(writers[coordinator], identity, True)[0] == 0
        assert (partition.log.last_stable_offset, partition.log.log_end_offset) == (2, 2)


def test_timed_out_producer_is_fenced_until_it_aborts(cluster: Cluster) -> None:
    client = cluster.client()
    identity = identity_of(client)
    write(client, identity, version=PRODUCE)
    cluster.advance(60_000)
    assert write(client, identity, 1, version=PRODUCE) == 47
    assert commit_offset(client, identity, version=OFFSETS) == 47
    assert finish(client, identity, True)[0] == 48
    code, following = finish(client, identity, False)
    assert (code, write(client, following, version=PRODUCE)) == (0, 0)
    assert [entry.first_offset for entry in fetch_committed(client).aborted_transactions] == [0]


@pytest.mark.parametrize(("level", "finalized"), [(2, [(2, 2)]), (1, [(1, 1)]), (0, [])])
def test_transaction_version_is_announced(level: int, finalized: list[tuple[int, int]]) -> None:
    client = Cluster({"transaction.version": str(level)}).client()
    answer = client.ask(client.connection.api_versions_request())
    supported = {row.name: (row.min_version, row.max_version) for row in answer.supported_features}
    assert supported["transaction.version"] == (0, 2)
    rows = [row for row in answer.finalized_features if row.name == "transaction.version"]
    assert [(row.min_version_level, row.max_version_level) for row in rows] == finalized
