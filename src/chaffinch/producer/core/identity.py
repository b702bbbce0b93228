"""Under which producer id and epoch batches are numbered: asked for once, bumped locally, asked for anew when the epochs run out.

A transactional producer's identity comes from its coordinator, and is never bumped here. Source: TransactionManager.java,
`bumpIdempotentProducerEpoch`; KIP-360; decision 14 of the design.
"""

from __future__ import annotations

from typing import Any

from chaffinch.client.addresses import Address
from chaffinch.errors import KafkaException, codes, exception_for
from chaffinch.identifiers import EPOCH_MAX, NO_PRODUCER, ProducerIdentity
from chaffinch.producer.core.asking import Asking
from chaffinch.producer.core.transactions.manager import TransactionManager
from chaffinch.producer.core.wiring import Wiring
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest


class IdentityKeeper:
    """The producer's identity, and the request for one."""

    def __init__(self, wiring: Wiring, transaction: TransactionManager | None) -> None:
        self._wiring = wiring
        self._transaction = transaction
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

    def is_due(self, now_ms: int) -> bool:
        """Whether to ask now."""
        return self._is_wanted and self.is_missing and self.asking.may_begin(now_ms)

    def request(self, address: Address) -> InitProducerIdRequest:
        """The question; it is under way from now on."""
        self._is_wanted = False
        self.asking.begin("InitProducerId", address)
        return InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=self._wiring.transaction_timeout_ms)

    def answered(self, answer: Any, now_ms: int) -> KafkaException | None:
        """Take the answer in. What is not retriable is returned: nothing can be written with idempotence then."""
        code = codes.by_number(answer.error_code)
        if code is codes.NONE:
            self._own = ProducerIdentity(answer.producer_id, answer.producer_epoch)
            self.asking.succeeded()
            return None
        error = exception_for(code, api="InitProducerId")
        self.unanswered(error, now_ms)
        return None if code.is_retriable else error

    def unanswered(self, error: KafkaException, now_ms: int) -> None:
        """No identity yet: ask again after a wait."""
        self.asking.again(error, now_ms + self._wiring.wait_ms(self.asking.failures + 1))

    def bump(self) -> None:
        """Numbering restarts somewhere: the next epoch, which no broker has to be told; after the last one a new producer id."""
        assert self._transaction is None, "within a transaction the epoch stays"
        self._wiring.counts["epoch_bumps"] += 1
        epoch = self._own.epoch + 1
        self._own = NO_PRODUCER if epoch > EPOCH_MAX else ProducerIdentity(self._own.producer_id, epoch)

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """When to look again without an event."""
        return self.asking.next_deadline_ms(now_ms) if self._transaction is None and self.is_missing else None
