"""A consumer in the simulated world: the very `ConsumerCore`, with what `consumer.py` and `consumer_thread.py` are to it, without threads.

A program asks for one thing at a time (`Poll`, `Commit`, ...) and gets its outcome when it is there. Whatever is delivered and committed
goes into the group's diary, as seen from outside of the core: commits are noted where they leave for the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from chaffinch.client.connections import RequestFailed, ResponseReceived
from chaffinch.client.effects import CompleteCall, Disconnect, FailCall, Report, SendRequest
from chaffinch.consumer.core.consumer_core import ConsumerCore, Event, TimePassed
from chaffinch.consumer.core.context import Effect, WakeCaller
from chaffinch.consumer.core.fetcher import Portion
from chaffinch.consumer.core.group import Group
from chaffinch.consumer.core.options import EARLIEST, parse_options
from chaffinch.consumer.core.positions import PartitionState, Position, Stage
from chaffinch.consumer.core.rebalance import Callback
from chaffinch.errors import KafkaException
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.protocol.messages.offset_commit import OffsetCommitRequest
from simulation.consumers import diaries
from simulation.consumers.diaries import Diary, Span, Taking
from simulation.network import Network
from simulation.programs.programs import Asked, Commit, GoBack, Leave, Poll
from simulation.records import number_of
from simulation.transport import Transport
from simulation.wakes import WakeTimer
from simulation.world import World

CONNECT_TIMEOUT_MS: Final = 700
CALL_MS: Final = 8_000
CLOSE_MS: Final = 20_000


Steps: TypeAlias = Generator[None, None, Any]
"""A call in steps: each yield waits until something has changed."""


class Pending:
    """The outcome of a call to the core."""

    def __init__(self) -> None:
        self.is_done = False
        self.result: Any = None

    def end(self, result: Any = None) -> None:
        self.is_done, self.result = True, result


class ConsumerShell:
    """See the module. `go_on` hears the outcome of what `begin` was asked for.

    `commits_on_revoke`: the program commits what it has read in the callback that takes partitions away.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        who: str,
        options: Mapping[str, Any],
        topics: Sequence[str],
        diary: Diary,
        go_on: Callable[[Any], None],
        *,
        commits_on_revoke: bool,
    ) -> None:
        settings = parse_options(options)
        self.who = who
        self.core = ConsumerCore(settings, world.new_dice())
        self._is_automatic = bool(settings["enable.auto.commit"])
        self._commits_on_revoke = commits_on_revoke
        self._records_max: int = settings["max.poll.records"]
        self._world = world
        self._diary = diary
        self._began = diary.next_moment()
        self._go_on = go_on
        self._transport = Transport(
            world, network, who, self._heard_all, request_timeout_ms=settings["request.timeout.ms"], connect_timeout_ms=CONNECT_TIMEOUT_MS
        )
        self._steps: Steps | None = None
        self._is_step_planned = False
        self._is_dead = False
        self._timer = WakeTimer(world, who, lambda: self._heard_all((TimePassed(),)))
        self._spans: dict[TopicPartition, tuple[Span, PartitionState]] = {}
        self._commits: list[tuple[Any, list[diaries.Commit]]] = []
        self.core.subscribe(topics)
        self._push()

    def close(self) -> None:
        """The process is gone."""
        self._is_dead = True
        self._transport.close()

    # What the program asks for ---------------------------------------------------------------------------------------------------------

    def begin(self, asked: Asked) -> None:
        match asked:
            case Poll():
                self._steps = self._polling(asked)
                self._world.after(asked.timeout_ms, self._step)
            case Commit():
                self._steps = self._committing(asked.waits)
            case GoBack():
                self._steps = self._going_back(asked.timeout_ms)
            case Leave():
                self._steps = self._leaving()
        self._step_soon()

    def _polling(self, asked: Poll) -> Steps:
        core, ends_ms = self.core, self._world.steady_ms + asked.timeout_ms
        self._all_processed()
        core.poll_started(self._world.steady_ms, self._world.steady_ms)
        try:
            while True:
                while (callback := core.next_callback(self._world.steady_ms)) is not None:
                    yield from self._telling(callback)
                    core.callback_done(callback)
                    self._push()
                core.raise_error()
                portions = core.take(self._records_max)
                self._note(portions)
                self._push()
                if portions or self._world.steady_ms >= ends_ms:
                    return portions
                yield
        except KafkaException as error:
            return error
        finally:
            core.poll_ended(self._world.steady_ms)

    @property
    def _group(self) -> Group:
        assert self.core.group is not None, "there is a group.id"
        return self.core.group

    def _telling(self, callback: Callback) -> Steps:
        self._world.tell(self.who, f"{callback.kind}: {', '.join(map(str, callback.partitions)) or 'nothing'}")
        self._world.count(f"members told: {callback.kind}")
        if callback.kind == "assign":
            membership = self._group.membership
            identity, member = membership.identity, self.core.context.instance_id or membership.identity.member_id
            self._diary.assigned(identity.generation, member, membership.assignment)
            if self.core.context.instance_id is not None:
                self._diary.takings.append(Taking(self.core.context.instance_id, self.who, self._began, self._diary.next_moment()))
        if callback.kind == "revoke" and self._commits_on_revoke:
            yield from self._committing(waits=True)

    def _committing(self, waits: bool) -> Steps:
        self._all_processed()
        pending = Pending()
        self._group.commits.commit(None, self._world.steady_ms + CALL_MS, pending.end, retries=waits)
        self._push()
        while waits and not pending.is_done:
            yield
        if isinstance(pending.result, KafkaException):
            self._world.count(f"commits failed: {type(pending.result).__name__}")
        return pending.result

    def _going_back(self, timeout_ms: int) -> Steps:
        core = self.core
        places, began = list(core.subscriptions.assigned), self._diary.next_moment()
        pending = Pending()
        if places:
            self._group.commits.committed.look_up(places, self._world.steady_ms + timeout_ms, pending)
            self._push()
            while not pending.is_done:
                yield
            if isinstance(pending.result, KafkaException):
                return pending.result
        for place in places:
            if place in core.subscriptions.assigned:
                self._go_back(place, pending.result[place], began)
        self._push()
        return None

    def _go_back(self, place: TopicPartition, committed: OffsetAndMetadata | None, began: int) -> None:
        if committed is None:
            self.core.seek_to([place], EARLIEST)
        else:
            self.core.seek(place, Position(committed.offset, committed.leader_epoch))
        span = self._new_span(place, self.core.subscriptions.assigned[place])
        span.began, span.found, span.is_reset = began, self._diary.next_moment(), committed is None
        span.start = 0 if committed is None else committed.offset

    def _leaving(self) -> Steps:
        core = self.core
        self._all_processed()
        pending = Pending()
        if self._is_automatic:
            self._group.commits.commit_all(self._world.steady_ms + CALL_MS, pending.end, retries=True)
            self._push()
            while not pending.is_done:
                yield
        callback = core.leave_callback()
        if callback is not None:
            yield from self._telling(callback)
        call = Pending()
        core.close(call, self._world.steady_ms + CLOSE_MS)
        self._push()
        while not call.is_done:
            yield

    def _step_soon(self) -> None:
        if not self._is_step_planned:
            self._is_step_planned = True
            self._world.after(0, self._planned_step)

    def _planned_step(self) -> None:
        self._is_step_planned = False
        self._step()

    def _step(self) -> None:
        """The caller looks again whether it can go on."""
        if self._steps is None or self._is_dead:
            return
        try:
            next(self._steps)
        except StopIteration as end:
            self._steps = None
            self._go_on(end.value)

    # The core --------------------------------------------------------------------------------------------------------------------------

    def _heard_all(self, heard: Sequence[Event]) -> None:
        """What happened at one moment goes through the core together, as in the consumer's thread; then the effects."""
        if self._is_dead:
            return
        for event in heard:
            if isinstance(event, ResponseReceived | RequestFailed):
                self._commit_ended(event)
        self._perform_all(self.core.handle_all(heard, self._world.steady_ms))

    def _push(self) -> None:
        """The caller has changed the core."""
        self._perform_all(self.core.drain(self._world.steady_ms))

    def _perform_all(self, effects: Sequence[Effect]) -> None:
        self._look_at_positions()
        for effect in effects:
            match effect:
                case SendRequest():
                    if isinstance(effect.message, OffsetCommitRequest):
                        self._commit_begins(effect.token, effect.message)
                    self._transport.send(
                        effect.address, effect.message, effect.token, timeout_ms=effect.timeout_ms, version_max=effect.version_max
                    )
                case Disconnect():
                    self._transport.disconnect(effect.address, effect.reason)
                case CompleteCall():
                    effect.call.end(effect.result)
                    self._step_soon()
                case FailCall():
                    effect.call.end(effect.error)
                    self._step_soon()
                case WakeCaller():
                    self._step_soon()
                case Report():
                    self._world.tell(self.who, effect.text)
        self._timer.set(self.core.next_deadline_ms)

    # The diary -------------------------------------------------------------------------------------------------------------------------

    def _look_at_positions(self) -> None:
        """Spans follow the core's table of partitions; where each begins is seen before the first record is taken."""
        assigned = self.core.subscriptions.assigned
        for place in [place for place, (_, state) in self._spans.items() if assigned.get(place) is not state]:
            del self._spans[place]
        for place, state in assigned.items():
            span = self._spans[place][0] if place in self._spans else self._new_span(place, state)
            if span.start is None:
                span.is_reset |= state.stage is Stage.RESETTING
                if state.position is not None:
                    span.start, span.found = state.position.offset, self._diary.next_moment()
                    span.ends = span.ends[0], self._diary.end_of(place)

    def _new_span(self, place: TopicPartition, state: PartitionState) -> Span:
        span = Span(member=self.who, place=place, began=self._diary.next_moment(), ends=(self._diary.end_of(place), None))
        self._diary.spans.append(span)
        self._spans[place] = span, state
        return span

    def _note(self, portions: Sequence[Portion]) -> None:
        for portion in portions:
            columns = portion.columns
            assert columns.offsets is not None, "records that were read have offsets"
            numbers = [number_of(columns.value(row)) for row in range(len(columns))]
            self._spans[portion.tp][0].records += zip(columns.offsets.tolist(), numbers, strict=True)
            self._world.count("records delivered", len(numbers))
            self._world.tell(self.who, f"reads {numbers} of {portion.tp} from offset {columns.offsets[0]}")

    def _all_processed(self) -> None:
        for span, _ in self._spans.values():
            span.processed = len(span.records)

    def committing(self) -> tuple[dict[TopicPartition, OffsetAndMetadata], list[diaries.Commit]]:
        """What was read, to be committed in a transaction; the program is done with it. The diary learns how it ends from the caller."""
        self._all_processed()
        offsets = self._group.commits.positions()
        generation = self.core.group_metadata().generation_id
        return offsets, [self._note_commit(place, offset.offset, generation) for place, offset in offsets.items()]

    def _note_commit(self, place: TopicPartition, offset: int, generation: int) -> diaries.Commit:
        span, _ = self._spans.get(place, (None, None))
        commit = diaries.Commit(place=place, offset=offset, began=self._diary.next_moment(), generation=generation, span=span)
        commit.processed = 0 if span is None else span.processed
        self._diary.commits.append(commit)
        return commit

    def _commit_begins(self, token: Any, message: OffsetCommitRequest) -> None:
        found = [
            self._note_commit(
                TopicPartition(topic.name, part.partition_index), part.committed_offset, message.generation_id_or_member_epoch
            )
            for topic in message.topics
            for part in topic.partitions
        ]
        self._commits.append((token, found))
        self._world.count("commits sent")
        self._world.tell(self.who, f"commits {', '.join(f'{commit.place} {commit.offset}' for commit in found)}")

    def _commit_ended(self, event: ResponseReceived | RequestFailed) -> None:
        known = next((entry for entry in self._commits if entry[0] is event.token), None)
        if known is None:
            return
        self._commits.remove(known)
        if isinstance(event, RequestFailed):
            for commit in known[1]:
                commit.is_refused = not event.was_sent
            return
        codes = {
            TopicPartition(topic.name or event.token.names[topic.topic_id], part.partition_index): part.error_code
            for topic in event.message.topics
            for part in topic.partitions
        }
        for commit in known[1]:
            if codes[commit.place] == 0:
                commit.ended = self._diary.next_moment()
            else:
                commit.is_refused = True
