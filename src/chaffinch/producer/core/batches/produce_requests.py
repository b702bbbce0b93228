"""Produce requests: which batches share a request, and which part of a response belongs to which batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from chaffinch.client.addresses import Address
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.batches.batch import ProducerBatch
from chaffinch.protocol.frames import FRAME_BYTES_MAX
from chaffinch.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from chaffinch.protocol.primitives import ZERO_UUID

# Small batches share a request up to this size. The next batch begins another request, so that the broker has work during the round trip.
REQUEST_FILL_BYTES: Final = 64 * 1024
# From this version of Produce on the leader adds partitions to the transaction (KIP-890, transaction version 2).
VERSION_THAT_ADDS: Final = 12
# Topics by their ids (KIP-516): a topic that was deleted and created again under its name has another id.
VERSION_WITH_TOPIC_IDS: Final = 13


@dataclass(slots=True, eq=False)
class ProduceSent:
    """Token of a Produce request: its broker and its batches."""

    address: Address
    batches: dict[TopicPartition, ProducerBatch] = field(default_factory=dict)
    size: int = 0
    record_count: int = 0
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    """Topic ids by name, as known when the topic's first batch joined; ZERO_UUID: unknown."""

    def accepts(self, topic_partition: TopicPartition, size: int, request_bytes_max: int) -> bool:
        """Whether a batch may join: one batch per partition, within the size of a request."""
        fits = self.size < REQUEST_FILL_BYTES and self.size + size <= request_bytes_max
        return not self.batches or (fits and topic_partition not in self.batches)

    def add(self, batch: ProducerBatch, topic_id: UUID) -> None:
        batch.sent_to = self.address, self.topic_ids.setdefault(batch.topic_partition.topic, topic_id)
        self.batches[batch.topic_partition] = batch
        self.size += batch.size
        self.record_count += batch.count

    def too_large_for_most(self) -> str:
        """Text for the error if the size alone may be why a broker closed the connection, since brokers give no reason. Otherwise empty."""
        if self.size <= FRAME_BYTES_MAX:
            return ""
        limit = f"socket.request.max.bytes, {FRAME_BYTES_MAX} unless it is configured otherwise"
        return f"; the request has {self.size} bytes of batches, and a broker closes the connection above its {limit}"

    def version_max(self, transaction_version: int | None = None) -> int | None:
        """The highest version of Produce for this request; None: no limit of its own. `transaction_version`: that of its transaction."""
        if transaction_version == 1:
            return VERSION_THAT_ADDS - 1
        if ZERO_UUID in self.topic_ids.values():
            return None if transaction_version is None else VERSION_THAT_ADDS
        return VERSION_WITH_TOPIC_IDS

    def request(self, *, acks: int, timeout_ms: int, transactional_id: str | None) -> ProduceRequest:
        """Build the request. The bytes of the batches are not copied."""
        topics: dict[str, TopicProduceData] = {}
        for topic_partition, batch in self.batches.items():
            name = topic_partition.topic
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = TopicProduceData(name=name, topic_id=self.topic_ids[name])
            topic.partitions.append(PartitionProduceData(index=topic_partition.partition, records=batch.data))
        return ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topics=list(topics.values()))

    def parts_of(self, response: ProduceResponse) -> Iterator[tuple[ProducerBatch, PartitionProduceResponse | None]]:
        """Each batch with its part of the response, in the order in which they were added; None if the broker left it out."""
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        parts = {
            TopicPartition(topic.name or names.get(topic.topic_id, ""), part.index): part
            for topic in response.responses
            for part in topic.partition_responses
        }
        for topic_partition, batch in self.batches.items():
            yield batch, parts.get(topic_partition)
