"""Apache Kafka with the face of `EmbeddedBroker`: what tests of our clients need of a broker, so that the same tests run against both.

Faults on purpose are those of a proxy (`fault_proxy.py`); what there is nothing for (counters, nodes that stop) skips the test, with the
reason. Topics are made through librdkafka and read back through it, so that neither our admin client nor our consumer judges our producer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Self

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from chaffinch.admin.transactions import list_transactions
from chaffinch.broker.arguments import TopicArgument, Topics, config_texts, parse_python
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import UnsupportedVersionException
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from chaffinch.records.arrow_columns import to_arrow
from chaffinch.records.columns import RecordColumns
from tests.interop import transaction_version
from tests.interop.apache_kafka import ApacheKafka
from tests.interop.fault_proxy import FaultProxy

SETTINGS: Mapping[str, Any] = {
    "auto.create.topics.enable": False,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "log.retention.ms": -1,
}
"""What Apache Kafka is started with for these tests."""

NEWEST = transaction_version.LATEST
"""Default transaction version of Apache Kafka. Before 4.0 it is version 1, whatever is requested."""

NOT_OFFERED = "not offered by Apache Kafka"
REQUEST_S = 30.0
APPLIED_S = 60.0
"""Time within which a broker learns of its controller's changes, however busy the machine is."""
GAVE_MARKERS_UP = "Couldn't find leader endpoint for partitions"
"""What it logs where it was killed before a transaction's markers were in their partitions, has no leader for these as it starts again, and
takes them for deleted: that transaction stays open in them for good (TransactionMarkerChannelManager.scala)."""
MARKERS_S = 3.0
"""A commit is acknowledged before its markers are in the partitions; an open transaction is never over."""


class ExternalBroker:
    """The arguments and methods of `EmbeddedBroker` that can be had on a broker of others. `close` deletes its topics and groups."""

    address: ClassVar[str] = ""
    """Where Apache Kafka listens."""

    proxy: ClassVar[FaultProxy | None] = None
    """Before Apache Kafka, where faults are wanted."""

    kafka: ClassVar[ApacheKafka | None] = None
    """The process, where it may be killed."""

    when_used: ClassVar[Callable[[], None]] = staticmethod(lambda: None)
    """Called when a test asks for the address."""

    def __init__(
        self,
        *,
        topics: Topics | None = None,
        data_dir: object = None,
        brokers: int = 1,
        config: Mapping[str, Any] | None = None,
        port: int = 0,
        users: Mapping[str, str] | None = None,
        **keywords: Any,
    ) -> None:
        settings = {**(config or {}), **{name.replace("_", "."): value for name, value in keywords.items()}}
        self._version = settings.pop(transaction_version.FEATURE, NEWEST)
        foreign = {name: value for name, value in settings.items() if SETTINGS.get(name, "none") != value}
        if foreign or data_dir is not None or brokers != 1 or port or users:
            _skip(f"a broker with {foreign or 'files, ports, nodes or users of its own'}")
        if self._version != NEWEST and not transaction_version.set_version(self.address, self._version):
            _skip(f"version {self._version} of transactions where brokers announce it")
        self._admin = AdminClient({"bootstrap.servers": self.address, "client.id": "judge", "log_level": 0})
        self._groups_before = self._groups()
        self._made: dict[str, int] = {}
        self._is_open = True
        for topic in parse_python(topics):
            self._create(topic)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    @property
    def faults(self) -> Faults:
        if self.proxy is None:
            _skip("faults")
        return Faults(self.proxy)

    def __getattr__(self, name: str) -> NoReturn:
        _skip(name)

    @property
    def bootstrap_servers(self) -> str:
        type(self).when_used()
        if not self._is_open:
            _skip("end")
        return self.address

    def close(self) -> None:
        self._is_open = False
        if self.proxy is not None:
            self.proxy.change(lambda script: script.clear())
        if self._made:
            for deleted in self._admin.delete_topics(list(self._made), operation_timeout=REQUEST_S).values():
                deleted.exception(REQUEST_S)  # Some a test has deleted itself.
            _until(lambda: not self._made.keys() & self._admin.list_topics(timeout=REQUEST_S).topics.keys())
            _until(lambda: not any(map(self._has_offsets, self._groups())))
        self._made = {}
        groups = sorted(self._groups() - self._groups_before)
        for group in groups:
            self._send_away_members(group)
        for deleted in self._admin.delete_consumer_groups(groups, request_timeout=REQUEST_S).values() if groups else ():
            deleted.exception(2 * REQUEST_S)
        if groups:
            self._forget_commits()
        if self._version != NEWEST:
            transaction_version.set_version(self.address, NEWEST)

    def restart(self, *, kill: bool = True) -> None:
        if self.kafka is None or not kill:
            _skip("restart")
        self.kafka.kill()
        self.kafka.start()
        if GAVE_MARKERS_UP in self.kafka.log:
            _skip("an end of each transaction after it is killed")

    def topics(self) -> dict[str, int]:
        return dict(self._made)

    def create_topic(self, name: str, partitions: int = -1, replication: int = -1, config: Mapping[str, Any] | None = None) -> None:
        self._create(TopicArgument(name=name, partitions=partitions, replication=replication, config=config_texts(config or {})))

    def read(self, topic: str, isolation: str = "read_committed") -> pa.Table:
        """What librdkafka reads, with the columns and the order of `EmbeddedBroker.read`."""
        partitions = self._admin.list_topics(topic, timeout=REQUEST_S).topics[topic].partitions  # A test may have recreated it.
        tps = [TopicPartition(topic, index, 0) for index in sorted(partitions)]
        if isolation == "read_committed":
            _holds_within(MARKERS_S, lambda: self._ends(tps, isolation) == self._ends(tps, "read_uncommitted") is not None)
        rows = sorted(_read(self.address, tps, isolation), key=lambda row: row[:2])
        numbers, offsets, timestamps, keys, values, headers = zip(*rows, strict=True) if rows else ((),) * 6
        arrow = to_arrow(RecordColumns.from_lists(list(keys), list(values), list(timestamps), list(headers)))
        columns = [pa.array(numbers, pa.int32()), pa.array(offsets, pa.int64()), *arrow.columns]
        return pa.Table.from_arrays(columns, names=["partition", "offset", *arrow.schema.names])

    def _create(self, topic: TopicArgument) -> None:
        if topic.replication > 1:
            _skip("several nodes")
        new = NewTopic(topic.name, topic.partitions, 1, config=dict(topic.config))

        def is_made() -> bool:
            (created,) = self._admin.create_topics([new]).values()
            error = created.exception(REQUEST_S)
            # Where a ZooKeeper leads, a deleted topic's name is free only some time after it has disappeared from the metadata.
            if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            created.result(REQUEST_S)
            return True

        _until(is_made)

        def is_led() -> bool:
            found = self._admin.list_topics(topic.name, timeout=REQUEST_S).topics[topic.name]
            self._made[topic.name] = len(found.partitions)
            return found.error is None and bool(found.partitions) and all(each.leader >= 0 for each in found.partitions.values())

        _until(is_led)

    def _groups(self) -> set[str]:
        return {each.group_id for each in self._admin.list_consumer_groups().result(REQUEST_S).valid}

    def _has_offsets(self, group: str) -> bool:
        """Whether a group still remembers deleted topics: their coordinator learns of it later, and a static member keeps its group."""
        (found,) = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        return any(tp.topic in self._made for tp in found.result(REQUEST_S).topic_partitions)

    def _forget_commits(self) -> None:
        """The coordinator remembers how the last transaction of an id ended; the next test's query of that id is a new one to it."""
        with SyncClient(self.address) as client, suppress(UnsupportedVersionException):  # ListTransactions is there since 3.0.
            for found in list_transactions(client, states=["CompleteCommit"]):
                init = InitProducerIdRequest(transactional_id=found.transactional_id, transaction_timeout_ms=60_000)
                client.coordinator_request(found.transactional_id, "transaction", init)

    def _send_away_members(self, group: str) -> None:
        """Members that were not closed. A static one that came back, in another test, would have the partitions of a topic that is gone."""
        (described,) = self._admin.describe_consumer_groups([group], request_timeout=REQUEST_S).values()
        left = [MemberIdentity(member_id=each.member_id) for each in described.result(REQUEST_S).members]
        if left:
            with SyncClient(self.address) as client:
                client.coordinator_request(group, "group", LeaveGroupRequest(group_id=group, members=left))

    def _ends(self, tps: list[TopicPartition], isolation: str) -> list[int] | None:
        """None: a leader of a topic made just now does not know yet that it is one."""
        level = IsolationLevel.READ_COMMITTED if isolation == "read_committed" else IsolationLevel.READ_UNCOMMITTED
        asked = self._admin.list_offsets({tp: OffsetSpec.latest() for tp in tps}, isolation_level=level)
        try:
            return [found.result(REQUEST_S).offset for found in asked.values()]
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
            return None


class Faults:
    """`EmbeddedBroker.faults`, for whole requests."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy

    def add(self, api: str = "Produce", **rule: Any) -> int:
        if rule.keys() & {"topic", "partition", "bytes_per_second"} or (api == "Fetch" and "error" in rule):
            _skip("faults of one topic")
        given: dict[str, Any] = {"api": api, "action": "error", "count": 1, **rule}
        return self._proxy.change(lambda script: script.add(**given))

    def list(self) -> Sequence[Mapping[str, Any]]:
        return self._proxy.change(lambda script: [fault.as_object() for fault in script.list()])

    def clear(self, fault_id: int | None = None) -> None:
        self._proxy.change(lambda script: script.clear(fault_id))


def _read(address: str, tps: list[TopicPartition], isolation: str) -> list[tuple[Any, ...]]:
    """Everything up to the end of each partition: partition, offset, timestamp, key, value, headers.

    From offset 0 or, where that is gone, the earliest: librdkafka takes half a second to ask where the beginning is.
    """
    options = {
        "bootstrap.servers": address,
        "client.id": "judge",
        "group.id": "judge",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    reader = Consumer({**options, "isolation.level": isolation, "fetch.wait.max.ms": 10, "log_level": 0})
    rows: list[tuple[Any, ...]] = []
    try:
        reader.assign(tps)
        left = len(tps)
        while left:
            for message in reader.consume(1000, 0.01):
                error = message.error()
                if error is None:
                    rows.append(_row(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left -= 1
                else:
                    raise AssertionError(str(error))
    finally:
        reader.close()
    return rows


def _row(message: Any) -> tuple[Any, ...]:
    _, timestamp = message.timestamp()
    return message.partition(), message.offset(), timestamp, message.key(), message.value(), message.headers() or []


def _until(is_so: Callable[[], bool]) -> None:
    """Else the next test would find what the one before has left, its topic of the same name for one, and lose what it writes there."""
    assert _holds_within(APPLIED_S, is_so), f"Apache Kafka has not done within {APPLIED_S:g} s what it was asked for"


def _holds_within(limit_s: float, is_so: Callable[[], bool]) -> bool:
    ends = time.monotonic() + limit_s
    while not (holds := is_so()) and time.monotonic() < ends:
        pass
    return holds


def _skip(what: str) -> NoReturn:
    pytest.skip(f"{NOT_OFFERED}: {what}")
