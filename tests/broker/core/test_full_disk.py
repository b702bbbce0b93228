"""A disk without space, or that cannot be written, refuses with a code and leaves nothing half done; it serves again without a restart."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from chaffinch.broker.core.counters import ALL_TOPICS
from chaffinch.broker.core.transactions.power_loss import RECOVERED_IN
from chaffinch.errors import codes
from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from chaffinch.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from chaffinch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from chaffinch.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from chaffinch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from chaffinch.protocol.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource, IncrementalAlterConfigsRequest
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from chaffinch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from chaffinch.protocol.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from chaffinch.storage.file_system import MemoryFileSystem, StorageError
from tests.broker.batches import batch_of
from tests.broker.core.test_metadata_synced import UPSERTION
from tests.broker.core.transactions.transactional_writer import Writer
from tests.broker.core_client import Client, Cluster, produce_request

STORAGE = codes.KAFKA_STORAGE_ERROR.number
COORDINATOR = codes.NOT_COORDINATOR.number
CHANGING = frozenset({"append", "truncate", "open", "make directory", "remove", "rename"})

OF_THE_DISK = re.compile(r"cannot (append|open|make|rename|remove|sync)|journal|logs/|\.log|No space|Read-only")
"""What is for the broker's log only."""

REQUESTS: dict[str, tuple[Callable[[], Any], Callable[[Any], int], int]] = {
    "CreateTopics": (
        lambda: CreateTopicsRequest(topics=[CreatableTopic(name="new", num_partitions=3, replication_factor=1)], timeout_ms=1),
        lambda answer: answer.topics[0].error_code,
        STORAGE,
    ),
    "CreatePartitions": (
        lambda: CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="orders", count=4)], timeout_ms=1),
        lambda answer: answer.results[0].error_code,
        STORAGE,
    ),
    "IncrementalAlterConfigs": (
        lambda: IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=2,
                    resource_name="orders",
                    configs=[AlterableConfig(name="retention.ms", config_operation=0, value="5")],
                )
            ],
            validate_only=False,
        ),
        lambda answer: answer.responses[0].error_code,
        STORAGE,
    ),
    "DeleteTopics": (
        lambda: DeleteTopicsRequest(topics=[DeleteTopicState(name="doomed")], timeout_ms=1),
        lambda answer: answer.responses[0].error_code,
        STORAGE,
    ),
    "InitProducerId": (
        lambda: InitProducerIdRequest(transactional_id="writer", transaction_timeout_ms=1000),
        lambda answer: answer.error_code,
        COORDINATOR,
    ),
    "OffsetCommit": (
        lambda: OffsetCommitRequest(
            group_id="readers",
            topics=[
                OffsetCommitRequestTopic(
                    name="orders", partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")]
                )
            ],
        ),
        lambda answer: answer.topics[0].partitions[0].error_code,
        COORDINATOR,
    ),
    "ConsumerGroupHeartbeat": (
        lambda: ConsumerGroupHeartbeatRequest(
            group_id="readers",
            member_id="one",
            rebalance_timeout_ms=1000,
            subscribed_topic_names=["orders"],
            topic_partitions=[],
        ),
        lambda answer: answer.error_code,
        COORDINATOR,
    ),
    "WriteTxnMarkers": (
        lambda: WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=7,
                    producer_epoch=0,
                    transaction_result=False,
                    topics=[WritableTxnMarkerTopic(name="orders", partition_indexes=[0])],
                    coordinator_epoch=0,
                )
            ]
        ),
        lambda answer: answer.markers[0].topics[0].partitions[0].error_code,
        STORAGE,
    ),
    "AlterUserScramCredentials": (
        lambda: AlterUserScramCredentialsRequest(upsertions=[UPSERTION]),
        lambda answer: answer.results[0].error_code,
        STORAGE,
    ),
}


def commit(client: Client) -> int:
    make, code_of, _ = REQUESTS["OffsetCommit"]
    return code_of(client.ask(make(), 8))


def fill(files: MemoryFileSystem) -> None:
    files.bytes_free = 0


def make_read_only(files: MemoryFileSystem) -> None:
    def hook(operation: str, path: str, size: int) -> None:
        if operation in CHANGING:
            raise StorageError(path, operation, "Read-only file system")

    files.hook = hook


def relieve(files: MemoryFileSystem) -> None:
    files.bytes_free = files.hook = None


def cluster_with_topics() -> Cluster:
    cluster = Cluster()
    cluster.topic("orders")
    cluster.topic("doomed")
    cluster.client().produce("orders", batch_of(b"a", identity=ProducerIdentity(7, 0), sequence=0))
    return cluster


@pytest.mark.parametrize("harm", [fill, make_read_only])
@pytest.mark.parametrize("name", REQUESTS)
def test_change_is_refused_until_there_is_space(name: str, harm: Callable[[MemoryFileSystem], None]) -> None:
    make, code_of, expected = REQUESTS[name]
    cluster = cluster_with_topics()
    client = cluster.client()
    before = sorted(cluster.file_system.list("logs"))
    harm(cluster.file_system)
    answer = client.ask(make(), 8 if name == "OffsetCommit" else None)
    assert code_of(answer) == expected
    assert not OF_THE_DISK.search(repr(answer))
    assert f"refused: {name} from client 'test'" in cluster.lines[-1]
    assert "cannot " in cluster.lines[-1], "what the disk refused"
    assert {topic.name for topic in cluster.core.topics} == {"orders", "doomed"}
    assert sorted(cluster.file_system.list("logs")) == before or harm is make_read_only
    relieve(cluster.file_system)
    assert code_of(client.ask(make(), 8 if name == "OffsetCommit" else None)) == 0
    cluster.restart()
    assert {topic.name for topic in cluster.core.topics} - {"new", "doomed"} == {"orders"}


@pytest.mark.parametrize("harm", [fill, make_read_only])
def test_producer_id_is_refused_when_it_cannot_be_written(harm: Callable[[MemoryFileSystem], None]) -> None:
    cluster = cluster_with_topics()
    client = cluster.client()
    harm(cluster.file_system)
    requested = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    assert client.ask(requested).error_code == COORDINATOR
    relieve(cluster.file_system)
    assert client.ask(requested).error_code == 0


@pytest.mark.parametrize("harm", [fill, make_read_only])
@pytest.mark.parametrize("policy", ["os", "always"])
def test_records_are_refused_until_there_is_space(policy: str, harm: Callable[[MemoryFileSystem], None]) -> None:
    cluster = Cluster({"flush.policy": policy})
    cluster.topic("orders")
    client = cluster.client()
    one = ProducerIdentity(7, 0)
    assert client.produce("orders", batch_of(b"0", identity=one, sequence=0)).error_code == 0
    harm(cluster.file_system)
    for _ in range(3):
        refused = client.produce("orders", batch_of(b"1", identity=one, sequence=1))
        assert (refused.error_code, refused.base_offset) == (STORAGE, -1)
        assert refused.error_message == "the broker's disk failed for orders-0; ask the operator for the details in the broker's log"
        assert "refused: Produce" in cluster.lines[0]
        assert "cannot append" in cluster.lines[0]
    counted = cluster.core.counters.snapshot()
    assert counted["orders"]["StorageErrorsPerSec"] == counted[ALL_TOPICS]["StorageErrorsPerSec"] == 3
    assert counted["orders"]["FailedProduceRequestsPerSec"] == 0, "as in Apache Kafka"
    relieve(cluster.file_system)
    assert client.produce("orders", batch_of(b"1", identity=one, sequence=1)).base_offset == 1
    assert client.produce("orders", batch_of(b"0", identity=one, sequence=0)).base_offset == 0
    cluster.restart()
    assert cluster.client().produce("orders", batch_of(b"2", identity=one, sequence=2)).base_offset == 2


@pytest.mark.parametrize("is_commit", [True, False])
def test_refused_end_txn_is_logged_with_its_reason(is_commit: bool) -> None:
    cluster = cluster_with_topics()
    writer = Writer(cluster.client(), "writer")
    writer.write(b"b")
    fill(cluster.file_system)
    assert writer.end(commit=is_commit) == COORDINATOR
    assert "refused: EndTxn" in cluster.lines[-1]
    assert "transactions.journal: No space left" in cluster.lines[-1]
    relieve(cluster.file_system)
    assert writer.end(commit=is_commit) == 0


JOINS: dict[str, tuple[Callable[[ProducerIdentity], Any], int, Callable[[Any], int], int]] = {
    "AddPartitionsToTxn": (
        lambda writer: AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="writer",
            v3_and_below_producer_id=writer.producer_id,
            v3_and_below_producer_epoch=writer.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="orders", partitions=[0])],
        ),
        3,
        lambda answer: answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
        COORDINATOR,
    ),
    "AddOffsetsToTxn": (
        lambda writer: AddOffsetsToTxnRequest(
            transactional_id="writer", producer_id=writer.producer_id, producer_epoch=writer.epoch, group_id="g"
        ),
        4,
        lambda answer: answer.error_code,
        COORDINATOR,
    ),
    "TxnOffsetCommit": (
        lambda writer: TxnOffsetCommitRequest(
            transactional_id="writer",
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            group_id="g",
            topics=[
                TxnOffsetCommitRequestTopic(
                    name="orders", partitions=[TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
                )
            ],
        ),
        5,
        lambda answer: answer.topics[0].partitions[0].error_code,
        COORDINATOR,
    ),
    "Produce": (
        lambda writer: produce_request("orders", batch_of(b"b", identity=writer, sequence=0, transactional=True), txn="writer"),
        12,
        lambda answer: answer.responses[0].partition_responses[0].error_code,
        codes.NOT_ENOUGH_REPLICAS.number,
    ),
}


@pytest.mark.parametrize("name", JOINS)
def test_refused_additions_to_a_transaction_are_logged_with_their_reason(name: str) -> None:
    make, version, code_of, expected = JOINS[name]
    cluster = cluster_with_topics()
    writer = Writer(cluster.client(), "writer")
    fill(cluster.file_system)
    for _ in range(20):
        answer = writer.client.ask(make(writer.identity), version)
        assert code_of(answer) == expected
        assert not OF_THE_DISK.search(repr(answer))
    (line,) = (line for line in cluster.lines if name in line)
    assert "transactions.journal: No space left" in line
    relieve(cluster.file_system)
    assert code_of(writer.client.ask(make(writer.identity), version)) == 0


@pytest.mark.parametrize("bytes_free", [0, 30, 100, 180])
def test_roll_without_space_changes_nothing(bytes_free: int) -> None:
    cluster = Cluster()
    cluster.topic("orders", segment_ms="1")
    client = cluster.client()
    stamp = cluster.steady_ms
    client.produce("orders", batch_of(b"0" * 100, timestamps=[stamp - 10]))
    cluster.file_system.bytes_free = bytes_free
    codes_seen = {client.produce("orders", batch_of(b"1" * 100, timestamps=[stamp])).error_code for _ in range(3)}
    assert STORAGE in codes_seen
    cluster.file_system.bytes_free = None
    partition = cluster.core.topics.partition("orders", 0)
    assert partition is not None
    end = partition.log.log_end_offset
    assert client.produce("orders", batch_of(b"2" * 100, timestamps=[stamp])).base_offset == end
    cluster.restart()
    partition = cluster.core.topics.partition("orders", 0)
    assert partition is not None
    assert partition.log.log_end_offset == end + 1


def _with_a_stopped_node() -> Cluster:
    cluster = Cluster(nodes=3)
    cluster.topic("orders", 1, 3)
    cluster.stop_node(0)
    return cluster


def _with_another_number_of_nodes() -> Cluster:
    cluster = Cluster(nodes=3)
    cluster.topic("orders", 1, 3)
    cluster.node_count = 2
    return cluster


def _with_a_decided_transaction() -> Cluster:
    cluster = cluster_with_topics()
    writer = Writer(cluster.client(), "writer")
    writer.write(b"b")

    def hook(operation: str, path: str, size: int) -> None:
        if operation == "append" and path.startswith("logs"):
            raise StorageError(path, operation, "no space left")

    cluster.file_system.hook = hook
    assert writer.end(commit=True) == 0
    cluster.file_system.hook = None
    return cluster


@pytest.mark.parametrize("begin", [cluster_with_topics, _with_a_stopped_node, _with_another_number_of_nodes, _with_a_decided_transaction])
def test_broker_starts_on_a_full_disk_and_recovers_with_space(begin: Callable[[], Cluster]) -> None:
    cluster = begin()
    fill(cluster.file_system)
    cluster.restart()
    partition = cluster.core.topics.partition("orders", 0)
    assert partition is not None
    client = cluster.client(node=partition.replicas.leader)
    assert client.produce("orders", batch_of(b"c")).error_code == STORAGE
    relieve(cluster.file_system)
    cluster.advance(1000)
    assert partition.log.last_stable_offset == partition.log.log_end_offset
    assert client.produce("orders", batch_of(b"c")).error_code == 0


def test_leader_epochs_increase_over_a_start_on_a_full_disk() -> None:
    cluster = _with_a_stopped_node()
    seen = []
    for fills in (True, False, False):
        if fills:
            fill(cluster.file_system)
        cluster.restart()
        relieve(cluster.file_system)
        partition = cluster.core.topics.partition("orders", 0)
        assert partition is not None
        seen.append((partition.replicas.leader_epoch, partition.replicas.leader))
        cluster.stop_node(partition.replicas.leader)
        seen.append((partition.replicas.leader_epoch, partition.replicas.leader))
    assert [epoch for epoch, _ in seen] == sorted({epoch for epoch, _ in seen})


def contents(cluster: Cluster) -> dict[str, dict[bytes, bytes]]:
    """What the journals know, but for where the last start has looked after a loss of power."""
    known = {name: dict(journal.items()) for name, journal in cluster.core._journals.items()}
    del known["transactions"][RECOVERED_IN]
    return known


@pytest.mark.parametrize("harm", [fill, make_read_only])
@pytest.mark.parametrize("flush_policy", ["os", "always"])
def test_close_on_a_full_disk_loses_nothing(flush_policy: str, harm: Callable[[MemoryFileSystem], None]) -> None:
    """The files that the broker writes at its end only save work at the next start."""
    cluster = Cluster({"flush.policy": flush_policy})
    cluster.topic("orders")
    client = cluster.client()
    client.produce("orders", batch_of(b"a", identity=ProducerIdentity(7, 0), sequence=0))
    assert commit(client) == 0
    writer = Writer(client, "writer")
    writer.write(b"b")
    before = contents(cluster)
    harm(cluster.file_system)
    cluster.core.close()
    relieve(cluster.file_system)
    cluster.file_system.crash(lambda path, unsynced: 0)
    assert cluster.file_system.list("journals") == ["cluster.journal", "contents.journal", "offsets.journal", "transactions.journal"]
    cluster.core = cluster._core()
    assert contents(cluster) == before
    partition = cluster.core.topics.partition("orders", 0)
    assert partition is not None
    assert partition.log.log_end_offset == 2


def test_close_with_one_failing_file_closes_the_others() -> None:
    cluster = Cluster()
    for name in ("orders", "bills"):
        cluster.topic(name)
        cluster.client().produce(name, batch_of(b"a"))
    assert commit(cluster.client()) == 0
    journal = "journals/cluster.journal"
    cluster.core._journals["cluster"].put({b"unsynced": b""})
    log = cluster.topic_named("orders").directory

    def broken(operation: str, path: str, size: int) -> None:
        if operation == "sync" and (path == journal or path.startswith(log)):
            raise StorageError(path, operation, "Input/output error")

    cluster.file_system.hook = broken
    with pytest.raises(StorageError, match=f"cannot sync {log}/0/"):
        cluster.core.close()
    cluster.file_system.hook = None
    assert {"offsets.journal.closed", "transactions.journal.closed"} <= set(cluster.file_system.list("journals"))
    assert "cluster.journal.closed" not in cluster.file_system.list("journals")
    cluster.file_system.crash(lambda path, unsynced: 0)
    cluster.core = cluster._core()
    assert [cluster.partition(name, 0).log.log_end_offset for name in ("orders", "bills")] == [0, 1]
