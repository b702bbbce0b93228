"""ConsumerGroupDescribe: describes KIP-848 groups, their members, and current and target assignments."""

from __future__ import annotations

from uuid import UUID

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.groups.assignors import Partitions
from chaffinch.broker.core.groups.consumer_group import NO_PARTITIONS, ConsumerGroup, ConsumerMember
from chaffinch.broker.core.groups.coordinator import not_a_consumer_group
from chaffinch.broker.core.response_size_limit import ResponseSizeLimit
from chaffinch.errors import codes
from chaffinch.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedMember,
    DescribedTopicPartitions,
)

CONSUMER_MEMBER = 1
DEAD = "Dead"


def handle(broker: BrokerState, event: RequestReceived, request: ConsumerGroupDescribeRequest, steady_ms: int) -> Result:
    size_limit = ResponseSizeLimit(broker.settings)
    groups = [size_limit.add(_group(broker, event, group_id, size_limit)) for group_id in dict.fromkeys(request.group_ids)]
    return ConsumerGroupDescribeResponse(groups=groups)


def _group(broker: BrokerState, event: RequestReceived, group_id: str, size_limit: ResponseSizeLimit) -> DescribedConsumerGroup:
    if not group_id:
        return DescribedConsumerGroup(group_id=group_id, error_code=codes.INVALID_GROUP_ID.number)
    if not broker.is_coordinator(event.node_id, group_id):
        return DescribedConsumerGroup(group_id=group_id, error_code=codes.NOT_COORDINATOR.number)
    group = broker.groups.find(group_id)
    if not isinstance(group, ConsumerGroup):
        message = not_a_consumer_group(group_id, group)
        return DescribedConsumerGroup(group_id=group_id, error_code=codes.GROUP_ID_NOT_FOUND.number, error_message=message)
    return DescribedConsumerGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor(group.members, broker.settings["group.consumer.assignors"]),
        members=[size_limit.add(_member(broker, group, member, size_limit)) for member in group.members.values()],
    )


def _member(broker: BrokerState, group: ConsumerGroup, member: ConsumerMember, size_limit: ResponseSizeLimit) -> DescribedMember:
    return DescribedMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client.client_id,
        client_host=member.client.host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.pattern or "",
        assignment=_assignment(broker, member.assigned, size_limit),
        target_assignment=_assignment(broker, group.targets.get(member.member_id, NO_PARTITIONS), size_limit),
        member_type=CONSUMER_MEMBER,
    )


def _assignment(broker: BrokerState, partitions: Partitions, size_limit: ResponseSizeLimit) -> DescribedAssignment:
    """An assignment by topic, without partitions of deleted topics."""
    found: dict[UUID, DescribedTopicPartitions] = {}
    for topic_id, index in sorted(partitions):
        topic = broker.topics.by_id(topic_id)
        if topic is not None:
            if topic_id not in found:
                found[topic_id] = size_limit.add(DescribedTopicPartitions(topic_id=topic_id, topic_name=topic.name))
            found[topic_id].partitions.append(index)
    return DescribedAssignment(topic_partitions=list(found.values()))
