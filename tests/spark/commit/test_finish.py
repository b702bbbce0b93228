"""What is told to the leaders of partitions whose coordinator forgot to tell them, and what is made of their answers."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from chaffinch.broker.core.transactions.participants import TransactionParticipants
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
from chaffinch.spark.commit import finish
from chaffinch.spark.commit.operations import Ask, CountPartitions, FindRemains, LeftOpen, Lost, Remains, Step, Told
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.snapshot import TRANSACTION_TIMEOUT_MAX_MS_DEFAULT, TargetSnapshot, TopicSnapshot
from tests.spark.commit.commit_world import TOPIC, Broker, Cut, Driver, Killed, Query, counted, outcome
from tests.spark.commit.test_forgotten_ends import forgets_the_marker, told_nobody
from tests.spark.commit.test_protocol import FIRST_ROWS, ROWS, assert_exactly_once, query_operation, two_batches

EFFECT = Driver.effect
WRITES_NOTHING = pytest.mark.parametrize(("batch_id", "outcome_is"), [(0, "skipped"), (1, "empty")])


def test_ends_are_asked_for_so_that_transactions_keep_their_epochs():
    """From version 5 on an end raises the epoch (KIP-890): what is committed would have that below the coordinator's."""
    assert max(api_of(EndTxnRequest()).used) == 4


def test_markers_bear_the_coordinators_epochs_that_the_partitions_know():
    places = [
        LeftOpen(TopicPartition(topic, number), 3, epoch) for topic, number, epoch in [("b", 0, 2), ("a", 1, -1), ("a", 0, 2), ("a", 2, 2)]
    ]
    request = finish.markers(ProducerIdentity(7, 3), places)
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
def test_who_was_overtaken_looks_again_who_may_not_does_not_and_others_tell_again(code, is_done, refused):
    parts = [WritableTxnMarkerPartitionResult(partition_index=number, error_code=found) for number, found in enumerate([0, code.number])]
    topics = [WritableTxnMarkerTopicResult(name="a", partitions=parts)]
    said = finish.read(WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult(producer_id=7, topics=topics)]))
    done = {TopicPartition("a", 0)} | ({TopicPartition("a", 1)} if is_done else set())
    assert (said.done, said.refused) == (done, refused)
    assert bool(said.reason) is not (is_done or refused is not codes.NONE)
    is_unsure = code in (codes.NOT_LEADER_OR_FOLLOWER, codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND, codes.UNKNOWN_SERVER_ERROR)
    assert said.unsure == ({TopicPartition("a", 1)} if is_unsure else set())
    assert said.not_ours == ({TopicPartition("a", 1)} if refused is not codes.NONE else set())
    assert said.unknown == ({TopicPartition("a", 1)} if code is codes.UNKNOWN_TOPIC_OR_PARTITION else set())


def test_a_marker_that_is_not_replicated_is_told_again_though_nothing_is_open(monkeypatch):
    """Its partition may get another leader, which has not heard of it."""
    broker, query = two_batches()
    with monkeypatch.context() as patched:
        patched.setattr(TransactionParticipants, "write_marker", lambda *_: None)
        query.commit(0)
    written, told = Driver.write_markers, []

    def unsure(self, operation):
        said = written(self, operation)
        told.append([left.place.partition for left in operation.places])
        return replace(said, done=frozenset([TopicPartition(TOPIC, 0)]), reason="not replicated") if len(told) < 3 else said

    monkeypatch.setattr(Driver, "write_markers", unsure)
    query.commit(1)
    assert told == [[0, 1], [1], [1]]
    assert_exactly_once(broker)


def test_a_marker_that_is_never_replicated_fails_the_batch(monkeypatch):
    _, query = two_batches()
    with monkeypatch.context() as patched:
        patched.setattr(TransactionParticipants, "write_marker", lambda *_: None)
        query.commit(0)
    monkeypatch.setattr(Driver, "write_markers", lambda *_: Told(reason="not replicated"))
    said = r"WriteTxnMarkers: asked for 60000 ms \(kafka.max.block.ms\), the last answer was: not replicated; nothing more is written"
    with pytest.raises(Refusal, match=said):
        query.commit(1)


@pytest.mark.parametrize(
    ("group_id", "number"), [("ends", 16), ("chaffinch-q", 40), ("polygenelubricants", 0), ("\u00fc\U0001f600", 21), ("", 0)]
)
def test_a_groups_offsets_are_where_java_puts_them(group_id, number):
    """As a Java machine computes `Utils.abs(groupId.hashCode()) % 50`; of one of them the hash is the smallest int."""
    assert finish.offsets_partition(group_id, 50) == number


def test_a_topic_that_is_gone_holds_the_next_batch_up_once():
    broker, query = two_batches()
    query.commit(0)
    query.state = replace(query.state, written_to=(*query.state.written_to, TopicPartition("gone", 0)))
    began_ms = broker.now_ms
    query.commit(1)
    assert 60_000 <= broker.now_ms - began_ms < 61_000
    query.commit(1)
    assert broker.now_ms - began_ms < 61_000
    assert_exactly_once(broker)


@pytest.mark.parametrize(("number", "has_checkpoint", "waits"), [(0, True, False), (1, True, True), (0, False, True)])
def test_the_leaders_where_the_last_batch_was_written_are_waited_for_and_no_others(number, has_checkpoint, waits, monkeypatch):
    """The checkpoint says where that was: in partition 1. Without one it may have been anywhere."""
    _, query = two_batches(has_checkpoint=has_checkpoint)
    target = TargetSnapshot(topics=(TopicSnapshot(topic=TOPIC, topic_id=bytes(16), partition_count=2),))
    query.batches = [(outcome({1: ROWS[0][1]}),), (outcome({1: ROWS[1][1]}),)]
    query.commit(0, target=target)
    assert query.state.written_to == ((TopicPartition(TOPIC, 1),) if has_checkpoint else None)
    effect = Driver.effect

    def away(self, operation):
        value = effect(self, operation)
        if not isinstance(operation, FindRemains):
            return value
        return replace(value, asked=value.asked - {TopicPartition(TOPIC, number)}, reason=f"{TOPIC}-{number} has no leader")

    monkeypatch.setattr(Driver, "effect", away)
    with pytest.raises(Refusal, match=f"orders-{number} has no leader") if waits else nullcontext():
        assert query.commit(1, target=target).result.outcome == "written"


def forgotten(monkeypatch):
    """The first of two batches is committed, and no partition has heard of it; the second has no rows."""
    broker, query = two_batches()
    query.batches[1] = (outcome({}),)
    with monkeypatch.context() as patched:
        patched.setattr(TransactionParticipants, "write_marker", lambda *_: None)
        query.commit(0)
    return broker, query


def leaderless(self, operation):
    return Remains(reason="orders-0 has no leader") if isinstance(operation, FindRemains) else EFFECT(self, operation)


def unreachable(self, operation):
    is_asked = isinstance(operation, Ask) and isinstance(operation.message, DescribeTransactionsRequest)
    return Lost(reason="no coordinator") if is_asked else EFFECT(self, operation)


@WRITES_NOTHING
@pytest.mark.parametrize("away", [leaderless, unreachable])
def test_a_batch_that_writes_nothing_waits_for_nobody(away, batch_id, outcome_is, monkeypatch):
    """An idle query, or the batch of before the restart, that is in Kafka: a partition of the last batch may be away for hours."""
    broker, query = two_batches()
    query.batches[1] = (outcome({}),)
    query.commit(0)
    monkeypatch.setattr(Driver, "effect", away)
    began_ms = broker.now_ms
    assert query.commit(batch_id).result.outcome == outcome_is
    assert broker.now_ms == began_ms


@WRITES_NOTHING
def test_a_batch_that_writes_nothing_finishes_what_was_forgotten(batch_id, outcome_is, monkeypatch):
    """It may be the last one for long."""
    broker, query = forgotten(monkeypatch)
    assert not broker.read(TOPIC)
    assert query.commit(batch_id).result.outcome == outcome_is
    assert counted(broker.read(TOPIC)) == counted(FIRST_ROWS)


@WRITES_NOTHING
def test_a_batch_that_writes_nothing_finishes_what_is_told_at_once(batch_id, outcome_is, monkeypatch):
    broker, query = forgotten(monkeypatch)
    here, away = (TopicPartition(TOPIC, number) for number in range(2))

    def one_away(self, operation):
        value = EFFECT(self, operation)
        if not isinstance(operation, FindRemains):
            return value
        found = {left for left in value.left_open if left.place != away}
        return replace(value, asked=value.asked - {away}, left_open=frozenset(found), reason="orders-1 has no leader")

    monkeypatch.setattr(Driver, "effect", one_away)
    began_ms = broker.now_ms
    assert query.commit(batch_id).result.outcome == outcome_is
    assert [bool(broker.read_partition(place)) for place in (here, away)] == [True, False]
    assert broker.now_ms == began_ms


@WRITES_NOTHING
@pytest.mark.parametrize("is_done", [False, True], ids=["not enough replicas", "said to be done, and still open"])
def test_a_batch_that_writes_nothing_tells_leaders_once(batch_id, outcome_is, is_done, monkeypatch):
    broker, query = forgotten(monkeypatch)

    def said(_, operation):
        done = frozenset(left.place for left in operation.places) if is_done else frozenset()
        return Told(done=done, reason="" if is_done else "not enough replicas", code=codes.NOT_ENOUGH_REPLICAS)

    monkeypatch.setattr(Driver, "write_markers", said)
    began_ms = broker.now_ms
    assert query.commit(batch_id).result.outcome == outcome_is
    assert broker.now_ms == began_ms


@WRITES_NOTHING
def test_a_marker_that_a_leader_may_have_taken_is_waited_for(batch_id, outcome_is, monkeypatch):
    """It holds nothing open then, which the next batch would believe; and is followed by another that has not heard of it."""
    broker, query = forgotten(monkeypatch)
    query.batches.append(query.batches[1])
    written, told = Driver.write_markers, []
    code = codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    here, away = (TopicPartition(TOPIC, number) for number in range(2))

    def unsure(self, operation):
        told.append([left.place for left in operation.places])
        if len(told) == 1:
            return Told(reason=code.name, code=code, unsure=frozenset([here]))
        return written(self, operation)

    monkeypatch.setattr(Driver, "write_markers", unsure)
    assert query.commit(batch_id).result.outcome == outcome_is
    assert told == [[here, away], [here]], "what nobody may have taken is left to the next batch"
    assert [bool(broker.read_partition(place)) for place in (here, away)] == [True, False]

    broker, query = forgotten(monkeypatch)
    monkeypatch.setattr(Driver, "write_markers", lambda *_: Told(reason=code.name, code=code, unsure=frozenset([here])))
    with pytest.raises(Refusal, match=r"WriteTxnMarkers: asked for 60000 ms"):
        query.commit(batch_id)


@WRITES_NOTHING
def test_one_that_may_have_taken_it_is_waited_for_though_another_refuses(batch_id, outcome_is, monkeypatch):
    _, query = forgotten(monkeypatch)
    here = TopicPartition(TOPIC, 0)
    said = [
        Told(reason="not replicated", unsure=frozenset([here]), refused=codes.UNKNOWN_SERVER_ERROR),
        Told(reason="no leader", code=codes.LEADER_NOT_AVAILABLE),
        Told(done=frozenset([here])),
    ]
    monkeypatch.setattr(Driver, "write_markers", lambda *_: said.pop(0))
    assert query.commit(batch_id).result.outcome == outcome_is
    assert said == [], "it was unsure, and nothing that came since says otherwise"


@pytest.mark.parametrize("batch_id", [0, 1, 2])
def test_who_was_not_answered_and_is_then_refused_has_been_told_nothing(batch_id, monkeypatch):
    """Nobody is waited for, and a batch with rows finishes shortly."""
    broker, query = forgotten(monkeypatch)
    query.batches.append((outcome({0: [(b"k", b"next")]}),))
    places = frozenset(TopicPartition(TOPIC, number) for number in range(2))
    said = [Told(reason="no answer", unsure=places)]
    not_allowed = Told(refused=codes.CLUSTER_AUTHORIZATION_FAILED, not_ours=places)
    monkeypatch.setattr(Driver, "write_markers", lambda *_: said.pop() if said else not_allowed)
    began_ms = broker.now_ms
    query.commit(batch_id)
    assert broker.now_ms - began_ms < 1_000
    assert counted(broker.read(TOPIC)) == (counted([*FIRST_ROWS, (b"k", b"next")]) if batch_id == 2 else {})


def test_a_topic_that_is_deleted_while_it_is_told_is_waited_for_once(monkeypatch):
    broker, query = two_batches()
    broker.core.create_topic("extra", 1, 1, {}, now_ms=broker.now_ms)
    query.batches[0] = (*query.batches[0], outcome({0: [(b"k", b"v")]}, topic="extra", task=1))
    with monkeypatch.context() as patched:
        patched.setattr(TransactionParticipants, "write_marker", lambda *_: None)
        query.commit(0)
    written, told = Driver.write_markers, []

    def deleted(self, operation):
        if not told:
            broker.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="extra")], topic_names=["extra"], timeout_ms=1000))
        told.append(operation)
        return written(self, operation)

    monkeypatch.setattr(Driver, "write_markers", deleted)
    began_ms = broker.now_ms
    query.commit(1)
    assert 60_000 <= broker.now_ms - began_ms < 62_000
    assert_exactly_once(broker)


def test_who_has_taken_it_in_the_end_keeps_nobody_waiting_for_another_that_refuses(monkeypatch):
    broker, query = forgotten(monkeypatch)
    query.batches.append((outcome({0: [(b"k", b"next")]}),))
    here, away = (frozenset([TopicPartition(TOPIC, number)]) for number in range(2))
    refused = Told(not_ours=away, refused=codes.CLUSTER_AUTHORIZATION_FAILED)
    said = [replace(refused, reason="no answer", unsure=here), replace(refused, done=here)]
    monkeypatch.setattr(Driver, "write_markers", lambda *_: said.pop(0) if said else refused)
    began_ms = broker.now_ms
    query.commit(2)
    assert broker.now_ms - began_ms < 1_000
    assert counted(broker.read(TOPIC)) == counted([*FIRST_ROWS, (b"k", b"next")])


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_topic_that_is_deleted_before_it_is_told_holds_the_next_batch_up_once(is_gone, monkeypatch):
    broker, query = forgotten(monkeypatch)
    query.batches.append((outcome({0: [(b"k", b"next")]}),))
    here, away = (TopicPartition(TOPIC, number) for number in range(2))
    written, unknown = Driver.write_markers, frozenset([away] if is_gone else [])

    def one_unknown(self, operation):
        said = written(self, operation)
        return replace(said, done=said.done & {here}, reason="orders-1: nobody knows it", unknown=unknown)

    monkeypatch.setattr(Driver, "write_markers", one_unknown)
    began_ms = broker.now_ms
    with nullcontext() if is_gone else pytest.raises(Refusal, match="nobody knows it; nothing more is written"):
        query.commit(2)
    assert 60_000 <= broker.now_ms - began_ms < 62_000


class TestAMarkerThatIsHeldBack:
    """By the group, for the end of a transaction: of the last one, or of another."""

    @pytest.fixture
    def held_back(self, monkeypatch):
        """Of the first of two batches, which is committed; its partitions have heard of it."""
        broker, query = two_batches()
        with forgets_the_marker(monkeypatch):
            query.commit(0)
        return broker, query

    def test_partitions_of_offsets_that_nobody_tells_are_asked_for_again(self, held_back, monkeypatch):
        broker, query = held_back
        lost = [Lost(reason="away")] * 3
        monkeypatch.setattr(
            Driver, "effect", lambda self, asked: lost.pop() if lost and isinstance(asked, CountPartitions) else EFFECT(self, asked)
        )
        query.commit(1)
        assert lost == []
        assert_exactly_once(broker)

    def test_and_given_up_for_what_it_is(self, held_back, monkeypatch):
        broker, query = held_back
        monkeypatch.setattr(
            Driver, "effect", lambda self, asked: Lost(reason="away") if isinstance(asked, CountPartitions) else EFFECT(self, asked)
        )
        began_ms = broker.now_ms
        with pytest.raises(Refusal, match=r"Metadata of __consumer_offsets: asked for 60000 ms .* the last answer was: away"):
            query.commit(1)
        assert 60_000 <= broker.now_ms - began_ms < 62_000

    def test_one_that_stays_is_named(self, held_back, monkeypatch):
        _, query = held_back
        written = Driver.write_markers

        def forgets(self, operation):
            with monkeypatch.context() as patched:
                patched.setattr(self.broker.core.state.offsets, "complete", lambda *_: None)
                return written(self, operation)

        monkeypatch.setattr(Driver, "write_markers", forgets)
        with pytest.raises(Refusal, match="says is committed is still open in the offsets of group chaffinch-q; this batch is not begun"):
            query.commit(1)

    @pytest.mark.parametrize("is_forgotten", [False, True], ids=["", "whose rows are forgotten"])
    @pytest.mark.parametrize("what", ["all is told", "markers are not ours", "offsets are not ours to see", "offsets are nowhere"])
    def test_one_of_another_transaction_of_a_shared_id_is_not_taken_for_committed(self, what, is_forgotten, monkeypatch):
        """A write died before its end, its abort was forgotten; another write under the same id was committed; the first is run again."""
        broker = Broker()
        topics = (TopicSnapshot(topic=TOPIC, topic_id=bytes(16), partition_count=2),)
        plan = {"is_stream": False, "has_checkpoint": False, "digest": "", "target": TargetSnapshot(topics=topics)}
        one, two = (
            Query(broker, [(outcome({number: [(b"k", value)]}),)], transactional_id="mine", has_checkpoint=False)
            for number, value in enumerate((b"one", b"two"))
        )
        steps = Query(Broker(), one.batches, transactional_id="mine", has_checkpoint=False).commit(0, group_id="one", **plan).steps
        with pytest.raises(Killed):
            one.commit(0, Cut(at=steps.index(Step.COMMIT_MARKER), how="crash_after"), group_id="one", **plan)
        with told_nobody(monkeypatch):
            broker.pass_time(TRANSACTION_TIMEOUT_MAX_MS_DEFAULT)
        write_marker = TransactionParticipants.write_marker
        with monkeypatch.context() as patched:
            if is_forgotten:
                patched.setattr(TransactionParticipants, "write_marker", lambda *args: None if args[2] else write_marker(*args))
            two.commit(0, group_id="two", **plan)
        broker.markers_refused = codes.CLUSTER_AUTHORIZATION_FAILED if what == "markers are not ours" else codes.NONE
        broker.offsets_refused = codes.TOPIC_AUTHORIZATION_FAILED if what == "offsets are not ours to see" else codes.NONE
        broker.offsets_partitions = 0 if what == "offsets are nowhere" else 50
        is_told = what in ("all is told", "markers are not ours")
        for _ in range(2):
            with pytest.raises(Refusal, match="TRANSACTION_END_UNKNOWN: group one holds the marker of this write back"):
                one.commit(0, group_id="one", **plan)
        assert counted(broker.read(TOPIC)) == ({b"two": 1} if is_told or not is_forgotten else {})

    @pytest.mark.parametrize("transactional_id", ["one", "mine"])
    def test_one_whose_abort_is_under_way_is_waited_for(self, transactional_id, monkeypatch):
        """A write died and is run again: our InitProducerId aborts it, and its group hears of it a moment later."""
        broker = Broker()
        plan = {"is_stream": False, "has_checkpoint": False, "digest": "", "group_id": "one"}
        query = Query(broker, [(outcome({0: [(b"k", b"one")]}),)], transactional_id=transactional_id, has_checkpoint=False)
        at = Query(Broker(), query.batches, has_checkpoint=False).commit(0, **plan).steps.index(Step.COMMIT_MARKER)
        with pytest.raises(Killed):
            query.commit(0, Cut(at=at, how="crash_after"), **plan)

        def late(self, operation):
            if operation.step is Step.READ_MARKER_AGAIN and not late.seen:
                late.seen = True
                broker.core.faults.add(api="OffsetFetch", error="UNSTABLE_OFFSET_COMMIT", count=2)
            return EFFECT(self, operation)

        late.seen = False
        monkeypatch.setattr(Driver, "effect", late)
        assert query.commit(0, **plan).result.outcome == "written"
        assert (late.seen, counted(broker.read(TOPIC))) == (True, {b"one": 1})

    def test_one_of_an_aborted_attempt_under_an_id_of_its_own_is_aborted(self, monkeypatch):
        broker = Broker()
        plan = {"is_stream": False, "has_checkpoint": False, "digest": "", "group_id": "own"}
        query = Query(broker, [(outcome({0: [(b"k", b"one")]}),)], transactional_id="own", has_checkpoint=False)
        at = Query(Broker(), query.batches, has_checkpoint=False).commit(0, **plan).steps.index(Step.COMMIT_MARKER)
        with pytest.raises(Killed):
            query.commit(0, Cut(at=at, how="crash_after"), **plan)
        with told_nobody(monkeypatch):
            broker.pass_time(TRANSACTION_TIMEOUT_MAX_MS_DEFAULT)
        assert query.commit(0, **plan).result.outcome == "written"
        assert counted(broker.read(TOPIC)) == {b"one": 1}

    @pytest.mark.parametrize("forgets", [told_nobody, forgets_the_marker])
    def test_nor_for_aborted(self, forgets, monkeypatch):
        """A write is committed, its end is forgotten; another one under the same id made its coordinator forget; the first is run again."""
        broker = Broker()
        topics = (TopicSnapshot(topic=TOPIC, topic_id=bytes(16), partition_count=2),)
        plan = {"is_stream": False, "has_checkpoint": False, "digest": "", "target": TargetSnapshot(topics=topics)}
        one, two = (
            Query(broker, [(outcome({number: [(b"k", value)]}),)], transactional_id="mine", has_checkpoint=False)
            for number, value in enumerate((b"one", b"two"))
        )
        with forgets(monkeypatch):
            one.commit(0, group_id="one", **plan)
        two.commit(0, group_id="two", **plan)
        with pytest.raises(Refusal, match="TRANSACTION_END_UNKNOWN"):
            one.commit(0, group_id="one", **plan)
        assert counted(broker.read(TOPIC)) == {b"one": 1, b"two": 1}

    @pytest.mark.parametrize("how", ["refused", "nowhere"])
    @pytest.mark.parametrize("transactional_id", ["chaffinch-q", "given"])
    def test_where_it_is_not_told_an_id_of_its_own_says_whose_it_is(self, transactional_id, how, monkeypatch):
        """That of a stream is, whoever chose it."""
        broker, query = two_batches()
        query.transactional_id = transactional_id
        with forgets_the_marker(monkeypatch), pytest.raises(Killed):
            query.run(Cut(at=query_operation(Step.END_TRANSACTION), how="crash_after"))
        if how == "refused":
            broker.offsets_refused = codes.TOPIC_AUTHORIZATION_FAILED
        else:
            broker.offsets_partitions = 0
        query.run()
        assert_exactly_once(broker)

    @pytest.mark.parametrize(("is_stream", "batch_id", "outcome_is"), [(True, 1, "written"), (False, 0, "skipped")])
    @pytest.mark.parametrize("times", [1, 2, 5])
    def test_one_whose_end_was_under_way_is_waited_for(self, is_stream, batch_id, outcome_is, times):
        """EndTxn is answered before the group hears of it."""
        broker, query = two_batches()
        query.transactional_id = "given"
        broker.offsets_refused = codes.TOPIC_AUTHORIZATION_FAILED
        query.commit(0, is_stream=is_stream)
        broker.core.faults.add(api="OffsetFetch", error="UNSTABLE_OFFSET_COMMIT", count=times)
        assert query.commit(batch_id, is_stream=is_stream).result.outcome == outcome_is
        assert len(broker.read(TOPIC)) == (8 if is_stream else 4)


@WRITES_NOTHING
def test_a_batch_that_writes_nothing_begins_no_short_transaction(batch_id, outcome_is, monkeypatch):
    """Its end could not be left to the next batch, which would abort it."""
    broker, query = forgotten(monkeypatch)
    query.batches.append((outcome({0: [(b"k", b"next")]}),))
    broker.markers_refused = codes.CLUSTER_AUTHORIZATION_FAILED
    driver = query.commit(batch_id)
    assert (driver.result.outcome, counted(broker.read(TOPIC))) == (outcome_is, {})
    query.commit(2)
    assert counted(broker.read(TOPIC)) == counted([*FIRST_ROWS, (b"k", b"next")])


def test_a_write_that_is_repeated_with_its_token_waits_until_its_rows_are_visible(monkeypatch):
    """No batch comes after it."""
    broker, query = forgotten(monkeypatch)
    said = [Remains(reason="orders-1 has no leader")]
    monkeypatch.setattr(
        Driver, "effect", lambda self, asked: said.pop() if said and isinstance(asked, FindRemains) else EFFECT(self, asked)
    )
    assert query.commit(0, is_stream=False).result.outcome == "skipped"
    assert (said, counted(broker.read(TOPIC))) == ([], counted(FIRST_ROWS))
