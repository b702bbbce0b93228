"""Offset expiry (KIP-211): removes expired committed offsets, and groups without members and offsets.

Retention begins when the group becomes empty. It begins with the commit for groups without a protocol, for consumer groups, and for topics
that a group's members no longer read. Offsets with an open transaction are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from chaffinch.broker.core.events import LogLine
from chaffinch.broker.core.groups.classic_group import ClassicGroup
from chaffinch.broker.core.groups.classic_states import ClassicState
from chaffinch.broker.core.groups.coordinator import GroupCoordinator
from chaffinch.broker.core.groups.group_journal import Group
from chaffinch.broker.core.groups.offsets import CommittedOffset, GroupOffsets
from chaffinch.identifiers import TopicPartition
from chaffinch.storage.file_system import StorageError
from chaffinch.storage.wall_time import WallTime

GROUPS_PER_CALL: Final = 100
OFFSETS_PER_CALL: Final = 1000
"""Offsets removed in one call, before other work has its turn."""
MINUTE_MS: Final = 60_000


class OffsetExpiry:
    """A `ScheduledTask`: checks all groups every `offsets.retention.check.interval.ms`, some groups per call."""

    def __init__(
        self, groups: GroupCoordinator, offsets: GroupOffsets, settings: Mapping[str, Any], wall: WallTime, steady_ms: int
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._settings = settings
        self._wall = wall
        self._left: list[str] = []
        self.next_deadline_ms = steady_ms + self._interval_ms

    def run_due(self, steady_ms: int) -> Sequence[str | LogLine]:
        """Check the next groups. Returns lines to log."""
        if not self._left:
            self._left = [group.group_id for group in self._groups]
        slice_, self._left = self._left[:GROUPS_PER_CALL], self._left[GROUPS_PER_CALL:]
        self.next_deadline_ms = steady_ms if self._left else steady_ms + self._interval_ms
        lines: list[str | LogLine] = []
        budget = OFFSETS_PER_CALL
        for index, group_id in enumerate(slice_):
            if not budget:
                self._left = slice_[index:] + self._left
                self.next_deadline_ms = steady_ms
                break
            group = self._groups.find(group_id)
            if group is None:
                continue
            try:
                count = self._expire_group(group, self._wall.at(steady_ms), budget)
            except StorageError as error:
                return [*lines, f"group {group_id!r}: expired offsets cannot be removed: {error}"]
            budget -= count
            if not budget:
                slice_.insert(index + 1, group_id)  # It may have more expired offsets.
            if count:
                lines.append(LogLine(f"group {group_id!r}: {count} offsets have expired", is_routine=True))
        return lines

    @property
    def _interval_ms(self) -> int:
        interval_ms: int = self._settings["offsets.retention.check.interval.ms"]
        return interval_ms

    def _expire_group(self, group: Group, wall_ms: int, count_max: int) -> int:
        retention_ms = self._settings["offsets.retention.minutes"] * MINUTE_MS
        pending = self._offsets.unstable_partitions(group.group_id)
        found = (
            tp
            for tp, offset in self._offsets.fetch_all(group.group_id).items()
            if tp not in pending and is_expired(group, tp, offset, retention_ms, wall_ms)
        )
        expired = list(islice(found, count_max))
        self._offsets.forget_committed(group.group_id, expired)
        if not self._offsets.has_offsets(group.group_id) and group.is_empty and not (isinstance(group, ClassicGroup) and group.pending):
            self._groups.forget(group)
        return len(expired)


def is_expired(group: Group, tp: TopicPartition, offset: CommittedOffset, retention_ms: int, wall_ms: int) -> bool:
    """Whether an offset has expired."""
    begin_ms = _begin_ms(group, tp, offset)
    if begin_ms is None:
        return False
    return wall_ms >= (offset.expires_ms if offset.expires_ms >= 0 else begin_ms + retention_ms)


def _begin_ms(group: Group, tp: TopicPartition, offset: CommittedOffset) -> int | None:
    """When the retention of an offset began; None while it is in use."""
    if isinstance(group, ClassicGroup):
        if group.protocol_type is None:
            return offset.committed_ms
        if group.state is ClassicState.EMPTY:
            return group.state_since_ms
        knows_topics = group.state is ClassicState.STABLE and group.uses_consumer_protocol and group.subscribed_topics is not None
        return offset.committed_ms if knows_topics and not group.is_subscribed_to(tp.topic) else None
    return None if group.is_subscribed_to(tp.topic) else offset.committed_ms
