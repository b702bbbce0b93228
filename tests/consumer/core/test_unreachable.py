"""A call that times out names what it waited for."""

import pytest

from chaffinch import errors
from chaffinch.client.addresses import Address
from chaffinch.client.connections import Disconnected, RequestFailed
from chaffinch.client.effects import FailCall
from chaffinch.consumer.core.call_errors import names_of
from chaffinch.consumer.core.lookups import OffsetsCall
from chaffinch.consumer.core.topic_watch import TopicCall
from chaffinch.errors import codes
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tests.consumer.core.rig import Rig

B = Address("b", 1)
LIMIT = "within 3000 ms (timeout)"


def test_who_is_not_answered_is_told_so() -> None:
    rig = Rig(**{"group.id": None})
    rig.core.lookups.ask(OffsetsCall("mine", {TopicPartition("t", 0): -1}, rig.steady_ms + 3_000))
    rig.step()
    rig.tell_metadata()
    rig.advance(3_000)
    [error] = rig.errors
    with pytest.raises(
        errors.TimeoutException,
        match="in time, b:1 has not answered yet; waiting for b:1, which leads t-0: no response yet; it may",
    ):
        raise error


class TestACallWhoseTimeIsOverSaysWhy:
    """Where nothing is known of the cluster, and where its leader or coordinator cannot be reached."""

    def ask(self, rig: Rig, call: str) -> None:
        places, until_ms = [TopicPartition("t", 0), TopicPartition("t", 1)], rig.steady_ms + 3_000
        commits = rig.group.commits
        match call:
            case "offsets":
                rig.core.lookups.ask(OffsetsCall(call, dict.fromkeys(places, -1), until_ms, LIMIT))
            case "partitions":
                rig.core.topic_calls.ask(TopicCall(call, "t", until_ms, LIMIT))
            case "committed":
                commits.committed.look_up(places, until_ms, call, LIMIT)
            case "commit":
                offsets = dict.fromkeys(places, OffsetAndMetadata(1))

                def done(error: errors.KafkaException | None) -> None:
                    assert error is not None
                    rig.done.append(FailCall(call=call, error=error))

                rig.group.commits.commit(offsets, until_ms, done, retries=True, limit=LIMIT)
        rig.step()

    def error(self, rig: Rig) -> str:
        [error] = rig.errors
        return str(error)

    @pytest.mark.parametrize(
        ("call", "what"),
        [
            ("offsets", "ListOffsets: REQUEST_TIMED_OUT (7): no offset of t-0, t-1 was told"),
            ("partitions", "REQUEST_TIMED_OUT (7): the partitions of topic 't' were not told"),
            ("committed", "OffsetFetch: REQUEST_TIMED_OUT (7): group 'g': the committed offsets of t-0, t-1 were not told"),
            ("commit", "OffsetCommit: REQUEST_TIMED_OUT (7): group 'g': offsets of t-0, t-1 were not committed"),
        ],
    )
    def test_no_broker(self, call: str, what: str) -> None:
        rig = Rig()
        self.ask(rig, call)
        for _ in range(30):
            waiting, rig.waiting = rig.waiting, []
            lost = [RequestFailed(address=B, token=sent.token, reason="refused", was_sent=False) for sent in waiting]
            rig.step(*lost, Disconnected(address=B, reason="refused"))
            rig.advance(100)
        assert self.error(rig).startswith(f"{what} {LIMIT}: no broker reachable at b:1 (refused)")

    def test_the_leader(self) -> None:
        rig = Rig(**{"bootstrap.servers": "c:2"})
        self.ask(rig, "offsets")
        rig.tell_metadata()
        rig.fail(ListOffsetsRequest)
        rig.advance(3_000)
        assert f"was told {LIMIT}, b:1 has not answered yet; the last error was NETWORK_EXCEPTION: b:1: closed by the broker" in self.error(
            rig
        )

    def test_no_leader(self) -> None:
        rig = Rig()
        self.ask(rig, "offsets")
        rig.partitions = 1
        rig.tell_metadata()
        rig.advance(2_900)
        for sent in rig.pending(ListOffsetsRequest):
            rig.answer(sent, ListOffsetsResponse())
        rig.advance(100)
        assert f"was told {LIMIT}, no leader is known of t-1" in self.error(rig)

    @pytest.mark.parametrize(("call", "verb"), [("committed", "told"), ("commit", "committed")])
    def test_a_silent_coordinator(self, call: str, verb: str) -> None:
        rig = Rig()
        self.ask(rig, call)
        rig.find_coordinator()
        rig.advance(3_000)
        assert f"were not {verb} {LIMIT}, the coordinator b:1 has not answered yet" in self.error(rig)


def test_a_few_of_many_partitions_are_named() -> None:
    assert names_of([TopicPartition("t", number) for number in range(9)]) == "t-0, t-1, t-2, t-3, t-4 and 4 more"


def test_a_position_that_waits_for_the_coordinator_says_so() -> None:
    rig = Rig()
    rig.core.assign([TopicPartition("t", 0)], rig.steady_ms)
    rig.step()
    rig.tell_metadata()
    rig.find_coordinator(code=codes.COORDINATOR_NOT_AVAILABLE.number)
    error = rig.core.wiring.time_out("the position was not told in time")
    assert "waiting for the coordinator of group 'g': COORDINATOR_NOT_AVAILABLE (looking for the coordinator of group 'g':" in str(error)
    assert isinstance(error.__cause__, errors.CoordinatorNotAvailableException)
    of_leaders = rig.core.wiring.time_out("the offsets were not told in time", uses_group=False)
    assert "waiting for the coordinator" not in str(of_leaders)


def test_the_same_error_is_raised_once() -> None:
    rig = Rig()
    error = errors.GroupAuthorizationException("no")
    rig.core.wiring.fail(error)
    rig.core.wiring.fail(error)
    with pytest.raises(errors.GroupAuthorizationException):
        rig.core.raise_error()
    rig.core.raise_error()
