"""EndTxn in a test's words."""

from __future__ import annotations

from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from tests.broker.core_client import Client


def finish(client: Client, identity: ProducerIdentity, commit: bool, version: int = 5) -> tuple[int, ProducerIdentity]:
    """End the transaction of "t": the code, and from version 5 on the identity to go on with."""
    request = EndTxnRequest(transactional_id="t", producer_id=identity.producer_id, producer_epoch=identity.epoch, committed=commit)
    answer = client.ask(request, version)
    return answer.error_code, ProducerIdentity(answer.producer_id, answer.producer_epoch)
