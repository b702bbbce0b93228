"""AddOffsetsToTxn (key 25): a group whose offsets a transaction is about to commit (KIP-98).

Versions 0-4. 3 is flexible; 4 may answer with TRANSACTION_ABORTABLE (KIP-890).
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
    """Then TxnOffsetCommit goes to the group's coordinator."""

    throttle_time_ms: int = wire(Int32)
    error_code: int = wire(Int16)
