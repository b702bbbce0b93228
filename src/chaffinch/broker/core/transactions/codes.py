"""What old clients of the transaction APIs hear: INVALID_PRODUCER_EPOCH before the version that knows PRODUCER_FENCED (KIP-588)."""

from __future__ import annotations

from collections.abc import Mapping

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode

FIRST_VERSION_WITH_FENCED: Mapping[str, int] = {"InitProducerId": 4, "AddPartitionsToTxn": 2, "AddOffsetsToTxn": 2, "EndTxn": 2}


def travelling(code: ErrorCode, api: str, version: int) -> int:
    """The number an answer of this API and version carries."""
    if code is codes.PRODUCER_FENCED and version < FIRST_VERSION_WITH_FENCED[api]:
        return codes.INVALID_PRODUCER_EPOCH.number
    return code.number
