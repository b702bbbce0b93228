"""Blocking client: single requests with their responses, and pipelines of batches, without a state machine.

It keeps cluster metadata, looks up leaders and coordinators, and retries retriable errors. Its timeout errors name the request, the target
and the time. It is thread-safe, with one request at a time. Times are in ms.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Literal, Self
from uuid import UUID

from chaffinch.client import coordinators, response_errors
from chaffinch.client.addresses import Address, Attempts, parse_bootstrap_servers
from chaffinch.client.backoff import RETRY_BACKOFF, Backoff, Rng
from chaffinch.client.bootstrap import first_response_timeout_ms
from chaffinch.client.cluster import ClusterState
from chaffinch.client.connections import Connected, ConnectionEvent, Disconnected, RequestFailed, RequestWritten, ResponseReceived
from chaffinch.client.coordinators import CoordinatorKind, Coordinators
from chaffinch.client.known_cluster import explain_unreachable
from chaffinch.client.network import Network
from chaffinch.client.options import ConnectionSettings
from chaffinch.client.pending_request import Deadline, PendingRequest, Pipeline, request_error
from chaffinch.client.wait_log import WaitLog
from chaffinch.errors import (
    ApiException,
    AuthenticationException,
    IllegalStateException,
    NetworkException,
    Stored,
    TimeoutException,
    UnsupportedCompressionTypeException,
    UnsupportedVersionException,
    codes,
    exception_for,
)
from chaffinch.errors.handling import Handling
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.apis import api_of
from chaffinch.protocol.messages.find_coordinator import FindCoordinatorRequest
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.protocol.schema import Message
from chaffinch.runtime.clock import Clock, SystemClock

# Defaults of the Java clients: default.api.timeout.ms, reconnect.backoff(.max).ms.
TIMEOUT_MS: Final = 60_000
RECONNECT_BACKOFF: Final = Backoff(initial_ms=50, max_ms=1_000)
CONNECTIONS: Final = ConnectionSettings()
# Requests in flight per pipeline: enough to keep a broker busy while the next batch is built.
WINDOW_REQUESTS: Final = 5
OUT_OF_TIME: Final = "no response within the caller's timeout"
POLL_MS_MAX: Final = 1_000

# A retry does not help: the broker does not support the API, or authentication failed.
_FINAL_ERRORS: Final = (UnsupportedVersionException, UnsupportedCompressionTypeException, AuthenticationException)
# Requests that any broker can answer.
_ANY_BROKER_REQUESTS: Final = (MetadataRequest, FindCoordinatorRequest)

Target = int | Address | Literal["any"]


class SyncClient:
    """Blocking requests to a cluster. Close it, or use it in a `with` statement.

    `on_wait` is called with a line about a long wait: first after some seconds, then after growing pauses (`wait_log.py`). It is called on
    the waiting thread, with the lock held.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        timeout_ms: int = TIMEOUT_MS,
        connections: ConnectionSettings = CONNECTIONS,
        retry_backoff: Backoff = RETRY_BACKOFF,
        reconnect_backoff: Backoff = RECONNECT_BACKOFF,
        clock: Clock | None = None,
        rng: Rng | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        self.cluster = ClusterState()
        self._bootstrap = parse_bootstrap_servers(bootstrap_servers)
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._timeout_ms = timeout_ms
        self._on_wait = on_wait
        self._wait_log = WaitLog()
        self._retry_backoff = retry_backoff
        self._attempts = Attempts(reconnect_backoff, self._rng)
        self._coordinators = Coordinators()
        self._connections = connections
        self._network = Network(connections, clock=self._clock, rng=self._rng)
        self.lock = threading.RLock()
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Calling it again has no effect."""
        with self.lock:
            self._is_closed = True
            self._network.close()

    def request(
        self,
        message: Message,
        node: Target = "any",
        *,
        timeout_ms: int | None = None,
        retries: bool = True,
        version_max: int | None = None,
    ) -> Any:
        """Send one request and return its response, with or without error codes.

        Args:
            message: The request.
            node: A node id, an address, or any broker.
            timeout_ms: Limit for all attempts together.
            retries: Whether a lost connection is retried until the timeout. If not, the NetworkException's `stored` is whether the broker
                may have acted on the request.
            version_max: Upper limit of the version, see `ApiVersionTable.choose`.

        Raises:
            TimeoutException: At the timeout; its cause is the last error.
            NetworkException: The connection was lost, and `retries` is False.
            UnsupportedVersionException: The broker supports no version of the API.
        """
        deadline = self.deadline(timeout_ms, f"to {_format_target(node)}", message)

        def find() -> Address | None:
            return self._address(node, deadline)

        with self.lock:
            return self._request_until_response(find, message, deadline, retries=retries, version_max=version_max).message

    def controller_request(self, message: Message, *, timeout_ms: int | None = None) -> Any:
        """Send one request to the controller. If the broker is not the controller (any more), look up the controller and retry.

        A response with another code is returned, retriable or not: a part of the request may be done, and would be rejected by a retry.
        Raises TimeoutException at the timeout, also while the cluster has no controller.
        """
        deadline = self.deadline(timeout_ms, "to the controller", message)
        with self.lock:
            return self._request_until_final(
                lambda: self._controller_address(deadline),
                lambda: self._refresh([], deadline),
                message,
                deadline,
                handling_of=response_errors.handling_of_controllers,
            )

    def node_request(self, node: int, message: Message, *, timeout_ms: int | None = None) -> Any:
        """Send one request to a node. Retriable codes in the response are retried, for example while a coordinator loads.

        A response with another code is returned; `response_errors.raise_for` raises it. Raises TimeoutException at the timeout.
        """
        deadline = self.deadline(timeout_ms, f"to {_format_target(node)}", message)
        with self.lock:
            return self._request_until_final(lambda: self._address(node, deadline), lambda: None, message, deadline)

    def leader_request(
        self, where: TopicPartition, message: Message, *, timeout_ms: int | None = None, version_max: int | None = None,
        topic_id: UUID = ZERO_UUID,
    ) -> Any:  # fmt: skip
        """Send one request to the leader of a partition. Retriable codes in the response are retried with fresh metadata.

        A response with another code is returned; `response_errors.raise_for` raises it. `version_max`: the newest version that can carry
        the request. `topic_id`: raises UnknownTopicIdException if metadata has another id. Raises TimeoutException at the timeout.
        """
        deadline = self.deadline(timeout_ms, f"to the leader of {where}", message)

        def find() -> Address | None:
            return self._leader_address(where, deadline)

        def forget() -> None:
            self._refresh([where.topic], deadline)
            present = self.cluster.topic_id(where.topic) or ZERO_UUID
            if present != topic_id and ZERO_UUID not in (present, topic_id):
                raise exception_for(codes.UNKNOWN_TOPIC_ID, topic_partition=where, api=api_of(message).name)

        with self.lock:
            return self._request_until_final(find, forget, message, deadline, version_max=version_max)

    def coordinator_request(
        self, key: str, kind: CoordinatorKind, message: Message, *, timeout_ms: int | None = None, version_max: int | None = None
    ) -> Any:
        """Send one request to the coordinator of a group or transactional id. Retriable codes are retried after a new lookup.

        UNKNOWN_TOPIC_OR_PARTITION is not retried. A response with another code is returned; `response_errors.raise_for` raises it. Raises
        TimeoutException at the timeout.
        """
        deadline = self.deadline(timeout_ms, f"to the coordinator of {kind} {key!r}", message)
        with self.lock:
            return self._request_until_final(
                lambda: self._coordinator_address(key, kind, deadline),
                lambda: self._coordinators.forget(key, kind),
                message,
                deadline,
                version_max=version_max,
                handling_of=response_errors.handling_of_coordinators,
            )

    def refresh_metadata(self, topics: Iterable[str] | None = None, *, node: Target = "any", timeout_ms: int | None = None) -> ClusterState:
        """Request metadata of `topics` (None: all topics) and return the updated state, in which a missing topic has an error code."""
        names = None if topics is None else list(topics)
        with self.lock:
            self._refresh(names, self.deadline(timeout_ms, "metadata request"), node)
        return self.cluster

    def leader(self, topic_partition: TopicPartition, *, timeout_ms: int | None = None) -> int:
        """The id of a partition's leader; waits until there is one.

        Raises the exception of the topic's code if the topic cannot be used, and UnknownTopicOrPartitionException for a partition that the
        topic does not have.
        """
        deadline = self.deadline(timeout_ms, f"looking for the leader of {topic_partition}")
        with self.lock:
            self._leader_address(topic_partition, deadline)
            leader = self.cluster.leader_of(topic_partition)
        assert leader is not None, "a leader with an address has an id"
        return leader

    def coordinator(self, key: str, kind: CoordinatorKind = "group", *, timeout_ms: int | None = None) -> Address:
        """The coordinator's address for a group or transactional id; usable as `node` of `request`."""
        deadline = self.deadline(timeout_ms, f"looking for the coordinator of {kind} {key!r}")
        with self.lock:
            return self._coordinator_address(key, kind, deadline)

    def forget_coordinator(self, key: str, kind: CoordinatorKind = "group") -> None:
        """Forget the coordinator of a group or transactional id, which has moved according to a response. The next use looks it up."""
        with self.lock:
            self._coordinators.forget(key, kind)

    def pipeline(self, node: Target, *, window: int = WINDOW_REQUESTS, timeout_ms: int | None = None) -> Pipeline:
        """A pipeline of up to `window` requests in flight to one broker; see `Pipeline`."""
        deadline = self.deadline(timeout_ms, f"opening a pipeline to {_format_target(node)}")
        with self.lock:
            return Pipeline(self, self._wait_for_address(lambda: self._address(node, deadline), deadline), window)

    def pause(self, pause_ms: int, deadline: Deadline | None = None) -> None:
        """Wait while the connections continue to move bytes, between two polls of a state that brokers do not announce."""
        until_ms = min(self._clock.steady_ms() + pause_ms, deadline.at_ms if deadline is not None else sys.maxsize)
        with self.lock:
            while (left_ms := until_ms - self._clock.steady_ms()) > 0:
                self.pump(left_ms if deadline is None else min(left_ms, self._until_log_ms(deadline)))
                if deadline is not None:
                    self._log_wait(deadline)

    # The methods below are called with the lock held.

    def deadline(self, timeout_ms: int | None, what: str, message: Message | None = None) -> Deadline:
        """The deadline of a call, which is about the request `message`, if given."""
        api = None if message is None else api_of(message).name
        what = what if api is None else f"{api} request {what}"
        broker_wait_ms = getattr(message, "max_wait_ms", 0)  # Of a Fetch that waits for records.
        return Deadline(self._clock, self._timeout_ms if timeout_ms is None else timeout_ms, what, api, broker_wait_ms)

    def start(self, message: Message, address: Address, version_max: int | None = None, timeout_ms: int | None = None) -> PendingRequest:
        """Send a request without waiting for its response. `timeout_ms`: limit for the response."""
        if self._is_closed:
            raise IllegalStateException("the client is closed")
        request = PendingRequest(message, address)
        self._attempts.request_sent(address)
        with self._reset_on_interrupt():
            self._network.send(address, message, request, version_max=version_max, timeout_ms=timeout_ms)
        return request

    def pump(self, wait_ms: int) -> None:
        """Move bytes, and wait up to `wait_ms` for an event. Outcomes are set on their pending requests."""
        if self._is_closed:
            raise IllegalStateException("the client is closed")
        with self._reset_on_interrupt():
            for event in self._network.poll(min(wait_ms, POLL_MS_MAX)):
                self._handle_event(event)

    @contextmanager
    def _reset_on_interrupt(self) -> Iterator[None]:
        """Reset all connections if a signal handler raises within the block, such as Ctrl-C: they may be half-way through a change."""
        try:
            yield
        except BaseException:
            self._network.reset_connections()
            raise

    def _handle_event(self, event: ConnectionEvent) -> None:
        event = explain_unreachable(event, self._attempts, self._bootstrap)
        match event:
            case ResponseReceived() | RequestFailed() | RequestWritten():
                # Without the token, which would make a reference cycle that keeps the sent and received bytes until garbage collection.
                event.token.outcome = replace(event, token=None)
            case Connected():
                self._attempts.succeeded(event.address)
            case Disconnected():
                # The caller's timeout does not mean that the broker failed.
                if not event.reason.startswith(OUT_OF_TIME):
                    self._attempts.failed(event.address, event.reason, self._clock.steady_ms(), had_response=event.had_response)
                self._coordinators.forget_address(event.address)

    def _log_wait(self, deadline: Deadline, awaited: Address | None = None) -> None:
        """Log the wait when a line about it is due. `awaited`: the broker whose response is awaited."""
        steady_ms = self._clock.steady_ms()
        if self._on_wait is None or deadline.is_over or steady_ms < self._wait_log.due_ms(None, deadline.waits_since_ms):
            return
        self._wait_log.logged(None, deadline.waits_since_ms, steady_ms)
        reason = self._failure_reason(deadline) if awaited is None else f"no response from {awaited} yet"
        self._on_wait(deadline.wait(reason).line(steady_ms))

    def _until_log_ms(self, deadline: Deadline) -> int:
        """The time until `_log_wait` has a line to log, or until the deadline."""
        due_ms = self._wait_log.due_ms(None, deadline.waits_since_ms) - self._clock.steady_ms()
        return min(deadline.left_ms, due_ms) if due_ms > 0 else deadline.left_ms

    def _wait_for_address(self, find: Callable[[], Address | None], deadline: Deadline) -> Address:
        while (address := find()) is None:
            if deadline.is_over:
                raise self._unreachable(deadline)
            steady_ms = self._clock.steady_ms()
            # The earliest end of a backoff of any address: all addresses that `find` accepts are backing off.
            self.pause(max(1, (self._attempts.wait_ends_ms(steady_ms) or steady_ms) - steady_ms), deadline)
        return address

    def _unreachable(self, deadline: Deadline) -> TimeoutException:
        return deadline.error(self._failure_reason(deadline))

    def _failure_reason(self, deadline: Deadline) -> str:
        last, known = deadline.last_error, [*self._bootstrap, *self.cluster.nodes.values()]
        failing = [address for address in known if self._attempts.failures(address)]
        # After an error response from a broker, unreachable other brokers are not the reason.
        if last is None or (failing if isinstance(last, (NetworkException, TimeoutException)) else failing == known):
            return self._attempts.describe(failing if failing and self.cluster.nodes else known)
        # For a lost connection the message says more than the name. An error code is in the cause, so its name suffices.
        return f"the last error was {last.message if isinstance(last, NetworkException) else getattr(last, 'name', last)}"

    def _request_until_response(
        self,
        find: Callable[[], Address | None],
        message: Message,
        deadline: Deadline,
        *,
        retries: bool = True,
        version_max: int | None = None,
    ) -> ResponseReceived:
        """Send the request until it gets a response: if `retries`, again after a lost connection or a time-out, until the deadline."""
        while True:
            address = self._wait_for_address(find, deadline)
            if deadline.last_error is not None and deadline.is_over:
                raise self._unreachable(deadline)
            request = self.start(message, address, version_max, self._response_timeout_ms(message, address, deadline))
            while request.outcome is None and not deadline.is_over:
                self.pump(self._until_log_ms(deadline))
                if request.outcome is None:
                    self._log_wait(deadline, address)
            if isinstance(request.outcome, ResponseReceived):
                return request.outcome
            if request.outcome is None:
                self._network.disconnect(address, OUT_OF_TIME)
                self.pump(0)
            error = request_error(request)
            deadline.note(error, is_new=OUT_OF_TIME not in error.message)
            if not retries or isinstance(error, _FINAL_ERRORS):
                raise error
            if deadline.is_over:
                raise self._unreachable(deadline)

    def _response_timeout_ms(self, message: Message, address: Address, deadline: Deadline) -> int | None:
        """Timeout of a response from a bootstrap address while the cluster is unknown; None: the request timeout."""
        if self.cluster.nodes or not isinstance(message, _ANY_BROKER_REQUESTS):
            return None
        setup_ms, request_ms = self._connections.setup_timeout_ms, self._connections.request_timeout_ms
        return first_response_timeout_ms(
            address, self._bootstrap, self._attempts, setup_ms=setup_ms, request_ms=request_ms, limit_ms=deadline.total_ms
        )

    def _request_until_final(
        self,
        find: Callable[[], Address | None],
        forget: Callable[[], None],
        message: Message,
        deadline: Deadline,
        *,
        version_max: int | None = None,
        handling_of: Callable[[Message], Handling] = response_errors.worst_handling,
    ) -> Message:
        """Send the request until its response has no retriable code. After one it backs off, and finds the broker again with `find`."""
        failures = 0
        while True:
            response: Message = self._request_until_response(find, message, deadline, version_max=version_max).message
            handling = handling_of(response)
            if handling not in response_errors.RETRIED:
                return response
            failures += 1
            code, text = next(iter(response_errors.codes_in(response)))
            deadline.note(exception_for(code, message=text, api=api_of(message).name))
            if deadline.is_over:
                raise deadline.error(f"the last response was {code.name}")
            if handling is Handling.REFRESH_AND_RETRY:
                forget()
            self.pause(self._retry_backoff.wait_ms(failures, self._rng), deadline)

    def _refresh(self, topics: list[str] | None, deadline: Deadline, node: Target = "any") -> None:
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        response = self._request_until_response(lambda: self._address(node, deadline), request, deadline).message
        self.cluster.update(response, self._clock.steady_ms())

    def _address(self, node: Target, deadline: Deadline) -> Address | None:
        """The address to send to; None while all candidates are backing off."""
        steady_ms = self._clock.steady_ms()
        if isinstance(node, Address):
            return self._attempts.pick([node], steady_ms)
        if node == "any":
            candidates = list(self.cluster.nodes.values())
            return self._attempts.pick([*candidates, *self._bootstrap], steady_ms)
        address = self.cluster.address_of(node)
        if address is None or not self._attempts.may_try(address, steady_ms):
            self._refresh([], deadline)
            address = self.cluster.address_of(node)
        if address is None:
            known = ", ".join(map(str, sorted(self.cluster.nodes))) or "none"
            raise exception_for(codes.BROKER_NOT_AVAILABLE, message=f"{_format_target(node)} is not in the cluster; its nodes are: {known}")
        return self._attempts.pick([address], self._clock.steady_ms())

    def _controller_address(self, deadline: Deadline) -> Address:
        no_broker = exception_for(codes.NOT_CONTROLLER, message="the cluster has no controller", stored=Stored.NO, api="Metadata")
        return self._wait_for_elected(lambda: self.cluster.address_of(self.cluster.controller_id), [], deadline, no_broker)

    def _leader_address(self, topic_partition: TopicPartition, deadline: Deadline) -> Address:
        return self._wait_for_elected(
            lambda: self.cluster.leader_address(topic_partition),
            [topic_partition.topic],
            deadline,
            exception_for(codes.LEADER_NOT_AVAILABLE, message="it has no leader", stored=Stored.NO, api="Metadata"),
            lambda: self._raise_for_topic(topic_partition),
        )

    def _wait_for_elected(
        self,
        known: Callable[[], Address | None],
        topics: list[str],
        deadline: Deadline,
        no_broker: ApiException,
        check: Callable[[], None] = lambda: None,
    ) -> Address:
        """Wait for an elected broker (controller or leader): refresh metadata of `topics` until it names one that can be reached.

        `no_broker`: the error if there is none. `check` raises for metadata, from the second response on, that rules one out.
        """
        failures = 0
        while True:
            address = known()
            if address is not None and self._attempts.failures(address) == 0:
                return address
            self._refresh(topics, deadline)
            if failures:
                check()
            address = known()
            if address is not None and self._attempts.may_try(address, self._clock.steady_ms()):
                return address
            if address is None:
                deadline.note(no_broker)
            failures += 1
            self.pause(self._retry_backoff.wait_ms(failures, self._rng), deadline)
            if deadline.is_over:
                raise deadline.error(self._attempts.describe([address]) if address else no_broker.message)

    def _raise_for_topic(self, topic_partition: TopicPartition) -> None:
        """Raise for a topic that is unknown in two consecutive responses, or cannot be used."""
        state = self.cluster.topic(topic_partition.topic)
        if state is None or (state.code is not codes.NONE and (not state.code.is_retriable or not state.partitions)):
            code = codes.UNKNOWN_TOPIC_OR_PARTITION if state is None else state.code
            if code is not codes.LEADER_NOT_AVAILABLE:
                raise exception_for(code, topic_partition=topic_partition, api="Metadata")
        elif topic_partition.partition not in state.partitions and state.partitions:
            message = f"partition {topic_partition.partition} of topic {topic_partition.topic!r}, which has {state.partition_count}"
            raise exception_for(codes.UNKNOWN_TOPIC_OR_PARTITION, message=message, topic_partition=topic_partition, api="Metadata")

    def _coordinator_address(self, key: str, kind: CoordinatorKind, deadline: Deadline) -> Address:
        failures = 0
        while True:
            address = self._coordinators.address_of(key, kind)
            if address is not None and self._attempts.may_try(address, self._clock.steady_ms()):
                return address
            request = coordinators.find_request(key, kind)
            response = self._request_until_response(lambda: self._address("any", deadline), request, deadline).message
            found = coordinators.parse_find_response(response)
            if found.code is codes.NONE:
                self._coordinators.learn(key, kind, found.address)
                if self._attempts.may_try(found.address, self._clock.steady_ms()):
                    return found.address
            else:
                error = exception_for(found.code, message=found.message, api="FindCoordinator")
                deadline.note(error)
                if not found.code.is_retriable:
                    raise error
            if deadline.is_over:
                raise deadline.error(f"the last response was {found.code.name}")
            failures += 1
            self.pause(self._retry_backoff.wait_ms(failures, self._rng), deadline)


def _format_target(node: Target) -> str:
    if isinstance(node, Address):
        return str(node)
    return f"node {node}" if isinstance(node, int) else "any broker"
