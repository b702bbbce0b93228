"""Group journal: what the broker stores about groups to survive a restart.

A classic group has one entry with its generation, members and assignments. It is written when a generation becomes stable, when the group
becomes empty, and when a static member is replaced, as in Apache Kafka; of a member's protocols only the chosen one is stored. A group that
was rebalancing is restored in its state before the rebalance.

A consumer group has one entry for its epochs, one for its topics, one per member and one per target assignment. A change writes only the
entries that differ, all in one batch.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias
from uuid import UUID

from chaffinch.broker.core.groups.assignors import Partitions, TopicIdPartition
from chaffinch.broker.core.groups.classic_group import ClassicGroup, ClassicMember, Client
from chaffinch.broker.core.groups.classic_states import ClassicState
from chaffinch.broker.core.groups.consumer_group import Change, ConsumerGroup, ConsumerMember, MemberState, TopicInfo
from chaffinch.storage.journal import Journal

Group: TypeAlias = ClassicGroup | ConsumerGroup

KIND = "group"
MEMBER_KIND = "group member"
TARGET_KIND = "group target"
TOPICS_KIND = "group topics"


def key_of(group_id: str) -> bytes:
    return _dump([KIND, group_id])


class GroupJournal:
    """Reads and writes entries. Every method raises StorageError; then nothing has changed."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def load(self) -> dict[str, Group]:
        """Load all groups by id. Classic groups are stable or empty."""
        entries: dict[str, list[tuple[list[str], Any]]] = {}
        for key, value in self._journal.items().items():
            kind, *names = json.loads(key)
            entries.setdefault(kind, []).append((names, value))
        groups: dict[str, Group] = {}
        consumers: dict[str, ConsumerGroup] = {}
        for (group_id,), value in entries.get(KIND, ()):
            fields = json.loads(value)
            if fields["type"] == "classic":
                groups[group_id] = _classic_group(group_id, fields)
            else:
                assert fields["type"] == "consumer", f"group {group_id!r} is of an unknown type {fields['type']!r}"
                groups[group_id] = consumers[group_id] = _consumer_group(group_id, fields)
        for (group_id,), value in entries.get(TOPICS_KIND, ()):
            consumers[group_id].topics = _topics_from(json.loads(value))
        for (group_id, member_id), value in entries.get(MEMBER_KIND, ()):
            change = consumers[group_id].change()
            change.members[member_id] = _member_from(member_id, json.loads(value))
            consumers[group_id].apply(change)
        for (group_id, member_id), value in entries.get(TARGET_KIND, ()):
            consumers[group_id].targets[member_id] = _partitions_from(json.loads(value))
        return groups

    def put_classic(self, group: ClassicGroup, members: Iterable[ClassicMember], assignments: Mapping[str, bytes]) -> None:
        """Write a classic group with these members and assignments."""
        value = {
            "type": "classic",
            "protocol_type": group.protocol_type,
            "protocol": group.protocol,
            "generation": group.generation,
            "leader": group.leader,
            "since_ms": group.state_since_ms,
            "members": [_classic_member_value(member, group.protocol, assignments.get(member.member_id, b"")) for member in members],
        }
        self._journal.put({key_of(group.group_id): _dump(value)})

    def put_change(self, group: ConsumerGroup, change: Change) -> None:
        """Write the entries that a change modifies."""
        entries: dict[bytes, bytes | None] = {}
        if (change.epoch, change.assignment_epoch) != (group.epoch, group.assignment_epoch):
            entries[key_of(group.group_id)] = _dump(
                {"type": "consumer", "epoch": change.epoch, "assignment_epoch": change.assignment_epoch}
            )
        # Topics have their own entry: there may be thousands, and the epoch rises with each joining or leaving member.
        topics_key = _dump([TOPICS_KIND, group.group_id])
        if change.topics != group.topics or (change.topics and self._journal.get(topics_key) is None):
            entries[topics_key] = _dump({name: [topic.topic_id.hex, topic.partition_count] for name, topic in change.topics.items()})
        for member_id, member in change.members.items():
            entries[_dump([MEMBER_KIND, group.group_id, member_id])] = None if member is None else _dump(_member_value(member))
        for member_id, target in change.targets.items():
            entries[_dump([TARGET_KIND, group.group_id, member_id])] = None if target is None else _dump(_partitions_value(target))
        if entries:
            self._journal.put(entries)

    def remove(self, group: Group) -> None:
        """Remove all entries of a group."""
        entries: dict[bytes, bytes | None] = {key_of(group.group_id): None}
        if isinstance(group, ConsumerGroup):
            entries[_dump([TOPICS_KIND, group.group_id])] = None
            entries |= {_dump([MEMBER_KIND, group.group_id, member_id]): None for member_id in group.members}
            entries |= {_dump([TARGET_KIND, group.group_id, member_id]): None for member_id in group.targets}
        self._journal.put(entries)


def _classic_member_value(member: ClassicMember, protocol: str | None, assignment: bytes) -> list[object]:
    return [
        member.member_id,
        member.instance_id,
        member.client.client_id,
        member.client.host,
        member.rebalance_timeout_ms,
        member.session_timeout_ms,
        b64encode(member.metadata(protocol)).decode(),
        b64encode(assignment).decode(),
    ]


def _classic_group(group_id: str, value: Mapping[str, Any]) -> ClassicGroup:
    """Parse a classic group, which is stable or empty."""
    group = ClassicGroup(
        group_id=group_id,
        state=ClassicState.STABLE if value["members"] else ClassicState.EMPTY,
        state_since_ms=value["since_ms"],
        generation=value["generation"],
        protocol_type=value["protocol_type"],
        protocol=value["protocol"],
    )
    for member_id, instance_id, client_id, host, rebalance_ms, session_ms, metadata, assignment in value["members"]:
        member = ClassicMember(
            member_id=member_id,
            instance_id=instance_id,
            client=Client(client_id=client_id, host=host),
            rebalance_timeout_ms=rebalance_ms,
            session_timeout_ms=session_ms,
            protocols=((group.protocol or "", b64decode(metadata)),),
            assignment=b64decode(assignment),
        )
        group.add(member, group.protocol_type or "")
    group.leader = value["leader"]
    group.remember_topics()
    return group


def _consumer_group(group_id: str, value: Mapping[str, Any]) -> ConsumerGroup:
    """Parse a consumer group's own entry, without members; earlier versions of Chaffinch stored its topics there."""
    return ConsumerGroup(
        group_id=group_id,
        epoch=value["epoch"],
        assignment_epoch=value["assignment_epoch"],
        topics=_topics_from(value.get("topics", {})),
    )


def _topics_from(value: Mapping[str, tuple[str, int]]) -> dict[str, TopicInfo]:
    return {name: TopicInfo(UUID(topic_id), count) for name, (topic_id, count) in value.items()}


def _member_from(member_id: str, value: Mapping[str, Any]) -> ConsumerMember:
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
        assigned=_partitions_from(value["assigned"]),
        revoking=_partitions_from(value["revoking"]),
        since=_since_from(value),
    )


def _since_from(value: Mapping[str, Any]) -> dict[TopicIdPartition, int]:
    """Parse the epochs in which a member received its partitions. Earlier versions of Chaffinch did not store them: then offsets may be
    committed only in the member's epoch.
    """
    held = _partitions_from(value["assigned"]) | _partitions_from(value["revoking"])
    since = dict.fromkeys(held, value["epoch"])
    for epoch, partitions in value.get("since", {}).items():
        since |= dict.fromkeys(_partitions_from(partitions), int(epoch))
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


def _partitions_from(value: Mapping[str, list[int]]) -> Partitions:
    return frozenset(TopicIdPartition(UUID(topic_id), partition) for topic_id, indexes in value.items() for partition in indexes)


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()
