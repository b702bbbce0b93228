"""Transactions on the wire: fencing at append, offsets that wait for the marker, and every crash in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chaffinch.broker import embedded
from chaffinch.broker.core.transactions.moves import TransactionState
from chaffinch.identifiers import NO_PRODUCER, ProducerIdentity
from chaffinch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from chaffinch.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from chaffinch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from chaffinch.storage.file_system import Interrupted
from tests.broker.batches import batch_of
from tests.broker.core_client import Client, Cluster

TIMEOUT_MS = 60_000


def init(client: Client, *, expected: ProducerIdentity = NO_PRODUCER, version: int | None = None) -> Any:
    request = InitProducerIdRequest(
        transactional_id="t", transaction_timeout_ms=TIMEOUT_MS, producer_id=expected.producer_id, producer_epoch=expected.epoch
    )
    return client.ask(request, version)


@pytest.mark.parametrize(("producer_id", "epoch", "code"), [(-1, -2, 42), (-1, 0, 42), (5, -1, 42), (-1, -1, 0)])
def test_incomplete_identity_is_refused(producer_id: int, epoch: int, code: int) -> None:
    request = InitProducerIdRequest(transactional_id=None, producer_id=producer_id, producer_epoch=epoch)
    assert Cluster().client().ask(request).error_code == code


def identity_of(client: Client) -> ProducerIdentity:
    answer = init(client)
    assert answer.error_code == 0
    return ProducerIdentity(answer.producer_id, answer.producer_epoch)


def add(client: Client, identity: ProducerIdentity, *partitions: int, topic: str = "orders", version: int | None = None) -> list[int]:
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
    )
    results = client.ask(request, version).results_by_topic_v3_and_below[0].results_by_partition
    return [result.partition_error_code for result in results]


def end(client: Client, identity: ProducerIdentity, commit: bool, version: int | None = None) -> int:
    request = EndTxnRequest(transactional_id="t", producer_id=identity.producer_id, producer_epoch=identity.epoch, committed=commit)
    code: int = client.ask(request, version).error_code
    return code


def write(client: Client, identity: ProducerIdentity, sequence: int = 0, version: int | None = None) -> int:
    records = batch_of(b"a", identity=identity, sequence=sequence, transactional=True)
    return client.produce("orders", records, txn="t", version=version).error_code


def add_group(client: Client, identity: ProducerIdentity, group: str = "g", version: int | None = None) -> int:
    request = AddOffsetsToTxnRequest(transactional_id="t", producer_id=identity.producer_id, producer_epoch=identity.epoch, group_id=group)
    code: int = client.ask(request, version).error_code
    return code


def commit_offset(
    client: Client,
    identity: ProducerIdentity,
    offset: int = 5,
    *,
    topic: str = "orders",
    metadata: str = "m",
    group: str = "g",
    member: str = "",
    generation: int = -1,
    version: int | None = None,
) -> int:
    requested = [TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=metadata)]
    request = TxnOffsetCommitRequest(
        transactional_id="t",
        group_id=group,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        member_id=member,
        generation_id=generation,
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=requested)],
    )
    code: int = client.ask(request, version).topics[0].partitions[0].error_code
    return code


def committed(client: Client, *, stable: bool = False, version: int | None = None) -> tuple[int, str, int]:
    """(offset, metadata, error code) of group g."""
    request = OffsetFetchRequest(
        group_id="g",
        topics=[OffsetFetchRequestTopic(name="orders", partition_indexes=[0])],
        groups=[OffsetFetchRequestGroup(group_id="g", topics=[OffsetFetchRequestTopics(name="orders", partition_indexes=[0])])],
        require_stable=stable,
    )
    answer = client.ask(request, version)
    (found,) = (answer.groups[0].topics if answer.groups else answer.topics)[0].partitions
    return found.committed_offset, found.metadata, found.error_code


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.topic("orders", 2)
    return cluster


class TestFencing:
    def test_write_to_a_partition_not_added_is_refused(self, cluster: Cluster) -> None:
        """KIP-890 part 1: 48 for clients before Produce 11, 120 after."""
        client = cluster.client()
        identity = identity_of(client)
        assert write(client, identity, version=10) == 48
        assert write(client, identity, version=11) == 120
        assert add(client, identity, 0) == [0]
        assert write(client, identity) == 0

    def test_disabled_verification_accepts_writes(self) -> None:
        cluster = Cluster({"transaction.partition.verification.enable": "false"})
        cluster.topic("orders")
        client = cluster.client()
        assert write(client, identity_of(client)) == 0

    def test_newer_producer_fences_the_older_one(self, cluster: Cluster) -> None:
        old, new = cluster.client(), cluster.client()
        identity = identity_of(old)
        add(old, identity, 0)
        write(old, identity)
        assert init(new).error_code == 51
        assert init(new).error_code == 0
        assert write(old, identity, 1) == 47, "the abort marker brought the new epoch to the partition"
        assert add(old, identity, 1) == [90]
        assert add(old, identity, 1, version=1) == [47]
        assert add_group(old, identity) == 90
        assert add_group(old, identity, version=1) == 47
        assert end(old, identity, True) == 90
        assert end(old, identity, True, version=1) == 47
        assert init(old, expected=identity).error_code == 90
        assert init(old, expected=identity, version=3).error_code == 47
        assert commit_offset(old, identity) == 47

    def test_fenced_producer_is_refused_at_partitions_not_written_to(self, cluster: Cluster) -> None:
        old, new = cluster.client(), cluster.client()
        identity = identity_of(old)
        add(old, identity, 0)
        init(new)
        assert write(old, identity) == 47

    def test_refused_offset_commit_is_logged_with_its_member(self, cluster: Cluster) -> None:
        client = cluster.client()
        identity = identity_of(client)
        add_group(client, identity)
        assert commit_offset(client, identity, member="consumer-1", generation=7) == 22
        (line,) = [line for line in cluster.lines if "ILLEGAL_GENERATION" in line]
        assert line.endswith("offset of group 'g' in the transaction of 't', from member 'consumer-1' of generation 7")

    def test_timed_out_producer_is_fenced(self, cluster: Cluster) -> None:
        client = cluster.client()
        identity = identity_of(client)
        add(client, identity, 0)
        write(client, identity)
        cluster.advance(TIMEOUT_MS)
        assert any("aborted" in line for line in cluster.lines)
        assert write(client, identity, 1) == 47
        assert end(client, identity, True) == 90

    def test_unknown_partition_adds_none(self, cluster: Cluster) -> None:
        client = cluster.client()
        identity = identity_of(client)
        assert add(client, identity, 0, 7) == [55, 3]
        assert write(client, identity) == 120

    def test_requests_at_another_node_are_refused(self) -> None:
        cluster = Cluster(nodes=2)
        cluster.topic("orders")
        coordinator = cluster.coordinator_of("t")
        client = cluster.client(node=1 - coordinator)
        assert init(client).error_code == 16
        assert add(client, ProducerIdentity(0, 0), 0) == [16]
        assert end(client, ProducerIdentity(0, 0), True) == 16
        assert commit_offset(client, ProducerIdentity(0, 0), group="t") == 16


class TestOffsets:
    """KIP-98 and KIP-447: pending until the marker."""

    @pytest.mark.parametrize("version", [None, 7])
    @pytest.mark.parametrize("commit", [True, False])
    def test_offsets_are_pending_until_the_end(self, cluster: Cluster, commit: bool, version: int | None) -> None:
        client = cluster.client()
        identity = identity_of(client)
        assert add_group(client, identity) == 0
        assert commit_offset(client, identity) == 0
        assert committed(client, version=version) == (-1, "", 0)
        assert committed(client, stable=True, version=version) == (-1, "", 88)
        assert end(client, identity, commit) == 0
        assert committed(client, stable=True, version=version) == ((5, "m", 0) if commit else (-1, "", 0))

    def test_all_committed_offsets_of_a_group_are_fetched(self, cluster: Cluster) -> None:
        client = cluster.client()
        identity = identity_of(client)
        add_group(client, identity)
        commit_offset(client, identity)
        end(client, identity, True)
        answer = client.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)]))
        assert [(topic.name, [part.committed_offset for part in topic.partitions]) for topic in answer.groups[0].topics] == [
            ("orders", [5])
        ]

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"topic": "missing"}, 3),
            ({"metadata": "x" * 4097}, 12),
            ({"metadata": "\u00e9" * 4096}, 0),
            ({"metadata": "x" * 4096}, 0),
            ({"group": ""}, 24),
            ({"member": "m1"}, 0),  # Without a generation the member is not checked, while the group has no members.
            ({"generation": 1}, 22),
            ({"group": "never added"}, 120),
            ({"group": "never added", "version": 3}, 48),
        ],
        ids=str,
    )
    def test_invalid_offset_commit_is_refused(self, cluster: Cluster, changes: dict[str, Any], code: int) -> None:
        client = cluster.client()
        identity = identity_of(client)
        add_group(client, identity)
        assert commit_offset(client, identity, **changes) == code

    def test_offset_commit_outside_transactions_is_stored(self, cluster: Cluster) -> None:
        client = cluster.client()
        requested = [OffsetCommitRequestPartition(partition_index=0, committed_offset=9, committed_metadata=None)]
        request = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="orders", partitions=requested)])
        assert client.ask(request).topics[0].partitions[0].error_code == 0
        assert committed(client) == (9, "", 0)
        cluster.restart()
        assert committed(cluster.client()) == (9, "", 0)

    def test_pending_offsets_are_deleted_with_their_topic(self, cluster: Cluster) -> None:
        from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

        client = cluster.client()
        identity = identity_of(client)
        add_group(client, identity)
        commit_offset(client, identity)
        client.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")]))
        assert end(client, identity, True) == 0
        cluster.restart()
        cluster.topic("orders", 2)
        assert committed(cluster.client()) == (-1, "", 0)


def dies_at(operation_index: int) -> Callable[[str, str, int], None]:
    """A hook: the process ends in this operation that changes or syncs a file."""
    countdown = [operation_index]

    def die(operation: str, path: str, size: int) -> None:
        if operation in ("append", "sync", "rename"):
            if countdown[0] == 0:
                raise Interrupted(size // 2 if operation == "append" else 0)
            countdown[0] -= 1

    return die


@pytest.mark.parametrize(("is_committed", "before", "after"), [(True, 0, 1), (False, 1, 1)])
def test_committed_table_ends_before_an_open_transaction(cluster: Cluster, is_committed: bool, before: int, after: int) -> None:
    client = cluster.client()
    identity = identity_of(client)
    add(client, identity, 0)
    assert write(client, identity) == 0

    def row_count() -> int:
        return embedded.to_table(embedded.collect(cluster.core, "orders", is_committed=is_committed)).num_rows

    assert row_count() == before
    assert end(client, identity, True) == 0
    assert row_count() == after


class TestRestart:
    def test_open_transaction_continues_after_a_kill(self, cluster: Cluster) -> None:
        client = cluster.client()
        identity = identity_of(client)
        add(client, identity, 0)
        write(client, identity)
        add_group(client, identity)
        commit_offset(client, identity)
        cluster.restart()
        client = cluster.client()
        assert committed(client, stable=True) == (-1, "", 88)
        assert write(client, identity, 1) == 0
        assert end(client, identity, True) == 0
        assert committed(client, stable=True) == (5, "m", 0)
        assert cluster.partition("orders", 0).log.last_stable_offset == 3

    @pytest.mark.parametrize("version", [4, 5])
    @pytest.mark.parametrize("commit", [True, False])
    def test_kill_at_any_operation_of_the_end_is_all_or_nothing(self, commit: bool, version: int) -> None:
        """All or nothing: wherever the process dies, after the restart (and the client's retry) every partition and the group agree."""
        outcomes = set()
        for operation_index in range(100):
            outcome = self.end_killed_at(operation_index, commit, version)
            outcomes.add(outcome)
            if outcome == "finished":
                break
        assert outcomes >= {"undecided", "decided", "finished"}

    def end_killed_at(self, operation_index: int, commit: bool, version: int) -> str:
        cluster = Cluster()
        cluster.topic("orders", 2)
        client = cluster.client()
        identity = identity_of(client)
        add(client, identity, 0, 1)
        write(client, identity)
        add_group(client, identity)
        commit_offset(client, identity)
        cluster.file_system.hook = dies_at(operation_index)
        finished = True
        try:
            end(client, identity, commit, version)
        except Interrupted:
            finished = False
        cluster.file_system.hook = None
        cluster.restart()
        client = cluster.client()
        logs = [cluster.partition("orders", index).log for index in (0, 1)]
        is_decided = not logs[0].ongoing_transactions()
        assert finished <= is_decided, "what was answered is decided"
        assert end(client, identity, commit, version) == 0, "the client, which got no answer, asks again"
        assert not logs[0].ongoing_transactions()
        assert logs[1].log_end_offset >= 1, "the partition without data has its marker"
        assert committed(client, stable=True) == ((5, "m", 0) if commit else (-1, "", 0))
        assert logs[0].aborted_transactions(0, 100) == ([] if commit else [(identity.producer_id, 0)])
        return "finished" if finished else "decided" if is_decided else "undecided"

    @pytest.mark.parametrize("version", [4, 5])
    @pytest.mark.parametrize("commit", [True, False])
    @pytest.mark.parametrize("kept", ["logs/", "journals/"])
    def test_loss_of_power_at_any_operation_of_the_end_is_all_or_nothing(self, commit: bool, kept: str, version: int) -> None:
        """No marker without its decision, and no completion without its markers, whichever file kept what was not synced."""
        outcomes = set()
        for operation_index in range(100):
            outcome = self.end_without_power_at(operation_index, commit, kept, version)
            outcomes.add(outcome)
            if outcome == "finished":
                break
        assert outcomes >= {"undecided", "decided", "finished"}

    def end_without_power_at(self, operation_index: int, commit: bool, kept: str, version: int) -> str:
        cluster = Cluster({"flush.policy": "always"})
        cluster.topic("orders", 2)
        client = cluster.client()
        identity = identity_of(client)
        add(client, identity, 0, 1)
        write(client, identity)
        cluster.file_system.hook = dies_at(operation_index)
        finished = True
        try:
            end(client, identity, commit, version)
        except Interrupted:
            finished = False
        cluster.file_system.hook = None
        cluster.core.abandon()
        cluster.file_system.crash(lambda path, unsynced: unsynced if path.startswith(kept) else 0)
        cluster.clients.clear()
        cluster.core = cluster._core()
        log = cluster.partition("orders", 0).log
        state = cluster.transaction("t").state
        is_ended = not log.ongoing_transactions()
        assert is_ended == (state is not TransactionState.ONGOING)
        assert finished <= is_ended
        assert end(cluster.client(), identity, commit, version) == 0
        assert log.aborted_transactions(0, 100) == ([] if commit else [(identity.producer_id, 0)])
        return "finished" if finished else "decided" if is_ended else "undecided"


def test_batch_repeated_after_its_transaction_does_not_block_the_next(cluster: Cluster) -> None:
    client = cluster.client()
    identity = identity_of(client)
    for sequence in (0, 1):
        assert add(client, identity, 0, version=3) == [0]
        assert write(client, identity, sequence, version=11) == 0
        assert end(client, identity, True, version=4) == 0
        assert write(client, identity, sequence, version=11) == 0, "stored already"
    assert cluster.core.counters.total("DuplicateBatchesPerSec", "orders") == 2
