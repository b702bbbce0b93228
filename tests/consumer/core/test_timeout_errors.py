"""A call that times out names what it waited for."""

import pytest

from chaffinch import errors
from chaffinch.client.addresses import Address
from chaffinch.client.connections import Disconnected, RequestFailed
from chaffinch.client.effects import FailCall
from chaffinch.consumer.core.call_errors import names_of
from chaffinch.consumer.core.lookups import OffsetsCall
from chaffinch.consumer.core.metadata_watch import TopicCall
from chaffinch.errors import codes
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tests.consumer.core.rig import Rig

B = Address("b", 1)
LIMIT = "within 3000 ms (timeout)"


def test_timeout_names_the_silent_broker() -> None:
    rig = Rig(**{"group.id": None})
    rig.core.lookups.add(OffsetsCall("mine", {TopicPartition("t", 0): -1}, rig.steady_ms + 3_000))
    rig.step()
    rig.answer_metadata()
    rig.advance(3_000)
    [error] = rig.errors
    with pytest.raises(
        errors.TimeoutException,
        match="in time, b:1 has not responded yet; waiting for b:1, which leads t-0: no response yet; it may",
    ):
        raise error


class TestTimeoutOfCalls:
    """Where nothing is known of the cluster, and where its leader or coordinator cannot be reached."""

    def start(self, rig: Rig, call: str) -> None:
        tps, until_ms = [TopicPartition("t", 0), TopicPartition("t", 1)], rig.steady_ms + 3_000
        commits = rig.group.commits
        match call:
            case "offsets":
                rig.core.lookups.add(OffsetsCall(call, dict.fromkeys(tps, -1), until_ms, LIMIT))
            case "partitions":
                rig.core.topic_calls.add(TopicCall(call, "t", until_ms, LIMIT))
            case "committed":
                commits.committed.look_up(tps, until_ms, call, LIMIT)
            case "commit":
                offsets = dict.fromkeys(tps, OffsetAndMetadata(1))

                def done(error: errors.KafkaException | None) -> None:
                    assert error is not None
                    rig.done.append(FailCall(call=call, error=error))

                rig.group.commits.commit(offsets, until_ms, done, retries=True, limit=LIMIT)
        rig.step()

    def error(self, rig: Rig) -> str:
        [error] = rig.errors
        return str(error)

    @pytest.mark.parametrize(
        ("call", "text"),
        [
            ("offsets", "ListOffsets: REQUEST_TIMED_OUT (7): no offset of t-0, t-1 was received"),
            ("partitions", "REQUEST_TIMED_OUT (7): the partitions of topic 't' were not received"),
            ("committed", "OffsetFetch: REQUEST_TIMED_OUT (7): group 'g': the committed offsets of t-0, t-1 were not received"),
            ("commit", "OffsetCommit: REQUEST_TIMED_OUT (7): group 'g': offsets of t-0, t-1 were not committed"),
        ],
    )
    def test_no_broker_is_reachable(self, call: str, text: str) -> None:
        rig = Rig()
        self.start(rig, call)
        for _ in range(30):
            waiting, rig.waiting = rig.waiting, []
            lost = [RequestFailed(address=B, token=sent.token, reason="refused", was_sent=False) for sent in waiting]
            rig.step(*lost, Disconnected(address=B, reason="refused"))
            rig.advance(100)
        assert self.error(rig).startswith(f"{text} {LIMIT}: no broker reachable at b:1 (refused)")

    def test_leader_is_silent(self) -> None:
        rig = Rig(**{"bootstrap.servers": "c:2"})
        self.start(rig, "offsets")
        rig.answer_metadata()
        rig.fail(ListOffsetsRequest)
        rig.advance(3_000)
        assert (
            f"was received {LIMIT}, b:1 has not responded yet; the last error was NETWORK_EXCEPTION: b:1: closed by the broker"
            in self.error(rig)
        )

    def test_partition_has_no_leader(self) -> None:
        rig = Rig()
        self.start(rig, "offsets")
        rig.partitions = 1
        rig.answer_metadata()
        rig.advance(2_900)
        for sent in rig.pending(ListOffsetsRequest):
            rig.answer(sent, ListOffsetsResponse())
        rig.advance(100)
        assert f"was received {LIMIT}, no leader is known for t-1" in self.error(rig)

    @pytest.mark.parametrize(("call", "verb"), [("committed", "received"), ("commit", "committed")])
    def test_coordinator_is_silent(self, call: str, verb: str) -> None:
        rig = Rig()
        self.start(rig, call)
        rig.find_coordinator()
        rig.advance(3_000)
        assert f"were not {verb} {LIMIT}, the coordinator b:1 has not responded yet" in self.error(rig)


def test_names_of_many_partitions_are_shortened() -> None:
    assert names_of([TopicPartition("t", number) for number in range(9)]) == "t-0, t-1, t-2, t-3, t-4 and 4 more"


def test_position_timeout_names_the_coordinator() -> None:
    rig = Rig()
    rig.core.assign([TopicPartition("t", 0)], rig.steady_ms)
    rig.step()
    rig.answer_metadata()
    rig.find_coordinator(code=codes.COORDINATOR_NOT_AVAILABLE.number)
    error = rig.core.context.timeout_error("the position could not be looked up in time")
    assert "waiting for the coordinator of group 'g': COORDINATOR_NOT_AVAILABLE (looking for the coordinator of group 'g':" in str(error)
    assert isinstance(error.__cause__, errors.CoordinatorNotAvailableException)
    of_leaders = rig.core.context.timeout_error("the offsets were not received in time", uses_group=False)
    assert "waiting for the coordinator" not in str(of_leaders)


def test_same_error_is_raised_once() -> None:
    rig = Rig()
    error = errors.GroupAuthorizationException("no")
    rig.core.context.fail(error)
    rig.core.context.fail(error)
    with pytest.raises(errors.GroupAuthorizationException):
        rig.core.raise_error()
    rig.core.raise_error()
