"""Administrator of the simulated cluster: deletes a topic and recreates it under its name, and trims logs, while clients write and read.

The broker process gets its requests directly, not over the network. Log contents that are about to go are copied immediately before, so
that the checkers know every record that ever existed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from chaffinch.broker.core.topics.registry import Partition
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from chaffinch.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest
from simulation.brokers.broker_process import BrokerProcess, TopicPlan
from simulation.log_reader import LogContents, read_log
from simulation.world import World

ACTOR: Final = "administrator"
GONE_MS_MAX: Final = (0, 50, 400, 1_500)
"""Upper limits of the time a deleted topic stays away: often it is recreated before any client notices."""
RETRY_MS: Final = 100
"""Delay before an operation that a full disk refused is tried again."""
VERSIONS: Final = {DeleteTopicsRequest: 5, CreateTopicsRequest: 7, DeleteRecordsRequest: 2}
RETENTION: Final = ((0, -1), (-1, 1))
"""(retention.ms, retention.bytes): either all records are too old, or all segments but the last exceed the size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic:
    """A deleted topic: its creation time, and the contents of its logs at the end."""

    topic_id: UUID
    created_ms: int
    logs: Mapping[TopicPartition, LogContents]

    def numbers(self) -> Iterator[int]:
        """Numbers of the records in it."""
        for log in self.logs.values():
            for record in log.records:
                yield record.number


class Administrator:
    """Changes topics. `recreated`: the topic that is deleted and recreated, if any. `trimmed`: partitions that lose old records."""

    def __init__(self, world: World, broker: BrokerProcess, recreated: TopicPlan | None, trimmed: Sequence[TopicPartition]) -> None:
        self._world = world
        self._broker = broker
        self._recreated_topic = recreated
        self._trimmed = trimmed
        self._deleted: dict[UUID, DeletedTopic] = {}
        self._seen: dict[TopicPartition, LogContents] = {}

    def deleted_topics(self) -> list[DeletedTopic]:
        """The topics that no longer exist. A process that died in the middle of a deletion may not have carried it out."""
        core = self._broker.core
        assert core is not None, "called in the quiet phase only"
        there = {topic.topic_id for topic in core.topics}
        return [topic for topic_id, topic in self._deleted.items() if topic_id not in there]

    def with_trimmed_records(self, logs: Mapping[TopicPartition, LogContents]) -> dict[TopicPartition, LogContents]:
        """The logs with all records that were trimmed from their beginning."""
        return {tp: _merged(self._seen[tp], log) if tp in self._seen else log for tp, log in logs.items()}

    def with_observed_start(self, logs: Mapping[TopicPartition, LogContents]) -> dict[TopicPartition, LogContents]:
        """The logs as if they began at the latest observed start offset: records that came back need not be delivered to any reader."""
        start_offsets = self._broker.start_offsets
        return {tp: replace(log, log_start_offset=start_offsets[tp]) if tp in self._seen else log for tp, log in logs.items()}

    def stop(self) -> None:
        """Recreate the deleted topic, for good."""
        self._recreate()

    def delete_topic(self) -> None:
        """Delete the topic, and recreate it later."""
        core, plan = self._broker.core, self._recreated_topic
        topic = None if core is None or plan is None else core.topics.get(plan.name)
        if plan is None or topic is None:
            return
        logs = {partition.topic_partition: _below_high_watermark(partition) for partition in topic.partitions}
        self._deleted[topic.topic_id] = DeletedTopic(topic_id=topic.topic_id, created_ms=self._broker.created_ms[topic.topic_id], logs=logs)
        self._world.log(ACTOR, f"deletes {plan.name}, {topic.topic_id}")
        self._world.count("topics deleted")
        self._broker.deleted_names.add(plan.name)
        self._broker.submit(DeleteTopicsRequest(topic_names=[plan.name], timeout_ms=0), VERSIONS[DeleteTopicsRequest])
        rng = self._world.rng
        self._world.after(rng.randint(0, rng.choice(GONE_MS_MAX)), self._recreate)

    def trim(self) -> None:
        """Remove the oldest records of a random log by DeleteRecords, or by retention time or size."""
        rng, broker = self._world.rng, self._broker
        tp = rng.choice(self._trimmed)
        partition = None if broker.core is None else broker.core.topics.partition(*tp)
        if partition is None:
            return
        self._remember(partition)
        log = partition.log
        if rng.random() < 0.6:
            offset = rng.randint(log.log_start_offset, log.high_watermark)
            to_delete = DeleteRecordsTopic(name=tp.topic, partitions=[DeleteRecordsPartition(partition_index=tp.partition, offset=offset)])
            message, node_id = DeleteRecordsRequest(topics=[to_delete]), max(0, partition.replicas.leader)
            self._world.log(ACTOR, f"deletes the records of {tp} before {offset}")
            broker.submit(message, VERSIONS[DeleteRecordsRequest], node_id)
        else:
            age_ms, size_bytes = rng.choice(RETENTION)
            self._world.log(ACTOR, f"{tp}: retention of {age_ms} ms, {size_bytes} bytes")
            broker.expire(partition, retention_ms=age_ms, retention_bytes=size_bytes)
        self._world.count("logs trimmed")

    def _remember(self, partition: Partition) -> None:
        """Append the current contents to those remembered."""
        tp, now = partition.topic_partition, read_log(partition, partition.log.log_start_offset)
        self._seen[tp] = _merged(self._seen[tp], now) if tp in self._seen else now

    def _recreate(self) -> None:
        """Recreate the topic, now or when the broker starts."""
        plan, broker = self._recreated_topic, self._broker
        if plan is None or plan.name not in broker.deleted_names:
            return
        if broker.core is not None and broker.core.topics.get(plan.name) is None:
            self._world.log(ACTOR, f"creates {plan.name}")
            configs = [CreatableTopicConfig(name=name, value=value) for name, value in plan.config.items()]
            topic = CreatableTopic(
                name=plan.name, num_partitions=plan.partition_count, replication_factor=broker.replication, configs=configs
            )
            broker.submit(CreateTopicsRequest(topics=[topic]), VERSIONS[CreateTopicsRequest])
            if broker.core is not None and broker.core.topics.get(plan.name) is None:
                self._world.after(RETRY_MS, self._recreate)
                return
        broker.deleted_names.discard(plan.name)


def _below_high_watermark(partition: Partition) -> LogContents:
    """Contents of a log below its high watermark. No client can know of later records, so they count as never stored."""
    log = read_log(partition, partition.log.log_start_offset)
    return replace(log, records=[record for record in log.records if record.offset < partition.log.high_watermark])


def _merged(seen: LogContents, log: LogContents) -> LogContents:
    """The log with the records and markers seen earlier below its start offset."""
    start = log.log_start_offset
    return replace(
        log,
        records=[*(record for record in seen.records if record.offset < start), *log.records],
        markers=[*(marker for marker in seen.markers if marker.offset < start), *log.markers],
    )
