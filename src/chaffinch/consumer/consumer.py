"""KafkaConsumer API: `Consumer`, the public class of this package. It checks arguments, waits for results and returns them.

One thread at a time may use it, as in Kafka; only `wakeup` may be called from any thread. A background thread sends heartbeats and fetches.
All work on the core runs on that thread, since KeyboardInterrupt can occur at any point of the caller's thread. Callbacks run on the
caller's thread, within the call that causes them. Names follow KafkaConsumer.java.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Never, NoReturn, Self, Unpack, overload

from chaffinch.client.network import Network
from chaffinch.consumer import arguments
from chaffinch.consumer.access_guard import AccessGuard
from chaffinch.consumer.callbacks import Callbacks, OnCommit, OnPartitions
from chaffinch.consumer.calls import CLOSE_TIMEOUT_S, ConsumerCalls
from chaffinch.consumer.consumer_thread import ConsumerThread
from chaffinch.consumer.core.lookups import FoundOffset
from chaffinch.consumer.core.options import EARLIEST, LATEST, parse_options
from chaffinch.consumer.poller import iterate_records
from chaffinch.consumer.records import ConsumerRecord, K, V
from chaffinch.consumer.runner import ThreadRunner, finish
from chaffinch.foreign_names import CONSUMER_HINTS, missing_attributes, refuse_arguments
from chaffinch.identifiers import OFFSET_EARLIEST, OFFSET_LATEST, GroupMetadata, OffsetAndMetadata, TopicPartition
from chaffinch.public_names import exported_from

if TYPE_CHECKING:
    import re

    import pyarrow as pa

    from chaffinch.consumer.option_types import ConsumerOptions


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
        self._calls = ConsumerCalls(self.settings, AccessGuard(), Callbacks())
        network = Network(self._calls.network_settings, clock=self._calls.clock)
        self._thread = ConsumerThread(self._calls.core, network, self._calls.clock, f"{self.settings['client.id']}-network")
        self._calls.attach(ThreadRunner(self._thread))
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __del__(self) -> None:
        # Python may run this on any thread, so no lock is taken. Without a thread, the options were invalid.
        thread = self.__dict__.get("_thread")
        if thread is not None and thread.death is None and not self._calls.guard.is_closed and not self._calls.guard.is_in_other_process:
            thread.abandon(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Consumer cannot be pickled: make one in each process")

    def __repr__(self) -> str:
        return self._calls.describe("Consumer")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        finish(self._calls.close, round(1000 * CLOSE_TIMEOUT_S), kind)

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        """Yield records one by one, without end; positions and commits follow each record.

        Raises:
            KafkaException: as `poll`.
        """
        while True:
            batch = finish(self._calls.poll_iteration)
            yield from iterate_records(self._calls.core, batch, lambda: self._thread.post(self._calls.core.return_undelivered))
            if self._calls.guard.is_closed:  # The body of the loop closed it.
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
        finish(self._calls.subscribe, topics, on_assign, on_revoke, on_lost)

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read these partitions without group management. Replaces the previous assignment; partitions in both keep their positions.

        Args:
            partitions: collection of TopicPartitions. An empty one unsubscribes.

        Raises:
            TypeError: an argument is invalid.
            IllegalStateException: the consumer is subscribed to topics.
        """
        finish(self._calls.assign, partitions)

    def unsubscribe(self) -> None:
        """Stop reading and leave the group; runs `on_revoke` first.

        Raises:
            KafkaException: the callback failed; its exception is the cause.
        """
        finish(self._calls.unsubscribe)

    def subscription(self) -> frozenset[str]:
        """Return the topics subscribed to; for a pattern, the topics that it matches.

        Returns:
            A set of names; empty without a subscription.
        """
        return finish(self._calls.run, "subscription", self._calls.subscription)

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that this consumer reads now, assigned by the group or with `assign`.

        Returns:
            A set of TopicPartitions.
        """
        return finish(self._calls.run, "assignment", self._calls.assignment)

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
        return finish(self._calls.poll, timeout)

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
        table: pa.Table = finish(self._calls.poll_table, timeout)
        return table

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
        return finish(self._calls.position, partition, timeout)

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Continue reading an assigned partition at this offset.

        Args:
            partition: an assigned TopicPartition.
            offset: int, or OffsetAndMetadata; with its leader epoch the leader first checks that its log still has the offset.

        Raises:
            TypeError, ValueError: an argument is invalid.
            IllegalStateException: the partition is not assigned.
        """
        finish(self._calls.run, "seek", self._calls.seek(partition, offset))

    def seek_to_beginning(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Continue reading at the first available offset.

        Args:
            partitions: assigned TopicPartitions; None: all that are assigned.

        Raises:
            IllegalStateException: a partition is not assigned.
        """
        finish(self._calls.run, "seek_to_beginning", self._calls.seek_to(partitions, EARLIEST))

    def seek_to_end(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Continue reading at the end: the high watermark, or with `read_committed` the last stable offset.

        Args:
            partitions: assigned TopicPartitions; None: all that are assigned.

        Raises:
            IllegalStateException: a partition is not assigned.
        """
        finish(self._calls.run, "seek_to_end", self._calls.seek_to(partitions, LATEST))

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`; records already fetched are retained.

        Args:
            partitions: assigned TopicPartitions.

        Raises:
            IllegalStateException: a partition is not assigned.
        """
        finish(self._calls.run, "pause", self._calls.set_paused(partitions, is_paused=True))

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Return records of these partitions again, from the position where they were paused.

        Args:
            partitions: assigned TopicPartitions.

        Raises:
            IllegalStateException: a partition is not assigned.
        """
        finish(self._calls.run, "resume", self._calls.set_paused(partitions, is_paused=False))

    def paused(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions that are paused.

        Returns:
            A set of TopicPartitions.
        """
        return finish(self._calls.run, "paused", self._calls.paused)

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
        finish(self._calls.commit, offsets, on_commit, timeout, asynchronous=asynchronous)

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
        return finish(self._calls.committed, partitions, timeout)

    def group_metadata(self) -> GroupMetadata:
        """Return the identity of this member, for `Producer.send_offsets_to_transaction`.

        Returns:
            GroupMetadata with the group id, generation, member id and `group.instance.id`.

        Raises:
            IllegalStateException: there is no `group.id`.
        """
        identity: GroupMetadata = finish(self._calls.run, "group_metadata", self._calls.group_metadata)
        return identity

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
        return finish(self._calls.offsets_for_times, times, timeout)

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
        return finish(self._calls.offsets_at, partitions, OFFSET_EARLIEST, timeout, "beginning_offsets")

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
        return finish(self._calls.offsets_at, partitions, OFFSET_LATEST, timeout, "end_offsets")

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
        return finish(self._calls.partitions_for, topic, timeout)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of this consumer.

        Returns:
            A mapping of names to numbers. Names that end in `total` count since the consumer was created, the others are current values.
            All names: docs/reference/consumer.md.
        """
        return finish(self._calls.run, "metrics", self._calls.metrics)

    # Wakeup and close.

    def wakeup(self) -> None:
        """End a call that waits, or the next call that would wait, with WakeupException. May be called from any thread.

        Raises:
            IllegalStateException: this is a forked child.
        """
        self._calls.wakeup()

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
        finish(self._calls.close, arguments.checked_timeout_ms(timeout), None)
