"""OffsetDelete: deletes a group's offsets of topics that its members do not read (KIP-496)."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result, log_refusal
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.groups.classic_group import ClassicGroup
from chaffinch.broker.core.groups.group_journal import Group
from chaffinch.broker.core.handlers.group_responses import NOT_WRITTEN
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from chaffinch.storage.file_system import StorageError


def handle(broker: BrokerState, event: RequestReceived, request: OffsetDeleteRequest, steady_ms: int) -> Result:
    group = broker.groups.find(request.group_id)
    code = _request_error(broker, event, request.group_id, group)
    if group is None or code is not codes.NONE:
        return OffsetDeleteResponse(error_code=code.number)
    subscribed = {topic.name for topic in request.topics if group.is_subscribed_to(topic.name)}
    deletable = {
        TopicPartition(topic.name, requested.partition_index)
        for topic in request.topics
        if topic.name not in subscribed
        for requested in topic.partitions
    }
    try:
        broker.offsets.forget(request.group_id, deletable.__contains__)
    except StorageError as error:
        log_refusal(broker, event, steady_ms, subject=f"group {request.group_id!r}", code=NOT_WRITTEN, reason=str(error))
        return OffsetDeleteResponse(error_code=NOT_WRITTEN.number)
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=requested.partition_index,
                        error_code=_result_code(broker, TopicPartition(topic.name, requested.partition_index), subscribed).number,
                    )
                    for requested in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _request_error(broker: BrokerState, event: RequestReceived, group_id: str, group: Group | None) -> ErrorCode:
    """24, 16, 69; 68 for a group with members whose subscriptions the broker does not know."""
    if not group_id:
        return codes.INVALID_GROUP_ID
    if not broker.is_coordinator(event.node_id, group_id):
        return codes.NOT_COORDINATOR
    if group is None:
        return codes.GROUP_ID_NOT_FOUND
    if isinstance(group, ClassicGroup) and not group.is_empty and not group.uses_consumer_protocol:
        return codes.NON_EMPTY_GROUP
    return codes.NONE


def _result_code(broker: BrokerState, tp: TopicPartition, subscribed: set[str]) -> ErrorCode:
    if broker.topics.partition(*tp) is None:
        return codes.UNKNOWN_TOPIC_OR_PARTITION
    return codes.GROUP_SUBSCRIBED_TO_TOPIC if tp.topic in subscribed else codes.NONE
