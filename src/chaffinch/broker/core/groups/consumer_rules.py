"""ConsumerGroupHeartbeat: the rules of KIP-848. A member reports what changed and receives its assignment.

Each heartbeat may raise the group epoch (a subscription or a topic changed); it then computes a new target assignment and moves the
member one step towards it. Follows Apache Kafka's GroupMetadataManager. Changes are written to the journal before the response.

In a step ("Member Reconciliation") a member first revokes the partitions that are not in its target and confirms that; then it receives the
partitions that others have revoked. No partition ever has two owners. Follows Apache Kafka's CurrentAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from chaffinch.broker.core.groups.assignors import ASSIGNORS, Partitions, TopicIdPartition
from chaffinch.broker.core.groups.classic_group import Client
from chaffinch.broker.core.groups.consumer_group import MEMBER_BYTES, NO_PARTITIONS, Change, ConsumerGroup, ConsumerMember, MemberState
from chaffinch.broker.core.groups.consumer_subscriptions import SubscribedTopics
from chaffinch.broker.core.groups.context import GroupContext, TimerKey, TimerKind
from chaffinch.broker.core.groups.group_journal import GroupJournal
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.errors import codes
from chaffinch.protocol.messages.consumer_group_heartbeat import (
    EPOCH_JOIN,
    EPOCH_LEAVE_FOR_A_WHILE,
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from chaffinch.protocol.messages.leave_group import MemberIdentity


@dataclass(slots=True)
class _Step:
    """A heartbeat being processed: the member before and after, and the change of the group."""

    before: ConsumerMember
    member: ConsumerMember
    change: Change

    def members_of(self, group: ConsumerGroup) -> dict[str, ConsumerMember]:
        """All members of the group, with the new version of this one. Computed only when needed: most heartbeats change nothing."""
        members = {name: member for name, member in group.members.items() if name not in self.change.members}
        members[self.member.member_id] = self.member
        return members


class ConsumerRules:
    """Processes heartbeats. Refusals are raised as RequestRefused, file errors as StorageError; then nothing has changed."""

    def __init__(self, context: GroupContext, journal: GroupJournal, topics: SubscribedTopics) -> None:
        self._context = context
        self._journal = journal
        self._topics = topics

    # Heartbeats -----------------------------------------------------------------------------------------------------------------------

    def heartbeat(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, client: Client, steady_ms: int
    ) -> ConsumerGroupHeartbeatResponse:
        """Handle the heartbeat of a new or existing member. The request's fields are already validated."""
        owned = owned_partitions(request)
        before, change = self._member(group, request, owned, client)
        step = _Step(before=before, member=_subscribed(before, request, client), change=change)
        self._topics.check_pattern(step.member.pattern)
        self._update_topics(group, step)
        self._set_target(group, step)
        target = _target(group, step.change, step.member.member_id)
        step.member = next_step(step.member, step.change.assignment_epoch, target, owned, group.owners)
        if step.member != group.members.get(step.member.member_id):
            step.change.members[step.member.member_id] = step.member
        self._apply(group, step.change)
        group.topics_version = self._topics.version
        self._set_timers(group, step, steady_ms)
        return self._answer(request, step)

    def _member(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, owned: Partitions | None, client: Client
    ) -> tuple[ConsumerMember, Change]:
        """The member that sent the heartbeat, and the resulting change: a returning static member replaces its former self."""
        change = group.change()
        is_joining = request.member_epoch == EPOCH_JOIN
        self._check_capacity(group, request)
        member_id = request.member_id or self._context.new_id()
        if request.instance_id is None:
            member = group.members.get(member_id)
            if member is None and is_joining:
                return ConsumerMember(member_id=member_id, client=client), change
            if member is None:
                raise RequestRefused(codes.UNKNOWN_MEMBER_ID, f"{member_id!r} is not a member of group {group.group_id!r}")
            _check_epoch(member, request.member_epoch, owned)
            return member, change
        return self._static_member(group, request, member_id, owned, client, change), change

    def _check_capacity(self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> None:
        """81: the group is full, or the memory limit of all groups and members is reached."""
        is_known = request.member_id in group.members or request.instance_id in group.static_members
        if not is_known and len(group.members) >= self._context.settings["group.consumer.max.size"]:
            raise RequestRefused(codes.GROUP_MAX_SIZE_REACHED, f"the group already has {len(group.members)} members")
        size_bytes = sum(100 + len(name) for name in request.subscribed_topic_names or ()) + len(request.subscribed_topic_regex or "")
        if not is_known and request.member_epoch == EPOCH_JOIN:
            size_bytes += MEMBER_BYTES if group.epoch else MEMBER_BYTES + group.size_bytes
        if size_bytes and not self._context.memory.has_capacity(size_bytes):
            raise RequestRefused(codes.GROUP_MAX_SIZE_REACHED, "the memory limit of all groups and their members is reached")

    def _static_member(
        self,
        group: ConsumerGroup,
        request: ConsumerGroupHeartbeatRequest,
        member_id: str,
        owned: Partitions | None,
        client: Client,
        change: Change,
    ) -> ConsumerMember:
        instance_id = request.instance_id or ""
        current = group.static_members.get(instance_id)
        if request.member_epoch != EPOCH_JOIN:
            member = static_member(group, instance_id, member_id)
            _check_epoch(member, request.member_epoch, owned)
            return member
        if current is None:
            return group.members.get(member_id) or ConsumerMember(member_id=member_id, client=client, instance_id=instance_id)
        former = group.members[current]
        if current == member_id and not former.has_left_for_a_while:
            _check_epoch(former, request.member_epoch, owned)
            return former
        if not former.has_left_for_a_while:
            raise RequestRefused(
                codes.UNRELEASED_INSTANCE_ID, f"instance {instance_id!r} is member {former.member_id!r}, which has not left"
            )
        change.members[current] = None
        change.targets[current] = None
        change.targets[member_id] = group.targets.get(current, frozenset())
        self._context.timers.cancel(TimerKey(group.group_id, TimerKind.SESSION, current))
        return replace(former, member_id=member_id, epoch=0, previous_epoch=0, state=MemberState.STABLE)

    def _update_topics(self, group: ConsumerGroup, step: _Step) -> None:
        """Raise the group epoch if subscriptions or the subscribed topics changed."""
        is_new = step.member.member_id not in group.members and not step.change.members
        has_changed = is_new or (step.before.topics, step.before.pattern) != (step.member.topics, step.member.pattern)
        if not has_changed and group.topics_version == self._topics.version:
            return
        changes = step.change.members | {step.member.member_id: step.member}
        step.change.topics = self._topics.of(group.subscriptions.after(group.members, changes))
        if has_changed or step.change.topics != group.topics:
            step.change.epoch = group.epoch + 1

    def _set_target(self, group: ConsumerGroup, step: _Step) -> None:
        """Compute a new target assignment if the current one is older than the group epoch."""
        if step.change.epoch <= step.change.assignment_epoch:
            return
        names: tuple[str, ...] = self._context.settings["group.consumer.assignors"]
        members = step.members_of(group)
        assign = ASSIGNORS[group.preferred_assignor(members, names)]
        previous = {name: _target(group, step.change, name) for name in members}
        counts = {topic.topic_id: topic.partition_count for topic in step.change.topics.values()}
        in_order = sorted(members.values(), key=lambda member: member.instance_id or member.member_id)
        subscriptions = self._topics.ids_of(in_order, step.change.topics)
        for member_id, target in assign(subscriptions, counts, previous).items():
            if group.targets.get(member_id) != target:
                step.change.targets[member_id] = target
        step.change.assignment_epoch = step.change.epoch

    def _apply(self, group: ConsumerGroup, change: Change) -> None:
        self._journal.put_change(group, change)
        group.apply(change)

    def _set_timers(self, group: ConsumerGroup, step: _Step, steady_ms: int) -> None:
        member, timers = step.member, self._context.timers
        session_ms = self._context.configs.session_timeout_ms(group.group_id)
        timers.schedule(TimerKey(group.group_id, TimerKind.SESSION, member.member_id), steady_ms + session_ms)
        key = TimerKey(group.group_id, TimerKind.REVOCATION, member.member_id)
        if member.state is not MemberState.UNREVOKED:
            timers.cancel(key)
        elif (member.state, member.revoking) != (step.before.state, step.before.revoking) or timers.get(key) is None:
            timers.schedule(key, steady_ms + member.rebalance_timeout_ms)

    def _answer(self, request: ConsumerGroupHeartbeatRequest, step: _Step) -> ConsumerGroupHeartbeatResponse:
        """The heartbeat response. It contains the assignment if it changed, or if the member sent all its fields."""
        is_full = request.member_epoch == EPOCH_JOIN or (
            request.rebalance_timeout_ms != -1
            and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
            and request.topic_partitions is not None
        )
        assignment = None
        if is_full or step.member.assigned != step.before.assigned:
            assignment = Assignment(topic_partitions=_by_topic(step.member.assigned))
        return ConsumerGroupHeartbeatResponse(
            member_id=step.member.member_id,
            member_epoch=step.member.epoch,
            heartbeat_interval_ms=self._context.configs.heartbeat_interval_ms(request.group_id),
            assignment=assignment,
        )

    # Removing members -------------------------------------------------------------------------------------------------------------------

    def leave(self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        """A member leaves: permanently (-1), or temporarily (-2): its partitions then stay reserved until its session ends."""
        member = _member_named(group, request.member_id, request.instance_id)
        if request.member_epoch == EPOCH_LEAVE_FOR_A_WHILE:
            change = group.change()
            # The returning instance starts at epoch 0. Nothing is left to revoke, so there is no revocation timeout either.
            change.members[member.member_id] = replace(
                member,
                epoch=EPOCH_LEAVE_FOR_A_WHILE,
                state=MemberState.STABLE,
                revoking=frozenset(),
                since=dict.fromkeys(member.assigned, 0),
            )
            self._apply(group, change)
        else:
            self.remove(group, member.member_id)
        return ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)

    def evict(self, group: ConsumerGroup, identity: MemberIdentity) -> None:
        """Remove a member by LeaveGroup, as admin tools do for both protocols; a static member may be named by its instance id alone."""
        instance_id = identity.group_instance_id
        member_id = identity.member_id or group.static_members.get(instance_id or "", "")
        self.remove(group, _member_named(group, member_id, instance_id).member_id)

    def remove(self, group: ConsumerGroup, member_id: str) -> None:
        """Remove a member. The next heartbeat computes the new target assignment."""
        change = group.change()
        change.epoch += 1
        change.members[member_id] = None
        change.targets[member_id] = None
        change.topics = self._topics.of(group.subscriptions.after(group.members, change.members))
        self._apply(group, change)
        for kind in (TimerKind.SESSION, TimerKind.REVOCATION):
            self._context.timers.cancel(TimerKey(group.group_id, kind, member_id))


def _target(group: ConsumerGroup, change: Change, member_id: str) -> Partitions:
    """The member's target assignment, including the change."""
    changed = change.targets.get(member_id)
    return group.targets.get(member_id, frozenset()) if changed is None else changed


def _subscribed(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest, client: Client) -> ConsumerMember:
    """The member updated with the fields of the request."""
    names, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
    return replace(
        member,
        client=client,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms,
        topics=member.topics if names is None else frozenset(names),
        pattern=member.pattern if pattern is None else pattern,
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
    )


def _member_named(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    """Find a member. 25: unknown member; 82: the instance id belongs to another member."""
    if instance_id is not None:
        return static_member(group, instance_id, member_id)
    member = group.members.get(member_id)
    if member is None:
        raise RequestRefused(codes.UNKNOWN_MEMBER_ID, f"{member_id!r} is not a member of group {group.group_id!r}")
    return member


def static_member(group: ConsumerGroup, instance_id: str, member_id: str) -> ConsumerMember:
    """Find the static member of an instance id. 25: unknown instance; 82: it belongs to another member."""
    current = group.static_members.get(instance_id)
    if current is None:
        raise RequestRefused(codes.UNKNOWN_MEMBER_ID, f"group {group.group_id!r} has no instance {instance_id!r}")
    if current != member_id:
        raise RequestRefused(codes.FENCED_INSTANCE_ID, f"instance {instance_id!r} is member {current!r} now")
    return group.members[current]


def _check_epoch(member: ConsumerMember, epoch: int, owned: Partitions | None) -> None:
    """Raises 110 (FENCED_MEMBER_EPOCH) unless the epoch is valid.

    Valid are: the current epoch; the previous epoch, if the response with the new one was lost; and 0, when a fenced member that gave up
    its partitions joins again under its id.
    """
    if epoch == EPOCH_JOIN:
        return
    is_previous = epoch < member.epoch and epoch == member.previous_epoch and owned is not None and owned <= member.assigned
    if epoch != member.epoch and not is_previous:
        raise RequestRefused(
            codes.FENCED_MEMBER_EPOCH,
            f"member {member.member_id!r} has epoch {member.epoch}, not {epoch}: it must release its partitions and join again",
        )


def owned_partitions(request: ConsumerGroupHeartbeatRequest) -> Partitions | None:
    """The partitions that the member owns according to its request; None if the request does not list them."""
    if request.topic_partitions is None:
        return None
    return frozenset(TopicIdPartition(topic.topic_id, index) for topic in request.topic_partitions for index in topic.partitions)


def _by_topic(partitions: Partitions) -> list[TopicPartitions]:
    found: dict[object, TopicPartitions] = {}
    for topic_id, index in sorted(partitions):
        found.setdefault(topic_id, TopicPartitions(topic_id=topic_id)).partitions.append(index)
    return list(found.values())


def next_step(
    member: ConsumerMember,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    owners: Mapping[TopicIdPartition, str],
) -> ConsumerMember:
    """The member after this heartbeat. `owned`: see `owned_partitions`."""
    if member.state is MemberState.UNREVOKED:
        if _holds(owned, member.revoking):
            return member
    elif member.is_reconciled_to(target_epoch):
        return member
    return _towards(member, target_epoch, target, owned, owners)


def _towards(
    member: ConsumerMember, target_epoch: int, target: Partitions, owned: Partitions | None, owners: Mapping[TopicIdPartition, str]
) -> ConsumerMember:
    """Move a member towards its target. Until it has revoked its surplus partitions it stays in its epoch, however often the target
    changes.
    """
    retained = member.assigned & target
    revoking = member.assigned - target
    if revoking and _holds(owned, revoking):
        return _at(member, member.epoch, MemberState.UNREVOKED, retained, revoking)
    wanted = target - retained
    free = frozenset(partition for partition in wanted if owners.get(partition, member.member_id) == member.member_id)
    state = MemberState.UNRELEASED if len(free) < len(wanted) else MemberState.STABLE
    return _at(member, target_epoch, state, retained | free, NO_PARTITIONS)


def _at(member: ConsumerMember, epoch: int, state: MemberState, assigned: Partitions, revoking: Partitions) -> ConsumerMember:
    since = {partition: member.since[partition] if partition in member.assigned else epoch for partition in assigned | revoking}
    return replace(member, epoch=epoch, previous_epoch=member.epoch, state=state, assigned=assigned, revoking=revoking, since=since)


def _holds(owned: Partitions | None, revoking: Partitions) -> bool:
    """Whether the member may still own one of these partitions; it may if it does not report its partitions."""
    return owned is None or bool(owned & revoking)
