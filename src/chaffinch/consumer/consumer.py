"""KafkaConsumer API: `Consumer`, the public class of this package. It checks arguments, waits for results and returns them.

One thread at a time may use it, as in Kafka; only `wakeup` may be called from any thread. A background thread sends heartbeats and fetches.
All work on the core runs on that thread, since KeyboardInterrupt can occur at any point of the caller's thread. Callbacks run on the
caller's thread, within the call that causes them. Names follow KafkaConsumer.java.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Never, NoReturn, Self, TypeVar, Unpack, overload

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
from chaffinch.consumer.records import ConsumerRecord, K, V, deserializer, records_of_all
from chaffinch.errors import IllegalStateException, KafkaException, RecordDeserializationException
from chaffinch.foreign_names import CONSUMER_HINTS, missing_attributes, refuse_arguments
from chaffinch.identifiers import OFFSET_EARLIEST, OFFSET_LATEST, GroupMetadata, OffsetAndMetadata, TopicPartition
from chaffinch.public_names import exported_from
from chaffinch.runtime.clock import SystemClock

if TYPE_CHECKING:
    import re

    import pyarrow as pa

    from chaffinch.consumer.option_types import ConsumerOptions

log = plain_text.logger("chaffinch.consumer")

CLOSE_TIMEOUT_S: Final = 30.0

T = TypeVar("T")


@exported_from("chaffinch")
class Consumer(Generic[K, V]):
    """Kafka consumer: reads records as objects or Arrow tables, as a member of a group or from assigned partitions.

    For type checkers it is `Consumer[K, V]`, where the deserializers decide: `Consumer(value_deserializer=json.loads)` is a
    `Consumer[bytes, Any]`, and one without deserializers a `Consumer[bytes, bytes]`. If they are given in a mapping, annotate the variable:
    `consumer: Consumer[str, Order] = Consumer(options)`.

    For example::

        with Consumer(bootstrap_servers="localhost:9092", group_id="billing", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["orders"])
            for record in consumer.poll(timeout=10):
                print(record.partition, record.offset, record.key, record.value)

    One thread at a time may use a consumer; only `wakeup` may be called from any thread. A background thread sends heartbeats and fetches.
    Callbacks run within the call that causes them. A method called after `close`, by a second thread or in a forked child raises
    IllegalStateException. A consumer is also an endless iterator of single records.

    At its end the `with` statement calls `close`, which commits what was read (if auto-commit is on) and leaves the group. If an exception
    ends the `with` statement, nothing more is committed. As in Kafka, the default of `isolation.level` is `read_uncommitted`.
    """

    @overload
    def __init__(
        self,
        options: Mapping[str, Any] | None = None,
        *,
        key_deserializer: None = None,
        value_deserializer: None = None,
        **keywords: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[K, V],
        options: Mapping[str, Any] | None = None,
        *,
        key_deserializer: Callable[[bytes], K],
        value_deserializer: Callable[[bytes], V],
        **keywords: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[bytes, V],
        options: Mapping[str, Any] | None = None,
        *,
        key_deserializer: None = None,
        value_deserializer: Callable[[bytes], V],
        **keywords: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[K, bytes],
        options: Mapping[str, Any] | None = None,
        *,
        key_deserializer: Callable[[bytes], K],
        value_deserializer: None = None,
        **keywords: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[Any, Any],
        options: Mapping[str, Any] | None = None,
        *,
        key_deserializer: str,
        value_deserializer: str | Callable[[bytes], Any] | None = None,
        **keywords: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[Any, Any],
        options: Mapping[str, Any] | None = None,
        *,
        key_deserializer: Callable[[bytes], Any] | None = None,
        value_deserializer: str,
        **keywords: Unpack[ConsumerOptions],
    ) -> None: ...

    def __init__(self, options: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        """Parse the options and start the background thread. No connection is made before the first call that needs one.

        Args:
            options: values by Kafka option name, with dots.
            keywords: the same options as keywords, with underscores. `bootstrap.servers` is required; `subscribe` and commits need
                `group.id`. Values are in milliseconds where the name ends in `ms`. All options: docs/reference/consumer.md.

        Raises:
            ConfigException: an option is unknown, has an invalid value, or contradicts another option; the message names it.
        """
        self.settings = parse_options(options, **keywords)
        for name in sorted(self.settings.ignored):
            log.warning("option %s is known to Apache Kafka and without effect here", name)
        self._key_deserializer = deserializer(self.settings, "key.deserializer")
        self._value_deserializer = deserializer(self.settings, "value.deserializer")
        self._clock = SystemClock()
        self._core = ConsumerCore(self.settings, random.Random())
        self._core.set_wall_clock(self._clock.steady_ms(), self._clock.wall_ms())  # `position` may be called before the first poll.
        self._records_max: int = self.settings["max.poll.records"]
        self._table_records_max = self._records_max if "max.poll.records" in self.settings.given else TABLE_RECORDS
        self._rejected: dict[TopicPartition, tuple[int, RecordDeserializationException]] = {}
        """Records that a deserializer rejected and that no poll has reported yet."""
        self._guard = AccessGuard()
        network = Network(ConnectionSettings.of(self.settings), clock=self._clock)
        self._thread = ConsumerThread(self._core, network, self._clock, f"{self.settings['client.id']}-network")
        self._callbacks = Callbacks()
        self._poller = Poller(self._core, self._thread, self._callbacks, self._clock)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __del__(self) -> None:
        # Python may run this on any thread, so no lock is taken. Without a thread, the options were invalid.
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

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        """Yield records one by one, without end; positions and commits follow each record.

        Raises:
            KafkaException: as `poll`.
        """
        while True:
            batch: IterationBatch = self._poll_records(None, lambda portions: begin_iteration(self._core, self._records_of(portions)))
            yield from iterate_records(self._core, batch, lambda: self._thread.post(self._core.return_undelivered))
            if self._guard.is_closed:  # The body of the loop closed it.
                return

    # Subscription and assignment.

    def subscribe(
        self,
        topics: Collection[str] | str | re.Pattern[str],
        *,
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Subscribe to topics; the group assigns their partitions to its members. Replaces the previous subscription.

        The callbacks run within `poll`, `close` or `unsubscribe`.

        Args:
            topics: names, a single name, or a compiled pattern that must match a whole name. An empty list unsubscribes.
            on_assign: called with the list of partitions that were assigned.
            on_revoke: called with the list of partitions that the member has to give up; it may still commit them.
            on_lost: called with the list of partitions that the group has already taken away; by default `on_revoke`.

        Raises:
            TypeError, ValueError: an argument is invalid.
            InvalidTopicException: brokers do not accept a topic name.
            IllegalStateException: there is no `group.id`, or partitions are assigned with `assign`.
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
        """Read these partitions without group management. Replaces the previous assignment; partitions in both keep their positions.

        Args:
            partitions: collection of TopicPartitions. An empty one unsubscribes.

        Raises:
            TypeError: an argument is invalid.
            IllegalStateException: the consumer is subscribed to topics.
        """
        tps = arguments.checked_partitions(partitions)
        if tps:
            self._run("assign", lambda: self._core.assign(tps, self._clock.steady_ms()))
        else:
            self._enter("assign", self.unsubscribe)

    def unsubscribe(self) -> None:
        """Stop reading and leave the group; runs `on_revoke` first.

        Raises:
            KafkaException: the callback failed; its exception is the cause.
        """

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
        """Return the topics subscribed to; for a pattern, the topics that it matches.

        Returns:
            A set of names; empty without a subscription.
        """
        return self._read("subscription", lambda: self._core.subscriptions.topics)

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that this consumer reads now, assigned by the group or with `assign`.

        Returns:
            A set of TopicPartitions.
        """
        return self._read("assignment", lambda: frozenset(self._core.subscriptions.assigned))

    # Reading.

    if not TYPE_CHECKING:  # Type checkers report missing attributes themselves.
        __getattr__ = missing_attributes(CONSUMER_HINTS)

    def poll(self, timeout: float | None = None, **foreign: Never) -> list[ConsumerRecord[K, V]]:
        """Return records as soon as there are some. Takes part in rebalances, runs callbacks, and makes automatic commits of earlier polls.

        Args:
            timeout: limit in seconds; None: no limit.
            foreign: names of other Kafka clients; they raise TypeError with a hint.

        Returns:
            At most `max.poll.records` ConsumerRecords, ordered by offset within each partition; an empty list after the timeout.

        Raises:
            IllegalStateException: nothing is subscribed or assigned, or this is a rebalance callback.
            NoOffsetForPartitionException, OffsetOutOfRangeException: a partition has no valid position and `auto.offset.reset` is `none`.
            RecordDeserializationException: a deserializer raised; seek past the record to continue.
            CorruptRecordException: a batch is damaged; the message names the offset to seek to.
            FencedInstanceIdException: another member uses the same `group.instance.id`.
            WakeupException: `wakeup` was called.
            KafkaException: another error that retries cannot solve, such as a missing permission, or an exception of a callback.
        """
        refuse_arguments("poll", foreign)
        return self._poll_records(timeout, self._records_of)

    def poll_table(self, timeout: float | None = None, **foreign: Never) -> pa.Table:
        """Return records as an Arrow table, as soon as there are some; otherwise as `poll`. Needs pyarrow.

        Args:
            timeout: limit in seconds; None: no limit.
            foreign: names of other Kafka clients; they raise TypeError with a hint.

        Returns:
            A pyarrow.Table with the columns topic, partition, offset, timestamp, timestampType, key, value and headers. Keys and values are
            binary: deserializers are not called. At most 100000 rows, or `max.poll.records` if that option is given; no rows after the
            timeout.

        Raises:
            KafkaException: as `poll`.
        """
        refuse_arguments("poll_table", foreign)
        from chaffinch.consumer.tables import table_of  # pyarrow is imported only for tables.

        return self._poll("poll_table", timeout, self._table_records_max, table_of)

    def _poll(self, method: str, timeout: float | None, records_max: int, convert: Callable[[list[Portion]], T]) -> T:
        timeout_ms = arguments.checked_timeout_ms(timeout)
        made = self._enter(method, lambda: convert(self._poller.portions(timeout_ms, records_max)))
        self._poller.unconfirmed = None  # If an exception comes before this, the records are read again: see `Poller.return_unconfirmed`.
        return made

    def _poll_records(self, timeout: float | None, convert: Callable[[list[Portion]], T]) -> T:
        if self._rejected:
            self._read("poll", self._raise_rejected)
        return self._poll("poll", timeout, self._records_max, convert)

    def _raise_rejected(self) -> None:
        """Raise the error of each rejected record once, if the record is the next one in its partition."""
        while self._rejected:
            tp = next(iter(self._rejected))
            offset, error = self._rejected.pop(tp)
            state = self._core.subscriptions.assigned.get(tp)
            if state is None or state.is_paused or state.is_recreated or state.consumed is None:
                continue
            if state.consumed.offset == offset:
                raise error

    def _records_of(self, portions: list[Portion]) -> list[ConsumerRecord[K, V]]:
        found = records_of_all(portions, self._key_deserializer, self._value_deserializer, self._reject)
        if self._rejected and not found:
            self._thread.run(self._raise_rejected)
        return found

    def _reject(self, tp: TopicPartition, offset: int, error: RecordDeserializationException) -> None:
        """Move the position back to a record that a deserializer rejected. The next poll raises the error before it returns records."""

        def go_back() -> None:
            if not self._core.subscriptions.of(tp).is_recreated:  # Otherwise the record's topic was deleted in the meantime.
                self._core.seek(tp, Position(offset))
                self._rejected[tp] = offset, error

        self._thread.run(go_back)

    # Positions.

    def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """Return the offset of the next record that `poll` returns from an assigned partition; look it up if it is not known.

        Args:
            partition: an assigned TopicPartition.
            timeout: limit in seconds; None: `default.api.timeout.ms`.

        Returns:
            The offset.

        Raises:
            IllegalStateException: the partition is not assigned.
            TimeoutException: the position could not be looked up in time.
            UnknownTopicOrPartitionException: the partition does not exist.
            KafkaException: as `poll`.
        """
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
            text = f"the position of {tp} could not be looked up {limit}"
            raise self._read("position", lambda: self._core.context.timeout_error(text, tps=[tp]))
        return found.offset

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Continue reading an assigned partition at this offset.

        Args:
            partition: an assigned TopicPartition.
            offset: int, or OffsetAndMetadata; with its leader epoch the leader first checks that its log still has the offset.

        Raises:
            TypeError, ValueError: an argument is invalid.
            IllegalStateException: the partition is not assigned.
        """
        tp, found = arguments.checked_topic_partition(partition), arguments.checked_offset(offset)
        self._run("seek", lambda: self._core.seek(tp, Position(found.offset, found.leader_epoch)))

    def seek_to_beginning(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Continue reading at the first available offset.

        Args:
            partitions: assigned TopicPartitions; None: all that are assigned.

        Raises:
            IllegalStateException: a partition is not assigned.
        """
        self._seek_to(partitions, EARLIEST, "seek_to_beginning")

    def seek_to_end(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Continue reading at the end: the high watermark, or with `read_committed` the last stable offset.

        Args:
            partitions: assigned TopicPartitions; None: all that are assigned.

        Raises:
            IllegalStateException: a partition is not assigned.
        """
        self._seek_to(partitions, LATEST, "seek_to_end")

    def _seek_to(self, partitions: Collection[TopicPartition] | None, strategy: Any, method: str) -> None:
        tps = None if partitions is None else arguments.checked_partitions(partitions)
        self._run(method, lambda: self._core.seek_to(list(self._core.subscriptions.assigned) if tps is None else tps, strategy))

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`; records already fetched are retained.

        Args:
            partitions: assigned TopicPartitions.

        Raises:
            IllegalStateException: a partition is not assigned.
        """
        self._set_paused(partitions, True, "pause")

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Return records of these partitions again, from the position where they were paused.

        Args:
            partitions: assigned TopicPartitions.

        Raises:
            IllegalStateException: a partition is not assigned.
        """
        self._set_paused(partitions, False, "resume")

    def _set_paused(self, partitions: Collection[TopicPartition], is_paused: bool, method: str) -> None:
        tps = arguments.checked_partitions(partitions)

        def pause() -> None:
            for state in [self._core.subscriptions.of(tp) for tp in tps]:
                state.is_paused = is_paused

        self._run(method, pause)

    def paused(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions that are paused.

        Returns:
            A set of TopicPartitions.
        """
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
        """Commit offsets to the group. By default waits for the response, and retries temporary errors.

        Args:
            offsets: mapping of TopicPartition to the offset of the next record to read, an int or OffsetAndMetadata; None: the positions of
                all assigned partitions.
            asynchronous: send the commit once, without a retry, and return immediately.
            on_commit: called with (offsets, error) within this call or a later `poll`, `commit` or `close`; error is None after success.
            timeout: limit in seconds; None: `default.api.timeout.ms`.
            foreign: names of other Kafka clients; they raise TypeError with a hint.

        Raises:
            TypeError, ValueError: an argument is invalid.
            IllegalStateException: there is no `group.id`.
            RebalanceInProgressException: the group rebalances; poll, then commit again.
            CommitFailedException: the member was removed from the group, or is not a member.
            TimeoutException: the coordinator did not respond in time; the offsets may be committed.
            KafkaException: the coordinator rejected the commit.
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
        """Return the offsets that the group has committed.

        Args:
            partitions: TopicPartitions, assigned or not.
            timeout: limit in seconds; None: `default.api.timeout.ms`.

        Returns:
            A mapping of each TopicPartition to OffsetAndMetadata, or to None if nothing is committed for it.

        Raises:
            IllegalStateException: there is no `group.id`.
            TimeoutException: the coordinator did not respond in time.
            KafkaException: the coordinator rejected the request.
        """
        tps = arguments.checked_partitions(partitions)
        deadline_ms, limit = self._deadline(timeout)

        def call() -> dict[TopicPartition, OffsetAndMetadata | None]:
            lookups = self._require_group("committed").commits.committed
            return self._request(lambda pending: lookups.look_up(tps, deadline_ms, pending, limit)) if tps else {}

        return self._enter("committed", call)

    def group_metadata(self) -> GroupMetadata:
        """Return the identity of this member, for `Producer.send_offsets_to_transaction`.

        Returns:
            GroupMetadata with the group id, generation, member id and `group.instance.id`.

        Raises:
            IllegalStateException: there is no `group.id`.
        """

        def read() -> GroupMetadata:
            self._require_group("group_metadata")
            return self._core.group_metadata()

        return self._read("group_metadata", read)

    # Offsets and partitions of the cluster.

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, FoundOffset | None]:
        """Find the first record of each partition that is not older than a time.

        Args:
            times: mapping of TopicPartition to ms since 1970.
            timeout: limit in seconds; None: `default.api.timeout.ms`.

        Returns:
            A mapping of each TopicPartition to (offset, timestamp_ms, leader_epoch), or to None if no record is recent enough.

        Raises:
            TypeError, ValueError: an argument is invalid.
            TimeoutException: a leader did not respond in time.
            UnknownTopicOrPartitionException: a partition does not exist.
        """
        return self._query_offsets(arguments.checked_times(times), timeout, "offsets_for_times")

    def beginning_offsets(self, partitions: Collection[TopicPartition], timeout: float | None = None) -> dict[TopicPartition, int]:
        """Return the first available offset of each partition.

        Args:
            partitions: TopicPartitions, assigned or not.
            timeout: limit in seconds; None: `default.api.timeout.ms`.

        Returns:
            A mapping of TopicPartition to offset.

        Raises:
            TimeoutException: a leader did not respond in time.
            UnknownTopicOrPartitionException: a partition does not exist.
        """
        return self._query_offsets_at(partitions, OFFSET_EARLIEST, timeout, "beginning_offsets")

    def end_offsets(self, partitions: Collection[TopicPartition], timeout: float | None = None) -> dict[TopicPartition, int]:
        """Return the end offset of each partition: the high watermark, or with `read_committed` the last stable offset.

        Args:
            partitions: TopicPartitions, assigned or not.
            timeout: limit in seconds; None: `default.api.timeout.ms`.

        Returns:
            A mapping of TopicPartition to the offset of the next record to be written.

        Raises:
            TimeoutException: a leader did not respond in time.
            UnknownTopicOrPartitionException: a partition does not exist.
        """
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
        """Return the partitions of a topic.

        Args:
            topic: its name.
            timeout: limit in seconds; None: `default.api.timeout.ms`.

        Returns:
            A list of TopicPartitions, ordered by number.

        Raises:
            InvalidTopicException: brokers do not accept this name.
            TimeoutException: no metadata arrived in time.
            UnknownTopicOrPartitionException: the topic does not exist.
        """
        name = arguments.checked_topic(topic)
        deadline_ms, limit = self._deadline(timeout)
        found: list[TopicPartition] = self._enter(
            "partitions_for",
            lambda: self._request(lambda pending: self._core.topic_calls.add(TopicCall(pending, name, deadline_ms, limit))),
        )
        return found

    def metrics(self) -> dict[str, float]:
        """Return the metrics of this consumer.

        Returns:
            A mapping of names to numbers. Names that end in `total` count since the consumer was created, the others are current values.
            All names: docs/reference/consumer.md.
        """
        return self._read("metrics", lambda: read_all(METRICS, self._core, self._clock.steady_ms()))

    # Wakeup and close.

    def wakeup(self) -> None:
        """End a call that waits, or the next call that would wait, with WakeupException. May be called from any thread.

        Raises:
            IllegalStateException: this is a forked child.
        """
        self._guard.check_process()
        self._poller.wakeup_requested = True
        self._thread.notify()

    def close(self, timeout: float | None = CLOSE_TIMEOUT_S, **foreign: Never) -> None:
        """Commit what was read if auto-commit is on, leave the group (static members stay), and stop.

        Has no effect when repeated or in a forked child.

        Args:
            timeout: limit in seconds for the commit and the response to LeaveGroup; None: no limit.
            foreign: names of other Kafka clients; they raise TypeError with a hint.

        Raises:
            KafkaException: a callback failed; the consumer is closed all the same.
        """
        refuse_arguments("close", foreign)
        self._leave_and_close(arguments.checked_timeout_ms(timeout), exception_type=None)

    def _leave_and_close(self, timeout_ms: int | None, exception_type: type[BaseException] | None) -> None:
        """`exception_type`: the exception that ends the `with` statement; its records may not have been processed."""
        if not self._guard.is_in_other_process:
            self._enter("close", lambda: self._close(timeout_ms, exception_type))

    def _close(self, timeout_ms: int | None, exception_type: type[BaseException] | None) -> None:
        if self._guard.is_closed:
            return
        self._poller.wakeup_requested, error = False, None
        deadline_ms = self._clock.steady_ms() + (2**53 if timeout_ms is None else timeout_ms)
        was_stopping = self._thread.is_stopping
        try:
            if not was_stopping and self._thread.death is None:  # An interrupted `close` may have stopped the thread already.
                closing.commit_on_close(self._core, self._thread, deadline_ms, exception_type)
                error = self._callbacks.run_listener(self._thread.run(self._core.leave_callback))
                closing.leave(self._core, self._thread, deadline_ms)
        except KafkaException:
            if not self._guard.is_closed:  # Otherwise a signal handler closed it in the meantime.
                raise
        finally:
            # In this order: after an interrupt before `stop`, `close` can be repeated. A signal handler that interrupts the wait in `stop`
            # must not wait for itself.
            self._thread.stop(EXIT_WAIT_MS if was_stopping else None)
            self._guard.is_closed = True
        self._callbacks.run_commit_callbacks()
        if error is not None:
            raise error

    # Access, waiting and deadlines.

    def _enter(self, method: str, call: Callable[[], T]) -> T:
        """Make a call, from outside or nested in another call."""
        return self._guard.enter(method, call, self._poller.return_unconfirmed)

    def _run(self, method: str, change: Callable[[], None]) -> None:
        """Make a call that changes the core without waiting for a response."""
        self._enter(method, lambda: self._thread.run(change))

    def _read(self, method: str, read: Callable[[], T]) -> T:
        """Make a call that only reads from the core."""
        return self._enter(method, lambda: self._thread.run(read))

    def _request(self, start: Callable[[Pending], None]) -> Any:
        """Start a request and wait for its result."""
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
        """The deadline of a call, and its limit as text for errors."""
        timeout_ms, name = arguments.checked_timeout_ms(timeout), "timeout"
        if timeout_ms is None:
            timeout_ms, name = self.settings[API_TIMEOUT], API_TIMEOUT
        return self._clock.steady_ms() + timeout_ms, within(timeout_ms, name)

    def _require_group(self, method: str) -> Group:
        if self._core.group is None:
            raise IllegalStateException(f"{method} needs a group, and this consumer has none: give it the option group.id")
        return self._core.group
