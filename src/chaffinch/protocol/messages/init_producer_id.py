"""InitProducerId (key 22): a producer's identity; with a transactional id it also fences the earlier producers of that id (KIP-98).

Versions 0-6. Version 2 is the first flexible one; 3 carries the current identity, so that its epoch can be bumped (KIP-360); 4 may answer
with PRODUCER_FENCED; 5 with TRANSACTION_ABORTABLE (KIP-890); 6 prepares two-phase commit (KIP-939), which Apache Kafka 4.3 describes and
does not offer yet.
"""

from __future__ import annotations

from chaffinch.protocol.primitives import Bool, Int16, Int32, Int64, String
from chaffinch.protocol.schema import Message, wire


class InitProducerIdRequest(Message, api_key=22, versions=(0, 6), flexible_since=2):
    """`producer_id` and `producer_epoch` are -1 for "none yet"."""

    transactional_id: str | None = wire(String, nullable_since=0, default=None)
    transaction_timeout_ms: int = wire(Int32)
    producer_id: int = wire(Int64, since=3, default=-1, essential=True)
    producer_epoch: int = wire(Int16, since=3, default=-1, essential=True)
    enable2_pc: bool = wire(Bool, since=6, default=False, essential=True)
    keep_prepared_txn: bool = wire(Bool, since=6, default=False, essential=True)


class InitProducerIdResponse(Message, api_key=22, versions=(0, 6), flexible_since=2):
    """The identity for further writes, and that of a prepared transaction that was kept."""

    throttle_time_ms: int = wire(Int32)
    error_code: int = wire(Int16)
    producer_id: int = wire(Int64, default=-1)
    producer_epoch: int = wire(Int16)
    ongoing_txn_producer_id: int = wire(Int64, since=6, default=-1)
    ongoing_txn_producer_epoch: int = wire(Int16, since=6, default=-1)
