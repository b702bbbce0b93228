"""Requests other than Produce: metadata, an identity, configurations of topics, the steps of a transaction; and where their answers go.

An identity is the producer id and epoch under which batches are numbered: requested once, bumped locally, requested again when the epochs
run out. A transactional producer's comes from its coordinator, and is never bumped here. Source: TransactionManager.java,
`bumpIdempotentProducerEpoch`; KIP-360; decision 14 of the design.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from chaffinch.client.addresses import Address
from chaffinch.client.connections import Answered, Failed
from chaffinch.errors import (
    KafkaException,
    codes,
    exception_for,
)
from chaffinch.identifiers import EPOCH_MAX, NO_PRODUCER, ProducerIdentity
from chaffinch.producer.core.asking import Asking
from chaffinch.producer.core.completer import BatchCompleter
from chaffinch.producer.core.delivery import Delivery
from chaffinch.producer.core.effects import SendRequest, WakeCallers
from chaffinch.producer.core.refusals.batch_answers import facts_request, read_facts
from chaffinch.producer.core.renewed_topics import RenewedTopics
from chaffinch.producer.core.transactions.manager import TransactionManager
from chaffinch.producer.core.transactions.requests import Step
from chaffinch.producer.core.wiring import Wiring
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest


@dataclass(frozen=True, slots=True)
class MetadataAsked: ...


@dataclass(frozen=True, slots=True)
class IdentityAsked: ...


@dataclass(frozen=True, slots=True)
class FactsAsked:
    topic: str


@dataclass(frozen=True, slots=True)
class StepAsked:
    step: Step


METADATA_ASKED: Final = MetadataAsked()
IDENTITY_ASKED: Final = IdentityAsked()


class IdentityKeeper:
    """The producer's identity, and the request for one."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._transaction = transaction = wiring.transaction
        self._own = NO_PRODUCER
        self._is_wanted = False
        self.asking = Asking() if transaction is None else transaction.asking
        """How it goes with the request for an identity, or with those of the transaction."""

    @property
    def current(self) -> ProducerIdentity:
        """What new batches are numbered under; NO_PRODUCER while there is none, and always without idempotence."""
        return self._own if self._transaction is None else self._transaction.identity

    @property
    def is_missing(self) -> bool:
        """Whether batches have to wait for an identity."""
        return self._wiring.is_idempotent and self.current == NO_PRODUCER

    @property
    def is_asked(self) -> bool:
        """Whether they wait for it and it was asked for."""
        return self.is_missing and (self.asking.is_under_way or self.asking.failures > 0)

    def want(self) -> None:
        """There is a batch to number."""
        self._is_wanted = self._transaction is None

    def is_due(self, steady_ms: int) -> bool:
        """Whether to ask now."""
        return self._is_wanted and self.is_missing and self.asking.may_begin(steady_ms)

    def request(self, address: Address) -> InitProducerIdRequest:
        """The question; it is under way from now on."""
        self._is_wanted = False
        self.asking.begin("InitProducerId", address)
        return InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=self._wiring.transaction_timeout_ms)

    def answered(self, answer: Any, steady_ms: int) -> KafkaException | None:
        """Take the answer in. What is not retriable is returned: nothing can be written with idempotence then."""
        code = codes.by_number(answer.error_code)
        if code is codes.NONE:
            self._own = ProducerIdentity(answer.producer_id, answer.producer_epoch)
            self.asking.succeeded()
            return None
        error = exception_for(code, api="InitProducerId")
        self.unanswered(error, steady_ms)
        return None if code.is_retriable else error

    def unanswered(self, error: KafkaException, steady_ms: int) -> None:
        """No identity yet: ask again after a wait."""
        self.asking.again(error, steady_ms + self._wiring.wait_ms(self.asking.failures + 1))

    def bump(self) -> None:
        """Numbering restarts somewhere: the next epoch, without a request; after the last one a new producer id."""
        assert self._transaction is None, "within a transaction the epoch stays"
        self._wiring.counts["epoch_bumps"] += 1
        epoch = self._own.epoch + 1
        self._own = NO_PRODUCER if epoch > EPOCH_MAX else ProducerIdentity(self._own.producer_id, epoch)

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """When to look again without an event."""
        return self.asking.next_deadline_ms(steady_ms) if self._transaction is None and self.is_missing else None


class AuxiliaryRequests:
    """Sends the requests, and takes their answers to the parts that they are for."""

    def __init__(
        self, wiring: Wiring, identity: IdentityKeeper, delivery: Delivery, completer: BatchCompleter, renewed: RenewedTopics
    ) -> None:
        self._wiring = wiring
        self._transaction = wiring.transaction
        self._identity = identity
        self._delivery = delivery
        self._completer = completer
        self._renewed = renewed
        self._facts_under_way: set[str] = set()

    def ask(self, steady_ms: int) -> None:
        """Metadata, an identity, configurations: from any broker, what is due."""
        wiring = self._wiring
        if wiring.metadata.is_due(steady_ms) and (address := wiring.any_address(steady_ms)) is not None:
            self._ask_any(address, wiring.metadata.request(steady_ms), METADATA_ASKED)
        if self._identity.is_due(steady_ms) and (address := wiring.any_address(steady_ms)) is not None:
            self._ask_any(address, self._identity.request(address), IDENTITY_ASKED)
        for topic in [name for name in self._delivery.facts_wanted if name not in self._facts_under_way]:
            if (address := wiring.any_address(steady_ms)) is not None:
                self._facts_under_way.add(topic)
                self._ask_any(address, facts_request(topic), FactsAsked(topic))

    def ask_step(self, transaction: TransactionManager, step: Step, steady_ms: int) -> None:
        """The next request of the transaction, if who is to get it may be tried now."""
        address = transaction.address_of(step)
        if address is None:
            if (broker := self._wiring.any_address(steady_ms)) is not None:
                self._ask_any(broker, transaction.request(step, broker), StepAsked(step))
        elif self._wiring.attempts.may_try(address, steady_ms):
            message, version_max = transaction.request(step, address), transaction.version_max(step)
            self._request(address, message, StepAsked(step), self._wiring.request_timeout_ms, version_max)

    def _ask_any(self, address: Address, message: Any, token: Any) -> None:
        self._request(address, message, token, self._wiring.bootstrap.patience_ms(address, self._wiring.attempts))

    def _request(self, address: Address, message: Any, token: Any, timeout_ms: int, version_max: int | None = None) -> None:
        self._wiring.attempts.asks(address)
        self._wiring.out.append(SendRequest(address=address, message=message, token=token, timeout_ms=timeout_ms, version_max=version_max))

    def answered(self, event: Answered, steady_ms: int) -> None:
        """A broker answered one of them."""
        token = event.token
        match token:
            case MetadataAsked():
                self._wiring.metadata.answered(event.message, steady_ms)
                self._renewed.heard(topic.name for topic in event.message.topics if topic.name is not None)
                self._delivery.metadata_heard(steady_ms)
                self._wiring.out.append(WakeCallers())
            case IdentityAsked():
                refusal = self._identity.answered(event.message, steady_ms)
                if refusal is not None:
                    self._completer.give_up(refusal)
            case FactsAsked():
                self._facts_heard(token.topic, event.message, steady_ms)
            case _:
                assert isinstance(token, StepAsked), f"an answer to nothing: {event}"
                assert self._transaction is not None
                self._wiring.out += self._transaction.answered(token.step, event.message, self._step_wait_ms(), steady_ms)

    def failed(self, event: Failed, steady_ms: int) -> None:
        """One of them will get no answer."""
        token, error = event.token, event.exception()
        is_final = event.is_unsupported or event.error is not None
        match token:
            case MetadataAsked():
                self._wiring.metadata.unanswered(error, steady_ms)
            case IdentityAsked():
                self._identity.unanswered(error, steady_ms)
                if is_final:
                    self._completer.give_up(error)
            case FactsAsked():
                self._facts_heard(token.topic, None, steady_ms)
            case _:
                assert isinstance(token, StepAsked), f"a failure of nothing: {event}"
                assert self._transaction is not None
                if is_final:
                    self._wiring.out += self._transaction.not_served(token.step, error, was_sent=event.was_sent)
                else:
                    self._wiring.out += self._transaction.unanswered(token.step, error, self._step_wait_ms(), steady_ms)

    def _step_wait_ms(self) -> int:
        return self._wiring.wait_ms(self._identity.asking.failures + 1)

    def _facts_heard(self, topic: str, answer: Any, steady_ms: int) -> None:
        self._facts_under_way.discard(topic)
        state = self._wiring.cluster.topic(topic)
        counts = [] if state is None else [partition.replica_count for partition in state.partitions.values()]
        self._delivery.facts_heard(topic, read_facts(answer, min(counts, default=None), steady_ms), steady_ms)
