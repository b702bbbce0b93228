"""Independent producer of transaction version 2 (KIP-890): it uses Produce 12, TxnOffsetCommit 5 and EndTxn 5.

The simplest form: one request at a time, repeated until it is answered. It runs the same programs as our producer and keeps the same
ledger, so the same checkers apply: transactions are atomic and nothing is stored twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from chaffinch.client.addresses import Address
from chaffinch.client.connections import BrokerConnection, RequestFailed, ResponseReceived
from chaffinch.client.coordinators import CoordinatorKind
from chaffinch.errors import KafkaException, Stored, TransactionAbortableException, codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.errors.exceptions import exception_for
from chaffinch.identifiers import NO_PRODUCER, ProducerIdentity, TopicPartition
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.protocol.messages.produce import PartitionProduceData, PartitionProduceResponse, ProduceRequest, TopicProduceData
from chaffinch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from chaffinch.protocol.schema import Message
from chaffinch.records import batch as batches
from chaffinch.records.columns import RecordColumns
from simulation.callback_client import CallbackClient, Found
from simulation.programs.producers import ProducerUser
from simulation.programs.program_process import ProgramProcess
from simulation.programs.programs import GROUP_PARTITION, Call, Program, ProgramStep, Send, SentRecord, Sleep, Verb, group_of_producer
from simulation.records import Record

REQUEST_TIMEOUT_MS: Final = 1_000
CONNECT_TIMEOUT_MS: Final = 500
BACKOFF_MS_MAX: Final = 100
RECORDS_PER_BATCH_MAX: Final = 3
VERSIONS: Final[dict[type[Message], int]] = {ProduceRequest: 12, TxnOffsetCommitRequest: 5, EndTxnRequest: 5}

Find = Callable[[bool, Found], None]
"""Looks up an address, from fresh metadata or not."""


class Version2Connection(BrokerConnection):
    """Uses versions above those that our client chooses."""

    def _version(self, request: Any) -> int:
        return VERSIONS.get(type(request.message)) or super()._version(request)


class Version2Process(ProgramProcess):
    """One incarnation. `before_end` is called before the first EndTxn of each transaction is sent."""

    def __init__(
        self, user: ProducerUser, actor: str, program: Program, *, bootstrap: Sequence[Address], before_end: Callable[[], None]
    ) -> None:
        super().__init__(user, actor, program)
        self._transactional_id: str = user.options["transactional.id"]
        self._timeout_ms: int = user.options["transaction.timeout.ms"]
        self._group = group_of_producer(user.ledger.name)
        self._before_end = before_end
        self._client = CallbackClient(
            user.world,
            user.network,
            actor,
            bootstrap,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
            connection=Version2Connection,
        )
        self._identity = NO_PRODUCER
        self._sequences: dict[TopicPartition, int] = {}
        self._has_begun = False
        self._failure: KafkaException | None = None

    def _close(self) -> None:
        self._client.close()

    def _begin(self, step: ProgramStep) -> None:
        match step:
            case Sleep():
                self._world.after(step.ms, self.resume)
            case Send():
                self._transaction = step.transaction
                self._send(_in_batches(step.burst.records))
            case Call(verb=Verb.INIT):
                request = InitProducerIdRequest(transactional_id=self._transactional_id, transaction_timeout_ms=self._timeout_ms)
                self._request_until_done(self._coordinator, request, _code, self._initialised)
            case Call(verb=Verb.OFFSETS):
                self._send_offset(step.offset)
            case Call(verb=Verb.COMMIT | Verb.ABORT):
                self._finish(is_commit=step.verb is Verb.COMMIT)
            case _:
                self._resume_soon()

    def _initialised(self, answer: Any, code: ErrorCode, _attempts: int) -> None:
        if code is codes.NONE:
            self._take(ProducerIdentity(answer.producer_id, answer.producer_epoch))
        self._resume_soon(None if code is codes.NONE else exception_for(code, api="InitProducerId"))

    def _take(self, identity: ProducerIdentity) -> None:
        """Every identity numbers its batches from 0."""
        self._identity = identity
        self._sequences.clear()
        self._has_begun = False
        self._failure = None

    # Inside a transaction ----------------------------------------------------------------------------------------------------------------

    def _send(self, left: list[list[Record]]) -> None:
        """Send one batch after the other; after a failure no more of this transaction."""
        if not left:
            self._resume_soon()
            return
        sent = [self._note(record) for record in left.pop(0)]
        if self._failure is not None:
            for one in sent:
                one.errors.append(TransactionAbortableException("not sent: the transaction has failed", stored=Stored.NO))
            self._send(left)
            return
        self._has_begun = True
        records = [one.record for one in sent]
        tp = records[0].topic_partition
        columns = RecordColumns.from_lists(
            [record.key for record in records], [record.value for record in records], [record.timestamp_ms for record in records]
        )
        sequence = self._sequences.get(tp, 0)
        data = batches.encode(columns, identity=self._identity, base_sequence=sequence, is_transactional=True)
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=-1,
            timeout_ms=REQUEST_TIMEOUT_MS,
            topics=[TopicProduceData(name=tp.topic, partitions=[PartitionProduceData(index=tp.partition, records=data)])],
        )

        def find(refresh: bool, found: Found) -> None:
            self._client.with_leader(tp, refresh, found)

        def answered(answer: Any, code: ErrorCode, attempts: int) -> None:
            part = answer.responses[0].partition_responses[0]
            if code is codes.NONE:
                self._sequences[tp] = sequence + len(sent)
                for index, one in enumerate(sent):
                    one.offsets.append(part.base_offset + index)
            else:
                self._refused(sent, part, code, Stored.NO if attempts == 1 else Stored.POSSIBLY)
            self._send(left)

        self._request_until_done(find, request, lambda answer: answer.responses[0].partition_responses[0].error_code, answered)

    def _refused(self, sent: Sequence[SentRecord], part: PartitionProduceResponse, code: ErrorCode, stored: Stored) -> None:
        """Culprits fail with their own error, all other records because the transaction has failed."""
        self._world.count(f"version 2: refused with {code.name}")
        self._failure = TransactionAbortableException(f"a batch was refused: {code.name}")
        culprits = {row.batch_index: codes.by_number(row.chaffinch_error_code or code.number, "kip") for row in part.record_errors}
        for index, one in enumerate(sent):
            is_blamed = index in culprits or (not culprits and len(sent) == 1)
            error = exception_for(culprits.get(index, code) if is_blamed else codes.TRANSACTION_ABORTABLE, api="Produce", stored=stored)
            one.errors.append(error)

    def _send_offset(self, offset: int) -> None:
        if self._failure is not None:
            self._resume_soon(self._failure)
            return
        self._has_begun = True
        part = TxnOffsetCommitRequestPartition(partition_index=GROUP_PARTITION.partition, committed_offset=offset, committed_metadata="")
        request = TxnOffsetCommitRequest(
            transactional_id=self._transactional_id,
            group_id=self._group,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=GROUP_PARTITION.topic, partitions=[part])],
        )

        def answered(_answer: Any, code: ErrorCode, _attempts: int) -> None:
            if code is not codes.NONE:
                self._failure = TransactionAbortableException(f"an offset was refused: {code.name}")
            self._resume_soon(self._failure)

        self._request_until_done(self._group_coordinator, request, lambda answer: answer.topics[0].partitions[0].error_code, answered)

    # Its end -----------------------------------------------------------------------------------------------------------------------------

    def _finish(self, *, is_commit: bool) -> None:
        """An empty commit needs no request; an empty abort is sent, because the broker accepts it."""
        if is_commit and (self._failure is not None or not self._has_begun):
            self._resume_soon(self._failure)
            return
        request = EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            committed=is_commit,
        )

        def answered(answer: Any, code: ErrorCode, _attempts: int) -> None:
            self._world.log(self.actor, f"{'commit' if is_commit else 'abort'}: {code.name}")
            if code is codes.NONE:
                self._take(ProducerIdentity(answer.producer_id, answer.producer_epoch))
                self._resume_soon()
            elif code is codes.INVALID_TXN_STATE and is_commit:
                self._resume_soon(TransactionAbortableException("the coordinator has aborted it"))
            else:
                assert code is not codes.INVALID_TXN_STATE, f"{self.actor}: the transaction to be aborted is committed"
                self._resume_soon(exception_for(code, api="EndTxn"))

        self._before_end()
        self._request_until_done(self._coordinator, request, _code, answered)

    # Requests ----------------------------------------------------------------------------------------------------------------------------

    def _coordinator(self, refresh: bool, found: Found) -> None:
        self._find_coordinator(self._transactional_id, "transaction", refresh, found)

    def _group_coordinator(self, refresh: bool, found: Found) -> None:
        self._find_coordinator(self._group, "group", refresh, found)

    def _find_coordinator(self, key: str, kind: CoordinatorKind, refresh: bool, found: Found) -> None:
        if refresh:
            self._client.coordinators.forget(key, kind)
        self._client.with_coordinator(key, kind, found)

    def _request_until_done(
        self, find: Find, request: Message, code_of: Callable[[Any], int], done: Callable[[Any, ErrorCode, int], None], attempts: int = 1
    ) -> None:
        """Repeat the request until a repetition would not change the answer: `done(answer, its code, attempts)`."""

        def found(address: Address | None, _reason: str) -> None:
            if address is None:
                again(was_sent=False)
            else:
                self._client.request(address, request, answered)

        def answered(event: ResponseReceived | RequestFailed) -> None:
            if self._is_dead:
                return
            code = codes.by_number(code_of(event.message)) if isinstance(event, ResponseReceived) else codes.NETWORK_EXCEPTION
            if code.is_retriable or isinstance(event, RequestFailed):
                again(was_sent=True)
            else:
                done(event.message, code, attempts)

        def again(*, was_sent: bool) -> None:
            backoff_ms = self._world.rng.randint(1, BACKOFF_MS_MAX)
            self._world.after(
                backoff_ms, lambda: None if self._is_dead else self._request_until_done(find, request, code_of, done, attempts + was_sent)
            )

        find(attempts > 1, found)


def _code(answer: Any) -> int:
    code: int = answer.error_code
    return code


def _in_batches(records: Sequence[Record]) -> list[list[Record]]:
    """Adjacent good records of one partition together; a bad record alone."""
    found: list[list[Record]] = []
    for record in records:
        last = found[-1] if found else None
        is_neighbour = last is not None and last[-1].topic_partition == record.topic_partition and last[-1].fault is None
        if last is not None and is_neighbour and record.fault is None and len(last) < RECORDS_PER_BATCH_MAX:
            last.append(record)
        else:
            found.append([record])
    return found
