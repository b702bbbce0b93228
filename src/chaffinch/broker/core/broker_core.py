"""The broker as one object without I/O of its own: `handle(event, steady_ms)` gives the effects that a shell carries out.

Requests of one connection are worked on one at a time and in order, as in Apache Kafka: what a client has pipelined the shell keeps, as
the bytes that came, while `is_waiting` says so. Answers that wait (a fetch for records, a scripted delay) are kept here with their
deadlines; a shell calls `handle(TimePassed())` at `next_deadline_ms`. `steady_ms` is steady: it begins where the wall clock stood at
construction and does not jump with it. What that shows since, a shell tells by `set_wall_clock`; one that knows a single time need not. See
`storage/wall_time.py`.

Files are reached through the file system object given at construction; randomness comes from the dice given there.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from chaffinch.broker.core import options, startup, timers
from chaffinch.broker.core.broker_state import Close, DelayedResponse, NoResponse, RespondThenClose, Result, result_of
from chaffinch.broker.core.counters import Counters
from chaffinch.broker.core.delayed_responses import DelayedResponses
from chaffinch.broker.core.error_responses import error_response
from chaffinch.broker.core.events import (
    CloseConnection,
    CompleteWithoutResponse,
    ConnectionLost,
    Effect,
    Event,
    NodeStopped,
    RequestFailed,
    RequestReceived,
    Respond,
    ThrottleConnection,
    TimePassed,
)
from chaffinch.broker.core.fault_script import Fault, FaultAction, FaultScript, named_targets
from chaffinch.broker.core.handlers import HANDLERS, PER_PARTITION_FAULTS
from chaffinch.broker.core.replicas.declared_replicas import Node
from chaffinch.broker.core.response_size_limit import ResponseTooLarge
from chaffinch.broker.core.topics.registry import ACCEPT_LOSS, Partition, RandomSource, Topic, TopicRegistry
from chaffinch.protocol.schema import Message
from chaffinch.protocol.server_connection import ReceivedRequest
from chaffinch.settings import Settings
from chaffinch.storage.contents import open_contents
from chaffinch.storage.data_directory import DataDirectory
from chaffinch.storage.file_system import FileSystem, StorageError
from chaffinch.storage.files import run_all
from chaffinch.storage.journal import REWRITE_BYTES_MIN
from chaffinch.storage.many_logs import close_many, sync_many

TURN_BYTES_MAX = 4 << 20
"""Answers that waited are made until they have read so much; the others come when these have left, or all of them would fill the memory."""

ATTEMPT_BYTES = 16 << 10
"""What it costs beside its records to try an answer, about: no more than 256 of them in a row."""

CLOCK_STEP_MS = 1000
"""A wall clock that is off by so much all at once was set, or the machine slept: records have another age now."""


class BrokerCore:
    """See the module. Not thread-safe: one thread calls everything.

    `lends_files`: set by who carries out the effects of an event before the next event: records of an answer may stand in files then.
    """

    def __init__(
        self,
        file_system: FileSystem,
        settings: Settings | Mapping[str, Any] | None = None,
        *,
        nodes: Sequence[Node],
        rng: RandomSource,
        steady_ms: int,
        users: Mapping[str, str] | None = None,
        journal_rewrite_bytes: int = REWRITE_BYTES_MIN,
    ) -> None:
        """Open the data directory, or begin a new one, and finish what a crash left half done.

        `users`: who may log in on listeners with SASL, and their passwords, beside those with SCRAM credentials in the directory.
        `journal_rewrite_bytes`: no smaller journal is written anew.
        Raises ConfigException for wrong options, StorageError for a directory that is in use, foreign, damaged or not writable.
        """
        static = settings if isinstance(settings, Settings) else options.parse(settings)
        cluster_id = base64.urlsafe_b64encode(rng.getrandbits(128).to_bytes(16, "big")).rstrip(b"=").decode()
        accepts_loss = static[ACCEPT_LOSS]
        self._directory = DataDirectory.open(file_system, cluster_id=cluster_id, accepts_loss=accepts_loss)
        try:
            contents = open_contents(
                file_system,
                startup.JOURNALS,
                must_exist=self._directory.has_contents_journal,
                accepts_loss=accepts_loss,
                rewrite_bytes_min=4 * journal_rewrite_bytes,  # It grows all the time, and each rewrite is synced.
            )
            self._journals = startup.open_journals(file_system, self._directory, contents, journal_rewrite_bytes, accepts_loss=accepts_loss)
            self._metadata = self._journals["cluster"]
            self.state = startup.open_state(
                file_system,
                self._journals,
                contents,
                self._directory,
                static,
                nodes,
                rng,
                steady_ms,
                users=users or {},
            )
            self._is_recovered = startup.recover(self.state, self._journals["transactions"], file_system.incarnation, steady_ms)
            startup.record_contents(self.state, self._journals, self._directory, steady_ms)
            startup.log_warnings(self.state, static)
        except BaseException:
            self._directory.close()
            raise
        self._syncs = static["flush.policy"] == "always"
        self._requires_login = self.state.authentication.is_needed
        self._unanswered: dict[int, RequestReceived] = {}  # By connection: the request whose answer waits.
        self._waits = DelayedResponses()
        self._effects: list[Effect] = []
        self._unsynced: dict[Partition, None] = {}
        self._stepped_offset_ms = 0
        self.lends_files = False

    # What a shell calls ---------------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, steady_ms: int) -> list[Effect]:
        """Take note of an event; what comes back is to be done in order. With `flush.policy=always` everything it promises is synced.

        Raises ConfigException and StorageError for a node's event that cannot be.
        """
        effects = self.apply(event, steady_ms)
        self.sync()
        return effects

    def apply(self, event: Event, steady_ms: int) -> list[Effect]:
        """As `handle`, but not synced: the caller calls `sync` once for many events, before it sends any of their answers."""
        if isinstance(event, RequestReceived):
            self._received(event, steady_ms)
        elif isinstance(event, TimePassed):
            self._time_passed(steady_ms)
        elif isinstance(event, ConnectionLost):
            self._lost(event)
        elif isinstance(event, NodeStopped):
            self.state.membership.stop(event.node_id, steady_ms, abruptly=event.abruptly)
        else:
            self.state.membership.start(event.node_id, steady_ms)
        state = self.state
        if state.grown or state.changed_keys:
            self._wake(steady_ms)
        state.contents_recorder.check_journals()
        if state.refusals.lines:
            self._effects += state.refusals.take()
        effects, self._effects = self._effects, []
        return effects

    def is_waiting(self, connection_id: int) -> bool:
        """Whether an answer on this connection waits for something: until it is given, nothing more may be asked there."""
        return connection_id in self._unanswered

    def set_wall_clock(self, wall_ms: int, steady_ms: int) -> None:
        """The wall clock shows `wall_ms` at `steady_ms`. Waits are as long as before; what is stored from now on has its time."""
        offset_ms = self.state.wall.offset_ms = wall_ms - steady_ms
        step_ms = offset_ms - self._stepped_offset_ms
        if abs(step_ms) >= CLOCK_STEP_MS:
            self._stepped_offset_ms = offset_ms
            self.state.topics.request_maintenance()
            text = f"the wall clock went {'forward' if step_ms > 0 else 'back'} by {abs(step_ms)} ms; what waits, waits as long as before"
            self.state.refusals.log_within_limit(text, steady_ms)

    def sync(self) -> None:
        """With `flush.policy=always`: return once everything that the answers so far promise is on disk. Else nothing: what they say of
        topics and configurations is there already.

        Raises StorageError: then the answers must not be sent.
        """
        if not self._syncs:
            return
        partition_of = self.state.topics.partition
        sync_many([partition.log for partition in self._unsynced if partition_of(*partition.topic_partition) is partition])
        # Not sooner: were one forgotten that cannot be synced, the repetition of a batch would be acknowledged though it is not on disk.
        self._unsynced.clear()
        for journal in self._journals.values():
            journal.sync()
        self.state.contents_recorder.record_now()

    @property
    def next_deadline_ms(self) -> int | None:
        """When `TimePassed` is due; None when nothing waits for time. May be early, never late."""
        waits = self._waits.next_deadline_ms
        due = timers.next_deadline_ms(self.state.scheduled_tasks)
        return due if waits is None or (due is not None and due < waits) else waits

    def has_answers_due(self, steady_ms: int) -> bool:
        """Whether there are answers that waited and need wait no longer: `TimePassed` gives some of them."""
        due_ms = self._waits.next_deadline_ms
        return due_ms is not None and due_ms <= steady_ms

    def close(self) -> None:
        """Leave everything in order: synced, with snapshots, unlocked. Raises StorageError for what is not, all else is."""
        logs = [partition.log for partition in self.state.topics.partitions()]
        try:
            # Of transactions a mark would say that nothing was lost.
            marked = {name: self._is_recovered or name != "transactions" for name in self._journals}
            closings = [partial(journal.close, writes_closed_mark=marked[name]) for name, journal in self._journals.items()]
            run_all([lambda: close_many(logs), *closings, self.state.contents_recorder.close])
        finally:
            self._directory.close()

    def abandon(self) -> None:
        """Stop as a killed process does: nothing is written any more, only the lock is given back."""
        self._directory.close()

    # What tests and tools call ----------------------------------------------------------------------------------------------------------

    @property
    def topics(self) -> TopicRegistry:
        return self.state.topics

    @property
    def counters(self) -> Counters:
        return self.state.counters

    @property
    def faults(self) -> FaultScript:
        return self.state.faults

    def create_topic(
        self, name: str, partitions: int = -1, replication: int = -1, config: Mapping[str, str] | None = None, *, steady_ms: int
    ) -> Topic:
        """Create a topic as CreateTopics does. Raises RequestRefused, StorageError."""
        created = self.state.topics.create(
            name, partition_count=partitions, replication_factor=replication, overrides=config, steady_ms=steady_ms
        )
        self.state.log_options_without_effect(name, created.topic.overrides)
        startup.log_replication_warnings(self.state, [created.topic])
        self._metadata.sync()
        return created.topic

    # Requests -------------------------------------------------------------------------------------------------------------------------

    def _received(self, event: RequestReceived, steady_ms: int) -> None:
        assert event.connection_id not in self._unanswered, "a request behind one that waits: the shell has to keep it"
        # What is answered at once leaves next. What waits, for whatever, leaves when files may be gone.
        self.state.lends_files = self.lends_files and not self.state.faults.rules
        try:
            self._begin(event, steady_ms)
        finally:
            self.state.lends_files = False

    def _begin(self, event: RequestReceived, steady_ms: int) -> None:
        state, request = self.state, event.request
        if self._requires_login:
            outcome = state.authentication.gate(event, steady_ms)
            if outcome is not None:
                self._finish(event, result_of(outcome, steady_ms))
                return
        fault = self._fault_for(request) if state.faults.rules else None
        try:
            if fault is None:
                result = HANDLERS[request.api.key](state, event, request.message, steady_ms)
            else:
                result = self._result_with_fault(event, fault, steady_ms)
        except ResponseTooLarge as too_large:
            result = _response_too_large(event, too_large)
        if not (self._syncs or self._metadata.is_synced):
            result = self._with_metadata_synced(request, result, steady_ms)
        if isinstance(result, DelayedResponse):
            self._unanswered[event.connection_id] = event
            self._waits.add(event.connection_id, result)
        else:
            self._finish(event, result)

    def _with_metadata_synced(self, request: ReceivedRequest, result: Result, steady_ms: int) -> Result:
        """What a request says of topics and configurations survives a loss of power, whatever `flush.policy` is: a lost topic would take
        all that was flushed of its records with it. One sync for all that the request has changed. Kafka's metadata log is no different."""
        try:
            self._metadata.sync()
        except StorageError as error:
            text = f"{error}; no request is answered until that succeeds: check the disk, then restart the broker"
            self.state.refusals.log_within_limit(text, steady_ms)
            return Close(f"nobody knows what is on disk of what {request.api.name} tells")
        self.state.contents_recorder.record_now()
        return result

    def _fault_for(self, request: ReceivedRequest) -> Fault | None:
        state = self.state
        return state.faults.take(
            request.api.name,
            request.client_id,
            lambda: named_targets(request.message, state.topics.name_of, state.fetch_sessions.named_targets),
        )

    def _result_with_fault(self, event: RequestReceived, fault: Fault, steady_ms: int) -> Result:
        key, message = event.request.api.key, event.request.message
        if fault.action is FaultAction.DROP_BEFORE:
            return Close("asked for by a fault script, before the request was looked at")
        if fault.action is FaultAction.ERROR:
            if key in PER_PARTITION_FAULTS:
                return PER_PARTITION_FAULTS[key](self.state, event, message, steady_ms, fault)
            return error_response(event.request, fault.error.wire(self.state.numbering))
        if fault.action is FaultAction.SLOW_DOWN:
            slows_responses, slows_requests = fault.direction != "requests", fault.direction != "answers"
            self._effects.append(ThrottleConnection(event.connection_id, fault.bytes_per_second, slows_responses, slows_requests))
            return HANDLERS[key](self.state, event, message, steady_ms)
        result = HANDLERS[key](self.state, event, message, steady_ms)
        if fault.action is FaultAction.DROP_AFTER:
            late: Result | None = result
            while isinstance(late, DelayedResponse) and late.is_unfinished:
                late = late.answer(steady_ms, True)
            return Close("asked for by a fault script, after the request was done")
        return _delayed(result, fault.delay_ms, steady_ms)

    def _finish(self, event: RequestReceived, result: Result) -> None:
        if isinstance(result, Message):
            self._effects.append(Respond(event.connection_id, event.request, result))
        elif isinstance(result, NoResponse):
            self._effects.append(CompleteWithoutResponse(event.connection_id, event.request))
        elif isinstance(result, Close):
            self._effects.append(CloseConnection(event.connection_id, result.reason))
            self._lost(ConnectionLost(connection_id=event.connection_id))
        else:
            assert isinstance(result, RespondThenClose)
            self._effects.append(Respond(event.connection_id, event.request, result.message))
            self._finish(event, Close())

    # Answers that wait ----------------------------------------------------------------------------------------------------------------

    def _wake(self, steady_ms: int) -> None:
        """Try the answers that wait for what changed, unless there are others that have a turn coming: then with them."""
        has_turn = bool(self._waits.woken)
        self._note_changes()
        if self._waits.woken and not has_turn:
            self._try_woken(steady_ms)

    def _note_changes(self) -> None:
        grown, changed = self.state.grown, self.state.changed_keys
        self.state.contents_recorder.grow(grown)
        if not self._waits.waits and not self._syncs:
            grown.clear()
            changed.clear()
            return
        while grown or changed:
            if grown:
                partition = grown.pop()
                if self._syncs and self.state.topics.partition(*partition.topic_partition) is partition:
                    self._unsynced[partition] = None
                changed.append(partition.topic_partition)
            self._waits.wake(changed.pop())

    def _try_woken(self, steady_ms: int) -> None:
        """As many as belong into one turn. For the rest `next_deadline_ms` asks for another, before which the effects of this one are
        carried out: only then does `records_max` know of them."""
        state = self.state
        end = state.bytes_handled + TURN_BYTES_MAX
        while state.bytes_handled < end and (woken := self._waits.take_woken()) is not None:
            state.bytes_handled += ATTEMPT_BYTES
            self._try_answer(woken[0], steady_ms, is_last=woken[1])
            self._note_changes()  # Handling one may change more.

    def _time_passed(self, steady_ms: int) -> None:
        for task in self.state.scheduled_tasks:
            deadline_ms = task.next_deadline_ms
            if deadline_ms is not None and deadline_ms <= steady_ms:
                refusals = self.state.refusals
                for line in task.expire(steady_ms):
                    if task is refusals:
                        refusals.log(line)
                    else:
                        refusals.log_within_limit(line, steady_ms)
        self._waits.wake_due(steady_ms)
        self._try_woken(steady_ms)

    def _try_answer(self, connection_id: int, steady_ms: int, *, is_last: bool) -> None:
        event = self._unanswered.get(connection_id)
        waiting = self._waits.get(connection_id)
        if event is None or waiting is None:
            return
        try:
            result = waiting.answer(steady_ms, is_last)
        except ResponseTooLarge as too_large:
            result = _response_too_large(event, too_large)
        except Exception as error:  # Not the mistake of whoever woke it.
            self._effects.append(RequestFailed(connection_id, error))
            self._lost(ConnectionLost(connection_id=connection_id))
            return
        if result is None:
            return
        self._waits.end(connection_id)
        if isinstance(result, DelayedResponse):
            self._waits.add(connection_id, result)
            return
        del self._unanswered[connection_id]
        self._finish(event, result)

    def _lost(self, event: ConnectionLost) -> None:
        if self._unanswered.pop(event.connection_id, None) is not None:
            self._waits.end(event.connection_id)
        if self._requires_login:
            self.state.authentication.forget(event.connection_id)


def _response_too_large(event: RequestReceived, error: ResponseTooLarge) -> Close:
    return Close(f"{event.request.api.name} asks for too much at once: {error}")


def _delayed(result: Result, delay_ms: int, steady_ms: int) -> Result:
    """The same answer, so much later."""
    if isinstance(result, Close | NoResponse):
        return result
    if not isinstance(result, DelayedResponse):
        message = result
        return DelayedResponse(deadline_ms=steady_ms + delay_ms, keys=(), answer=lambda _steady_ms, is_last: message if is_last else None)
    waiting = result

    def answer(late_ms: int, is_last: bool) -> Result | None:
        late = waiting.answer(late_ms, is_last)
        return None if late is None else _delayed(late, delay_ms, late_ms)

    return replace(waiting, answer=answer)
