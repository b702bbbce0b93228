"""What a broker remembers of a consumer group over a restart: epochs, members and what they have, targets.

One entry for the group, one for its topics, one per member and one per target; a change writes only those that differ, all in one batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from chaffinch.broker.core.groups import classic_journal
from chaffinch.broker.core.groups.assignors import Partitions, TopicIdPartition
from chaffinch.broker.core.groups.classic_group import Client
from chaffinch.broker.core.groups.consumer_group import Change, ConsumerGroup, ConsumerMember, MemberState, TopicInfo
from chaffinch.storage.journal import Journal

MEMBER_KIND = "group member"
TARGET_KIND = "group target"
TOPICS_KIND = "group topics"


class ConsumerJournal:
    """Writes entries. Every method raises StorageError; then nothing has changed."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def put(self, group: ConsumerGroup, change: Change) -> None:
        """What the change makes different."""
        entries: dict[bytes, bytes | None] = {}
        if (change.epoch, change.assignment_epoch) != (group.epoch, group.assignment_epoch):
            entries[classic_journal.key_of(group.group_id)] = _dump(
                {"type": "consumer", "epoch": change.epoch, "assignment_epoch": change.assignment_epoch}
            )
        # Topics apart: there may be thousands, and the epoch rises with each member that comes or goes.
        topics_key = _dump([TOPICS_KIND, group.group_id])
        if change.topics != group.topics or (change.topics and self._journal.get(topics_key) is None):
            entries[topics_key] = _dump({name: [topic.topic_id.hex, topic.partition_count] for name, topic in change.topics.items()})
        for member_id, member in change.members.items():
            entries[_dump([MEMBER_KIND, group.group_id, member_id])] = None if member is None else _dump(_member_value(member))
        for member_id, target in change.targets.items():
            entries[_dump([TARGET_KIND, group.group_id, member_id])] = None if target is None else _dump(_partitions_value(target))
        if entries:
            self._journal.put(entries)

    def remove(self, group: ConsumerGroup) -> None:
        """All of it."""
        entries: dict[bytes, bytes | None] = {classic_journal.key_of(group.group_id): None, _dump([TOPICS_KIND, group.group_id]): None}
        entries |= {_dump([MEMBER_KIND, group.group_id, member_id]): None for member_id in group.members}
        entries |= {_dump([TARGET_KIND, group.group_id, member_id]): None for member_id in group.targets}
        self._journal.put(entries)


def group_from(group_id: str, value: Mapping[str, Any]) -> ConsumerGroup:
    """The group of its own entry, without members yet; earlier versions of Chaffinch wrote its topics there."""
    return ConsumerGroup(
        group_id=group_id,
        epoch=value["epoch"],
        assignment_epoch=value["assignment_epoch"],
        topics=topics_from(value.get("topics", {})),
    )


def topics_from(value: Mapping[str, tuple[str, int]]) -> dict[str, TopicInfo]:
    return {name: TopicInfo(UUID(topic_id), count) for name, (topic_id, count) in value.items()}


def member_from(member_id: str, value: Mapping[str, Any]) -> ConsumerMember:
    return ConsumerMember(
        member_id=member_id,
        instance_id=value["instance_id"],
        rack_id=value["rack_id"],
        client=Client(client_id=value["client_id"], host=value["host"]),
        rebalance_timeout_ms=value["rebalance_timeout_ms"],
        topics=frozenset(value["topics"]),
        pattern=value["pattern"],
        assignor=value["assignor"],
        epoch=value["epoch"],
        previous_epoch=value["previous_epoch"],
        state=MemberState(value["state"]),
        assigned=partitions_from(value["assigned"]),
        revoking=partitions_from(value["revoking"]),
        since=_since_from(value),
    )


def _since_from(value: Mapping[str, Any]) -> dict[TopicIdPartition, int]:
    """Earlier versions of Chaffinch did not write it: then nothing may be committed but in the member's epoch."""
    held = partitions_from(value["assigned"]) | partitions_from(value["revoking"])
    since = dict.fromkeys(held, value["epoch"])
    for epoch, partitions in value.get("since", {}).items():
        since |= dict.fromkeys(partitions_from(partitions), int(epoch))
    return since


def _member_value(member: ConsumerMember) -> dict[str, Any]:
    return {
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "client_id": member.client.client_id,
        "host": member.client.host,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "topics": sorted(member.topics),
        "pattern": member.pattern,
        "assignor": member.assignor,
        "epoch": member.epoch,
        "previous_epoch": member.previous_epoch,
        "state": member.state.value,
        "assigned": _partitions_value(member.assigned),
        "revoking": _partitions_value(member.revoking),
        "since": {epoch: _partitions_value(partitions) for epoch, partitions in _by_epoch(member.since).items()},
    }


def _by_epoch(since: Mapping[TopicIdPartition, int]) -> dict[int, list[TopicIdPartition]]:
    by_epoch: dict[int, list[TopicIdPartition]] = {}
    for partition, epoch in since.items():
        by_epoch.setdefault(epoch, []).append(partition)
    return by_epoch


def _partitions_value(partitions: Iterable[TopicIdPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        by_topic.setdefault(topic_id.hex, []).append(partition)
    return by_topic


def partitions_from(value: Mapping[str, list[int]]) -> Partitions:
    return frozenset(TopicIdPartition(UUID(topic_id), partition) for topic_id, indexes in value.items() for partition in indexes)


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()
