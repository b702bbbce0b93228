"""CreateTopics: each topic on its own, refused with the reason, or created at once with its logs; too many at once are refused together."""

from __future__ import annotations

from collections import Counter

from chaffinch.broker.core.broker_state import BrokerState, Result, refuse
from chaffinch.broker.core.configs import entries as config_entries
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.refusal import RequestRefused, refusal_of
from chaffinch.broker.core.topics import creation_rules
from chaffinch.broker.core.topics.registry import CreatedTopic
from chaffinch.errors import codes
from chaffinch.identifiers import counted
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
        refuse(broker, event, steady_ms, place=counted(len(request.topics), "topic"), code=refused.code, reason=refused.message)
        return CreateTopicsResponse(topics=[_refused(topic.name, refused) for topic in request.topics])
    results = []
    for asked in {topic.name: topic for topic in request.topics}.values():
        try:
            if times_named[asked.name] > 1:
                raise RequestRefused(codes.INVALID_REQUEST, f"topic {asked.name!r} is named {times_named[asked.name]} times in one request")
            results.append(_result(broker, _create(broker, asked, request.validate_only, steady_ms)))
        except (RequestRefused, StorageError) as error:
            failed = refusal_of(error, f"topic {asked.name}")
            refuse(broker, event, steady_ms, place=asked.name, code=failed.code, reason=failed.logged)
            results.append(_refused(asked.name, failed))
    return CreateTopicsResponse(topics=results)


def _partitions_wanted(broker: BrokerState, request: CreateTopicsRequest, times_named: Counter[str]) -> int:
    """Counted as by Apache Kafka: before it is known which topics can be created, but for those that are refused by their name alone."""
    count = 0
    for asked in request.topics:
        if times_named[asked.name] > 1 or asked.name == creation_rules.CLUSTER_METADATA:
            continue
        default = broker.settings["num.partitions"] if asked.num_partitions == -1 else 0
        count += len(asked.assignments) or default or max(0, asked.num_partitions)
    return count


def _create(broker: BrokerState, asked: CreatableTopic, validate_only: bool, steady_ms: int) -> CreatedTopic:
    if asked.name == creation_rules.CLUSTER_METADATA:
        raise RequestRefused(codes.TOPIC_AUTHORIZATION_FAILED, f"topic {asked.name!r} is the cluster's own and cannot be created")
    # What is wrong with the name or the options is told first, as by Apache Kafka.
    overrides = _overrides(asked)
    broker.topics.check_name(asked.name)
    broker.topics.check_config(overrides)
    if asked.assignments and (asked.num_partitions != -1 or asked.replication_factor != -1):
        raise RequestRefused(codes.INVALID_REQUEST, "replica assignments exclude a number of partitions and a replication factor")
    created = broker.topics.create(
        asked.name,
        partition_count=asked.num_partitions,
        replication_factor=asked.replication_factor,
        overrides=overrides,
        assignment=_assignment(asked),
        steady_ms=steady_ms,
        validate_only=validate_only,
    )
    if not validate_only:
        broker.say_without_effect(asked.name, created.topic.overrides)
    return created


def _overrides(asked: CreatableTopic) -> dict[str, str]:
    overrides: dict[str, str] = {}
    for config in asked.configs:
        if config.value is None:
            raise RequestRefused(codes.INVALID_CONFIG, f"topic option {config.name} has no value")
        if config.name in overrides:
            raise RequestRefused(codes.INVALID_REQUEST, f"topic option {config.name} is given twice")
        overrides[config.name] = config.value
    return overrides


def _assignment(asked: CreatableTopic) -> list[list[int]] | None:
    if not asked.assignments:
        return None
    by_index = {assignment.partition_index: assignment.broker_ids for assignment in asked.assignments}
    if sorted(by_index) != list(range(len(asked.assignments))):
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
