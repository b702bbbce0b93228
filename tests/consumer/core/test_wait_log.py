"""While `poll` returns nothing, the log names within 3 s what it waits for, then again after growing pauses."""

from typing import Any

import pytest

from chaffinch.client.addresses import Address
from chaffinch.client.connections import Connected, Disconnected, RequestFailed
from chaffinch.consumer.core.context import LANE_FETCH, LANE_GROUP
from chaffinch.consumer.core.lookups import OffsetsCall
from chaffinch.consumer.core.membership_states import State
from chaffinch.consumer.core.positions import PartitionState
from chaffinch.consumer.core.wait_log import ATTEMPTS_GAP_MS_MAX, PendingResponses
from chaffinch.errors import KafkaException, codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.protocol.messages.fetch import FetchRequest, FetchResponse
from chaffinch.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from chaffinch.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from chaffinch.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from chaffinch.protocol.messages.leave_group import LeaveGroupRequest
from chaffinch.protocol.messages.list_offsets import ListOffsetsRequest
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from chaffinch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from chaffinch.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse, OffsetFetchResponseGroup
from tests.consumer.core.rig import Rig, number_of, records

BOOTSTRAP, NODE = Address("b", 1), Address("n", 9)
ADVERTISED = "brokers advertise this address (advertised.listeners), it is not in bootstrap.servers"


class WaitRig(Rig):
    """Answers metadata and coordinator requests by itself. The one node is advertised at `n:9`, the bootstrap address is `b:1`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.leader = 0
        self.topic_code = 0
        self.coordinator_code = 0
        self.refuses = {NODE}
        """Listeners that refuse connections."""
        self.is_silent = False
        """Whether connections to the node are neither accepted nor refused."""

    def metadata(self, code: int = 0) -> MetadataResponse:
        answer = super().metadata(code or self.topic_code)
        answer.brokers = [MetadataResponseBroker(node_id=0, host="n", port=9)]
        for partition in answer.topics[0].partitions:
            partition.leader_id = self.leader
        return answer

    def answer_reachable(self) -> None:
        for sent in list(self.waiting):
            listener = sent.address.first_lane
            if listener in self.refuses:
                if not (self.is_silent and listener == NODE):
                    self.waiting.remove(sent)
                    failed = RequestFailed(address=sent.address, token=sent.token, reason="refused", was_sent=False)
                    self.step(failed, Disconnected(address=sent.address, reason="refused"))
            elif isinstance(sent.message, MetadataRequest):
                self.waiting.remove(sent)
                self.answer(sent, self.metadata())
            elif isinstance(sent.message, FindCoordinatorRequest):
                self.waiting.remove(sent)
                found = Coordinator(key="g", node_id=0, host="n", port=9, error_code=self.coordinator_code)
                self.answer(sent, FindCoordinatorResponse(coordinators=[found]))

    def advance_in_steps(self, by_ms: int) -> None:
        until_ms = self.steady_ms + by_ms
        while self.steady_ms < until_ms:
            self.answer_reachable()
            self.advance(min(50, until_ms - self.steady_ms))
        self.answer_reachable()

    def join(self) -> None:
        self.core.subscribe(["t"])
        self.poll()

    def answer_assignment(self, *numbers: int) -> None:
        self.core.assign([TopicPartition("t", number) for number in numbers], self.steady_ms)
        self.poll()


def groupless_rig(**options: Any) -> WaitRig:
    return WaitRig(**{"group.id": None, **options})


@pytest.mark.parametrize(("is_silent", "why"), [(False, "refused"), (True, "no connection yet")])
class TestAdvertisedAddress:
    """The bootstrap address answers, the address that it names does not."""

    def test_coordinator(self, is_silent: bool, why: str) -> None:
        world = WaitRig()
        world.is_silent = is_silent
        world.join()
        world.advance_in_steps(3_000)
        (line,) = world.reports
        assert line == f"n:9, which coordinates group 'g', for 2500 ms: {why}; {ADVERTISED}; retrying without a limit"
        assert world.poll() == []

    def test_leader(self, is_silent: bool, why: str) -> None:
        world = groupless_rig()
        world.is_silent = is_silent
        world.answer_assignment(0, 1)
        world.advance_in_steps(3_000)
        (line,) = world.reports
        assert line == f"n:9, which leads t-0, t-1, for 2500 ms: {why}; {ADVERTISED}; retrying without a limit"

    def test_timeout_error_names_it(self, is_silent: bool, why: str) -> None:
        world = WaitRig()
        world.is_silent = is_silent
        tp = TopicPartition("t", 0)
        errors: list[KafkaException | None] = []
        world.core.lookups.add(OffsetsCall("offsets", {tp: -1}, world.steady_ms + 4_000))
        world.group.commits.committed.look_up([tp], world.steady_ms + 4_000, "committed")
        world.group.commits.commit({tp: OffsetAndMetadata(1)}, world.steady_ms + 4_000, errors.append, retries=True)
        world.answer_assignment(0)
        world.advance_in_steps(4_000)
        errors += world.errors
        errors.append(world.core.context.timeout_error("the position of t-0 could not be looked up in time", tps=[tp]))
        assert len(errors) == 4
        for error in errors:
            assert "waiting for n:9, which coordinates group 'g'" in str(error)
            assert f": {why}; {ADVERTISED}" in str(error)


def test_idle_coordinator_is_not_waited_for() -> None:
    """The connection ended between two heartbeats, as when the broker starts again; a request comes with the next one."""
    world = WaitRig(**{"heartbeat.interval.ms": 10_000})
    world.refuses = set()
    world.reach(State.STABLE)
    world.answer_offsets({0: 5, 1: 7})
    world.step(Connected(address=NODE._replace(lane=LANE_FETCH)))
    world.core.context.attempts.failed(NODE._replace(lane=LANE_GROUP), "closed by the broker", world.steady_ms, had_response=True)
    world.group.finder.forget()
    world.group.finder.response_received(
        FindCoordinatorResponse(coordinators=[Coordinator(key="g", node_id=0, host="n", port=9)]), world.steady_ms
    )
    for _ in range(60):
        world.advance(50)
        for sent in world.pending(FetchRequest):
            world.waiting.remove(sent)
            world.answer(sent, FetchResponse())
    assert world.group.finder.known_address == NODE._replace(lane=LANE_GROUP)
    assert world.reports == []


def test_lines_are_repeated_with_growing_pauses() -> None:
    world = groupless_rig()
    world.answer_assignment(0)
    world.advance_in_steps(140_000)
    times_ms = [int(line.partition(" for ")[2].partition(" ms")[0]) for line in world.reports]
    assert [round(time_ms, -3) for time_ms in times_ms] == [2_000, 12_000, 32_000, 72_000, 132_000]


def test_wait_that_is_over_is_not_logged() -> None:
    world = groupless_rig()
    world.answer_assignment(0)
    world.advance_in_steps(1_000)
    world.refuses.clear()
    world.advance_in_steps(1_200)
    world.answer_list({0: 0})
    world.advance_in_steps(100)
    world.step(Connected(address=NODE._replace(lane=1)))
    world.answer_fetch(p0=records(0, b"x"))
    world.advance_in_steps(400)
    assert world.reports == []


class TestNoBroker:
    @pytest.mark.parametrize("is_silent", [False, True])
    def test_one_line_for_all_brokers(self, monkeypatch: pytest.MonkeyPatch, is_silent: bool) -> None:
        world = WaitRig(**{"bootstrap.servers": "b:1,c:2"})
        world.refuses |= set() if is_silent else {BOOTSTRAP, Address("c", 2)}
        if is_silent:
            monkeypatch.setattr(world, "answer_reachable", lambda: None)
        world.join()
        world.advance_in_steps(3_000)
        (line,) = world.reports
        if is_silent:
            assert line.startswith("a broker of the cluster, for 2500 ms: no broker reachable at b:1 (")
        else:
            reasons = "no broker reachable at b:1 (refused), c:2 (refused)"
            assert line == f"a broker of the cluster, for 2500 ms: {reasons}; retrying without a limit"

    def test_broker_that_disconnects_after_api_versions(self) -> None:
        world = WaitRig()
        world.core.subscribe(["t"])
        world.step()
        for _ in range(30):
            waiting, world.waiting = world.waiting, []
            lost = [RequestFailed(address=BOOTSTRAP, token=sent.token, reason="closed", was_sent=True) for sent in waiting]
            world.step(Connected(address=BOOTSTRAP), *lost, Disconnected(address=BOOTSTRAP, reason="closed"))
            world.advance(100)
        assert len(world.reports) == 1

    def test_nothing_is_logged_while_nothing_is_needed(self) -> None:
        world = WaitRig()
        world.step(Disconnected(address=BOOTSTRAP, reason="refused"))
        world.advance_in_steps(10_000)
        assert world.reports == []


class TestLeader:
    @pytest.mark.parametrize(
        ("code", "why"),
        [
            (None, "no broker leads them now: their replicas may be down"),
            (codes.LEADER_NOT_AVAILABLE, "brokers respond with LEADER_NOT_AVAILABLE"),
        ],
    )
    def test_partition_without_leader(self, code: ErrorCode | None, why: str) -> None:
        world = groupless_rig()
        world.refuses.clear()
        world.leader, world.topic_code = -1, 0 if code is None else code.number
        world.answer_assignment(0, 1)
        world.advance_in_steps(3_000)
        (line,) = world.reports
        assert line.startswith("a leader of t-0, t-1, for ")
        assert line.endswith(f" ms: {why}; retrying without a limit")

    def test_leader_without_fetch_response(self) -> None:
        """It is stopped, and its connections live. A fetch that waits for records is no such case."""
        world = groupless_rig(**{"fetch.max.wait.ms": 500})
        world.refuses.clear()
        world.answer_assignment(0)
        world.advance_in_steps(100)
        world.answer_list({0: 0})
        for _ in range(20):
            world.advance_in_steps(500)
            world.answer(FetchRequest, FetchResponse())
        assert world.reports == []
        world.advance_in_steps(3_000)
        assert world.reports == ["n:9, which leads t-0, for 2500 ms: no response yet; retrying without a limit"]

    def test_fetch_may_wait_longer(self) -> None:
        world = groupless_rig(**{"fetch.max.wait.ms": 20_000})
        world.refuses.clear()
        world.answer_assignment(0)
        world.advance_in_steps(100)
        world.answer_list({0: 0})
        world.step(Connected(address=NODE._replace(lane=1)))
        world.advance_in_steps(19_000)
        assert world.reports == []
        world.advance_in_steps(2_000)
        assert len(world.reports) == 1

    @pytest.mark.parametrize("api", ["Fetch", "ListOffsets"])
    def test_leader_that_rejects_requests(self, api: str) -> None:
        world = groupless_rig()
        world.refuses.clear()
        world.answer_assignment(0)
        world.advance_in_steps(100)
        code = codes.KAFKA_STORAGE_ERROR
        if api == "Fetch":
            world.answer_list({0: 0})
        for _ in range(60):
            world.advance_in_steps(50)
            if api == "Fetch" and world.pending(FetchRequest):
                world.answer_fetch(p0=code.number)
            elif api == "ListOffsets" and world.pending(ListOffsetsRequest):
                world.answer_list({0: 0}, code=code.number)
        (line,) = world.reports
        assert line.startswith("the leader of t-0, for 25")
        assert line.endswith(": it responds with KAFKA_STORAGE_ERROR; retrying without a limit")


class TestCoordinator:
    def test_coordinator_not_available(self) -> None:
        world = WaitRig()
        world.refuses.clear()
        world.coordinator_code = number_of("COORDINATOR_NOT_AVAILABLE")
        world.join()
        world.advance_in_steps(3_000)
        (line,) = world.reports
        assert line.startswith("the coordinator of group 'g', for 25")
        assert "COORDINATOR_NOT_AVAILABLE (looking for the coordinator of group 'g'" in line

    def test_coordinator_is_loading(self) -> None:
        world = WaitRig()
        world.refuses.clear()
        world.join()
        world.advance_in_steps(100)
        world.poll()
        for _ in range(70):
            if world.pending(JoinGroupRequest):
                world.answer(JoinGroupRequest, JoinGroupResponse(error_code=number_of("COORDINATOR_LOAD_IN_PROGRESS")))
            world.advance_in_steps(50)
        (line,) = world.reports
        assert line.startswith("the coordinator of group 'g', for 2")
        assert ": COORDINATOR_LOAD_IN_PROGRESS (" in line

    @pytest.mark.parametrize("api", ["commit", "position"])
    def test_loading_coordinator_rejects_offsets(self, api: str) -> None:
        world = WaitRig()
        world.refuses.clear()
        code = number_of("COORDINATOR_LOAD_IN_PROGRESS")
        errors: list[KafkaException | None] = []
        if api == "commit":
            world.group.commits.commit({TopicPartition("t", 0): OffsetAndMetadata(1)}, world.steady_ms + 9_000, errors.append, retries=True)
            world.step()
        else:
            world.answer_assignment(0)
        for _ in range(70):
            world.advance_in_steps(50)
            for sent in world.pending(OffsetCommitRequest):
                part = OffsetCommitResponsePartition(partition_index=0, error_code=code)
                world.waiting.remove(sent)
                world.answer(sent, OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=[part])]))
            for sent in world.pending(OffsetFetchRequest):
                world.waiting.remove(sent)
                world.answer(sent, OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", error_code=code)]))
        (line,) = world.reports
        assert line.startswith("the coordinator of group 'g', for 2")
        assert ": COORDINATOR_LOAD_IN_PROGRESS (" in line

    def test_join_that_waits_for_members_is_not_silence(self) -> None:
        rig = Rig().reach(State.JOINING)
        rig.step(Connected(address=rig.pending(JoinGroupRequest)[0].address))
        rig.advance(14_000)
        assert not any("coordinates" in line for line in rig.reports)

    def test_close_logs_unconfirmed_leave(self) -> None:
        rig = Rig().reach(State.STABLE)
        rig.core.close("call", rig.steady_ms + 1_000)
        rig.step()
        assert rig.pending(LeaveGroupRequest)
        rig.advance(1_000)
        assert rig.done
        assert rig.reports[-1].startswith("close: the coordinator of group 'g' has not confirmed LeaveGroup in time")
        assert rig.reports[-1].endswith("the group removes the member after session.timeout.ms, 45000 ms")

    def test_close_without_coordinator_is_logged(self) -> None:
        rig = Rig().reach(State.STABLE)
        rig.group.finder.forget()
        rig.core.close("call", rig.steady_ms + 1_000)
        rig.step()
        assert "LeaveGroup is not sent, because the coordinator is not known" in rig.reports[-1]


class TestPendingResponses:
    def test_attempts_with_a_gap_are_different_waits(self) -> None:
        responses = PendingResponses()
        for steady_ms in (0, 1_000, 2_000):
            responses.sent(NODE, steady_ms)
            responses.request_failed(NODE, steady_ms, was_refused_here=False)
        assert responses.since_ms(NODE) == 0
        responses.sent(NODE, steady_ms + ATTEMPTS_GAP_MS_MAX + 1)
        assert responses.since_ms(NODE) == steady_ms + ATTEMPTS_GAP_MS_MAX + 1

    def test_request_that_was_never_sent_is_not_owed(self) -> None:
        responses = PendingResponses()
        responses.sent(NODE, 0)
        responses.request_failed(NODE, 0, was_refused_here=True)
        assert responses.since_ms(NODE) is None

    def test_each_response_counts(self) -> None:
        responses = PendingResponses()
        responses.sent(NODE, 0)
        responses.sent(NODE, 10)
        responses.response_received(NODE, 50)
        assert responses.since_ms(NODE) == 50
        responses.response_received(NODE, 60)
        assert responses.since_ms(NODE) is None


class TestHeartbeat:
    """Until the next one of the usual interval the log would say that the coordinator is waited for."""

    @pytest.mark.parametrize("is_lost", [False, True])
    def test_failed_heartbeat_is_resent_at_once(self, is_lost: bool) -> None:
        rig = Rig().reach(State.STABLE)
        rig.answer_offsets({0: 5, 1: 7})
        rig.advance(3_000)
        if is_lost:
            rig.fail(HeartbeatRequest)
        else:
            rig.answer(HeartbeatRequest, HeartbeatResponse(error_code=number_of("NOT_COORDINATOR")))
        rig.find_coordinator()
        rig.advance(200)
        assert rig.pending(HeartbeatRequest)


def test_back_off_without_reason_retains_the_last_one() -> None:
    """As of a request that fails with its connection, after a refusal that passes."""
    state = PartitionState(TopicPartition("t", 0))
    state.back_off(10, codes.NOT_LEADER_OR_FOLLOWER)
    state.back_off(20)
    assert (state.retry_at_ms, state.last_error_code) == (20, codes.NOT_LEADER_OR_FOLLOWER)
