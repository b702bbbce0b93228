"""The answers of the groups' APIs that say nothing but an error, for fault scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chaffinch.protocol.messages import (
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_delete,
    sync_group,
)
from chaffinch.protocol.schema import Message


def _describe(request: describe_groups.DescribeGroupsRequest, number: int) -> Message:
    groups = [describe_groups.DescribedGroup(error_code=number, group_id=group) for group in request.groups]
    return describe_groups.DescribeGroupsResponse(groups=groups)


def _consumer_describe(request: consumer_group_describe.ConsumerGroupDescribeRequest, number: int) -> Message:
    groups = [consumer_group_describe.DescribedConsumerGroup(error_code=number, group_id=group) for group in request.group_ids]
    return consumer_group_describe.ConsumerGroupDescribeResponse(groups=groups)


def _delete(request: delete_groups.DeleteGroupsRequest, number: int) -> Message:
    results = [delete_groups.DeletableGroupResult(group_id=group, error_code=number) for group in request.groups_names]
    return delete_groups.DeleteGroupsResponse(results=results)


def _join(request: join_group.JoinGroupRequest, number: int) -> Message:
    return join_group.JoinGroupResponse(error_code=number, member_id=request.member_id)


ANSWERS: Mapping[str, Callable[[Any, int], Message]] = {
    "JoinGroup": _join,
    "SyncGroup": lambda _, number: sync_group.SyncGroupResponse(error_code=number),
    "Heartbeat": lambda _, number: heartbeat.HeartbeatResponse(error_code=number),
    "LeaveGroup": lambda _, number: leave_group.LeaveGroupResponse(error_code=number),
    "DescribeGroups": _describe,
    "ListGroups": lambda _, number: list_groups.ListGroupsResponse(error_code=number),
    "DeleteGroups": _delete,
    "OffsetDelete": lambda _, number: offset_delete.OffsetDeleteResponse(error_code=number),
    "ConsumerGroupHeartbeat": lambda _, number: consumer_group_heartbeat.ConsumerGroupHeartbeatResponse(error_code=number),
    "ConsumerGroupDescribe": _consumer_describe,
}
"""By the API's name: (request, number of the error) -> answer."""
