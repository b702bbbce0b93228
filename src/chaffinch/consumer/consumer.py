"""The consumer that users see: `Consumer`. A shell without decisions of its own: it checks arguments, waits, and hands over.

One thread at a time may use it (`wakeup` excepted), as in Kafka; heartbeats and fetches go on in a thread of its own meanwhile. That one
does with the core what the caller wants: Ctrl-C may come in the caller's at any time. Callbacks run in the caller's thread, within the
call that leads to them. Names follow KafkaConsumer.java.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Never, NoReturn, Self, TypeVar

from chaffinch import plain_text
from chaffinch.client.client_thread import EXIT_WAIT_MS
from chaffinch.client.metrics import read_all
from chaffinch.client.network import Network
from chaffinch.client.options import ConnectionSettings
from chaffinch.consumer import arguments, closing
from chaffinch.consumer.access_guard import AccessGuard
from chaffinch.consumer.callbacks import Callbacks, OnCommit, OnPartitions
from chaffinch.consumer.consumer_thread import ConsumerThread, Pending
from chaffinch.consumer.core.call_errors import within
from chaffinch.consumer.core.commits import API_TIMEOUT, Commits
from chaffinch.consumer.core.consumer_core import ConsumerCore
from chaffinch.consumer.core.fetcher import Portion
from chaffinch.consumer.core.group import Group
from chaffinch.consumer.core.lookups import FoundOffset, OffsetsCall
from chaffinch.consumer.core.metadata_watch import TopicCall
from chaffinch.consumer.core.options import EARLIEST, LATEST, TABLE_RECORDS, parse_options
from chaffinch.consumer.core.pending_offsets import Commit
from chaffinch.consumer.core.positions import Position
from chaffinch.consumer.metrics import METRICS
from chaffinch.consumer.poller import IterationBatch, Poller, begin_iteration, iterate_records
from chaffinch.consumer.records import ConsumerRecord, deserializer, records_of_all
from chaffinch.errors import IllegalStateException, KafkaException, RecordDeserializationException
from chaffinch.foreign_names import CONSUMER_HINTS, missing_attributes, refuse_arguments
from chaffinch.identifiers import OFFSET_EARLIEST, OFFSET_LATEST, GroupMetadata, OffsetAndMetadata, TopicPartition
from chaffinch.runtime.clock import SystemClock

if TYPE_CHECKING:
    import re

    import pyarrow as pa

log = plain_text.logger("chaffinch.consumer")

CLOSE_TIMEOUT_S: Final = 30.0

T = TypeVar("T")


class Consumer:
    """Reads records from Kafka, shared with a group's other members or by itself: as objects or as Arrow tables.

        with Consumer(bootstrap_servers="localhost:9092", group_id="billing", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["orders"])
            for record in consumer.poll(timeout=10):
                print(record.partition, record.offset, record.key, record.value)

    Options have Kafka's names: in a mapping with dots, as keywords with underscores (docs/consumer.md). `bootstrap.servers` is required,
    `group.id` for `subscribe` and commits; times are in ms there, and in seconds where a method takes a `timeout`. ConfigException names
    an option that is unknown, wrong, or contradicts another. As in Kafka, `isolation.level=read_committed` has to be asked for.

    One thread at a time may use it, `wakeup` excepted; heartbeats and fetches go on in a thread of its own. Callbacks are called within
    the call that leads to them. Also an iterator, of single records and without end. `close`, which the `with` statement calls, commits
    what was read where that is automatic, and leaves the group; a `with` statement that an exception ends commits nothing more.
    """

    def __init__(self, options: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        self.settings = parse_options(options, **keywords)
        for name in sorted(self.settings.ignored):
            log.warning("option %s is known to Apache Kafka and without effect here", name)
        self._key_deserializer = deserializer(self.settings, "key.deserializer")
        self._value_deserializer = deserializer(self.settings, "value.deserializer")
        self._clock = SystemClock()
        self._core = ConsumerCore(self.settings, random.Random())
        self._core.set_wall_clock(self._clock.steady_ms(), self._clock.wall_ms())  # A position may be asked for before the first poll.
        self._records_max: int = self.settings["max.poll.records"]
        self._table_records_max = self._records_max if "max.poll.records" in self.settings.given else TABLE_RECORDS
        self._rejected: dict[TopicPartition, tuple[int, RecordDeserializationException]] = {}
        """Records that deserializers refused, and that no poll has told of."""
        self._guard = AccessGuard()
        network = Network(ConnectionSettings.of(self.settings), clock=self._clock)
        self._thread = ConsumerThread(self._core, network, self._clock, f"{self.settings['client.id']}-network")
        self._callbacks = Callbacks()
        self._poller = Poller(self._core, self._thread, self._callbacks, self._clock)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __del__(self) -> None:
        # Python may do this in any thread, so no lock is taken. Without a thread the options were refused.
        thread = self.__dict__.get("_thread")
        if thread is not None and thread.death is None and not self._guard.is_closed and not self._guard.is_in_other_process:
            thread.abandon(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Consumer cannot be pickled: make one in each process")

    def __repr__(self) -> str:
        servers, group_id = self.settings["bootstrap.servers"], self.settings["group.id"]
        group = "" if group_id is None else f", group.id {group_id!r}"
        state = "closed" if self._guard.is_closed else f"reads {self._core.subscriptions.describe()}"
        return f"<Consumer {self.settings['client.id']!r} of {','.join(servers)}{group}, {state}>"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leave_and_close(round(1000 * CLOSE_TIMEOUT_S), exception_type=kind)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records one by one, without end; `position` and commits follow each one."""
        while True:
            batch: IterationBatch = self._poll_records(None, lambda portions: begin_iteration(self._core, self._records_of(portions)))
            yield from iterate_records(self._core, batch, lambda: self._thread.post(self._core.return_undelivered))
            if self._guard.is_closed:  # By the body of the loop.
                return

    # What is read.

    def subscribe(
        self,
        topics: Collection[str] | str | re.Pattern[str],
        *,
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Share these topics, or those whose whole name a pattern matches, with the group's other members. Replaces what was subscribed.

        The callbacks get the partitions that come, have to be given up, or are lost already (`on_revoke` unless given), within `poll`,
        `close` or `unsubscribe`. An empty list unsubscribes.
        """
        wanted = arguments.checked_topics(topics)
        listeners = {"assign": on_assign, "revoke": on_revoke, "lost": on_revoke if on_lost is None else on_lost}
        checked = {kind: arguments.checked_callback(callback, f"on_{kind}") for kind, callback in listeners.items()}

        def subscribe() -> None:
            if isinstance(wanted, list):
                self._core.subscribe(wanted)
            else:
                self._core.subscribe_pattern(wanted)
            self._callbacks.listeners = checked

        def call() -> None:
            self._require_group("subscribe")
            if wanted:
                self._thread.run(subscribe)
            else:
                self.unsubscribe()

        self._enter("subscribe", call)

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read these partitions, without sharing them with anybody. Replaces what was assigned; positions of those that stay, stay."""
        tps = arguments.checked_partitions(partitions)
        if tps:
            self._run("assign", lambda: self._core.assign(tps, self._clock.steady_ms()))
        else:
            self._enter("assign", self.unsubscribe)

    def unsubscribe(self) -> None:
        """Read nothing any more, and leave the group."""

        def leave() -> None:
            self._core.leave("the consumer unsubscribed from all topics")
            self._callbacks.listeners = {}

        def call() -> None:
            error = self._callbacks.run_listener(self._thread.run(self._core.leave_callback))
            self._thread.run(leave)
            if error is not None:
                raise error

        self._enter("unsubscribe", call)

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to; of a pattern, those that it matches."""
        return self._read("subscription", lambda: self._core.subscriptions.topics)

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""
        return self._read("assignment", lambda: frozenset(self._core.subscriptions.assigned))

    # Reading.

    if not TYPE_CHECKING:  # Type checkers report what is missing by themselves.
        __getattr__ = missing_attributes(CONSUMER_HINTS)

    def poll(self, timeout: float | None = None, **foreign: Never) -> list[ConsumerRecord]:
        """Records, as soon as there are some, up to `max.poll.records`; none after `timeout` seconds (None: wait without limit).

        Takes part in the group's rebalances, and commits what earlier polls gave where offsets are committed automatically. Raises what
        stands in the way of reading.
        """
        refuse_arguments("poll", foreign)
        return self._poll_records(timeout, self._records_of)

    def poll_table(self, timeout: float | None = None, **foreign: Never) -> pa.Table:
        """As `poll`, as an Arrow table: topic, partition, offset, timestamp, timestampType, key, value, headers.

        Keys and values are bytes: no deserializer is asked. Up to 100000 rows, unless `max.poll.records` is given.
        """
        refuse_arguments("poll_table", foreign)
        from chaffinch.consumer.tables import table_of  # pyarrow is loaded by whoever wants tables.

        return self._poll("poll_table", timeout, self._table_records_max, table_of)

    def _poll(self, method: str, timeout: float | None, records_max: int, convert: Callable[[list[Portion]], T]) -> T:
        timeout_ms = arguments.checked_timeout_ms(timeout)
        made = self._enter(method, lambda: convert(self._poller.portions(timeout_ms, records_max)))
        self._poller.unconfirmed = None  # Whatever is raised before this, Ctrl-C at any time: it is read again, see `Polls.make_up`.
        return made

    def _poll_records(self, timeout: float | None, convert: Callable[[list[Portion]], T]) -> T:
        if self._rejected:
            self._read("poll", self._raise_rejected)
        return self._poll("poll", timeout, self._records_max, convert)

    def _raise_rejected(self) -> None:
        """Once for each record that was refused and is next in its partition: everything before it was given."""
        while self._rejected:
            tp = next(iter(self._rejected))
            offset, error = self._rejected.pop(tp)
            state = self._core.subscriptions.assigned.get(tp)
            if state is None or state.is_paused or state.is_recreated or state.consumed is None:
                continue
            if state.consumed.offset == offset:
                raise error

    def _records_of(self, portions: list[Portion]) -> list[ConsumerRecord]:
        found = records_of_all(portions, self._key_deserializer, self._value_deserializer, self._reject)
        if self._rejected and not found:
            self._thread.run(self._raise_rejected)
        return found

    def _reject(self, tp: TopicPartition, offset: int, error: RecordDeserializationException) -> None:
        """Go back to a record that a deserializer refused; the next poll says so, whatever others there are to read."""

        def go_back() -> None:
            if not self._core.subscriptions.of(tp).is_recreated:  # Otherwise the record's topic was deleted meanwhile.
                self._core.seek(tp, Position(offset))
                self._rejected[tp] = offset, error

        self._thread.run(go_back)

    # Positions.

    def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """The offset of the next record that `poll` gives of an assigned partition; looked up if need be, for `timeout` seconds at most."""
        tp = arguments.checked_topic_partition(partition)
        deadline_ms, limit = self._deadline(timeout)

        def step() -> Position | None:
            position = self._core.subscriptions.of(tp).consumed
            if position is None:
                self._core.raise_if_missing(tp, self._clock.steady_ms())
                self._core.raise_error()
                self._poller.check_wakeup()
            return position

        limit_s = max(0, deadline_ms - self._clock.steady_ms()) / 1000
        found = self._enter("position", lambda: self._thread.run_until(step, limit_s))
        if found is None:
            text = f"the position of {tp} was not told {limit}"
            raise self._read("position", lambda: self._core.context.timeout_error(text, tps=[tp]))
        return found.offset

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Go on reading an assigned partition from there."""
        tp, found = arguments.checked_topic_partition(partition), arguments.checked_offset(offset)
        self._run("seek", lambda: self._core.seek(tp, Position(found.offset, found.leader_epoch)))

    def seek_to_beginning(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Go on from the first offset there is; of all assigned partitions unless some are named."""
        self._seek_to(partitions, EARLIEST, "seek_to_beginning")

    def seek_to_end(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Go on from the end: with read_committed, from the last stable offset."""
        self._seek_to(partitions, LATEST, "seek_to_end")

    def _seek_to(self, partitions: Collection[TopicPartition] | None, strategy: Any, method: str) -> None:
        tps = None if partitions is None else arguments.checked_partitions(partitions)
        self._run(method, lambda: self._core.seek_to(list(self._core.subscriptions.assigned) if tps is None else tps, strategy))

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Give nothing of these partitions until they are resumed; what was fetched of them is kept."""
        self._set_paused(partitions, True, "pause")

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Give records of these partitions again, from where they were paused."""
        self._set_paused(partitions, False, "resume")

    def _set_paused(self, partitions: Collection[TopicPartition], is_paused: bool, method: str) -> None:
        tps = arguments.checked_partitions(partitions)

        def pause() -> None:
            for state in [self._core.subscriptions.of(tp) for tp in tps]:
                state.is_paused = is_paused

        self._run(method, pause)

    def paused(self) -> frozenset[TopicPartition]:
        """The assigned partitions of which nothing is given until they are resumed."""
        assigned = self._core.subscriptions.assigned
        return self._read("paused", lambda: frozenset(tp for tp, state in assigned.items() if state.is_paused))

    # Committed offsets.

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        *,
        asynchronous: bool = False,
        on_commit: OnCommit | None = None,
        timeout: float | None = None,
        **foreign: Never,
    ) -> None:
        """Commit what was read, or `offsets`: those of the next records to read.

        Waits, and tries again what passes, up to `timeout` seconds (default.api.timeout.ms), or with `asynchronous` tries once and
        goes on. `on_commit(offsets, error)` is called within a later `poll`, `commit` or `close`. RebalanceInProgressException: poll,
        then commit again. CommitFailedException: the group has gone on without this member.
        """
        refuse_arguments("commit", foreign)
        checked = None if offsets is None else arguments.checked_offsets(offsets)
        callback = arguments.checked_callback(on_commit, "on_commit")
        deadline_ms, limit = self._deadline(timeout)

        def begin(commits: Commits, pending: Pending) -> None:
            wanted = commits.positions() if checked is None else checked

            def done(error: KafkaException | None) -> None:
                pending.complete(error=error)
                past = set() if commit is None else commit.outdated
                self._callbacks.add_completed_commit(callback, {tp: wanted[tp] for tp in wanted.keys() - past}, error)

            commit: Commit | None = None
            commit = commits.commit(checked, deadline_ms, done, retries=not asynchronous, limit=limit)

        def call() -> None:
            commits = self._require_group("commit").commits
            self._callbacks.run_commit_callbacks()
            if asynchronous:
                self._thread.run(lambda: begin(commits, Pending()))
                return
            try:
                self._request(lambda pending: begin(commits, pending))
            finally:
                self._callbacks.run_commit_callbacks()

        self._enter("commit", call)

    def committed(
        self, partitions: Collection[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed; None for partitions without."""
        tps = arguments.checked_partitions(partitions)
        deadline_ms, limit = self._deadline(timeout)

        def call() -> dict[TopicPartition, OffsetAndMetadata | None]:
            lookups = self._require_group("committed").commits.committed
            return self._request(lambda pending: lookups.look_up(tps, deadline_ms, pending, limit)) if tps else {}

        return self._enter("committed", call)

    def group_metadata(self) -> GroupMetadata:
        """Who this member is, for `Producer.send_offsets_to_transaction`."""

        def read() -> GroupMetadata:
            self._require_group("group_metadata")
            return self._core.group_metadata()

        return self._read("group_metadata", read)

    # What leaders know.

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, FoundOffset | None]:
        """The first record of each partition that is not older than a time (ms since 1970); None where there is none."""
        return self._query_offsets(arguments.checked_times(times), timeout, "offsets_for_times")

    def beginning_offsets(self, partitions: Collection[TopicPartition], timeout: float | None = None) -> dict[TopicPartition, int]:
        """The first offset that is there, of each partition."""
        return self._query_offsets_at(partitions, OFFSET_EARLIEST, timeout, "beginning_offsets")

    def end_offsets(self, partitions: Collection[TopicPartition], timeout: float | None = None) -> dict[TopicPartition, int]:
        """The offset that comes next, of each partition; with read_committed, the last stable offset."""
        return self._query_offsets_at(partitions, OFFSET_LATEST, timeout, "end_offsets")

    def _query_offsets_at(
        self, partitions: Collection[TopicPartition], timestamp: int, timeout: float | None, method: str
    ) -> dict[TopicPartition, int]:
        found = self._query_offsets(dict.fromkeys(arguments.checked_partitions(partitions), timestamp), timeout, method)
        return {tp: offset.offset for tp, offset in found.items() if offset is not None}

    def _query_offsets(
        self, times: dict[TopicPartition, int], timeout: float | None, method: str
    ) -> dict[TopicPartition, FoundOffset | None]:
        deadline_ms, limit = self._deadline(timeout)
        found: dict[TopicPartition, FoundOffset | None] = self._enter(
            method, lambda: self._request(lambda pending: self._core.lookups.add(OffsetsCall(pending, times, deadline_ms, limit)))
        )
        return found

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[TopicPartition]:
        """The partitions of a topic."""
        name = arguments.checked_topic(topic)
        deadline_ms, limit = self._deadline(timeout)
        found: list[TopicPartition] = self._enter(
            "partitions_for",
            lambda: self._request(lambda pending: self._core.topic_calls.add(TopicCall(pending, name, deadline_ms, limit))),
        )
        return found

    def metrics(self) -> dict[str, float]:
        """Counts since the consumer was made where the name ends in `total`, and how things are now: docs/consumer.md."""
        return self._read("metrics", lambda: read_all(METRICS, self._core, self._clock.steady_ms()))

    # The end.

    def wakeup(self) -> None:
        """End a call that waits, or the next one that would, with WakeupException; from any thread."""
        self._guard.check_process()
        self._poller.wakeup_requested = True
        self._thread.notify()

    def close(self, timeout: float | None = CLOSE_TIMEOUT_S, **foreign: Never) -> None:
        """Commit what was read, if that is automatic, leave the group (static members stay), and end. Again, or in a forked child, it
        has no effect."""
        refuse_arguments("close", foreign)
        self._leave_and_close(arguments.checked_timeout_ms(timeout), exception_type=None)

    def _leave_and_close(self, timeout_ms: int | None, exception_type: type[BaseException] | None) -> None:
        """`exception_type`: what ends the `with` statement, in the midst of records that were read."""
        if not self._guard.is_in_other_process:
            self._enter("close", lambda: self._close(timeout_ms, exception_type))

    def _close(self, timeout_ms: int | None, exception_type: type[BaseException] | None) -> None:
        if self._guard.is_closed:
            return
        self._poller.wakeup_requested, error = False, None
        deadline_ms = self._clock.steady_ms() + (2**53 if timeout_ms is None else timeout_ms)
        was_stopping = self._thread.is_stopping
        try:
            if not was_stopping and self._thread.death is None:  # As a close that was interrupted may have left it.
                closing.commit_on_close(self._core, self._thread, deadline_ms, exception_type)
                error = self._callbacks.run_listener(self._thread.run(self._core.leave_callback))
                closing.leave(self._core, self._thread, deadline_ms)
        except KafkaException:
            if not self._guard.is_closed:  # Else by a signal handler meanwhile, and nothing is left to do.
                raise
        finally:
            # In this order: who is interrupted before the thread was told to stop may close again. In a signal handler that interrupts the
            # waiting for its end that would wait for itself.
            self._thread.stop(EXIT_WAIT_MS if was_stopping else None)
            self._guard.is_closed = True
        self._callbacks.run_commit_callbacks()
        if error is not None:
            raise error

    # Waiting, and who may call.

    def _enter(self, method: str, call: Callable[[], T]) -> T:
        """Make a call from outside, or from within another one."""
        return self._guard.enter(method, call, self._poller.return_unconfirmed)

    def _run(self, method: str, change: Callable[[], None]) -> None:
        """A call that changes something, and waits for nothing else."""
        self._enter(method, lambda: self._thread.run(change))

    def _read(self, method: str, read: Callable[[], T]) -> T:
        """A call that changes nothing."""
        return self._enter(method, lambda: self._thread.run(read))

    def _request(self, start: Callable[[Pending], None]) -> Any:
        """Ask something, and wait for the answer."""
        pending, to_start = Pending(), [start]

        def step() -> Pending | None:
            if to_start:
                to_start.pop()(pending)
            self._poller.check_wakeup()
            return pending if pending.is_done else None

        self._thread.run_until(step, None)
        if pending.error is not None:
            raise pending.error
        return pending.result

    def _deadline(self, timeout: float | None) -> tuple[int, str]:
        """When the time of a call is over, and how long it is in words."""
        timeout_ms, name = arguments.checked_timeout_ms(timeout), "timeout"
        if timeout_ms is None:
            timeout_ms, name = self.settings[API_TIMEOUT], API_TIMEOUT
        return self._clock.steady_ms() + timeout_ms, within(timeout_ms, name)

    def _require_group(self, method: str) -> Group:
        if self._core.group is None:
            raise IllegalStateException(f"{method} needs a group, and this consumer has none: give it the option group.id")
        return self._core.group
