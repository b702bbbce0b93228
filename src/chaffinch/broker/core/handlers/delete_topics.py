"""DeleteTopics: by name, and since version 6 by id."""

from __future__ import annotations

from uuid import UUID

from chaffinch.broker.core.broker_state import BrokerState, Result, refuse
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.errors import codes
from chaffinch.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from chaffinch.storage.file_system import StorageError

VERSION_WITH_IDS = 6
NO_ID = UUID(int=0)


def handle(broker: BrokerState, event: RequestReceived, now_ms: int, fault: Fault | None) -> Result:
    request = event.request.message
    assert isinstance(request, DeleteTopicsRequest)
    if event.request.version >= VERSION_WITH_IDS:
        asked = [(state.name, state.topic_id) for state in request.topics]
    else:
        asked = [(name, NO_ID) for name in request.topic_names]
    return DeleteTopicsResponse(responses=[_delete(broker, event, name, topic_id, now_ms) for name, topic_id in asked])


def _delete(broker: BrokerState, event: RequestReceived, name: str | None, topic_id: UUID, now_ms: int) -> DeletableTopicResult:
    topic = broker.topics.get(name) if name is not None else broker.topics.by_id(topic_id)
    result = DeletableTopicResult(name=name if topic is None else topic.name, topic_id=topic_id if topic is None else topic.topic_id)
    try:
        if not broker.settings["delete.topic.enable"]:
            raise RequestRefused(codes.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
        if topic is None:
            code = codes.UNKNOWN_TOPIC_ID if name is None else codes.UNKNOWN_TOPIC_OR_PARTITION
            raise RequestRefused(code, f"topic {name if name is not None else topic_id} does not exist")
        broker.grown.extend(topic.partitions)  # Fetches that wait for them are to hear that they are gone.
        broker.topics.delete(topic.name)
        broker.counters.forget(topic.name)
        broker.offsets.forget_topic(topic.name)
    except RequestRefused as refused:
        result.error_code, result.error_message = refused.code.number, refused.message
    except StorageError as error:
        result.error_code, result.error_message = codes.KAFKA_STORAGE_ERROR.number, str(error)
    if result.error_code:
        code = codes.by_number(result.error_code)
        refuse(broker, event, now_ms, place=result.name or topic_id, code=code, reason=result.error_message or "")
    return result
