"""BatchWaitLog: batches that wait for minutes are logged with partition, broker and cause; errors of expired batches have the same text."""

from typing import Any

import pytest

from chaffinch.client.addresses import Address
from chaffinch.client.connections import Disconnected
from chaffinch.client.known_cluster import ADVERTISED_HINT
from chaffinch.client.wait_log import FIRST_LINE_MS, FIRST_PAUSE_MS
from chaffinch.errors import KafkaException, TimeoutException, codes
from chaffinch.errors.exceptions import TEXT_CHARACTERS_MAX
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core import events
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from tests.client.scripted_server import metadata
from tests.producer.core.rig import LOST, NOT_SENT, OK, ORDERS_0, ORDERS_1, Answer, Rig

TOO_FEW = Answer(codes.NOT_ENOUGH_REPLICAS, message="1 of 2 replicas is in sync.")
TIMEOUT_MS = 120_000
EVERY_MS = 500


def respond_for(rig: Rig, ms: int, answer: Answer | str = TOO_FEW, tp: TopicPartition = ORDERS_0) -> None:
    """The open batch gets this response every 500 ms."""
    until_ms = rig.steady_ms + ms
    while rig.steady_ms < until_ms:
        rig.answer(answer)
        rig.sleep(EVERY_MS)
        rig.steady_ms = min(rig.steady_ms, until_ms)


def rig_with_long_timeout(**options: object) -> Rig:
    return Rig(options={"delivery.timeout.ms": TIMEOUT_MS, "retry.backoff.ms": 100, "retry.backoff.max.ms": 100, **options})


def test_long_wait_is_logged_with_cause_partition_and_limit() -> None:
    rig = rig_with_long_timeout()
    rig.send("ab")
    respond_for(rig, FIRST_LINE_MS - EVERY_MS)
    assert rig.reports == []
    respond_for(rig, EVERY_MS)
    assert rig.reports == [
        "orders-0 at 127.0.0.1:9092, for 2500 ms: NOT_ENOUGH_REPLICAS (1 of 2 replicas is in sync); "
        "2 records without an outcome, retrying for up to 117500 ms more (delivery.timeout.ms)"
    ]


def test_broker_message_cannot_forge_log_lines() -> None:
    rig = rig_with_long_timeout()
    rig.send("ab")
    respond_for(rig, FIRST_LINE_MS + EVERY_MS, Answer(codes.NOT_ENOUGH_REPLICAS, message="x\nWARNING forged \x1b[2J" + "y" * 30_000))
    (line,) = rig.reports
    assert "NOT_ENOUGH_REPLICAS (x WARNING forged \\x1b[2Jyyy" in line
    assert line.isprintable()
    assert len(line) < TEXT_CHARACTERS_MAX + 300


def test_repeated_refusal_is_logged_at_growing_intervals() -> None:
    rig = rig_with_long_timeout()
    rig.send("ab")
    respond_for(rig, FIRST_LINE_MS + FIRST_PAUSE_MS - EVERY_MS)
    assert len(rig.reports) == 1
    respond_for(rig, 2 * FIRST_PAUSE_MS)
    assert len(rig.reports) == 2
    respond_for(rig, 2 * EVERY_MS)
    assert len(rig.reports) == 3


def test_many_partitions_share_one_line() -> None:
    rig = rig_with_long_timeout()
    rig.send("ab")
    rig.send("c", TopicPartition("orders", 1))
    respond_for(rig, FIRST_LINE_MS + EVERY_MS)
    rig.answer(TOO_FEW)
    (line,) = rig.reports
    assert "; 3 records without an outcome" in line


@pytest.mark.parametrize("answer", [LOST, NOT_SENT])
def test_unanswered_request_is_named_with_its_address(answer: str) -> None:
    rig = rig_with_long_timeout()
    rig.send("a")
    respond_for(rig, FIRST_LINE_MS + EVERY_MS, answer)
    (line,) = rig.reports
    assert line.startswith(f"orders-0 at 127.0.0.1:9092, for 2500 ms: NETWORK_EXCEPTION (127.0.0.1:9092: {answer}); 1 record without")


def test_short_waits_are_not_logged() -> None:
    rig = rig_with_long_timeout()
    for value in "abc":
        rig.send(value)
        respond_for(rig, FIRST_LINE_MS - EVERY_MS)
        rig.answer(OK)
    assert rig.reports == []


def test_linger_does_not_count_as_waiting() -> None:
    rig = rig_with_long_timeout(**{"linger.ms": 10_000})
    rig.append("a")
    rig.sleep(11_000)
    respond_for(rig, FIRST_LINE_MS - EVERY_MS)
    assert rig.reports == []


def unknown_topic() -> MetadataResponse:
    answer = metadata({}, {1: 9092})
    answer.topics = [MetadataResponseTopic(name="orders", error_code=codes.UNKNOWN_TOPIC_OR_PARTITION.number)]
    return answer


def leaderless(rig: Rig) -> None:
    """The only replica's node is stopped: metadata has no leader for the partitions."""
    rig.leaders = dict.fromkeys(rig.leaders, -1)
    refresh_metadata(rig)


def fewer_partitions(rig: Rig) -> None:
    """The topic was recreated with one partition, on brokers without topic ids."""
    rig.partitions = 1
    refresh_metadata(rig)


def topic_deleted(rig: Rig) -> None:
    """The topic was deleted."""
    rig.scripted[MetadataRequest] = [unknown_topic()] * 10_000
    refresh_metadata(rig)


def unreachable(rig: Rig) -> None:
    """The advertised address does not answer, the bootstrap address does."""
    moved = metadata({"orders": 2}, {5: 9}, leader_id=5)
    rig.scripted[MetadataRequest] = [moved] * 10_000
    refresh_metadata(rig)
    rig.step(Disconnected(address=Address("127.0.0.1", 9), reason="connection refused"))


def refresh_metadata(rig: Rig) -> None:
    rig.step(events.TopicRequested(topic="orders", is_stale=True))
    rig.sleep(200)


# The fault; the partition that is named, the error name, and the text of the cause.
CAUSES = {
    "no leader": (leaderless, "orders-1", "LEADER_NOT_AVAILABLE", "orders-1 has no leader: no node that has its records is running"),
    "fewer partitions": (
        fewer_partitions,
        "orders-1",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "topic 'orders' has 1 partition, there is no partition 1",
    ),
    "no topic": (topic_deleted, "orders-1", "UNKNOWN_TOPIC_OR_PARTITION", "no broker knows the topic 'orders'"),
    "unreachable": (
        unreachable,
        "orders-1 at 127.0.0.1:9",
        "NETWORK_EXCEPTION",
        f"its leader cannot be reached: no broker reachable at 127.0.0.1:9 (connection refused; {ADVERTISED_HINT})",
    ),
}


@pytest.fixture(params=CAUSES)
def cause(request: pytest.FixtureRequest) -> Any:
    return CAUSES[request.param]


class TestUnsendableBatches:
    def waiting(self, fault: Any, **options: Any) -> Rig:
        """Two records that could not be sent for 200 ms."""
        rig = rig_with_long_timeout(**{"reconnect.backoff.ms": 60_000, "reconnect.backoff.max.ms": 60_000, **options})
        rig.hold.add(InitProducerIdRequest)
        rig.send("ab", ORDERS_1)
        fault(rig)
        rig.release()
        return rig

    def test_line_within_3_s_then_growing_intervals(self, cause: Any) -> None:
        fault, tp, name, why = cause
        rig = self.waiting(fault)
        rig.sleep(2_200)
        assert rig.reports == []
        rig.sleep(600)
        (line,) = rig.reports
        assert line.startswith(f"{tp}, for 2500 ms: {name} ({why}")
        assert line.endswith("; 2 records without an outcome, retrying for up to 117500 ms more (delivery.timeout.ms)")
        for pause_ms, count in ((10_000, 2), (20_000, 3), (40_000, 4)):
            rig.sleep(pause_ms)
            assert len(rig.reports) == count

    def test_expired_records_name_the_cause(self, cause: Any) -> None:
        fault, _, name, why = cause
        rig = self.waiting(fault)
        rig.sleep(TIMEOUT_MS)
        error = rig.error("a")
        assert isinstance(error, TimeoutException)
        assert f"{name} ({why}" in str(error)
        assert isinstance(error.__cause__, KafkaException)
        assert error.__cause__.name == name

    def test_records_given_up_by_close_name_the_cause(self, cause: Any) -> None:
        fault, _, name, why = cause
        rig = self.waiting(fault)
        rig.step(events.CloseCalled(call="close", deadline_ms=rig.steady_ms + 1_000))
        rig.sleep(1_000)
        error = rig.error("a")
        assert f"it waited for: {name} ({why}" in str(error)
        assert isinstance(error.__cause__, KafkaException)
        assert error.__cause__.name == name

    def test_flush_and_close_have_the_same_cause(self, cause: Any) -> None:
        fault, _, name, why = cause
        reason = self.waiting(fault).core.wait_causes.cause()
        assert reason is not None
        assert (reason.name, reason.message.startswith(why)) == (name, True)

    @pytest.mark.parametrize("ends", [events.CommitCalled])
    def test_timed_out_commit_names_the_cause(self, cause: Any, ends: Any) -> None:
        fault, _, name, why = cause
        rig = rig_with_long_timeout(**{"transactional.id": "t", "reconnect.backoff.ms": 60_000, "reconnect.backoff.max.ms": 60_000})
        rig.call(events.InitTransactionsCalled, "init")
        rig.call(events.BeginTransactionCalled, "begin")
        fault(rig)
        rig.send("a", ORDERS_1)
        rig.call(ends, "commit", deadline_ms=rig.steady_ms + 5_000)
        rig.sleep(5_000)
        error = rig.calls["commit"]
        assert isinstance(error, TimeoutException)
        assert why in str(error)
        assert isinstance(error.__cause__, KafkaException)
        assert error.__cause__.name == name


def test_request_without_response_is_logged() -> None:
    rig = rig_with_long_timeout()
    rig.send("a")
    rig.sleep(FIRST_LINE_MS)
    assert rig.reports == [
        "orders-0 at 127.0.0.1:9092, for 2500 ms: no response yet; "
        "1 record without an outcome, retrying for up to 117500 ms more (delivery.timeout.ms)"
    ]


def test_batches_behind_others_in_flight_are_not_logged() -> None:
    rig = rig_with_long_timeout()
    for value in "abcdefgh":
        rig.send(value)
    for _ in "abcdefgh":
        rig.sleep(FIRST_LINE_MS - EVERY_MS)
        rig.answer(OK)
    assert rig.reports == []


def test_second_wait_is_logged_within_3_s_after_the_first_ended() -> None:
    rig = rig_with_long_timeout()
    for value in "ab":
        rig.send(value)
        respond_for(rig, FIRST_LINE_MS + EVERY_MS)
        rig.answer(OK)
        rig.sleep(EVERY_MS)
    assert len(rig.reports) == 2


def test_unreachable_advertised_address_fails_with_the_hint() -> None:
    rig = Rig(options={"delivery.timeout.ms": 3_000, "request.timeout.ms": 2_000})
    rig.scripted[MetadataRequest] = [metadata({"orders": 2}, {5: 9}, leader_id=5)] * 10_000
    refresh_metadata(rig)
    rig.send("a")
    rig.answer(NOT_SENT)
    rig.sleep(4_000)
    assert ADVERTISED_HINT in str(rig.error("a"))
