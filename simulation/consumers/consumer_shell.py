"""Consumer of the simulation: the real `ConsumerCore` behind a shell that does the work of `consumer.py` and `consumer_thread.py` without
threads.

A program makes one call at a time (`Poll`, `Commit`, ...) and gets its outcome when there is one. Deliveries and commits are recorded in
the group's history as seen from outside the core: a commit when its request is sent.
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
from simulation.consumers.history import CommitAttempt, History, Span, StaticMembership
from simulation.network import Network
from simulation.programs.programs import Commit, ConsumerStep, Leave, Poll, SeekToCommitted
from simulation.records import number_of
from simulation.transport import Transport
from simulation.wake_timer import WakeTimer
from simulation.world import World

CONNECT_TIMEOUT_MS: Final = 700
CALL_MS: Final = 8_000
CLOSE_MS: Final = 20_000


Steps: TypeAlias = Generator[None, None, Any]
"""A call in steps: each yield waits for a change."""


class Pending:
    """The outcome of a call to the core."""

    def __init__(self) -> None:
        self.is_done = False
        self.result: Any = None

    def end(self, result: Any = None) -> None:
        self.is_done, self.result = True, result


class ConsumerShell:
    """The shell. `resume` receives the outcome of each step passed to `begin`.

    `commits_on_revoke`: the program commits the records it has read in the revocation callback.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        actor: str,
        options: Mapping[str, Any],
        topics: Sequence[str],
        history: History,
        resume: Callable[[Any], None],
        *,
        commits_on_revoke: bool,
    ) -> None:
        settings = parse_options(options)
        self.actor = actor
        self.core = ConsumerCore(settings, world.new_rng())
        self._is_automatic = bool(settings["enable.auto.commit"])
        self._commits_on_revoke = commits_on_revoke
        self._records_max: int = settings["max.poll.records"]
        self._world = world
        self._history = history
        self._began = history.next_moment()
        self._resume = resume
        self._transport = Transport(
            world,
            network,
            actor,
            self._handle_all,
            request_timeout_ms=settings["request.timeout.ms"],
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
        )
        self._steps: Steps | None = None
        self._is_step_planned = False
        self._is_dead = False
        self._timer = WakeTimer(world, actor, lambda: self._handle_all((TimePassed(),)))
        self._spans: dict[TopicPartition, tuple[Span, PartitionState]] = {}
        self._commits: list[tuple[Any, list[CommitAttempt]]] = []
        self.core.subscribe(topics)
        self._flush()

    def close(self) -> None:
        """The process is gone."""
        self._is_dead = True
        self._transport.close()

    # Calls of the program --------------------------------------------------------------------------------------------------------------

    def begin(self, step: ConsumerStep) -> None:
        match step:
            case Poll():
                self._steps = self._polling(step)
                self._world.after(step.timeout_ms, self._step)
            case Commit():
                self._steps = self._committing(step.waits)
            case SeekToCommitted():
                self._steps = self._seeking(step.timeout_ms)
            case Leave():
                self._steps = self._leaving()
        self._step_soon()

    def _polling(self, step: Poll) -> Steps:
        core, ends_ms = self.core, self._world.steady_ms + step.timeout_ms
        self._mark_processed()
        core.poll_started(self._world.steady_ms, self._world.steady_ms)
        try:
            while True:
                while (callback := core.next_callback(self._world.steady_ms)) is not None:
                    yield from self._run_callback(callback)
                    core.callback_done(callback)
                    self._flush()
                core.raise_error()
                portions = core.take(self._records_max)
                self._note(portions)
                self._flush()
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

    def _run_callback(self, callback: Callback) -> Steps:
        self._world.log(self.actor, f"{callback.kind}: {', '.join(map(str, callback.partitions)) or 'nothing'}")
        self._world.count(f"rebalance callbacks: {callback.kind}")
        if callback.kind == "assign":
            membership = self._group.membership
            identity, member = membership.identity, self.core.context.instance_id or membership.identity.member_id
            self._history.assigned(identity.generation, member, membership.assignment)
            if self.core.context.instance_id is not None:
                self._history.static_memberships.append(
                    StaticMembership(self.core.context.instance_id, self.actor, self._began, self._history.next_moment())
                )
        if callback.kind == "revoke" and self._commits_on_revoke:
            yield from self._committing(waits=True)

    def _committing(self, waits: bool) -> Steps:
        self._mark_processed()
        pending = Pending()
        self._group.commits.commit(None, self._world.steady_ms + CALL_MS, pending.end, retries=waits)
        self._flush()
        while waits and not pending.is_done:
            yield
        if isinstance(pending.result, KafkaException):
            self._world.count(f"commits failed: {type(pending.result).__name__}")
        return pending.result

    def _seeking(self, timeout_ms: int) -> Steps:
        core = self.core
        tps, began = list(core.subscriptions.assigned), self._history.next_moment()
        pending = Pending()
        if tps:
            self._group.commits.committed.look_up(tps, self._world.steady_ms + timeout_ms, pending)
            self._flush()
            while not pending.is_done:
                yield
            if isinstance(pending.result, KafkaException):
                return pending.result
        for tp in tps:
            if tp in core.subscriptions.assigned:
                self._seek_to_committed(tp, pending.result[tp], began)
        self._flush()
        return None

    def _seek_to_committed(self, tp: TopicPartition, committed: OffsetAndMetadata | None, began: int) -> None:
        if committed is None:
            self.core.seek_to([tp], EARLIEST)
        else:
            self.core.seek(tp, Position(committed.offset, committed.leader_epoch))
        span = self._new_span(tp, self.core.subscriptions.assigned[tp])
        span.began, span.found, span.is_reset = began, self._history.next_moment(), committed is None
        span.start = 0 if committed is None else committed.offset

    def _leaving(self) -> Steps:
        core = self.core
        self._mark_processed()
        pending = Pending()
        if self._is_automatic:
            self._group.commits.commit_all(self._world.steady_ms + CALL_MS, pending.end, retries=True)
            self._flush()
            while not pending.is_done:
                yield
        callback = core.leave_callback()
        if callback is not None:
            yield from self._run_callback(callback)
        call = Pending()
        core.close(call, self._world.steady_ms + CLOSE_MS)
        self._flush()
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
        """Check whether the caller can continue."""
        if self._steps is None or self._is_dead:
            return
        try:
            next(self._steps)
        except StopIteration as end:
            self._steps = None
            self._resume(end.value)

    # The core --------------------------------------------------------------------------------------------------------------------------

    def _handle_all(self, received: Sequence[Event]) -> None:
        """Pass all events of one moment to the core together, as in the consumer thread, and run the effects."""
        if self._is_dead:
            return
        for event in received:
            if isinstance(event, ResponseReceived | RequestFailed):
                self._commit_ended(event)
        self._perform_all(self.core.handle_all(received, self._world.steady_ms))

    def _flush(self) -> None:
        """Run the effects of the caller's changes to the core."""
        self._perform_all(self.core.drain(self._world.steady_ms))

    def _perform_all(self, effects: Sequence[Effect]) -> None:
        self._update_spans()
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
                    self._world.log(self.actor, effect.text)
        self._timer.set(self.core.next_deadline_ms)

    # The history -------------------------------------------------------------------------------------------------------------------------

    def _update_spans(self) -> None:
        """Update the spans from the core's partition table. Start positions are read before the first record is taken."""
        assigned = self.core.subscriptions.assigned
        for tp in [tp for tp, (_, state) in self._spans.items() if assigned.get(tp) is not state]:
            del self._spans[tp]
        for tp, state in assigned.items():
            span = self._spans[tp][0] if tp in self._spans else self._new_span(tp, state)
            if span.start is None:
                span.is_reset |= state.stage is Stage.RESETTING
                if state.position is not None:
                    span.start, span.found = state.position.offset, self._history.next_moment()
                    span.ends = span.ends[0], self._history.end_of(tp)

    def _new_span(self, tp: TopicPartition, state: PartitionState) -> Span:
        span = Span(member=self.actor, tp=tp, began=self._history.next_moment(), ends=(self._history.end_of(tp), None))
        self._history.spans.append(span)
        self._spans[tp] = span, state
        return span

    def _note(self, portions: Sequence[Portion]) -> None:
        for portion in portions:
            columns = portion.columns
            assert columns.offsets is not None, "records that were read have offsets"
            numbers = [number_of(columns.value(row)) for row in range(len(columns))]
            self._spans[portion.tp][0].records += zip(columns.offsets.tolist(), numbers, strict=True)
            self._world.count("records delivered", len(numbers))
            self._world.log(self.actor, f"reads {numbers} of {portion.tp} from offset {columns.offsets[0]}")

    def _mark_processed(self) -> None:
        for span, _ in self._spans.values():
            span.processed = len(span.records)

    def offsets_to_commit(self) -> tuple[dict[TopicPartition, OffsetAndMetadata], list[CommitAttempt]]:
        """The offsets of all records read, to be committed in a transaction. The caller completes the returned attempts."""
        self._mark_processed()
        offsets = self._group.commits.positions()
        generation = self.core.group_metadata().generation_id
        return offsets, [self._note_commit(tp, offset.offset, generation) for tp, offset in offsets.items()]

    def _note_commit(self, tp: TopicPartition, offset: int, generation: int) -> CommitAttempt:
        span, _ = self._spans.get(tp, (None, None))
        commit = CommitAttempt(tp=tp, offset=offset, began=self._history.next_moment(), generation=generation, span=span)
        commit.processed = 0 if span is None else span.processed
        self._history.commits.append(commit)
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
        self._world.log(self.actor, f"commits {', '.join(f'{commit.tp} {commit.offset}' for commit in found)}")

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
            if codes[commit.tp] == 0:
                commit.ended = self._history.next_moment()
            else:
                commit.is_refused = True
