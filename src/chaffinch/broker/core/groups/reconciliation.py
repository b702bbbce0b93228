"""How a member of a consumer group comes to its target, step by step (KIP-848, "Member Reconciliation").

First it gives back what it is not to have, and says so; then it gets what others have given back. So no partition has two owners.
Follows Apache Kafka's CurrentAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from chaffinch.broker.core.groups.assignors import Partitions, TopicIdPartition
from chaffinch.broker.core.groups.consumer_group import NO_PARTITIONS, ConsumerMember, MemberState


def next_step(
    member: ConsumerMember,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    owners: Mapping[TopicIdPartition, str],
) -> ConsumerMember:
    """The member after this heartbeat. `owned`: what it says it has; None when it did not say."""
    if member.state is MemberState.UNREVOKED:
        if _holds(owned, member.revoking):
            return member
    elif member.is_reconciled_to(target_epoch):
        return member
    return _towards(member, target_epoch, target, owned, owners)


def _towards(
    member: ConsumerMember, target_epoch: int, target: Partitions, owned: Partitions | None, owners: Mapping[TopicIdPartition, str]
) -> ConsumerMember:
    """While it has something to give back the member stays in its epoch, however often the target moves on."""
    kept = member.assigned & target
    revoking = member.assigned - target
    if revoking and _holds(owned, revoking):
        return _at(member, member.epoch, MemberState.UNREVOKED, kept, revoking)
    wanted = target - kept
    free = frozenset(partition for partition in wanted if owners.get(partition, member.member_id) == member.member_id)
    state = MemberState.UNRELEASED if len(free) < len(wanted) else MemberState.STABLE
    return _at(member, target_epoch, state, kept | free, NO_PARTITIONS)


def _at(member: ConsumerMember, epoch: int, state: MemberState, assigned: Partitions, revoking: Partitions) -> ConsumerMember:
    since = {partition: member.since[partition] if partition in member.assigned else epoch for partition in assigned | revoking}
    return replace(member, epoch=epoch, previous_epoch=member.epoch, state=state, assigned=assigned, revoking=revoking, since=since)


def _holds(owned: Partitions | None, revoking: Partitions) -> bool:
    """Whether the member may still read one of these; what it does not say, it may."""
    return owned is None or bool(owned & revoking)
