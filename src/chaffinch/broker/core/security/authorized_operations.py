"""Authorized operations of a client, as bit fields of responses (KIP-430): all operations, since there is no authorizer.

Bit n stands for operation n in Kafka's AclOperation: 3 read, 4 write, 5 create, 6 delete, 7 alter, 8 describe, 9 cluster action, 10
describe options, 11 alter options, 12 idempotent write.
"""

from __future__ import annotations

from collections.abc import Iterable


def _bits(operations: Iterable[int]) -> int:
    return sum(1 << operation for operation in operations)


ON_TOPICS = _bits([3, 4, 5, 6, 7, 8, 10, 11])
ON_CLUSTER = _bits([5, 7, 8, 9, 10, 11, 12])
