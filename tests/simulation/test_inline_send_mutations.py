"""Each guarantee of inline send broken once by hand: the simulation must find it within a few seeds.

That an inline record has a position of its own is a row of `tests/producer/test_inline_core.py`: batches of one position are
too rarely reordered here.
"""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.client.connections import BrokerConnection
from chaffinch.producer.core.batches.in_flight import PartitionQueue
from chaffinch.producer.inline_send import InlineCore, InlineRequest, InlineSender
from tests.simulation.mutation import PLAIN, Mutation, Patch, find, returns


def keeps_the_sequence(patch: Patch) -> None:
    """The next batch reuses the sequence of the inline record."""
    complete_inline = PartitionQueue.complete_inline

    def stays(self: PartitionQueue, *arguments: Any) -> bool:
        sequence = self._sequence_next
        is_complete = complete_inline(self, *arguments)
        self._sequence_next = sequence
        return is_complete

    patch.setattr(PartitionQueue, "complete_inline", stays)


def forgets_the_number(patch: Patch) -> None:
    """An inline record gets a sequence beyond the next one."""
    inline_sequence = PartitionQueue.inline_sequence

    def skips(self: PartitionQueue, *arguments: Any) -> int | None:
        found = inline_sequence(self, *arguments)
        return found if found is None or found < 0 else found + 1

    patch.setattr(PartitionQueue, "inline_sequence", skips)


def is_never_in_flight(patch: Patch) -> None:
    """What is adopted is sent, and no batch of its partition."""
    adopt = InlineCore.adopt

    def forgets(self: InlineCore, steady_ms: int) -> Any:
        inline_request, request = self._core.inline_request, adopt(self, steady_ms)
        if inline_request is not None and request is not None:
            inline_request.target.queue.in_flight.clear()
        return request

    patch.setattr(InlineCore, "adopt", forgets)


def adopts_what_is_over(patch: Patch) -> None:
    """A record that is written and reported is nevertheless adopted as a batch in flight."""
    written = InlineCore.written

    def is_kept(self: InlineCore, inline_request: Any, *arguments: Any) -> None:
        written(self, inline_request, *arguments)
        self._core.inline_request = inline_request

    patch.setattr(InlineCore, "written", is_kept)
    patch.setattr(InlineRequest, "is_complete", False)


def goes_on_after_interruptions(patch: Patch) -> None:
    """A connection with a request or an answer of which bytes are missing is kept."""
    patch.setattr(InlineRequest, "is_interrupted", False)


def writes_again(patch: Patch) -> None:
    """Of what is adopted the first bytes are written once more."""
    adopt = BrokerConnection.adopt

    def from_the_start(self: BrokerConnection, *arguments: Any, **known: Any) -> None:
        adopt(self, *arguments, **{**known, "written": 0})

    patch.setattr(BrokerConnection, "adopt", from_the_start)


def reads_behind_half_an_answer(patch: Patch) -> None:
    """The second read is taken for the whole response."""
    receive = InlineSender._receive

    def forgets(self: InlineSender, inline_request: Any, *arguments: Any) -> bool:
        is_complete = receive(self, inline_request, *arguments)
        inline_request.is_tried = False
        return is_complete

    patch.setattr(InlineSender, "_receive", forgets)


def forgets_memory_waiters(patch: Patch) -> None:
    """Once real: an inline record freed its memory, and callers waiting for memory were not notified."""
    written = InlineCore.written

    def careless(self: InlineCore, *arguments: Any) -> bool:
        callers = self._core.callers
        waiting, callers.memory_waiters = callers.memory_waiters, 0
        try:
            return written(self, *arguments)
        finally:
            callers.memory_waiters = waiting

    patch.setattr(InlineCore, "written", careless)


INLINE_SEND: dict[str, Any] = {**PLAIN, "has_inline_send": True}
LITTLE_MEMORY: dict[str, Any] = {**INLINE_SEND, "value_bytes_max": 8_000}
MUTATIONS = [
    Mutation(name="its sequence is used again", breaks=keeps_the_sequence, knobs=INLINE_SEND, says=("is not there",)),
    Mutation(name="it takes another sequence than the next", breaks=forgets_the_number, knobs=INLINE_SEND, raises=("(adopt, line",)),
    Mutation(name="adopted, it is never in flight", breaks=is_never_in_flight, knobs=INLINE_SEND, raises=("not under way",)),
    Mutation(name="it is never adopted", breaks=returns(InlineCore, "adopt", None), knobs=INLINE_SEND, says=("stuck: work is left",)),
    Mutation(name="a completed record is adopted", breaks=adopts_what_is_over, knobs=INLINE_SEND, raises=("(adopt, line",)),
    Mutation(name="an interrupted connection is kept", breaks=goes_on_after_interruptions, knobs=INLINE_SEND, raises=("the protocol",)),
    Mutation(name="sent bytes are sent again", breaks=writes_again, knobs=INLINE_SEND, raises=("the protocol",)),
    Mutation(name="half an answer is read over", breaks=reads_behind_half_an_answer, knobs=INLINE_SEND, raises=("the protocol",)),
    Mutation(
        name="once real: its memory is free, and waiting callers are not notified",
        breaks=forgets_memory_waiters,
        knobs=LITTLE_MEMORY,
        raises=("memory is free",),
    ),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_is_found(mutation: Mutation, monkeypatch: Patch) -> None:
    find(mutation, monkeypatch)
