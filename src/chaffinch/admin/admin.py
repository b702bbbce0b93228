"""Admin: administration of a cluster as a class. It checks arguments and calls the functions of this package."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, Unpack

from chaffinch import plain_text
from chaffinch.admin import arguments, configs, group_offsets, groups, nodes, offsets, records, topics, transactions, users
from chaffinch.admin.configs import ConfigEntry
from chaffinch.admin.group_offsets import CommittedOffset
from chaffinch.admin.groups import GroupDescription, GroupListing, Reset, Target
from chaffinch.admin.nodes import Cluster
from chaffinch.admin.options import ADMIN_TABLE, open_client
from chaffinch.admin.topics import BY_BROKER, Topic, TopicDescription
from chaffinch.admin.transactions import PartitionProducer, TransactionDescription, TransactionListing
from chaffinch.admin.users import Mechanism, User
from chaffinch.client.arguments import INT32_MAX, INT64_MAX, checked_topic_partition
from chaffinch.foreign_names import ADMIN_HINTS, missing_attributes
from chaffinch.identifiers import NO_OFFSET, TopicPartition
from chaffinch.protocol.scram import ITERATIONS_MAX, ITERATIONS_MIN
from chaffinch.public_names import exported_from
from chaffinch.runtime.clock import SystemClock
from chaffinch.settings import Settings

if TYPE_CHECKING:
    from chaffinch.admin.option_types import AdminOptions

log = plain_text.logger("chaffinch.admin")


@exported_from("chaffinch.admin")
class Admin:
    """Administration of any Kafka cluster: topics, configurations, groups and offsets, transactions, users, nodes and records.

        with Admin(bootstrap_servers="localhost:9092") as admin:
            admin.create_topic("orders", partitions=3, configs={"cleanup.policy": "compact"})
            print(admin.describe_groups(["billing"])[0].offsets[0].lag)

    Each call waits for its result, at most `default.api.timeout.ms` (15 s). Errors that pass, such as those of a starting broker, are
    retried until then. One thread at a time may use an Admin. It opens connections on demand, and starts no thread.

    Apart from the exceptions of its documentation, each method raises

    - TypeError or ValueError for an argument that is wrong in itself, before a request is sent;
    - the exception of an error code in a response (`chaffinch.errors`), TopicAuthorizationException for example;
    - AuthenticationException if no broker accepts the login, and UnsupportedVersionException if a broker is too old;
    - TimeoutException at the time limit, with the last error as its cause.

    Args:
        options: options by dotted name; `bootstrap.servers` is required.
        **keywords: the same options, with underscores instead of dots.

    Raises:
        ConfigException: an option is unknown or invalid; the message lists all errors.
    """

    def __init__(self, options: Mapping[str, Any] | None = None, **keywords: Unpack[AdminOptions]) -> None:
        settings = ADMIN_TABLE.parse(options, **keywords)
        for name in sorted(settings.ignored):
            log.warning("option %s is known to Apache Kafka and without effect here", name)
        self._open(settings, None)

    @classmethod
    def _from_settings(cls, settings: Settings, on_wait: Callable[[str], None]) -> Self:
        """For the commands: an Admin with parsed options. `on_wait` is called with one line about each long wait."""
        admin = cls.__new__(cls)
        admin._open(settings, on_wait)
        return admin

    def _open(self, settings: Settings, on_wait: Callable[[str], None] | None) -> None:
        self._servers: tuple[str, ...] = settings["bootstrap.servers"]
        self._client = open_client(settings, on_wait)
        self._clock = SystemClock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Admin of {','.join(self._servers)}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Admin cannot be pickled: make one in each process")

    if not TYPE_CHECKING:  # Type checkers report missing attributes themselves.
        __getattr__ = missing_attributes(ADMIN_HINTS)

    def close(self) -> None:
        """Close the connections. Later calls raise IllegalStateException; closing again has no effect."""
        self._client.close()

    # Topics ---------------------------------------------------------------------------------------------------------------------------

    def list_topics(self, *, with_internal: bool = True) -> list[Topic]:
        """The topics with partitions, leaders and replicas.

        Args:
            with_internal: include internal topics, such as `__consumer_offsets`.

        Returns:
            The topics in the order of their names.
        """
        return [topic for topic in topics.list_topics(self._client) if with_internal or not topic.is_internal]

    def find_topics(self, names: Iterable[str]) -> list[Topic]:
        """Topics by name, like `list_topics`.

        Args:
            names: names of topics.

        Returns:
            The topics in the order of `names`, without duplicates.

        Raises:
            UnknownTopic: a topic does not exist; the message suggests the most similar name.
        """
        return topics.find_topics(self._client, arguments.checked_names(names))

    def describe_topics(self, names: Iterable[str] | None = None) -> list[TopicDescription]:
        """Topics with their first and end offsets, configurations, and warnings about wrong configurations.

        Args:
            names: names of topics; None for all except internal ones.

        Returns:
            The descriptions in the order of `names`; for None in the order of the names of the topics.

        Raises:
            UnknownTopic: a topic does not exist; the message suggests the most similar name.
        """
        return topics.describe_topics(self._client, None if names is None else arguments.checked_names(names))

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, str | float] | None = None,
    ) -> TopicDescription:
        """Create a topic, and wait until each partition has a leader.

        Args:
            name: 1 to 249 letters, digits, '.', '_' and '-'.
            partitions: number of partitions; None for the broker's default.
            replication_factor: number of replicas; None for the broker's default.
            configs: topic options by name, such as `{"retention.ms": 3_600_000}`.

        Returns:
            The new topic.

        Raises:
            TopicExistsException: a topic has the name.
            InvalidTopicException: the name is not legal.
            InvalidPartitionsException: too many partitions.
            InvalidReplicationFactorException: there are not enough brokers.
            InvalidConfigurationException: an option is unknown or has an invalid value.
        """
        topics.create_topic(
            self._client,
            arguments.checked_name(name),
            partitions=arguments.checked_count(partitions, "partitions") or BY_BROKER,
            replication_factor=arguments.checked_count(replication_factor, "replication_factor", arguments.REPLICAS_MAX) or BY_BROKER,
            config=arguments.checked_configs({} if configs is None else configs, "configs"),
        )
        return topics.wait_for_topic(self._client, name)[0]

    def add_partitions(self, name: str, partitions: int, *, is_dry_run: bool = False) -> None:
        """Increase the number of partitions of a topic. Records stay where they are, so a key may belong to another partition afterwards.

        Args:
            name: name of the topic.
            partitions: the new total; it must be larger than the present one.
            is_dry_run: only check whether the broker would do it.

        Raises:
            InvalidPartitionsException: the total is not larger than the present one.
            UnknownTopicOrPartitionException: the topic does not exist.
        """
        total = arguments.checked_number(partitions, "partitions", 1, INT32_MAX)
        topics.add_partitions(self._client, arguments.checked_name(name), total, is_trial=is_dry_run)

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics with their records.

        Args:
            names: names of topics; without a name no request is sent.

        Raises:
            UnknownTopicOrPartitionException: a topic does not exist; the others are deleted.
            TopicDeletionDisabledException: the cluster does not allow it.
        """
        if wanted := arguments.checked_names(names):
            topics.delete_topics(self._client, wanted)

    # Configurations -------------------------------------------------------------------------------------------------------------------

    def describe_topic_configs(self, names: Iterable[str]) -> dict[str, dict[str, ConfigEntry]]:
        """Configurations of topics.

        Args:
            names: names of topics.

        Returns:
            Configurations by name, by topic.

        Raises:
            UnknownTopicOrPartitionException: a topic does not exist.
        """
        return configs.describe_topic_configs(self._client, arguments.checked_names(names))

    def alter_topic_configs(self, name: str, changed: Mapping[str, str | float], *, deleted: Iterable[str] = ()) -> None:
        """Change configurations of a topic: all of them, or none if one is rejected. Others stay as they are.

        Args:
            name: name of the topic.
            changed: values to set, by name.
            deleted: names to reset to their defaults.

        Raises:
            InvalidConfigurationException: an option is unknown or has an invalid value.
            UnknownTopicOrPartitionException: the topic does not exist.
        """
        wanted, reset = _checked_changes(changed, deleted)
        configs.alter_topic_configs(self._client, arguments.checked_name(name), changed=wanted, deleted=reset)

    def describe_node_configs(self, node: int) -> dict[str, ConfigEntry]:
        """Configurations of a node.

        Args:
            node: id of the node.

        Returns:
            Configurations by name.

        Raises:
            BrokerNotAvailableException: there is no such node.
        """
        return configs.describe_node_configs(self._client, arguments.checked_number(node, "node", 0, INT32_MAX))

    def alter_node_configs(self, node: int | None, changed: Mapping[str, str | float], *, deleted: Iterable[str] = ()) -> None:
        """Change configurations of a node, or the defaults of all nodes, while they run: all of them, or none if one is rejected.

        A node may return the earlier values for a moment.

        Args:
            node: id of the node; None for the defaults of all nodes.
            changed: values to set, by name.
            deleted: names to reset to their defaults.

        Raises:
            InvalidRequestException, InvalidConfigurationException: an option is unknown, has an invalid value, or needs a restart.
            BrokerNotAvailableException: there is no such node.
        """
        wanted, reset = _checked_changes(changed, deleted)
        checked = None if node is None else arguments.checked_number(node, "node", 0, INT32_MAX)
        configs.alter_node_configs(self._client, checked, changed=wanted, deleted=reset)

    # Offsets of partitions, and records -----------------------------------------------------------------------------------------------

    def earliest_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first available offset of each partition.

        Args:
            partitions: the partitions.

        Returns:
            Offsets by partition.

        Raises:
            UnknownTopicOrPartitionException: a partition does not exist.
        """
        return offsets.earliest(self._client, arguments.checked_partitions(partitions))

    def latest_offsets(
        self, partitions: Iterable[TopicPartition], *, isolation: Literal["read_committed", "read_uncommitted"] = "read_uncommitted"
    ) -> dict[TopicPartition, int]:
        """The end of each partition: the offset of the next record.

        Args:
            partitions: the partitions.
            isolation: with `read_committed` the end is before the first record of an open transaction.

        Returns:
            Offsets by partition.

        Raises:
            UnknownTopicOrPartitionException: a partition does not exist.
        """
        checked = arguments.checked_partitions(partitions)
        if isolation not in ("read_committed", "read_uncommitted"):
            raise ValueError(f"argument isolation must be 'read_committed' or 'read_uncommitted', not {isolation!r}")
        return offsets.latest(self._client, checked, isolation=isolation)

    def offsets_at(self, partitions: Iterable[TopicPartition], time_ms: int) -> dict[TopicPartition, int | None]:
        """The offset of the first record of each partition that is not older than a time.

        Args:
            partitions: the partitions.
            time_ms: ms since 1970.

        Returns:
            Offsets by partition; None if no record is recent enough.

        Raises:
            UnknownTopicOrPartitionException: a partition does not exist.
        """
        times = dict.fromkeys(arguments.checked_partitions(partitions), arguments.checked_number(time_ms, "time_ms", 0))
        return {tp: None if offset == NO_OFFSET else offset for tp, offset in offsets.list_offsets(self._client, times).items()}

    def delete_records(self, offsets: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, int]:
        """Delete the records at the start of partitions. Brokers free the disk space segment by segment.

        Args:
            offsets: the first offset to keep, by partition; None deletes all records.

        Returns:
            The first available offset of each partition afterwards.

        Raises:
            OffsetOutOfRangeException: an offset is beyond the end.
            PolicyViolationException: the topic is only compacted (`cleanup.policy`).
            UnknownTopicOrPartitionException: a partition does not exist. Records of other partitions may have been deleted.
        """
        return records.delete_records(self._client, arguments.checked_offsets(offsets, allows_none=True))

    # Groups ---------------------------------------------------------------------------------------------------------------------------

    def list_groups(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        """The groups of the cluster.

        Args:
            states: only groups in one of these states, such as `Stable` or `Empty`, in any case; all if empty.
            types: only groups of one of these types: `classic`, `consumer`, `share` or `streams`; all if empty.

        Returns:
            The groups in the order of their ids.
        """
        wanted = arguments.checked_choices(states, "states", groups.STATES)
        return groups.list_groups(self._client, states=wanted, types=arguments.checked_choices(types, "types", groups.TYPES))

    def describe_groups(self, names: Iterable[str] | None = None) -> list[GroupDescription]:
        """Groups with members, committed offsets and lag.

        Args:
            names: ids of groups; None for all.

        Returns:
            The descriptions in the order of `names`; for None in the order of the ids.

        Raises:
            UnknownGroup: a group does not exist; the message suggests the most similar id.
            UnsupportedVersionException: a share or streams group.
        """
        return groups.describe_groups(self._client, None if names is None else arguments.checked_names(names))

    def delete_groups(self, names: Iterable[str]) -> None:
        """Delete groups with their offsets. If one does not exist, none is deleted; if one is rejected, those before it have been deleted.

        Args:
            names: ids of groups; without an id no request is sent.

        Raises:
            UnknownGroup: a group does not exist.
            GroupNotEmptyException: a group has members.
        """
        if wanted := arguments.checked_names(names):
            groups.delete_groups(self._client, wanted)

    def committed_offsets(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, CommittedOffset]:
        """Committed offsets of a group.

        Args:
            group: id of the group.
            partitions: the partitions of interest; None for all with a commit.

        Returns:
            Commits by partition. Partitions without a commit are missing, so that of an unknown group it is empty.
        """
        wanted = None if partitions is None else arguments.checked_partitions(partitions)
        return group_offsets.committed_offsets(self._client, arguments.checked_name(group, "group"), wanted)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set committed offsets of a group without members. A group that does not exist is created.

        Args:
            group: id of the group.
            offsets: offset of the next record to read, by partition; not checked against the records.

        Raises:
            UnknownMemberIdException: the group has members, and only they may commit.
            UnknownTopicOrPartitionException: a partition does not exist.
        """
        wanted = arguments.checked_offsets(offsets)
        group_offsets.commit_offsets(self._client, arguments.checked_name(group, "group"), wanted)

    def reset_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        to: Literal["earliest", "latest", "current"] | None = None,
        to_offset: int | None = None,
        to_time_ms: int | None = None,
        shift_by: int | None = None,
        is_dry_run: bool = False,
    ) -> list[Reset]:
        """Change committed offsets of a group without members. Give one of `to`, `to_offset`, `to_time_ms` and `shift_by`.

        Args:
            group: id of the group.
            partitions: the partitions to reset; None for all with a commit.
            to: the first record, the end, or the committed offset (the end for partitions without a commit).
            to_offset: this offset.
            to_time_ms: the first record of this time or later, ms since 1970; the end if there is none.
            shift_by: this many records forward, or back if negative. Partitions without a commit are left out.
            is_dry_run: only plan the reset.

        Returns:
            The resets in the order of the partitions. Offsets without a record are replaced by the nearest one with a record.

        Raises:
            GroupNotEmptyException: the group has members.
            UnknownTopicOrPartitionException: a partition does not exist.
        """
        name = arguments.checked_name(group, "group")
        target = _target(to, to_offset, to_time_ms, shift_by)
        tps: Collection[TopicPartition]
        tps = group_offsets.committed_offsets(self._client, name) if partitions is None else arguments.checked_partitions(partitions)
        plan = groups.plan_reset(self._client, name, tps, target)
        if plan and not is_dry_run:
            groups.execute_reset(self._client, name, plan)
        return plan

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete committed offsets of a group.

        Args:
            group: id of the group.
            partitions: the partitions whose commits are deleted; without one no request is sent.

        Raises:
            UnknownGroup: the group does not exist.
            GroupSubscribedToTopicException: members of the group read the topic.
        """
        name = arguments.checked_name(group, "group")
        if wanted := arguments.checked_partitions(partitions):
            groups.delete_offsets(self._client, name, wanted)

    # Transactions ---------------------------------------------------------------------------------------------------------------------

    def list_transactions(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = (), duration_min_ms: int | None = None
    ) -> list[TransactionListing]:
        """The transactional ids of the cluster.

        Args:
            states: only ids in one of these states, such as `Ongoing`, in any case; all if empty.
            producer_ids: only ids of these producers; all if empty.
            duration_min_ms: only transactions that have been open for at least this time; None: all.

        Returns:
            The ids in their order.

        Raises:
            UnsupportedVersionException: a broker is too old to filter by duration.
        """
        duration = None if duration_min_ms is None else arguments.checked_number(duration_min_ms, "duration_min_ms", 0)
        if isinstance(producer_ids, str) or not isinstance(producer_ids, Iterable):
            raise TypeError(f"argument producer_ids must be a list of ints, not {producer_ids!r}")
        return transactions.list_transactions(
            self._client,
            states=arguments.checked_choices(states, "states", transactions.STATES),
            producer_ids=[arguments.checked_number(number, "producer_ids", 0) for number in producer_ids],
            duration_min_ms=duration,
        )

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """A transactional id with its producer, state and partitions.

        Args:
            transactional_id: the id.

        Returns:
            The description.

        Raises:
            TransactionalIdNotFoundException: the id was never used, or its coordinator has expired it.
        """
        return transactions.describe_transaction(self._client, arguments.checked_name(transactional_id, "transactional_id"))

    def describe_producers(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[PartitionProducer]]:
        """The producers that partitions know, with their last sequences and open transactions.

        Args:
            partitions: the partitions.

        Returns:
            The producers by partition, in the order of their ids.

        Raises:
            UnknownTopicOrPartitionException: a partition does not exist.
        """
        return transactions.describe_producers(self._client, arguments.checked_partitions(partitions))

    def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition], *, older_than_ms: int = transactions.TRANSACTION_TIMEOUT_MAX_MS
    ) -> list[PartitionProducer]:
        """Transactions that are open in a partition and unknown to every coordinator (KIP-664). Readers of committed records wait for them.

        Args:
            partitions: the partitions to search.
            older_than_ms: minimum time since the producer's last batch; the default is Kafka's longest transaction.

        Returns:
            The producers of these transactions, by partition and producer id.

        Raises:
            UnknownTopicOrPartitionException: a partition does not exist.
        """
        age_ms = arguments.checked_number(older_than_ms, "older_than_ms", 0)
        wanted = arguments.checked_partitions(partitions)
        return transactions.find_hanging(self._client, wanted, wall_ms=self._clock.wall_ms(), older_than_ms=age_ms)

    def abort_hanging_transaction(self, partition: TopicPartition, start_offset: int) -> PartitionProducer:
        """Abort a transaction in one partition, past its coordinator. Use it only for hanging transactions.

        Args:
            partition: the partition.
            start_offset: first offset of the transaction, as `describe_producers` and `find_hanging_transactions` return it.

        Returns:
            The producer whose transaction was aborted.

        Raises:
            InvalidTxnStateException: no open transaction starts there; the message lists those that do.
            UnknownTopicOrPartitionException: the partition does not exist.
        """
        tp, start = checked_topic_partition(partition), arguments.checked_number(start_offset, "start_offset", 0)
        found = transactions.open_transaction_at(self._client, tp, start)
        transactions.abort_in_partition(
            self._client,
            tp,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            coordinator_epoch=found.coordinator_epoch,
        )
        return found

    def abort_transaction(self, transactional_id: str) -> None:
        """Abort the open transaction of a transactional id, if there is one, and fence its producer.

        Args:
            transactional_id: the id.

        Raises:
            TransactionalIdNotFoundException: the id was never used, or its coordinator has expired it.
        """
        transactions.terminate(self._client, arguments.checked_name(transactional_id, "transactional_id"))

    # Users ----------------------------------------------------------------------------------------------------------------------------

    def describe_users(self, names: Iterable[str] | None = None) -> list[User]:
        """Users with SCRAM credentials (KIP-554), without secrets.

        Args:
            names: names of users; None for all.

        Returns:
            The users in the order of their names.

        Raises:
            ResourceNotFoundException: a named user has no SCRAM credential.
        """
        return users.describe_users(self._client, None if names is None else arguments.checked_names(names))

    def set_password(self, name: str, password: str, *, mechanism: Mechanism = "SCRAM-SHA-256", iterations: int = ITERATIONS_MIN) -> None:
        """Create a user, or replace the password for one mechanism. Brokers get a salted hash of the password.

        Args:
            name: name of the user.
            password: the new password.
            mechanism: `SCRAM-SHA-256` or `SCRAM-SHA-512`. A user may have both.
            iterations: number of hash iterations, from 4096 to 16384.

        Raises:
            UnacceptableCredentialException: the broker rejects name or iterations.
        """
        if not isinstance(password, str) or not password:
            raise TypeError("argument password must be a str that is not empty (not shown)")
        users.set_password(
            self._client,
            arguments.checked_name(name),
            password,
            mechanism=_checked_mechanism(mechanism),
            iterations=arguments.checked_number(iterations, "iterations", ITERATIONS_MIN, ITERATIONS_MAX),
        )

    def delete_password(self, name: str, *, mechanism: Mechanism = "SCRAM-SHA-256") -> None:
        """Delete the password of a user for one mechanism. Without any password the user cannot log in.

        Args:
            name: name of the user.
            mechanism: `SCRAM-SHA-256` or `SCRAM-SHA-512`.

        Raises:
            ResourceNotFoundException: the user has no password for this mechanism.
        """
        users.delete_password(self._client, arguments.checked_name(name), mechanism=_checked_mechanism(mechanism))

    # Nodes ----------------------------------------------------------------------------------------------------------------------------

    def describe_cluster(self) -> Cluster:
        """The nodes of the cluster with their addresses, the controller, and the cluster id.

        Returns:
            The cluster; its nodes include those that the controller has fenced.
        """
        return nodes.describe_cluster(self._client)


def _checked_changes(changed: Any, deleted: Any) -> tuple[dict[str, str], list[str]]:
    wanted, reset = arguments.checked_configs(changed, "changed"), arguments.checked_names(deleted)
    if both := sorted(wanted.keys() & set(reset)):
        raise ValueError(f"{both[0]} is in changed and in deleted: leave it out of one of them")
    if not wanted and not reset:
        raise ValueError("nothing to alter: changed and deleted are empty")
    return wanted, reset


def _target(to: Any, to_offset: Any, to_time_ms: Any, shift_by: Any) -> Target:
    """The target of a reset: the only one that is given."""
    given = {"to": to, "to_offset": to_offset, "to_time_ms": to_time_ms, "shift_by": shift_by}
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        raise ValueError(f"give one of {', '.join(names or given)}: they are the targets of a reset")
    if to is not None:
        if to not in ("earliest", "latest", "current"):
            raise ValueError(f"argument to must be 'earliest', 'latest' or 'current', not {to!r}")
        return Target(to)
    if shift_by is not None:
        return Target("shift", arguments.checked_number(shift_by, "shift_by", -INT64_MAX))
    if to_offset is not None:
        return Target("offset", arguments.checked_number(to_offset, "to_offset", 0))
    return Target("time", arguments.checked_number(to_time_ms, "to_time_ms", 0))


def _checked_mechanism(mechanism: Any) -> Mechanism:
    if mechanism not in users.MECHANISMS:
        raise ValueError(f"argument mechanism must be {' or '.join(map(repr, users.MECHANISMS))}, not {mechanism!r}")
    found: Mechanism = mechanism
    return found
