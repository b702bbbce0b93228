"""Transaction metadata of one transactional id, its journal format, and the transitions of producer id and epoch: recovery (KIP-360),
fencing, the bump at every end (KIP-890).

Pure functions from the current to the new metadata; `coordinator.py` decides when to apply and store them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from chaffinch.broker.core.transactions.moves import COMPLETED, VERSION_WITH_EPOCH_BUMP, TransactionState
from chaffinch.identifiers import NO_PRODUCER, ProducerIdentity, TopicPartition

NO_EPOCH = -1
EPOCH_MAX = 32767
EPOCH_EXHAUSTED = EPOCH_MAX - 1
"""From here on the next epoch belongs to a new producer id: 32767 is reserved for fencing (Kafka's
TransactionMetadata.isEpochExhausted)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """Metadata of one transactional id. Times are wall clock times in ms since 1970.

    - `started_ms`: start of the last transaction, -1 before the first one.
    - `last_producer_epoch`: the epoch before the last bump that a client requested with its own epoch (KIP-360, KIP-890); a producer that
      still uses it has lost the response.
    - `previous_producer_id`: the id before the last rotation, -1 if there was none.
    - `next_producer_id`: the producer's id after the decision is carried out, if its epochs are exhausted; otherwise -1.
    - `transaction_version`: version of the last decision (1 or 2).
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
        """Whether the decision is stored and not yet carried out."""
        return self.state in COMPLETED

    def is_promised(self, identity: ProducerIdentity) -> bool:
        """Whether EndTxn has returned this identity to the producer; it becomes valid once the markers are written."""
        return self.is_decided and identity.epoch == 0 and identity.producer_id == self.next_producer_id

    @property
    def is_epoch_exhausted(self) -> bool:
        return self.producer_epoch >= EPOCH_EXHAUSTED


def to_bytes(metadata: TransactionMetadata) -> bytes:
    """Encode for the journal: JSON, because an operator may have to read it."""
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
    """Reverse of `to_bytes`. Fields that earlier versions of Chaffinch did not write have their defaults."""
    fields = json.loads(value)
    fields["state"] = TransactionState[fields["state"]]
    fields["partitions"] = frozenset(TopicPartition(topic, partition) for topic, partition in fields["partitions"])
    fields["groups"] = frozenset(fields["groups"])
    return TransactionMetadata(transactional_id=transactional_id, **fields)


NO_PRODUCER_ID = NO_PRODUCER.producer_id


def is_known_producer(metadata: TransactionMetadata, expected: ProducerIdentity) -> bool:
    """Whether a producer with this identity may be the id's producer; the epoch is checked later (isValidProducerId in Kafka, which does
    not get this far while markers are written).
    """
    if metadata.producer_epoch == NO_EPOCH or expected.producer_id == metadata.producer_id or metadata.is_promised(expected):
        return True
    return expected.producer_id == metadata.previous_producer_id and expected.epoch >= EPOCH_EXHAUSTED


def renewed(metadata: TransactionMetadata, expected: ProducerIdentity, allocate: Callable[[], int]) -> TransactionMetadata | None:
    """The next identity without an ongoing transaction; None if `expected` is outdated (Kafka: prepareIncrementProducerEpoch)."""
    is_fresh = expected == NO_PRODUCER
    if metadata.is_epoch_exhausted and (is_fresh or expected.epoch == metadata.producer_epoch):
        return replace(
            metadata,
            producer_id=allocate(),
            producer_epoch=0,
            last_producer_epoch=NO_EPOCH if is_fresh else metadata.producer_epoch,
            previous_producer_id=metadata.producer_id,
        )
    if is_fresh:
        return replace(metadata, producer_epoch=metadata.producer_epoch + 1, last_producer_epoch=NO_EPOCH)
    if metadata.producer_epoch in (NO_EPOCH, expected.epoch):
        return replace(metadata, producer_epoch=metadata.producer_epoch + 1, last_producer_epoch=metadata.producer_epoch)
    if expected.epoch == metadata.last_producer_epoch:
        return metadata  # The response to the same bump was lost: return it again.
    return None


def fenced(metadata: TransactionMetadata) -> TransactionMetadata:
    """Raise the epoch to fence the current producer before an abort in version 1. This epoch is never sent to a producer."""
    return replace(
        metadata,
        state=TransactionState.PREPARE_EPOCH_FENCE,
        producer_epoch=min(metadata.producer_epoch + 1, EPOCH_MAX),
        last_producer_epoch=NO_EPOCH,
    )


def above(metadata: TransactionMetadata, seen: int) -> TransactionMetadata:
    """Raise the epoch above the current one and one seen in a log. This epoch is never sent to a producer either."""
    return replace(metadata, producer_epoch=min(max(seen, metadata.producer_epoch) + 1, EPOCH_MAX), last_producer_epoch=NO_EPOCH)


def decided(
    metadata: TransactionMetadata, *, is_commit: bool, transaction_version: int, wall_ms: int, allocate: Callable[[], int]
) -> TransactionMetadata:
    """The decided state. In version 2 it has the next epoch, which the markers carry to every partition: late batches are refused there."""
    is_begun = metadata.state in (TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE)
    taken = replace(
        metadata,
        state=TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
        transaction_version=transaction_version,
        started_ms=metadata.started_ms if is_begun else wall_ms,
        updated_ms=wall_ms,
    )
    if transaction_version < VERSION_WITH_EPOCH_BUMP:
        return taken
    return replace(
        taken,
        producer_epoch=min(metadata.producer_epoch + 1, EPOCH_MAX),
        last_producer_epoch=metadata.producer_epoch,
        next_producer_id=allocate() if metadata.is_epoch_exhausted else NO_PRODUCER_ID,
    )


def completed(metadata: TransactionMetadata, wall_ms: int) -> TransactionMetadata:
    """The completed state. A producer whose epochs are exhausted continues under its next id; `last_producer_epoch` stays the one it
    knows.
    """
    done = replace(metadata, state=COMPLETED[metadata.state], partitions=frozenset(), groups=frozenset(), updated_ms=wall_ms)
    if metadata.next_producer_id == NO_PRODUCER_ID:
        return done
    return replace(
        done,
        producer_id=metadata.next_producer_id,
        producer_epoch=0,
        previous_producer_id=metadata.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )


def repeats_last_end(metadata: TransactionMetadata, identity: ProducerIdentity) -> bool:
    """Whether `identity` is the one that ended the last transaction in version 2.

    Apache Kafka compares with the current epoch minus one, which mistakes a producer fenced in version 1 for a repetition.
    """
    if metadata.transaction_version < VERSION_WITH_EPOCH_BUMP or identity.epoch != metadata.last_producer_epoch:
        return False
    return identity.producer_id == metadata.producer_id or (
        identity.producer_id == metadata.previous_producer_id and identity.epoch == EPOCH_EXHAUSTED
    )
