"""Broker core: the broker as one object without I/O. `handle(event, steady_ms)` returns the effects that a shell carries out.

Requests of one connection are processed one at a time and in order, as in Apache Kafka. The shell keeps pipelined requests, as received
bytes, while `is_waiting` is true. Delayed responses (a fetch that waits for records, a scripted delay) are kept here with their deadlines;
the shell calls `handle(TimePassed())` at `next_deadline_ms`.

`steady_ms` is monotonic: it starts at the wall clock time of construction and does not follow later changes of the wall clock. A shell
reports those with `set_wall_clock`; a shell with a single clock need not. See `storage/wall_time.py`.

Files are accessed only through the given file system object; random numbers come only from the given `rng`.
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
from chaffinch.broker.core.handlers import HANDLERS, PER_PARTITION_FAULTS, delete_topics
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.broker.core.replicas.declared_replicas import Node
from chaffinch.broker.core.response_size_limit import ResponseTooLarge
from chaffinch.broker.core.topics.registry import ACCEPT_LOSS, Partition, RandomSource, Topic, TopicRegistry
from chaffinch.errors import codes
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
"""Delayed responses are completed until they have read this many bytes. The rest follows after these are sent; otherwise all of them
together would fill the memory."""

ATTEMPT_BYTES = 16 << 10
"""Approximate cost of one attempt to complete a response, in addition to its records: limits attempts to 256 in a row."""

CLOCK_STEP_MS = 1000
"""A wall clock that differs by this much at once was set, or the machine was asleep: the age of records has changed."""


class BrokerCore:
    """See the module docstring. Not thread-safe: one thread makes all calls.

    `lends_files`: set by a shell that carries out the effects of an event before the next event; fetch responses may then refer to file
    ranges.
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
        """Open or create the data directory, and complete what a crash interrupted.

        `users`: names and passwords for SASL logins, in addition to the SCRAM credentials in the directory. `journal_rewrite_bytes`:
        smaller journals are never rewritten. Raises ConfigException for invalid options, StorageError for a directory that is in use,
        foreign, damaged or not writable.
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
                rewrite_bytes_min=4 * journal_rewrite_bytes,  # It grows constantly, and each rewrite is synced.
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
        self._unanswered: dict[int, RequestReceived] = {}  # By connection id: the request whose response is delayed.
        self._waits = DelayedResponses()
        self._effects: list[Effect] = []
        self._unsynced: dict[Partition, None] = {}
        self._stepped_offset_ms = 0
        self.lends_files = False

    # Called by shells -----------------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, steady_ms: int) -> list[Effect]:
        """Process an event; carry out the returned effects in order. With `flush.policy=always` everything they promise is synced.

        Raises ConfigException and StorageError for a node event that is not possible.
        """
        effects = self.apply(event, steady_ms)
        self.sync()
        return effects

    def apply(self, event: Event, steady_ms: int) -> list[Effect]:
        """Like `handle`, but not synced: the caller calls `sync` once for many events, before it sends any of their responses."""
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
        """Whether a response on this connection is delayed: no further request may be passed in until it is sent."""
        return connection_id in self._unanswered

    def set_wall_clock(self, wall_ms: int, steady_ms: int) -> None:
        """The wall clock shows `wall_ms` at `steady_ms`. Running timeouts keep their length; data stored from now on has the new time."""
        offset_ms = self.state.wall.offset_ms = wall_ms - steady_ms
        step_ms = offset_ms - self._stepped_offset_ms
        if abs(step_ms) >= CLOCK_STEP_MS:
            self._stepped_offset_ms = offset_ms
            self.state.topics.request_maintenance()
            text = f"the wall clock moved {'forward' if step_ms > 0 else 'back'} by {abs(step_ms)} ms; running timeouts keep their length"
            self.state.refusals.log_within_limit(text, steady_ms)

    def sync(self) -> None:
        """With `flush.policy=always`: sync everything that the responses so far promise. Otherwise a no-op: metadata changes are always
        synced before the response.

        Raises StorageError: then the responses must not be sent.
        """
        if not self._syncs:
            return
        partition_of = self.state.topics.partition
        sync_many([partition.log for partition in self._unsynced if partition_of(*partition.topic_partition) is partition])
        # Only after the sync: if a partition were forgotten and its sync failed, a repeated batch would be acknowledged although it is not
        # on disk.
        self._unsynced.clear()
        for journal in self._journals.values():
            journal.sync()
        self.state.contents_recorder.record_now()

    @property
    def next_deadline_ms(self) -> int | None:
        """When `TimePassed` is due; None if nothing waits for time. May be early, never late."""
        waits = self._waits.next_deadline_ms
        due = timers.next_deadline_ms(self.state.scheduled_tasks)
        return due if waits is None or (due is not None and due < waits) else waits

    def has_answers_due(self, steady_ms: int) -> bool:
        """Whether delayed responses can be completed now: `TimePassed` returns some of them."""
        due_ms = self._waits.next_deadline_ms
        return due_ms is not None and due_ms <= steady_ms

    def close(self) -> None:
        """Close cleanly: sync, write snapshots, unlock. Continues after an error; raises StorageError at the end."""
        logs = [partition.log for partition in self.state.topics.partitions()]
        try:
            # A mark on the transactions journal would claim that nothing was lost.
            marked = {name: self._is_recovered or name != "transactions" for name in self._journals}
            closings = [partial(journal.close, writes_closed_mark=marked[name]) for name, journal in self._journals.items()]
            run_all([lambda: close_many(logs), *closings, self.state.contents_recorder.close])
        finally:
            self._directory.close()

    def abandon(self) -> None:
        """Stop like a killed process: write nothing more, only release the lock."""
        self._directory.close()

    # Called by tests and tools ----------------------------------------------------------------------------------------------------------

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

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its offsets, as DeleteTopics does. Raises RequestRefused, StorageError."""
        topic = self.state.topics.get(name)
        if topic is None:
            raise RequestRefused(codes.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        refusal = delete_topics.delete(self.state, topic)
        if refusal is not None:
            raise refusal
        self._metadata.sync()
        self.state.offsets.forget_deleted()

    # Requests -------------------------------------------------------------------------------------------------------------------------

    def _received(self, event: RequestReceived, steady_ms: int) -> None:
        assert event.connection_id not in self._unanswered, (
            "a request arrived while the response to another is delayed: the shell must queue it"
        )
        # An immediate response is sent next. A delayed one is sent later, when files may be gone.
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
        """Sync metadata before the response, whatever `flush.policy` is.

        A lost topic would take all of its flushed records with it. There is one sync for all changes of a request. Kafka's metadata log
        does the same.
        """
        try:
            self._metadata.sync()
        except StorageError as error:
            text = f"{error}; no request is answered until a sync succeeds: check the disk, then restart the broker"
            self.state.refusals.log_within_limit(text, steady_ms)
            return Close(f"the metadata journal could not be synced; the result of {request.api.name} may not be durable")
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
            return Close("requested by a fault script, before the request was processed")
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
            return Close("requested by a fault script, after the request was processed")
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

    # Delayed responses ----------------------------------------------------------------------------------------------------------------

    def _wake(self, steady_ms: int) -> None:
        """Try the delayed responses that wait for what changed. If others are queued already, these are tried together with them."""
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
        """Try as many delayed responses as one turn allows. `next_deadline_ms` requests another turn for the rest. The effects of this turn
        are carried out first: only then does `records_max` include them.
        """
        state = self.state
        end = state.bytes_handled + TURN_BYTES_MAX
        while state.bytes_handled < end and (woken := self._waits.take_woken()) is not None:
            state.bytes_handled += ATTEMPT_BYTES
            self._try_answer(woken[0], steady_ms, is_last=woken[1])
            self._note_changes()  # Completing one may change more.

    def _time_passed(self, steady_ms: int) -> None:
        for task in self.state.scheduled_tasks:
            deadline_ms = task.next_deadline_ms
            if deadline_ms is not None and deadline_ms <= steady_ms:
                refusals = self.state.refusals
                for line in task.run_due(steady_ms):
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
        except Exception as error:  # Not an error of the request that triggered it.
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
    return Close(f"{event.request.api.name} requests too much at once: {error}")


def _delayed(result: Result, delay_ms: int, steady_ms: int) -> Result:
    """The same response, delayed by `delay_ms`."""
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
