"""The express lane, as far as the core is concerned: a record that finds its producer quiet goes at once, in its caller's thread.

Who sends one record, waits for its outcome, and sends the next one waits each time for the sender thread to wake up, for the round in
which the core looks at everything there is, and for his own thread to wake up. While there is nothing else all of that comes to a few
steps: the record is a batch of its own, under the partition's next sequence; when its broker says that it is written, the sequence has
moved on by one.

So one record at a time may be out of the core's sight, as a `Parcel`. Either its broker says that it is written, and nothing else:
`written` takes that in. Or anything else becomes of it: then `adopt` makes of it the batch in flight that it would have been, and all
goes the ordinary way. Its shell adopts before the core takes in anything else, and before another record takes a number.

Callers do their part in their own threads, in which Ctrl-C may come with any call (`client/condition.py`). So what belongs together is
one statement, and what may be left out in between harms nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np

from chaffinch.client.addresses import Address
from chaffinch.client.effects import SendRequest
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.auxiliary_requests import IdentityKeeper
from chaffinch.producer.core.batches.accumulator import WaitingQueue, all_rows
from chaffinch.producer.core.batches.batch import Parcel, ProducerBatch, Receipts
from chaffinch.producer.core.batches.in_flight import PartitionQueue
from chaffinch.producer.core.batches.outstanding import Outstanding
from chaffinch.producer.core.batches.produce_requests import ProduceSent
from chaffinch.producer.core.callers import Callers
from chaffinch.producer.core.completer import BatchCompleter
from chaffinch.producer.core.sending import Sending
from chaffinch.producer.core.wait_logs import Outage
from chaffinch.producer.core.wiring import Wiring
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.records.few_records import encode_few


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """How records get to a partition, until the core has its next turn."""

    topic_partition: TopicPartition
    address: Address
    topic_id: UUID
    queue: PartitionQueue
    waiting: WaitingQueue


class Express:
    """All calls with the core's lock held, those of callers between two turns of the core, while everything has its outcome."""

    def __init__(
        self,
        wiring: Wiring,
        outstanding: Outstanding,
        completer: BatchCompleter,
        sending: Sending,
        identity: IdentityKeeper,
        outage: Outage,
        callers: Callers,
    ) -> None:
        self.parcel: Parcel | None = None
        """The record that is on its way."""
        self._wiring = wiring
        self._outstanding = outstanding
        self._accumulator = outstanding.accumulator
        self._completer = completer
        self._sending = sending
        self._identity = identity
        self._outage = outage
        self._callers = callers

    def track_to(self, topic_partition: TopicPartition, now_ms: int) -> Track | None:
        """How records get there; None where it takes more than to send them."""
        wiring = self._wiring
        address = wiring.cluster.leader_address(topic_partition)
        if address is None or self._identity.is_missing or not wiring.attempts.may_try(address, now_ms):
            return None
        queue, topic_id = self._outstanding.queue(topic_partition), wiring.cluster.topic_id(topic_partition.topic) or ZERO_UUID
        if queue.sequence_now(now_ms, self._identity.current) is None:
            return None
        return Track(topic_partition, address, topic_id, queue, self._accumulator.queue_of(topic_partition))

    def pack(self, track: Track, key: bytes | None, value: bytes | None, timestamp_ms: int, size: int, now_ms: int) -> Parcel | None:
        """One record of at most `size` bytes (`record_size`), for which there is memory; None where it has to go the ordinary way."""
        waiting, identity = track.waiting, self._identity.current
        sequence = track.queue.sequence_now(now_ms, identity)
        if sequence is None or waiting.growing is not None or waiting.closed:
            return None
        data = encode_few((key,), (value,), (timestamp_ms,), identity=identity, base_sequence=sequence)
        return Parcel(track, Receipts(), data, sequence, timestamp_ms, size, waiting.closed_until, now_ms)

    def depart(self, parcel: Parcel) -> None:
        """It is on its way from now on; its receipts hold the future."""
        waiting, accumulator = parcel.track.waiting, self._accumulator
        waiting.closed_until, accumulator.memory_free, self.parcel = parcel.position + 1, accumulator.memory_free - parcel.size, parcel

    def written(self, parcel: Parcel, outcome: Any, now_ms: int) -> bool:
        """It is written, and its future done, to which `outcome` gives the result (`Receipts.outcome`); False, and nothing is done, where
        others are to be told: they wait in another way, or watch, or wait for memory."""
        accumulator, track = self._accumulator, parcel.track
        if self._callers.for_memory or not track.queue.passed_by(parcel, outcome, now_ms):
            return False
        accumulator.memory_free, self.parcel = accumulator.memory_free + parcel.size, None
        self._count(parcel, now_ms)
        return True

    def _count(self, parcel: Parcel, now_ms: int) -> None:
        counts, track = self._wiring.counts, parcel.track
        counts["requests_sent"] += 1
        counts["batches_sent"] += 1
        counts["records_sent"] += 1
        counts["bytes_sent"] += len(parcel.data)
        counts["batches_written"] += 1
        counts["records_written"] += 1
        self._wiring.metadata.use(track.topic_partition.topic, now_ms)
        self._outage.answered(track.address, now_ms)

    def adopt(self, now_ms: int) -> SendRequest | None:
        """Make a batch in flight of what is on its way; the request with which it left. None where nothing is, or it is written already.
        By who gives the core its turns, not by callers."""
        parcel, self.parcel = self.parcel, None
        if parcel is None:
            return None
        if parcel.is_over:  # Its caller was interrupted just then.
            self._completer.release(parcel.size)
            self._count(parcel, now_ms)
            return None
        track = parcel.track
        batch = ProducerBatch(
            topic_partition=track.topic_partition,
            receipt=parcel.receipts,
            rows=all_rows(1),
            timestamps=np.array([parcel.timestamp_ms], np.int64),
            data=parcel.data,
            created_ms=parcel.created_ms,
            position=parcel.position,
            memory_bytes=parcel.size,
        )
        # Time is as it was then: of what has passed since the core does not know yet.
        numbered = track.queue.next_batch(parcel.created_ms, self._identity.current, lambda: batch)
        assert numbered is batch
        assert batch.base_sequence == parcel.base_sequence
        batch.sent_ms = parcel.created_ms
        sent = ProduceSent(track.address)
        sent.add(batch, track.topic_id)
        self._wiring.metadata.use(track.topic_partition.topic, now_ms)
        return self._sending.request_of(sent)
