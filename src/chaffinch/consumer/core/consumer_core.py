"""The consumer's core: what happened and the time go in, effects come out. No clock, socket, thread or dice of its own.

It ties the parts together: `positions` says what is read, `membership` and `rebalance` keep to the group, `fetcher` and `lookups` ask the
leaders, `commits` the coordinator. What the network reports comes through `handle`; what the caller does are methods, for its own thread.
One lock around all of it is its owner's business. Whatever was called, the requests it leads to are in `drain()` afterwards.
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
from chaffinch.consumer.core.absences import Absences
from chaffinch.consumer.core.call_errors import network_error
from chaffinch.consumer.core.fetcher import Fetcher, FetchSent, Portion
from chaffinch.consumer.core.group import Group
from chaffinch.consumer.core.lookups import EpochsSent, ListSent, OffsetLookups
from chaffinch.consumer.core.membership_moves import Happening, State
from chaffinch.consumer.core.offsets_asked import TopicsAsked
from chaffinch.consumer.core.positions import Kind, Position, Stage
from chaffinch.consumer.core.rebalance import Callback
from chaffinch.consumer.core.reset_policy import Renewals, ResetPolicy
from chaffinch.consumer.core.topic_watch import MetadataAsked, TopicCalls, TopicWatch
from chaffinch.consumer.core.waits import Waits
from chaffinch.consumer.core.wiring import Effect, Wiring
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
    """Nothing else; said when `next_deadline_ms` is reached."""


Event: TypeAlias = TimePassed | ResponseReceived | RequestFailed | RequestWritten | Connected | Disconnected


class ConsumerCore:
    """One consumer. `next_deadline_ms` is when to call `handle` next without an event."""

    def __init__(self, settings: Settings, dice: Rng) -> None:
        self.wiring = Wiring(settings, dice)
        self.subscriptions = self.wiring.subscriptions
        self.watch = TopicWatch(self.wiring)
        self.resets = ResetPolicy(self.wiring, self.watch)
        self.absences = Absences(self.wiring)
        self.fetcher = Fetcher(self.wiring)
        self.lookups = OffsetLookups(self.wiring, self.absences, self.fetcher)
        self.renewals = Renewals(self.wiring, self.fetcher, self.resets)
        self.group = Group(self.wiring, self.absences, self.fetcher, self.resets) if self.wiring.group_id else None
        self.topic_calls = TopicCalls(self.wiring, self.watch, self.absences)
        self.next_deadline_ms: int | None = None
        self._refused: dict[Address, KafkaException] = {}
        """Brokers that did not let us in when they were last asked, of which the caller has not heard."""
        self._close: tuple[Any, int] | None = None
        self._told_absent: set[TopicPartition] = set()
        """Assigned by the caller, who has heard that they are not there."""
        self.waits = Waits(self.wiring, self.group)

    # What the network reports.

    def handle(self, event: Event, steady_ms: int) -> list[Effect]:
        """Take in what has happened at `steady_ms`, do whatever can be done now, and say what the shell is to do."""
        return self.handle_all((event,), steady_ms)

    def handle_all(self, heard: Iterable[Event], steady_ms: int) -> list[Effect]:
        """Several events of one moment, in order, and one round for all."""
        for event in heard:
            event = self.wiring.explain_unreachable(event)
            if not isinstance(event, TimePassed):
                self.waits.note(event, steady_ms)
            match event:
                case ResponseReceived():
                    self._answered(event, steady_ms)
                case RequestFailed():
                    self._failed(event, steady_ms)
                case Connected():
                    self._refused.pop(event.address, None)
                    self.wiring.attempts.succeeded(event.address)
                case Disconnected():
                    self.wiring.attempts.failed(event.address, event.reason, steady_ms, had_response=event.had_response)
                    self.wiring.refresh()
                    if self.group is not None:
                        self.group.lost(event.address)
                    if event.error is not None:  # Waiting is no use: whoever calls is told.
                        self._refused[event.address] = event.error
                        self.wiring.wake()
                        self._fail_callers(event.error)
                case TimePassed() | RequestWritten():
                    pass
        return self.drain(steady_ms)

    def _answered(self, event: ResponseReceived, steady_ms: int) -> None:
        token = event.token
        throttle_ms = getattr(event.message, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self.wiring.attempts.throttled(event.address, steady_ms + throttle_ms)
        match token:
            case FetchSent():
                self.fetcher.answered(event, steady_ms)
            case ListSent():
                self.lookups.list_answered(event, steady_ms)
            case EpochsSent():
                self.lookups.epochs_answered(event, steady_ms)
            case MetadataAsked():
                self._metadata_heard(event, steady_ms)
            case _:
                assert self.group is not None, f"an answer to nothing: {event}"
                if isinstance(token, TopicsAsked):
                    self.renewals.take(self.watch.learn(event.message, steady_ms))
                self.group.answered(event, steady_ms)

    def _failed(self, event: RequestFailed, steady_ms: int) -> None:
        token = event.token
        match token:
            case FetchSent():
                self.fetcher.failed(token, steady_ms)
            case ListSent():
                self.lookups.list_failed(token, event, steady_ms)
            case EpochsSent():
                self.lookups.epochs_failed(token, event, steady_ms)
            case MetadataAsked():
                self.watch.unanswered(network_error(event), steady_ms)
            case _:
                assert self.group is not None, f"a failure of nothing: {event}"
                self.group.failed(event, steady_ms)

    def _metadata_heard(self, event: ResponseReceived, steady_ms: int) -> None:
        renewals = self.watch.answered(event.message, steady_ms)
        self.resets.learn()
        self.renewals.take(renewals)
        self._match_pattern()
        if self.group is not None:
            self.group.membership.metadata_changed()
        self.wiring.missed |= {TopicPartition(topic, -1) for topic in self.subscriptions.topics}
        # Of topics that only a call asks for the call tells.
        polled = self._topics_polled()
        for topic, code in self.watch.refusals().items():
            if topic not in polled:
                continue
            self.wiring.fail(exception_for(code, topic_partition=TopicPartition(topic, -1), stored=Stored.NO, api="Metadata"))
        self.wiring.wake()

    def _match_pattern(self) -> None:
        if self.subscriptions.kind is Kind.PATTERN and self.watch.has_heard_all:
            excluded = self.watch.internal if self.wiring.settings["exclude.internal.topics"] else frozenset()
            self.subscriptions.topics = self.subscriptions.matches(set(self.wiring.cluster.topics()) - excluded)

    # The round.

    def drain(self, steady_ms: int) -> list[Effect]:
        """Do what is due, and say what the shell is to do; after every call of the methods below."""
        self.renewals.drop_past()  # Of partitions that have come since.
        self._watch_topics()
        self.watch.advance(steady_ms)
        if self.group is not None:
            self.group.advance(steady_ms)
        else:
            self._begin_positions(steady_ms)
        self.lookups.advance(steady_ms)
        self.fetcher.advance(steady_ms)
        self.topic_calls.miss()
        missed, self.wiring.missed = self.wiring.missed, set()
        self._look_for_absent(missed, steady_ms)
        self._settle(steady_ms)
        if self.group is not None:
            self.group.membership.departure.advance(steady_ms, is_committing=self.group.commits.is_committing)
        self.waits.note_sent(self.wiring.out, steady_ms)
        self.waits.look(self.lookups.places, missed, steady_ms)
        self.next_deadline_ms = self._next_deadline(steady_ms)
        effects, self.wiring.out = self.wiring.out, []
        return effects

    def _watch_topics(self) -> None:
        topics = self._topics_polled() | self.lookups.topics | self.topic_calls.topics
        topics |= set() if self.group is None else self.group.commits.topics
        self.watch.use(topics, all_topics=self.subscriptions.kind is Kind.PATTERN)

    def _topics_polled(self) -> set[str]:
        """Those read here, or by members of the group that this one may have to share them out to."""
        topics = {place.topic for place in self.subscriptions.assigned} | self.subscriptions.topics
        return topics if self.group is None else topics | self.group.membership.leadership.topics

    def _begin_positions(self, steady_ms: int) -> None:
        """Without a group nothing was ever committed."""
        for state in self.subscriptions.at(Stage.COMMITTED, steady_ms):
            if self.resets.is_known(state.place.topic):
                state.reset(self.resets.of(state.place))

    def _look_for_absent(self, missed: set[TopicPartition], steady_ms: int) -> None:
        self.absences.look(missed, steady_ms)
        if not missed or self.subscriptions.kind is not Kind.MANUAL:
            return
        for place in sorted((missed & self.subscriptions.assigned.keys()) - self._told_absent):
            error = self.absences.error([place], steady_ms)
            # A topic may be assigned before it is created; partitions that its creator left out are a mistake.
            if error is not None and error.topic_partition == place:
                self._told_absent.add(place)
                self.wiring.fail(error)

    def _settle(self, steady_ms: int) -> None:
        self.topic_calls.advance(steady_ms)
        if self._close is not None:
            call_of_close, deadline_ms = self._close
            group, is_late = self.group, steady_ms >= deadline_ms
            is_committing = group is not None and group.commits.is_committing
            if is_late or not is_committing:
                self.leave("the consumer is being closed")
            is_done = group is None or not (is_committing or group.membership.departure.is_under_way)
            if is_done or is_late:
                self._close = None
                if group is not None and group.membership.departure.is_under_way:
                    self.waits.report_not_left()
                self.wiring.out.append(CompleteCall(call=call_of_close))

    def _next_deadline(self, steady_ms: int) -> int | None:
        wiring = self.wiring
        times = [self.watch.next_deadline_ms(), self.absences.next_deadline_ms(steady_ms)]
        times += [self.fetcher.next_deadline_ms(steady_ms), self.lookups.next_deadline_ms(steady_ms)]
        times += () if self.group is None else self.group.deadlines_ms(steady_ms)
        times += [*self.topic_calls.deadlines_ms(), self.waits.next_deadline_ms(steady_ms)]
        times += [] if self._close is None else [self._close[1]]
        times.append(wiring.attempts.wait_ends_ms(steady_ms))
        return min((time for time in times if time is not None and time > steady_ms), default=None)

    # What the caller does.

    def raise_error(self) -> None:
        """Raise what the caller has to hear, if there is something."""
        if self.group is not None and self.group.membership.fatal is not None:
            raise copy_for_raise(self.group.membership.fatal)
        if self._refused:
            raise self._refused.popitem()[1]
        if self.wiring.errors:
            raise self.wiring.errors.popleft()
        missing = sorted(state.place for state in self.subscriptions.at(Stage.MISSING, INT64_MAX))
        if missing:
            text = f"no committed offset for {', '.join(map(str, missing))}, and auto.offset.reset is none: seek"
            raise NoOffsetForPartitionException(text, topic_partition=missing[0])

    def raise_absence(self, place: TopicPartition, steady_ms: int) -> None:
        """Tell who waits for this partition's position that it is not there."""
        error = self.absences.error([place], steady_ms)
        if error is not None:
            self.absences.forget([place])
            self._told_absent.add(place)
            self.wiring.errors = deque(found for found in self.wiring.errors if found.topic_partition != error.topic_partition)
            raise error

    def tell_time_of_day(self, steady_ms: int, wall_ms: int) -> None:
        """Set the wall clock (ms since 1970) at `steady_ms`, from which `by_duration` counts back. Call it before any look-up."""
        self.lookups.wall_offset_ms = wall_ms - steady_ms

    def poll_begins(self, steady_ms: int, wall_ms: int) -> None:
        """The caller polls: it is alive, and done with what earlier polls gave."""
        self.tell_time_of_day(steady_ms, wall_ms)
        self.give_back()
        self.poll_goes_on(steady_ms)
        if self.group is not None:
            self.group.commits.polled(steady_ms)

    def poll_goes_on(self, steady_ms: int) -> None:
        """The caller is in `poll`, and in no callback of his own."""
        if self.group is not None:
            self.group.membership.polled(steady_ms, is_polling=True)

    def poll_ends(self, steady_ms: int) -> None:
        if self.group is not None:
            self.group.membership.polled(steady_ms, is_polling=False)

    def next_callback(self, steady_ms: int) -> Callback | None:
        """The callback that the caller has to run next, before anything is read."""
        if self.group is None or not self.subscriptions.is_automatic:
            return None
        knows_topics = self.subscriptions.kind is not Kind.PATTERN or self.watch.has_heard_all
        return self.group.rebalance.next_callback(steady_ms, knows_topics=knows_topics)

    def callback_done(self, callback: Callback) -> None:
        assert self.group is not None, "callbacks come from the group"
        self.group.rebalance.callback_done(callback)

    def take(self, records_max: int) -> list[Portion]:
        """Records for the caller; none while what it has read is being committed before a rebalance."""
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
        assert self.group is not None, "the shell asks for a group.id"
        if self.group.membership.state is State.OUT:
            self.group.membership.move(Happening.SUBSCRIBED)

    def assign(self, places: Collection[TopicPartition], steady_ms: int) -> None:
        if self.group is not None:
            self.group.commits.polled(steady_ms)
        self._told_absent.clear()
        self.absences.clear()
        before = set(self.subscriptions.assigned)
        self.subscriptions.assign_manually(places)
        for place in before - set(places):
            self.fetcher.drop(place)

    def leaving(self) -> Callback | None:
        """What to tell the caller before `leave`."""
        return None if self.group is None or not self.subscriptions.is_automatic else self.group.rebalance.leaving()

    def leave(self, reason: str) -> None:
        """Read nothing any more, and be in no group."""
        for place in list(self.subscriptions.assigned):
            self.fetcher.drop(place)
        self.subscriptions.clear()
        if self.group is not None and self.group.membership.is_active:
            self.group.membership.leave(reason)

    def close(self, call: Any, deadline_ms: int) -> None:
        """`call` completes when the group has heard of it, or at the deadline. Commits that wait for the coordinator go before."""
        self._close = call, deadline_ms

    def give_back(self) -> None:
        """What was polled to be given one by one, and was not, is read again."""
        for place, state in self.subscriptions.assigned.items():
            if state.position is not None and 0 <= state.given < state.position.offset:
                self.seek(place, Position(state.given))
            state.given = -1

    def seek(self, place: TopicPartition, position: Position) -> None:
        state = self.subscriptions.of(place)
        self.fetcher.drop(place)
        state.seek(position)

    def seek_to(self, places: Iterable[TopicPartition], strategy: Any) -> None:
        states = [self.subscriptions.of(place) for place in places]
        for state in states:
            self.fetcher.drop(state.place)
            state.reset(strategy)

    def group_metadata(self) -> ConsumerGroupMetadata:
        assert self.group is not None, "the shell asks for a group.id"
        return self.group.membership.metadata_of_caller(self.subscriptions.delivered_ids())

    def give_up(self, error: KafkaException) -> list[Effect]:
        """Fail everybody who waits: the shell cannot go on."""
        self._fail_callers(error)
        if self._close is not None:
            self.wiring.out.append(CompleteCall(call=self._close[0]))
            self._close = None
        effects, self.wiring.out = self.wiring.out, []
        return effects

    def _fail_callers(self, error: KafkaException) -> None:
        self.lookups.give_up(error)
        if self.group is not None:
            self.group.commits.give_up(error)
        self.topic_calls.give_up(error)
