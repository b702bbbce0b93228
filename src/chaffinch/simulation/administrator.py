"""What people do to topics while others write and read: one is deleted and made again under its name, others lose their oldest records.

The broker's process gets the requests without a network between: what is about to go is copied in the moment before, into the `Archive`,
so that the checkers know everything that was ever there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from chaffinch.broker.core.topics import Partition
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest
from chaffinch.simulation.cluster import BrokerProcess, TopicPlan
from chaffinch.simulation.reading import LogContents, read_log
from chaffinch.simulation.world import World

WHO: Final = "administrator"
GONE_MS_MAX: Final = (0, 50, 400, 1_500)
"""How long a deleted topic is gone, at most: often it is made again before anybody has noticed."""
AGAIN_MS: Final = 100
"""What a full disk has refused is tried again after that."""
VERSIONS: Final = {DeleteTopicsRequest: 5, CreateTopicsRequest: 7}


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
    """See the module. `remade`: the topic that comes and goes; None: none does."""

    def __init__(self, world: World, broker: BrokerProcess, remade: TopicPlan | None) -> None:
        self._world = world
        self._broker = broker
        self._remade = remade
        self._deleted: dict[UUID, FormerTopic] = {}

    def former(self) -> list[FormerTopic]:
        """The topics that are gone: a process that dies in the middle of a deletion has not always carried it out."""
        core = self._broker.core
        assert core is not None, "asked when all is quiet"
        there = {topic.topic_id for topic in core.topics}
        return [topic for topic_id, topic in self._deleted.items() if topic_id not in there]

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
