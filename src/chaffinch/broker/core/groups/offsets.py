"""Committed offsets of groups, including those of open transactions, stored in a journal.

An offset committed in a transaction is pending until the transaction's marker: then it becomes the committed offset, or is dropped
(KIP-98). A client that requests stable offsets must retry while one is pending (KIP-447). Group members are handled in
`groups/coordinator.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from chaffinch.identifiers import TopicPartition
from chaffinch.storage.journal import Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """A committed offset. `metadata` is the client's own text; times are ms since 1970.

    `expires_ms`: set by old clients that request a retention time; otherwise -1. `number`: sequence number of the commit in the whole
    broker, so the later of two commits has the larger one; 0 in entries of earlier versions of Chaffinch.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = -1
    expires_ms: int = -1
    number: int = 0

    def size_bytes(self, group: str) -> int:
        """Approximate memory size, including its key, which contains the group."""
        return 500 + len(group) + len(self.metadata)


OFFSETS_BYTES_MAX: Final = 512 << 20
"""Memory limit of all offsets; commits beyond it are refused."""

_COMMITTED: Final = "committed"
_PENDING: Final = "pending"


class GroupOffsets:
    """Offsets of all groups. Every change is written to the journal before it becomes visible; methods that change offsets raise
    StorageError.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[str, dict[int, dict[TopicPartition, CommittedOffset]]] = {}  # By group and producer id.
        self._size_bytes = 0
        self._last_number = 0
        self._deleted: set[str] = set()  # Deleted topics whose offsets are not yet removed.
        for key, value in journal.items().items():
            kind, group, *tp = json.loads(key)
            if kind in (_COMMITTED, _PENDING):
                topic, partition, producer_id = tp
                held = self._committed_of(group) if kind == _COMMITTED else self._pending_of(group, producer_id)
                offset = _from_bytes(value)
                self._store(group, held, {TopicPartition(topic, partition): offset})
                self._last_number = max(self._last_number, offset.number)

    def groups(self) -> tuple[str, ...]:
        """The groups with committed or pending offsets."""
        return tuple({**self._committed, **self._pending})

    def has_offsets(self, group: str) -> bool:
        """Whether the group has committed or pending offsets."""
        return bool(self._committed.get(group)) or group in self._pending

    def has_capacity(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> bool:
        """Whether these offsets fit into the memory limit. Overwriting counts like adding: the limit is far above ordinary use."""
        return self._size_bytes + sum(offset.size_bytes(group) for offset in offsets.values()) <= OFFSETS_BYTES_MAX

    def fetch(self, group: str, partition: TopicPartition) -> CommittedOffset | None:
        return self._committed.get(group, {}).get(partition)

    def fetch_all(self, group: str) -> Mapping[TopicPartition, CommittedOffset]:
        return self._committed.get(group, {})

    def unstable_partitions(self, group: str) -> frozenset[TopicPartition]:
        """Partitions with a pending offset of an open transaction."""
        return frozenset(partition for offsets in self._pending.get(group, {}).values() for partition in offsets)

    def pending(self) -> list[tuple[str, int]]:
        """(group, producer id) of all transactions with pending offsets."""
        return [(group, producer_id) for group, by_producer in self._pending.items() for producer_id in by_producer]

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commit offsets outside of a transaction."""
        offsets = self._numbered(offsets)
        self._journal.put({_key(_COMMITTED, group, partition): _to_bytes(offset) for partition, offset in offsets.items()})
        self._store(group, self._committed_of(group), offsets)

    def commit_pending(self, group: str, producer_id: int, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Store offsets in the producer's open transaction; `complete` commits or drops them."""
        offsets = self._numbered(offsets)
        self._journal.put({_key(_PENDING, group, partition, producer_id): _to_bytes(offset) for partition, offset in offsets.items()})
        self._store(group, self._pending_of(group, producer_id), offsets)

    def complete(self, group: str, producer_id: int, is_commit: bool) -> None:
        """Apply the transaction marker: commit or drop the producer's pending offsets. Repeating it has no effect.

        An offset that was committed after the pending one was written stays, as in Kafka, where the order of the records decides.
        """
        pending = self._pending.get(group, {}).get(producer_id)
        if not pending:
            return
        entries: dict[bytes, bytes | None] = {_key(_PENDING, group, partition, producer_id): None for partition in pending}
        valid = self._newest(group, pending) if is_commit else {}
        entries.update({_key(_COMMITTED, group, partition): _to_bytes(offset) for partition, offset in valid.items()})
        self._journal.put(entries)
        if valid:
            self._store(group, self._committed_of(group), valid)
        self._drop(group, pending, list(pending))
        self._pending_is_gone(group, producer_id)

    def mark_topic_deleted(self, topic: str) -> None:
        """Record that a topic was deleted. As in Kafka its offsets are deleted too: by `forget_deleted`, before a topic of the same name is
        created.
        """
        self._deleted.add(topic)

    def forget_deleted(self) -> None:
        """Remove the offsets of deleted topics, all at once because all offsets are searched. After an error the next call continues.

        Synced: otherwise a power loss would give these offsets to a later topic of the same name.
        """
        if self._deleted:
            for group in self.groups():
                self.forget(group, lambda partition: partition.topic in self._deleted)
            self._journal.sync()
            self._deleted.clear()

    def before_topic_creation(self, topic: str) -> None:
        """Called before a topic is created: it must not inherit the offsets of a deleted topic of the same name. A StorageError prevents
        the creation.
        """
        if topic in self._deleted:
            self.forget_deleted()

    def forget_missing(self, is_there: Callable[[str], bool]) -> None:
        """Remove offsets of nonexistent topics: the broker stopped between deleting a topic and removing its offsets."""
        held = {tp.topic for group in self.groups() for tp in (*self.fetch_all(group), *self.unstable_partitions(group))}
        self._deleted.update(topic for topic in held if not is_there(topic))
        self.forget_deleted()

    def forget_group(self, group: str) -> None:
        """Remove all offsets of a group, pending ones included."""
        self.forget(group, lambda _: True)

    def forget_committed(self, group: str, tps: Collection[TopicPartition]) -> None:
        """Remove existing committed offsets."""
        self._journal.put({_key(_COMMITTED, group, tp): None for tp in tps})
        if tps:
            self._drop(group, self._committed[group], tps)
            if not self._committed[group]:
                del self._committed[group]

    def forget(self, group: str, is_meant: Callable[[TopicPartition], bool]) -> None:
        """Remove a group's offsets of the matching partitions, pending ones included."""
        held = [(_COMMITTED, -1, self._committed.get(group, {}))]
        held += [(_PENDING, producer_id, offsets) for producer_id, offsets in self._pending.get(group, {}).items()]
        meant = [(kind, producer_id, offsets, [tp for tp in offsets if is_meant(tp)]) for kind, producer_id, offsets in held]
        self._journal.put({_key(kind, group, tp, producer_id): None for kind, producer_id, _, tps in meant for tp in tps})
        for kind, producer_id, offsets, tps in meant:
            self._drop(group, offsets, tps)
            if not offsets and kind == _COMMITTED:
                self._committed.pop(group, None)
            elif not offsets:
                self._pending_is_gone(group, producer_id)

    def sync(self) -> None:
        self._journal.sync()

    def _numbered(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, CommittedOffset]:
        self._last_number += 1
        return {partition: replace(offset, number=self._last_number) for partition, offset in offsets.items()}

    def _newest(self, group: str, pending: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, CommittedOffset]:
        """The offsets without a later commit."""
        committed = self._committed.get(group, {})
        return {tp: offset for tp, offset in pending.items() if tp not in committed or committed[tp].number <= offset.number}

    def _committed_of(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        return self._committed.setdefault(group, {})

    def _pending_of(self, group: str, producer_id: int) -> dict[TopicPartition, CommittedOffset]:
        return self._pending.setdefault(group, {}).setdefault(producer_id, {})

    def _pending_is_gone(self, group: str, producer_id: int) -> None:
        del self._pending[group][producer_id]
        if not self._pending[group]:
            del self._pending[group]

    def _store(self, group: str, held: dict[TopicPartition, CommittedOffset], offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        for tp, offset in offsets.items():
            former = held.get(tp)
            self._size_bytes += offset.size_bytes(group) - (0 if former is None else former.size_bytes(group))
            held[tp] = offset

    def _drop(self, group: str, held: dict[TopicPartition, CommittedOffset], tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self._size_bytes -= held.pop(tp).size_bytes(group)


def _key(kind: str, group: str, partition: TopicPartition, producer_id: int = -1) -> bytes:
    return json.dumps([kind, group, partition.topic, partition.partition, producer_id]).encode()


def _to_bytes(offset: CommittedOffset) -> bytes:
    fields = [offset.offset, offset.leader_epoch, offset.metadata, offset.committed_ms, offset.expires_ms, offset.number]
    return json.dumps(fields).encode()


def _from_bytes(value: bytes) -> CommittedOffset:
    """Parse an offset. Earlier versions of Chaffinch stored no number, and an expiry time only if there was one."""
    offset, leader_epoch, metadata, committed_ms, *later = json.loads(value)
    return CommittedOffset(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        committed_ms=committed_ms,
        **dict(zip(("expires_ms", "number"), later, strict=False)),
    )
