"""CreateTopics: creates topics with their logs; each topic succeeds or fails separately. Too many partitions in one request refuse all of
them.
"""

from __future__ import annotations

from collections import Counter

from chaffinch.broker.core.broker_state import BrokerState, Result, log_refusal
from chaffinch.broker.core.configs import entries as config_entries
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.refusal import RequestRefused, to_refusal
from chaffinch.broker.core.topics import creation_rules
from chaffinch.broker.core.topics.registry import CreatedTopic
from chaffinch.errors import codes
from chaffinch.identifiers import pluralize
from chaffinch.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from chaffinch.storage.file_system import StorageError


def handle(broker: BrokerState, event: RequestReceived, request: CreateTopicsRequest, steady_ms: int) -> Result:
    times_named = Counter(topic.name for topic in request.topics)
    try:
        creation_rules.check_partitions(_partitions_wanted(broker, request, times_named))
    except RequestRefused as refused:
        log_refusal(broker, event, steady_ms, subject=pluralize(len(request.topics), "topic"), code=refused.code, reason=refused.message)
        return CreateTopicsResponse(topics=[_refused(topic.name, refused) for topic in request.topics])
    results = []
    for requested in {topic.name: topic for topic in request.topics}.values():
        try:
            if times_named[requested.name] > 1:
                raise RequestRefused(
                    codes.INVALID_REQUEST, f"topic {requested.name!r} is named {times_named[requested.name]} times in one request"
                )
            results.append(_result(broker, _create(broker, requested, request.validate_only, steady_ms)))
        except (RequestRefused, StorageError) as error:
            failed = to_refusal(error, f"topic {requested.name}")
            log_refusal(broker, event, steady_ms, subject=requested.name, code=failed.code, reason=failed.logged)
            results.append(_refused(requested.name, failed))
    return CreateTopicsResponse(topics=results)


def _partitions_wanted(broker: BrokerState, request: CreateTopicsRequest, times_named: Counter[str]) -> int:
    """Number of new partitions, counted as by Apache Kafka: before the topics are validated, except for those refused by name alone."""
    count = 0
    for requested in request.topics:
        if times_named[requested.name] > 1 or requested.name == creation_rules.CLUSTER_METADATA:
            continue
        default = broker.settings["num.partitions"] if requested.num_partitions == -1 else 0
        count += len(requested.assignments) or default or max(0, requested.num_partitions)
    return count


def _create(broker: BrokerState, requested: CreatableTopic, validate_only: bool, steady_ms: int) -> CreatedTopic:
    if requested.name == creation_rules.CLUSTER_METADATA:
        raise RequestRefused(codes.TOPIC_AUTHORIZATION_FAILED, f"topic {requested.name!r} is internal to the cluster and cannot be created")
    # Errors in the name or options are reported first, as by Apache Kafka.
    overrides = _overrides(requested)
    broker.topics.check_name(requested.name)
    broker.topics.validate_options(overrides)
    if requested.assignments and (requested.num_partitions != -1 or requested.replication_factor != -1):
        raise RequestRefused(codes.INVALID_REQUEST, "replica assignments cannot be combined with partition counts or replication factors")
    created = broker.topics.create(
        requested.name,
        partition_count=requested.num_partitions,
        replication_factor=requested.replication_factor,
        overrides=overrides,
        assignment=_assignment(requested),
        steady_ms=steady_ms,
        validate_only=validate_only,
    )
    if not validate_only:
        broker.log_options_without_effect(requested.name, created.topic.overrides)
    return created


def _overrides(requested: CreatableTopic) -> dict[str, str]:
    overrides: dict[str, str] = {}
    for config in requested.configs:
        if config.value is None:
            raise RequestRefused(codes.INVALID_CONFIG, f"topic option {config.name} has no value")
        if config.name in overrides:
            raise RequestRefused(codes.INVALID_REQUEST, f"topic option {config.name} is given twice")
        overrides[config.name] = config.value
    return overrides


def _assignment(requested: CreatableTopic) -> list[list[int]] | None:
    if not requested.assignments:
        return None
    by_index = {assignment.partition_index: assignment.broker_ids for assignment in requested.assignments}
    if sorted(by_index) != list(range(len(requested.assignments))):
        raise RequestRefused(codes.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered 0, 1, 2, ... without gaps or repetitions")
    return [by_index[index] for index in range(len(by_index))]


def _result(broker: BrokerState, created: CreatedTopic) -> CreatableTopicResult:
    topic = created.topic
    entries = config_entries.topic_entries(topic.overrides, broker.settings)
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        num_partitions=created.partition_count,
        replication_factor=created.replication_factor,
        configs=[
            CreatableTopicConfigs(name=entry.name, value=topic.overrides.get(entry.name, entry.value), config_source=entry.source)
            for entry in entries
        ],
    )


def _refused(name: str, refused: RequestRefused) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=refused.code.number, error_message=refused.message, configs=[])
