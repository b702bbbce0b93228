"""ConsumerCore: the consumer as a state machine: events and the time go in, effects come out. It has no clock, socket, thread or
randomness.

`positions` holds what is read, `membership` and `rebalance` follow the group, `fetcher` and `lookups` send requests to leaders, `commits`
to the coordinator. Network events go to `handle`; calls of the application are methods, called on the thread that owns the core. The core
has no lock. After any call, `drain()` returns the requests that it caused.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from chaffinch.client.addresses import Address
from chaffinch.client.arguments import INT64_MAX
from chaffinch.client.backoff import Rng
from chaffinch.client.connections import Connected, Disconnected, RequestFailed, RequestWritten, ResponseReceived
from chaffinch.client.effects import CompleteCall
from chaffinch.consumer.core.call_errors import network_error
from chaffinch.consumer.core.context import ConsumerContext, Effect
from chaffinch.consumer.core.fetcher import Fetcher, FetchToken, Portion
from chaffinch.consumer.core.group import Group
from chaffinch.consumer.core.lookups import EpochsToken, ListOffsetsToken, OffsetLookups
from chaffinch.consumer.core.membership_states import MembershipEvent, State
from chaffinch.consumer.core.metadata_watch import MetadataToken, MetadataWatch, TopicCalls
from chaffinch.consumer.core.missing_partitions import MissingPartitions
from chaffinch.consumer.core.pending_offsets import TopicsToken
from chaffinch.consumer.core.positions import Kind, Position, Stage
from chaffinch.consumer.core.rebalance import Callback
from chaffinch.consumer.core.reset_policy import RecreatedTopics, ResetPolicy
from chaffinch.consumer.core.wait_log import ConsumerWaitLog
from chaffinch.errors import (
    KafkaException,
    NoOffsetForPartitionException,
    Stored,
    exception_for,
)
from chaffinch.errors.copies import copy_for_raise
from chaffinch.identifiers import ConsumerGroupMetadata, TopicPartition
from chaffinch.settings import Settings


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The event without content: `next_deadline_ms` is reached."""


Event: TypeAlias = TimePassed | ResponseReceived | RequestFailed | RequestWritten | Connected | Disconnected


class ConsumerCore:
    """One consumer. `next_deadline_ms`: when to call `handle` next without an event."""

    def __init__(self, settings: Settings, rng: Rng) -> None:
        self.context = ConsumerContext(settings, rng)
        self.subscriptions = self.context.subscriptions
        self.metadata_watch = MetadataWatch(self.context)
        self.resets = ResetPolicy(self.context, self.metadata_watch)
        self.missing_partitions = MissingPartitions(self.context)
        self.fetcher = Fetcher(self.context)
        self.lookups = OffsetLookups(self.context, self.missing_partitions, self.fetcher)
        self.recreated_topics = RecreatedTopics(self.context, self.fetcher, self.resets)
        self.group = Group(self.context, self.missing_partitions, self.fetcher, self.resets) if self.context.group_id else None
        self.topic_calls = TopicCalls(self.context, self.metadata_watch, self.missing_partitions)
        self.next_deadline_ms: int | None = None
        self._authentication_errors: dict[Address, KafkaException] = {}
        """Brokers that rejected the last login, with an error that the caller has not got yet."""
        self._close: tuple[Any, int] | None = None
        self._reported_missing: set[TopicPartition] = set()
        """Assigned partitions that were reported missing to the caller."""
        self.wait_log = ConsumerWaitLog(self.context, self.group)

    # Network events.

    def handle(self, event: Event, steady_ms: int) -> list[Effect]:
        """Process an event that occurred at `steady_ms`, do what is due, and return the effects."""
        return self.handle_all((event,), steady_ms)

    def handle_all(self, events: Iterable[Event], steady_ms: int) -> list[Effect]:
        """Process simultaneous events in order, then do what is due once."""
        for event in events:
            event = self.context.explain_unreachable(event)
            if not isinstance(event, TimePassed):
                self.wait_log.handle(event, steady_ms)
            match event:
                case ResponseReceived():
                    self._response_received(event, steady_ms)
                case RequestFailed():
                    self._request_failed(event, steady_ms)
                case Connected():
                    self._authentication_errors.pop(event.address, None)
                    self.context.attempts.succeeded(event.address)
                case Disconnected():
                    self.context.attempts.failed(event.address, event.reason, steady_ms, had_response=event.had_response)
                    self.context.refresh()
                    if self.group is not None:
                        self.group.connection_lost(event.address)
                    if event.error is not None:  # Retries cannot solve it: fail the calls.
                        self._authentication_errors[event.address] = event.error
                        self.context.wake_caller()
                        self._fail_callers(event.error)
                case TimePassed() | RequestWritten():
                    pass
        return self.drain(steady_ms)

    def _response_received(self, event: ResponseReceived, steady_ms: int) -> None:
        token = event.token
        throttle_ms = getattr(event.message, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self.context.attempts.throttled(event.address, steady_ms + throttle_ms)
        match token:
            case FetchToken():
                self.fetcher.response_received(event, steady_ms)
            case ListOffsetsToken():
                self.lookups.list_response_received(event, steady_ms)
            case EpochsToken():
                self.lookups.epochs_response_received(event, steady_ms)
            case MetadataToken():
                self._metadata_received(event, steady_ms)
            case _:
                assert self.group is not None, f"a response without a request: {event}"
                if isinstance(token, TopicsToken):
                    self.recreated_topics.handle(self.metadata_watch.learn(event.message, steady_ms))
                self.group.response_received(event, steady_ms)

    def _request_failed(self, event: RequestFailed, steady_ms: int) -> None:
        token = event.token
        match token:
            case FetchToken():
                self.fetcher.request_failed(token, steady_ms)
            case ListOffsetsToken():
                self.lookups.list_request_failed(token, event, steady_ms)
            case EpochsToken():
                self.lookups.epochs_request_failed(token, event, steady_ms)
            case MetadataToken():
                self.metadata_watch.request_failed(network_error(event), steady_ms)
            case _:
                assert self.group is not None, f"a failure without a request: {event}"
                self.group.request_failed(event, steady_ms)

    def _metadata_received(self, event: ResponseReceived, steady_ms: int) -> None:
        recreated_topics = self.metadata_watch.response_received(event.message, steady_ms)
        self.resets.learn()
        self.recreated_topics.handle(recreated_topics)
        self._match_pattern()
        if self.group is not None:
            self.group.membership.metadata_changed()
        self.context.leaderless |= {TopicPartition(topic, -1) for topic in self.subscriptions.topics}
        # A topic that only a call needs fails that call instead.
        polled = self._needed_topics()
        for topic, code in self.metadata_watch.refusals().items():
            if topic not in polled:
                continue
            self.context.fail(exception_for(code, topic_partition=TopicPartition(topic, -1), stored=Stored.NO, api="Metadata"))
        self.context.wake_caller()

    def _match_pattern(self) -> None:
        if self.subscriptions.kind is Kind.PATTERN and self.metadata_watch.has_all_topics:
            excluded = self.metadata_watch.internal if self.context.settings["exclude.internal.topics"] else frozenset()
            self.subscriptions.topics = self.subscriptions.matches(set(self.context.cluster.topics()) - excluded)

    # The round.

    def drain(self, steady_ms: int) -> list[Effect]:
        """Do what is due, and return the effects; called after every call of the methods below."""
        self.recreated_topics.drop_outdated()  # For partitions that have been assigned since then.
        self._watch_topics()
        self.metadata_watch.advance(steady_ms)
        if self.group is not None:
            self.group.advance(steady_ms)
        else:
            self._reset_positions_without_group(steady_ms)
        self.lookups.advance(steady_ms)
        self.fetcher.advance(steady_ms)
        self.topic_calls.request_metadata()
        leaderless, self.context.leaderless = self.context.leaderless, set()
        self._check_missing(leaderless, steady_ms)
        self._complete_calls(steady_ms)
        if self.group is not None:
            self.group.membership.pending_leave.advance(steady_ms, is_committing=self.group.commits.is_committing)
        self.wait_log.requests_sent(self.context.out, steady_ms)
        self.wait_log.update(self.lookups.pending_tps, leaderless, steady_ms)
        self.next_deadline_ms = self._next_deadline(steady_ms)
        effects, self.context.out = self.context.out, []
        return effects

    def _watch_topics(self) -> None:
        topics = self._needed_topics() | self.lookups.topics | self.topic_calls.topics
        topics |= set() if self.group is None else self.group.commits.topics
        self.metadata_watch.use(topics, all_topics=self.subscriptions.kind is Kind.PATTERN)

    def _needed_topics(self) -> set[str]:
        """Topics read here, or by members of the group if this one leads it."""
        topics = {tp.topic for tp in self.subscriptions.assigned} | self.subscriptions.topics
        return topics if self.group is None else topics | self.group.membership.leader.topics

    def _reset_positions_without_group(self, steady_ms: int) -> None:
        """Without a group there are no committed offsets."""
        for state in self.subscriptions.at(Stage.COMMITTED, steady_ms):
            if self.resets.is_known(state.tp.topic):
                state.reset(self.resets.strategy_for(state.tp))

    def _check_missing(self, leaderless: set[TopicPartition], steady_ms: int) -> None:
        self.missing_partitions.update(leaderless, steady_ms)
        if not leaderless or self.subscriptions.kind is not Kind.MANUAL:
            return
        for tp in sorted((leaderless & self.subscriptions.assigned.keys()) - self._reported_missing):
            error = self.missing_partitions.error([tp], steady_ms)
            # A topic may be assigned before it is created; a missing partition of an existing topic is a mistake.
            if error is not None and error.topic_partition == tp:
                self._reported_missing.add(tp)
                self.context.fail(error)

    def _complete_calls(self, steady_ms: int) -> None:
        self.topic_calls.advance(steady_ms)
        if self._close is not None:
            call_of_close, deadline_ms = self._close
            group, has_expired = self.group, steady_ms >= deadline_ms
            is_committing = group is not None and group.commits.is_committing
            if has_expired or not is_committing:
                self.leave("the consumer is being closed")
            is_done = group is None or not (is_committing or group.membership.pending_leave.is_under_way)
            if is_done or has_expired:
                self._close = None
                if group is not None and group.membership.pending_leave.is_under_way:
                    self.wait_log.report_unconfirmed_leave()
                self.context.out.append(CompleteCall(call=call_of_close))

    def _next_deadline(self, steady_ms: int) -> int | None:
        context = self.context
        times = [self.metadata_watch.next_deadline_ms(), self.missing_partitions.next_deadline_ms(steady_ms)]
        times += [self.fetcher.next_deadline_ms(steady_ms), self.lookups.next_deadline_ms(steady_ms)]
        times += () if self.group is None else self.group.deadlines_ms(steady_ms)
        times += [*self.topic_calls.deadlines_ms(), self.wait_log.next_deadline_ms(steady_ms)]
        times += [] if self._close is None else [self._close[1]]
        times.append(context.attempts.wait_ends_ms(steady_ms))
        return min((time for time in times if time is not None and time > steady_ms), default=None)

    # Calls of the application.

    def raise_error(self) -> None:
        """Raise the next error for the caller, if there is one."""
        if self.group is not None and self.group.membership.fatal is not None:
            raise copy_for_raise(self.group.membership.fatal)
        if self._authentication_errors:
            raise self._authentication_errors.popitem()[1]
        if self.context.errors:
            raise self.context.errors.popleft()
        missing = sorted(state.tp for state in self.subscriptions.at(Stage.NEEDS_SEEK, INT64_MAX))
        if missing:
            text = f"no committed offset for {', '.join(map(str, missing))}, and auto.offset.reset is none: seek"
            raise NoOffsetForPartitionException(text, topic_partition=missing[0])

    def raise_if_missing(self, tp: TopicPartition, steady_ms: int) -> None:
        """Raise if this partition, whose position a call waits for, is missing."""
        error = self.missing_partitions.error([tp], steady_ms)
        if error is not None:
            self.missing_partitions.forget([tp])
            self._reported_missing.add(tp)
            self.context.errors = deque(found for found in self.context.errors if found.topic_partition != error.topic_partition)
            raise error

    def set_wall_clock(self, steady_ms: int, wall_ms: int) -> None:
        """Set the wall clock (ms since 1970) at `steady_ms`, from which `by_duration` counts back. Call it before any lookup."""
        self.lookups.wall_offset_ms = wall_ms - steady_ms

    def poll_started(self, steady_ms: int, wall_ms: int) -> None:
        """The caller polls: it is alive, and has processed the records of earlier polls."""
        self.set_wall_clock(steady_ms, wall_ms)
        self.return_undelivered()
        self.poll_resumed(steady_ms)
        if self.group is not None:
            self.group.commits.polled(steady_ms)

    def poll_resumed(self, steady_ms: int) -> None:
        """The caller is in `poll`, and in none of its callbacks."""
        if self.group is not None:
            self.group.membership.polled(steady_ms, is_polling=True)

    def poll_ended(self, steady_ms: int) -> None:
        if self.group is not None:
            self.group.membership.polled(steady_ms, is_polling=False)

    def next_callback(self, steady_ms: int) -> Callback | None:
        """The callback that the caller has to run next, before anything is read."""
        if self.group is None or not self.subscriptions.is_automatic:
            return None
        has_topics = self.subscriptions.kind is not Kind.PATTERN or self.metadata_watch.has_all_topics
        return self.group.rebalance.next_callback(steady_ms, has_topics=has_topics)

    def callback_done(self, callback: Callback) -> None:
        assert self.group is not None, "callbacks come from the group"
        self.group.rebalance.callback_done(callback)

    def take(self, records_max: int) -> list[Portion]:
        """Records for the caller; none while positions are being committed before a rebalance."""
        if self.group is not None and self.group.rebalance.is_committing:
            return []
        return self.fetcher.take(records_max)

    def subscribe(self, topics: Collection[str]) -> None:
        self.subscriptions.subscribe(topics)
        self._enter_group()

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        self.subscriptions.subscribe_pattern(pattern)
        self._match_pattern()
        self._enter_group()

    def _enter_group(self) -> None:
        assert self.group is not None, "the shell requires a group.id"
        if self.group.membership.state is State.OUT:
            self.group.membership.transition(MembershipEvent.SUBSCRIBED)

    def assign(self, tps: Collection[TopicPartition], steady_ms: int) -> None:
        if self.group is not None:
            self.group.commits.polled(steady_ms)
        self._reported_missing.clear()
        self.missing_partitions.clear()
        before = set(self.subscriptions.assigned)
        self.subscriptions.assign_manually(tps)
        for tp in before - set(tps):
            self.fetcher.drop(tp)

    def leave_callback(self) -> Callback | None:
        """The callback to run before `leave`."""
        return None if self.group is None or not self.subscriptions.is_automatic else self.group.rebalance.leave_callback()

    def leave(self, reason: str) -> None:
        """Stop reading, and leave the group."""
        for tp in list(self.subscriptions.assigned):
            self.fetcher.drop(tp)
        self.subscriptions.clear()
        if self.group is not None and self.group.membership.is_active:
            self.group.membership.leave(reason)

    def close(self, call: Any, deadline_ms: int) -> None:
        """`call` completes at the response to LeaveGroup, or at the deadline. Pending commits are sent first."""
        self._close = call, deadline_ms

    def return_undelivered(self) -> None:
        """Records that were polled for a loop and not delivered are read again."""
        for tp, state in self.subscriptions.assigned.items():
            if state.position is not None and 0 <= state.delivered_offset < state.position.offset:
                self.seek(tp, Position(state.delivered_offset))
            state.delivered_offset = -1

    def seek(self, tp: TopicPartition, position: Position) -> None:
        state = self.subscriptions.of(tp)
        self.fetcher.drop(tp)
        state.seek(position)

    def seek_to(self, tps: Iterable[TopicPartition], strategy: Any) -> None:
        states = [self.subscriptions.of(tp) for tp in tps]
        for state in states:
            self.fetcher.drop(state.tp)
            state.reset(strategy)

    def group_metadata(self) -> ConsumerGroupMetadata:
        assert self.group is not None, "the shell requires a group.id"
        return self.group.membership.caller_metadata(self.subscriptions.delivered_ids())

    def fail_all(self, error: KafkaException) -> list[Effect]:
        """Fail all calls: the shell has failed."""
        self._fail_callers(error)
        if self._close is not None:
            self.context.out.append(CompleteCall(call=self._close[0]))
            self._close = None
        effects, self.context.out = self.context.out, []
        return effects

    def _fail_callers(self, error: KafkaException) -> None:
        self.lookups.fail_all(error)
        if self.group is not None:
            self.group.commits.fail_all(error)
        self.topic_calls.fail_all(error)
