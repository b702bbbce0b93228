"""Callers of flush and close, which wait until all earlier records have their outcome, and the number of callers that wait for memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.batches.outstanding import Outstanding
from chaffinch.producer.core.effects import CompleteCall
from chaffinch.producer.core.retrying_request import CLOSES_LIMIT, Waiter


@dataclass(slots=True)
class _Flush:
    """A call of flush. It completes when all records before these positions have their outcome."""

    call: Any
    positions: dict[TopicPartition, int]


@dataclass(slots=True)
class _Close:
    """The calls of close, and the earliest deadline among them."""

    calls: list[Any]
    deadline_ms: int


class Callers:
    """Callers that wait for flush, close or memory."""

    def __init__(self, outstanding: Outstanding) -> None:
        self.memory_waiters = 0
        """Number of callers that wait for memory in `send`."""
        self._outstanding = outstanding
        self._flushes: list[_Flush] = []
        self._close: _Close | None = None

    @property
    def has_any(self) -> bool:
        """Whether a caller waits for flush, close or memory, or close has been called."""
        return self.has_flush_or_close or self.memory_waiters > 0

    @property
    def has_flush_or_close(self) -> bool:
        """Whether a caller waits for flush, or close has been called."""
        return bool(self._flushes) or self._close is not None

    def flush(self, call: Any) -> None:
        """Add a call that waits for the records outstanding now."""
        self._flushes.append(_Flush(call, self._outstanding.end_positions()))

    def positions_changed(self) -> None:
        """Records have moved to other partitions: every flush now waits for all outstanding records."""
        for flush in self._flushes:
            flush.positions = self._outstanding.end_positions()

    def close(self, call: Any, deadline_ms: int) -> None:
        """Add a call of close. Records without an outcome at the deadline fail. The earliest deadline of several calls counts."""
        calls = [] if self._close is None else self._close.calls
        self._close = _Close([*calls, call], deadline_ms if self._close is None else min(deadline_ms, self._close.deadline_ms))

    @property
    def close_deadline_ms(self) -> int | None:
        """The deadline of close, which may have passed; None if close was not called."""
        return None if self._close is None else self._close.deadline_ms

    def is_late(self, steady_ms: int) -> bool:
        """Whether close's deadline has passed, so that records without an outcome must fail."""
        return self._close is not None and steady_ms >= self._close.deadline_ms

    def settle(self, steady_ms: int, *, others_wait: bool) -> Iterator[CompleteCall]:
        """Complete the calls whose wait is over. `others_wait`: a caller waits for the end of the transaction, and close waits with it."""
        for flush in list(self._flushes):
            for topic_partition, position in list(flush.positions.items()):
                outstanding = self._outstanding.first_position(topic_partition)
                if outstanding is None or outstanding >= position:
                    del flush.positions[topic_partition]
            if not flush.positions:
                self._flushes.remove(flush)
                yield CompleteCall(call=flush.call)
        if self._close is not None and self._close.calls:
            is_done = self._outstanding.is_empty and not others_wait
            if is_done or steady_ms >= self._close.deadline_ms:
                yield from [CompleteCall(call=call) for call in self._close.calls]
                self._close.calls.clear()

    def drop(self) -> list[Any]:
        """Remove and return all calls, because the sender thread has failed."""
        calls = [flush.call for flush in self._flushes] + ([] if self._close is None else self._close.calls)
        self._flushes.clear()
        return calls

    def waiters(self) -> Iterator[Waiter]:
        """The callers that wait until a deadline, named as in log lines. Only close has one."""
        if self.deadline_ms is not None:
            yield Waiter("close waits", self.deadline_ms, CLOSES_LIMIT)

    @property
    def deadline_ms(self) -> int | None:
        """When close stops waiting; None if no call of close waits."""
        return self._close.deadline_ms if self._close is not None and self._close.calls else None
