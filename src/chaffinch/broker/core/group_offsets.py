"""Committed offsets of groups, those of open transactions included, kept in a journal.

An offset committed inside a transaction is pending until the transaction's marker: then it becomes the committed one, or is dropped
(KIP-98). A reader that asks for stable offsets is told to come again while one is pending (KIP-447). Members of groups are not known here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chaffinch.identifiers import TopicPartition
from chaffinch.storage.journal import Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """One committed position. `metadata` is the client's own text; `committed_ms` in ms since 1970."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = -1


_COMMITTED: Final = "committed"
_PENDING: Final = "pending"


class GroupOffsets:
    """All groups' offsets. Every change is in the journal before it is seen; methods that change raise StorageError."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[tuple[str, int], dict[TopicPartition, CommittedOffset]] = {}
        for key, value in journal.items().items():
            kind, group, topic, partition, producer_id = json.loads(key)
            self._store(kind, group, producer_id, TopicPartition(topic, partition), _from_bytes(value))

    def groups(self) -> tuple[str, ...]:
        return tuple(self._committed)

    def fetch(self, group: str, partition: TopicPartition) -> CommittedOffset | None:
        return self._committed.get(group, {}).get(partition)

    def fetch_all(self, group: str) -> Mapping[TopicPartition, CommittedOffset]:
        return self._committed.get(group, {})

    def unstable_partitions(self, group: str) -> frozenset[TopicPartition]:
        """Partitions for which an open transaction has written an offset."""
        return frozenset(
            partition for (pending_group, _), offsets in self._pending.items() if pending_group == group for partition in offsets
        )

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Outside transactions: valid at once."""
        self._journal.put({_key(_COMMITTED, group, partition): _to_bytes(offset) for partition, offset in offsets.items()})
        self._committed.setdefault(group, {}).update(offsets)

    def commit_pending(self, group: str, producer_id: int, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Inside the producer's open transaction: valid when `complete` says so."""
        self._journal.put({_key(_PENDING, group, partition, producer_id): _to_bytes(offset) for partition, offset in offsets.items()})
        self._pending.setdefault((group, producer_id), {}).update(offsets)

    def complete(self, group: str, producer_id: int, is_commit: bool) -> None:
        """The marker: pending offsets of this producer become committed, or vanish. Again for the same transaction: nothing."""
        pending = self._pending.get((group, producer_id))
        if not pending:
            return
        entries: dict[bytes, bytes | None] = {_key(_PENDING, group, partition, producer_id): None for partition in pending}
        if is_commit:
            entries.update({_key(_COMMITTED, group, partition): _to_bytes(offset) for partition, offset in pending.items()})
        self._journal.put(entries)
        del self._pending[group, producer_id]
        if is_commit:
            self._committed.setdefault(group, {}).update(pending)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: its offsets go with it, as in Kafka."""
        entries: dict[bytes, bytes | None] = {}
        for group, committed in self._committed.items():
            entries.update({_key(_COMMITTED, group, partition): None for partition in committed if partition.topic == topic})
        for (group, producer_id), pending in self._pending.items():
            entries.update({_key(_PENDING, group, partition, producer_id): None for partition in pending if partition.topic == topic})
        if not entries:
            return
        self._journal.put(entries)
        for offsets in (*self._committed.values(), *self._pending.values()):
            for partition in [partition for partition in offsets if partition.topic == topic]:
                del offsets[partition]

    def sync(self) -> None:
        self._journal.sync()

    def close(self) -> None:
        self._journal.close()

    def _store(self, kind: str, group: str, producer_id: int, partition: TopicPartition, offset: CommittedOffset) -> None:
        if kind == _COMMITTED:
            self._committed.setdefault(group, {})[partition] = offset
        else:
            self._pending.setdefault((group, producer_id), {})[partition] = offset


def _key(kind: str, group: str, partition: TopicPartition, producer_id: int = -1) -> bytes:
    return json.dumps([kind, group, partition.topic, partition.partition, producer_id]).encode()


def _to_bytes(offset: CommittedOffset) -> bytes:
    return json.dumps([offset.offset, offset.leader_epoch, offset.metadata, offset.committed_ms]).encode()


def _from_bytes(value: bytes) -> CommittedOffset:
    offset, leader_epoch, metadata, committed_ms = json.loads(value)
    return CommittedOffset(offset=offset, leader_epoch=leader_epoch, metadata=metadata, committed_ms=committed_ms)
