"""Callers that wait for a step of the transaction, with their deadlines, and offsets on their way into the transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final
from uuid import UUID

from chaffinch.errors import KafkaException, TimeoutException
from chaffinch.errors.copies import copy_for_raise
from chaffinch.identifiers import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition, kafka_id
from chaffinch.producer.core.effects import CompleteCall, Effect, FailCall
from chaffinch.producer.core.retrying_request import CLOSES_LIMIT, Waiter
from chaffinch.producer.records import GroupMetadata
from chaffinch.protocol.messages.metadata import MetadataResponse
from chaffinch.protocol.primitives import ZERO_UUID

LAG_MS: Final = 3_000
"""How long the metadata of a lagging coordinator may contain the id of a deleted topic."""


@dataclass(slots=True)
class Caller:
    """A waiting call and its deadline."""

    call: Any
    name: str
    """Name of the public method."""
    deadline_ms: int
    closes_within: str | None = None
    """As in AbortCalled."""

    @property
    def limit(self) -> str:
        """Name of the limit that sets the deadline, for error texts and the log."""
        return self.closes_within or "max.block.ms"


@dataclass(slots=True)
class Offsets:
    """Offsets of one group that are to be added to the transaction."""

    caller: Caller
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    group: GroupMetadata
    is_group_added: bool = False
    is_checked: bool = False
    """Whether the topics' ids have been compared with the group coordinator's metadata, since the last attempt."""
    is_topic_id_unknown: bool = False
    """The coordinator did not know one of the topic ids."""
    lacks_topic_ids: bool = False
    """The coordinator does not accept topic ids (before Apache Kafka 4.4)."""
    differs_since_ms: int | None = None
    """When the coordinator's metadata was first seen with a different id for a topic."""

    @property
    def topic_ids(self) -> dict[TopicPartition, UUID]:
        """Ids of the topics that the consumer read, as far as known."""
        known = self.group.topic_ids if isinstance(self.group, ConsumerGroupMetadata) else {}
        return {tp: known[tp] for tp in self.offsets if known.get(tp, ZERO_UUID) != ZERO_UUID}

    def uses_topic_ids(self, version: int) -> bool:
        """Whether the offsets are sent with topic ids, so that the coordinator refuses those of a deleted topic."""
        return version > 1 and not self.lacks_topic_ids and len(self.topic_ids) == len(self.offsets)

    def needs_topic_check(self, version: int) -> bool:
        """Whether the topic ids must be compared with the coordinator's metadata first: it cannot refuse offsets, or has refused some."""
        return not self.is_checked and (self.is_topic_id_unknown or (bool(self.topic_ids) and not self.uses_topic_ids(version)))

    def attempted(self, *, is_topic_id_unknown: bool) -> None:
        """An attempt got a response: the comparison made before it is outdated."""
        self.is_checked, self.is_topic_id_unknown = False, is_topic_id_unknown

    def _of_deleted_topics(self, now: Mapping[str | None, UUID]) -> dict[TopicPartition, UUID]:
        return {tp: topic_id for tp, topic_id in self.topic_ids.items() if now.get(tp.topic, topic_id) != topic_id}

    def must_check_again(self, response: MetadataResponse, steady_ms: int) -> bool:
        """Whether the coordinator's metadata may lag behind. Leaving out an offset by mistake would process its records twice."""
        if not self._of_deleted_topics(_ids(response)):
            self.differs_since_ms = None
        elif self.differs_since_ms is None:
            self.differs_since_ms = steady_ms
        return self.differs_since_ms is not None and steady_ms - self.differs_since_ms < LAG_MS

    def check(self, response: MetadataResponse) -> list[str]:
        """Drop offsets of topics that were deleted and created again: they are invalid in the new topic. Returns the log lines."""
        self.is_checked, self.is_topic_id_unknown, self.differs_since_ms = True, False, None
        now = _ids(response)
        deleted = self._of_deleted_topics(now)
        self.offsets = {tp: offset for tp, offset in self.offsets.items() if tp not in deleted}
        changed = {tp.topic: topic_id for tp, topic_id in deleted.items()}
        return [
            f"topic {topic!r} was deleted and created again: its id was {kafka_id(before)} and is {kafka_id(now[topic])} now; the offsets"
            f" of group {self.group.group_id!r} in the deleted topic are left out of the transaction"
            for topic, before in changed.items()
        ]


def _ids(response: MetadataResponse) -> dict[str | None, UUID]:
    return {topic.name: topic.topic_id for topic in response.topics if not topic.error_code and topic.topic_id != ZERO_UUID}


class Callers:
    """Waiting callers: of `init_transactions`, of calls that end the transaction, and with offsets, in the order of their calls."""

    def __init__(self) -> None:
        self.of_init: list[Caller] = []
        self.of_end: list[Caller] = []
        self.of_offsets: list[Offsets] = []
        self.call_to_repeat: str | None = None
        """The call that last timed out, if none has succeeded since."""

    def _all(self) -> Iterator[Caller]:
        return chain(self.of_init, self.of_end, (entry.caller for entry in self.of_offsets))

    @property
    def has_any(self) -> bool:
        return bool(self.of_init or self.of_end or self.of_offsets)

    @property
    def block_close(self) -> bool:
        """Whether close must wait for these callers. Callers of `init_transactions` do not count: they leave nothing open."""
        return bool(self.of_end or self.of_offsets)

    @property
    def deadline_ms(self) -> int | None:
        """The earliest deadline."""
        return min([caller.deadline_ms for caller in self._all()], default=None)

    def has_expired(self, steady_ms: int) -> bool:
        """Whether a deadline has passed."""
        return self.deadline_ms is not None and self.deadline_ms <= steady_ms

    def waiters(self) -> Iterator[Waiter]:
        """All callers, named as in log lines."""
        return (Waiter(f"{caller.name} waits", caller.deadline_ms, caller.limit) for caller in self._all())

    @property
    def is_closing(self) -> bool:
        """Whether the producer's own close waits for the end of the transaction."""
        return any(caller.closes_within is not None for caller in self.of_end)

    def shorten_close(self, deadline_ms: int) -> None:
        """Shorten the wait of close for its abort to the deadline of another call of close."""
        for caller in self.of_end:
            if caller.closes_within is not None and deadline_ms < caller.deadline_ms:
                caller.deadline_ms, caller.closes_within = deadline_ms, CLOSES_LIMIT

    def consume_repeat(self, name: str) -> bool:
        """Whether this call repeats the one that timed out. If so, that one is forgotten."""
        is_repeated = name == self.call_to_repeat
        if is_repeated:
            self.call_to_repeat = None
        return is_repeated

    def expire(self, steady_ms: int, why: Callable[[], str], cause: KafkaException | None) -> list[Effect]:
        """Fail the callers of init, commit and abort whose deadline has passed; the step goes on. `why` and `cause`: its last error."""
        effects: list[Effect] = []
        for callers, name in ((self.of_init, "init_transactions"), (self.of_end, "ending the transaction")):
            for caller in [each for each in callers if each.deadline_ms <= steady_ms]:
                callers.remove(caller)
                reason, then = why(), "close does not wait for its response"
                if caller.closes_within is None:
                    self.call_to_repeat, then = caller.name, "it continues, and may be called again"
                error = TimeoutException(f"{name} is not done within {caller.limit}{reason and ': '}{reason}; {then}")
                error.__cause__ = cause
                effects.append(FailCall(call=caller.call, error=error))
        return effects

    def fail_offsets(self, error: KafkaException) -> list[Effect]:
        """Give up all waiting offsets, and fail their callers."""
        callers = [entry.caller for entry in self.of_offsets]
        self.of_offsets.clear()
        return fail(callers, error)


def fail(callers: list[Caller], error: KafkaException) -> list[Effect]:
    """Fail the callers, each with its own copy of the error, and remove them."""
    failed: list[Effect] = [FailCall(call=caller.call, error=copy_for_raise(error)) for caller in callers]
    callers.clear()
    return failed


def complete(callers: list[Caller]) -> list[Effect]:
    """Complete the callers, and remove them."""
    done: list[Effect] = [CompleteCall(call=caller.call) for caller in callers]
    callers.clear()
    return done
