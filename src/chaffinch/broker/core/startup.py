"""Startup: opens the journals, builds the broker state from them, completes what the previous process left unfinished, and logs warnings
about topics and logs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from chaffinch.broker.core.broker_state import BrokerState
from chaffinch.broker.core.configs.dynamic_settings import DynamicSettings
from chaffinch.broker.core.contents_recorder import ContentsRecorder
from chaffinch.broker.core.events import LogLine
from chaffinch.broker.core.fetch.sessions import FetchSessions
from chaffinch.broker.core.groups.consumer_group import TopicInfo
from chaffinch.broker.core.groups.coordinator import GroupCoordinator
from chaffinch.broker.core.groups.group_options import PROTOCOLS_WITHOUT_EFFECT, GroupConfigs
from chaffinch.broker.core.groups.offset_expiry import OffsetExpiry
from chaffinch.broker.core.groups.offsets import GroupOffsets
from chaffinch.broker.core.log_maintenance import LogMaintenance, ProducerExpiry
from chaffinch.broker.core.refusal_log import RefusalLog
from chaffinch.broker.core.replicas.cluster_membership import ClusterMembership, first_epoch
from chaffinch.broker.core.replicas.declared_replicas import DeclaredNodes, Node
from chaffinch.broker.core.security.authentication import Authentication
from chaffinch.broker.core.security.scram_credentials import ScramCredentials
from chaffinch.broker.core.topics.registry import Partition, RandomSource, Topic, TopicRegistry
from chaffinch.broker.core.transactions import power_loss
from chaffinch.broker.core.transactions.coordinator import COORDINATOR_EPOCH, TransactionCoordinator
from chaffinch.broker.core.transactions.moves import VERSION_WITH_EPOCH_BUMP
from chaffinch.errors import codes
from chaffinch.identifiers import ProducerIdentity, TopicPartition, pluralize
from chaffinch.settings import Settings
from chaffinch.storage.contents import Contents
from chaffinch.storage.data_directory import DataDirectory
from chaffinch.storage.file_system import FileSystem, StorageError
from chaffinch.storage.journal import Journal
from chaffinch.storage.many_logs import sync_many
from chaffinch.storage.wall_time import WallTime

JOURNALS = "journals"
JOURNAL_NAMES = ("cluster", "transactions", "offsets")


def open_journals(
    file_system: FileSystem, directory: DataDirectory, contents: Contents, rewrite_bytes_min: int, *, accepts_loss: bool
) -> dict[str, Journal]:
    """Open the journals, by name. Raises StorageError."""
    journals = {}
    for name in JOURNAL_NAMES:
        path = f"{JOURNALS}/{name}"
        journals[name] = Journal.open(
            file_system,
            JOURNALS,
            name,
            must_exist=not directory.is_new,
            expected_count=contents.expected(path).end,
            accepts_loss=accepts_loss,
            rewrite_bytes_min=rewrite_bytes_min,
        )
        journals[name].before_rewrite = partial(contents.note_rewrite, path)
    return journals


def open_state(
    file_system: FileSystem,
    journals: Mapping[str, Journal],
    contents: Contents,
    directory: DataDirectory,
    static: Settings,
    nodes: Sequence[Node],
    rng: RandomSource,
    steady_ms: int,
    *,
    users: Mapping[str, str],
) -> BrokerState:
    """Build the broker state from the journals and logs. Raises ConfigException, StorageError."""
    dynamic = DynamicSettings(static, journals["cluster"])
    declared = DeclaredNodes(nodes, first_epoch=first_epoch(journals["cluster"], len(nodes)))
    wall = WallTime()
    topics = TopicRegistry(file_system, journals["cluster"], contents, declared, dynamic, rng, wall, steady_ms)
    offsets = GroupOffsets(journals["offsets"])
    topics.before_creation = offsets.before_topic_creation
    with suppress(StorageError):  # On a full disk they stay until a topic of that name is created.
        offsets.forget_missing(lambda topic: topics.get(topic) is not None)
    grown: list[Partition] = []
    changed_keys: list[Hashable] = []
    membership = ClusterMembership(declared, topics, dynamic, journals["cluster"], changed_keys)
    transactions = TransactionCoordinator(
        journals["transactions"],
        TransactionParticipants(topics, offsets, grown),
        timeout_max_ms=static["transaction.max.timeout.ms"],
        expiration_ms=static["transactional.id.expiration.ms"],
        sync_decisions=static["flush.policy"] == "always",
        transaction_version=static["transaction.version"],
        wall=wall,
        steady_ms=steady_ms,
    )
    refusals = RefusalLog()
    credentials = ScramCredentials(journals["cluster"], users, rng)
    configs = GroupConfigs(dynamic, journals["cluster"])
    groups = GroupCoordinator(journals["offsets"], offsets, TopicView(topics), dynamic, configs, rng, changed_keys, wall, steady_ms)
    state = BrokerState(
        cluster_id=directory.cluster_id,
        settings=dynamic,
        nodes=declared,
        topics=topics,
        transactions=transactions,
        offsets=offsets,
        groups=groups,
        membership=membership,
        wall=wall,
        fetch_sessions=FetchSessions(rng, static["max.incremental.fetch.session.cache.slots"]),
        authentication=Authentication(static, credentials, rng, refusals),
        refusals=refusals,
        contents_recorder=ContentsRecorder(
            contents,
            directory,
            topics,
            {f"{JOURNALS}/{name}": journal for name, journal in journals.items()},
            steady_ms,
            syncs=static["flush.policy"] == "always",
        ),
        grown=grown,
        changed_keys=changed_keys,
        scheduled_tasks=[transactions, membership, ProducerExpiry(topics, dynamic, steady_ms)],
    )
    state.scheduled_tasks += [state.refusals, state.contents_recorder, LogMaintenance(topics, dynamic, wall, steady_ms)]
    state.scheduled_tasks += [groups, OffsetExpiry(groups, offsets, dynamic, wall, steady_ms)]
    return state


def recover(state: BrokerState, transactions: Journal, incarnation: str, steady_ms: int) -> bool:
    """Recovery: complete what the previous process left unfinished. Returns False if some of it is left to the next start. Raises
    StorageError.

    `transactions`: the coordinator's journal.
    """
    if state.settings["flush.policy"] == "always":
        # A killed process may leave records that were written but not synced. From now on duplicates of them are acknowledged and readers
        # see them, so they must not be lost.
        sync_many([partition.log for partition in state.topics.partitions()])
    respelled = state.topics.normalize_option_names()
    if respelled is not None:
        state.refusals.log(respelled)
    completed = state.transactions.complete_decided(steady_ms)
    if completed:
        text = f"{completed} transactions that were decided before the last stop were completed"
        state.refusals.log(LogLine(text, is_routine=True))
    if power_loss.is_possible(transactions, incarnation):
        verifies: bool = state.settings["transaction.partition.verification.enable"]
        try:
            for text in power_loss.recover_lost(state.transactions, state.topics, state.offsets, state.grown, steady_ms, verifies=verifies):
                state.refusals.log(text)
        except StorageError as error:
            text = f"recovery of transactions after a power loss continues at the next start: {error}"
            state.refusals.log(f"{text}; until then readers of committed records may wait in those partitions")
            return False
    with suppress(StorageError):  # On a full disk the next start checks again.
        power_loss.mark_recovered(transactions, incarnation)
    return True


def record_contents(state: BrokerState, journals: Mapping[str, Journal], directory: DataDirectory, steady_ms: int) -> None:
    """Record the contents of the data directory; a new directory is complete with that. On a full disk it is done later, unless the
    directory is new. Raises StorageError.
    """
    if directory.is_new:
        for journal in journals.values():
            journal.sync()
        state.contents_recorder.begin()
    else:
        for line in state.contents_recorder.run_due(steady_ms):
            state.refusals.log(line)


def log_warnings(state: BrokerState, static: Settings) -> None:
    """Log warnings: options without effect, and topics that do not fit the declared nodes and options."""
    state.log_idle_options({**static.ignored, **{name: static[name] for name in static.given}})
    protocols = static["group.coordinator.rebalance.protocols"]
    if idle := [protocol for protocol in protocols if protocol in PROTOCOLS_WITHOUT_EFFECT]:
        state.refusals.log_without_effect("group.coordinator.rebalance.protocols", ",".join(idle))
    topics = state.topics
    for text in (*_warnings_of_nodes(topics, len(state.nodes.nodes)), *_warnings_of_directories(topics)):
        state.refusals.log(text)
    log_replication_warnings(state, topics)


def log_replication_warnings(state: BrokerState, topics: Iterable[Topic]) -> None:
    for text in _warnings_of_replication(topics, state.settings["min.insync.replicas.policy"]):
        state.refusals.log(text)


class TopicView:
    """Implements `consumer_subscriptions.Topics`."""

    def __init__(self, topics: TopicRegistry) -> None:
        self._topics = topics

    @property
    def version(self) -> int:
        return self._topics.version

    def all(self) -> Mapping[str, TopicInfo]:
        """All topics by name."""
        return {topic.name: TopicInfo(topic.topic_id, len(topic.partitions)) for topic in self._topics}


class TransactionParticipants:
    """Implements `coordinator.Participants`. `grown` collects each partition that received a marker: its last stable offset moves, and
    fetches wait for that.
    """

    def __init__(self, topics: TopicRegistry, offsets: GroupOffsets, grown: list[Partition]) -> None:
        self._topics = topics
        self._offsets = offsets
        self._grown = grown

    def write_marker(
        self, topic_partition: TopicPartition, is_commit: bool, identity: ProducerIdentity, transaction_version: int, steady_ms: int
    ) -> None:
        partition = self._topics.partition(*topic_partition)
        if partition is None:
            return
        refused = partition.log.check_marker(identity, COORDINATOR_EPOCH)
        if refused is not None and refused.code is codes.INVALID_PRODUCER_EPOCH:
            return  # The producer that raised the epoch here has ended the transaction. A later coordinator's epoch was made up by a tool.
        if transaction_version >= VERSION_WITH_EPOCH_BUMP and partition.log.producers.has_marker(identity):
            return  # Already written before a crash: in version 2 each marker has its own epoch, under which the next transaction begins.
        partition.log.append_marker(is_commit, identity, COORDINATOR_EPOCH, steady_ms, leader_epoch=partition.replicas.leader_epoch)
        self._grown.append(partition)

    def complete_offsets(self, group: str, producer_id: int, is_commit: bool) -> None:
        self._offsets.complete(group, producer_id, is_commit)

    def sync(self, topic_partitions: Iterable[TopicPartition], groups: Iterable[str]) -> None:
        partitions = [self._topics.partition(*topic_partition) for topic_partition in sorted(topic_partitions)]
        sync_many([partition.log for partition in partitions if partition is not None])
        if any(True for _ in groups):
            self._offsets.sync()


WARNED_NAMES_MAX: Final = 5
"""Topics named on one line; others are counted."""


def _warnings_of_nodes(topics: Iterable[Topic], node_count: int) -> Iterator[str]:
    """At most one line: replicas on nodes that an earlier start declared and this one does not."""
    highest = {topic.name: max(node for partition in topic.partitions for node in partition.replicas.assigned) for topic in topics}
    lost = [name for name, node in highest.items() if node >= node_count]
    if lost:
        wanted = 1 + max(highest.values())
        yield (
            f"{pluralize(len(lost), 'topic')} with replicas on nodes that are not declared: {_named(lost)}. Those nodes count as stopped: "
            f"partitions may lack a leader, and acks=all may get {codes.NOT_ENOUGH_REPLICAS.name}. To run all of them, start with "
            f"--brokers {wanted} (in Python brokers={wanted})"
        )


def _warnings_of_directories(topics: TopicRegistry) -> Iterator[str]:
    """At most one line: log directories without a topic. Topic entries are on disk before the first record, so the entry was lost or never
    written.
    """
    unknown = topics.directories_without_topic()
    if unknown:
        yield (
            f"log directories without a topic in {topics.directory}: {_named(unknown)}. They are kept: their creation was interrupted, or "
            "the end of journals/cluster.journal is lost, and with it the last changes of topics"
        )


def _warnings_of_replication(topics: Iterable[Topic], policy: str) -> Iterator[str]:
    """At most one line: topics with min.insync.replicas above the replication factor (KIP-579)."""
    if policy == "capped":
        return
    counts = [(topic, min(len(partition.replicas.assigned) for partition in topic.partitions)) for topic in topics]
    found = [f"{topic.name} ({topic.config.in_sync_min} of {count})" for topic, count in counts if topic.config.in_sync_min > count]
    if found:
        yield (
            f"{pluralize(len(found), 'topic')} with min.insync.replicas above the replication factor: {_named(found)}. acks=all can never "
            "succeed there (KIP-579): lower min.insync.replicas, or create the topic with more replicas"
        )


def _named(names: Sequence[str]) -> str:
    more = len(names) - WARNED_NAMES_MAX
    return ", ".join(names[:WARNED_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
