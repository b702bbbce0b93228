"""While no broker answers `poll` gives nothing and raises nothing; the log says why, once."""

import pytest

from chaffinch import errors
from chaffinch.client.addresses import Address
from chaffinch.client.connections import Connected, Disconnected
from chaffinch.consumer.core.lookups import OffsetsCall
from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from tests.consumer.core.rig import Rig

B, C = Address("b", 1), Address("c", 2)


def lose(rig: Rig, address: Address, after_ms: int) -> None:
    rig.advance(after_ms)
    rig.step(Disconnected(address=address, reason="refused"))


def test_it_is_said_once_an_outage():
    rig = Rig()
    for _ in range(5):
        lose(rig, B, after_ms=600)
    assert rig.reports == ["no broker reachable at b:1 (refused); tried for 1200 ms; the consumer goes on trying"]
    rig.advance(5_000)
    rig.assign(0)
    for _ in range(5):
        lose(rig, B, after_ms=600)
    assert len(rig.reports) == 2


def test_a_broker_that_is_back_soon_is_no_outage():
    rig = Rig()
    for _ in range(3):
        lose(rig, B, after_ms=300)
    assert rig.reports == []


def test_a_broker_that_hangs_up_after_the_greeting_is_one():
    rig = Rig()
    for _ in range(4):
        rig.step(Connected(address=B))
        lose(rig, B, after_ms=600)
    assert len(rig.reports) == 1


def test_all_that_are_known_have_to_fail():
    rig = Rig(**{"bootstrap.servers": "b:1,c:2"})
    for _ in range(4):
        lose(rig, B, after_ms=600)
    assert rig.reports == []
    lose(rig, C, after_ms=600)
    assert rig.reports == ["no broker reachable at b:1 (refused), c:2 (refused); tried for 2400 ms; the consumer goes on trying"]


def test_who_is_not_answered_is_told_so():
    rig = Rig(**{"group.id": None})
    rig.core.ask_offsets(OffsetsCall("mine", {TopicPartition("t", 0): -1}, rig.now_ms + 3_000))
    rig.step()
    rig.tell_metadata()
    rig.advance(3_000)
    [failed] = rig.done
    with pytest.raises(errors.TimeoutException, match="no offset of t-0 was told in time; it may"):
        raise failed.error


def test_an_address_is_said_once():
    rig = Rig()
    for _ in range(3):
        rig.advance(600)
        rig.step(Disconnected(address=B, reason="b:1: login of user 'alice' by PLAIN: refused"))
    assert rig.reports[0].startswith("no broker reachable at b:1 (login of user 'alice' by PLAIN: refused); tried")


def test_a_position_that_waits_for_the_coordinator_says_so():
    rig = Rig()
    rig.core.assign([TopicPartition("t", 0)], rig.now_ms)
    rig.step()
    rig.tell_metadata()
    rig.find_coordinator(code=codes.COORDINATOR_NOT_AVAILABLE.number)
    error = rig.core.unreachable("the position was not told in time")
    assert "the last error was COORDINATOR_NOT_AVAILABLE: looking for the coordinator of group 'g':" in str(error)
