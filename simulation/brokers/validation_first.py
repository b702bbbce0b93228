"""Broker that validates records before it looks for duplicates, as Apache Kafka does, and whose limits have just changed.

It refuses a repeated batch with culprits, although it has stored that batch: the one case in which innocents must not be sent again
(decision 13). Our broker looks for duplicates first, so the response is replaced here, outside the core.
"""

from __future__ import annotations

from uuid import UUID

from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.errors import codes
from chaffinch.protocol.messages.produce import BatchIndexAndErrorMessage, PartitionProduceResponse, ProduceRequest, ProduceResponse
from chaffinch.protocol.schema import Message
from chaffinch.protocol.server_connection import ReceivedRequest
from chaffinch.records import batch as batches
from simulation.records import number_of
from simulation.world import World


class ValidationFirst:
    """Falsifies `share` of the responses to repeated batches. `accused`: numbers of the records blamed that way."""

    def __init__(self, world: World, share: float) -> None:
        self.accused: set[int] = set()
        self._world = world
        self._share = share
        self._repeated: dict[tuple[int, int], dict[tuple[str, UUID, int], int]] = {}
        """For each request: the record to blame in each batch, by topic name or id and partition."""

    def stop(self) -> None:
        """Respond as the core does from here on."""
        self._share = 0.0

    def notice(self, core: BrokerCore, connection_id: int, request: ReceivedRequest) -> None:
        """Called before the core handles a request: find repeated batches and choose the record to blame in each."""
        if not self._share or not isinstance(request.message, ProduceRequest):
            return
        found = {}
        for topic in request.message.topics:
            for data in topic.partitions:
                known = core.topics.get(topic.name) or core.topics.by_id(topic.topic_id)
                partition = None if known is None else core.topics.partition(known.name, data.index)
                if partition is None or data.records is None or isinstance(data.records, list):
                    continue
                header = batches.read_header(data.records)
                if partition.log.find_duplicate(header) is not None and self._world.chance(self._share):
                    culprit = self._world.rng.randrange(header.count)
                    self.accused.add(number_of(batches.decode(data.records).value(culprit)))
                    found[topic.name, topic.topic_id, data.index] = culprit
        if found:
            self._repeated[connection_id, request.correlation_id] = found

    def answer(self, connection_id: int, request: ReceivedRequest, message: Message) -> Message:
        """The response to send: the core's, with refusals for the repeated batches."""
        repeated = self._repeated.pop((connection_id, request.correlation_id), None)
        if repeated is None or not isinstance(message, ProduceResponse):
            return message
        for topic in message.responses:
            for index, part in enumerate(topic.partition_responses):
                culprit = repeated.get((topic.name, topic.topic_id, part.index))
                if culprit is not None:
                    self._world.count("repetitions refused with culprits")
                    topic.partition_responses[index] = _refusal(part.index, culprit)
        return message


def _refusal(partition: int, culprit: int) -> PartitionProduceResponse:
    message = "the topic's limits have changed"
    return PartitionProduceResponse(
        index=partition,
        error_code=codes.INVALID_RECORD.number,
        base_offset=-1,
        record_errors=[BatchIndexAndErrorMessage(batch_index=culprit, batch_index_error_message=message)],
        error_message=message,
    )
