"""What the coordinator knows of one transactional id, and the form in which the journal keeps it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from chaffinch.broker.core.transactions.moves import COMPLETED, TransactionState
from chaffinch.identifiers import ProducerIdentity, TopicPartition

NO_EPOCH = -1
EPOCH_MAX = 32767
EPOCH_EXHAUSTED = EPOCH_MAX - 1
"""From here on the next epoch belongs to a new producer id: 32767 is kept for fencing (Kafka's TransactionMetadata.isEpochExhausted)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """One transactional id. Times are those of the wall clock, in ms since 1970; `started_ms` is that of the last transaction, -1 before
    the first one.

    `last_producer_epoch` is the epoch before the last bump that a client asked for with its own epoch (KIP-360, KIP-890): whoever comes
    again with it lost the answer. `previous_producer_id` is the id before the last rotation, -1 if there was none. `next_producer_id` is
    what the producer gets once the decision is carried out, where its epochs are used up; else -1. `transaction_version` is the one under
    which the last decision was taken (1 or 2).
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_EPOCH
    last_producer_epoch: int = NO_EPOCH
    previous_producer_id: int = -1
    next_producer_id: int = -1
    transaction_version: int = 1
    timeout_ms: int = 60_000
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = field(default_factory=frozenset)
    groups: frozenset[str] = field(default_factory=frozenset)
    started_ms: int = -1
    updated_ms: int = -1

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def is_decided(self) -> bool:
        """Whether the end is written down, and not yet carried out."""
        return self.state in COMPLETED

    def is_promised(self, identity: ProducerIdentity) -> bool:
        """Whether EndTxn has told the producer to go on with this id, which is its own once the markers are written."""
        return self.is_decided and identity.epoch == 0 and identity.producer_id == self.next_producer_id

    @property
    def is_epoch_exhausted(self) -> bool:
        return self.producer_epoch >= EPOCH_EXHAUSTED


def to_bytes(metadata: TransactionMetadata) -> bytes:
    """The journal's value: JSON, because an operator may have to read it."""
    return json.dumps(
        {
            "producer_id": metadata.producer_id,
            "producer_epoch": metadata.producer_epoch,
            "last_producer_epoch": metadata.last_producer_epoch,
            "previous_producer_id": metadata.previous_producer_id,
            "next_producer_id": metadata.next_producer_id,
            "transaction_version": metadata.transaction_version,
            "timeout_ms": metadata.timeout_ms,
            "state": metadata.state.name,
            "partitions": sorted(list(partition) for partition in metadata.partitions),
            "groups": sorted(metadata.groups),
            "started_ms": metadata.started_ms,
            "updated_ms": metadata.updated_ms,
        }
    ).encode()


def from_bytes(transactional_id: str, value: bytes) -> TransactionMetadata:
    """Reverse of `to_bytes`. What an earlier version of Chaffinch did not write has its default."""
    fields = json.loads(value)
    fields["state"] = TransactionState[fields["state"]]
    fields["partitions"] = frozenset(TopicPartition(topic, partition) for topic, partition in fields["partitions"])
    fields["groups"] = frozenset(fields["groups"])
    return TransactionMetadata(transactional_id=transactional_id, **fields)
