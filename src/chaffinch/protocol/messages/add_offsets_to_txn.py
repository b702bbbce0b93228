"""AddOffsetsToTxn (key 25): add a group to a transaction that will commit its offsets (KIP-98).

Versions 0-4. Version 3 is the first flexible one; 4 may answer with TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

from chaffinch.protocol.primitives import Int16, Int32, Int64, String
from chaffinch.protocol.schema import Message, wire


class AddOffsetsToTxnRequest(Message, api_key=25, versions=(0, 4), flexible_since=3):
    """Sent to the transaction coordinator."""

    transactional_id: str = wire(String)
    producer_id: int = wire(Int64)
    producer_epoch: int = wire(Int16)
    group_id: str = wire(String)


class AddOffsetsToTxnResponse(Message, api_key=25, versions=(0, 4), flexible_since=3):
    """On success the client sends TxnOffsetCommit to the group's coordinator."""

    throttle_time_ms: int = wire(Int32)
    error_code: int = wire(Int16)
