"""Sends staged batches to their partitions inside one transaction, and finds the records that the broker refuses.

A generator beneath `protocol.py`, with the same operations.

- The batches of a partition are sent in order, with consecutive sequences from 0. The first is sent alone: a broker without state of the
  producer accepts any sequence, so nothing may overtake it (decision 14). After its acknowledgement up to `IN_FLIGHT_MAX` are in flight,
  the number of batches over which brokers recognise duplicates (decision 33).
- After the first refusal in a partition nothing more is sent there. When all responses have arrived, the refused batch decides:
  - retriable or lost: resend from there with the same sequences; the broker recognises duplicates.
  - refused with culprits: they become dead letters, and the innocents are resent. A refused batch that is certainly not stored uses no
    sequence, so the numbers are reused.
  - refused without culprits: halve the batch until one record is left.
- Retries wait as in any client (retry.backoff.ms), separately for each partition, while the others continue.
- If an earlier attempt at a refused batch may be stored, its sequences are unreliable: `RestartTransaction`. The whole transaction is
  aborted and pushed again from the staging (decision 13).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from itertools import count

from chaffinch.client import wait_log
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode, Group, Stored
from chaffinch.identifiers import ProducerIdentity, TopicPartition, sequence_add
from chaffinch.spark.commit.messages import Rejection, StagedBatch, StagedBytes
from chaffinch.spark.commit.operations import BatchResponse, NextResponse, Operation, Reply, SendBatch, Step, Wait
from chaffinch.spark.refusals import Refusal, Remedy, advised

IN_FLIGHT_MAX = 5
BYTES_IN_FLIGHT_MAX = 32 << 20
"""Bytes in flight over all partitions: the memory limit of the pushing process, plus one batch."""
ROUNDS_MAX = 8
"""Brokers that name one culprit at a time would make this quadratic: after this many rounds the rest is halved (decision 12)."""
# The record itself is at fault; if it is alone in its batch, no further proof is needed.
RECORD_CODES = frozenset({
    codes.INVALID_RECORD, codes.INVALID_TIMESTAMP, codes.INVALID_COMPACTION_KEY, codes.MESSAGE_TOO_LARGE, codes.RECORD_LIST_TOO_LARGE,
})  # fmt: skip
FENCED_CODES = frozenset({codes.INVALID_PRODUCER_EPOCH, codes.PRODUCER_FENCED, codes.INVALID_PRODUCER_ID_MAPPING})
# The state of the transaction or of the sequences can be repaired only with a new epoch.
RESTART_CODES = frozenset({
    codes.OUT_OF_ORDER_SEQUENCE_NUMBER, codes.UNKNOWN_PRODUCER_ID, codes.INVALID_TXN_STATE, codes.TRANSACTION_ABORTABLE,
    codes.CONCURRENT_TRANSACTIONS,
})  # fmt: skip

HandleCulprits = Callable[[StagedBatch, tuple[Rejection, ...]], Generator[Operation, Reply, None]]


class Fenced(Exception):
    """The broker has another epoch of this producer: from another writer, or from the coordinator after a timeout."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text.rstrip(" .")  # More text always follows.


class RestartTransaction(Exception):
    """This transaction cannot be completed, but the staging is complete: abort it and push everything again."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, text)
        self.name, self.text = name, text


@dataclass(slots=True, kw_only=True)
class _QueuedBatch:
    """A staged batch, or a part of one, in the queue of its partition."""

    batch: StagedBatch
    record_indices: tuple[int, ...] | None = None
    response: BatchResponse | None = None
    possibly_stored: bool = False
    rounds: int = 0
    """How often culprits were removed from it."""

    @property
    def record_count(self) -> int:
        return self.batch.record_count if self.record_indices is None else len(self.record_indices)

    def indices(self) -> tuple[int, ...]:
        return tuple(range(self.batch.record_count)) if self.record_indices is None else self.record_indices


@dataclass(slots=True, kw_only=True)
class _Partition:
    """The queue of one partition: its first `in_flight` batches were sent, the others wait."""

    topic_partition: TopicPartition
    queue: deque[_QueuedBatch] = field(default_factory=deque)
    in_flight: int = 0
    window: int = 1
    sequence: int = 0
    """Sequence of the first record in the queue."""
    is_stopped: bool = False
    refresh: bool = False
    failures: int = 0
    """Number of consecutive failures that are retried."""
    due_ms: int = 0
    """Earliest time of the next send."""
    failing_since_ms: int = 0
    reason: str = ""
    """Reason of the last failure that is retried."""

    def next_sequence(self) -> int:
        return sequence_add(self.sequence, sum(self.queue[index].record_count for index in range(self.in_flight)))


@dataclass(slots=True)
class Pushed:
    """Amounts that one attempt stored: bytes of record batches, and how many of these came from staging files."""

    byte_count: int = 0
    staged_bytes: int = 0
    files: set[str] = field(default_factory=set)

    def add(self, staged: StagedBytes, sent_bytes: int | None) -> None:
        """A batch is stored. `sent_bytes`: less than staged if the broker refused some of its records."""
        size = staged.byte_count if sent_bytes is None else sent_bytes
        self.byte_count += size
        if staged.file is not None:
            self.staged_bytes += size
            self.files.add(staged.file)


class Push:
    """One attempt to push all batches of a transaction. Sequences begin at 0 with its identity."""

    def __init__(self, identity: ProducerIdentity, deadline_ms: int, deadline_name: str, wait_ms: Callable[[int], int]) -> None:
        self._identity = identity
        self._wait_ms = wait_ms
        self._steady_ms = 0
        self._send_ids = count(1)
        self._deadline_ms = deadline_ms
        self._deadline_name = deadline_name
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._in_flight: dict[int, tuple[_Partition, _QueuedBatch]] = {}
        self._bytes_in_flight = 0
        self.last_response_ms = 0
        """Time of the last response; 0 before any."""
        self.pushed = Pushed()

    def send(self, step: Step, batches: Iterable[StagedBatch], handle_culprits: HandleCulprits) -> Generator[Operation, Reply, None]:
        """Returns when every record is acknowledged or handled as a culprit. Raises Fenced, RestartTransaction or Refusal.

        `handle_culprits` is called with the culprits of one batch (indices of the staged batch) and may raise a Refusal.
        """
        for batch in batches:
            partition = self._partitions.setdefault(batch.topic_partition, _Partition(topic_partition=batch.topic_partition))
            partition.queue.append(_QueuedBatch(batch=batch))
        try:
            while any(partition.queue for partition in self._partitions.values()):
                yield from self._fill(step)
                due_ms = self._next_due_ms()
                if self._in_flight:
                    reply = yield NextResponse(step=step, until_ms=due_ms, wait_info=self._wait_info())
                else:
                    assert due_ms is not None, "a partition without a batch in flight waits for its backoff"
                    reply = yield Wait(step=step, ms=due_ms - self._steady_ms, wait_info=self._wait_info())
                self._steady_ms = reply.steady_ms
                if reply.value is not None:
                    yield from self._handle_response(reply.value, handle_culprits)
        except RestartTransaction:
            yield from self._drain(step)
            raise

    def _handle_response(self, response: BatchResponse, handle_culprits: HandleCulprits) -> Generator[Operation, Reply, None]:
        self.last_response_ms = self._steady_ms
        partition = self._record_response(response)
        if partition.is_stopped and partition.in_flight == 0:
            yield from self._resolve(partition, handle_culprits)

    def _wait_info(self) -> wait_log.Wait | None:
        """The wait of the partition that has failed for longest."""
        failing = [found for found in self._partitions.values() if found.queue and found.failures]
        if not failing:
            return None
        first = min(failing, key=lambda found: found.failing_since_ms)
        what = f"an acknowledged batch for {first.topic_partition}"
        return wait_log.Wait(
            what, what, first.failing_since_ms, first.reason, until_ms=self._deadline_ms, limit=self._deadline_name.partition("=")[0]
        )

    def _next_due_ms(self) -> int | None:
        """End of the first backoff of a partition; None if none waits."""
        return min((found.due_ms for found in self._partitions.values() if found.queue and found.due_ms > self._steady_ms), default=None)

    def _drain(self, step: Step) -> Generator[Operation, Reply, None]:
        """Waits for every batch in flight. A batch that reaches its leader after the abort, under an epoch that is still valid there, would
        open a transaction that ends with the next commit: brokers before 3.6 do not verify it with the coordinator (KIP-890).
        """
        while self._in_flight:
            reply = yield NextResponse(step=step)
            del self._in_flight[reply.value.send_id]

    def _fill(self, step: Step) -> Generator[Operation, Reply, None]:
        """Sends as many batches as the windows allow, one per partition in turn."""
        found = True
        while found:
            found = False
            for partition in self._partitions.values():
                is_waiting = partition.is_stopped or partition.due_ms > self._steady_ms
                if is_waiting or partition.in_flight >= min(partition.window, len(partition.queue)):
                    continue
                queued = partition.queue[partition.in_flight]
                size = queued.batch.bytes.byte_count
                if self._in_flight and self._bytes_in_flight + size > BYTES_IN_FLIGHT_MAX:
                    return
                yield self._dispatch(step, partition, queued)
                found = True

    def _dispatch(self, step: Step, partition: _Partition, queued: _QueuedBatch) -> SendBatch:
        send_id = next(self._send_ids)
        self._in_flight[send_id] = (partition, queued)
        self._bytes_in_flight += queued.batch.bytes.byte_count
        operation = SendBatch(
            step=step, send_id=send_id, batch=queued.batch, record_indices=queued.record_indices, identity=self._identity,
            base_sequence=partition.next_sequence(), refresh=partition.refresh,
        )  # fmt: skip
        partition.in_flight += 1
        partition.refresh = False
        return operation

    def _record_response(self, response: BatchResponse) -> _Partition:
        """Assigns a response to its batch; acknowledged batches leave the head of the queue."""
        partition, queued = self._in_flight.pop(response.send_id)
        self._bytes_in_flight -= queued.batch.bytes.byte_count
        partition.in_flight -= 1
        if response.lost is None and response.code in (codes.NONE, codes.DUPLICATE_SEQUENCE_NUMBER):
            if queued is not partition.queue[0]:
                raise RestartTransaction(
                    "OUT_OF_ORDER_SEQUENCE_NUMBER", f"{partition.topic_partition} stored a batch whose predecessor it refused"
                )
            partition.queue.popleft()
            self.pushed.add(queued.batch.bytes, response.byte_count)
            partition.sequence = sequence_add(partition.sequence, queued.record_count)
            partition.window = IN_FLIGHT_MAX
            partition.failures = 0
            return partition
        queued.response = response
        queued.possibly_stored |= _is_possibly_stored(response)
        partition.is_stopped = True
        return partition

    def _resolve(self, partition: _Partition, handle_culprits: HandleCulprits) -> Generator[Operation, Reply, None]:
        """All responses of a stopped partition have arrived: the response to the head of its queue is the reason for the stop."""
        head = partition.queue[0]
        response = head.response
        assert response is not None, "the head of a stopped partition's queue has a response: sequences are consecutive"
        if response.lost is not None or (response.code is not None and response.code.is_retriable and response.code not in RESTART_CODES):
            self._retry(partition, response)
        else:
            assert response.code is not None
            self._raise_unless_record_error(partition, response.code, response)
            if any(queued.possibly_stored for queued in partition.queue):
                raise RestartTransaction(
                    response.code.name, f"{partition.topic_partition} refused a batch of which an earlier attempt may be stored"
                )
            yield from self._replace_head(partition, head, response, handle_culprits)
        for queued in partition.queue:
            queued.response = None
        partition.is_stopped = False

    def _retry(self, partition: _Partition, response: BatchResponse) -> None:
        reason = (
            response.lost.reason
            if response.lost is not None
            else f"{response.code.name if response.code else ''} {response.message}".strip()
        )
        if self._steady_ms >= self._deadline_ms:
            raise Refusal(
                Group.TRANSACTION_ABORTABLE, "REQUEST_TIMED_OUT",
                f"the batch for {partition.topic_partition} was not acknowledged within {self._deadline_name}; the last error was: "
                f"{reason}; the transaction is aborted, no rows of the batch are visible", Remedy.AGAIN,
            )  # fmt: skip
        partition.refresh = True
        partition.failing_since_ms = partition.failing_since_ms if partition.failures else self._steady_ms
        partition.reason = reason
        partition.failures += 1
        partition.due_ms = self._steady_ms + self._wait_ms(partition.failures)

    @staticmethod
    def _raise_unless_record_error(partition: _Partition, code: ErrorCode, response: BatchResponse) -> None:
        where = f"{partition.topic_partition}: {response.message or code.text}"
        if code in FENCED_CODES:
            raise Fenced(code, where)
        if code in RESTART_CODES:
            raise RestartTransaction(code.name, where)
        if code not in RECORD_CODES and not response.culprits:
            raise advised(code.group_produce, code.name, f"{where}; the transaction is aborted, no rows of the batch are visible")

    @staticmethod
    def _replace_head(
        partition: _Partition, head: _QueuedBatch, response: BatchResponse, handle_culprits: HandleCulprits
    ) -> Generator[Operation, Reply, None]:
        """Replaces a refused batch with its innocent records, or with its halves."""
        indices = head.indices()
        culprits = {index: (code, message) for index, code, message in response.culprits}
        assert response.code is not None
        if any(not 0 <= index < len(indices) for index in culprits):
            raise Refusal(
                Group.APPLICATION_RECOVERABLE, response.code.name,
                f"{partition.topic_partition} blamed record {max(culprits)} of a batch of {len(indices)}; the transaction is aborted",
                Remedy.AGAIN,
            )  # fmt: skip
        if not culprits and len(indices) == 1:
            culprits = {0: (response.code, response.message or response.code.text)}
        partition.queue.popleft()
        if not culprits:
            partition.queue.extendleft(_halves(head.batch, indices))
            return
        rejections = tuple(
            Rejection(row=indices[index], topic_partition=partition.topic_partition, code=code, message=message)
            for index, (code, message) in sorted(culprits.items())
        )
        yield from handle_culprits(head.batch, rejections)
        innocents = tuple(index for position, index in enumerate(indices) if position not in culprits)
        if head.rounds + 1 >= ROUNDS_MAX and len(innocents) > 1:
            partition.queue.extendleft(_halves(head.batch, innocents))
        elif innocents:
            partition.queue.appendleft(_QueuedBatch(batch=head.batch, record_indices=innocents, rounds=head.rounds + 1))


def _is_possibly_stored(response: BatchResponse) -> bool:
    """Whether this attempt may be stored nevertheless. A broker that names culprits has checked and refused the batch."""
    if response.lost is not None:
        return response.lost.was_sent
    return response.code is not None and not response.culprits and response.code.stored is not Stored.NO


def _halves(batch: StagedBatch, indices: tuple[int, ...]) -> tuple[_QueuedBatch, _QueuedBatch]:
    """The later half first, as `extendleft` takes them."""
    middle = len(indices) // 2
    return _QueuedBatch(batch=batch, record_indices=indices[middle:]), _QueuedBatch(batch=batch, record_indices=indices[:middle])
