"""TransactionManager: state machine of the transactional producer. KIP-98, KIP-890, KIP-1050 (decisions 16, 29 to 31 and 33).

It holds the state, the partitions and groups of the transaction, the waiting callers, and the next request; one request of the transaction
is in flight at a time. The core sends the requests, calls `may_send` before it sends a batch, and reports failed records.

Retriable failures are retried. Abortable and invalid-configuration failures make the transaction abortable, all others the producer
unusable. `error` is the cause, which later calls raise. A commit without a response is repeated, never treated as failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from chaffinch.client.addresses import Address
from chaffinch.client.coordinators import Coordinators, parse_find_response
from chaffinch.errors import (
    ApiException,
    IllegalStateException,
    InvalidConfigurationException,
    KafkaException,
    Stored,
    TransactionAbortableException,
    UnknownServerException,
    UnsupportedVersionException,
    codes,
    exception_for,
    group_of,
)
from chaffinch.errors.codes import ErrorCode, Group
from chaffinch.errors.copies import AnyError, copy_for_raise
from chaffinch.errors.handling import TRANSACTION, Handling, handling_of
from chaffinch.identifiers import NO_PRODUCER, ProducerIdentity, TopicPartition
from chaffinch.producer.core import events
from chaffinch.producer.core.effects import CompleteCall, Effect, FailCall, Report, WakeCallers
from chaffinch.producer.core.refusals.errors import as_abortable, as_fatal
from chaffinch.producer.core.retrying_request import CLOSES_LIMIT, RetryingRequest
from chaffinch.producer.core.transactions import errors as transaction_errors
from chaffinch.producer.core.transactions.callers import Caller, Callers, Offsets, complete, fail
from chaffinch.producer.core.transactions.moves import REFUSED_WITH_ERROR, IllegalMove, Move, State, call_order_error, state_after
from chaffinch.producer.core.transactions.open_transaction import OpenTransaction
from chaffinch.producer.core.transactions.requests import (
    ADDING_STEPS,
    CHANGING_STEPS,
    COORDINATOR_OF_STEP,
    ENDING_STEPS,
    HINTS,
    Step,
    TransactionRequests,
    code_of,
    highest_version,
    partition_codes,
    transaction_version_of,
)
from chaffinch.protocol.client_connection import NO_FEATURES, FinalizedFeatures

# The coordinator responds with code 51 for some ms while the previous transaction is being completed. Java also waits only this long.
CONCURRENT_WAIT_MS: Final = 20


class TransactionManager:
    """The transaction of one producer. Methods return the effects for waiting callers."""

    def __init__(self, transactional_id: str, timeout_ms: int, block_ms: int) -> None:
        self.state = State.UNINITIALIZED
        self.identity: ProducerIdentity = NO_PRODUCER
        self.error: KafkaException | None = None
        """The cause that made the transaction abortable, or the producer unusable."""
        self.coordinators = Coordinators()
        self.callers = Callers()
        self.retrying_request = RetryingRequest()
        """State of the request that is in flight, or will be retried."""
        self.steady_ms = 0
        """As of the last event."""
        self.transaction_number = 0
        """Sequence number of the last transaction: how many have begun."""
        self._features = NO_FEATURES
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._block_ms = block_ms
        self._open = OpenTransaction()
        """The last transaction; `state` says whether it has ended."""
        self._has_late_requests = False
        """A request of an earlier transaction may still arrive: see `needed_step`."""

    # Calls of users.

    def call(self, event: events.TransactionCall) -> list[Effect]:
        """One of the five calls of the public producer."""
        match event:
            case events.InitTransactionsCalled():
                return self._move_for(Move.INIT_CALLED, event.call) or self._wait(self.callers.of_init, "init_transactions", event)
            case events.BeginTransactionCalled():
                return self._move_for(Move.BEGIN_CALLED, event.call) or [CompleteCall(call=event.call)]
            case events.CommitCalled():
                return self._move_for(Move.COMMIT_CALLED, event.call) or self._wait(self.callers.of_end, "commit_transaction", event)
            case events.AbortCalled():
                return self._abort(event)
            case events.SendOffsetsCalled():
                return self._send_offsets(event)

    def refusal_of_send(self, call: str = "send") -> KafkaException | None:
        """Why a record cannot be sent now; None if it can. Outside a transaction IllegalStateException, within one its failure."""
        if self.state is State.IN_TRANSACTION:
            return None
        if self.error is not None and self.state in (State.ABORTABLE_ERROR, State.FATAL_ERROR):
            return as_abortable(self.error) if self.state is State.ABORTABLE_ERROR else copy_for_raise(self.error)
        return IllegalStateException(call_order_error(call, self.state))

    def _move_for(self, move: Move, call: Any) -> list[Effect]:
        """Make the move of a call. Returns effects if the call ends at once: a refusal, or the success of the call that it repeats."""
        if self.state is State.READY and self.callers.consume_repeat(move.call):
            return [CompleteCall(call=call)]
        try:
            self.state = state_after(self.state, move)
        except IllegalMove as illegal:
            if self.error is not None and (illegal.state, illegal.move) in REFUSED_WITH_ERROR:
                return [FailCall(call=call, error=copy_for_raise(self.error))]
            refusal = IllegalStateException(call_order_error(move.call, illegal.state))
            refusal.__cause__ = self.error  # If an error has led to this state.
            return [FailCall(call=call, error=refusal)]
        self.callers.call_to_repeat = None
        if move is Move.BEGIN_CALLED:
            self.error = None
            self.transaction_number += 1
            # Late requests of an earlier transaction are fenced by requesting a new epoch, as in version 1.
            self._open = OpenTransaction(1 if self._has_late_requests else transaction_version_of(self._features.levels))
        return []

    def _wait(self, callers: list[Caller], name: str, event: events.InitTransactionsCalled | events.CommitCalled) -> list[Effect]:
        callers.append(Caller(event.call, name, event.deadline_ms))
        return []

    @property
    def is_open(self) -> bool:
        """Whether it can be aborted. After a commit without a response it cannot: the commit may have happened."""
        return self.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR)

    def _abort(self, event: events.AbortCalled) -> list[Effect]:
        if event.only_if_open and not self.is_open:
            return [CompleteCall(call=event.call)]
        if refusal := self._move_for(Move.ABORT_CALLED, event.call):
            return refusal
        self._open.to_add.clear()
        name = "abort_transaction" if event.closes_within is None else "close"
        self.callers.of_end.append(Caller(event.call, name, event.deadline_ms, event.closes_within))
        return self.callers.fail_offsets(TransactionAbortableException("the transaction is being aborted"))

    def close(self, deadline_ms: int) -> list[Effect]:
        """Abort a transaction that has become abortable while the producer is being closed, by `deadline_ms` at the latest. One that was
        open when `close` was called is aborted already.
        """
        if not self.is_open:
            return []
        block_until_ms = self.steady_ms + self._block_ms
        within = CLOSES_LIMIT if deadline_ms < block_until_ms else "max.block.ms"
        return self._abort(events.AbortCalled(call=None, deadline_ms=min(deadline_ms, block_until_ms), closes_within=within))

    def _send_offsets(self, event: events.SendOffsetsCalled) -> list[Effect]:
        refusal = self.refusal_of_send("send_offsets_to_transaction")
        if refusal is not None:
            return [FailCall(call=event.call, error=copy_for_raise(self.error) if self.error is not None else refusal)]
        if not event.offsets:
            return [CompleteCall(call=event.call)]
        caller = Caller(event.call, "send_offsets_to_transaction", event.deadline_ms)
        self.callers.of_offsets.append(Offsets(caller, event.offsets, event.group))
        return []

    # Calls of the core.

    @property
    def is_completing(self) -> bool:
        """Whether the transaction is being ended, so that batches skip `linger.ms`."""
        return self.state in (State.COMMITTING, State.ABORTING)

    @property
    def is_failed(self) -> bool:
        """Whether no new batch may be sent, because it could not be committed."""
        return self.state in (State.ABORTABLE_ERROR, State.ABORTING, State.FATAL_ERROR)

    @property
    def version(self) -> int:
        """Version of the transaction protocol (KIP-890) in which the transaction was begun."""
        return self._open.version

    def features_received(self, features: FinalizedFeatures) -> None:
        """A broker has reported the cluster's finalized features: the next transaction uses the latest ones."""
        if features.epoch >= self._features.epoch:
            self._features = features

    def may_send(self, topic_partition: TopicPartition) -> bool:
        """Whether a batch of this partition may be sent. If the partition must be added to the transaction first, schedule that."""
        if topic_partition in self._open.added:
            return self.state is not State.FATAL_ERROR
        return self.state in (State.IN_TRANSACTION, State.COMMITTING) and self._open.admits(topic_partition)

    def mark_started(self) -> None:
        """Record that a request that adds to the transaction is sent: one of ADDING_STEPS, or Produce in version 2."""
        self._open.mark_started(self.steady_ms)

    def mark_known(self) -> None:
        """A batch of the transaction is stored."""
        self._open.is_known = True

    def is_previous_completing(self, code: ErrorCode) -> bool:
        """Whether the first request of the transaction was refused only because the previous one is still being completed."""
        return code is codes.CONCURRENT_TRANSACTIONS and not self._open.is_known

    @property
    def may_bump_epoch(self) -> bool:
        """Whether sequence numbers were used up by an earlier transaction: then `needed_step` requests a new epoch for this one."""
        return self.version == 1 and not self._open.is_started

    def forget(self, topic_partition: TopicPartition) -> None:
        """No record of this partition is left to send: it need not be added to the transaction."""
        self._open.to_add.pop(topic_partition, None)

    def record_failed(self, error: KafkaException) -> list[Effect]:
        """A record of the transaction has failed: the error's group decides whether the transaction or the producer fails."""
        is_fatal = isinstance(error, ApiException) and handling_of(error.code, in_transaction=True) is Handling.RESTART
        return self._fail_fatally(error) if is_fatal else self._fail_abortably(error)

    def has_sent_to(self, topic: str) -> bool:
        """Whether the transaction may have written to the topic, and EndTxn was not sent yet."""
        return not self._open.sent_end_requests and any(topic_partition.topic == topic for topic_partition in self._open.added)

    def is_over(self, number: int) -> bool:
        """Whether a failure is too late for the transaction of this number: it has ended, or its commit has been requested."""
        return number != self.transaction_number or self.state is State.READY or self._is_in_doubt

    def record_refused(self, error: KafkaException, number: int) -> list[Effect]:
        """A record of the transaction of this number has failed before it was in any batch."""
        is_part = self.state in (State.IN_TRANSACTION, State.COMMITTING) and not self.is_over(number)
        return self.record_failed(error) if is_part else []

    def explained(self, error: AnyError) -> AnyError:
        """Add the likely cause to an error."""
        open_ms = self._open.open_ms(self.steady_ms)
        return transaction_errors.explained(error, self._transactional_id, self._timeout_ms, open_ms, self._block_ms)

    def next_step(self, steady_ms: int, *, has_batches: bool, needs_epoch: bool) -> Step | None:
        """The next request to send. `has_batches`: records have no outcome yet. `needs_epoch`: sequence numbers were lost."""
        if not self.retrying_request.may_begin(steady_ms):
            return None
        needed_step = self.needed_step(has_batches=has_batches, needs_epoch=needs_epoch)
        if needed_step is None:
            return None
        kind = COORDINATOR_OF_STEP[needed_step]
        if kind is not None and self.coordinators.address_of(self._coordinator_key(kind), kind) is None:
            return Step.FIND_COORDINATOR if kind == "transaction" else Step.FIND_GROUP
        return needed_step

    def needed_step(self, *, has_batches: bool, needs_epoch: bool) -> Step | None:
        """The step that the transaction needs now, apart from coordinator lookups. Arguments as for `next_step`."""
        if self.state is State.INITIALIZING:
            return Step.INIT_PRODUCER_ID
        if self.state in (State.IN_TRANSACTION, State.COMMITTING):
            is_old = self._has_late_requests or (needs_epoch and self.may_bump_epoch)
            if is_old and not self._open.is_started and (self._open.to_add or self.callers.of_offsets):
                # In version 1 all transactions have the same epoch: a late EndTxn of an earlier one would end this one, too. A new epoch
                # fences it (KIP-360; KIP-890 does that for each transaction).
                return Step.INIT_PRODUCER_ID
            if self._open.to_add:
                return Step.ADD_PARTITIONS
            if self.callers.of_offsets:
                first = self.callers.of_offsets[0]
                if self.version == 1 and not first.is_group_added:
                    return Step.ADD_OFFSETS
                return Step.CHECK_TOPICS if first.needs_topic_check(self.version) else Step.COMMIT_OFFSETS
        if self.state in (State.COMMITTING, State.ABORTING) and not has_batches:
            if self._open.is_started and not self._open.is_ended:
                return Step.END
            if self.state is State.ABORTING and needs_epoch:
                return Step.INIT_PRODUCER_ID
        return None

    def finished(self, *, has_batches: bool, needs_epoch: bool) -> list[Effect]:
        """End the transaction if it needs no more steps."""
        is_ending = self.state in (State.COMMITTING, State.ABORTING) and not self.retrying_request.is_under_way
        if not is_ending or has_batches or self.needed_step(has_batches=False, needs_epoch=needs_epoch) is not None:
            return []
        self.state = state_after(self.state, Move.ENDED)
        self._open = OpenTransaction()
        self.error = None
        self.retrying_request.clear_error()
        return complete(self.callers.of_end)

    def address_of(self, step: Step) -> Address | None:
        """The broker for a step's request; None: any broker."""
        kind = COORDINATOR_OF_STEP[step]
        return None if kind is None else self.coordinators.address_of(self._coordinator_key(kind), kind)

    def request(self, step: Step, address: Address) -> Any:
        """Build the request of a step; it is in flight from now on."""
        is_of_group = step in (Step.FIND_GROUP, Step.CHECK_TOPICS, Step.COMMIT_OFFSETS)
        whose = f"group {self._coordinator_key('group')!r}" if is_of_group else f"transactional.id {self._transactional_id!r}"
        self.retrying_request.begin(f"{step.api} of {whose}", address)
        requests = TransactionRequests(transactional_id=self._transactional_id, identity=self.identity, timeout_ms=self._timeout_ms)
        if step in ADDING_STEPS:
            self.mark_started()
        # The coordinator may not know a transaction without content; then there is nothing to commit, and it is aborted.
        is_committed = self.state is State.COMMITTING and self._open.is_known
        self._open.sent_end_requests += step is Step.END
        return requests.request(step, self._open.to_add, self._first_offsets, self.version, committed=is_committed)

    def version_max(self, step: Step) -> int | None:
        """The highest version for a step's request; None: no limit of its own."""
        return highest_version(step, self.version, self._first_offsets)

    @property
    def _first_offsets(self) -> Offsets | None:
        return self.callers.of_offsets[0] if self.callers.of_offsets else None

    def request_failed(self, step: Step, error: KafkaException, wait_ms: int, steady_ms: int) -> list[Effect]:
        """No response arrived: look the coordinator up again, and retry."""
        self._has_late_requests |= step in CHANGING_STEPS and error.stored is not Stored.NO
        self._open.sent_end_requests -= step is Step.END and error.stored is Stored.NO
        self._forget_coordinator(step)
        self.retrying_request.retry(error, steady_ms + wait_ms)
        return []

    def request_unsupported(self, step: Step, error: KafkaException, *, was_sent: bool) -> list[Effect]:
        """The login failed, or the broker supports no suitable version of this request."""
        self.retrying_request.ended()
        self._open.sent_end_requests -= step is Step.END and not was_sent
        if step is Step.COMMIT_OFFSETS and (first := self._first_offsets) is not None and first.uses_topic_ids(self.version):
            first.lacks_topic_ids = True
            return []
        if step in HINTS and isinstance(error, UnsupportedVersionException):
            error = UnsupportedVersionException(f"{error.message}; {HINTS[step]}", stored=error.stored, api=step.api)
        if isinstance(error, InvalidConfigurationException):
            return self._refused(step, error, Handling.FIX_CONFIGURATION)
        return self._fail_fatally(error)

    def response_received(self, step: Step, response: Any, wait_ms: int, steady_ms: int) -> list[Effect]:
        """Handle the response to the request in flight. `wait_ms`: backoff if it has to be retried."""
        self.retrying_request.ended()
        code, message, topic_partition = code_of(step, response, self._first_offsets, steady_ms)
        if step is Step.COMMIT_OFFSETS and self._first_offsets is not None:
            self._first_offsets.attempted(is_topic_id_unknown=code is codes.UNKNOWN_TOPIC_ID)
        if code is codes.NONE or self._is_nothing_to_abort(step, code):
            if step in (Step.FIND_COORDINATOR, Step.FIND_GROUP):  # The step that needs the coordinator has not succeeded yet.
                self.retrying_request.lookup_succeeded()
            else:
                self.retrying_request.succeeded()
            return self._step_done(step, response)
        error = exception_for(code, message=message, topic_partition=topic_partition, api=step.api)
        handling = handling_of(code, TRANSACTION)
        if handling is Handling.REFRESH_AND_RETRY:
            self._forget_coordinator(step)
        if handling in (Handling.RETRY, Handling.REFRESH_AND_RETRY) or code is codes.OPERATION_NOT_ATTEMPTED:
            is_previous_completing = step in ADDING_STEPS and self.is_previous_completing(code)
            self.retrying_request.retry(error, steady_ms + (min(CONCURRENT_WAIT_MS, wait_ms) if is_previous_completing else wait_ms))
            return []
        if step is Step.END and not isinstance(error, UnknownServerException):  # After an unknown error EndTxn may have been applied.
            self._open.sent_end_requests -= 1
        return self._refused(step, error, handling)

    def _is_nothing_to_abort(self, step: Step, code: ErrorCode) -> bool:
        """Whether an abort was refused because no transaction is open: the request that would have opened it was lost, or is retried.

        If it arrives late, the next epoch fences it: see `needed_step`. In version 2 such an abort succeeds, and raises the epoch.
        """
        return step is Step.END and self.version == 1 and not self._open.is_known and code is codes.INVALID_TXN_STATE

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """When the next round is due without an event: a backoff ends, or a caller's deadline passes."""
        times = (self.callers.deadline_ms, self.retrying_request.next_deadline_ms(steady_ms))
        return min([time for time in times if time is not None], default=None)

    def expire_callers(
        self, steady_ms: int, unreachable: Callable[[], str | None], cause_of_records: Callable[[], KafkaException | None] = lambda: None
    ) -> list[Effect]:
        """Fail callers whose deadline has passed. Init, commit and abort go on and may be called again; late offsets fail the transaction.
        `unreachable`: text about the tried brokers, if none can be reached. `cause_of_records`: why records have no outcome.
        """
        last_error = self.retrying_request.last_error or (cause_of_records() if self.callers.has_expired(steady_ms) else None)

        def why() -> str:
            return unreachable() or ("" if last_error is None else last_error.message.rstrip("."))

        effects = self.callers.expire(steady_ms, why, last_error)
        for entry in [entry for entry in self.callers.of_offsets if entry.caller.deadline_ms <= steady_ms][:1]:
            late = transaction_errors.offsets_timed_out(
                entry.group.group_id, entry.offsets, self._block_ms, last_error, unreachable=unreachable()
            )
            effects += self._fail_abortably(late)
        return effects

    def left_open(self, *, is_cut_off: bool) -> str | None:
        """Log line about a transaction that is left open on the broker; None if there is none. `is_cut_off`: the coordinator is not
        connected, so an EndTxn may not have arrived.
        """
        if not self._open.is_started or self.state is State.FATAL_ERROR or (self._open.sent_end_requests and not is_cut_off):
            return None
        return transaction_errors.left_open(self._transactional_id, self._timeout_ms, is_end_sent=self._open.sent_end_requests > 0)

    def give_up(self, error: KafkaException) -> list[Effect]:
        """Fail all callers, because no request can be sent any more. The error of a commit says whether it may have happened."""
        failed: list[Effect] = []
        if self.state is State.COMMITTING:
            error_of_commit = transaction_errors.commit_given_up(self._transactional_id, error, is_end_sent=self._is_in_doubt)
            failed = fail(self.callers.of_end, error_of_commit)
        return failed + self._fail_fatally(error)

    # Successful and refused steps.

    def _step_done(self, step: Step, response: Any) -> list[Effect]:
        self._open.is_known |= step in ADDING_STEPS
        match step:
            case Step.FIND_COORDINATOR:
                self.coordinators.learn(self._transactional_id, "transaction", parse_find_response(response).address)
            case Step.INIT_PRODUCER_ID:
                self._adopt_identity(response)
                if self.state is State.INITIALIZING:
                    self.state = state_after(self.state, Move.INITIALIZED)
                    return complete(self.callers.of_init)
            case Step.ADD_PARTITIONS:
                for topic_partition, _ in partition_codes(step, response):
                    self._open.to_add.pop(topic_partition, None)
                    self._open.added.add(topic_partition)
            case Step.END:
                self._open.is_ended = True
                if response.producer_id != NO_PRODUCER.producer_id:
                    self._adopt_identity(response)
                elif self.version > 1:  # A broker of an older version: the next transaction begins by requesting a new epoch.
                    self._has_late_requests = True
            case _ if self.callers.of_offsets:
                return self._offsets_done(step, response, self.callers.of_offsets[0])
        return []

    def _adopt_identity(self, response: Any) -> None:
        """Adopt the identity in a response. Its epoch fences all requests sent under the previous one."""
        self.identity = ProducerIdentity(response.producer_id, response.producer_epoch)
        self._has_late_requests = False

    def _offsets_done(self, step: Step, response: Any, first: Offsets) -> list[Effect]:
        """A step for the first waiting offsets has succeeded. If they were given up in the meantime, the response has no effect."""
        if step is Step.FIND_GROUP:
            self.coordinators.learn(first.group.group_id, "group", parse_find_response(response).address)
        elif step is Step.ADD_OFFSETS:
            first.is_group_added = True
        elif step is Step.CHECK_TOPICS:
            reports: list[Effect] = [Report(line) for line in first.check(response)]
            return reports + ([] if first.offsets else complete([self.callers.of_offsets.pop(0).caller]))
        else:
            return complete([self.callers.of_offsets.pop(0).caller])
        return []

    @property
    def _is_in_doubt(self) -> bool:
        """Whether a commit without a response may have happened: then it must not be treated as failed."""
        return self.state is State.COMMITTING and self._open.is_known and self._open.sent_end_requests > 0

    def _refused(self, step: Step, error: ApiException, handling: Handling) -> list[Effect]:
        error = self.explained(error)
        is_curable = handling in (Handling.ABORT, Handling.FIX_CONFIGURATION)
        if is_curable and self.state is State.ABORTING and step not in ENDING_STEPS:
            return []  # A request made before the abort does not matter any more.
        if not is_curable or self.state is State.ABORTING:
            if (first := self._first_offsets) is not None and step is Step.COMMIT_OFFSETS:
                return self._fail_fatally(transaction_errors.offsets_refused(first.group.group_id, first.offsets, error))
            return self._fail_fatally(error)
        if self.state is not State.INITIALIZING:
            return self._fail_abortably(error)
        self.state = state_after(self.state, Move.INIT_REFUSED)
        return fail(self.callers.of_init, error)

    def _fail_abortably(self, error: KafkaException) -> list[Effect]:
        if self._is_in_doubt:  # An abort would be refused, or end a transaction of the next producer with this id.
            return self._fail_fatally(error)
        before = self.state
        self.state = state_after(self.state, Move.FAILED_ABORTABLY)
        if self.state is not State.ABORTABLE_ERROR:
            return []
        if before is not State.ABORTABLE_ERROR:
            self.error = error if group_of(error) is Group.INVALID_CONFIGURATION else as_abortable(error)
        self._open.to_add.clear()
        assert self.error is not None, "an abortable state has its error"
        return [*self.callers.fail_offsets(self.error), *fail(self.callers.of_end, self.error), WakeCallers()]  # They may wait in `send`.

    def _fail_fatally(self, error: KafkaException) -> list[Effect]:
        if self.state is State.FATAL_ERROR:
            return []
        error = self.explained(error)
        if self._is_in_doubt:
            error = transaction_errors.commit_in_doubt(self._transactional_id, error)
        self.state = state_after(self.state, Move.FAILED_FATALLY)
        self.error = error if group_of(error) is Group.APPLICATION_RECOVERABLE else as_fatal(error)
        self._open.to_add.clear()
        reports: list[Effect] = [Report(f"the producer with transactional.id {self._transactional_id!r} cannot go on: {self.error}")]
        if self.callers.is_closing:
            reports = []  # The producer is being closed, and close logs why the transaction was not ended.
        failed = self.callers.fail_offsets(self.error) + fail(self.callers.of_end, self.error) + fail(self.callers.of_init, self.error)
        return [*reports, *failed, WakeCallers()]

    def _coordinator_key(self, kind: str) -> str:
        return self._transactional_id if kind == "transaction" else self.callers.of_offsets[0].group.group_id

    def _forget_coordinator(self, step: Step) -> None:
        kind = COORDINATOR_OF_STEP[step]
        if kind is not None and (kind == "transaction" or self.callers.of_offsets):
            self.coordinators.forget(self._coordinator_key(kind), kind)
