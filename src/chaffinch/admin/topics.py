"""Topics: list, describe, create, add partitions, delete, like `kafka-topics`, with typed results."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from chaffinch.admin import configs, offsets
from chaffinch.admin.configs import ConfigEntry
from chaffinch.admin.many_brokers import PAUSE_MS
from chaffinch.client import response_errors
from chaffinch.client.arguments import checked_names
from chaffinch.client.sync_client import SyncClient, Target
from chaffinch.errors import ApiException, UnknownTopicOrPartitionException, codes, exception_for
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from chaffinch.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseTopic
from chaffinch.public_names import exported_from

NO_LEADER: Final = -1
BY_BROKER: Final = -1
"""Number of partitions or replicas: the broker's default."""
MIN_IN_SYNC: Final = "min.insync.replicas"
CHANGE_TIMEOUT_MS: Final = 30_000


@exported_from("chaffinch.admin")
class UnknownTopic(UnknownTopicOrPartitionException):
    """The topic is not in the cluster's list of topics. Do not retry: the name is wrong."""

    def __str__(self) -> str:
        return self.message


@exported_from("chaffinch.admin")
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDetails:
    """One partition.

    Attributes:
        partition: number of the partition, from 0.
        leader: node id; -1 without a leader.
        leader_epoch: epoch of the leader.
        replicas: node ids of all replicas, the preferred leader first.
        in_sync: node ids of the in-sync replicas.
        first_offset: first available offset; None if no leader returned it.
        end_offset: offset of the next record; None if no leader returned it.
    """

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    first_offset: int | None = None
    end_offset: int | None = None


@exported_from("chaffinch.admin")
@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic, as in metadata."""

    name: str
    topic_id: UUID
    is_internal: bool
    partitions: tuple[PartitionDetails, ...]

    @property
    def replication_factor(self) -> int:
        """Replicas of the first partition, as in Kafka's tools; 0 without partitions."""
        return len(self.partitions[0].replicas) if self.partitions else 0


@exported_from("chaffinch.admin")
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic with offsets and configurations. `warnings`: lines about a wrong configuration, each with the remedy."""

    topic: Topic
    configs: Mapping[str, ConfigEntry]
    warnings: tuple[str, ...]
    offsets_error: ApiException | None = None
    """Why offsets of partitions with a leader are unknown."""

    @property
    def unknown_count(self) -> int:
        """Number of partitions with a leader but without offsets."""
        return sum(part.leader != NO_LEADER and part.end_offset is None for part in self.topic.partitions)


def list_topics(client: SyncClient, *, node: Target = "any", timeout_ms: int | None = None) -> list[Topic]:
    """All topics by name, including internal ones.

    Args:
        client: client of `options.connect`.
        node: node id or address of the broker whose metadata is returned; `any` broker by default.
        timeout_ms: limit of the call; None: the client's timeout.
    """
    return _metadata(client, None, node, timeout_ms)


def find_topics(client: SyncClient, names: Iterable[str]) -> list[Topic]:
    """Topics by name.

    Args:
        client: client of `options.connect`.
        names: names of topics.

    Returns:
        The topics in the order of `names`, without duplicates.

    Raises:
        UnknownTopic: a topic does not exist; the message suggests the most similar name.
        TypeError: `names` is a single string.
    """
    wanted = checked_names(names)
    found = {topic.name: topic for topic in _metadata(client, wanted)}
    missing = [name for name in wanted if name not in found]
    if missing:
        raise _unknown(missing[0], [topic.name for topic in list_topics(client)])
    return [found[name] for name in wanted]


def describe_topics(client: SyncClient, names: Iterable[str] | None = None) -> list[TopicDescription]:
    """Describe topics with configurations and offsets.

    Args:
        client: client of `options.connect`.
        names: names of topics; None for all except internal ones.

    Raises:
        UnknownTopic: a topic does not exist; the message suggests the most similar name.
        TypeError: `names` is a single string.
    """
    found = [topic for topic in list_topics(client) if not topic.is_internal] if names is None else find_topics(client, names)
    entries = configs.describe_topic_configs(client, [topic.name for topic in found])
    with_offsets, error = _with_offsets(client, found)
    return [
        TopicDescription(topic=topic, configs=entries[topic.name], warnings=_warnings(topic, entries[topic.name]), offsets_error=error)
        for topic in with_offsets
    ]


def create_topic(
    client: SyncClient,
    name: str,
    *,
    partitions: int = BY_BROKER,
    replication_factor: int = BY_BROKER,
    config: Mapping[str, str] | None = None,
) -> None:
    """Create a topic.

    Args:
        client: client of `options.connect`.
        name: name of the topic: 1 to 249 letters, digits, '.', '_' and '-'.
        partitions: number of partitions; by default the broker's.
        replication_factor: number of replicas; by default the broker's.
        config: configuration values by name.

    Raises:
        TopicExistsException: a topic has the name.
        InvalidTopicException: the name is invalid.
        InvalidReplicationFactorException: there are not enough brokers.
        InvalidConfigurationException: a configuration value is invalid.
    """
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=[],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (config or {}).items()],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=CHANGE_TIMEOUT_MS)
    answer: CreateTopicsResponse = client.controller_request(request)
    response_errors.raise_for(answer)


def wait_for_topic(client: SyncClient, name: str) -> list[TopicDescription]:
    """Wait until a new topic is in the metadata of a broker, with a leader for each partition.

    Args:
        client: client of `options.connect`.
        name: name of the topic.

    Returns:
        A list of one description; at the timeout also one of a topic with partitions that have no leader.

    Raises:
        UnknownTopic: no broker knows the topic until the timeout.
    """
    deadline = client.deadline(None, f"waiting for topic {name!r}")
    while True:
        try:
            found = describe_topics(client, [name])
            if deadline.is_over or all(part.leader != NO_LEADER for part in found[0].topic.partitions):
                return found
        except UnknownTopic:
            if deadline.is_over:
                raise
        client.pause(PAUSE_MS, deadline)


def add_partitions(client: SyncClient, name: str, partitions: int, *, is_trial: bool = False) -> None:
    """Increase the number of partitions of a topic.

    Args:
        client: client of `options.connect`.
        name: name of the topic.
        partitions: the new total; it must be larger than the current one.
        is_trial: only validate the request.

    Raises:
        InvalidPartitionsException: the total is not larger than the current one.
        UnknownTopicOrPartitionException: the topic does not exist.
    """
    topic = CreatePartitionsTopic(name=name, count=partitions, assignments=None)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=CHANGE_TIMEOUT_MS, validate_only=is_trial)
    response_errors.raise_for(client.controller_request(request))


def delete_topics(client: SyncClient, names: Iterable[str]) -> None:
    """Delete topics with their records.

    Args:
        client: client of `options.connect`.
        names: names of the topics.

    Raises:
        ApiException: the error of the first topic that is rejected; other topics may have been deleted.
        TypeError: `names` is a single string.
    """
    wanted = checked_names(names)
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in wanted], topic_names=wanted, timeout_ms=CHANGE_TIMEOUT_MS)
    answer: DeleteTopicsResponse = client.controller_request(request)
    for found in answer.responses:
        if found.error_code:
            code = codes.by_number(found.error_code)
            reason = "it does not exist" if code is codes.UNKNOWN_TOPIC_OR_PARTITION else found.error_message or code.text
            raise exception_for(code, message=f"topic {found.name!r}: {reason}", api="DeleteTopics")


def partitions_of(topic: Topic) -> list[TopicPartition]:
    """The partitions of a topic, in the order of their numbers."""
    return [TopicPartition(topic.name, details.partition) for details in topic.partitions]


# Inside -------------------------------------------------------------------------------------------------------------------------------


def _metadata(client: SyncClient, names: list[str] | None, node: Target = "any", timeout_ms: int | None = None) -> list[Topic]:
    """The topics that exist. Unknown topics are left out; other codes are raised."""
    wanted = None if names is None else [MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
    answer: MetadataResponse = client.request(request, node, timeout_ms=timeout_ms)
    if answer.error_code and not answer.topics:  # A failed request is not an empty list. Only since version 13.
        response_errors.raise_for(answer)
    known = []
    for topic in answer.topics:
        code = codes.by_number(topic.error_code)
        if code is codes.UNKNOWN_TOPIC_OR_PARTITION:
            continue
        # A topic without a leader exists.
        if code not in (codes.NONE, codes.LEADER_NOT_AVAILABLE):
            raise exception_for(code, message=f"topic {topic.name!r}: {code.text}", api="Metadata")
        known.append(_topic(topic))
    return sorted(known, key=lambda topic: topic.name)


def _topic(topic: MetadataResponseTopic) -> Topic:
    partitions = [
        PartitionDetails(
            partition=found.partition_index,
            leader=found.leader_id,
            leader_epoch=found.leader_epoch,
            replicas=tuple(found.replica_nodes),
            in_sync=tuple(found.isr_nodes),
        )
        for found in topic.partitions
    ]
    return Topic(
        name=topic.name or "",
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(sorted(partitions, key=lambda details: details.partition)),
    )


def _unknown(name: str, known: list[str]) -> UnknownTopic:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"the nearest is {near[0]!r}" if near else "no topic has a name like it" if known else "the cluster has no topics"
    return UnknownTopic(f"topic {name!r} does not exist; {hint}", api="Metadata")


def _with_offsets(client: SyncClient, found: list[Topic]) -> tuple[list[Topic], ApiException | None]:
    """The topics with the offsets of their partitions. Without offsets the error is the reason."""
    led = [TopicPartition(topic.name, part.partition) for topic in found for part in topic.partitions if part.leader != NO_LEADER]
    if not led:
        return found, None
    try:
        client.refresh_metadata({partition.topic for partition in led})
        first, end = offsets.earliest(client, led), offsets.latest(client, led)
    except ApiException as error:
        # A leader was lost in the meantime: the rest of the description is still useful.
        return found, error
    known = [
        replace(
            topic,
            partitions=tuple(
                replace(part, first_offset=first.get(tp), end_offset=end.get(tp))
                for part in topic.partitions
                for tp in [TopicPartition(topic.name, part.partition)]
            ),
        )
        for topic in found
    ]
    return known, None


def _warnings(topic: Topic, entries: Mapping[str, ConfigEntry]) -> tuple[str, ...]:
    entry = entries.get(MIN_IN_SYNC)
    if entry is None or entry.value is None or not topic.partitions:
        return ()
    replicas = min(len(part.replicas) for part in topic.partitions)
    return mismatch_warning(topic.name, int(entry.value), replicas)


def mismatch_warning(topic: str, min_in_sync: int, replicas: int) -> tuple[str, ...]:
    """The warning of KIP-579 if `min.insync.replicas` exceeds the number of replicas; otherwise nothing."""
    if min_in_sync <= replicas:
        return ()
    counted = "1 replica" if replicas == 1 else f"{replicas} replicas"
    return (
        f"{MIN_IN_SYNC} is {min_in_sync} and topic {topic!r} has {counted}: writes with acks=all can never succeed (KIP-579); "
        f"set {MIN_IN_SYNC} to {replicas} or less, or give the topic {min_in_sync} replicas",
    )
