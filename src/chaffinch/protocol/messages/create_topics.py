"""CreateTopics (key 19).

Versions 0-7. Version 1 adds validation without creation and error messages; 4 lets the broker choose partitions and replicas with -1
(KIP-464); 5 is the first flexible one and answers with the topic's configuration (KIP-525); 7 with its id (KIP-516).
"""

from __future__ import annotations

from uuid import UUID

from chaffinch.protocol.primitives import Array, Bool, Int8, Int16, Int32, String, Uuid
from chaffinch.protocol.schema import Message, wire


class CreatableReplicaAssignment(Message):
    """Replicas of one partition: broker ids, the preferred leader first."""

    partition_index: int = wire(Int32)
    broker_ids: list[int] = wire(Array(Int32))


class CreatableTopicConfig(Message):
    """One configuration; None is the default."""

    name: str = wire(String)
    value: str | None = wire(String, nullable_since=0)


class CreatableTopic(Message):
    """`num_partitions` and `replication_factor` are -1 with explicit assignments or, since version 4, for the broker's defaults."""

    name: str = wire(String)
    num_partitions: int = wire(Int32)
    replication_factor: int = wire(Int16)
    assignments: list[CreatableReplicaAssignment] = wire(Array(CreatableReplicaAssignment))
    configs: list[CreatableTopicConfig] = wire(Array(CreatableTopicConfig))


class CreateTopicsRequest(Message, api_key=19, versions=(0, 7), flexible_since=5):
    """Topics to create."""

    topics: list[CreatableTopic] = wire(Array(CreatableTopic))
    timeout_ms: int = wire(Int32, default=60_000)
    validate_only: bool = wire(Bool, since=1, essential=True)


class CreatableTopicConfigs(Message):
    """One configuration of the new topic; `config_source` as in DescribeConfigs."""

    name: str = wire(String, since=5)
    value: str | None = wire(String, since=5, nullable_since=5)
    read_only: bool = wire(Bool, since=5)
    config_source: int = wire(Int8, since=5, default=-1)
    is_sensitive: bool = wire(Bool, since=5)


class CreatableTopicResult(Message):
    """Result of one topic. `topic_config_error_code` is the reason if `configs` is None."""

    name: str = wire(String)
    topic_id: UUID = wire(Uuid, since=7)
    error_code: int = wire(Int16)
    error_message: str | None = wire(String, since=1, nullable_since=0, default=None)
    topic_config_error_code: int = wire(Int16, since=5, tag=0)
    num_partitions: int = wire(Int32, since=5, default=-1)
    replication_factor: int = wire(Int16, since=5, default=-1)
    configs: list[CreatableTopicConfigs] | None = wire(Array(CreatableTopicConfigs), since=5, nullable_since=5)


class CreateTopicsResponse(Message, api_key=19, versions=(0, 7), flexible_since=5):
    """One result per topic."""

    throttle_time_ms: int = wire(Int32, since=2)
    topics: list[CreatableTopicResult] = wire(Array(CreatableTopicResult))
