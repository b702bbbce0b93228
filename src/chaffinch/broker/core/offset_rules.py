"""What a group's offset must be like to be committed; shared by OffsetCommit and TxnOffsetCommit."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import TopicPartition


def request_fault(broker: BrokerState, node_id: int, group: str, generation: int, member: str) -> ErrorCode:
    """What refuses all offsets of a request: 16, 24; 22 and 25 for members, because groups have no members here."""
    if not group:
        return codes.INVALID_GROUP_ID
    if not broker.is_coordinator(node_id, group):
        return codes.NOT_COORDINATOR
    if member:
        return codes.UNKNOWN_MEMBER_ID
    return codes.ILLEGAL_GENERATION if generation >= 0 else codes.NONE


def partition_fault(broker: BrokerState, place: TopicPartition, metadata: str | None) -> ErrorCode:
    """What refuses one offset: 3, 12."""
    if broker.topics.partition(*place) is None:
        return codes.UNKNOWN_TOPIC_OR_PARTITION
    if metadata is not None and len(metadata.encode()) > broker.settings["offset.metadata.max.bytes"]:
        return codes.OFFSET_METADATA_TOO_LARGE
    return codes.NONE
