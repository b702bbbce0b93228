"""Transaction recovery after a power loss with `flush.policy=os`: logs and committed offsets may contain producers that the coordinator's
journal has lost.

Without recovery an epoch could be allocated a second time, and a log would take the new producer's batches for duplicates of the old one's;
and a transaction unknown to the coordinator would stay open forever. Recovery runs once at startup, when no request is in progress, so an
open transaction unknown to the coordinator was lost there. Its producer, if it is alive, is fenced: otherwise it would commit the rest.

After any other stop recovery is unnecessary and must not run: logs may be ahead of the coordinator because a tool has ended transactions
there, under epochs of its own choice. The journal therefore stores the file system incarnation of the last recovery. In the same
incarnation nothing has been lost since then; in another one nothing was lost if the journal was closed properly.

With `transaction.partition.verification.enable=false` partitions may have transactions that the coordinator never knew: those are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from chaffinch.broker.core.groups.offsets import GroupOffsets
from chaffinch.broker.core.topics.registry import Partition, TopicRegistry
from chaffinch.broker.core.transactions.coordinator import COORDINATOR_EPOCH, TransactionCoordinator
from chaffinch.broker.core.transactions.metadata import EPOCH_MAX, TransactionMetadata
from chaffinch.broker.core.transactions.moves import VERSION_WITH_EPOCH_BUMP
from chaffinch.identifiers import ProducerIdentity, TopicPartition, pluralize
from chaffinch.storage.journal import Journal
from chaffinch.storage.producer_sequences import OngoingTransaction

RECOVERED_IN: Final = b"mended.in"


def is_possible(journal: Journal, incarnation: str) -> bool:
    """Whether the coordinator's journal may have lost data in a power loss that was not yet recovered from."""
    mended_in = journal.get(RECOVERED_IN)
    if mended_in is None:
        return True
    is_same = incarnation != "" and mended_in == incarnation.encode()
    return not (is_same or journal.was_closed)


def mark_recovered(journal: Journal, incarnation: str) -> None:
    """Store that recovery is complete for this incarnation. Raises StorageError: the next start then checks again."""
    if journal.get(RECOVERED_IN) != incarnation.encode():
        journal.put({RECOVERED_IN: incarnation.encode()})


def recover_lost(
    transactions: TransactionCoordinator,
    topics: TopicRegistry,
    offsets: GroupOffsets,
    grown: list[Partition],
    steady_ms: int,
    *,
    verifies: bool,
) -> Iterator[str]:
    """Recover. Yields lines to log. `verifies`: every transaction in a partition was registered at the coordinator. `grown` collects each
    partition that received a marker, which must be synced before it is read.

    Raises StorageError; the rest is recovered at the next start.
    """
    known = {metadata.producer_id: metadata for metadata in transactions}
    tps = {metadata.producer_id: _without_marker(metadata, topics) for metadata in known.values()}
    open_now = _open_transactions(topics) if verifies else ()
    lost = [found for found in open_now if found[0].topic_partition not in tps.get(found[1].producer_id, ())]
    pending = offsets.pending()
    lost_offsets = [
        (group, producer_id) for group, producer_id in pending if producer_id not in known or group not in known[producer_id].groups
    ]
    seen = _epochs_seen(topics) if known else {}
    stale = {producer_id for producer_id, metadata in known.items() if seen.get(producer_id, -1) > metadata.producer_epoch}
    stale |= known.keys() & ({ongoing.producer_id for _, ongoing in lost} | {producer_id for _, producer_id in lost_offsets})
    for producer_id in sorted(stale):
        transactions.fence(known[producer_id], seen.get(producer_id, -1), tps[producer_id])
        yield f"transactional id {known[producer_id].transactional_id!r} is fenced: its coordinator's state was lost in a power loss"
    for partition, ongoing in lost:
        _abort(partition, ongoing, steady_ms)
        grown.append(partition)
    if lost:
        yield f"{pluralize(len(lost), 'open transaction')} aborted in partitions: the coordinator's state of them was lost in a power loss"
    for group, producer_id in lost_offsets:
        offsets.complete(group, producer_id, is_commit=False)
        yield f"group {group!r}: offsets of a transaction are dropped: the coordinator's state of it was lost in a power loss"


def _without_marker(metadata: TransactionMetadata, topics: TopicRegistry) -> frozenset[TopicPartition]:
    """The partitions of a transaction without a marker yet; an open transaction in the others began later. In version 2 epochs distinguish
    them.
    """
    if not metadata.is_decided or metadata.transaction_version < VERSION_WITH_EPOCH_BUMP:
        return metadata.partitions
    found = {tp: topics.partition(*tp) for tp in metadata.partitions}
    return frozenset(
        tp for tp, partition in found.items() if partition is None or not partition.log.producers.has_marker(metadata.identity)
    )


def _open_transactions(topics: TopicRegistry) -> Iterator[tuple[Partition, OngoingTransaction]]:
    for partition in topics.partitions():
        for ongoing in partition.log.ongoing_transactions():
            yield partition, ongoing


def _epochs_seen(topics: TopicRegistry) -> dict[int, int]:
    """Producer id -> the highest epoch in any log."""
    seen: dict[int, int] = {}
    for partition in topics.partitions():
        for producer_id, state in partition.log.producers.states():
            if state.epoch > seen.get(producer_id, -1):
                seen[producer_id] = state.epoch
    return seen


def _abort(partition: Partition, ongoing: OngoingTransaction, steady_ms: int) -> None:
    """Abort under a raised epoch, which the producer's own batches cannot follow."""
    identity = ProducerIdentity(ongoing.producer_id, min(ongoing.producer_epoch + 1, EPOCH_MAX))
    partition.log.append_marker(False, identity, COORDINATOR_EPOCH, steady_ms, leader_epoch=partition.replicas.leader_epoch)
