"""Where the transaction coordinator's decisions are carried out: markers into partition logs, pending offsets into groups."""

from __future__ import annotations

from collections.abc import Iterable

from chaffinch.broker.core.groups.offsets import GroupOffsets
from chaffinch.broker.core.topics.registry import Partition, TopicRegistry
from chaffinch.broker.core.transactions.coordinator import COORDINATOR_EPOCH
from chaffinch.broker.core.transactions.moves import VERSION_WITH_EPOCH_BUMP
from chaffinch.errors import codes
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.storage.many_logs import sync_many


class TransactionParticipants:
    """`grown` gets each partition that a marker was written to: last stable offsets move, and fetches wait for that."""

    def __init__(self, topics: TopicRegistry, offsets: GroupOffsets, grown: list[Partition]) -> None:
        self._topics = topics
        self._offsets = offsets
        self._grown = grown

    def write_marker(
        self, topic_partition: TopicPartition, is_commit: bool, identity: ProducerIdentity, transaction_version: int, now_ms: int
    ) -> None:
        partition = self._topics.partition(*topic_partition)
        if partition is None:
            return
        refused = partition.log.check_marker(identity, COORDINATOR_EPOCH)
        if refused is not None and refused.code is codes.INVALID_PRODUCER_EPOCH:
            return  # Whoever raised the epoch here has ended the transaction. A later coordinator's epoch is one that a tool made up.
        if transaction_version >= VERSION_WITH_EPOCH_BUMP and partition.log.producers.has_marker(identity):
            return  # Written before a crash: in version 2 each marker has an epoch of its own, under which the next transaction begins.
        partition.log.append_marker(is_commit, identity, COORDINATOR_EPOCH, now_ms, leader_epoch=partition.replicas.leader_epoch)
        self._grown.append(partition)

    def complete_offsets(self, group: str, producer_id: int, is_commit: bool) -> None:
        self._offsets.complete(group, producer_id, is_commit)

    def sync(self, topic_partitions: Iterable[TopicPartition], groups: Iterable[str]) -> None:
        partitions = [self._topics.partition(*topic_partition) for topic_partition in sorted(topic_partitions)]
        sync_many([partition.log for partition in partitions if partition is not None])
        if any(True for _ in groups):
            self._offsets.sync()
