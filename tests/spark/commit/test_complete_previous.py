"""Completion of the previous transaction: requests to leaders of partitions without end marker, and the use of their responses."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest

from chaffinch.broker.core.startup import TransactionParticipants
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.protocol.apis import api_of
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from chaffinch.protocol.messages.describe_transactions import DescribeTransactionsRequest
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from chaffinch.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from chaffinch.spark.commit import complete_previous
from chaffinch.spark.commit.operations import (
    FindHangingTransactions,
    HangingTransaction,
    HangingTransactions,
    Lost,
    Operation,
    SendRequest,
    WriteMarkers,
    WriteMarkersResult,
)
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.snapshot import TargetSnapshot, TopicSnapshot
from tests.spark.commit.commit_world import TOPIC, Broker, Driver, Query, counted, outcome
from tests.spark.commit.test_protocol import FIRST_ROWS, ROWS, assert_exactly_once, two_batches

EFFECT = Driver.effect
WRITES_NOTHING = pytest.mark.parametrize(("batch_id", "outcome_is"), [(0, "skipped"), (1, "empty")])


def test_end_txn_version_keeps_epoch_of_transaction() -> None:
    """From version 5 on an end raises the epoch (KIP-890): what is committed would have that below the coordinator's."""
    assert max(api_of(EndTxnRequest()).used) == 4


def test_markers_have_coordinator_epochs_of_partitions() -> None:
    transactions = [
        HangingTransaction(TopicPartition(topic, number), 3, epoch)
        for topic, number, epoch in [("b", 0, 2), ("a", 1, -1), ("a", 0, 2), ("a", 2, 2)]
    ]
    request = complete_previous.write_markers_request(ProducerIdentity(7, 3), transactions)
    said = [(marker.coordinator_epoch, {topic.name: topic.partition_indexes for topic in marker.topics}) for marker in request.markers]
    assert said == [(0, {"a": [1]}), (2, {"a": [0, 2], "b": [0]})]
    assert {(marker.producer_id, marker.producer_epoch, marker.transaction_result) for marker in request.markers} == {(7, 3, True)}


@pytest.mark.parametrize(
    ("code", "is_done", "refused"),
    [
        (codes.NONE, True, codes.NONE),
        (codes.INVALID_PRODUCER_EPOCH, True, codes.NONE),
        (codes.TRANSACTION_COORDINATOR_FENCED, True, codes.NONE),
        (codes.NOT_LEADER_OR_FOLLOWER, False, codes.NONE),
        (codes.UNKNOWN_TOPIC_OR_PARTITION, False, codes.NONE),
        (codes.NOT_ENOUGH_REPLICAS, False, codes.NONE),
        (codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND, False, codes.NONE),
        (codes.CLUSTER_AUTHORIZATION_FAILED, False, codes.CLUSTER_AUTHORIZATION_FAILED),
        (codes.UNKNOWN_SERVER_ERROR, False, codes.NONE),
    ],
    ids=lambda given: given.name if isinstance(given, ErrorCode) else None,
)
def test_response_codes_of_write_txn_markers(code: ErrorCode, is_done: bool, refused: ErrorCode) -> None:
    parts = [WritableTxnMarkerPartitionResult(partition_index=number, error_code=found) for number, found in enumerate([0, code.number])]
    topics = [WritableTxnMarkerTopicResult(name="a", partitions=parts)]
    said = complete_previous.parse_response(WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult(producer_id=7, topics=topics)]))
    done = {TopicPartition("a", 0)} | ({TopicPartition("a", 1)} if is_done else set())
    assert (set(said.done), said.refused) == (done, refused)
    assert bool(said.reason) is not (is_done or refused is not codes.NONE)
    is_possibly_written = code in (codes.NOT_LEADER_OR_FOLLOWER, codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND, codes.UNKNOWN_SERVER_ERROR)
    assert said.possibly_written == ({TopicPartition("a", 1)} if is_possibly_written else set())
    assert said.denied == ({TopicPartition("a", 1)} if refused is not codes.NONE else set())
    assert said.unknown == ({TopicPartition("a", 1)} if code is codes.UNKNOWN_TOPIC_OR_PARTITION else set())


def test_unreplicated_marker_is_written_again_though_nothing_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its partition may get another leader, which lacks the marker."""
    broker, query = two_batches()
    with monkeypatch.context() as patched:
        patched.setattr(TransactionParticipants, "write_marker", lambda *_: None)
        query.commit(0)
    written = Driver.write_markers
    written_tps: list[list[int]] = []

    def possibly_written(self: Driver, operation: WriteMarkers) -> WriteMarkersResult:
        said = written(self, operation)
        written_tps.append([transaction.tp.partition for transaction in operation.transactions])
        return replace(said, done=frozenset([TopicPartition(TOPIC, 0)]), reason="not replicated") if len(written_tps) < 3 else said

    monkeypatch.setattr(Driver, "write_markers", possibly_written)
    query.commit(1)
    assert written_tps == [[0, 1], [1], [1]]
    assert_exactly_once(broker)


def test_marker_never_replicated_fails_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    _, query = two_batches()
    with monkeypatch.context() as patched:
        patched.setattr(TransactionParticipants, "write_marker", lambda *_: None)
        query.commit(0)
    monkeypatch.setattr(Driver, "write_markers", lambda *_: WriteMarkersResult(reason="not replicated"))
    said = r"WriteTxnMarkers: retried for 60000 ms \(kafka.max.block.ms\), the last error was: not replicated; nothing more is written"
    with pytest.raises(Refusal, match=said):
        query.commit(1)


@pytest.mark.parametrize(
    ("group_id", "number"), [("ends", 16), ("chaffinch-q", 40), ("polygenelubricants", 0), ("\u00fc\U0001f600", 21), ("", 0)]
)
def test_offsets_partition_equals_java(group_id: str, number: int) -> None:
    """As a Java machine computes `Utils.abs(groupId.hashCode()) % 50`; of one of them the hash is the smallest int."""
    assert complete_previous.offsets_partition(group_id, 50) == number


def test_deleted_topic_delays_next_batch_once() -> None:
    broker, query = two_batches()
    query.commit(0)
    assert query.state.written_to is not None
    query.state = replace(query.state, written_to=(*query.state.written_to, TopicPartition("gone", 0)))
    began_ms = broker.steady_ms
    query.commit(1)
    assert 60_000 <= broker.steady_ms - began_ms < 61_000
    query.commit(1)
    assert broker.steady_ms - began_ms < 61_000
    assert_exactly_once(broker)


@pytest.mark.parametrize(("number", "has_checkpoint", "waits"), [(0, True, False), (1, True, True), (0, False, True)])
def test_only_leaders_of_previous_batch_are_waited_for(
    number: int, has_checkpoint: bool, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint says where that was: in partition 1. Without one it may have been anywhere."""
    _, query = two_batches(has_checkpoint=has_checkpoint)
    target = TargetSnapshot(topics=(TopicSnapshot(topic=TOPIC, topic_id=bytes(16), partition_count=2),))
    query.batches = [(outcome({1: ROWS[0][1]}),), (outcome({1: ROWS[1][1]}),)]
    query.commit(0, target=target)
    assert query.state.written_to == ((TopicPartition(TOPIC, 1),) if has_checkpoint else None)
    effect = Driver.effect

    def away(self: Driver, operation: Operation) -> object:
        value = effect(self, operation)
        if not isinstance(operation, FindHangingTransactions):
            return value
        return replace(value, answered=value.answered - {TopicPartition(TOPIC, number)}, reason=f"{TOPIC}-{number} has no leader")

    monkeypatch.setattr(Driver, "effect", away)
    with pytest.raises(Refusal, match=f"orders-{number} has no leader") if waits else nullcontext():
        assert query.commit(1, target=target).result.outcome == "written"


def markers_lost(monkeypatch: pytest.MonkeyPatch) -> tuple[Broker, Query]:
    """The first of two batches is committed, but no partition has its end marker; the second has no rows."""
    broker, query = two_batches()
    query.batches[1] = (outcome({}),)
    with monkeypatch.context() as patched:
        patched.setattr(TransactionParticipants, "write_marker", lambda *_: None)
        query.commit(0)
    return broker, query


def leaderless(self: Driver, operation: Operation) -> object:
    return (
        HangingTransactions(reason="orders-0 has no leader") if isinstance(operation, FindHangingTransactions) else EFFECT(self, operation)
    )


def unreachable(self: Driver, operation: Operation) -> object:
    is_asked = isinstance(operation, SendRequest) and isinstance(operation.message, DescribeTransactionsRequest)
    return Lost(reason="no coordinator") if is_asked else EFFECT(self, operation)


@WRITES_NOTHING
@pytest.mark.parametrize("away", [leaderless, unreachable])
def test_batch_that_writes_nothing_does_not_wait(
    away: Callable[[Driver, Operation], object], batch_id: int, outcome_is: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle query, or a repeated batch that is in Kafka: a partition of the previous batch may be unavailable for hours."""
    broker, query = two_batches()
    query.batches[1] = (outcome({}),)
    query.commit(0)
    monkeypatch.setattr(Driver, "effect", away)
    began_ms = broker.steady_ms
    assert query.commit(batch_id).result.outcome == outcome_is
    assert broker.steady_ms == began_ms


@WRITES_NOTHING
def test_batch_that_writes_nothing_completes_previous_transaction(batch_id: int, outcome_is: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next batch may be a long time away."""
    broker, query = markers_lost(monkeypatch)
    assert not broker.read(TOPIC)
    assert query.commit(batch_id).result.outcome == outcome_is
    assert counted(broker.read(TOPIC)) == counted(FIRST_ROWS)


@WRITES_NOTHING
def test_batch_that_writes_nothing_completes_available_partitions(batch_id: int, outcome_is: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query = markers_lost(monkeypatch)
    here, away = (TopicPartition(TOPIC, number) for number in range(2))

    def one_away(self: Driver, operation: Operation) -> object:
        value = EFFECT(self, operation)
        if not isinstance(operation, FindHangingTransactions):
            return value
        found = {transaction for transaction in value.hanging if transaction.tp != away}
        return replace(value, answered=value.answered - {away}, hanging=frozenset(found), reason="orders-1 has no leader")

    monkeypatch.setattr(Driver, "effect", one_away)
    began_ms = broker.steady_ms
    assert query.commit(batch_id).result.outcome == outcome_is
    assert [bool(broker.read_partition(tp)) for tp in (here, away)] == [True, False]
    assert broker.steady_ms == began_ms


@WRITES_NOTHING
@pytest.mark.parametrize("is_done", [False, True], ids=["not enough replicas", "said to be done, and still open"])
def test_batch_that_writes_nothing_writes_markers_once(
    batch_id: int, outcome_is: str, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, query = markers_lost(monkeypatch)

    def respond(_: object, operation: WriteMarkers) -> WriteMarkersResult:
        done = frozenset(transaction.tp for transaction in operation.transactions) if is_done else frozenset()
        return WriteMarkersResult(done=done, reason="" if is_done else "not enough replicas", code=codes.NOT_ENOUGH_REPLICAS)

    monkeypatch.setattr(Driver, "write_markers", respond)
    began_ms = broker.steady_ms
    assert query.commit(batch_id).result.outcome == outcome_is
    assert broker.steady_ms == began_ms


@WRITES_NOTHING
def test_possibly_written_marker_is_waited_for(batch_id: int, outcome_is: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader then reports nothing open, so the next batch would not retry; and another leader may lack the marker."""
    broker, query = markers_lost(monkeypatch)
    query.batches.append(query.batches[1])
    written = Driver.write_markers
    written_tps: list[list[TopicPartition]] = []
    code = codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    here, away = (TopicPartition(TOPIC, number) for number in range(2))

    def possibly_written(self: Driver, operation: WriteMarkers) -> WriteMarkersResult:
        written_tps.append([transaction.tp for transaction in operation.transactions])
        if len(written_tps) == 1:
            return WriteMarkersResult(reason=code.name, code=code, possibly_written=frozenset([here]))
        return written(self, operation)

    monkeypatch.setattr(Driver, "write_markers", possibly_written)
    assert query.commit(batch_id).result.outcome == outcome_is
    assert written_tps == [[here, away], [here]], "a marker that is certainly not written is left to the next batch"
    assert [bool(broker.read_partition(tp)) for tp in (here, away)] == [True, False]

    broker, query = markers_lost(monkeypatch)
    monkeypatch.setattr(
        Driver, "write_markers", lambda *_: WriteMarkersResult(reason=code.name, code=code, possibly_written=frozenset([here]))
    )
    with pytest.raises(Refusal, match=r"WriteTxnMarkers: retried for 60000 ms"):
        query.commit(batch_id)


@WRITES_NOTHING
def test_possibly_written_marker_is_waited_for_though_another_leader_refuses(
    batch_id: int, outcome_is: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, query = markers_lost(monkeypatch)
    here = TopicPartition(TOPIC, 0)
    said = [
        WriteMarkersResult(reason="not replicated", possibly_written=frozenset([here]), refused=codes.UNKNOWN_SERVER_ERROR),
        WriteMarkersResult(reason="no leader", code=codes.LEADER_NOT_AVAILABLE),
        WriteMarkersResult(done=frozenset([here])),
    ]
    monkeypatch.setattr(Driver, "write_markers", lambda *_: said.pop(0))
    assert query.commit(batch_id).result.outcome == outcome_is
    assert said == [], "it was unsure, and nothing that came since says otherwise"


@pytest.mark.parametrize("batch_id", [0, 1, 2])
def test_marker_denied_after_lost_response_is_not_waited_for(batch_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait, and a batch with rows commits in a short transaction."""
    broker, query = markers_lost(monkeypatch)
    query.batches.append((outcome({0: [(b"k", b"next")]}),))
    tps = frozenset(TopicPartition(TOPIC, number) for number in range(2))
    said = [WriteMarkersResult(reason="no answer", possibly_written=tps)]
    not_allowed = WriteMarkersResult(refused=codes.CLUSTER_AUTHORIZATION_FAILED, denied=tps)
    monkeypatch.setattr(Driver, "write_markers", lambda *_: said.pop() if said else not_allowed)
    began_ms = broker.steady_ms
    query.commit(batch_id)
    assert broker.steady_ms - began_ms < 1_000
    assert counted(broker.read(TOPIC)) == (counted([*FIRST_ROWS, (b"k", b"next")]) if batch_id == 2 else {})


def test_topic_deleted_during_marker_write_delays_batch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query = two_batches()
    broker.core.create_topic("extra", 1, 1, {}, steady_ms=broker.steady_ms)
    query.batches[0] = (*query.batches[0], outcome({0: [(b"k", b"v")]}, topic="extra", task=1))
    with monkeypatch.context() as patched:
        patched.setattr(TransactionParticipants, "write_marker", lambda *_: None)
        query.commit(0)
    written = Driver.write_markers
    written_tps: list[WriteMarkers] = []

    def deleted(self: Driver, operation: WriteMarkers) -> WriteMarkersResult:
        if not written_tps:
            broker.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="extra")], topic_names=["extra"], timeout_ms=1000))
        written_tps.append(operation)
        return written(self, operation)

    monkeypatch.setattr(Driver, "write_markers", deleted)
    began_ms = broker.steady_ms
    query.commit(1)
    assert 60_000 <= broker.steady_ms - began_ms < 62_000
    assert_exactly_once(broker)


def test_written_marker_ends_wait_though_another_leader_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query = markers_lost(monkeypatch)
    query.batches.append((outcome({0: [(b"k", b"next")]}),))
    here, away = (frozenset([TopicPartition(TOPIC, number)]) for number in range(2))
    refused = WriteMarkersResult(denied=away, refused=codes.CLUSTER_AUTHORIZATION_FAILED)
    said = [replace(refused, reason="no answer", possibly_written=here), replace(refused, done=here)]
    monkeypatch.setattr(Driver, "write_markers", lambda *_: said.pop(0) if said else refused)
    began_ms = broker.steady_ms
    query.commit(2)
    assert broker.steady_ms - began_ms < 1_000
    assert counted(broker.read(TOPIC)) == counted([*FIRST_ROWS, (b"k", b"next")])


@pytest.mark.parametrize("is_gone", [True, False])
def test_topic_deleted_before_marker_write_delays_batch_once(is_gone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query = markers_lost(monkeypatch)
    query.batches.append((outcome({0: [(b"k", b"next")]}),))
    here, away = (TopicPartition(TOPIC, number) for number in range(2))
    written, unknown = Driver.write_markers, frozenset([away] if is_gone else [])

    def one_unknown(self: Driver, operation: WriteMarkers) -> WriteMarkersResult:
        said = written(self, operation)
        return replace(said, done=said.done & {here}, reason="orders-1: unknown partition", unknown=unknown)

    monkeypatch.setattr(Driver, "write_markers", one_unknown)
    began_ms = broker.steady_ms
    with nullcontext() if is_gone else pytest.raises(Refusal, match="unknown partition; nothing more is written"):
        query.commit(2)
    assert 60_000 <= broker.steady_ms - began_ms < 62_000


@WRITES_NOTHING
def test_batch_that_writes_nothing_begins_no_short_transaction(batch_id: int, outcome_is: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end could not be left to the next batch, which would abort it."""
    broker, query = markers_lost(monkeypatch)
    query.batches.append((outcome({0: [(b"k", b"next")]}),))
    broker.markers_refused = codes.CLUSTER_AUTHORIZATION_FAILED
    driver = query.commit(batch_id)
    assert (driver.result.outcome, counted(broker.read(TOPIC))) == (outcome_is, {})
    query.commit(2)
    assert counted(broker.read(TOPIC)) == counted([*FIRST_ROWS, (b"k", b"next")])


def test_repeated_write_with_token_waits_until_rows_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch comes after it."""
    broker, query = markers_lost(monkeypatch)
    said = [HangingTransactions(reason="orders-1 has no leader")]
    monkeypatch.setattr(
        Driver, "effect", lambda self, asked: said.pop() if said and isinstance(asked, FindHangingTransactions) else EFFECT(self, asked)
    )
    assert query.commit(0, is_stream=False).result.outcome == "skipped"
    assert (said, counted(broker.read(TOPIC))) == ([], counted(FIRST_ROWS))
