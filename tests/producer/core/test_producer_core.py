"""ProducerCore under random responses: every record gets exactly one outcome, in order, and the outcome is true.

The responses come from a model of a partition with Kafka's rules for sequences; hypothesis draws the faults.
"""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chaffinch.client.connections import RequestFailed
from chaffinch.errors import (
    IllegalStateException,
    KafkaException,
    SaslAuthenticationException,
    TimeoutException,
    UnknownTopicOrPartitionException,
    codes,
)
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core import events
from chaffinch.producer.core.batches.batch import ProducerBatch
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.records import batch as record_batch
from tests.client.scripted_server import metadata
from tests.producer.core.rig import LOST, NOT_SENT, OK, ORDERS_0, ORDERS_1, PORT, TIMED_OUT, Answer, Batch, Rig

REFUSED_VALUES = set("bdkpuBHT")
"""Values that the model refuses; it accepts all others."""


class Model:
    """One partition of a broker: its records, and the producer state of KIP-98."""

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.batches: list[tuple[int, int, str, int]] = []
        self.epoch = -1
        self.sequence_next: int | None = None

    def produce(self, batch: Batch, *, names_all: bool) -> Answer:
        for epoch, base, values, offset in self.batches[-5:]:
            if (epoch, base, values) == (batch.epoch, batch.base_sequence, batch.values):
                return Answer(base_offset=offset)
        culprits = [i for i, value in enumerate(batch.values) if value in REFUSED_VALUES]
        if culprits:
            return Answer(codes.INVALID_RECORD, culprits if names_all else culprits[:1])
        if batch.epoch < self.epoch:
            return Answer(codes.INVALID_PRODUCER_EPOCH)
        expected = 0 if batch.epoch > self.epoch else self.sequence_next
        if self.epoch >= 0 and batch.base_sequence != expected:
            return Answer(codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
        offset = len(self.stored)
        self.stored += batch.values
        self.batches.append((batch.epoch, batch.base_sequence, batch.values, offset))
        self.epoch, self.sequence_next = batch.epoch, batch.base_sequence + len(batch.values)
        return Answer(base_offset=offset)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["send", "answer", "answer", "lose before", "lose after", "time out", "retriable", "maybe", "sleep"]),
        st.integers(0, 4),
    ),
    max_size=60,
)


FAULTS = {
    "lose before": NOT_SENT,
    "lose after": LOST,
    "time out": TIMED_OUT,
    "retriable": Answer(codes.NOT_LEADER_OR_FOLLOWER),
    "maybe": Answer(codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
}
APPENDS = {"answer", "lose after", "maybe"}


def settle(rig: Rig, models: dict[Any, Model], action: str, *, names_all: bool) -> None:
    """Complete the oldest open request, which may have a batch for each partition: one connection delivers responses in order."""
    batches = [_sent(rig, tp, batch) for tp, batch in rig.open[0].token.batches.items()]
    answers = [models[batch.tp].produce(batch, names_all=names_all) for batch in batches] if action in APPENDS else []
    outcomes = [FAULTS[action]] if action in FAULTS else answers
    assert outcomes
    rig.answer(*outcomes)


def play(actions: list[tuple[str, int]], *, in_flight_max: int, names_all: bool, timeout_ms: int) -> tuple[Rig, dict[Any, Model], str]:
    """Run the actions, then continue until the core is idle."""
    options = {"delivery.timeout.ms": timeout_ms, "request.timeout.ms": 1000, "max.in.flight.requests.per.connection": in_flight_max}
    rig = Rig(options=options)
    models = {ORDERS_0: Model(), ORDERS_1: Model()}
    values = string.ascii_letters
    sent = ""
    for action, number in actions:
        if action == "send" and len(sent) < len(values):
            batch = values[len(sent) : len(sent) + number + 1]
            sent += batch
            rig.send(batch, ORDERS_1 if number == 4 else ORDERS_0)
        elif action == "sleep":
            rig.sleep(number * 300)
        elif rig.open and action != "send":
            settle(rig, models, action, names_all=names_all)
    for _ in range(500):
        if rig.core.is_idle:
            break
        if rig.open:
            settle(rig, models, "answer", names_all=names_all)
        else:
            rig.sleep(500)
    return rig, models, sent


def _sent(rig: Rig, tp: TopicPartition, batch: ProducerBatch) -> Batch:
    """The batch that was sent with the sequence and epoch in these bytes."""
    header = record_batch.read_header(batch.data)
    numbers = (tp, header.base_sequence, header.producer_epoch, header.count)
    return [sent for sent in rig.sent if (sent.tp, sent.base_sequence, sent.epoch, len(sent.values)) == numbers][-1]


@given(ACTIONS, st.sampled_from([1, 2, 5]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_valid_record_is_stored_once_in_order_with_long_timeouts(actions: list[Any], in_flight_max: int, names_all: bool) -> None:
    rig, models, sent = play(actions, in_flight_max=in_flight_max, names_all=names_all, timeout_ms=10_000_000)
    assert rig.core.is_idle
    assert set(rig.fates) == set(sent), "every record has an outcome; the rig checks that none has two"
    for tp, model in models.items():
        assert len(set(model.stored)) == len(model.stored), f"stored twice at {tp}: {model.stored}"
        # An outcome may stay unknown: culprits found in a batch whose first response was lost. Such records are not counted here.
        known = [value for value in model.stored if not isinstance(rig.fates[value], KafkaException)]
        assert known == sorted(known, key=sent.index), f"order at {tp}: {model.stored}"
        for value in known:
            assert model.stored[rig.fates[value]] == value, "the offset is where the record is"
    for value in sent:
        fate = rig.fates[value]
        if isinstance(fate, KafkaException) and fate.stored.value == "no":
            assert all(value not in model.stored for model in models.values()), f"{value} is reported as not stored"
        if value in REFUSED_VALUES:
            assert isinstance(fate, KafkaException)


@given(ACTIONS, st.sampled_from([1, 5]), st.booleans())
@example([("send", 0), ("send", 4), *[("send", 0)] * 5], 5, False)  # Two partitions in one request.
@settings(max_examples=100, deadline=None)
def test_every_record_has_one_true_outcome_with_short_timeouts(actions: list[Any], in_flight_max: int, names_all: bool) -> None:
    rig, models, sent = play(actions, in_flight_max=in_flight_max, names_all=names_all, timeout_ms=1500)
    assert rig.core.is_idle
    assert set(rig.fates) == set(sent)
    for model in models.values():
        assert len(set(model.stored)) == len(model.stored)
    for value, fate in rig.fates.items():
        tps = [tp for tp, model in models.items() if value in model.stored]
        if isinstance(fate, KafkaException):
            assert fate.stored.value != "no" or not tps
        else:
            assert tps
    assert rig.core.accumulator.memory_free == rig.core.accumulator.memory_bytes


def test_linger_delays_a_batch_and_flush_ends_it() -> None:
    rig = Rig(options={"linger.ms": 100})
    rig.append("ab")
    rig.step(events.TimePassed())
    assert rig.trace == []
    rig.sleep(99)
    assert rig.trace == []
    rig.sleep(1)
    assert rig.trace == ["ab@0/0"]
    rig.answer(OK)
    rig.append("c")
    assert rig.call(events.FlushCalled, "flush") is None
    assert rig.trace[-1] == "c@2/0"
    rig.append("d")
    rig.answer(OK)
    assert rig.calls["flush"] == "done", "records appended after the call do not count"


def test_full_batch_does_not_linger() -> None:
    rig = Rig(options={"linger.ms": 10_000, "batch.size": 200})
    rig.append("abcdefgh")
    rig.step(events.TimePassed())
    assert rig.trace == ["abc@0/0"]


def test_small_batches_of_one_broker_share_a_request() -> None:
    rig = Rig()
    rig.append("a", ORDERS_0)
    rig.append("b", ORDERS_1)
    rig.step(events.TimePassed())
    assert sorted(rig.trace) == ["a@0/0", "b@0/0"]
    assert len(rig.open) == 1


def test_request_timeout_applies_to_client_and_broker() -> None:
    rig = Rig(options={"request.timeout.ms": 4_000})
    rig.send("a")
    assert (rig.open[0].timeout_ms, rig.open[0].message.timeout_ms) == (4_000, 4_000)


def test_requests_per_broker_are_limited() -> None:
    rig = Rig(partitions=4, options={"max.in.flight.requests.per.connection": 2, "max.request.size": 90})
    for partition in range(4):
        rig.append(string.ascii_letters[partition], ORDERS_0._replace(partition=partition))
    rig.step(events.TimePassed())
    assert len(rig.open) == 2
    rig.answer(OK)
    assert len(rig.open) == 2
    rig.answer(OK)
    rig.answer(OK)
    rig.answer(OK)
    assert rig.fate("abcd") == ["0"] * 4


def test_partitions_take_turns_under_an_in_flight_limit() -> None:
    """However many batches of other partitions wait."""
    rig = Rig(partitions=3, options={"max.in.flight.requests.per.connection": 1, "max.request.size": 90})
    values = iter(string.ascii_letters)
    for partition in (0, 1, 2):
        for _ in range(4):
            rig.append(next(values), tp := ORDERS_0._replace(partition=partition))
            rig.core.accumulator.queue_of(tp).close()
    rig.step(events.TimePassed())
    while rig.open:
        rig.answer(OK)
    sent = [batch.tp.partition for batch in rig.sent]
    assert len(sent) == 12
    assert all(set(sent[at : at + 3]) == {0, 1, 2} for at in range(0, 12, 3))


def test_unknown_topic_is_requested_with_growing_backoff() -> None:
    rig = Rig()
    rig.requests.clear()
    rig.step(events.TopicRequested(topic="ordres"))
    rig.sleep(5_000)
    metadata_requests = [request for request in rig.requests if isinstance(request, MetadataRequest)]
    assert 5 <= len(metadata_requests) <= 12
    error = rig.core.wait_causes.topic_timeout("ordres", None, 5_000)
    assert isinstance(error, TimeoutException)
    assert isinstance(error.__cause__, UnknownTopicOrPartitionException)


def test_metadata_is_refreshed_after_max_age() -> None:
    rig = Rig(options={"metadata.max.age.ms": 1000})
    rig.requests.clear()
    rig.sleep(3_500)
    assert len(rig.requests) == 3


def test_unused_topic_is_forgotten() -> None:
    rig = Rig(options={"metadata.max.age.ms": 10_000, "metadata.max.idle.ms": 5_000})
    rig.sleep(10_000)
    assert rig.requests[-1].topics == []
    assert rig.core.context.cluster.partition_count("orders") is None


def test_batch_follows_a_moved_leader() -> None:
    rig = Rig()
    rig.sleep(1_000)
    rig.send("a")
    rig.scripted[MetadataRequest] = [metadata({"orders": 2}, {1: PORT, 2: PORT + 1}, leader_id=2)]
    rig.answer(Answer(codes.NOT_LEADER_OR_FOLLOWER))
    rig.sleep(500)
    assert [effect.address.port for effect in rig.open] == [PORT + 1]


def test_batch_waits_for_a_leader() -> None:
    rig = Rig(options={"delivery.timeout.ms": 60_000})
    rig.scripted[MetadataRequest] = [metadata({"orders": 2}, {1: PORT}, leader_id=-1) for _ in range(500)]
    rig.core.context.metadata.refresh()
    rig.sleep(200)
    rig.send("a")
    rig.sleep(1_000)
    assert rig.trace == []
    rig.scripted.clear()
    rig.sleep(5_000)
    assert rig.trace == ["a@0/0"]


def test_refused_producer_id_fails_waiting_records_and_is_requested_again() -> None:
    rig = Rig()
    refusal = InitProducerIdResponse(error_code=codes.CLUSTER_AUTHORIZATION_FAILED.number)
    rig.scripted[InitProducerIdRequest] = [refusal, InitProducerIdResponse(error_code=codes.COORDINATOR_LOAD_IN_PROGRESS.number)]
    rig.send("ab")
    assert rig.fate("ab") == ["ClusterAuthorizationException no"] * 2
    rig.sleep(5_000)
    rig.send("c")
    rig.sleep(5_000)
    assert rig.trace == ["c@0/0"]


def test_close_sends_the_rest_and_fails_it_after_the_timeout() -> None:
    rig = Rig(options={"linger.ms": 10_000})
    rig.append("a")
    rig.call(events.CloseCalled, "close", deadline_ms=rig.steady_ms + 500)
    assert rig.trace == ["a@0/0"]
    assert "close" not in rig.calls
    rig.sleep(500)
    assert rig.fate("a") == ["TimeoutException possibly"]
    assert rig.calls["close"] == "done"


@pytest.mark.parametrize("timeouts_ms", [(500, 60_000), (60_000, 500)])
def test_shortest_timeout_of_concurrent_closes_counts(timeouts_ms: tuple[int, int]) -> None:
    rig = Rig()
    rig.send("a")
    for name, timeout_ms in zip(("first", "second"), timeouts_ms, strict=True):
        rig.call(events.CloseCalled, name, deadline_ms=rig.steady_ms + timeout_ms)
    rig.sleep(499)
    assert (rig.calls, rig.fate("a")) == ({}, ["open"])
    rig.sleep(1)
    assert (rig.calls, rig.fate("a")) == ({"first": "done", "second": "done"}, ["TimeoutException possibly"])


def test_all_calls_fail_when_the_shell_gives_up() -> None:
    rig = Rig(options={"transactional.id": "t"})
    rig.hold.add(InitProducerIdRequest)
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.FlushCalled, "flush")
    rig.append("a")
    for effect in rig.core.give_up(IllegalStateException("no more")):
        rig._apply(effect)
    assert isinstance(rig.fates["a"], IllegalStateException)
    assert isinstance(rig.calls["init"], KafkaException)


def test_partition_missing_in_the_response_is_retried() -> None:
    from chaffinch.client.connections import ResponseReceived
    from chaffinch.protocol.messages.produce import ProduceResponse

    rig = Rig()
    rig.send("a")
    effect = rig.open.pop()
    rig.step(ResponseReceived(address=effect.address, token=effect.token, message=ProduceResponse()))
    rig.sleep(1_000)
    rig.answer(OK)
    assert rig.trace == ["a@0/0", "a@0/0"]
    assert rig.fate("a") == ["0"]


def test_expired_records_name_the_last_error() -> None:
    rig = Rig(options={"delivery.timeout.ms": 2_000, "request.timeout.ms": 1_000})
    rig.send("a")
    while "a" not in rig.fates:
        if rig.open:
            rig.answer(Answer(codes.KAFKA_STORAGE_ERROR, message="the disk is full"))
        rig.sleep(100)
    error = rig.fates["a"]
    assert isinstance(error, TimeoutException)
    assert "no outcome within delivery.timeout.ms, 2000 ms" in str(error)
    assert "the last error was KAFKA_STORAGE_ERROR (the disk is full); possibly stored" in str(error)


@pytest.mark.parametrize("transactional_id", [None, "t"])
@pytest.mark.parametrize("is_unsupported", [False, True])
@pytest.mark.parametrize("was_sent", [False, True])
def test_connection_refused_after_expiry_changes_no_outcome(transactional_id: str | None, is_unsupported: bool, was_sent: bool) -> None:
    """The records have failed already; the batch still waited for its connection."""
    rig = Rig(options={"delivery.timeout.ms": 2_000, "request.timeout.ms": 1_000, "transactional.id": transactional_id})
    if transactional_id is not None:
        rig.call(events.InitTransactionsCalled, "init")
        rig.call(events.BeginTransactionCalled, "begin")
    rig.send("ab")
    rig.sleep(2_000)
    before = rig.fate("ab"), rig.core.context.counts["records_failed"]
    assert before == ((["TransactionAbortableException possibly"] if transactional_id else ["TimeoutException possibly"]) * 2, 2)
    sent = rig.open.pop(0)
    error = None if is_unsupported else SaslAuthenticationException("no such user")
    refused = RequestFailed(
        address=sent.address, token=sent.token, reason="refused", was_sent=was_sent, is_unsupported=is_unsupported, error=error
    )
    rig.step(refused)
    assert (rig.fate("ab"), rig.core.context.counts["records_failed"]) == before
    assert rig.core.is_idle


@pytest.mark.parametrize(("was_sent", "stored"), [(True, "possibly"), (False, "no")])
def test_batch_on_a_refused_connection_is_possibly_stored_only_if_sent(was_sent: bool, stored: str) -> None:
    rig = Rig()
    rig.send("a")
    sent = rig.open.pop()
    error = SaslAuthenticationException("the login is over")
    rig.step(RequestFailed(address=sent.address, token=sent.token, reason="refused", was_sent=was_sent, error=error))
    assert rig.fate("a") == [f"SaslAuthenticationException {stored}"]


@pytest.mark.parametrize(("answer", "sent_next"), [(OK, "b@1/0"), (Answer(codes.INVALID_RECORD), "b@0/1")], ids=["written", "refused"])
def test_late_response_settles_the_sequence(answer: Answer, sent_next: str) -> None:
    """If the batch was written after all, its sequence is used; if not, a new epoch begins."""
    rig = Rig(options={"delivery.timeout.ms": 2_000, "request.timeout.ms": 1_000})
    rig.send("a")
    rig.sleep(2_000)
    assert rig.fate("a") == ["TimeoutException possibly"]
    rig.answer(answer)
    rig.send("b")
    assert rig.trace == ["a@0/0", sent_next]


def test_renumbered_batch_waits_for_the_backoff() -> None:
    """No preceding batch explains the gap: without a backoff a broker that is still starting would get the request over and over."""
    rig = Rig()
    rig.send("a")
    rig.answer(OK)
    rig.send("b")
    rig.answer(Answer(codes.OUT_OF_ORDER_SEQUENCE_NUMBER))
    rig.sleep(50)
    assert rig.trace == ["a@0/0", "b@1/0"]
    rig.sleep(100)
    assert rig.trace == ["a@0/0", "b@1/0", "b@0/1"]


def test_full_batch_is_encoded_ahead_only_if_it_can_be_sent() -> None:
    rig = Rig(options={"max.in.flight.requests.per.connection": 1}, nodes=2)

    def full(values: str, tp: TopicPartition = ORDERS_0) -> list[str] | None:
        if values:
            rig.append(values, tp)
            rig.core.accumulator.queue_of(tp).close()
        head = rig.core.batch_sender.full_head(rig.steady_ms)
        return None if head is None else list(head.futures)

    assert full("ab") is None, "nothing is sent without a producer id"
    rig.step(events.TimePassed())
    rig.answer(OK)
    assert full("cd") == ["c", "d"]
    rig.step(events.TimePassed())
    assert full("ef") is None, "one request is in flight, and no second one is allowed"
    assert full("gh", ORDERS_1) == ["g", "h"], "another broker may get one"
    assert rig.trace == ["ab@0/0", "cd@2/0"]
    head = rig.core.batch_sender.full_head(rig.steady_ms)
    assert head is not None
    rig.core.accumulator.encode_ahead(head)
    assert full("") is None, "it is encoded already"
    rig.step(events.TimePassed())
    assert rig.trace == ["ab@0/0", "cd@2/0", "gh@0/0"]
    assert full("ij", TopicPartition("orders", 9)) is None, "the partition has no leader"
