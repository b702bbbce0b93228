"""CreatePartitions: adds partitions to topics; each topic succeeds or fails separately (KIP-195).

Checks and error codes follow Apache Kafka, except for too many partitions in one request: there Apache Kafka returns UNKNOWN_SERVER_ERROR
for the affected topic.
"""

from __future__ import annotations

from collections import Counter

from chaffinch.broker.core.broker_state import BrokerState, Result, log_refusal
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.refusal import RequestRefused, to_refusal
from chaffinch.broker.core.topics import creation_rules
from chaffinch.errors import codes
from chaffinch.identifiers import pluralize
from chaffinch.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from chaffinch.storage.file_system import StorageError


def handle(broker: BrokerState, event: RequestReceived, request: CreatePartitionsRequest, steady_ms: int) -> Result:
    times_named = Counter(topic.name for topic in request.topics)
    try:
        creation_rules.check_partitions(_partitions_wanted(broker, request, times_named))
    except RequestRefused as refused:
        log_refusal(broker, event, steady_ms, subject=pluralize(len(request.topics), "topic"), code=refused.code, reason=refused.message)
        code, reason = refused.code.number, refused.message
        results = [CreatePartitionsTopicResult(name=requested.name, error_code=code, error_message=reason) for requested in request.topics]
        return CreatePartitionsResponse(results=results)
    results = []
    for requested in {topic.name: topic for topic in request.topics}.values():
        result = CreatePartitionsTopicResult(name=requested.name)
        try:
            if times_named[requested.name] > 1:
                raise RequestRefused(
                    codes.INVALID_REQUEST, f"topic {requested.name!r} is named {times_named[requested.name]} times in one request"
                )
            _create(broker, requested, request.validate_only, steady_ms)
        except (RequestRefused, StorageError) as error:
            failed = to_refusal(error, f"topic {requested.name}")
            result.error_code, result.error_message = failed.code.number, failed.message
            log_refusal(broker, event, steady_ms, subject=requested.name, code=failed.code, reason=failed.logged)
        results.append(result)
    return CreatePartitionsResponse(results=results)


def _partitions_wanted(broker: BrokerState, request: CreatePartitionsRequest, times_named: Counter[str]) -> int:
    """Number of new partitions in existing topics."""
    requested = [(one.count, broker.topics.get(one.name)) for one in request.topics if times_named[one.name] == 1]
    return sum(max(0, count - len(topic.partitions)) for count, topic in requested if topic is not None)


def _create(broker: BrokerState, requested: CreatePartitionsTopic, validate_only: bool, steady_ms: int) -> None:
    assignment = None if requested.assignments is None else [new.broker_ids for new in requested.assignments]
    broker.topics.create_partitions(
        requested.name, requested.count, assignment=assignment, steady_ms=steady_ms, validate_only=validate_only
    )
