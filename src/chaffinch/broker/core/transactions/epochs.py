"""Which producer id and epoch a transactional id has after a request: recovery (KIP-360), fencing, the bump at every end (KIP-890).

Pure functions from what is known to what is to be written down; `coordinator.py` decides when, and writes.
`allocate` gives a producer id that was never used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from chaffinch.broker.core.transactions.metadata import EPOCH_EXHAUSTED, EPOCH_MAX, NO_EPOCH, TransactionMetadata
from chaffinch.broker.core.transactions.moves import COMPLETED, VERSION_WITH_EPOCH_BUMP, TransactionState
from chaffinch.identifiers import NO_PRODUCER, ProducerIdentity

NO_PRODUCER_ID = NO_PRODUCER.producer_id


def is_known_producer(metadata: TransactionMetadata, expected: ProducerIdentity) -> bool:
    """Whether a producer that names its identity may be this id's producer; its epoch is looked at later (isValidProducerId in
    Kafka, where nobody gets so far while markers are written)."""
    if metadata.producer_epoch == NO_EPOCH or expected.producer_id == metadata.producer_id or metadata.is_promised(expected):
        return True
    return expected.producer_id == metadata.previous_producer_id and expected.epoch >= EPOCH_EXHAUSTED


def renewed(metadata: TransactionMetadata, expected: ProducerIdentity, allocate: Callable[[], int]) -> TransactionMetadata | None:
    """The next identity of a producer at rest; None when `expected` is an old one (Kafka: prepareIncrementProducerEpoch)."""
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
        return metadata  # The answer to the same bump was lost: give it again.
    return None


def fenced(metadata: TransactionMetadata) -> TransactionMetadata:
    """Above the epoch of whoever writes now, to be aborted in version 1. Nobody is ever told this epoch."""
    return replace(
        metadata,
        state=TransactionState.PREPARE_EPOCH_FENCE,
        producer_epoch=min(metadata.producer_epoch + 1, EPOCH_MAX),
        last_producer_epoch=NO_EPOCH,
    )


def above(metadata: TransactionMetadata, seen: int) -> TransactionMetadata:
    """Above its own epoch, and one that somebody has written in. Nobody is ever told this one, either."""
    return replace(metadata, producer_epoch=min(max(seen, metadata.producer_epoch) + 1, EPOCH_MAX), last_producer_epoch=NO_EPOCH)


def decided(
    metadata: TransactionMetadata, *, is_commit: bool, transaction_version: int, wall_ms: int, allocate: Callable[[], int]
) -> TransactionMetadata:
    """The decision. In version 2 it has the next epoch, which the markers carry to every partition: what comes late is refused there."""
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
    """After the markers. A producer whose epochs are used up goes on under its next id; `last_producer_epoch` stays what it knows."""
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
    """Whether `identity` is the one under which the last transaction was ended in version 2.

    Apache Kafka compares with the current epoch less one, which takes a producer fenced by one of version 1 for a repetition.
    """
    if metadata.transaction_version < VERSION_WITH_EPOCH_BUMP or identity.epoch != metadata.last_producer_epoch:
        return False
    return identity.producer_id == metadata.producer_id or (
        identity.producer_id == metadata.previous_producer_id and identity.epoch == EPOCH_EXHAUSTED
    )
