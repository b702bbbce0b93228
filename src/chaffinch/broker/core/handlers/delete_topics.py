"""DeleteTopics: deletes topics by name, and since version 6 by id."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from uuid import UUID

from chaffinch.broker.core.broker_state import BrokerState, Result, log_refusal
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.refusal import RequestRefused, disk_refusal
from chaffinch.broker.core.topics.registry import Topic
from chaffinch.errors import codes
from chaffinch.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.storage.file_system import StorageError

VERSION_WITH_DISABLED = 3
VERSION_WITH_IDS = 6


@dataclass(frozen=True, slots=True)
class _Requested:
    """A topic to delete, by name or by id. `fault`: the error in how it was named."""

    name: str | None
    topic_id: UUID
    topic: Topic | None
    fault: str | None = None


def handle(broker: BrokerState, event: RequestReceived, request: DeleteTopicsRequest, steady_ms: int) -> Result:
    if event.request.version >= VERSION_WITH_IDS:
        named = [_requested(broker, state.name, state.topic_id) for state in request.topics]
    else:
        named = [_requested(broker, name, ZERO_UUID) for name in request.topic_names]
    requested = _each_once(named)
    refusals = [_refusal(broker, event, one) for one in requested]
    responses = [_result(broker, event, one, refusal, steady_ms) for one, refusal in zip(requested, refusals, strict=True)]
    _forget_offsets(broker, steady_ms)
    return DeleteTopicsResponse(responses=responses)


def _requested(broker: BrokerState, name: str | None, topic_id: UUID) -> _Requested:
    if name is not None and topic_id != ZERO_UUID:
        return _Requested(name, topic_id, None, "a topic is named by its name or by its id, not by both")
    if name is None and topic_id == ZERO_UUID:
        return _Requested(name, topic_id, None, "a topic to delete needs a name or an id")
    return _Requested(name, topic_id, broker.topics.get(name) if name is not None else broker.topics.by_id(topic_id))


def _each_once(requested: list[_Requested]) -> list[_Requested]:
    """Keep each topic once; a topic that is named several times, by name or id, is refused."""

    def identity(one: _Requested) -> object:
        return (one.name, one.topic_id) if one.topic is None else one.topic.topic_id

    times_named = Counter(map(identity, requested))
    return [
        one if times_named[identity(one)] == 1 else replace(one, fault="the topic is named several times in one request")
        for one in {identity(one): one for one in requested}.values()
    ]


def _refusal(broker: BrokerState, event: RequestReceived, requested: _Requested) -> RequestRefused | None:
    """The reason why the topic may not be deleted."""
    if not broker.settings["delete.topic.enable"]:
        code = codes.TOPIC_DELETION_DISABLED if event.request.version >= VERSION_WITH_DISABLED else codes.INVALID_REQUEST
        return RequestRefused(code, "delete.topic.enable is false")
    if requested.fault is not None:
        return RequestRefused(codes.INVALID_REQUEST, requested.fault)
    if requested.topic is None:
        code = codes.UNKNOWN_TOPIC_ID if requested.name is None else codes.UNKNOWN_TOPIC_OR_PARTITION
        return RequestRefused(code, f"topic {requested.name if requested.name is not None else requested.topic_id} does not exist")
    return None


def _forget_offsets(broker: BrokerState, steady_ms: int) -> None:
    """Remove the offsets of the deleted topics: afterwards, because a topic whose deletion fails keeps its offsets.

    A failure here is not reported: no topic of the same name is created before the offsets are removed, neither in this process nor in the
    next.
    """
    try:
        broker.topics.sync()  # A partly failed deletion may not be on disk yet.
        broker.offsets.forget_deleted()
    except StorageError as error:
        broker.refusals.log_within_limit(f"offsets of deleted topics are removed later: {error}", steady_ms)


def _result(
    broker: BrokerState, event: RequestReceived, requested: _Requested, refusal: RequestRefused | None, steady_ms: int
) -> DeletableTopicResult:
    topic = requested.topic
    result = DeletableTopicResult(name=requested.name, topic_id=requested.topic_id)
    if topic is not None:
        result.name, result.topic_id = topic.name, topic.topic_id
        refusal = refusal or delete(broker, topic)
    if refusal is not None:
        result.error_code, result.error_message = refusal.code.number, refusal.message
        log_refusal(broker, event, steady_ms, subject=result.name or requested.topic_id, code=refusal.code, reason=refusal.logged)
    return result


def delete(broker: BrokerState, topic: Topic) -> RequestRefused | None:
    """Delete a topic. The caller syncs the deletion, and then removes the topic's offsets (`forget_deleted`)."""
    broker.grown.extend(topic.partitions)  # Waiting fetches of these partitions must be completed.
    try:
        broker.topics.delete(topic.name)
    except StorageError as error:
        return disk_refusal(f"topic {topic.name}", error)
    finally:
        if broker.topics.get(topic.name) is None:
            broker.offsets.mark_topic_deleted(topic.name)
    broker.counters.forget(topic.name)
    return None
