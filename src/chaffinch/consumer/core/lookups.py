"""Offset lookups at partition leaders: ListOffsets for resets and calls, OffsetForLeaderEpoch after a leader change (KIP-320).

Follows OffsetFetcher.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from chaffinch.client.connections import RequestFailed, ResponseReceived
from chaffinch.client.effects import CompleteCall, FailCall
from chaffinch.consumer.core.call_errors import IN_TIME, names_of, network_error
from chaffinch.consumer.core.context import ConsumerContext
from chaffinch.consumer.core.fetcher import TRANSIENT, Fetcher
from chaffinch.consumer.core.missing_partitions import MissingPartitions
from chaffinch.consumer.core.options import LATEST, NONE, ResetStrategy
from chaffinch.consumer.core.positions import PartitionState, Position, Stage
from chaffinch.errors import ErrorCode, KafkaException, OffsetOutOfRangeException, Stored, codes, exception_for
from chaffinch.identifiers import NO_OFFSET, OFFSET_LATEST, TopicPartition
from chaffinch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from chaffinch.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from chaffinch.public_names import exported_from

CONSUMER_REPLICA: Final = -1


@exported_from("chaffinch")
class FoundOffset(NamedTuple):
    """The first record that is not older than a time: its offset, timestamp and leader epoch (-1: not reported)."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1


@dataclass(slots=True, eq=False)
class OffsetsCall:
    """A call for offsets. `times`: for each partition ms since 1970, or a special timestamp of ListOffsets."""

    call: Any
    times: Mapping[TopicPartition, int]
    deadline_ms: int
    limit: str = IN_TIME
    """The time limit as text."""
    found: dict[TopicPartition, FoundOffset | None] = field(default_factory=dict)
    last_error: KafkaException | None = None


class Reset(NamedTuple):
    """Where to start reading a partition, and in which topic of that name. A later assignment makes its own lookup."""

    state: PartitionState
    strategy: ResetStrategy | None
    topic_id: UUID


@dataclass(slots=True, eq=False)
class ListOffsetsToken:
    """Token of a ListOffsets: for a call, or without a call for resets."""

    times: dict[TopicPartition, int]
    resets: dict[TopicPartition, Reset]
    call: OffsetsCall | None = None


@dataclass(slots=True, eq=False)
class EpochsToken:
    """Token of an OffsetForLeaderEpoch: the checked positions, the leaders' epochs, and the topics' ids."""

    positions: dict[TopicPartition, Position]
    epochs: dict[TopicPartition, int]
    topic_ids: dict[TopicPartition, UUID]


class OffsetLookups:
    """Lookups at leaders. `wall_offset_ms`: wall clock minus steady clock; the shell updates it."""

    def __init__(self, context: ConsumerContext, missing_partitions: MissingPartitions, fetcher: Fetcher) -> None:
        self.wall_offset_ms = 0
        self._context = context
        self._missing_partitions = missing_partitions
        self._fetcher = fetcher
        self._under_way: set[TopicPartition] = set()
        self._calls: list[OffsetsCall] = []
        self._calls_under_way: dict[TopicPartition, OffsetsCall] = {}
        self._calls_not_before_ms = 0

    @property
    def topics(self) -> set[str]:
        """Topics that calls need."""
        return {tp.topic for call in self._calls for tp in call.times}

    @property
    def pending_tps(self) -> set[TopicPartition]:
        """Partitions whose offset a call waits for."""
        return {tp for call in self._calls for tp in call.times if tp not in call.found}

    def add(self, call: OffsetsCall) -> None:
        if call.times:
            self._calls.append(call)
        else:
            self._context.out.append(CompleteCall(call=call.call, result={}))

    def _check_leaders(self) -> None:
        """Check positions with a new leader before anything more is read."""
        for state in self._context.subscriptions.assigned.values():
            position = state.position
            if state.stage is not Stage.READING or position is None:
                continue
            epoch = self._context.leader_epoch(state.tp)
            if epoch < 0 or epoch == position.leader_epoch:
                continue
            if position.offset_epoch >= 0 and position.leader_epoch >= 0:
                state.validate()
                self._fetcher.drop(state.tp)
            else:
                state.validated(epoch)

    # The round.

    def advance(self, steady_ms: int) -> None:
        self._check_leaders()
        self._expire(steady_ms)
        resets: dict[int, dict[TopicPartition, PartitionState]] = {}
        for state in self._ready(Stage.RESETTING, steady_ms):
            resets.setdefault(self._leader_of(state.tp), {})[state.tp] = state
        for node_id, states in resets.items():
            times = {tp: self._timestamp_for(state, steady_ms) for tp, state in states.items()}
            token = ListOffsetsToken(
                times, {tp: Reset(state, state.reset_to, self._context.ids.current(tp.topic)) for tp, state in states.items()}
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
            for state in self._context.subscriptions.at(stage, steady_ms)
            if state.tp not in self._under_way and self._has_leader(state.tp)
        ]

    def _has_leader(self, tp: TopicPartition) -> bool:
        if self._context.cluster.leader_of(tp) is None:
            self._context.need_leader(tp)
            return False
        return True

    def _leader_of(self, tp: TopicPartition) -> int:
        leader = self._context.cluster.leader_of(tp)
        assert leader is not None, "only called if it is known"
        return leader

    def _timestamp_for(self, state: PartitionState, steady_ms: int) -> int:
        strategy = state.reset_to or LATEST
        if strategy.ago_ms is not None:
            return max(0, steady_ms + self.wall_offset_ms - strategy.ago_ms)
        return OFFSET_LATEST if strategy.timestamp is None else strategy.timestamp

    def _send_list(self, node_id: int, times: Mapping[TopicPartition, int], token: ListOffsetsToken, steady_ms: int) -> bool:
        address = self._context.node_address(node_id, steady_ms)
        if address is None:
            return False
        topics: dict[str, ListOffsetsTopic] = {}
        for tp, timestamp in times.items():
            topics.setdefault(tp.topic, ListOffsetsTopic(name=tp.topic)).partitions.append(
                ListOffsetsPartition(partition_index=tp.partition, current_leader_epoch=self._context.leader_epoch(tp), timestamp=timestamp)
            )
        request = ListOffsetsRequest(
            isolation_level=self._context.isolation_level, topics=list(topics.values()), timeout_ms=self._context.request_timeout_ms
        )
        self._context.send(address, request, token)
        return True

    def _advance_call(self, call: OffsetsCall, steady_ms: int) -> None:
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for tp, timestamp in call.times.items():
            if tp not in call.found and tp not in self._calls_under_way and self._has_leader(tp):
                by_leader.setdefault(self._leader_of(tp), {})[tp] = timestamp
        for node_id, times in by_leader.items():
            if self._send_list(node_id, times, ListOffsetsToken(times, {}, call), steady_ms):
                self._calls_under_way |= dict.fromkeys(times, call)

    def _advance_validation(self, steady_ms: int) -> None:
        by_leader: dict[int, list[PartitionState]] = {}
        for state in self._ready(Stage.VALIDATING, steady_ms):
            assert state.position is not None, "only a position can be checked"
            if self._context.leader_epoch(state.tp) < 0:
                # A cluster without epochs cannot check one. It may report epochs later: the position is checked then.
                state.validated(state.position.leader_epoch)
            else:
                by_leader.setdefault(self._leader_of(state.tp), []).append(state)
        for node_id, states in by_leader.items():
            address = self._context.node_address(node_id, steady_ms)
            if address is None:
                continue
            positions = {state.tp: state.position for state in states if state.position is not None}
            token = EpochsToken(
                positions,
                {tp: self._context.leader_epoch(tp) for tp in positions},
                {tp: self._context.ids.current(tp.topic) for tp in positions},
            )
            self._under_way |= positions.keys()
            self._context.send(address, _epochs_request(token), token)

    def _expire(self, steady_ms: int) -> None:
        for call in list(self._calls):
            if (missing_error := self._missing_partitions.error(call.times, steady_ms)) is not None:
                self._missing_partitions.forget(call.times)
                self._finish(call, FailCall(call=call.call, error=missing_error))
            elif steady_ms >= call.deadline_ms:
                error = self._context.timeout_error(
                    self._timeout_text(call), call.last_error, tps=call.times, uses_group=False, api="ListOffsets"
                )
                self._finish(call, FailCall(call=call.call, error=error))

    def _timeout_text(self, call: OffsetsCall) -> str:
        """Which partitions got no offset, and which broker each of them waits for."""
        missing = call.times.keys() - call.found.keys()
        text = f"no offset of {names_of(missing)} was received {call.limit}"
        cluster = self._context.cluster
        leaders = {tp: cluster.leader_of(tp) for tp in missing}
        leaderless = [tp for tp, leader in leaders.items() if leader is None]
        if leaderless and cluster.updated_ms is not None:
            text += f", no leader is known for {names_of(leaderless)}"
        pending = {cluster.address_of(leader) for tp, leader in leaders.items() if leader is not None and tp in self._calls_under_way}
        return text + "".join(sorted(f", {address} has not responded yet" for address in pending if address is not None))

    def _finish(self, call: OffsetsCall, effect: CompleteCall | FailCall) -> None:
        if call in self._calls:
            self._calls.remove(call)
            self._context.out.append(effect)

    def fail_all(self, error: KafkaException) -> None:
        for call in list(self._calls):
            self._finish(call, FailCall(call=call.call, error=error))

    # Responses.

    def list_response_received(self, event: ResponseReceived, steady_ms: int) -> None:
        token: ListOffsetsToken = event.token
        self._forget(token)
        for topic in event.message.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                code = codes.by_number(partition.error_code, numbering=event.numbering)
                found = (
                    None if partition.offset == NO_OFFSET else FoundOffset(partition.offset, partition.timestamp, partition.leader_epoch)
                )
                if tp not in token.times:
                    continue
                if token.call is not None:
                    self._offset_received(token.call, tp, code, found, steady_ms)
                else:
                    self._reset(token.resets[tp], code, found, steady_ms)
        call = token.call
        if call is not None and len(call.found) == len(call.times):
            self._finish(call, CompleteCall(call=call.call, result=call.found))
        self._context.wake_caller()

    def _forget(self, token: ListOffsetsToken) -> None:
        if token.call is None:
            self._under_way -= token.times.keys()
        else:
            for tp in token.times:
                self._calls_under_way.pop(tp, None)

    def _offset_received(self, call: OffsetsCall, tp: TopicPartition, code: ErrorCode, found: FoundOffset | None, steady_ms: int) -> None:
        if code is codes.NONE:
            call.found[tp] = found
            return
        call.last_error = exception_for(code, topic_partition=tp, api="ListOffsets")
        if code.is_retriable or code in TRANSIENT:
            self._context.refresh()
            self._calls_not_before_ms = steady_ms + self._context.wait_ms(1)
        else:
            self._finish(call, FailCall(call=call.call, error=call.last_error))

    def _reset(self, reset: Reset, code: ErrorCode, found: FoundOffset | None, steady_ms: int) -> None:
        state, tp = reset.state, reset.state.tp
        is_wanted = self._context.subscriptions.assigned.get(tp) is state and state.stage is Stage.RESETTING
        if not is_wanted or state.reset_to != reset.strategy:
            return
        if self._context.ids.is_outdated(tp.topic, reset.topic_id):
            return  # A new request follows.
        if code is not codes.NONE:
            self._retry_later(state, code, "ListOffsets", steady_ms)
        elif found is None:
            state.reset(LATEST)  # No record is recent enough: start at the end.
        else:
            state.seek(Position(found.offset, -1, self._context.leader_epoch(tp)))

    def _retry_later(self, state: PartitionState, code: ErrorCode, api: str, steady_ms: int) -> None:
        passes = code.is_retriable or code in TRANSIENT
        state.back_off(steady_ms + self._context.wait_ms(1), code if passes else None)
        if passes:
            self._context.refresh()
        else:
            self._context.fail(exception_for(code, topic_partition=state.tp, stored=Stored.NO, api=api))

    def list_request_failed(self, token: ListOffsetsToken, event: RequestFailed, steady_ms: int) -> None:
        self._forget(token)
        if token.call is not None:
            token.call.last_error = network_error(event, "ListOffsets")
        self._retry_positions(token.times if token.call is None else (), steady_ms)
        self._calls_not_before_ms = steady_ms + self._context.wait_ms(1)

    def _retry_positions(self, tps: Iterable[TopicPartition], steady_ms: int) -> None:
        self._context.refresh()
        for tp in tps:
            state = self._context.subscriptions.assigned.get(tp)
            if state is not None:
                state.back_off(steady_ms + self._context.wait_ms(1))

    def epochs_response_received(self, event: ResponseReceived, steady_ms: int) -> None:
        token: EpochsToken = event.token
        self._under_way -= token.positions.keys()
        for topic in event.message.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.topic, partition.partition)
                state = self._context.subscriptions.assigned.get(tp)
                if state is None or state.stage is not Stage.VALIDATING or state.position != token.positions.get(tp):
                    continue
                if self._context.ids.is_outdated(tp.topic, token.topic_ids[tp]):
                    continue
                code = codes.by_number(partition.error_code, numbering=event.numbering)
                if code is not codes.NONE:
                    self._retry_later(state, code, "OffsetForLeaderEpoch", steady_ms)
                else:
                    self._validated(state, partition.leader_epoch, partition.end_offset, token.epochs[tp])
        self._context.wake_caller()

    def _validated(self, state: PartitionState, epoch: int, end_offset: int, leader_epoch: int) -> None:
        position = state.position
        assert position is not None, "only a position can be checked"
        if end_offset >= position.offset:
            state.validated(leader_epoch)
            return
        tp, offset, strategy = state.tp, position.offset, self._context.reset_strategy
        self._fetcher.drop(tp)
        text = f"the new leader's log of {tp} ends at {end_offset} for the epoch of the last record read, before the position {offset}"
        if strategy is NONE:
            state.seek(Position(offset, -1, leader_epoch))
            text += "; auto.offset.reset is none: seek"
            self._context.fail(OffsetOutOfRangeException(text, topic_partition=tp, stored=Stored.NO))
        elif end_offset < 0 or epoch < 0:
            self._context.report(f"{text}; continuing as auto.offset.reset says ({strategy.name})")
            state.reset(strategy)
        else:
            self._context.report(f"{text}; continuing there")
            state.seek(Position(end_offset, epoch, leader_epoch))

    def epochs_request_failed(self, token: EpochsToken, event: RequestFailed, steady_ms: int) -> None:
        self._under_way -= token.positions.keys()
        if not event.is_unsupported:
            self._retry_positions(token.positions, steady_ms)
            return
        for tp in token.positions:
            state = self._context.subscriptions.assigned.get(tp)
            if state is not None and state.stage is Stage.VALIDATING and state.position is not None:
                state.validated(token.epochs[tp])

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """When something is due. Partitions in back-off are counted by the fetcher."""
        if not self._calls:
            return None
        times = [self._calls_not_before_ms, *(call.deadline_ms for call in self._calls)]
        return min((time for time in times if time > steady_ms), default=None)


def _epochs_request(token: EpochsToken) -> OffsetForLeaderEpochRequest:
    topics: dict[str, OffsetForLeaderTopic] = {}
    for tp, position in token.positions.items():
        topics.setdefault(tp.topic, OffsetForLeaderTopic(topic=tp.topic)).partitions.append(
            OffsetForLeaderPartition(partition=tp.partition, current_leader_epoch=token.epochs[tp], leader_epoch=position.offset_epoch)
        )
    return OffsetForLeaderEpochRequest(replica_id=CONSUMER_REPLICA, topics=list(topics.values()))
