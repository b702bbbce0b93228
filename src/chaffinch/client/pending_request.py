"""Requests in flight of the blocking client: a single one, or a window of them to one broker; and deadlines of calls."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from chaffinch.client.addresses import Address
from chaffinch.client.connections import RequestFailed, RequestWritten, ResponseReceived
from chaffinch.client.wait_log import Wait
from chaffinch.errors import ApiException, IllegalStateException, NetworkException, Stored, TimeoutException
from chaffinch.protocol.apis import api_of
from chaffinch.protocol.schema import Message
from chaffinch.runtime.clock import Clock


@dataclass(slots=True, eq=False)
class PendingRequest:
    """One request in flight. `outcome` is None until it is known."""

    message: Message
    address: Address
    outcome: ResponseReceived | RequestFailed | RequestWritten | None = None


class Deadline:
    """The deadline of one call, and the TimeoutException that the call raises at its end."""

    def __init__(self, clock: Clock, timeout_ms: int, what: str, api: str | None = None, broker_wait_ms: int = 0) -> None:
        self._clock = clock
        self._api = api
        self._may_be_done = False
        self.started_ms = clock.steady_ms()
        self.at_ms = self.started_ms + timeout_ms
        self.waits_since_ms = self.started_ms + broker_wait_ms
        self.what = what
        self.last_error: BaseException | None = None

    @property
    def left_ms(self) -> int:
        return max(0, self.at_ms - self._clock.steady_ms())

    @property
    def is_over(self) -> bool:
        return self._clock.steady_ms() >= self.at_ms

    @property
    def total_ms(self) -> int:
        """The time from start to deadline."""
        return self.at_ms - self.started_ms

    @property
    def waited_ms(self) -> int:
        return self._clock.steady_ms() - self.started_ms

    def note(self, error: ApiException, *, is_new: bool = True) -> None:
        """Record a failed attempt. If the broker may have acted on it, the timeout error is `Stored.POSSIBLY`.

        `is_new`: the error replaces an earlier one as the cause.
        """
        self._may_be_done |= error.api == self._api and error.stored is Stored.POSSIBLY
        if is_new or self.last_error is None:
            self.last_error = error

    def wait(self, why: str) -> Wait:
        """The wait for a log line. The time that the request itself lets the broker wait does not count."""
        return Wait(None, self.what, self.waits_since_ms, why, until_ms=self.at_ms)

    def error(self, detail: str) -> TimeoutException:
        """The error at the end of the deadline; its cause is the last recorded error."""
        stored = Stored.POSSIBLY if self._may_be_done else Stored.NO
        error = TimeoutException(f"{self.what} failed after {self.waited_ms} ms: {detail}", stored=stored, api=self._api)
        error.__cause__ = self.last_error
        return error


def request_error(request: PendingRequest) -> ApiException:
    """The exception of a request without a response."""
    outcome, api = request.outcome, api_of(request.message).name
    if isinstance(outcome, RequestFailed):
        return outcome.exception(api)
    return TimeoutException(f"no response from {request.address} in time", stored=Stored.POSSIBLY, api=api)


class PipelineClient(Protocol):
    """The methods of the client that `Pipeline` uses."""

    @property
    def lock(self) -> AbstractContextManager[Any]: ...
    def start(self, message: Message, address: Address) -> PendingRequest: ...
    def deadline(self, timeout_ms: int | None, what: str) -> Deadline: ...
    def pump(self, wait_ms: int) -> None: ...


class Pipeline:
    """Requests in flight to one broker, at most `window` of them; responses arrive in the order of the requests.

    Nothing is retried: if the connection is lost, `send` or `finish` raises NetworkException (TimeoutException at the deadline). After
    that, `take_responses()` returns the responses that came before. `pending` are the requests, in order, whose result the caller has to
    determine (Produce batches with sequences can be sent again).
    """

    def __init__(self, client: PipelineClient, address: Address, window: int) -> None:
        if window < 1:
            raise ValueError(f"a window of {window} requests")
        self.address = address
        self._client = client
        self._window = window
        self._pending: deque[PendingRequest] = deque()
        self._responses: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None and self._pending:
            raise IllegalStateException(f"{len(self._pending)} requests to {self.address} were abandoned without a response: call finish()")

    @property
    def pending(self) -> list[Any]:
        """The requests without a response, in the order in which they were sent."""
        return [request.message for request in self._pending]

    def take_responses(self) -> list[Any]:
        """The responses that arrived and were not returned yet, in order."""
        responses, self._responses = self._responses, []
        return responses

    def send(self, message: Message, *, timeout_ms: int | None = None) -> list[Any]:
        """Wait for space in the window, then send. Returns the responses that arrived in the meantime, in order."""
        with self._client.lock:
            self._wait(self._window - 1, timeout_ms)
            self._pending.append(self._client.start(message, self.address))
            return self.take_responses()

    def finish(self, *, timeout_ms: int | None = None) -> list[Any]:
        """Wait for all responses. Returns those that were not returned yet, in order."""
        with self._client.lock:
            self._wait(0, timeout_ms)
            return self.take_responses()

    def _wait(self, pending_max: int, timeout_ms: int | None) -> None:
        deadline = self._client.deadline(timeout_ms, f"waiting for {len(self._pending)} responses of {self.address}")
        self._collect()
        while len(self._pending) > pending_max:
            if deadline.is_over:
                deadline.note(NetworkException(f"no response from {self.address} yet", stored=Stored.POSSIBLY))
                raise deadline.error(f"{len(self._pending)} requests have no response")
            self._client.pump(deadline.left_ms)
            self._collect()

    def _collect(self) -> None:
        while self._pending and (outcome := self._pending[0].outcome) is not None:
            if not isinstance(outcome, ResponseReceived):
                raise request_error(self._pending[0])
            self._pending.popleft()
            self._responses.append(outcome.message)
