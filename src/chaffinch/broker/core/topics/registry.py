"""Topic registry: topics with their partitions, logs and configuration, stored in the cluster journal.

A topic exists once its journal entry is written, which happens after its log directories are created. It is deleted once its entry is
removed, which happens before its directories are removed. Directory names contain the topic id, so data of a deleted topic never appears in
a new topic of the same name.

Refusals are raised as RequestRefused with Kafka's error code and the reason, file errors as StorageError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.broker.core.replicas.declared_replicas import DeclaredNodes, Replicas
from chaffinch.broker.core.topics import creation_rules
from chaffinch.broker.core.topics.topic_options import TOPIC_OPTIONS, TopicConfig, record_validation_policy, resolve, validate_topic_options
from chaffinch.errors import ConfigException, codes
from chaffinch.identifiers import TopicPartition, pluralize
from chaffinch.records.validation_policy import ValidationPolicy
from chaffinch.storage.contents import Contents
from chaffinch.storage.file_system import FileSystem, MissingLog, StorageError
from chaffinch.storage.files import sync_directories
from chaffinch.storage.journal import Journal
from chaffinch.storage.partition_log import PartitionLog
from chaffinch.storage.wall_time import WallTime

PARTITIONS_MAX = 100_000
"""Limit of partitions of one topic; a request for more is assumed to be a mistake."""

VERIFY_BYTES_MAX = 64 << 20
"""Bytes of log data whose CRCs are verified at startup, of all logs together, so that many logs start as fast as one."""

LOGS = "logs"
"""Directory of all partition logs."""

DIRECTORY_NAME_LENGTH_MAX = 222
"""Characters of the topic name in its directory name: with the id that is 255, the limit of file systems. The id distinguishes truncated
names."""

ACCEPT_LOSS = "accept.data.loss"
"""Broker option that accepts missing files or records."""

_OF_A_TOPIC = re.compile(r"\.[0-9a-f]{32}$")

_TOPIC_PREFIX = b"topic/"
_DELETING_PREFIX = b"deleting/"

ResolvedTopics: TypeAlias = dict[frozenset[tuple[str, str]], TopicConfig]
"""Keyed by the options set on a topic."""


class RandomSource(Protocol):
    """The methods of `random.Random` that the core needs; the simulation passes a seeded one."""

    def getrandbits(self, k: int, /) -> int: ...
    def randrange(self, stop: int, /) -> int: ...


@dataclass(slots=True, kw_only=True, eq=False)
class Partition:
    """One partition: its log, its replicas, and the topic data that the append path needs."""

    topic_partition: TopicPartition
    topic: Topic
    replicas: Replicas
    log: PartitionLog
    policy: ValidationPolicy


@dataclass(slots=True, kw_only=True, eq=False)
class Topic:
    """One topic. `overrides`: the options set on it, as given; `config`: the resolved options."""

    name: str
    topic_id: UUID
    overrides: dict[str, str]
    config: TopicConfig
    partitions: list[Partition] = field(default_factory=list)

    @property
    def is_internal(self) -> bool:
        return self.name in creation_rules.INTERNAL

    @property
    def directory(self) -> str:
        return f"{LOGS}/{self.name[:DIRECTORY_NAME_LENGTH_MAX]}.{self.topic_id.hex}"


class CreatedTopic(NamedTuple):
    """A topic that was created, or would be with `validate_only`."""

    topic: Topic
    partition_count: int
    replication_factor: int


class TopicRegistry:
    """All topics. Opens every log at construction, so that a damaged log is detected at startup and not at first use."""

    def __init__(
        self,
        file_system: FileSystem,
        journal: Journal,
        contents: Contents,
        nodes: DeclaredNodes,
        settings: Mapping[str, Any],
        rng: RandomSource,
        wall: WallTime,
        steady_ms: int,
    ) -> None:
        self._file_system = file_system
        self._journal = journal
        self._contents = contents
        self._nodes = nodes
        self._settings = settings
        self._rng = rng
        self._wall = wall
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._collisions: dict[str, str] = {}
        self.version = 0
        """Changes whenever a topic is created, deleted or altered."""
        self._unnormalized: dict[str, str] = {}  # Topic name -> one of its options that is stored under a different spelling of its name.
        self._verify_bytes_left = VERIFY_BYTES_MAX
        self.maintenance_queue: list[TopicPartition] = []
        """Partitions that may need retention or compaction; see `log_maintenance`."""
        self.moved_starts: list[TopicPartition] = []
        """Partitions whose log start offset moved since it was recorded; see `contents_recorder`."""
        self.before_creation: Callable[[str], None] = lambda name: None
        """Called with a topic name before the topic is created. If it raises StorageError, the topic is not created."""
        self._finish_deletions()
        for key, value in journal.items().items():
            if key.startswith(_TOPIC_PREFIX):
                self._remember(self._read(key[len(_TOPIC_PREFIX) :].decode(), value, steady_ms))

    # Queries ------------------------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._topics)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    @property
    def directory(self) -> str:
        """Display path of the log directory."""
        return self._file_system.describe(LOGS)

    def directories_without_topic(self) -> list[str]:
        """Directories that belong to no known topic. Raises StorageError."""
        if not self._file_system.exists(LOGS):
            return []
        known = {topic.directory for topic in self}
        return [name for name in self._file_system.list(LOGS) if _OF_A_TOPIC.search(name) and f"{LOGS}/{name}" not in known]

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def name_of(self, topic_id: UUID) -> str | None:
        topic = self.by_id(topic_id)
        return None if topic is None else topic.name

    def partition(self, name: str, index: int) -> Partition | None:
        """The partition, or None if the topic does not exist or has fewer partitions."""
        topic = self._topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def partitions(self) -> Iterator[Partition]:
        for topic in self._topics.values():
            yield from topic.partitions

    def request_maintenance(self) -> None:
        """Queue all partitions with segments for maintenance."""
        self.maintenance_queue += [partition.topic_partition for partition in self.partitions() if partition.log.files.segments]

    # Changes ------------------------------------------------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        *,
        partition_count: int = -1,
        replication_factor: int = -1,
        overrides: Mapping[str, str] | None = None,
        assignment: Sequence[Sequence[int]] | None = None,
        steady_ms: int,
        validate_only: bool = False,
    ) -> CreatedTopic:
        """Create a topic; -1 means the broker's default. With `assignment` (replicas of each partition) it determines both counts.

        With `validate_only` nothing is created, and the returned topic has no partitions. Raises TopicExists (36), InvalidTopic (17),
        InvalidPartitions (37), InvalidReplicationFactor (38), InvalidReplicaAssignment (39), InvalidConfiguration (40).
        """
        self.check_name(name)
        overrides = dict(overrides or {})
        config = self.validate_options(overrides)
        replicas = self._replicas(partition_count, replication_factor, assignment)
        topic_id = UUID(int=self._rng.getrandbits(128), version=4)
        topic = Topic(name=name, topic_id=topic_id, overrides=overrides, config=config)
        if validate_only:
            return CreatedTopic(topic, len(replicas), len(replicas[0]))
        self.before_creation(name)
        try:
            self._open_partitions(topic, replicas, steady_ms, is_new=True)
            # Directory entries must be on disk before the journal entry.
            sync_directories(self._file_system, topic.directory)
            self._write(topic)
        except StorageError:
            with suppress(StorageError):  # The topic is not registered; only empty directories remain.
                self._file_system.remove_tree(topic.directory)
            raise
        self._remember(topic)
        return CreatedTopic(topic, len(replicas), len(replicas[0]))

    def create_partitions(
        self, name: str, count: int, *, assignment: Sequence[Sequence[int]] | None = None, steady_ms: int, validate_only: bool = False
    ) -> None:
        """Add partitions to a topic, up to `count` in total. `assignment`: replicas of each new partition.

        Raises UnknownTopicOrPartition (3), InvalidPartitions (37), InvalidReplicationFactor (38), InvalidReplicaAssignment (39),
        StorageError.
        """
        topic = self._existing(name)
        replicas = self._new_replicas(topic, count, assignment)
        if validate_only:
            return
        there = len(topic.partitions)
        try:
            self._open_partitions(topic, replicas, steady_ms, is_new=True)
            sync_directories(self._file_system, topic.directory)
            self._write(topic)
        except BaseException:
            del topic.partitions[there:]
            raise

    def delete(self, name: str) -> None:
        """Delete a topic and its data.

        Raises UnknownTopicOrPartition (3), StorageError. After a StorageError the topic is either unchanged, or already deleted, and `get`
        returns None.
        """
        topic = self._existing(name)
        deleting = _DELETING_PREFIX + topic.directory.encode()
        self._journal.put({_TOPIC_PREFIX + name.encode(): None, deleting: b""})
        self.version += 1
        del self._topics[name], self._by_id[topic.topic_id], self._collisions[creation_rules.collision_key(name)]
        self._journal.sync()  # A power loss must not bring back a topic whose directories are gone: no start would succeed.
        with suppress(StorageError):  # The next start removes them.
            self._contents.forget(partition.log.directory for partition in topic.partitions)
        for partition in topic.partitions:
            partition.log.delete()
        self._finish_deletion(deleting)

    def sync(self) -> None:
        """Sync the registry: when this returns, all changes of topics survive a power loss. Raises StorageError."""
        self._journal.sync()

    def validate_options(self, overrides: Mapping[str, str]) -> TopicConfig:
        """Validate and resolve a topic's options. Raises InvalidConfiguration (40), naming the option, or the known one nearest to it."""
        try:
            return validate_topic_options(overrides, self._settings)
        except ConfigException as error:
            raise RequestRefused(codes.INVALID_CONFIG, str(error)) from None

    def alter(self, name: str, overrides: Mapping[str, str]) -> None:
        """Replace a topic's options. Raises the errors of `validate_options`, UnknownTopicOrPartition (3), StorageError."""
        topic = self._existing(name)
        config = self.validate_options(overrides)
        before = topic.overrides
        topic.overrides = dict(overrides)
        try:
            self._write(topic)
        except BaseException:
            topic.overrides = before
            raise
        self._apply(topic, config)

    def resolved_with(self, settings: Mapping[str, Any]) -> ResolvedTopics:
        """Resolve the options of all topics with changed broker options. Raises InvalidRequest (42) if that is impossible."""
        different = dict.fromkeys(frozenset(topic.overrides.items()) for topic in self)  # Few topics differ from all others.
        try:
            return {overrides: resolve(dict(overrides), settings) for overrides in different}
        except ConfigException as error:
            raise RequestRefused(codes.INVALID_REQUEST, f"topic options cannot be resolved with this value: {error.message}") from None

    def settings_changed(self, settings: Mapping[str, Any], resolved: ResolvedTopics) -> None:
        """Apply changed broker options to the topics that do not override them, as resolved by `resolved_with`."""
        self._settings = settings
        for topic in self._topics.values():
            self._apply(topic, resolved[frozenset(topic.overrides.items())])

    def normalize_option_names(self) -> str | None:
        """Store options under their names that an earlier version accepted and stored in another spelling, for example retention_ms.

        Returns the line to log, if any. On a full disk a later start does it; until then the options are in effect all the same.
        """
        if not self._unnormalized:
            return None
        with suppress(StorageError):
            for topic in self._unnormalized:
                self._write(self._topics[topic])
        topic, spelled = next(iter(self._unnormalized.items()))
        return (
            f"{pluralize(len(self._unnormalized), 'topic')} had options that were stored under other spellings: {spelled!r} of {topic}, "
            f"for example, is now {TOPIC_OPTIONS.name_of(spelled)}"
        )

    # Internal -----------------------------------------------------------------------------------------------------------------------

    def _existing(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise RequestRefused(codes.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        return topic

    def check_name(self, name: str) -> None:
        """Raises InvalidTopic (17) or TopicExists (36) for a name that no new topic may have."""
        refusal = self.name_refusal(name)
        if refusal is not None:
            raise refusal

    def name_refusal(self, name: str) -> RequestRefused | None:
        """The error that `check_name` raises; None if the name is allowed."""
        fault = creation_rules.fault_of(name)
        if fault is not None:
            return RequestRefused(codes.INVALID_TOPIC_EXCEPTION, fault)
        if name in self._topics:
            return RequestRefused(codes.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
        other = self._collisions.get(creation_rules.collision_key(name))
        if other is not None:
            reason = f"topic {name!r} collides with topic {other!r}: '.' and '_' count as the same"
            return RequestRefused(codes.INVALID_TOPIC_EXCEPTION, reason)
        return None

    def _replicas(self, count: int, factor: int, assignment: Sequence[Sequence[int]] | None) -> list[tuple[int, ...]]:
        if assignment:
            return self._checked_assignment(assignment)
        count = self._settings["num.partitions"] if count == -1 else count
        factor = self._settings["default.replication.factor"] if factor == -1 else factor
        node_count, nodes = len(self._nodes.nodes), pluralize(len(self._nodes.nodes), "node")
        if factor < 1:
            raise RequestRefused(codes.INVALID_REPLICATION_FACTOR, f"the replication factor must be at least 1, not {factor}")
        if not 1 <= count <= PARTITIONS_MAX:
            raise RequestRefused(codes.INVALID_PARTITIONS, f"a topic has between 1 and {PARTITIONS_MAX} partitions, not {count}")
        if factor > node_count:
            raise RequestRefused(
                codes.INVALID_REPLICATION_FACTOR,
                f"replication factor {factor} is more than the {nodes} of this cluster: --brokers declares more (in Python brokers=)",
            )
        return self._nodes.assign(count, factor, self._rng.randrange(node_count))

    def _new_replicas(self, topic: Topic, count: int, assignment: Sequence[Sequence[int]] | None) -> list[tuple[int, ...]]:
        """Replicas of the partitions to be added to a topic."""
        there, node_count = len(topic.partitions), len(self._nodes.nodes)
        nodes = pluralize(node_count, "node")
        factor = len(topic.partitions[0].replicas.assigned)
        if not there < count <= PARTITIONS_MAX:
            reason = (
                f"topic {topic.name!r} has {pluralize(there, 'partition')}: it can be increased up to {PARTITIONS_MAX}, not set to {count}"
            )
            raise RequestRefused(codes.INVALID_PARTITIONS, reason)
        if assignment is None:
            if factor > node_count:
                reason = f"replication factor {factor} of topic {topic.name!r} is more than the {nodes} of this cluster"
                raise RequestRefused(codes.INVALID_REPLICATION_FACTOR, reason)
            return self._nodes.assign(count - there, factor, (topic.partitions[-1].replicas.assigned[0] + 1) % node_count)
        if len(assignment) != count - there:
            reason = f"replicas are given for {len(assignment)} new partitions, not for {count - there}"
            raise RequestRefused(codes.INVALID_REPLICA_ASSIGNMENT, reason)
        checked = self._checked_assignment(assignment)
        if len(checked[0]) != factor:
            reason = f"topic {topic.name!r} has {factor} replicas of each partition, not {len(checked[0])}"
            raise RequestRefused(codes.INVALID_REPLICA_ASSIGNMENT, reason)
        return checked

    def _checked_assignment(self, assignment: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        known = {node.id for node in self._nodes.nodes}
        for replicas in assignment:
            if not replicas or len(set(replicas)) != len(replicas) or not set(replicas) <= known:
                raise RequestRefused(
                    codes.INVALID_REPLICA_ASSIGNMENT, f"replicas {list(replicas)}: expected different nodes of {sorted(known)}"
                )
        if len({len(replicas) for replicas in assignment}) != 1:
            raise RequestRefused(codes.INVALID_REPLICA_ASSIGNMENT, "all partitions of a topic must have the same number of replicas")
        return [tuple(replicas) for replicas in assignment]

    def _read(self, name: str, value: bytes, steady_ms: int) -> Topic:
        fields = json.loads(value)
        overrides = {TOPIC_OPTIONS.name_of(spelled): value for spelled, value in fields["overrides"].items()}
        if misspelt := [spelled for spelled in fields["overrides"] if spelled not in overrides]:
            self._unnormalized[name] = misspelt[0]
        topic = Topic(name=name, topic_id=UUID(fields["topic_id"]), overrides=overrides, config=resolve(overrides, self._settings))
        self._open_partitions(topic, [tuple(replicas) for replicas in fields["replicas"]], steady_ms, is_new=False)
        return topic

    def _write(self, topic: Topic) -> None:
        self.version += 1
        value = {
            "topic_id": topic.topic_id.hex,
            "overrides": topic.overrides,
            "replicas": [partition.replicas.assigned for partition in topic.partitions],
        }
        self._journal.put({_TOPIC_PREFIX + topic.name.encode(): json.dumps(value).encode()})

    def _open_partitions(self, topic: Topic, replicas: Sequence[tuple[int, ...]], steady_ms: int, *, is_new: bool) -> None:
        log_config = topic.config.log
        accepts_loss = self._settings[ACCEPT_LOSS]
        for index, assigned in enumerate(replicas, start=len(topic.partitions)):
            directory = f"{topic.directory}/{index}"
            if not is_new and not accepts_loss and not self._file_system.exists(directory):
                raise MissingLog(self._file_system.describe(directory), "open", f"the log of {topic.name}-{index} is missing")
            topic_partition = TopicPartition(topic.name, index)
            if log_config.verify_bytes_max > self._verify_bytes_left:
                log_config = replace(log_config, verify_bytes_max=max(0, self._verify_bytes_left))
            expected = self._contents.expected(directory)
            log = PartitionLog.open(
                self._file_system, directory, topic_partition, log_config, steady_ms, expected=expected, accepts_loss=accepts_loss
            )
            self._verify_bytes_left -= log.recovery_bytes_read
            log.wall = self._wall
            log.on_maintenance_due = self.maintenance_queue.append
            log.on_start_moved = self.moved_starts.append
            if log.files.segments:
                self.maintenance_queue.append(topic_partition)
            topic.partitions.append(
                Partition(
                    topic_partition=topic_partition,
                    topic=topic,
                    replicas=self._live_replicas(assigned),
                    log=log,
                    policy=self._policy(topic_partition, topic.config),
                )
            )

    def _live_replicas(self, assigned: tuple[int, ...]) -> Replicas:
        replicas = Replicas(assigned=assigned, leader_epoch=self._nodes.first_epoch)
        replicas.follow(self._nodes.live_ids)
        replicas.leader_epoch = self._nodes.first_epoch  # The leader is new after a restart.
        return replicas

    def _apply(self, topic: Topic, config: TopicConfig) -> None:
        topic.config = config
        for partition in topic.partitions:
            partition.policy = self._policy(partition.topic_partition, config)
            partition.log.config = config.log
            self.maintenance_queue.append(partition.topic_partition)

    def _policy(self, topic_partition: TopicPartition, config: TopicConfig) -> ValidationPolicy:
        return record_validation_policy(topic_partition, config, self._settings["max.decompressed.bytes"])

    def _remember(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._collisions[creation_rules.collision_key(topic.name)] = topic.name

    def _finish_deletions(self) -> None:
        deleting = [key for key in self._journal.items() if key.startswith(_DELETING_PREFIX)]
        if deleting:
            self._journal.sync()  # The entry may have been written by a process that was killed.
        for key in deleting:
            self._finish_deletion(key)

    def _finish_deletion(self, key: bytes) -> None:
        """Remove the directory, then the journal entry: while there is an entry, each start retries."""
        self._file_system.remove_tree(key[len(_DELETING_PREFIX) :].decode())
        self._journal.put({key: None})
