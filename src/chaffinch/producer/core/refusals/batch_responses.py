"""What `culprits.judge` decides by: a broker's answer about one batch, what the producer knows about the batch then, and topic facts.

Topic facts are the settings that explain refusals which a broker cannot explain itself. They are asked for (DescribeConfigs) only when an
answer leaves a question open: KIP-135 and KIP-579 against brokers that do not have them (decisions 2, 19 and 21).
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
    """The culprits that an answer lists (KIP-467), as columns: a batch may have a hundred, and most of them are only counted.

    `indices` within the batch, ascending and each once, the words about each, and each one's own code, by its number; None where there
    is none.
    """

    indices: Sequence[int]
    messages: Sequence[str | None]
    numbers: Sequence[int | None]

    @classmethod
    def of(cls, entries: Sequence[BatchIndexAndErrorMessage]) -> RecordErrors:
        """What is listed. Of two entries about one record the last one counts."""
        last = {entry.batch_index: entry for entry in entries}
        indices = sorted(last)
        ordered = [last[index] for index in indices]
        messages = [entry.batch_index_error_message for entry in ordered]
        return cls(indices, messages, [entry.chaffinch_error_code for entry in ordered])

    def code(self, at: int) -> ErrorCode | None:
        """The own code of one of them; None where it has none, or success: then the batch's code is its own."""
        number = self.numbers[at]
        # A single record has no sequence of its own: 45 next to an index is always INVALID_COMPACTION_KEY.
        return codes.by_number(number, "kip", has_culprits=True) if number else None

    def __len__(self) -> int:
        return len(self.indices)


NO_RECORD_ERRORS: Final = RecordErrors((), (), ())
CLEANUP_POLICY: Final = "cleanup.policy"
MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
# A configuration may change: older facts are requested again.
TOPIC_CONFIG_AGE_MS_MAX: Final = 60_000


@dataclass(slots=True, kw_only=True)
class BatchResponse:
    """What a broker said about one batch: the code that stands for all, and the records that are to blame, ascending."""

    code: ErrorCode
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = -1
    record_errors: RecordErrors = NO_RECORD_ERRORS
    message: str | None = None

    @property
    def is_written(self) -> bool:
        """Whether the broker has the batch."""
        return handling_of(self.code) is Handling.COMPLETE


def read_response(response: PartitionProduceResponse, numbering: Numbering) -> BatchResponse:
    """A partition's part of a Produce answer, in the words of the error table."""
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
    """Each is None when it is not known. `is_requested`: the request was made, so there is nothing more to wait for."""

    is_compacted: bool | None = None
    min_insync_replicas: int | None = None
    replica_count: int | None = None
    is_requested: bool = False
    received_ms: int = 0

    @property
    def is_inconsistent(self) -> bool:
        """Whether acks=all can never be met: KIP-579."""
        return self.min_insync_replicas is not None and self.replica_count is not None and self.min_insync_replicas > self.replica_count


UNKNOWN: Final = TopicConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is known about the batch when the answer comes."""

    topic_partition: TopicPartition
    count: int
    keys_of: Callable[[npt.NDArray[np.int64]], ByteColumn]
    """The keys of records of the batch, whose indices ascend, as much of each as an error shows: reads the batch."""
    possibly_stored: bool = False
    in_transaction: bool = False
    is_idempotent: bool = True
    predecessors: PredecessorState = PredecessorState.CLEAR
    """What became of the batches with lower numbers."""
    may_retry: bool = True
    """Neither the attempts nor the delivery timeout are used up."""
    separations: int = 0
    topic_config: TopicConfig = UNKNOWN
    last_error: KafkaException | None = None
    questions: frozenset[Question] = frozenset()
    """What an exception handler is asked."""
    decision: HandlerDecision | None = None
    """What it answered; None: it was not asked yet."""
    is_unknown_too_long: bool = False
    """The topic is unknown for longer than `retry.unknown.topic.partition.ms`."""


def topic_config_request(topic: str) -> DescribeConfigsRequest:
    """Ask for the settings that matter here."""
    keys = [CLEANUP_POLICY, MIN_INSYNC_REPLICAS]
    resource = DescribeConfigsResource(resource_type=RESOURCE_TOPIC, resource_name=topic, configuration_keys=keys)
    return DescribeConfigsRequest(resources=[resource])


def read_topic_config(response: DescribeConfigsResponse | None, replica_count: int | None, steady_ms: int) -> TopicConfig:
    """The facts in an answer; None (no answer, or not allowed) leaves them unknown, but asked for."""
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
