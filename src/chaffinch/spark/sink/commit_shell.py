"""Shell of the commit protocol: performs its operations, requests with the blocking client and files with pyarrow (decision 36).

It makes no decisions about Kafka: error codes, sequences, retries and order belong to the generator. File system errors, and any other
failure, are thrown into the generator as a Refusal, so that it can abort first.
"""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from chaffinch import plain_text
from chaffinch.client import wait_log
from chaffinch.client.addresses import Address
from chaffinch.client.connections import RequestFailed, ResponseReceived
from chaffinch.client.pending_request import PendingRequest, request_error
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import ApiException, codes
from chaffinch.errors.codes import ErrorCode, Group
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.produce import PartitionProduceData, PartitionProduceResponse, ProduceRequest, TopicProduceData
from chaffinch.records import batch as batches
from chaffinch.records.columns import RecordColumns
from chaffinch.spark.commit import operations
from chaffinch.spark.commit.complete_previous import OFFSETS_TOPIC
from chaffinch.spark.commit.marker import STATE_FILE, CheckpointState
from chaffinch.spark.commit.messages import Rejection, StagedBatch
from chaffinch.spark.commit.plan import Commit, CommitPlan, CommitResult
from chaffinch.spark.folders import Folder
from chaffinch.spark.refusals import TEXT_CHARACTERS_MAX, Refusal, Remedy, refusal_of
from chaffinch.spark.sink.commit_waits import CommitWaits, Unanswered
from chaffinch.spark.sink.leader_requests import count_partitions, find_hanging_transactions, without_leader, write_markers
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.sink.parquet_file import dead_letter_metadata, write_parquet
from chaffinch.spark.sink.recreated_topics import warn_recreated_topics
from chaffinch.spark.target import find_topic, wall_ms
from chaffinch.spark.tasks.dead_letter_headers import Origin
from chaffinch.spark.tasks.dead_letters import broker_dead_letter_batches, leftover_pattern, parquet_name, pending_name, rows_stream
from chaffinch.spark.tasks.row_check import reason_of
from chaffinch.spark.tasks.row_handler import handler_for
from chaffinch.spark.tasks.staging import DeadLetterStore, StagedReader
from chaffinch.spark.topic_ids import created_again, loss
from chaffinch.spark.versions import NewerFormat

LOOKUP_TIMEOUT_MS = 2_000
"""Time limit of one look-up of a leader or coordinator; the generator retries until its own limit."""
LOOKUP_INTERVAL_MS = 50
"""Minimum time between two look-ups of a topic's leaders, which many partitions may need at once."""
PUMP_MS = 1_000
LANES: Final = 2
"""Connections to each broker for pushing batches; each partition uses one of them. Apache Kafka processes one request per connection at a
time, so one connection keeps at most one of its processors busy: 4 M rows took 0.95 s over one, 0.8 s over two, and not less over four."""

_log = plain_text.logger(__name__)
# The generator retries, and reports the total time.
_LOOKUP_DURATION = re.compile(r" failed after \d+ ms\b")
# Folders of dead letters and queries: leftovers of earlier committers are removed once per process, and again after a failed commit.
_swept: set[tuple[str, str]] = set()
_warned: set[tuple[str, ErrorCode]] = set()
"""Requests about hanging transactions that brokers refused, by text and error: logged once per process."""
_HANGING_COMMITTED = (
    "batch %d: an earlier transaction of %s is still open in %s: records of the last transaction, which its coordinator has committed, are "
    "committed on these partitions as well"
)
_HANGING_ABORTED = "batch %d: an earlier transaction of %s is still open in %s: it is aborted there if its coordinator reports its outcome"
_DESCRIBE_REFUSED = (
    "open partitions of an earlier transaction of %s cannot be found (%s): this requires Apache Kafka 2.8 and Read on its topics"
)
_MARKERS_REFUSED = (
    "commit markers of an earlier transaction of %s cannot be written (%s): a short transaction commits it instead, and if the driver dies "
    "during that, it is aborted; WriteTxnMarkers requires Alter on the cluster, and Read on __consumer_offsets"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _InFlight:
    """A batch in flight. `record_indices`: the records that were sent; None: all. `byte_count`: the bytes of these records."""

    batch: StagedBatch
    record_indices: tuple[int, ...] | None
    byte_count: int
    exchange: PendingRequest
    sent_ms: int


class CommitShell:
    """Runs one commit to its end. Call `run` once."""

    def __init__(
        self,
        plan: CommitPlan,
        options: SinkOptions,
        client: SyncClient,
        *,
        staging: Folder,
        state: Folder | None,
        after_step: Callable[[operations.Step, int], None] | None = None,
    ) -> None:
        """`state`: `<checkpoint>/chaffinch`. `after_step` is called with step and batch after each operation that has a result."""
        self._plan = plan
        self._options = options
        self._client = client
        self._state = state
        self._after_step = after_step
        self._request_timeout_ms = options.client.connections.request_timeout_ms
        self._origin = Origin(query=plan.query, batch_id=plan.batch_id, task=-1)
        self._dead_letter_folder = None if options.dead_letter_path is None else Folder(options.dead_letter_path, "errors.dead.letter.path")
        self._dead_letter_target = None if options.dead_letter_topic is None else plan.target.topic(options.dead_letter_topic)
        self._handler = handler_for(options.handler)
        self._reader = StagedReader(staging)
        self._dead_letters = DeadLetterStore(staging)
        self._in_flight: dict[int, _InFlight] = {}
        """By send id."""
        self._responses: list[operations.BatchResponse] = []
        self._refused_count = 0
        """Number of records that the broker has refused so far, which numbers their dead letters."""
        self._compacted: dict[str, bool] = {}
        self._looked_up_ms: dict[str, int] = {}
        """Time of the last look-up of a topic's leaders."""
        self._operation_ms = 0
        """Duration of the last operation that was not a wait."""
        self._remembered = CheckpointState()
        """The checkpoint's state."""
        self._waits = CommitWaits(partial(_log.warning, "batch %d waits for %s", plan.batch_id), self._request_timeout_ms)

    def run(self, commit: Commit) -> CommitResult:
        """Runs the commit and returns its result. Raises Refusal."""
        try:
            operation = next(commit)
            while True:
                began_ms = _steady_ms()
                try:
                    value = self._perform(operation)
                except Exception as error:
                    operation = commit.throw(error if isinstance(error, Refusal) else _unexpected(operation, error))
                    continue
                if self._after_step is not None and not isinstance(operation, operations.SendBatch | operations.Wait):
                    self._after_step(operation.step, self._plan.batch_id)
                steady_ms = _steady_ms()
                if not isinstance(operation, operations.Wait):
                    self._operation_ms = steady_ms - began_ms
                operation = commit.send(operations.Reply(steady_ms=steady_ms, value=value))
        except StopIteration as done:
            result: CommitResult = done.value
            return result
        except BaseException:
            if self._dead_letter_folder is not None:
                _swept.discard((self._dead_letter_folder.location, self._plan.query))
            raise
        finally:
            self._reader.close()
            self._dead_letters.discard()

    @property
    def has_staged(self) -> bool:
        """Whether it has staged files, for dead letters of records that the broker refused."""
        return bool(self._dead_letters.files)

    def _perform(self, operation: operations.Operation) -> Any:
        match operation:
            case operations.SendRequest():
                return self._send_request(operation)
            case operations.SendBatch():
                return self._send(operation)
            case operations.NextResponse():
                return self._next_response(operation)
            case operations.CallHandler():
                return self._call_handler(operation)
            case operations.MakeDeadLetters():
                return self._make_dead_letters(operation)
            case operations.WriteDeadLetters() | operations.NameDeadLetters():
                return self._file_dead_letters(operation)
            case operations.ReadState():
                self._remembered = self._read_state()
                return self._remembered
            case operations.WriteState():
                return self._write_state(operation)
            case operations.FindHangingTransactions():
                return self._find_hanging_transactions(operation)
            case operations.CountPartitions() | operations.WriteMarkers():
                return self._complete_previous(operation)
            case operations.Wait():
                return self._wait(operation)

    def _wait(self, operation: operations.Wait) -> None:
        """Waits between two attempts. It sleeps: the Spark thread that runs the commit has no other work."""
        if operation.wait_info is not None:
            self._waits.retry(operation.wait_info, _steady_ms(), operation.ms, self._operation_ms)
        time.sleep(operation.ms / 1000)

    def _send_request(self, operation: operations.SendRequest) -> Any:
        to = operation.to
        try:
            if to.refresh:
                self._client.forget_coordinator(to.key, to.kind)
            address = self._client.coordinator(to.key, to.kind, timeout_ms=LOOKUP_TIMEOUT_MS)
            return self._client.request(operation.message, address, timeout_ms=self._request_timeout_ms, retries=False)
        except ApiException as error:
            return _lost(error, was_sent=True)

    def _find_hanging_transactions(self, operation: operations.FindHangingTransactions) -> operations.HangingTransactions:
        found = find_hanging_transactions(self._client, operation, LOOKUP_TIMEOUT_MS, self._request_timeout_ms)
        if found.refused is not codes.NONE:
            is_of_marker = operation.partitions[0].topic == OFFSETS_TOPIC
            self._warn_once(_MARKERS_REFUSED if is_of_marker else _DESCRIBE_REFUSED, found.refused)
        if found.hanging:
            where = ", ".join(str(transaction.tp) for transaction in sorted(found.hanging))
            text = _HANGING_COMMITTED if operation.step is operations.Step.FINISH_COMMIT else _HANGING_ABORTED
            _log.warning(text, self._plan.batch_id, self._plan.transactional_id, where)
        return found

    def _complete_previous(self, operation: operations.CountPartitions | operations.WriteMarkers) -> Any:
        if isinstance(operation, operations.CountPartitions):
            value: Any = count_partitions(self._client, operation, LOOKUP_TIMEOUT_MS)
            refused = codes.UNKNOWN_TOPIC_OR_PARTITION if value == 0 else codes.NONE
        else:
            value = write_markers(self._client, operation, LOOKUP_TIMEOUT_MS, self._request_timeout_ms)
            refused = value.refused
        if refused is not codes.NONE:
            self._warn_once(_MARKERS_REFUSED, refused)
        return value

    def _warn_once(self, text: str, code: ErrorCode) -> None:
        if (text, code) not in _warned:
            _warned.add((text, code))
            _log.warning(text, self._plan.transactional_id, code.name)

    def _send(self, operation: operations.SendBatch) -> None:
        topic_partition = operation.batch.topic_partition
        if operation.step is operations.Step.PUSH_DEAD_LETTERS:
            self._dead_letters.flush()
        data = self._reader.read(operation.batch.bytes)
        if operation.record_indices is not None:
            sent = set(operation.record_indices)
            shortened = batches.without_records(data, [index for index in range(operation.batch.record_count) if index not in sent])
            assert shortened is not None, "a part of a batch keeps at least one record"
            data = shortened
        batches.patch_producer(data, 0, operation.identity, operation.base_sequence, is_transactional=True)
        request = ProduceRequest(
            transactional_id=self._plan.transactional_id,
            acks=-1,
            timeout_ms=self._request_timeout_ms,
            topics=[
                TopicProduceData(
                    name=topic_partition.topic, partitions=[PartitionProduceData(index=topic_partition.partition, records=data)]
                )
            ],
        )
        try:
            leader = self._leader(topic_partition, is_stale=operation.refresh)
            address = leader._replace(lane=topic_partition.partition % LANES)
            with self._client.lock:
                exchange = self._client.start(request, address)
                self._in_flight[operation.send_id] = _InFlight(
                    batch=operation.batch,
                    record_indices=operation.record_indices,
                    byte_count=len(data),
                    exchange=exchange,
                    sent_ms=_steady_ms(),
                )
                self._client.pump(0)
        except ApiException as error:
            self._responses.append(operations.BatchResponse(send_id=operation.send_id, lost=_lost(error, was_sent=False)))

    def _leader(self, topic_partition: TopicPartition, *, is_stale: bool) -> Address:
        """Address of the leader, looked up at most once: waiting for it here would delay the other partitions. Raises ApiException."""
        topic = topic_partition.topic
        is_wanted = is_stale or self._client.cluster.leader_address(topic_partition) is None
        if is_wanted and _steady_ms() - self._looked_up_ms.get(topic, -LOOKUP_INTERVAL_MS) >= LOOKUP_INTERVAL_MS:
            try:
                self._client.refresh_metadata([topic], timeout_ms=LOOKUP_TIMEOUT_MS)
            finally:
                self._looked_up_ms[topic] = _steady_ms()
            self._check_id(topic)
        address = self._client.cluster.leader_address(topic_partition)
        if address is None:
            raise without_leader(self._client, topic_partition)
        return address

    def _check_id(self, topic: str) -> None:
        """Raises Refusal for a recreated topic: rows were partitioned for the deleted one."""
        present = self._client.cluster.topic_id(topic)
        if present is not None and (both := created_again(self._plan.topic_ids, {topic: present}).get(topic)):
            text = f"{loss(topic, *both, 'the rows were staged for')}; the transaction is aborted, no rows of the batch are visible"
            raise Refusal(Group.TRANSACTION_ABORTABLE, "SNAPSHOT_CHANGED", text, Remedy.AGAIN)

    def _next_response(self, operation: operations.NextResponse) -> operations.BatchResponse | None:
        until_ms = operation.until_ms
        with self._client.lock:
            while not self._responses:
                for send_id in [send_id for send_id, sent in self._in_flight.items() if sent.exchange.outcome is not None]:
                    self._responses.append(self._batch_response(send_id, self._in_flight.pop(send_id)))
                if not self._responses:
                    steady_ms = _steady_ms()
                    if until_ms is not None and until_ms <= steady_ms:
                        return None
                    looks_ms = self._log_waits(operation.wait_info, steady_ms) - steady_ms
                    self._client.pump(min(PUMP_MS, looks_ms, PUMP_MS if until_ms is None else until_ms - steady_ms))
        return self._responses.pop(0)

    def _log_waits(self, wait_info: wait_log.Wait | None, steady_ms: int) -> int:
        """Logs waits while responses are missing. Returns the time of the next call."""
        if wait_info is not None:
            self._waits.retry(wait_info, steady_ms, 0, 0)
        sent = self._in_flight.values()
        unanswered = (Unanswered(each.batch.topic_partition, each.exchange.address, each.sent_ms) for each in sent)
        return self._waits.answers(unanswered, steady_ms)

    def _batch_response(self, send_id: int, sent: _InFlight) -> operations.BatchResponse:
        exchange, outcome = sent.exchange, sent.exchange.outcome
        if isinstance(outcome, RequestFailed) and (outcome.error is not None or outcome.is_unsupported):
            raise refusal_of(request_error(exchange))  # A retry would fail again.
        if not isinstance(outcome, ResponseReceived):
            reason, was_sent = (outcome.reason, outcome.was_sent) if isinstance(outcome, RequestFailed) else ("no response", True)
            return operations.BatchResponse(
                send_id=send_id, lost=operations.Lost(reason=f"{exchange.address}: {reason}", was_sent=was_sent)
            )
        part: PartitionProduceResponse = outcome.message.responses[0].partition_responses[0]
        message = part.error_message or ""
        code = codes.by_number(part.error_code, outcome.numbering, has_culprits=bool(part.record_errors), message=message)
        culprits = []
        for found in part.record_errors:
            if found.chaffinch_error_code is None:
                own = codes.by_number(part.error_code, outcome.numbering, has_culprits=True)
            else:
                own = codes.by_number(found.chaffinch_error_code, "kip", has_culprits=True)
            culprits.append((found.batch_index, own, reason_of(found.batch_index_error_message or message or own.text)))
        return operations.BatchResponse(
            send_id=send_id, code=code, message=message, culprits=self._with_compaction_codes(sent, culprits), byte_count=sent.byte_count
        )

    def _with_compaction_codes(self, sent: _InFlight, culprits: list[tuple[int, ErrorCode, str]]) -> tuple[tuple[int, ErrorCode, str], ...]:
        """Brokers return INVALID_RECORD for a null key on a compacted topic; here the record is available, so the code can be exact
        (decision 2).
        """
        if not any(code is codes.INVALID_RECORD for _, code, _ in culprits):
            return tuple(culprits)
        batch, sent_indices = sent.batch, sent.record_indices
        if not self._is_compacted(batch.topic_partition.topic):
            return tuple(culprits)
        columns = batches.decode(self._reader.read(batch.bytes))
        indices = range(batch.record_count) if sent_indices is None else sent_indices
        named = []
        for index, code, message in culprits:
            is_keyless = 0 <= index < len(indices) and columns.key(indices[index]) is None
            named.append((index, codes.INVALID_COMPACTION_KEY if is_keyless and code is codes.INVALID_RECORD else code, message))
        return tuple(named)

    def _is_compacted(self, topic: str) -> bool:
        if topic not in self._compacted:
            try:
                snapshot = find_topic(self._client, topic, LOOKUP_TIMEOUT_MS)
            except (ApiException, Refusal):
                snapshot = None
            self._compacted[topic] = snapshot is not None and snapshot.is_compacted
        return self._compacted[topic]

    def _make_dead_letters(self, operation: operations.MakeDeadLetters) -> operations.DeadLetters:
        rejections: list[Rejection] = list(operation.culprits)
        columns = self._culprit_columns(operation.batch, rejections)
        # Each dead letter has its own number in this commit, the same in the topic and in the file, which identifies it.
        rejections = [replace(rejection, row=self._refused_count + index) for index, rejection in enumerate(rejections)]
        self._refused_count += len(rejections)
        found = broker_dead_letter_batches(columns, rejections, self._origin, self._dead_letter_target, wall_ms())
        rows = [rows_stream(columns, rejections, self._origin)] if self._dead_letter_folder is not None else []
        return operations.DeadLetters(
            batches=tuple(
                StagedBatch(topic_partition=where, record_count=count, bytes=self._dead_letters.keep(data)) for where, count, data in found
            ),
            rows=tuple(self._dead_letters.keep(data) for data in rows),
        )

    def _call_handler(self, operation: operations.CallHandler) -> frozenset[int]:
        assert self._handler is not None, "yielded only if the plan has a handler"
        left_out = self._handler.rejected(self._culprit_columns(operation.batch, operation.culprits), operation.culprits)
        return frozenset(operation.culprits[index].row for index in left_out)

    def _culprit_columns(self, batch: StagedBatch, culprits: Sequence[Rejection]) -> RecordColumns:
        """The records of a staged batch that the broker blamed."""
        return batches.decode(self._reader.read(batch.bytes)).take(np.array([culprit.row for culprit in culprits], np.int64))

    def _file_dead_letters(self, operation: operations.WriteDeadLetters | operations.NameDeadLetters) -> None:
        folder = self._dead_letter_folder
        assert folder is not None
        if isinstance(operation, operations.WriteDeadLetters):
            self._write_dead_letters(folder, operation)
        else:
            self._name_dead_letters(folder, operation.writer_id)

    def _write_dead_letters(self, folder: Folder, operation: operations.WriteDeadLetters) -> None:
        writer_id, retained = operation.writer_id, self._options.retained_rows
        if writer_id is None:
            self._sweep(folder)
        name = parquet_name(self._origin) if writer_id is None else pending_name(self._origin, writer_id)
        self._dead_letters.flush()
        if operation.rows or retained is not None:
            metadata = dead_letter_metadata(self._dead_letter_target)
            write_parquet(folder, name, (self._reader.read(part) for part in operation.rows), metadata, retained)
        else:
            folder.remove(name)

    def _name_dead_letters(self, folder: Folder, writer_id: str | None) -> None:
        if writer_id is None:
            folder.remove(parquet_name(self._origin))
        else:
            folder.rename(pending_name(self._origin, writer_id), parquet_name(self._origin))
        self._sweep(folder)

    def _sweep(self, folder: Folder) -> None:
        """Removes files of other attempts at this batch only: pending files of another batch may be committed."""
        key = (folder.location, self._plan.query)
        if key not in _swept:
            folder.sweep(leftover_pattern(self._origin))
            _swept.add(key)

    def _write_state(self, operation: operations.WriteState) -> None:
        folder = self._state
        assert folder is not None
        state = replace(operation.state, sink=self._options.sink_name or "")
        try:
            folder.write(STATE_FILE, [state.to_text().encode()])
        except Refusal as refusal:
            if not operation.may_fail:
                raise
            _log.warning("batch %d is in Kafka, but this cannot be recorded in the checkpoint: %s", self._plan.batch_id, refusal.reason)
            return
        warn_recreated_topics(self._plan.query, self._plan.batch_id, self._remembered, state)
        self._remembered = state

    def _read_state(self) -> CheckpointState:
        folder = self._state
        assert folder is not None
        data = folder.read(STATE_FILE)
        if data is None:
            return CheckpointState()
        try:
            return CheckpointState.from_text(data.decode())
        except NewerFormat as newer:
            raise newer.refusal(f"the file {STATE_FILE} in {folder.option}={folder.shown}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            remedy = "restore it, or remove it: then only the marker in Kafka decides what is written"
            raise folder.refusal(f"has a file {STATE_FILE} that is damaged", error, remedy) from None


def _steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _unexpected(operation: operations.Operation, error: Exception) -> Refusal:
    """A Refusal for an unexpected error: its tag lets the transaction be aborted and the query be restarted, which reads the marker."""
    text = textwrap.shorten(f"{operation.step.value}: {type(error).__name__}: {error}", TEXT_CHARACTERS_MAX, placeholder=" ...")
    refusal = Refusal(Group.APPLICATION_RECOVERABLE, "COMMIT_FAILED", text, Remedy.LOOK)
    refusal.__cause__ = error
    return refusal


def _lost(error: ApiException, *, was_sent: bool) -> operations.Lost:
    """A failure of the client as a lost response. Raises Refusal if a retry cannot help: a missing permission, a version, an invalid
    name.
    """
    if not error.code.is_retriable:
        raise refusal_of(error)
    return operations.Lost(reason=_LOOKUP_DURATION.sub(" failed", " ".join(error.message.split())), was_sent=was_sent)
