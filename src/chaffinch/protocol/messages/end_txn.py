"""EndTxn (key 26): commit or abort a transaction (KIP-98).

Versions 0-5. Version 3 is the first flexible one; 4 may answer with TRANSACTION_ABORTABLE; 5 answers with the identity for the next
transaction (KIP-890).
"""

from __future__ import annotations

from chaffinch.protocol.primitives import Bool, Int16, Int32, Int64, String
from chaffinch.protocol.schema import Message, wire


class EndTxnRequest(Message, api_key=26, versions=(0, 5), flexible_since=3):
    """`committed` False aborts."""

    transactional_id: str = wire(String)
    producer_id: int = wire(Int64)
    producer_epoch: int = wire(Int16)
    committed: bool = wire(Bool)


class EndTxnResponse(Message, api_key=26, versions=(0, 5), flexible_since=3):
    """Without an error the outcome is final; the markers may not be written yet."""

    throttle_time_ms: int = wire(Int32)
    error_code: int = wire(Int16)
    producer_id: int = wire(Int64, since=5, default=-1)
    producer_epoch: int = wire(Int16, since=5, default=-1)
