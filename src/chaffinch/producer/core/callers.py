"""Callers that wait for the end of everything they handed over: flush and close."""

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
    """A caller that waits until everything before these positions has its outcome."""

    call: Any
    positions: dict[TopicPartition, int]


@dataclass(slots=True)
class _Close:
    """Those who wait for the end, and when the first of them has waited enough."""

    calls: list[Any]
    deadline_ms: int


class Callers:
    """Who waits."""

    def __init__(self, outstanding: Outstanding) -> None:
        self.memory_waiters = 0
        """How many wait in `send`."""
        self._outstanding = outstanding
        self._flushes: list[_Flush] = []
        self._close: _Close | None = None

    @property
    def has_any(self) -> bool:
        """Whether somebody waits for everything, or for memory; or did, and the producer is closed since."""
        return self.has_flush_or_close or self.memory_waiters > 0

    @property
    def has_flush_or_close(self) -> bool:
        """Whether somebody waits for everything; or did, and the producer is closed since."""
        return bool(self._flushes) or self._close is not None

    def flush(self, call: Any) -> None:
        """Somebody waits for what is outstanding now."""
        self._flushes.append(_Flush(call, self._outstanding.end_positions()))

    def positions_changed(self) -> None:
        """Records have moved to other partitions: every flush waits for all that is outstanding now."""
        for flush in self._flushes:
            flush.positions = self._outstanding.end_positions()

    def close(self, call: Any, deadline_ms: int) -> None:
        """Nothing more will come; what has no outcome at the deadline fails. Of several calls the earliest deadline counts."""
        calls = [] if self._close is None else self._close.calls
        self._close = _Close([*calls, call], deadline_ms if self._close is None else min(deadline_ms, self._close.deadline_ms))

    @property
    def close_deadline_ms(self) -> int | None:
        """When the wait of close is over, or was; None while nobody has called it."""
        return None if self._close is None else self._close.deadline_ms

    def is_late(self, steady_ms: int) -> bool:
        """Whether what has no outcome has to fail now."""
        return self._close is not None and steady_ms >= self._close.deadline_ms

    def settle(self, steady_ms: int, *, others_wait: bool) -> Iterator[CompleteCall]:
        """Those whose wait is over. `others_wait`: somebody waits for what a transaction comes to, and close with him."""
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
        """Flushes and close that will never be settled: the shell cannot go on."""
        calls = [flush.call for flush in self._flushes] + ([] if self._close is None else self._close.calls)
        self._flushes.clear()
        return calls

    def waiters(self) -> Iterator[Waiter]:
        """Who waits for no longer than he said, as a line of the log names him."""
        if self.deadline_ms is not None:
            yield Waiter("close waits", self.deadline_ms, CLOSES_LIMIT)

    @property
    def deadline_ms(self) -> int | None:
        """When close stops waiting."""
        return self._close.deadline_ms if self._close is not None and self._close.calls else None
