"""Requests of a transaction, and the error codes in their responses. Stateless, one `Step` per request.

KIP-98: partitions and groups are added before records and offsets are written, offsets go to the group's coordinator, and EndTxn commits or
aborts. KIP-890, transaction version 2: the broker that is written to adds itself, and the response to EndTxn has the next identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from chaffinch.client.coordinators import CoordinatorKind, find_request, parse_find_response
from chaffinch.errors import ErrorCode, codes
from chaffinch.errors.handling import TRANSACTION, Handling, handling_of, normalized_coordinator_code
from chaffinch.identifiers import OffsetAndMetadata, ProducerIdentity, TopicPartition
from chaffinch.producer.core.transactions.callers import Offsets
from chaffinch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from chaffinch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from chaffinch.protocol.primitives import ZERO_UUID


def transaction_version_of(levels: Mapping[str, int]) -> int:
    """The transaction version for a cluster, 1 or 2, by its finalized features (KIP-890)."""
    return 2 if levels.get("transaction.version", 0) >= 2 else 1


class Step(Enum):
    """A request of the transaction; the value is its API."""

    FIND_COORDINATOR = "FindCoordinator"
    FIND_GROUP = "FindCoordinator of the group"
    INIT_PRODUCER_ID = "InitProducerId"
    ADD_PARTITIONS = "AddPartitionsToTxn"
    ADD_OFFSETS = "AddOffsetsToTxn"
    CHECK_TOPICS = "Metadata of the topics that were read"
    COMMIT_OFFSETS = "TxnOffsetCommit"
    END = "EndTxn"

    @property
    def api(self) -> str:
        return self.value.split(" ")[0]


# The kind of coordinator that a step's request goes to; None: any broker.
COORDINATOR_OF_STEP: Final[dict[Step, CoordinatorKind | None]] = {
    Step.FIND_COORDINATOR: None,
    Step.FIND_GROUP: None,
    Step.INIT_PRODUCER_ID: "transaction",
    Step.ADD_PARTITIONS: "transaction",
    Step.ADD_OFFSETS: "transaction",
    Step.CHECK_TOPICS: "group",
    Step.COMMIT_OFFSETS: "group",
    Step.END: "transaction",
}


# Steps from which the coordinator learns of a transaction.
ADDING_STEPS: Final = frozenset({Step.ADD_PARTITIONS, Step.ADD_OFFSETS, Step.COMMIT_OFFSETS})
# Steps that change a transaction. A late request of one must not become part of the next transaction.
CHANGING_STEPS: Final = ADDING_STEPS | {Step.END}
# Steps that an abort needs. Any other request belongs to the transaction that is being aborted.
ENDING_STEPS: Final = frozenset({Step.FIND_COORDINATOR, Step.INIT_PRODUCER_ID, Step.END})
# Advice if the broker supports no suitable version of a request.
HINTS: Final = {
    Step.COMMIT_OFFSETS: (
        "brokers before 2.5 accept no member and generation of a group (KIP-447): give send_offsets_to_transaction only the group's id, "
        "which does not fence former members of the group"
    )
}
# Request versions that transaction version 2 needs, above those of version 1.
VERSIONS_OF_2: Final[dict[Step, int]] = {Step.COMMIT_OFFSETS: 5, Step.END: 5}
# The version of TxnOffsetCommit with topic ids (KIP-1319), in transaction version 2 only.
VERSION_WITH_IDS: Final = 6


def highest_version(step: Step, version: int, first: Offsets | None) -> int | None:
    """The highest version for a step's request; None: no limit of its own. `version`: of the transaction. `first`: its offsets, if any."""
    if step is Step.COMMIT_OFFSETS and first is not None and first.uses_topic_ids(version):
        return VERSION_WITH_IDS
    return VERSIONS_OF_2.get(step) if version > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRequests:
    """Builds the requests of one producer."""

    transactional_id: str
    identity: ProducerIdentity
    """In InitProducerId, NO_PRODUCER fences every earlier producer with the id; the current identity requests the next epoch."""
    timeout_ms: int

    def request(self, step: Step, to_add: Iterable[TopicPartition], first: Offsets | None, version: int, *, committed: bool) -> Any:
        """Build the request of a step. `version`: of the transaction. `first`: the offsets of the step, if it has any."""
        identity = self.identity
        whose: dict[str, Any] = {
            "transactional_id": self.transactional_id,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.epoch,
        }
        match step:
            case Step.FIND_COORDINATOR:
                return find_request(self.transactional_id, "transaction")
            case Step.INIT_PRODUCER_ID:
                return InitProducerIdRequest(**whose, transaction_timeout_ms=self.timeout_ms)
            case Step.ADD_PARTITIONS:
                topics = [
                    AddPartitionsToTxnTopic(name=topic, partitions=[tp.partition for tp in group]) for topic, group in _by_topic(to_add)
                ]
                return AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id=self.transactional_id,
                    v3_and_below_producer_id=identity.producer_id,
                    v3_and_below_producer_epoch=identity.epoch,
                    v3_and_below_topics=topics,
                )
            case Step.END:
                return EndTxnRequest(**whose, committed=committed)
        assert first is not None, "the other steps are about offsets"
        match step:
            case Step.FIND_GROUP:
                return find_request(first.group.group_id, "group")
            case Step.ADD_OFFSETS:
                return AddOffsetsToTxnRequest(**whose, group_id=first.group.group_id)
            case Step.CHECK_TOPICS:
                names = sorted({tp.topic for tp in first.offsets})
                return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False)
        # A request with topic ids can only be sent in a version that has them.
        ids = {tp.topic: topic_id for tp, topic_id in first.topic_ids.items()} if first.uses_topic_ids(version) else {}
        return TxnOffsetCommitRequest(**whose, **first.group._asdict(), topics=list(_offsets_by_topic(first.offsets, ids)))


def _by_topic(partitions: Iterable[TopicPartition]) -> Iterator[tuple[str, Iterator[TopicPartition]]]:
    return groupby(sorted(partitions), key=lambda tp: tp.topic)


def _offsets_by_topic(
    offsets: Mapping[TopicPartition, OffsetAndMetadata], topic_ids: Mapping[str, UUID]
) -> Iterator[TxnOffsetCommitRequestTopic]:
    for topic, partitions in _by_topic(offsets):
        entries = [
            TxnOffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=offsets[tp].offset,
                committed_leader_epoch=offsets[tp].leader_epoch,
                committed_metadata=offsets[tp].metadata,
            )
            for tp in partitions
        ]
        yield TxnOffsetCommitRequestTopic(name=topic, topic_id=topic_ids.get(topic, ZERO_UUID), partitions=entries)


# Handling of a response with several error codes: the most severe one decides, in this order.
_SEVERITIES: Final = (
    Handling.RESTART,
    Handling.FAIL,
    Handling.FIX_CONFIGURATION,
    Handling.ABORT,
    Handling.REFRESH_AND_RETRY,
    Handling.RETRY,
    Handling.COMPLETE,
)


def code_of_partitions(found: Iterable[tuple[TopicPartition, int]]) -> tuple[ErrorCode, TopicPartition | None]:
    """The most severe code in a response about partitions, and its partition; NONE if there is no error.

    OPERATION_NOT_ATTEMPTED only says that another partition's code stopped this one, so any other code comes before it.
    """
    worst: tuple[ErrorCode, TopicPartition | None] = (codes.NONE, None)
    for topic_partition, number in found:
        code = codes.by_number(number)
        if _severity(code) < _severity(worst[0]):
            worst = (code, topic_partition)
    return worst


def _severity(code: ErrorCode) -> tuple[int, bool]:
    handling = Handling.RETRY if code is codes.OPERATION_NOT_ATTEMPTED else handling_of(code, TRANSACTION)
    return _SEVERITIES.index(handling), code is codes.OPERATION_NOT_ATTEMPTED


def partition_codes(step: Step, response: Any, names: Mapping[UUID, str] = MappingProxyType({})) -> list[tuple[TopicPartition, int]]:
    """(partition, code) pairs of an AddPartitionsToTxn or TxnOffsetCommit response. `names`: topic names by id."""
    if step is Step.ADD_PARTITIONS:
        return [
            (TopicPartition(topic.name, result.partition_index), result.partition_error_code)
            for topic in response.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        ]
    return [
        (TopicPartition(topic.name or names.get(topic.topic_id, ""), result.partition_index), result.error_code)
        for topic in response.topics
        for result in topic.partitions
    ]


def code_of(step: Step, response: Any, first: Offsets | None, steady_ms: int) -> tuple[ErrorCode, str | None, TopicPartition | None]:
    """The deciding error code, the broker's message, and the partition. `first`: the offsets of the step, if it has any."""
    if step in (Step.FIND_COORDINATOR, Step.FIND_GROUP):
        found = parse_find_response(response)
        return found.code, found.message, None
    if step in (Step.ADD_PARTITIONS, Step.COMMIT_OFFSETS):
        names = {} if first is None else {topic_id: tp.topic for tp, topic_id in first.topic_ids.items()}
        code, topic_partition = code_of_partitions(partition_codes(step, response, names))
        return normalized_coordinator_code(code), None, topic_partition
    if step is Step.CHECK_TOPICS and first is not None and first.must_check_again(response, steady_ms):
        return (
            codes.UNKNOWN_TOPIC_ID,
            "the coordinator has another id for a topic that was read: the topic was recreated, or its metadata is old",
            None,
        )
    return normalized_coordinator_code(codes.by_number(response.error_code)), None, None
