"""Groups: list, describe with members and lag, delete, and reset or delete offsets, like `kafka-consumer-groups`, with typed results.

Supports groups of the classic protocol, of KIP-848, and simple groups, which only have offsets. Share and streams groups are only listed.
"""

from __future__ import annotations

import difflib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from chaffinch.admin import offsets
from chaffinch.admin.group_offsets import commit_offsets, committed_offsets
from chaffinch.admin.many_brokers import ask_nodes, by_topic
from chaffinch.client import response_errors
from chaffinch.client.arguments import checked_names
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import GroupIdNotFoundException, GroupNotEmptyException, UnsupportedVersionException, codes, exception_for
from chaffinch.identifiers import NO_OFFSET, TopicPartition
from chaffinch.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest, DescribedConsumerGroup
from chaffinch.protocol.messages.delete_groups import DeleteGroupsRequest
from chaffinch.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from chaffinch.protocol.messages.list_groups import ListGroupsRequest
from chaffinch.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.public_names import exported_from

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
# States of classic groups, of KIP-848, and of share and streams groups, as in Kafka 4.3.
STATES: Final = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling", "NotReady")
TYPES: Final = (CLASSIC, CONSUMER, "share", "streams")
LEADERLESS_MS: Final = 1_000
"""Limit of the wait for leaders of partitions. Leadership moves faster, and a broker that is down may stay down."""
WITHOUT_MEMBERS: Final = frozenset({"Empty", "Dead"})
"""States in which a group's offsets can be set from outside."""


@exported_from("chaffinch.admin")
class UnknownGroup(GroupIdNotFoundException):
    """No node knows the group. Do not retry: the name is wrong."""

    def __str__(self) -> str:
        return self.message


@exported_from("chaffinch.admin")
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """One group, as its coordinator lists it.

    Attributes:
        group: id of the group.
        group_type: one of `TYPES`; empty if the broker is too old to return it.
        protocol_type: `consumer` for consumers; empty for a simple group.
        state: one of `STATES`; empty if the broker is too old to return it.
        coordinator: node id of the coordinator.
    """

    group: str
    group_type: str
    protocol_type: str
    state: str
    coordinator: int


@exported_from("chaffinch.admin")
@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member and its current partitions. `instance_id` is None for a dynamic member; `host` is as the coordinator sees it."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@exported_from("chaffinch.admin")
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """A partition with a commit of the group, or assigned to a member.

    Attributes:
        topic_partition: the partition.
        committed: offset of the next record to read; None without a commit.
        end: end offset; None if the topic does not exist, or the partition has no leader.
        member: the member to which the partition is assigned; None without one.
    """

    topic_partition: TopicPartition
    committed: int | None
    end: int | None
    member: Member | None

    @property
    def lag(self) -> int | None:
        """Records from the committed offset to the end; None if one of the two is None."""
        return None if self.committed is None or self.end is None else max(0, self.end - self.committed)


@exported_from("chaffinch.admin")
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group with its members and offsets. `assignor` is empty while nothing is assigned."""

    listing: GroupListing
    assignor: str
    members: tuple[Member, ...]
    offsets: tuple[GroupOffset, ...]


Kind = Literal["earliest", "latest", "offset", "time", "shift", "current"]


class Target(NamedTuple):
    """Target of a reset. `number` is the offset for `offset`, ms since 1970 for `time`, or the number of records for `shift`."""

    kind: Kind
    number: int = 0


@exported_from("chaffinch.admin")
@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """The planned reset of one partition.

    Attributes:
        topic_partition: the partition.
        before: committed offset; None without a commit.
        wanted: the requested offset.
        after: the offset to commit: the one nearest to `wanted` that can be read.
    """

    topic_partition: TopicPartition
    before: int | None
    wanted: int
    after: int


def list_groups(client: SyncClient, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
    """The groups of all nodes, in the order of their ids.

    Args:
        client: client of `options.connect`.
        states: only groups in one of these states (see `STATES`, in any case); all if empty.
        types: only groups of one of these types (see `TYPES`, in any case); all if empty.
    """
    wanted_states, wanted_types = {state.lower() for state in states}, {kind.lower() for kind in types}
    found: dict[str, GroupListing] = {}
    # Filtered here, because a request with filters cannot be sent to a broker that is too old for them.
    for node, answer in ask_nodes(client, ListGroupsRequest()):
        for group in answer.groups:
            if (not wanted_states or group.group_state.lower() in wanted_states) and (
                not wanted_types or group.group_type.lower() in wanted_types
            ):
                found[group.group_id] = GroupListing(
                    group=group.group_id,
                    group_type=group.group_type.lower(),
                    protocol_type=group.protocol_type,
                    state=group.group_state,
                    coordinator=node,
                )
    return [found[name] for name in sorted(found)]


def describe_groups(client: SyncClient, names: Iterable[str] | None = None) -> list[GroupDescription]:
    """Describe groups with members, committed offsets and lag.

    Args:
        client: client of `options.connect`.
        names: ids of groups; None for all.

    Returns:
        Descriptions in the order of `names`; for None in the order of the ids.

    Raises:
        UnknownGroup: a group does not exist; the message suggests the most similar id.
        UnsupportedVersionException: a share or streams group.
        TypeError: `names` is a single string.
    """
    named = None if names is None else checked_names(names)
    known = {listing.group: listing for listing in list_groups(client)}
    wanted = list(known) if named is None else named
    for name in wanted:
        if name not in known:
            raise _unknown(name, list(known))
    return _with_offsets(client, [_described(client, known[name]) for name in wanted])


def delete_groups(client: SyncClient, names: Iterable[str]) -> None:
    """Delete groups with their offsets.

    If one of several groups does not exist, none is deleted. If one is rejected, the groups before it have been deleted; the message
    names them.

    Args:
        client: client of `options.connect`.
        names: ids of the groups.

    Raises:
        UnknownGroup: a group does not exist.
        GroupNotEmptyException: a group has members.
        TypeError: `names` is a single string.
    """
    wanted = checked_names(names)
    if len(wanted) > 1:
        known = [listing.group for listing in list_groups(client)]
        for name in wanted:
            if name not in known:
                raise _unknown(name, known)
    for index, name in enumerate(wanted):
        answer = client.coordinator_request(name, "group", DeleteGroupsRequest(groups_names=[name]))
        for code, _ in response_errors.codes_in(answer):
            if code is codes.GROUP_ID_NOT_FOUND:
                raise _unknown(name, [listing.group for listing in list_groups(client)])
            done = f" Deleted before it: {', '.join(map(repr, wanted[:index]))}." if index else ""
            raise exception_for(code, message=f"group {name!r}: {code.text}{done}", api="DeleteGroups")


def delete_offsets(client: SyncClient, group: str, partitions: Sequence[TopicPartition]) -> None:
    """Delete committed offsets of a group.

    Args:
        client: client of `options.connect`.
        group: id of the group.
        partitions: the partitions whose commits are deleted.

    Raises:
        UnknownGroup: the group does not exist.
        GroupSubscribedToTopicException: members of the group read the topic.
    """
    topics_wanted = [
        OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=number) for number in numbers])
        for topic, numbers in by_topic(partitions).items()
    ]
    answer = client.coordinator_request(group, "group", OffsetDeleteRequest(group_id=group, topics=topics_wanted))
    for code, _ in response_errors.codes_in(answer):
        if code is codes.GROUP_ID_NOT_FOUND:
            raise _unknown(group, [listing.group for listing in list_groups(client)])
        raise exception_for(code, message=f"group {group!r}: {code.text}", api="OffsetDelete")


def plan_reset(client: SyncClient, group: str, partitions: Iterable[TopicPartition], target: Target) -> list[Reset]:
    """Plan a reset without executing it.

    Args:
        client: client of `options.connect`.
        group: id of the group.
        partitions: the partitions to reset.
        target: the offset to set. Partitions without a commit are left out of a shift, and go to their end for `current`.

    Returns:
        The resets in the order of the partitions.
    """
    tps = sorted(partitions)
    first, end = offsets.earliest(client, tps), offsets.latest(client, tps)
    before = {tp: found.offset for tp, found in committed_offsets(client, group, tps).items()}
    times: dict[TopicPartition, int] = {}
    if target.kind == "time":
        times = offsets.list_offsets(client, dict.fromkeys(tps, target.number))
    plan = []
    for tp in tps:
        wanted = _wanted(target, before.get(tp), first[tp], end[tp], times.get(tp, NO_OFFSET))
        if wanted is not None:
            after = min(max(wanted, first[tp]), end[tp])
            plan.append(Reset(topic_partition=tp, before=before.get(tp), wanted=wanted, after=after))
    return plan


def execute_reset(client: SyncClient, group: str, plan: Iterable[Reset]) -> None:
    """Commit the offsets of a plan.

    Args:
        client: the client of `plan_reset`, which knows the topic ids.
        group: id of the group.
        plan: the result of `plan_reset`.

    Raises:
        GroupNotEmptyException: the group has members.
        UnknownTopicIdException: a topic was deleted and created again after the plan was made.
    """
    wanted = {reset.topic_partition: reset.after for reset in plan}
    topic_ids = {tp.topic: client.cluster.topic_id(tp.topic) or ZERO_UUID for tp in wanted}
    for listing in list_groups(client):
        if listing.group == group and listing.state and listing.state not in WITHOUT_MEMBERS:
            raise GroupNotEmptyException(
                f"group {group!r} is in state {listing.state}: its offsets can be reset only without members", api="OffsetCommit"
            )
    commit_offsets(client, group, wanted, topic_ids)


# Internal -------------------------------------------------------------------------------------------------------------------------------


def _unknown(name: str, known: list[str]) -> UnknownGroup:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"the nearest is {near[0]!r}" if near else "no group has a name like it" if known else "there are no groups"
    return UnknownGroup(f"group {name!r} does not exist; {hint}", api="DescribeGroups")


def _described(client: SyncClient, listing: GroupListing) -> GroupDescription:
    if listing.group_type not in ("", CLASSIC, CONSUMER):
        raise UnsupportedVersionException(f"group {listing.group!r} is a {listing.group_type} group: only its name can be shown here")
    read = _of_consumer if listing.group_type == CONSUMER else _of_classic
    assignor, members = read(client, listing.group)
    return GroupDescription(listing=listing, assignor=assignor, members=members, offsets=())


def _of_consumer(client: SyncClient, name: str) -> tuple[str, tuple[Member, ...]]:
    answer = client.coordinator_request(name, "group", ConsumerGroupDescribeRequest(group_ids=[name]))
    response_errors.raise_for(answer)
    group: DescribedConsumerGroup = answer.groups[0]
    members = [
        Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            host=member.client_host,
            partitions=tuple(
                TopicPartition(topic.topic_name, number) for topic in member.assignment.topic_partitions for number in topic.partitions
            ),
        )
        for member in group.members
    ]
    return group.assignor_name, tuple(members)


def _of_classic(client: SyncClient, name: str) -> tuple[str, tuple[Member, ...]]:
    answer = client.coordinator_request(name, "group", DescribeGroupsRequest(groups=[name]))
    for code, message in response_errors.codes_in(answer):
        # Since version 6 the response for a group that only has offsets, or no longer has any.
        if code is codes.GROUP_ID_NOT_FOUND:
            return "", ()
        raise exception_for(code, message=message, api="DescribeGroups")
    group: DescribedGroup = answer.groups[0]
    members = [
        Member(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            client_id=member.client_id,
            host=member.client_host,
            partitions=_assigned(bytes(member.member_assignment)) if group.protocol_type == CONSUMER else (),
        )
        for member in group.members
    ]
    return group.protocol_data, tuple(members)


def _assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions in a consumer's assignment (ConsumerProtocolAssignment of any version); none for other data."""
    found: list[TopicPartition] = []
    try:
        (topic_count,) = struct.unpack_from(">i", data, 2)
        position = 6
        for _ in range(topic_count):
            (length,) = struct.unpack_from(">h", data, position)
            topic = data[position + 2 : position + 2 + length].decode()
            (count,) = struct.unpack_from(">i", data, position + 2 + length)
            position += 6 + length
            found += [TopicPartition(topic, number) for number in struct.unpack_from(f">{count}i", data, position)]
            position += 4 * count
    except (struct.error, UnicodeDecodeError):
        return ()
    return tuple(found)


def _with_offsets(client: SyncClient, found: list[GroupDescription]) -> list[GroupDescription]:
    committed = [committed_offsets(client, description.listing.group) for description in found]
    owners = [{tp: member for member in description.members for tp in member.partitions} for description in found]
    ends = _ends(client, set().union(*committed, *owners))
    return [
        replace(
            description,
            offsets=tuple(
                GroupOffset(
                    topic_partition=tp,
                    committed=commits[tp].offset if tp in commits else None,
                    end=ends.get(tp),
                    member=members.get(tp),
                )
                for tp in sorted({*commits, *members})
            ),
        )
        for description, commits, members in zip(found, committed, owners, strict=True)
    ]


def _ends(client: SyncClient, tps: set[TopicPartition]) -> dict[TopicPartition, int]:
    """End offsets of the partitions that exist and have a leader. One call for all groups, which waits for missing leaders once."""
    if not tps:
        return {}
    cluster = client.refresh_metadata({tp.topic for tp in tps})
    return offsets.latest(client, [tp for tp in tps if cluster.partition(tp) is not None], leaderless_ms=LEADERLESS_MS)


def _wanted(target: Target, before: int | None, first: int, end: int, of_time: int) -> int | None:
    match target.kind:
        case "earliest":
            return first
        case "latest":
            return end
        case "offset":
            return target.number
        case "time":
            return end if of_time == NO_OFFSET else of_time
        case "shift":
            return None if before is None else before + target.number
        case "current":
            return end if before is None else before
