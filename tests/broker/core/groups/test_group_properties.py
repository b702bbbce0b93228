"""Both protocols under random members and random time, without a broker around them.

Classic: one leader, assignments only of the leader's making, no member waits for ever. KIP-848: no partition has two owners at any time,
whatever responses are lost and however slowly members revoke; after enough heartbeats of all, each partition has an owner.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaffinch.broker.core import options
from chaffinch.broker.core.groups.classic_group import ClassicGroup, Client
from chaffinch.broker.core.groups.classic_states import ClassicState
from chaffinch.broker.core.groups.consumer_group import ConsumerGroup, Subscriptions, TopicInfo
from chaffinch.broker.core.groups.context import Deferred, TimerKey, TimerKind
from chaffinch.broker.core.groups.coordinator import GroupCoordinator
from chaffinch.broker.core.groups.group_options import GroupConfigs
from chaffinch.broker.core.groups.offsets import GroupOffsets
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from chaffinch.protocol.messages.heartbeat import HeartbeatRequest
from chaffinch.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from chaffinch.protocol.messages.leave_group import MemberIdentity
from chaffinch.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from chaffinch.storage.file_system import MemoryFileSystem
from chaffinch.storage.journal import Journal
from chaffinch.storage.wall_time import WallTime

pytestmark = pytest.mark.long

CLIENT = Client(client_id="test", host="/127.0.0.1")
SESSION_MS, REBALANCE_MS = 10_000, 20_000
CONSUMER_SESSION_MS = 45_000


class Topics:
    """Topics that can be added and grown."""

    def __init__(self) -> None:
        self.version = 0
        self.counts: dict[str, int] = {"a": 3, "b": 2}

    def all(self) -> Mapping[str, TopicInfo]:
        return {name: TopicInfo(UUID(int=ord(name)), count) for name, count in self.counts.items()}

    def grow(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        self.version += 1


class World:
    """A coordinator on a journal in memory, which can be restarted."""

    def __init__(self) -> None:
        self.steady_ms = 0
        self.rng = random.Random(1)  # Of all lives: ids are never given twice.
        self.topics = Topics()
        self.journal = Journal.open(MemoryFileSystem(), "journals", "offsets")
        self.coordinator = self._coordinator()

    def _coordinator(self) -> GroupCoordinator:
        offsets = GroupOffsets(self.journal)
        settings = options.parse({})
        configs = GroupConfigs(settings, self.journal)
        return GroupCoordinator(self.journal, offsets, self.topics, settings, configs, self.rng, [], WallTime(), self.steady_ms)

    def restart(self) -> None:
        self.coordinator = self._coordinator()

    def advance(self, by_ms: int) -> None:
        until_ms = self.steady_ms + by_ms
        while (deadline_ms := self.coordinator.next_deadline_ms) is not None and deadline_ms <= until_ms:
            self.steady_ms = max(self.steady_ms, deadline_ms)
            self.coordinator.run_due(self.steady_ms)
        self.steady_ms = until_ms


# -- classic ------------------------------------------------------------------------------------------------------------------------


class ClassicActor:
    """One member, which follows the answers; `assignments_by_generation` are the assignments it got."""

    def __init__(self, world: World, instance: str | None) -> None:
        self.world = world
        self.instance = instance
        self.joins = 0
        self.id = ""
        self.generation = -1
        self.generation_min = -1  # A restart forgets a generation that had no assignment yet, as in Kafka.
        self.is_leader = False
        self.others: list[str] = []
        self.deferred: Deferred[Any] | None = None
        self.assignments_by_generation: dict[int, bytes] = {}

    def join(self) -> None:
        if self.deferred is not None:
            return
        self.joins += 1
        names = ["range", f"p{self.joins % 3}"]
        protocols = [JoinGroupRequestProtocol(name=name, metadata=b"m" * self.joins) for name in names]
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.id,
            group_instance_id=self.instance,
            protocol_type="test",
            protocols=protocols,
        )
        self._take(self.world.coordinator.join(request, 9, CLIENT, self.world.steady_ms))

    def sync(self) -> None:
        if self.deferred is not None or self.generation < 0:
            return
        assignments = []
        if self.is_leader:
            assignments = [SyncGroupRequestAssignment(member_id=name, assignment=self.word(name)) for name in self.others]
        request = SyncGroupRequest(
            group_id="g", generation_id=self.generation, member_id=self.id, group_instance_id=self.instance, assignments=assignments
        )
        self._take(self.world.coordinator.sync(request, self.world.steady_ms))

    def word(self, member_id: str) -> bytes:
        return f"{self.generation} {member_id}".encode()

    def heartbeat(self) -> None:
        if self.deferred is not None or self.generation < 0:
            return
        request = HeartbeatRequest(group_id="g", generation_id=self.generation, member_id=self.id, group_instance_id=self.instance)
        self._react(self.world.coordinator.heartbeat(request, self.world.steady_ms).number)

    def leave(self) -> None:
        if self.deferred is None and self.id:
            self.world.coordinator.leave("g", [MemberIdentity(member_id=self.id)], self.world.steady_ms)
            self.id, self.generation = "", -1

    def listen(self) -> None:
        """Take what has been promised, if it is there."""
        if self.deferred is not None and self.deferred.answer is not None:
            answer, self.deferred = self.deferred.answer, None
            self._take(answer)

    def _take(self, answer: Any) -> None:
        if isinstance(answer, Deferred):
            self.deferred = answer
            self.listen()
        elif answer.error_code == 79:
            self.id = answer.member_id
            self.join()
        elif answer.error_code != 0:
            self._react(answer.error_code)
        elif hasattr(answer, "generation_id"):
            assert answer.generation_id >= self.generation_min, "generations only rise"
            self.id, self.generation = answer.member_id, answer.generation_id
            self.generation_min = self.generation
            self.is_leader = answer.leader == self.id and not answer.skip_assignment
            self.others = [member.member_id for member in answer.members]
        else:
            self.assignments_by_generation[self.generation] = bytes(answer.assignment)

    def _react(self, code: int) -> None:
        if code in (25, 82):
            self.id, self.generation = "", -1
        elif code == 22:
            self.generation = -1


def check_classic(world: World, actors: list[ClassicActor]) -> None:
    group = world.coordinator.find("g")
    if group is None:
        return
    assert isinstance(group, ClassicGroup)
    assert set(group.joins) <= set(group.members)
    assert set(group.syncs) <= set(group.members)
    assert not group.joins or group.state is ClassicState.PREPARING_REBALANCE
    assert not group.syncs or group.state is ClassicState.COMPLETING_REBALANCE
    assert (group.leader in group.members) == bool(group.members)
    assert bool(group.members) or group.state in (ClassicState.EMPTY, ClassicState.PREPARING_REBALANCE)
    parts = [member.size_bytes for member in group.members.values()] + [500 + 2 * len(name) for name in group.pending]
    assert group.size_bytes == (0 if group.was_never_used else 1002 + sum(parts)), "sums that are kept are those that are counted"
    assert group._supporters == Counter(name for member in group.members.values() for name, _ in member.protocols)
    if group.state is ClassicState.STABLE:
        for member in group.members.values():
            sessions = world.coordinator._context.timers.get(TimerKey("g", TimerKind.SESSION, member.member_id))
            assert sessions is not None, "no member can stay for ever in silence"
    for actor in actors:
        for generation, word in actor.assignments_by_generation.items():
            assert word == b"" or word.startswith(b"%d " % generation), "an assignment of another generation"


@settings(max_examples=100)
@given(
    st.lists(st.booleans(), min_size=2, max_size=4),
    st.lists(
        st.tuples(
            st.sampled_from(["join", "join", "sync", "heartbeat", "leave", "advance", "round", "round", "restart", "again"]),
            st.integers(0, 3),
            st.sampled_from([1, 500, 3000, 9999, 10_000, 20_000]),
        ),
        min_size=40,
        max_size=60,
    ),
)
def test_classic_protocol_keeps_its_invariants(static_members: list[bool], steps: list[tuple[str, int, int]]) -> None:
    world = World()
    actors = [ClassicActor(world, f"i-{index}" if is_static else None) for index, is_static in enumerate(static_members)]
    for action, index, by_ms in steps:
        actor = actors[index % len(actors)]
        if action == "advance":
            world.advance(by_ms)
        elif action == "restart":
            world.restart()
            for each in actors:
                each.deferred, each.generation_min = None, -1
        elif action == "round":
            let_all_members_act(world, actors)
        elif action == "again":  # The instance is restarted, without its memory.
            actor.id, actor.generation, actor.deferred = "", -1, None
        else:
            getattr(actor, action)()
        for each in actors:
            each.listen()
        check_classic(world, actors)
    finish_classic(world, actors)


def let_all_members_act(world: World, actors: list[ClassicActor]) -> None:
    """Time enough for a first rebalance; then each member does what it should, the leader last."""
    world.advance(2 * 3000)
    for actor in actors:
        actor.listen()
        actor.heartbeat()
        if actor.generation < 0:
            actor.join()
    for actor in sorted(actors, key=lambda actor: actor.is_leader):
        actor.listen()
        actor.sync()


def finish_classic(world: World, actors: list[ClassicActor]) -> None:
    """Left alone, no member waits for ever. Then all join, and each has an assignment of one generation and one leader."""
    world.advance(10 * (REBALANCE_MS + 300_000))
    for actor in actors:
        actor.listen()
        assert actor.deferred is None, "an answer that never came"
        actor.id, actor.generation = "", -1
    for _ in range(4):
        let_all_members_act(world, actors)
    for actor in actors:
        actor.listen()
        assert actor.deferred is None
    assert len({actor.generation for actor in actors}) == 1
    assert sum(actor.is_leader for actor in actors) == 1
    assert [actor.assignments_by_generation.get(actor.generation) for actor in actors] == [actor.word(actor.id) for actor in actors]
    check_classic(world, actors)


# -- consumer -----------------------------------------------------------------------------------------------------------------------


class ConsumerActor:
    """One member. `held` are the partitions it may be reading: those assigned, and those not revoked yet."""

    def __init__(self, world: World, name: str, instance: str | None, topics: list[str]) -> None:
        self.world = world
        self.name = name
        self.instance = instance
        self.topics = topics
        self.is_in = False
        self.epoch = 0
        self.held: set[tuple[UUID, int]] = set()
        self.assigned: set[tuple[UUID, int]] = set()

    def join(self) -> None:
        if not self.is_in:
            self.epoch, self.held = 0, set()
            self._say(rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=self.topics)

    def beat(self) -> None:
        """Give back what is to be given back, and say so."""
        if self.is_in:
            self.held &= self.assigned
            self._say()

    def slow(self) -> None:
        """Say that it still has what it is to give back."""
        if self.is_in:
            self._say()

    def lost(self) -> None:
        """The answer does not arrive."""
        if self.is_in:
            self._say(was_received=False)

    def leave(self) -> None:
        if self.is_in:
            self.held = set()
            self._ask(ConsumerGroupHeartbeatRequest(group_id="g", member_id=self.name, member_epoch=-1, instance_id=self.instance))
            self.is_in = False

    def rest(self) -> None:
        """A static member goes for a while."""
        if self.is_in and self.instance is not None:
            self.held = set()
            self._ask(ConsumerGroupHeartbeatRequest(group_id="g", member_id=self.name, member_epoch=-2, instance_id=self.instance))
            self.is_in = False

    def _say(self, *, was_received: bool = True, **fields: Any) -> None:
        by_topic: dict[UUID, list[int]] = {}
        for topic, index in sorted(self.held):
            by_topic.setdefault(topic, []).append(index)
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=self.name,
            member_epoch=self.epoch,
            instance_id=self.instance,
            topic_partitions=[TopicPartitions(topic_id=topic, partitions=indexes) for topic, indexes in by_topic.items()],
            **fields,
        )
        answer = self._ask(request)
        if answer is None:
            self.is_in, self.held = False, set()
        elif was_received:
            self.is_in, self.epoch = True, answer.member_epoch
            if answer.assignment is not None:
                self.assigned = {(topic.topic_id, index) for topic in answer.assignment.topic_partitions for index in topic.partitions}
                self.held |= self.assigned

    def _ask(self, request: ConsumerGroupHeartbeatRequest) -> Any:
        try:
            return self.world.coordinator.consumer_heartbeat(request, CLIENT, self.world.steady_ms)
        except RequestRefused as refused:
            if refused.code.number not in (25, 69, 82, 110, 111):
                raise
            return None


def check_consumer(world: World, actors: list[ConsumerActor]) -> None:
    group = world.coordinator.find("g")
    if group is None:
        return
    assert isinstance(group, ConsumerGroup)
    hands = [actor.held for actor in actors if actor.is_in and actor.name in group.members]
    assert len(set().union(*hands)) == sum(map(len, hands)), "a partition in two hands"
    owned = [(index, name) for name, member in group.members.items() for index in (*member.assigned, *member.revoking)]
    assert dict(owned) == group.owners
    assert len(owned) == len(group.owners)
    assert set(group.targets) <= set(group.members), "what those were to have that are gone is forgotten"
    assert group.size_bytes == 2002 + sum(member.size_bytes for member in group.members.values())
    assert group.subscriptions == Subscriptions().after({}, group.members)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([["a"], ["b"], ["a", "b"], ["a", "c"]])), min_size=2, max_size=4),
    st.lists(
        st.tuples(
            st.sampled_from(["join", "join", "beat", "beat", "beat", "slow", "lost", "leave", "rest", "advance", "grow", "restart"]),
            st.integers(0, 3),
            st.sampled_from([1, 5000, 19_999, 20_000, 44_999, 45_000]),
        ),
        min_size=40,
        max_size=80,
    ),
)
def test_consumer_protocol_keeps_its_invariants(plans: list[tuple[bool, list[str]]], steps: list[tuple[str, int, int]]) -> None:
    world = World()
    actors = [
        ConsumerActor(world, f"m{index}", f"i-{index}" if is_static else None, topics) for index, (is_static, topics) in enumerate(plans)
    ]
    for action, index, by_ms in steps:
        actor = actors[index % len(actors)]
        if action == "advance":
            world.advance(by_ms)
        elif action == "restart":
            world.restart()
        elif action == "grow":
            world.topics.grow("abc"[index % 3])
        else:
            getattr(actor, action)()
        check_consumer(world, actors)
    finish_consumer(world, actors)


def finish_consumer(world: World, actors: list[ConsumerActor]) -> None:
    """Fenced members are removed in time; then all join, and after enough heartbeats each partition has an owner."""
    for actor in actors:
        actor.is_in = False
    world.advance(2 * CONSUMER_SESSION_MS)
    for actor in actors:
        actor.join()
        assert actor.is_in
    for _ in range(3 * len(actors) + 3):
        for actor in actors:
            actor.beat()
            check_consumer(world, actors)
    group = world.coordinator.find("g")
    assert isinstance(group, ConsumerGroup)
    wanted = {topic for actor in actors for topic in actor.topics}
    everything = {(UUID(int=ord(name)), index) for name in wanted for index in range(world.topics.counts.get(name, 0))}
    assert set().union(*(actor.held for actor in actors)) == everything
    assert group.state.value == "Stable"
    assert {actor.epoch for actor in actors} == {group.epoch}
