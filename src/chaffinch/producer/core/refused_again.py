"""A batch that a broker refuses for now goes again, for minutes if need be, until `delivery.timeout.ms` is over: the log says why."""

from __future__ import annotations

from chaffinch.client.wait_log import Wait, WaitLog, in_words
from chaffinch.identifiers import counted
from chaffinch.producer.core.batches.batch import ProducerBatch
from chaffinch.producer.core.batches.outstanding import Outstanding
from chaffinch.producer.core.effects import Effect, Report
from chaffinch.producer.core.wiring import Wiring


class RefusedAgain:
    """One line after a while, about the batch that is refused then, and seldom another: however many partitions there are."""

    def __init__(self, wiring: Wiring, outstanding: Outstanding, out: list[Effect]) -> None:
        self._wiring = wiring
        self._outstanding = outstanding
        self._out = out
        self._wait_log = WaitLog()

    def sent_again(self, batch: ProducerBatch, now_ms: int) -> None:
        """A broker had the batch, which is to go again; why is in its `last_error`."""
        error = batch.last_error
        assert error is not None, "it goes again because of something"
        if batch.refused_since_ms is None:
            batch.refused_since_ms = now_ms
        timeout_ms = self._wiring.delivery_timeout_ms
        leader = self._wiring.cluster.leader_address(batch.topic_partition)
        what = f"{batch.topic_partition} at {leader}" if leader is not None else f"{batch.topic_partition}"
        who = f"{counted(self._outstanding.count(), 'record')} without an outcome"
        until_ms = batch.created_ms + timeout_ms
        line = self._wait_log.line(Wait(None, what, batch.refused_since_ms, in_words(error), who, until_ms, "delivery.timeout.ms"), now_ms)
        if line is not None:
            self._out.append(Report(line))
