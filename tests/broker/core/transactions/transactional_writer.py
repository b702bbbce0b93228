"""A transactional producer for tests, one request after the other."""

from __future__ import annotations

from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.broker.batches import batch_of
from tests.broker.core_client import Client


class Writer:
    """A transactional producer in three requests."""

    def __init__(self, client: Client, transactional_id: str) -> None:
        self.client = client
        self.transactional_id = transactional_id
        answer = client.ask(InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000))
        self.identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
        self.sequence = 0

    def write(self, *values: bytes, topic: str = "orders") -> int:
        self.client.ask(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.identity.producer_id,
                v3_and_below_producer_epoch=self.identity.epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
            )
        )
        records = batch_of(*values, identity=self.identity, sequence=self.sequence, transactional=True)
        answer = self.client.produce(topic, records, txn=self.transactional_id)
        assert answer.error_code == 0, answer
        self.sequence += len(values)
        return answer.base_offset

    def end(self, commit: bool) -> int:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            committed=commit,
        )
        code: int = self.client.ask(request).error_code
        return code
