"""Inputs of `culprits.judge`: a broker's response about one batch, the state of the batch, and the topic's configuration.

The topic's configuration explains refusals of brokers that do not implement KIP-135 and KIP-579 (decisions 2, 19 and 21). It is requested
(DescribeConfigs) only if a response is ambiguous without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from chaffinch.errors import ErrorCode, KafkaException, codes
from chaffinch.errors.codes import Numbering
from chaffinch.errors.handling import Handling, handling_of
from chaffinch.identifiers import NO_OFFSET, TopicPartition
from chaffinch.producer.core.batches.in_flight import PredecessorState
from chaffinch.producer.core.exception_handler import HandlerDecision, Question
from chaffinch.protocol.messages.describe_configs import (
    RESOURCE_TOPIC,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from chaffinch.protocol.messages.produce import BatchIndexAndErrorMessage, PartitionProduceResponse
from chaffinch.records.byte_columns import ByteColumn


@dataclass(frozen=True, slots=True)
class RecordErrors:
    """`record_errors` of a response (KIP-467), as columns: a batch may have a hundred culprits, and most of them are only counted.

    `indices` within the batch, ascending and unique; the message about each; and the number of its own error code. None: not given.
    """

    indices: Sequence[int]
    messages: Sequence[str | None]
    numbers: Sequence[int | None]

    @classmethod
    def of(cls, entries: Sequence[BatchIndexAndErrorMessage]) -> RecordErrors:
        """Read the entries. The last of two entries about one record counts."""
        last = {entry.batch_index: entry for entry in entries}
        indices = sorted(last)
        ordered = [last[index] for index in indices]
        messages = [entry.batch_index_error_message for entry in ordered]
        return cls(indices, messages, [entry.chaffinch_error_code for entry in ordered])

    def code(self, at: int) -> ErrorCode | None:
        """A culprit's own error code; None if it has none, or NONE: then the batch's code applies."""
        number = self.numbers[at]
        # A single record has no sequence of its own: 45 next to an index is always INVALID_COMPACTION_KEY.
        return codes.by_number(number, "kip", has_culprits=True) if number else None

    def __len__(self) -> int:
        return len(self.indices)


NO_RECORD_ERRORS: Final = RecordErrors((), (), ())
CLEANUP_POLICY: Final = "cleanup.policy"
MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
# A topic's configuration may change: an older one is requested again.
TOPIC_CONFIG_AGE_MS_MAX: Final = 60_000


@dataclass(slots=True, kw_only=True)
class BatchResponse:
    """A broker's response about one batch: the batch's error code, and the culprits in ascending order."""

    code: ErrorCode
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = -1
    record_errors: RecordErrors = NO_RECORD_ERRORS
    message: str | None = None

    @property
    def is_written(self) -> bool:
        """Whether the broker has stored the batch."""
        return handling_of(self.code) is Handling.COMPLETE


def read_response(response: PartitionProduceResponse, numbering: Numbering) -> BatchResponse:
    """Read a partition's part of a Produce response, with the codes of the error table."""
    record_errors = RecordErrors.of(response.record_errors) if response.record_errors else NO_RECORD_ERRORS
    return BatchResponse(
        code=codes.by_number(response.error_code, numbering, has_culprits=bool(record_errors), message=response.error_message),
        base_offset=response.base_offset,
        log_append_time_ms=response.log_append_time_ms,
        record_errors=record_errors,
        message=response.error_message,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic's configuration; unknown values are None. `is_requested`: the request was made, so there is nothing more to wait for."""

    is_compacted: bool | None = None
    min_insync_replicas: int | None = None
    replica_count: int | None = None
    is_requested: bool = False
    received_ms: int = 0

    @property
    def is_inconsistent(self) -> bool:
        """Whether acks=all can never succeed (KIP-579)."""
        return self.min_insync_replicas is not None and self.replica_count is not None and self.min_insync_replicas > self.replica_count


UNKNOWN: Final = TopicConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """State of the batch when the response arrives."""

    topic_partition: TopicPartition
    count: int
    keys_of: Callable[[npt.NDArray[np.int64]], ByteColumn]
    """Reads the keys of records of the batch, by ascending indices, cut to the length that an error shows."""
    possibly_stored: bool = False
    in_transaction: bool = False
    is_idempotent: bool = True
    predecessors: PredecessorState = PredecessorState.CLEAR
    """State of the batches with lower sequence numbers."""
    may_retry: bool = True
    """Neither the attempts nor the delivery timeout are used up."""
    removals: int = 0
    topic_config: TopicConfig = UNKNOWN
    last_error: KafkaException | None = None
    questions: frozenset[Question] = frozenset()
    """The cases that an exception handler decides."""
    decision: HandlerDecision | None = None
    """Its decision; None: it was not called yet."""
    is_unknown_too_long: bool = False
    """The topic has been unknown for longer than `retry.unknown.topic.partition.ms`."""


def topic_config_request(topic: str) -> DescribeConfigsRequest:
    """DescribeConfigs for the two settings that matter here."""
    keys = [CLEANUP_POLICY, MIN_INSYNC_REPLICAS]
    resource = DescribeConfigsResource(resource_type=RESOURCE_TOPIC, resource_name=topic, configuration_keys=keys)
    return DescribeConfigsRequest(resources=[resource])


def read_topic_config(response: DescribeConfigsResponse | None, replica_count: int | None, steady_ms: int) -> TopicConfig:
    """The configuration in a response. Without a response, or without permission, the values are unknown, but requested."""
    result = response.results[0] if response is not None and response.results and not response.results[0].error_code else None
    values = {row.name: row.value for row in result.configs} if result is not None else {}
    policy, minimum = values.get(CLEANUP_POLICY), values.get(MIN_INSYNC_REPLICAS)
    return TopicConfig(
        is_compacted=None if policy is None else "compact" in [part.strip() for part in policy.split(",")],
        min_insync_replicas=int(minimum) if minimum is not None and minimum.isdigit() else None,
        replica_count=replica_count,
        is_requested=True,
        received_ms=steady_ms,
    )
