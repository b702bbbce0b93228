"""What people do to topics while others write and read: one is deleted and made again under its name, others lose their oldest records.

The broker's process gets the requests without a network between: what is about to go is copied in the moment before, into the `Archive`,
so that the checkers know everything that was ever there.
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
from simulation.reading import LogContents, read_log
from simulation.world import World

WHO: Final = "administrator"
GONE_MS_MAX: Final = (0, 50, 400, 1_500)
"""How long a deleted topic is gone, at most: often it is made again before anybody has noticed."""
AGAIN_MS: Final = 100
"""What a full disk has refused is tried again after that."""
VERSIONS: Final = {DeleteTopicsRequest: 5, CreateTopicsRequest: 7, DeleteRecordsRequest: 2}
RETENTION: Final = ((0, -1), (-1, 1))
"""In ms and bytes: all records are too old, or all segments but the last are too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerTopic:
    """A topic that was deleted: when it was made, and what its logs held in the end."""

    topic_id: UUID
    made_ms: int
    logs: Mapping[TopicPartition, LogContents]

    def numbers(self) -> Iterator[int]:
        """Of the records in it."""
        for log in self.logs.values():
            for record in log.records:
                yield record.number


class Administrator:
    """See the module. `remade`: the topic that comes and goes; None: none does. `shortened`: partitions that lose their oldest records."""

    def __init__(self, world: World, broker: BrokerProcess, remade: TopicPlan | None, shortened: Sequence[TopicPartition]) -> None:
        self._world = world
        self._broker = broker
        self._remade = remade
        self._shortened = shortened
        self._deleted: dict[UUID, FormerTopic] = {}
        self._seen: dict[TopicPartition, LogContents] = {}

    def former(self) -> list[FormerTopic]:
        """The topics that are gone: a process that dies in the middle of a deletion has not always carried it out."""
        core = self._broker.core
        assert core is not None, "asked when all is quiet"
        there = {topic.topic_id for topic in core.topics}
        return [topic for topic_id, topic in self._deleted.items() if topic_id not in there]

    def whole(self, logs: Mapping[TopicPartition, LogContents]) -> dict[TopicPartition, LogContents]:
        """The logs with all that they lost at their beginning."""
        return {place: _joined(self._seen[place], log) if place in self._seen else log for place, log in logs.items()}

    def as_seen(self, logs: Mapping[TopicPartition, LogContents]) -> dict[TopicPartition, LogContents]:
        """The logs as if they began where somebody has seen them begin: nobody has to be given what came back."""
        began = self._broker.began
        return {place: replace(log, log_start_offset=began[place]) if place in self._seen else log for place, log in logs.items()}

    def stop(self) -> None:
        """What is gone comes back, for good."""
        self._make()

    def delete(self) -> None:
        """Delete the topic, and make it again after a while."""
        core, plan = self._broker.core, self._remade
        topic = None if core is None or plan is None else core.topics.get(plan.name)
        if plan is None or topic is None:
            return
        logs = {partition.topic_partition: _known(partition) for partition in topic.partitions}
        self._deleted[topic.topic_id] = FormerTopic(topic_id=topic.topic_id, made_ms=self._broker.made_ms[topic.topic_id], logs=logs)
        self._world.tell(WHO, f"deletes {plan.name}, {topic.topic_id}")
        self._world.count("topics deleted")
        self._broker.absent.add(plan.name)
        self._broker.order(DeleteTopicsRequest(topic_names=[plan.name], timeout_ms=0), VERSIONS[DeleteTopicsRequest])
        dice = self._world.dice
        self._world.after(dice.randint(0, dice.choice(GONE_MS_MAX)), self._make)

    def shorten(self) -> None:
        """Take the oldest records of some log away, because somebody says so, or because of their age or number."""
        dice, broker = self._world.dice, self._broker
        place = dice.choice(self._shortened)
        partition = None if broker.core is None else broker.core.topics.partition(*place)
        if partition is None:
            return
        self._see(partition)
        log = partition.log
        if dice.random() < 0.6:
            offset = dice.randint(log.log_start_offset, log.high_watermark)
            asked = DeleteRecordsTopic(
                name=place.topic, partitions=[DeleteRecordsPartition(partition_index=place.partition, offset=offset)]
            )
            message, node_id = DeleteRecordsRequest(topics=[asked]), max(0, partition.replicas.leader)
            self._world.tell(WHO, f"deletes the records of {place} before {offset}")
            broker.order(message, VERSIONS[DeleteRecordsRequest], node_id)
        else:
            age_ms, size_bytes = dice.choice(RETENTION)
            self._world.tell(WHO, f"{place} keeps {age_ms} ms, {size_bytes} bytes")
            broker.expire(partition, retention_ms=age_ms, retention_bytes=size_bytes)
        self._world.count("logs shortened")

    def _see(self, partition: Partition) -> None:
        """Remember what is there, behind what was there before."""
        place, now = partition.topic_partition, read_log(partition, partition.log.log_start_offset)
        self._seen[place] = _joined(self._seen[place], now) if place in self._seen else now

    def _make(self) -> None:
        """Make the topic again, now or when the broker starts."""
        plan, broker = self._remade, self._broker
        if plan is None or plan.name not in broker.absent:
            return
        if broker.core is not None and broker.core.topics.get(plan.name) is None:
            self._world.tell(WHO, f"makes {plan.name}")
            configs = [CreatableTopicConfig(name=name, value=value) for name, value in plan.config.items()]
            topic = CreatableTopic(
                name=plan.name, num_partitions=plan.partition_count, replication_factor=broker.replication, configs=configs
            )
            broker.order(CreateTopicsRequest(topics=[topic]), VERSIONS[CreateTopicsRequest])
            if broker.core is not None and broker.core.topics.get(plan.name) is None:
                self._world.after(AGAIN_MS, self._make)
                return
        broker.absent.discard(plan.name)


def _known(partition: Partition) -> LogContents:
    """What a log holds below its high watermark: of what comes after it nobody can have heard, so that it was never stored."""
    log = read_log(partition, partition.log.log_start_offset)
    return replace(log, records=[record for record in log.records if record.offset < partition.log.high_watermark])


def _joined(seen: LogContents, log: LogContents) -> LogContents:
    """A log with what was seen of it before it began where it does now."""
    start = log.log_start_offset
    return replace(
        log,
        records=[*(record for record in seen.records if record.offset < start), *log.records],
        markers=[*(marker for marker in seen.markers if marker.offset < start), *log.markers],
    )
