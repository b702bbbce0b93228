"""Requests other than Produce: Metadata, InitProducerId, DescribeConfigs and the steps of a transaction; dispatch of their responses.

The identity is the producer id and epoch under which batches are numbered. It is requested once, bumped locally, and requested again when
the epochs run out. The coordinator assigns the identity of a transactional producer, which is never bumped here. Source:
TransactionManager.java, `bumpIdempotentProducerEpoch`; KIP-360; decision 14 of the design.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from chaffinch.client.addresses import Address
from chaffinch.client.connections import RequestFailed, ResponseReceived
from chaffinch.errors import (
    KafkaException,
    codes,
    exception_for,
)
from chaffinch.identifiers import EPOCH_MAX, NO_PRODUCER, ProducerIdentity
from chaffinch.producer.core.completer import BatchCompleter
from chaffinch.producer.core.context import ProducerContext
from chaffinch.producer.core.effects import SendRequest, WakeCallers
from chaffinch.producer.core.produce_response_handler import ProduceResponseHandler
from chaffinch.producer.core.recreated_topics import RecreatedTopics
from chaffinch.producer.core.refusals.batch_responses import read_topic_config, topic_config_request
from chaffinch.producer.core.retrying_request import RetryingRequest
from chaffinch.producer.core.transactions.manager import TransactionManager
from chaffinch.producer.core.transactions.requests import Step
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest


@dataclass(frozen=True, slots=True)
class MetadataToken: ...


@dataclass(frozen=True, slots=True)
class IdentityToken: ...


@dataclass(frozen=True, slots=True)
class TopicConfigToken:
    topic: str


@dataclass(frozen=True, slots=True)
class StepToken:
    step: Step


METADATA_TOKEN: Final = MetadataToken()
IDENTITY_TOKEN: Final = IdentityToken()


class IdentityManager:
    """The producer's identity, and the request for it (InitProducerId)."""

    def __init__(self, context: ProducerContext) -> None:
        self._context = context
        self._transaction = transaction = context.transaction
        self._own = NO_PRODUCER
        self._is_needed = False
        self.retrying_request = RetryingRequest() if transaction is None else transaction.retrying_request
        """State of the request for an identity, or of the transaction's requests."""

    @property
    def current(self) -> ProducerIdentity:
        """The identity of new batches; NO_PRODUCER while there is none, and always without idempotence."""
        return self._own if self._transaction is None else self._transaction.identity

    @property
    def is_missing(self) -> bool:
        """Whether batches have to wait for an identity."""
        return self._context.is_idempotent and self.current == NO_PRODUCER

    @property
    def is_requested(self) -> bool:
        """Whether batches wait for an identity that has been requested."""
        return self.is_missing and (self.retrying_request.is_under_way or self.retrying_request.failures > 0)

    def mark_needed(self) -> None:
        """Record that a batch needs an identity."""
        self._is_needed = self._transaction is None

    def is_due(self, steady_ms: int) -> bool:
        """Whether to send the request now."""
        return self._is_needed and self.is_missing and self.retrying_request.may_begin(steady_ms)

    def request(self, address: Address) -> InitProducerIdRequest:
        """The request; it is under way from now on."""
        self._is_needed = False
        self.retrying_request.begin("InitProducerId", address)
        return InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=self._context.transaction_timeout_ms)

    def response_received(self, response: Any, steady_ms: int) -> KafkaException | None:
        """Handle the response. Returns a non-retriable error, which makes idempotent writes impossible."""
        code = codes.by_number(response.error_code)
        if code is codes.NONE:
            self._own = ProducerIdentity(response.producer_id, response.producer_epoch)
            self.retrying_request.succeeded()
            return None
        error = exception_for(code, api="InitProducerId")
        self.attempt_failed(error, steady_ms)
        return None if code.is_retriable else error

    def attempt_failed(self, error: KafkaException, steady_ms: int) -> None:
        """Record a failed attempt, and retry it after the backoff."""
        self.retrying_request.retry(error, steady_ms + self._context.wait_ms(self.retrying_request.failures + 1))

    def bump(self) -> None:
        """A partition's sequence restarts: use the next epoch, without a request. After the last epoch a new producer id is needed."""
        assert self._transaction is None, "within a transaction the epoch stays"
        self._context.counts["epoch_bumps"] += 1
        epoch = self._own.epoch + 1
        self._own = NO_PRODUCER if epoch > EPOCH_MAX else ProducerIdentity(self._own.producer_id, epoch)

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """When the next check is due without an event."""
        return self.retrying_request.next_deadline_ms(steady_ms) if self._transaction is None and self.is_missing else None


class AuxiliaryRequests:
    """Sends the requests, and dispatches their responses."""

    def __init__(
        self,
        context: ProducerContext,
        identity: IdentityManager,
        response_handler: ProduceResponseHandler,
        completer: BatchCompleter,
        recreated_topics: RecreatedTopics,
    ) -> None:
        self._context = context
        self._transaction = context.transaction
        self._identity = identity
        self._response_handler = response_handler
        self._completer = completer
        self._recreated_topics = recreated_topics
        self._topic_configs_in_flight: set[str] = set()

    def send_due(self, steady_ms: int) -> None:
        """Send the requests that are due and go to any broker: Metadata, InitProducerId, DescribeConfigs."""
        context = self._context
        if context.metadata.is_due(steady_ms) and (address := context.any_address(steady_ms)) is not None:
            self._send_to_any(address, context.metadata.request(steady_ms), METADATA_TOKEN)
        if self._identity.is_due(steady_ms) and (address := context.any_address(steady_ms)) is not None:
            self._send_to_any(address, self._identity.request(address), IDENTITY_TOKEN)
        for topic in [name for name in self._response_handler.needed_topic_configs if name not in self._topic_configs_in_flight]:
            if (address := context.any_address(steady_ms)) is not None:
                self._topic_configs_in_flight.add(topic)
                self._send_to_any(address, topic_config_request(topic), TopicConfigToken(topic))

    def send_step(self, transaction: TransactionManager, step: Step, steady_ms: int) -> None:
        """Send the transaction's next request, if its broker may be tried now."""
        address = transaction.address_of(step)
        if address is None:
            if (broker := self._context.any_address(steady_ms)) is not None:
                self._send_to_any(broker, transaction.request(step, broker), StepToken(step))
        elif self._context.attempts.may_try(address, steady_ms):
            message, version_max = transaction.request(step, address), transaction.version_max(step)
            self._request(address, message, StepToken(step), self._context.request_timeout_ms, version_max)

    def _send_to_any(self, address: Address, message: Any, token: Any) -> None:
        self._request(address, message, token, self._context.bootstrap.response_timeout_ms(address, self._context.attempts))

    def _request(self, address: Address, message: Any, token: Any, timeout_ms: int, version_max: int | None = None) -> None:
        self._context.attempts.request_sent(address)
        self._context.out.append(SendRequest(address=address, message=message, token=token, timeout_ms=timeout_ms, version_max=version_max))

    def response_received(self, event: ResponseReceived, steady_ms: int) -> None:
        """A broker has responded to one of these requests."""
        token = event.token
        match token:
            case MetadataToken():
                self._context.metadata.response_received(event.message, steady_ms)
                self._recreated_topics.metadata_received(topic.name for topic in event.message.topics if topic.name is not None)
                self._response_handler.metadata_received(steady_ms)
                self._context.out.append(WakeCallers())
            case IdentityToken():
                refusal = self._identity.response_received(event.message, steady_ms)
                if refusal is not None:
                    self._completer.give_up(refusal)
            case TopicConfigToken():
                self._topic_config_received(token.topic, event.message, steady_ms)
            case _:
                assert isinstance(token, StepToken), f"a response to an unknown request: {event}"
                assert self._transaction is not None
                self._context.out += self._transaction.response_received(token.step, event.message, self._step_wait_ms(), steady_ms)

    def request_failed(self, event: RequestFailed, steady_ms: int) -> None:
        """One of these requests will get no response."""
        token, error = event.token, event.exception()
        is_final = event.is_unsupported or event.error is not None
        match token:
            case MetadataToken():
                self._context.metadata.request_failed(error, steady_ms)
            case IdentityToken():
                self._identity.attempt_failed(error, steady_ms)
                if is_final:
                    self._completer.give_up(error)
            case TopicConfigToken():
                self._topic_config_received(token.topic, None, steady_ms)
            case _:
                assert isinstance(token, StepToken), f"a failure of an unknown request: {event}"
                assert self._transaction is not None
                if is_final:
                    self._context.out += self._transaction.request_unsupported(token.step, error, was_sent=event.was_sent)
                else:
                    self._context.out += self._transaction.request_failed(token.step, error, self._step_wait_ms(), steady_ms)

    def _step_wait_ms(self) -> int:
        return self._context.wait_ms(self._identity.retrying_request.failures + 1)

    def _topic_config_received(self, topic: str, response: Any, steady_ms: int) -> None:
        self._topic_configs_in_flight.discard(topic)
        state = self._context.cluster.topic(topic)
        counts = [] if state is None else [partition.replica_count for partition in state.partitions.values()]
        self._response_handler.topic_config_received(topic, read_topic_config(response, min(counts, default=None), steady_ms), steady_ms)
