"""Topics by their ids (KIP-516): one that is deleted and made anew under its name is noticed, and gets what waits, in order, once."""

from __future__ import annotations

from uuid import UUID

import pytest

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.producer.core import events
from chaffinch.protocol.messages.metadata import MetadataRequest
from tests.producer.core.rig import LOST, OK, ORDERS_0, ORDERS_1, Answer, Rig

OLD, NEW = UUID(int=1), UUID(int=2)


def ids_sent(rig: Rig) -> list[int]:
    """The ids in the open requests."""
    return [request.message.topics[0].topic_id.int for request in rig.open]


@pytest.mark.parametrize(
    ("topic_id", "options", "transactions", "version"),
    [
        (OLD, {}, 2, 13),
        (OLD, {"enable.idempotence": False, "acks": 1}, 2, 13),
        (UUID(int=0), {}, 2, None),
        (OLD, {"transactional.id": "t"}, 0, 11),
        (OLD, {"transactional.id": "t"}, 1, 11),
        (OLD, {"transactional.id": "t"}, 2, 13),
        (UUID(int=0), {"transactional.id": "t"}, 2, 12),
    ],
    ids=[
        "ids",
        "not idempotent",
        "brokers know no ids",
        "transactions of version 0",
        "in a transaction the broker would add partitions",
        "in a transaction the broker adds partitions",
        "in a transaction the broker adds partitions by name",
    ],
)
def test_which_version_is_asked_for(topic_id: UUID, options: dict[str, object], transactions: int, version: int | None) -> None:
    rig = Rig(options=options, topic_id=topic_id)
    rig.connect(transactions)
    if rig.core.transaction is not None:
        rig.call(events.InitTransactionsCalled, "init")
        rig.call(events.BeginTransactionCalled, "begin")
    rig.send("a")
    assert rig.open[0].version_max == version
    assert rig.open[0].message.topics[0].name == "orders"


@pytest.mark.parametrize("code", [codes.UNKNOWN_TOPIC_ID, codes.INCONSISTENT_TOPIC_ID])
def test_what_is_in_flight_goes_to_the_topic_made_anew_at_once_and_in_order(code: ErrorCode) -> None:
    rig = Rig(options={"retry.backoff.ms": 10_000, "retry.backoff.max.ms": 10_000}, topic_id=OLD)
    rig.sleep(15_000)  # Since metadata was last asked for.
    rig.send("z")
    rig.answer(OK)
    for value in "abc":
        rig.send(value)
    assert ids_sent(rig) == [1, 1, 1]
    rig.topic_id = NEW
    rig.hold.add(MetadataRequest)
    for _ in "abc":
        rig.answer(Answer(code))
    assert rig.open == [], "nobody knows the new one yet"
    rig.release()
    for _ in "abc":
        assert ids_sent(rig) == [2], "its broker knows no producer: one at a time"
        rig.answer(OK)
    assert rig.trace == ["z@0/0", *["a@1/0", "b@2/0", "c@3/0"] * 2]
    assert all(fate.isdigit() for fate in rig.fate("abc"))


def test_answers_of_the_old_one_do_not_vouch_for_the_new_one() -> None:
    rig = Rig(topic_id=OLD)
    rig.send("z")
    rig.answer(OK)
    rig.send("a")
    rig.topic_id = NEW
    rig.step(events.TopicWanted(topic="orders", is_stale=True))
    rig.sleep(2_000)
    rig.answer(OK)
    rig.send("b")
    rig.send("c")
    assert ids_sent(rig) == [2]
    rig.answer(OK)
    rig.send("d")
    assert rig.trace == ["z@0/0", "a@1/0", "b@2/0", "c@3/0", "d@4/0"]


def test_a_lost_answer_of_the_old_one_goes_again_to_the_new_one() -> None:
    rig = Rig(topic_id=OLD)
    rig.sleep(15_000)  # Since metadata was last asked for.
    rig.send("ab")
    rig.topic_id = NEW
    rig.answer(LOST)
    assert ids_sent(rig) == [2]
    rig.answer(OK)
    assert rig.fate("ab") == ["0", "1"]


@pytest.mark.parametrize(
    ("produce_version", "again"),
    [(12, ["cd@3/0", "b@0/1"]), (13, ["b@0/1", "cd@1/1"])],
    ids=["by name", "by id"],
)
@pytest.mark.parametrize("outcome", [LOST, Answer(codes.REQUEST_TIMED_OUT)], ids=["no answer", "written perhaps"])
def test_what_may_be_in_the_new_one_keeps_its_number(outcome: Answer | str, produce_version: int, again: list[str]) -> None:
    """A request by name may have reached the topic made anew before we heard of it; under another number it would be stored twice."""
    rig = Rig(topic_id=OLD, produce_version=produce_version)
    rig.sleep(15_000)  # Since metadata was last asked for.
    rig.send("z")
    rig.answer(OK)
    rig.send("ab")
    rig.send("cd")
    rig.answer(Answer(codes.INVALID_RECORD, culprits=[0]))
    rig.topic_id = NEW
    rig.step(events.TopicWanted(topic="orders", is_stale=True))
    rig.answer(outcome)
    rig.sleep(1_000)
    for _ in again:
        rig.answer(OK)
    assert rig.trace == ["z@0/0", "ab@1/0", "cd@3/0", *again]


def test_a_partition_that_the_new_one_has_not_expires_and_the_others_go_on() -> None:
    rig = Rig(options={"delivery.timeout.ms": 30_000, "request.timeout.ms": 10_000}, topic_id=OLD)
    rig.send("a", ORDERS_0)
    rig.send("b", ORDERS_1)
    rig.topic_id, rig.partitions = NEW, 1
    rig.answer(Answer(codes.UNKNOWN_TOPIC_ID))
    rig.answer(Answer(codes.UNKNOWN_TOPIC_ID))
    rig.sleep(2_000)
    rig.answer(OK)
    rig.sleep(30_000)
    assert rig.fate("ab") == ["0", "TimeoutException no"]
