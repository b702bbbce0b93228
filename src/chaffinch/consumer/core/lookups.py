"""Offsets that leaders are asked for: where to begin (ListOffsets), whether a new leader still has what was read (OffsetForLeaderEpoch,
KIP-320), and what callers want to know. Follows OffsetFetcher.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from chaffinch.client.connections import RequestFailed, ResponseReceived
from chaffinch.client.effects import CompleteCall, FailCall
from chaffinch.consumer.core.absences import Absences
from chaffinch.consumer.core.call_errors import IN_TIME, names_of, network_error
from chaffinch.consumer.core.fetcher import TRANSIENT, Fetcher
from chaffinch.consumer.core.options import LATEST, NONE, ResetStrategy
from chaffinch.consumer.core.positions import PartitionState, Position, Stage
from chaffinch.consumer.core.wiring import Wiring
from chaffinch.errors import ErrorCode, KafkaException, OffsetOutOfRangeException, Stored, codes, exception_for
from chaffinch.identifiers import NO_OFFSET, OFFSET_LATEST, TopicPartition
from chaffinch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from chaffinch.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

CONSUMER_REPLICA: Final = -1


class FoundOffset(NamedTuple):
    """The first record that is not older than a time: its offset and timestamp, and the epoch of its leader (-1: not told)."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1


@dataclass(slots=True, eq=False)
class OffsetsCall:
    """Offsets a caller wants: `times` of each partition, in ms or one of ListOffsets' own numbers."""

    call: Any
    times: Mapping[TopicPartition, int]
    deadline_ms: int
    limit: str = IN_TIME
    """In words."""
    found: dict[TopicPartition, FoundOffset | None] = field(default_factory=dict)
    last_error: KafkaException | None = None


class Reset(NamedTuple):
    """Where a partition is to begin, and in which topic of that name. Whoever has the partition later asks for itself."""

    state: PartitionState
    strategy: ResetStrategy | None
    topic_id: UUID


@dataclass(slots=True, eq=False)
class ListSent:
    """Token of a ListOffsets: for a caller, or without a call for resets."""

    times: dict[TopicPartition, int]
    resets: dict[TopicPartition, Reset]
    call: OffsetsCall | None = None


@dataclass(slots=True, eq=False)
class EpochsSent:
    """Token of an OffsetForLeaderEpoch: the positions that are checked, the leaders' epochs, and the topics' ids."""

    positions: dict[TopicPartition, Position]
    epochs: dict[TopicPartition, int]
    topic_ids: dict[TopicPartition, UUID]


class OffsetLookups:
    """Asks leaders. `wall_offset_ms`: what to add to `steady_ms` for the time of day; the shell keeps it right."""

    def __init__(self, wiring: Wiring, absences: Absences, fetcher: Fetcher) -> None:
        self.wall_offset_ms = 0
        self._wiring = wiring
        self._absences = absences
        self._fetcher = fetcher
        self._under_way: set[TopicPartition] = set()
        self._calls: list[OffsetsCall] = []
        self._calls_under_way: dict[TopicPartition, OffsetsCall] = {}
        self._calls_not_before_ms = 0

    @property
    def topics(self) -> set[str]:
        """Topics that callers ask about."""
        return {place.topic for call in self._calls for place in call.times}

    @property
    def places(self) -> set[TopicPartition]:
        """Partitions of which callers wait for an offset."""
        return {place for call in self._calls for place in call.times if place not in call.found}

    def ask(self, call: OffsetsCall) -> None:
        if call.times:
            self._calls.append(call)
        else:
            self._wiring.out.append(CompleteCall(call=call.call, result={}))

    def _check_leaders(self) -> None:
        """Positions that were come by under an older leader are checked with the new one before anything more is read."""
        for state in self._wiring.subscriptions.assigned.values():
            position = state.position
            if state.stage is not Stage.READING or position is None:
                continue
            epoch = self._wiring.leader_epoch(state.place)
            if epoch < 0 or epoch == position.leader_epoch:
                continue
            if position.offset_epoch >= 0 and position.leader_epoch >= 0:
                state.validate()
                self._fetcher.drop(state.place)
            else:
                state.validated(epoch)

    # The round.

    def advance(self, steady_ms: int) -> None:
        self._check_leaders()
        self._expire(steady_ms)
        resets: dict[int, dict[TopicPartition, PartitionState]] = {}
        for state in self._ready(Stage.RESETTING, steady_ms):
            resets.setdefault(self._leader(state.place), {})[state.place] = state
        for node_id, states in resets.items():
            times = {place: self._time_of(state, steady_ms) for place, state in states.items()}
            token = ListSent(
                times, {place: Reset(state, state.reset_to, self._wiring.ids.present(place.topic)) for place, state in states.items()}
            )
            if self._send_list(node_id, times, token, steady_ms):
                self._under_way |= states.keys()
        self._advance_validation(steady_ms)
        if steady_ms >= self._calls_not_before_ms:
            for call in self._calls:
                self._advance_call(call, steady_ms)

    def _ready(self, stage: Stage, steady_ms: int) -> list[PartitionState]:
        return [
            state
            for state in self._wiring.subscriptions.at(stage, steady_ms)
            if state.place not in self._under_way and self._knows_leader(state.place)
        ]

    def _knows_leader(self, place: TopicPartition) -> bool:
        if self._wiring.cluster.leader_of(place) is None:
            self._wiring.miss(place)
            return False
        return True

    def _leader(self, place: TopicPartition) -> int:
        leader = self._wiring.cluster.leader_of(place)
        assert leader is not None, "only called where it is known"
        return leader

    def _time_of(self, state: PartitionState, steady_ms: int) -> int:
        strategy = state.reset_to or LATEST
        if strategy.ago_ms is not None:
            return max(0, steady_ms + self.wall_offset_ms - strategy.ago_ms)
        return OFFSET_LATEST if strategy.timestamp is None else strategy.timestamp

    def _send_list(self, node_id: int, times: Mapping[TopicPartition, int], token: ListSent, steady_ms: int) -> bool:
        address = self._wiring.node_address(node_id, steady_ms)
        if address is None:
            return False
        topics: dict[str, ListOffsetsTopic] = {}
        for place, timestamp in times.items():
            topics.setdefault(place.topic, ListOffsetsTopic(name=place.topic)).partitions.append(
                ListOffsetsPartition(
                    partition_index=place.partition, current_leader_epoch=self._wiring.leader_epoch(place), timestamp=timestamp
                )
            )
        request = ListOffsetsRequest(
            isolation_level=self._wiring.isolation_level, topics=list(topics.values()), timeout_ms=self._wiring.request_timeout_ms
        )
        self._wiring.send(address, request, token)
        return True

    def _advance_call(self, call: OffsetsCall, steady_ms: int) -> None:
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for place, timestamp in call.times.items():
            if place not in call.found and place not in self._calls_under_way and self._knows_leader(place):
                by_leader.setdefault(self._leader(place), {})[place] = timestamp
        for node_id, times in by_leader.items():
            if self._send_list(node_id, times, ListSent(times, {}, call), steady_ms):
                self._calls_under_way |= dict.fromkeys(times, call)

    def _advance_validation(self, steady_ms: int) -> None:
        by_leader: dict[int, list[PartitionState]] = {}
        for state in self._ready(Stage.VALIDATING, steady_ms):
            assert state.position is not None, "only a position can be checked"
            if self._wiring.leader_epoch(state.place) < 0:
                # A cluster that tells no epochs cannot be asked about one. It may tell them later: the position is checked then.
                state.validated(state.position.leader_epoch)
            else:
                by_leader.setdefault(self._leader(state.place), []).append(state)
        for node_id, states in by_leader.items():
            address = self._wiring.node_address(node_id, steady_ms)
            if address is None:
                continue
            positions = {state.place: state.position for state in states if state.position is not None}
            token = EpochsSent(
                positions,
                {place: self._wiring.leader_epoch(place) for place in positions},
                {place: self._wiring.ids.present(place.topic) for place in positions},
            )
            self._under_way |= positions.keys()
            self._wiring.send(address, _epochs_request(token), token)

    def _expire(self, steady_ms: int) -> None:
        for call in list(self._calls):
            if (absence := self._absences.error(call.times, steady_ms)) is not None:
                self._absences.forget(call.times)
                self._finish(call, FailCall(call=call.call, error=absence))
            elif steady_ms >= call.deadline_ms:
                error = self._wiring.time_out(self._late(call), call.last_error, places=call.times, uses_group=False, api="ListOffsets")
                self._finish(call, FailCall(call=call.call, error=error))

    def _late(self, call: OffsetsCall) -> str:
        """Of which partitions nothing was told, and for whom each of them waits."""
        missing = call.times.keys() - call.found.keys()
        text = f"no offset of {names_of(missing)} was told {call.limit}"
        cluster = self._wiring.cluster
        leaders = {place: cluster.leader_of(place) for place in missing}
        leaderless = [place for place, leader in leaders.items() if leader is None]
        if leaderless and cluster.updated_ms is not None:
            text += f", no leader is known of {names_of(leaderless)}"
        asked = {cluster.address_of(leader) for place, leader in leaders.items() if leader is not None and place in self._calls_under_way}
        return text + "".join(sorted(f", {address} has not answered yet" for address in asked if address is not None))

    def _finish(self, call: OffsetsCall, effect: CompleteCall | FailCall) -> None:
        if call in self._calls:
            self._calls.remove(call)
            self._wiring.out.append(effect)

    def give_up(self, error: KafkaException) -> None:
        for call in list(self._calls):
            self._finish(call, FailCall(call=call.call, error=error))

    # Answers.

    def list_answered(self, event: ResponseReceived, steady_ms: int) -> None:
        token: ListSent = event.token
        self._forget(token)
        for topic in event.message.topics:
            for told in topic.partitions:
                place = TopicPartition(topic.name, told.partition_index)
                code = codes.by_number(told.error_code, numbering=event.numbering)
                found = None if told.offset == NO_OFFSET else FoundOffset(told.offset, told.timestamp, told.leader_epoch)
                if place not in token.times:
                    continue
                if token.call is not None:
                    self._told(token.call, place, code, found, steady_ms)
                else:
                    self._reset(token.resets[place], code, found, steady_ms)
        call = token.call
        if call is not None and len(call.found) == len(call.times):
            self._finish(call, CompleteCall(call=call.call, result=call.found))
        self._wiring.wake()

    def _forget(self, token: ListSent) -> None:
        if token.call is None:
            self._under_way -= token.times.keys()
        else:
            for place in token.times:
                self._calls_under_way.pop(place, None)

    def _told(self, call: OffsetsCall, place: TopicPartition, code: ErrorCode, found: FoundOffset | None, steady_ms: int) -> None:
        if code is codes.NONE:
            call.found[place] = found
            return
        call.last_error = exception_for(code, topic_partition=place, api="ListOffsets")
        if code.is_retriable or code in TRANSIENT:
            self._wiring.refresh()
            self._calls_not_before_ms = steady_ms + self._wiring.wait_ms(1)
        else:
            self._finish(call, FailCall(call=call.call, error=call.last_error))

    def _reset(self, reset: Reset, code: ErrorCode, found: FoundOffset | None, steady_ms: int) -> None:
        state, place = reset.state, reset.state.place
        is_wanted = self._wiring.subscriptions.assigned.get(place) is state and state.stage is Stage.RESETTING
        if not is_wanted or state.reset_to != reset.strategy:
            return
        if self._wiring.ids.is_past(place.topic, reset.topic_id):
            return  # It is asked again.
        if code is not codes.NONE:
            self._retry_later(state, code, "ListOffsets", steady_ms)
        elif found is None:
            state.reset(LATEST)  # Nothing is as young as that: begin with what comes.
        else:
            state.seek(Position(found.offset, -1, self._wiring.leader_epoch(place)))

    def _retry_later(self, state: PartitionState, code: ErrorCode, api: str, steady_ms: int) -> None:
        passes = code.is_retriable or code in TRANSIENT
        state.wait(steady_ms + self._wiring.wait_ms(1), code if passes else None)
        if passes:
            self._wiring.refresh()
        else:
            self._wiring.fail(exception_for(code, topic_partition=state.place, stored=Stored.NO, api=api))

    def list_failed(self, token: ListSent, event: RequestFailed, steady_ms: int) -> None:
        self._forget(token)
        if token.call is not None:
            token.call.last_error = network_error(event, "ListOffsets")
        self._unanswered(token.times if token.call is None else (), steady_ms)
        self._calls_not_before_ms = steady_ms + self._wiring.wait_ms(1)

    def _unanswered(self, places: Iterable[TopicPartition], steady_ms: int) -> None:
        self._wiring.refresh()
        for place in places:
            state = self._wiring.subscriptions.assigned.get(place)
            if state is not None:
                state.wait(steady_ms + self._wiring.wait_ms(1))

    def epochs_answered(self, event: ResponseReceived, steady_ms: int) -> None:
        token: EpochsSent = event.token
        self._under_way -= token.positions.keys()
        for topic in event.message.topics:
            for told in topic.partitions:
                place = TopicPartition(topic.topic, told.partition)
                state = self._wiring.subscriptions.assigned.get(place)
                if state is None or state.stage is not Stage.VALIDATING or state.position != token.positions.get(place):
                    continue
                if self._wiring.ids.is_past(place.topic, token.topic_ids[place]):
                    continue
                code = codes.by_number(told.error_code, numbering=event.numbering)
                if code is not codes.NONE:
                    self._retry_later(state, code, "OffsetForLeaderEpoch", steady_ms)
                else:
                    self._validated(state, told.leader_epoch, told.end_offset, token.epochs[place])
        self._wiring.wake()

    def _validated(self, state: PartitionState, epoch: int, end_offset: int, leader_epoch: int) -> None:
        position = state.position
        assert position is not None, "only a position can be checked"
        if end_offset >= position.offset:
            state.validated(leader_epoch)
            return
        place, offset, strategy = state.place, position.offset, self._wiring.reset_strategy
        self._fetcher.drop(place)
        text = f"the new leader's log of {place} ends at {end_offset} for the epoch that was read, before the position, {offset}"
        if strategy is NONE:
            state.seek(Position(offset, -1, leader_epoch))
            text += "; auto.offset.reset is none: seek"
            self._wiring.fail(OffsetOutOfRangeException(text, topic_partition=place, stored=Stored.NO))
        elif end_offset < 0 or epoch < 0:
            self._wiring.report(f"{text}; going on as auto.offset.reset says, {strategy.name}")
            state.reset(strategy)
        else:
            self._wiring.report(f"{text}; going on there")
            state.seek(Position(end_offset, epoch, leader_epoch))

    def epochs_failed(self, token: EpochsSent, event: RequestFailed, steady_ms: int) -> None:
        self._under_way -= token.positions.keys()
        if not event.is_unsupported:
            self._unanswered(token.positions, steady_ms)
            return
        for place in token.positions:
            state = self._wiring.subscriptions.assigned.get(place)
            if state is not None and state.stage is Stage.VALIDATING and state.position is not None:
                state.validated(token.epochs[place])

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """When something is due. Waiting partitions are the fetcher's to count."""
        if not self._calls:
            return None
        times = [self._calls_not_before_ms, *(call.deadline_ms for call in self._calls)]
        return min((time for time in times if time > steady_ms), default=None)


def _epochs_request(token: EpochsSent) -> OffsetForLeaderEpochRequest:
    topics: dict[str, OffsetForLeaderTopic] = {}
    for place, position in token.positions.items():
        topics.setdefault(place.topic, OffsetForLeaderTopic(topic=place.topic)).partitions.append(
            OffsetForLeaderPartition(
                partition=place.partition, current_leader_epoch=token.epochs[place], leader_epoch=position.offset_epoch
            )
        )
    return OffsetForLeaderEpochRequest(replica_id=CONSUMER_REPLICA, topics=list(topics.values()))
