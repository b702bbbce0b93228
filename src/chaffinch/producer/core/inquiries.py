"""What is asked of brokers beside Produce: metadata, an identity, configurations, the steps of a transaction; and who hears the answers."""

from __future__ import annotations

from typing import Any

from chaffinch.client.addresses import Address
from chaffinch.client.connections import Answered, Failed
from chaffinch.producer.core.delivery import Delivery
from chaffinch.producer.core.effects import Effect, SendRequest, WakeCallers
from chaffinch.producer.core.giving_up import GivingUp
from chaffinch.producer.core.handler_desk import HandlerDesk
from chaffinch.producer.core.identity import IdentityKeeper
from chaffinch.producer.core.refusals.topic_facts import facts_request, read_facts
from chaffinch.producer.core.renewed_topics import RenewedTopics
from chaffinch.producer.core.tokens import (
    IDENTITY_ASKED,
    METADATA_ASKED,
    FactsAsked,
    IdentityAsked,
    MetadataAsked,
    StepAsked,
    network_error,
)
from chaffinch.producer.core.transactions.manager import TransactionManager
from chaffinch.producer.core.transactions.requests import Step
from chaffinch.producer.core.wiring import Wiring


class Inquiries:
    """Appends the requests to `out`, and what their answers lead to."""

    def __init__(
        self,
        wiring: Wiring,
        identity: IdentityKeeper,
        transaction: TransactionManager | None,
        delivery: Delivery,
        desk: HandlerDesk,
        renewed: RenewedTopics,
        giving_up: GivingUp,
        out: list[Effect],
    ) -> None:
        self._wiring = wiring
        self._identity = identity
        self._transaction = transaction
        self._delivery = delivery
        self._desk = desk
        self._renewed = renewed
        self._giving_up = giving_up
        self._out = out
        self._facts_under_way: set[str] = set()

    def ask(self, now_ms: int) -> None:
        """Metadata, an identity, configurations: from any broker, what is due."""
        wiring = self._wiring
        if wiring.metadata.is_due(now_ms) and (address := wiring.any_address(now_ms)) is not None:
            self._ask_any(address, wiring.metadata.request(now_ms), METADATA_ASKED)
        if self._identity.is_due(now_ms) and (address := wiring.any_address(now_ms)) is not None:
            self._ask_any(address, self._identity.request(address), IDENTITY_ASKED)
        for topic in [name for name in self._delivery.facts_wanted if name not in self._facts_under_way]:
            if (address := wiring.any_address(now_ms)) is not None:
                self._facts_under_way.add(topic)
                self._ask_any(address, facts_request(topic), FactsAsked(topic))

    def ask_step(self, transaction: TransactionManager, step: Step, now_ms: int) -> None:
        """The next request of the transaction, if who is to get it may be tried now."""
        address = transaction.address_of(step)
        if address is None:
            if (broker := self._wiring.any_address(now_ms)) is not None:
                self._ask_any(broker, transaction.request(step, broker), StepAsked(step))
        elif self._wiring.attempts.may_try(address, now_ms):
            message, version_max = transaction.request(step, address), transaction.version_max(step)
            self._request(address, message, StepAsked(step), self._wiring.request_timeout_ms, version_max)

    def _ask_any(self, address: Address, message: Any, token: Any) -> None:
        self._request(address, message, token, self._wiring.bootstrap.patience_ms(address, self._wiring.attempts))

    def _request(self, address: Address, message: Any, token: Any, timeout_ms: int, version_max: int | None = None) -> None:
        self._wiring.attempts.asks(address)
        self._out.append(SendRequest(address=address, message=message, token=token, timeout_ms=timeout_ms, version_max=version_max))

    def answered(self, event: Answered, now_ms: int) -> None:
        """A broker answered one of them."""
        token = event.token
        match token:
            case MetadataAsked():
                self._wiring.metadata.answered(event.message, now_ms)
                self._renewed.heard(topic.name for topic in event.message.topics if topic.name is not None)
                self._desk.metadata_heard(now_ms)
                self._out.append(WakeCallers())
            case IdentityAsked():
                refusal = self._identity.answered(event.message, now_ms)
                if refusal is not None:
                    self._giving_up.give_up(refusal)
            case FactsAsked():
                self._facts_heard(token.topic, event.message, now_ms)
            case StepAsked():
                assert self._transaction is not None
                self._out += self._transaction.answered(token.step, event.message, self._step_wait_ms(), now_ms)
            case _:
                raise AssertionError(f"an answer to nothing: {event}")

    def failed(self, event: Failed, now_ms: int) -> None:
        """One of them will get no answer."""
        token, error = event.token, network_error(event)
        is_final = event.is_unsupported or event.error is not None
        match token:
            case MetadataAsked():
                self._wiring.metadata.unanswered(error, now_ms)
            case IdentityAsked():
                self._identity.unanswered(error, now_ms)
                if is_final:
                    self._giving_up.give_up(error)
            case FactsAsked():
                self._facts_heard(token.topic, None, now_ms)
            case StepAsked() if is_final:
                assert self._transaction is not None
                self._out += self._transaction.not_served(token.step, error, was_sent=event.was_sent)
            case StepAsked():
                assert self._transaction is not None
                self._out += self._transaction.unanswered(token.step, error, self._step_wait_ms(), now_ms)
            case _:
                raise AssertionError(f"a failure of nothing: {event}")

    def _step_wait_ms(self) -> int:
        return self._wiring.wait_ms(self._identity.asking.failures + 1)

    def _facts_heard(self, topic: str, answer: Any, now_ms: int) -> None:
        self._facts_under_way.discard(topic)
        state = self._wiring.cluster.topic(topic)
        counts = [] if state is None else [partition.replica_count for partition in state.partitions.values()]
        self._delivery.facts_heard(topic, read_facts(answer, min(counts, default=None), now_ms), now_ms)
