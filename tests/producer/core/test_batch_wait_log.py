"""BatchWaitLog: batches that wait for minutes are logged with partition, broker and cause; errors of expired batches say the same."""

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


def refused_for(rig: Rig, ms: int, answer: Answer | str = TOO_FEW, tp: TopicPartition = ORDERS_0) -> None:
    """The open batch gets this answer each time, twice a second."""
    until_ms = rig.steady_ms + ms
    while rig.steady_ms < until_ms:
        rig.answer(answer)
        rig.sleep(EVERY_MS)
        rig.steady_ms = min(rig.steady_ms, until_ms)


def patient(**options: object) -> Rig:
    return Rig(options={"delivery.timeout.ms": TIMEOUT_MS, "retry.backoff.ms": 100, "retry.backoff.max.ms": 100, **options})


def test_long_wait_is_logged_with_cause_place_and_limit() -> None:
    rig = patient()
    rig.send("ab")
    refused_for(rig, FIRST_LINE_MS - EVERY_MS)
    assert rig.reports == []
    refused_for(rig, EVERY_MS)
    assert rig.reports == [
        "orders-0 at 127.0.0.1:9092, for 2500 ms: NOT_ENOUGH_REPLICAS (1 of 2 replicas is in sync); "
        "2 records without an outcome, still asking, for up to 117500 ms more (delivery.timeout.ms)"
    ]


def test_a_broker_forges_no_lines_of_the_log() -> None:
    rig = patient()
    rig.send("ab")
    refused_for(rig, FIRST_LINE_MS + EVERY_MS, Answer(codes.NOT_ENOUGH_REPLICAS, message="x\nWARNING forged \x1b[2J" + "y" * 30_000))
    (line,) = rig.reports
    assert "NOT_ENOUGH_REPLICAS (x WARNING forged \\x1b[2Jyyy" in line
    assert line.isprintable()
    assert len(line) < TEXT_CHARACTERS_MAX + 300


def test_lines_about_the_same_refusal_come_after_growing_pauses() -> None:
    rig = patient()
    rig.send("ab")
    refused_for(rig, FIRST_LINE_MS + FIRST_PAUSE_MS - EVERY_MS)
    assert len(rig.reports) == 1
    refused_for(rig, 2 * FIRST_PAUSE_MS)
    assert len(rig.reports) == 2
    refused_for(rig, 2 * EVERY_MS)
    assert len(rig.reports) == 3


def test_many_partitions_are_one_line() -> None:
    rig = patient()
    rig.send("ab")
    rig.send("c", TopicPartition("orders", 1))
    refused_for(rig, FIRST_LINE_MS + EVERY_MS)
    rig.answer(TOO_FEW)
    (line,) = rig.reports
    assert "; 3 records without an outcome" in line


@pytest.mark.parametrize("answer", [LOST, NOT_SENT])
def test_unanswered_request_is_named_with_its_address(answer: str) -> None:
    rig = patient()
    rig.send("a")
    refused_for(rig, FIRST_LINE_MS + EVERY_MS, answer)
    (line,) = rig.reports
    assert line.startswith(f"orders-0 at 127.0.0.1:9092, for 2500 ms: NETWORK_EXCEPTION (127.0.0.1:9092: {answer}); 1 record without")


def test_a_broker_that_takes_it_soon_is_not_spoken_of() -> None:
    rig = patient()
    for value in "abc":
        rig.send(value)
        refused_for(rig, FIRST_LINE_MS - EVERY_MS)
        rig.answer(OK)
    assert rig.reports == []


def test_how_long_records_lingered_does_not_count() -> None:
    rig = patient(**{"linger.ms": 10_000})
    rig.append("a")
    rig.sleep(11_000)
    refused_for(rig, FIRST_LINE_MS - EVERY_MS)
    assert rig.reports == []


def unknown_topic() -> MetadataResponse:
    answer = metadata({}, {1: 9092})
    answer.topics = [MetadataResponseTopic(name="orders", error_code=codes.UNKNOWN_TOPIC_OR_PARTITION.number)]
    return answer


def leaderless(rig: Rig) -> None:
    """The only replica's node is stopped: metadata has no leader for the partitions."""
    rig.leaders = dict.fromkeys(rig.leaders, -1)
    hear(rig)


def shrunk(rig: Rig) -> None:
    """The topic came back with one partition, on brokers that know no topic ids."""
    rig.partitions = 1
    hear(rig)


def gone(rig: Rig) -> None:
    """The topic was deleted."""
    rig.scripted[MetadataRequest] = [unknown_topic()] * 10_000
    hear(rig)


def unreachable(rig: Rig) -> None:
    """The advertised address does not answer, the bootstrap address does."""
    moved = metadata({"orders": 2}, {5: 9}, leader_id=5)
    rig.scripted[MetadataRequest] = [moved] * 10_000
    hear(rig)
    rig.step(Disconnected(address=Address("127.0.0.1", 9), reason="connection refused"))


def hear(rig: Rig) -> None:
    rig.step(events.TopicRequested(topic="orders", is_stale=True))
    rig.sleep(200)


# What happens; the place that is named, the code, and words of the reason.
CAUSES = {
    "no leader": (leaderless, "orders-1", "LEADER_NOT_AVAILABLE", "orders-1 has no leader: no node that has its records is running"),
    "fewer partitions": (
        shrunk,
        "orders-1",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "topic 'orders' has 1 partition, there is no partition 1",
    ),
    "no topic": (gone, "orders-1", "UNKNOWN_TOPIC_OR_PARTITION", "no broker knows the topic 'orders'"),
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


class TestWhatCannotBeSent:
    def waiting(self, happens: Any, **options: Any) -> Rig:
        """Two records that nothing can be done for, since 200 ms."""
        rig = patient(**{"reconnect.backoff.ms": 60_000, "reconnect.backoff.max.ms": 60_000, **options})
        rig.hold.add(InitProducerIdRequest)
        rig.send("ab", ORDERS_1)
        happens(rig)
        rig.release()
        return rig

    def test_one_line_within_3_s_then_growing_pauses(self, cause: Any) -> None:
        happens, tp, name, why = cause
        rig = self.waiting(happens)
        rig.sleep(2_200)
        assert rig.reports == []
        rig.sleep(600)
        (line,) = rig.reports
        assert line.startswith(f"{tp}, for 2500 ms: {name} ({why}")
        assert line.endswith("; 2 records without an outcome, still asking, for up to 117500 ms more (delivery.timeout.ms)")
        for pause_ms, count in ((10_000, 2), (20_000, 3), (40_000, 4)):
            rig.sleep(pause_ms)
            assert len(rig.reports) == count

    def test_records_that_expire_name_it(self, cause: Any) -> None:
        happens, _, name, why = cause
        rig = self.waiting(happens)
        rig.sleep(TIMEOUT_MS)
        error = rig.error("a")
        assert isinstance(error, TimeoutException)
        assert f"{name} ({why}" in str(error)
        assert isinstance(error.__cause__, KafkaException)
        assert error.__cause__.name == name

    def test_records_that_close_gives_up_name_it(self, cause: Any) -> None:
        happens, _, name, why = cause
        rig = self.waiting(happens)
        rig.step(events.CloseCalled(call="close", deadline_ms=rig.steady_ms + 1_000))
        rig.sleep(1_000)
        error = rig.error("a")
        assert f"it waited for: {name} ({why}" in str(error)
        assert isinstance(error.__cause__, KafkaException)
        assert error.__cause__.name == name

    def test_what_flush_and_close_say_is_the_same(self, cause: Any) -> None:
        happens, _, name, why = cause
        reason = self.waiting(happens).core.wait_causes.cause()
        assert reason is not None
        assert (reason.name, reason.message.startswith(why)) == (name, True)

    @pytest.mark.parametrize("ends", [events.CommitCalled])
    def test_a_commit_that_times_out_names_it(self, cause: Any, ends: Any) -> None:
        happens, _, name, why = cause
        rig = patient(**{"transactional.id": "t", "reconnect.backoff.ms": 60_000, "reconnect.backoff.max.ms": 60_000})
        rig.call(events.InitTransactionsCalled, "init")
        rig.call(events.BeginTransactionCalled, "begin")
        happens(rig)
        rig.send("a", ORDERS_1)
        rig.call(ends, "commit", deadline_ms=rig.steady_ms + 5_000)
        rig.sleep(5_000)
        error = rig.calls["commit"]
        assert isinstance(error, TimeoutException)
        assert why in str(error)
        assert isinstance(error.__cause__, KafkaException)
        assert error.__cause__.name == name


def test_a_request_without_an_answer_is_reported() -> None:
    rig = patient()
    rig.send("a")
    rig.sleep(FIRST_LINE_MS)
    assert rig.reports == [
        "orders-0 at 127.0.0.1:9092, for 2500 ms: no answer yet; "
        "1 record without an outcome, still asking, for up to 117500 ms more (delivery.timeout.ms)"
    ]


def test_batches_behind_others_that_are_on_their_way_are_not_reported() -> None:
    rig = patient()
    for value in "abcdefgh":
        rig.send(value)
    for _ in "abcdefgh":
        rig.sleep(FIRST_LINE_MS - EVERY_MS)
        rig.answer(OK)
    assert rig.reports == []


def test_each_wait_is_reported_within_3_s_again_after_one_that_is_over() -> None:
    rig = patient()
    for value in "ab":
        rig.send(value)
        refused_for(rig, FIRST_LINE_MS + EVERY_MS)
        rig.answer(OK)
        rig.sleep(EVERY_MS)
    assert len(rig.reports) == 2


def test_a_request_that_did_not_get_to_an_advertised_address_fails_with_the_hint() -> None:
    rig = Rig(options={"delivery.timeout.ms": 3_000, "request.timeout.ms": 2_000})
    rig.scripted[MetadataRequest] = [metadata({"orders": 2}, {5: 9}, leader_id=5)] * 10_000
    hear(rig)
    rig.send("a")
    rig.answer(NOT_SENT)
    rig.sleep(4_000)
    assert ADVERTISED_HINT in str(rig.error("a"))
