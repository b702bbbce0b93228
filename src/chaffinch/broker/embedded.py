"""Embedded broker for tests, examples and development: core and server of `chaffinch broker`, on a thread of this process.

    with EmbeddedBroker(topics={"orders": {"partitions": 3, "cleanup.policy": "compact"}}) as broker:
        ... broker.bootstrap_servers ...

Without `data_dir` all data is in memory: it survives `restart` and is lost at the end. All methods are thread-safe.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, TypeVar, Unpack

from chaffinch.broker import arguments, seeding
from chaffinch.broker.arguments import TopicArgument, Topics, config_texts, parse_python
from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.broker.core.counters import ALL_TOPICS
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.broker.core.topics.registry import Partition
from chaffinch.broker.listeners import Address, listen, nodes_of
from chaffinch.broker.seeding import Rows
from chaffinch.broker.server import BrokerServer
from chaffinch.errors import UnknownTopicOrPartitionException, codes
from chaffinch.foreign_names import BROKER_HINTS, missing_attributes
from chaffinch.public_names import exported_from
from chaffinch.records import batch
from chaffinch.records.batch import BatchView
from chaffinch.records.control_batch import committed
from chaffinch.runtime.clock import ShiftedClock
from chaffinch.runtime.loop import LoopThread
from chaffinch.storage.file_system import DiskFileSystem, MemoryFileSystem
from chaffinch.storage.files import BytesLike

if TYPE_CHECKING:
    import pyarrow as pa

    from chaffinch.broker.option_types import BrokerOptions

HOST = "127.0.0.1"
POLL_S: Final = 0.002
"""Poll interval of `wait_for`: each poll takes 0.1 ms of the broker's thread."""

T = TypeVar("T")


@exported_from("chaffinch")
class EmbeddedBroker:
    """A Kafka broker inside this process, for tests, examples and development; any Kafka client can use it.

    For example::

        with EmbeddedBroker(topics={"orders": {"partitions": 3, "cleanup.policy": "compact"}}) as broker:
            ...  # Clients of broker.bootstrap_servers.
            print(broker.read("orders").num_rows)

    All methods may be called from any thread of this process.

    Args:
        topics: topic names, or names with their partitions, replication and options.
        data_dir: directory for all data; without one data is kept in memory, survives `restart` and is lost at the end.
        brokers: number of declared nodes, each with its own port (docs/reference/broker.md).
        config: broker options by dotted name; `group.initial.rebalance.delay.ms` is 0 unless given.
        port: port of the first node on the loopback address; 0 for free ports.
        users: names and passwords of the users who may log in, if `security.protocol` requires a login.
        **keywords: further broker options, with underscores instead of dots: `log_retention_ms=1000`.

    Raises:
        ConfigException: an argument or option is invalid.
        ApiException: a topic is refused.
        OSError: a port is in use.
        StorageError: the data directory is in use, foreign or damaged.

    The attribute `faults` injects faults.
    """

    def __init__(
        self,
        *,
        topics: Topics | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        brokers: int = 1,
        config: Mapping[str, Any] | None = None,
        port: int = 0,
        users: Mapping[str, str] | None = None,
        **keywords: Unpack[BrokerOptions],
    ) -> None:
        arguments.check(brokers=brokers, port=port, data_dir=data_dir)
        config = arguments.checked_config({} if config is None else config, keywords)
        wanted = parse_python(topics)
        arguments.check_users("users", {} if users is None else users)
        self._config = _with_own_defaults(config)
        self._users = dict(users or {})
        self._file_system: DiskFileSystem | MemoryFileSystem = MemoryFileSystem() if data_dir is None else DiskFileSystem(str(data_dir))
        self._data_dir = None if data_dir is None else str(data_dir)
        self._server: BrokerServer | None = None
        self._process_id = os.getpid()
        self._thread = LoopThread("chaffinch-broker")
        self._clock = ShiftedClock()
        self.faults = Faults(self)
        try:
            listeners = listen(Address(host=HOST, port=port), brokers)
            self._ports = [listener.getsockname()[1] for listener in listeners]
            self._start(listeners)
            for topic in wanted:
                self._create_missing(topic)
        except BaseException:
            self.close()
            raise

    # Lifecycle ------------------------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("an EmbeddedBroker cannot be pickled: give other processes its bootstrap_servers")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    if not TYPE_CHECKING:  # Type checkers report missing attributes themselves.
        __getattr__ = missing_attributes(BROKER_HINTS)

    def close(self) -> None:
        """Stop the broker. Has no effect on a stopped broker or in a forked child process."""
        if self._is_in_other_process:
            return
        server, self._server = self._server, None
        try:
            if server is not None:
                self._thread.run(server.close())
        finally:
            self._thread.close()

    def restart(self, *, kill: bool = True) -> None:
        """Restart on the same ports with the same files. Stopped nodes stay stopped; lagging nodes leave the in-sync sets.

        Args:
            kill: simulate the death of the process, so that nothing more is written; otherwise shut down cleanly.

        Raises:
            RuntimeError: the broker is closed, or runs in the parent process.
            OSError: a port is in use.
        """
        server = self._running
        stopped = self._call(lambda core: sorted(core.state.nodes.stopped))
        self._server = None
        if kill:
            self._thread.call(server.abandon)
            self._replace_file_system()
        else:
            self._thread.run(server.close())
        self._start(self._thread.call(lambda: [listen(Address(host=HOST, port=port), 1)[0] for port in self._ports]), stopped)

    def _replace_file_system(self) -> None:
        """Simulate the death of a process: the operating system closes its files, their content stays."""
        self._file_system.kill()
        if self._data_dir is not None:
            self._file_system = DiskFileSystem(self._data_dir)

    def _start(self, listeners: list[Any], stopped: Sequence[int] = ()) -> None:
        nodes, rng = nodes_of(listeners, HOST), random.SystemRandom()
        self._server = self._thread.run(
            BrokerServer.start(
                self._file_system,
                self._config,
                listeners=listeners,
                nodes=nodes,
                rng=rng,
                clock=self._clock,
                stopped=stopped,
                users=self._users,
            )
        )

    # Queries ----------------------------------------------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The addresses, one per declared node: "127.0.0.1:PORT,127.0.0.1:PORT"."""
        return ",".join(f"{HOST}:{port}" for port in self._ports)

    def topics(self) -> dict[str, int]:
        """Partition counts of all topics, by topic name. Raises RuntimeError if the broker is closed."""
        return self._call(lambda core: {topic.name: len(topic.partitions) for topic in core.topics})

    def counters(self, topic: str | None = None) -> dict[str, int]:
        """BrokerTopicStats: totals since the broker's start.

        Args:
            topic: name of a topic; None for the totals of all topics.

        Returns:
            Counts by name (docs/reference/broker.md).

        Raises:
            UnknownTopicOrPartitionException: there is no such topic.
            RuntimeError: the broker is closed.
        """
        if topic is not None:
            self._check_topic(topic)
        snapshot = self._call(lambda core: core.counters.snapshot())
        return snapshot.get(ALL_TOPICS if topic is None else topic, dict.fromkeys(snapshot[ALL_TOPICS], 0))

    def read(
        self,
        topic: str,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        *,
        partition: int | None = None,
        key: bytes | str | None = None,
        from_offset: int = 0,
    ) -> pa.Table:
        """Read the records of a topic, in offset order within each partition.

        Args:
            topic: name of the topic.
            isolation: `read_committed` leaves out records of aborted and open transactions.
            partition: only this partition.
            key: only records with this key.
            from_offset: only records from this offset on, in each partition.

        Returns:
            A table with the columns partition (int32), offset (int64), key, value (binary), timestamp (ms, UTC) and headers.

        Raises:
            ConfigException: an argument is of a wrong type or value.
            UnknownTopicOrPartitionException: the topic does not exist.
            RuntimeError: the broker is closed.
        """
        arguments.check(isolation=isolation, partition=partition, key=key, from_offset=from_offset)
        self._check_topic(topic)
        parts = self._call(lambda core: collect(core, topic, is_committed=isolation == "read_committed"))
        table = to_table([part for part in parts if partition in (None, part.partition)])
        return _filtered(table, key.encode() if isinstance(key, str) else key, from_offset)

    def wait_for(
        self,
        topic: str,
        count: int,
        *,
        timeout: float = 10.0,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    ) -> pa.Table:
        """Wait until a topic has at least `count` readable records.

        Args:
            topic: name of the topic; it may not exist yet.
            count: number of records.
            timeout: maximum number of seconds to wait.
            isolation: as in `read`.

        Returns:
            All readable records, as `read` returns them.

        Raises:
            TimeoutError: the topic has fewer records after `timeout`; the text says how many.
            ConfigException: an argument is of a wrong type or value.
        """
        arguments.check(topic=topic, count=count, timeout=timeout, isolation=isolation)
        deadline_s = time.monotonic() + timeout
        ends, seen = -1, 0
        while True:
            now_ends = self._call(lambda core: _readable_ends(core, topic))
            if now_ends != ends:
                ends = now_ends
                table = self.read(topic, isolation)
                seen = table.num_rows
                if seen >= count:
                    return table
            if time.monotonic() >= deadline_s:
                state = f"has {seen} of {count} records" if ends >= 0 else "does not exist"
                raise TimeoutError(f"topic {topic!r} {state} after {timeout:g} s")
            time.sleep(POLL_S)

    def nodes(self) -> dict[int, str]:
        """States of the declared nodes.

        Returns:
            `running`, `stopped`, or `lagging` (stopped abruptly, and still in the in-sync sets), by node id.

        Raises:
            RuntimeError: the broker is closed.
        """
        return self._call(lambda core: {node.id: core.state.nodes.state_of(node.id) for node in core.state.nodes.nodes})

    # Changes --------------------------------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = -1, replication: int = -1, config: Mapping[str, Any] | None = None) -> None:
        """Create a topic.

        Args:
            name: name of the topic.
            partitions: number of partitions; -1 for the broker's default.
            replication: number of replicas, at most that of the nodes; -1 for the broker's default.
            config: topic options by name.

        Raises:
            ConfigException: an argument or option is invalid.
            ApiException: the exception of the Kafka error code, for example TopicExistsException.
            RuntimeError: the broker is closed.
        """
        config = {} if config is None else config
        arguments.check(name=name, partitions=partitions, replication=replication)
        arguments.check_option_mapping("config", config)
        self._create(TopicArgument(name=name, partitions=partitions, replication=replication, config=config_texts(config)))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records and the offsets that groups committed for it.

        Raises:
            UnknownTopicOrPartitionException: the topic does not exist.
            StorageError: the disk failed.
        """
        self._check_topic(name)
        self._change(lambda server: server.delete_topic(name), "DeleteTopics")

    def reset_topic(self, name: str) -> None:
        """Delete a topic and create it again with the same partitions, replication and options: it is empty, its offsets start at 0, its id
        is new.

        Raises:
            UnknownTopicOrPartitionException: the topic does not exist.
            StorageError: the disk failed.
        """
        self._check_topic(name)

        def reset(server: BrokerServer) -> None:
            topic = server.core.topics.get(name)
            assert topic is not None, "checked before"
            replication = len(topic.partitions[0].replicas.assigned)
            same = TopicArgument(name=name, partitions=len(topic.partitions), replication=replication, config=dict(topic.overrides))
            server.delete_topic(name)
            server.create_topic(same)

        self._change(reset, "CreateTopics")

    def seed(self, topic: str, rows: Rows) -> None:
        """Write test data to an existing topic without a client. The broker validates the rows like those of a producer.

        Args:
            topic: name of the topic.
            rows: an Arrow table, a data frame with the Arrow stream interface, or a list. A table has the columns of `Producer.send_table`
                except topic: value, and if wanted key, headers, timestamp and partition. An entry of a list is a value, a pair
                (key, value), or a mapping with these names; strings are written as UTF-8, timestamps are milliseconds since 1970.
                A row without a partition goes to the partition of its key, as in Java's client; without a key, round robin.

        Raises:
            UnknownTopicOrPartitionException: the topic does not exist.
            ConfigException: a row or column is of a wrong type, or a partition does not exist.
            ApiException: the topic refuses a row, for example a null key on a compacted topic. Nothing is written then.
            StorageError: the disk failed.
        """
        self._check_topic(topic)
        table = seeding.to_table(rows)
        self._change(lambda server: server.seed(topic, table), "Produce")

    def advance(self, seconds: float) -> None:
        """Let time pass at once on the broker's clock: sessions and transactions time out, records and offsets expire, delayed responses
        become due. Every deadline on the way is processed at its own time. Clients keep their own clocks.

        Args:
            seconds: at least 0 and at most ten years (315360000), in steps of a millisecond.

        Raises:
            ConfigException: `seconds` is negative, more than ten years, or not a number.
        """
        arguments.check(seconds=seconds)
        server = self._running
        self._thread.call(lambda: server.advance(self._clock, round(1000 * seconds)))

    def stop_node(self, node_id: int, *, abruptly: bool = False) -> None:
        """Stop a declared node: its connections are closed, its port refuses new ones, its leaderships move, in-sync sets shrink.

        Any node may be stopped, even the last one.

        Args:
            node_id: id of the node.
            abruptly: leave the in-sync sets only after `replica.lag.time.max.ms`; until then acks=all waits.

        Raises:
            ConfigException: there is no such node.
            RuntimeError: the broker is closed.
        """
        arguments.check(node_id=node_id)
        server = self._running
        self._thread.call(lambda: server.stop_node(node_id, abruptly=abruptly))

    def start_node(self, node_id: int) -> None:
        """Start a stopped node on its old port. It is in sync immediately.

        Args:
            node_id: id of the node.

        Raises:
            ConfigException: there is no such node.
            OSError: the port is in use.
            RuntimeError: the broker is closed.
        """
        arguments.check(node_id=node_id)
        server = self._running
        self._thread.call(lambda: server.start_node(node_id))

    def _check_topic(self, name: str) -> None:
        """Raises UnknownTopic, which names the most similar existing topic."""
        arguments.check(topic=name)
        known = self.topics()
        if name not in known:
            near = arguments.nearest(name, known)
            hint = f"the nearest is {near!r}" if near else "none has a name like it" if known else "there are none"
            raise UnknownTopic(f"topic {name!r} does not exist; {hint}")

    def _create_missing(self, topic: TopicArgument) -> None:
        if topic.name not in self.topics():
            self._create(topic)
        else:
            server = self._running
            self._thread.call(lambda: server.log_differences(topic))

    def _create(self, topic: TopicArgument) -> None:
        self._change(lambda server: server.create_topic(topic), "CreateTopics")

    def _change(self, change: Callable[[BrokerServer], None], api: str) -> None:
        """Change something on the broker's thread. A refusal is raised as if a client had requested it with this API."""
        server = self._running
        try:
            self._thread.call(lambda: change(server))
        except RequestRefused as refused:
            raise refused.as_exception(api) from None

    # Internal -------------------------------------------------------------------------------------------------------------------------

    @property
    def _is_in_other_process(self) -> bool:
        """Whether this is a forked child process: the broker's thread exists only in the parent, so a call would wait forever."""
        return os.getpid() != self._process_id

    @property
    def _running(self) -> BrokerServer:
        if self._is_in_other_process:
            raise RuntimeError(
                "the embedded broker runs in the process that created it, not in a forked child: connect to its bootstrap_servers instead"
            )
        if self._server is None:
            raise RuntimeError("the embedded broker is closed")
        return self._server

    def _call(self, function: Callable[[BrokerCore], T]) -> T:
        """Call a function with the core, on the core's thread."""
        server = self._running
        try:
            return self._thread.call(lambda: function(server.core))
        except RequestRefused as refused:
            raise refused.as_exception() from None


OWN_DEFAULTS: Final[Mapping[str, Any]] = {
    # The broker's thread shares the interpreter with the clients: busy polling would only delay them.
    "socket.busy.poll.us": 0,
    # Tests start group members one after the other and wait for each: a delay of 3 s in each new group would be useless.
    "group.initial.rebalance.delay.ms": 0,
}
"""Options whose defaults differ from those of `chaffinch broker`."""


def _with_own_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    given = {name.strip().replace("_", ".") for name in config}
    return {**config, **{name: value for name, value in OWN_DEFAULTS.items() if name not in given}}


class UnknownTopic(UnknownTopicOrPartitionException):
    """The broker has no such topic, and retrying does not help."""

    def __str__(self) -> str:
        return self.message


@exported_from("chaffinch")
class Faults:
    """Fault injection: respond with an error, close the connection before or after processing, delay the response, throttle.

    See `core/fault_script.py`.
    """

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker

    def add(
        self,
        api: str | int = "Produce",
        topic: str | None = None,
        partition: int | None = None,
        action: Literal["error", "drop_before", "drop_after", "delay", "slow_down"] = "error",
        error: str | int | None = None,
        count: int = 1,
        delay_ms: int | None = None,
        *,
        client_id: str | None = None,
        bytes_per_second: int | None = None,
        direction: Literal["answers", "requests", "both"] | None = None,
    ) -> int:
        """Add a fault for the next requests of an API.

        Args:
            api: Kafka's name or number of the API.
            topic: only requests for this topic.
            partition: only requests for this partition.
            action: `error`: respond with an error; `drop_before`, `drop_after`: close the connection before or after processing;
                `delay`: delay the response; `slow_down`: throttle the connection.
            error: Kafka's name or number of the error; NOT_LEADER_OR_FOLLOWER by default. Only with `error`.
            count: number of requests.
            delay_ms: delay in ms; required with `delay`, and only allowed there.
            client_id: only requests of clients with this client.id.
            bytes_per_second: speed with `slow_down`; 1024 by default.
            direction: what `slow_down` throttles; `answers` (responses) by default.

        Returns:
            The id of the fault, for `clear`.

        Raises:
            ConfigException: an argument is invalid.
            RuntimeError: the broker is closed.
        """
        return self._broker._call(
            lambda core: core.faults.add(
                api=api,
                topic=topic,
                partition=partition,
                client_id=client_id,
                action=action,
                error=error,
                count=count,
                delay_ms=delay_ms,
                bytes_per_second=bytes_per_second,
                direction=direction,
            )
        )

    def list(self) -> Sequence[Mapping[str, Any]]:
        """The pending faults with their ids, as the arguments of `add`; `count` is the number of requests left."""
        return self._broker._call(lambda core: [fault.as_object() for fault in core.faults.list()])

    def clear(self, fault_id: int | None = None) -> None:
        """Remove faults.

        Args:
            fault_id: result of `add`; None for all faults.

        Raises:
            ConfigException: an unknown id.
            RuntimeError: the broker is closed.
        """
        self._broker._call(lambda core: core.faults.clear(fault_id))


READ_BYTES = 8 << 20


def _readable_ends(core: BrokerCore, topic: str) -> int:
    """Sum of the offsets up to which the partitions can be read; -1 if the topic does not exist."""
    found = core.topics.get(topic)
    return -1 if found is None else sum(part.log.last_stable_offset + part.log.high_watermark for part in found.partitions)


def _filtered(table: pa.Table, key: bytes | None, from_offset: int) -> pa.Table:
    import pyarrow.compute as pc

    if key is not None:
        table = table.filter(pc.equal(table["key"], key))
    return table.filter(pc.greater_equal(table["offset"], from_offset)) if from_offset else table


@dataclass(frozen=True, slots=True)
class PartitionRecords:
    """Readable data of one partition: whole batches, and (producer id, first offset) of the aborted transactions among them.

    Records below `start_offset` are deleted, although the first batch may still contain them (DeleteRecords).
    """

    partition: int
    start_offset: int
    parts: list[BytesLike]
    aborted: list[tuple[int, int]]


def collect(core: BrokerCore, topic: str, *, is_committed: bool) -> list[PartitionRecords]:
    """The batches of every partition; only those below the last stable offset if committed records are wanted. Runs on the core's
    thread.
    """
    found = core.topics.get(topic)
    if found is None:
        raise RequestRefused(codes.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r} does not exist")
    return [_collect_partition(partition, is_committed) for partition in found.partitions]


def _collect_partition(partition: Partition, is_committed: bool) -> PartitionRecords:
    log = partition.log
    upper = log.last_stable_offset if is_committed else log.high_watermark
    parts: list[BytesLike] = []
    offset = log.log_start_offset
    while offset < upper:
        read = log.read(offset, READ_BYTES, upper_bound_offset=upper)
        if not read:
            break
        parts += read
        for view in batch.views(read[-1]):
            offset = view.header.last_offset + 1
    aborted = log.aborted_transactions(log.log_start_offset, upper) if is_committed else []
    return PartitionRecords(partition.topic_partition.partition, log.log_start_offset, parts, aborted)


def to_table(partitions: list[PartitionRecords]) -> pa.Table:
    """A table with the columns partition (int32), offset (int64), and those of `arrow_columns.to_arrow`: key, value, timestamp, headers.
    Runs on the caller's thread because decoding takes long.
    """
    import numpy as np
    import pyarrow as pa

    from chaffinch.records.arrow_columns import to_arrow
    from chaffinch.records.columns import RecordColumns

    tables = []
    for records in partitions:
        for view in _visible(records):
            columns = batch.decode(view)
            assert columns.offsets is not None, "records that were read have offsets"
            arrow = to_arrow(columns)
            numbers = [pa.array([records.partition] * len(columns), pa.int32()), pa.array(columns.offsets, pa.int64())]
            table = pa.RecordBatch.from_arrays([*numbers, *arrow.columns], names=["partition", "offset", *arrow.schema.names])
            tables.append(table.slice(int(np.searchsorted(columns.offsets, records.start_offset))))
    if not tables:
        empty = to_arrow(RecordColumns.from_lists([], [], []))
        names = ["partition", "offset", *empty.schema.names]
        return pa.Table.from_arrays([pa.array([], pa.int32()), pa.array([], pa.int64()), *empty.columns], names=names)
    return pa.Table.from_batches(tables)


def _visible(records: PartitionRecords) -> Iterator[BatchView]:
    """Data batches without those of aborted transactions."""
    views = (view for part in records.parts for view in batch.views(part))
    return (view for view, is_visible in committed(views, records.aborted) if is_visible)
