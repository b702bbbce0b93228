"""What brokers refuse for now is sent again for minutes, and `send` raises nothing: the log says so, and why, once in a while."""

import pytest

from chaffinch.client.wait_log import FIRST_LINE_MS, FIRST_PAUSE_MS
from chaffinch.errors import codes
from chaffinch.errors.exceptions import TEXT_CHARACTERS_MAX
from chaffinch.identifiers import TopicPartition
from tests.producer.core.rig import LOST, NOT_SENT, OK, ORDERS_0, Answer, Rig

TOO_FEW = Answer(codes.NOT_ENOUGH_REPLICAS, message="1 of 2 replicas is in sync.")
TIMEOUT_MS = 120_000
EVERY_MS = 500


def refused_for(rig: Rig, ms: int, answer: Answer | str = TOO_FEW, place: TopicPartition = ORDERS_0) -> None:
    """The open batch gets this answer each time, twice a second."""
    until_ms = rig.now_ms + ms
    while rig.now_ms < until_ms:
        rig.answer(answer)
        rig.sleep(EVERY_MS)
        rig.now_ms = min(rig.now_ms, until_ms)


def patient(**options: object) -> Rig:
    return Rig(options={"delivery.timeout.ms": TIMEOUT_MS, "retry.backoff.ms": 100, "retry.backoff.max.ms": 100, **options})


def test_after_seconds_it_is_said_what_is_waited_for_where_why_and_for_how_long() -> None:
    rig = patient()
    rig.send("ab")
    refused_for(rig, FIRST_LINE_MS)
    assert rig.reports == []
    rig.answer(TOO_FEW)
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
    refused_for(rig, FIRST_LINE_MS + FIRST_PAUSE_MS)
    assert len(rig.reports) == 1
    refused_for(rig, 2 * FIRST_PAUSE_MS)
    assert len(rig.reports) == 2
    refused_for(rig, EVERY_MS)
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
def test_what_was_never_sent_says_nothing_about_a_refusal(answer: str) -> None:
    rig = patient()
    rig.send("a")
    refused_for(rig, FIRST_LINE_MS + 2 * EVERY_MS, answer)
    assert len(rig.reports) == (answer == LOST)


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
    refused_for(rig, FIRST_LINE_MS)
    assert rig.reports == []
