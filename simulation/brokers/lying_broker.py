"""Broker with wrong error responses: record errors that are wrong, incomplete or out of range, and retriable codes for permanent errors.

It is wrong only about refused records, never about stored ones: no client could compensate for that. Only producers are affected; Spark
queries decide themselves which rows are bad.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.errors import codes
from chaffinch.protocol.messages.produce import BatchIndexAndErrorMessage, PartitionProduceResponse, ProduceRequest, ProduceResponse
from chaffinch.protocol.schema import Message
from chaffinch.protocol.server_connection import ReceivedRequest
from chaffinch.records import batch as batches
from simulation.records import number_of
from simulation.world import World

AFFECTED_CLIENTS: Final = ("plain", "transactional")
"""Client id prefixes of the affected clients."""
MISLEADING_CODES: Final = (codes.CORRUPT_MESSAGE, codes.NOT_LEADER_OR_FOLLOWER, codes.NOT_ENOUGH_REPLICAS)
"""Retriable codes which mean that the attempt was not stored; that is true."""
MISLED_OF: Final = 3
"""One refused batch in this many gets only retriable codes."""


class Liar:
    """Falsifies `share` of the refusals. `accused`: numbers of good records that were blamed, and of records blamed without an index."""

    def __init__(self, world: World, share: float) -> None:
        self.accused: set[int] = set()
        self._world = world
        self._share = share

    def stop(self) -> None:
        """Respond correctly from here on."""
        self._share = 0.0

    def answer(self, request: ReceivedRequest, message: Message) -> Message:
        """The response to send."""
        is_affected = (request.client_id or "").startswith(AFFECTED_CLIENTS)
        if self._share and is_affected and isinstance(message, ProduceResponse) and isinstance(request.message, ProduceRequest):
            data = dict(_batches(request.message))
            for topic in message.responses:
                for index, part in enumerate(topic.partition_responses):
                    if part.record_errors:
                        numbers = _numbers(data[topic.name, topic.topic_id, part.index])
                        topic.partition_responses[index] = self._twisted(part, numbers)
        return message

    def _twisted(self, part: PartitionProduceResponse, numbers: Sequence[int]) -> PartitionProduceResponse:
        world, culprits = self._world, part.record_errors
        if numbers[0] % MISLED_OF == 0:
            world.count("refusals reported as retriable")
            code = MISLEADING_CODES[numbers[0] // MISLED_OF % len(MISLEADING_CODES)]
            return PartitionProduceResponse(index=part.index, error_code=code.number, base_offset=-1)
        if not world.chance(self._share):
            return part
        world.count("culprits twisted")
        first = culprits[0]
        lie = world.rng.randrange(5)
        if lie == 0:  # Only the first culprit.
            return _blaming(part, [first])
        if lie == 1:  # Out of order, and one twice.
            return _blaming(part, [*reversed(culprits), first])
        if lie == 2:  # A random record.
            someone = world.rng.randrange(len(numbers))
            self.accused.add(numbers[someone])
            return _blaming(part, [first, BatchIndexAndErrorMessage(batch_index=someone, batch_index_error_message="you")])
        self.accused.update(numbers)
        if lie == 3:  # No culprit.
            return _blaming(part, [])
        return _blaming(part, [*culprits, BatchIndexAndErrorMessage(batch_index=world.rng.choice((-1, len(numbers))))])


def remembers_last_batches_only(core: BrokerCore) -> None:
    """Behave as Apache Kafka after a start from snapshots: of each producer only the last batch is known, not the four before it."""
    for partition in core.topics.partitions():
        for _, state in partition.log.producers.states():
            del state.batches[:-1]


def _blaming(part: PartitionProduceResponse, culprits: list[BatchIndexAndErrorMessage]) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=part.index, error_code=part.error_code, base_offset=-1, record_errors=culprits, error_message=part.error_message
    )


def _batches(request: ProduceRequest) -> Iterator[tuple[tuple[str, UUID, int], bytes]]:
    """Each batch, by topic name or id (whichever the request version has) and partition."""
    for topic in request.topics:
        for data in topic.partitions:
            if data.records is not None and not isinstance(data.records, list):
                yield (topic.name, topic.topic_id, data.index), bytes(data.records)


def _numbers(data: bytes) -> list[int]:
    columns = batches.decode(data)
    return [number_of(columns.value(index)) for index in range(columns.count)]
