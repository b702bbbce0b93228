"""Faults on purpose for a broker that has none: a proxy before it, which answers with errors, answers late, or cuts connections.

    with FaultProxy() as proxy:
        kafka = ApacheKafka({"advertised.listeners": f"PLAINTEXT://{proxy.address}"})
        proxy.aim(kafka.bootstrap_servers)
        proxy.change(lambda script: script.add(api="Produce", action="drop_after"))

The rules are those of the broker's own `FaultScript`, for a whole request: rules about one topic need the broker itself. A connection
that is made before `aim` waits.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from chaffinch.broker.core.error_responses import error_response
from chaffinch.broker.core.fault_script import Fault, FaultAction, FaultScript
from chaffinch.broker.core.handlers.produce import number_for
from chaffinch.protocol.apis import APIS
from chaffinch.protocol.messages.produce import PartitionProduceResponse, ProduceRequest, ProduceResponse, TopicProduceResponse
from chaffinch.protocol.schema import Message
from chaffinch.protocol.server_connection import ReceivedRequest, ServerConnection
from chaffinch.runtime.loop import LoopThread

HOST = "127.0.0.1"
PRODUCE_KEY = 0
NOT_CLIENTS = ("judge", "AddPartitionsToTxn", "TxnMarker")
"""Client id prefixes that are never hit: the reader of tests, and the broker itself."""

T = TypeVar("T")


class FaultProxy:
    """See the module. `address`: `HOST:PORT` for clients."""

    def __init__(self) -> None:
        self._thread = LoopThread("fault-proxy")
        self._script = FaultScript()
        self._target: asyncio.Future[tuple[str, int]] | None = None
        self.address = self._thread.run(self._listen())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._thread.run(self._end())
        self._thread.close()

    def aim(self, address: str) -> None:
        """Where the broker is."""
        host, _, port = address.rpartition(":")
        self._thread.call(lambda: self._aim((host, int(port))))

    def _aim(self, target: tuple[str, int]) -> None:
        if self._target is not None:
            self._target.set_result(target)

    def change(self, function: Callable[[FaultScript], T]) -> T:
        """Do something with the rules, between two requests."""
        return self._thread.call(lambda: function(self._script))

    async def _listen(self) -> str:
        self._target = asyncio.get_running_loop().create_future()
        self._links: set[asyncio.Task[Any]] = set()
        self._server = await asyncio.start_server(self._accepted, HOST, 0)
        return f"{HOST}:{self._server.sockets[0].getsockname()[1]}"

    async def _end(self) -> None:
        self._server.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        assert self._target is not None
        self._links.add(task)
        writers = [writer]
        try:
            broker_reader, broker_writer = await asyncio.open_connection(*await asyncio.shield(self._target))
            writers.append(broker_writer)
            link = _Link(self._script, writer, broker_writer)
            halves = [asyncio.ensure_future(link.requests(reader)), asyncio.ensure_future(link.answers(broker_reader))]
            try:
                await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for half in halves:
                    half.cancel()
                await asyncio.gather(*halves, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # The broker is away, or the proxy ends: the client sees a connection that breaks.
        finally:
            for each in writers:
                each.close()
            self._links.discard(task)


@dataclass(slots=True)
class _Pending:
    """A request without its answer yet, and what is to happen to it."""

    fault: Fault | None
    answer: bytes | None = None


class _Link:
    """One connection of a client, and the one to the broker behind it. Answers leave in the order of the requests."""

    def __init__(self, script: FaultScript, client: asyncio.StreamWriter, broker: asyncio.StreamWriter) -> None:
        self._script = script
        self._client = client
        self._broker = broker
        self._pending: deque[_Pending] = deque()

    async def requests(self, reader: asyncio.StreamReader) -> None:
        """Until the client goes, or a fault cuts it off."""
        while frame := await _frame(reader):
            request = self._understood(frame)
            fault = self._fault_for(request)
            if fault is not None and fault.action is FaultAction.DROP_BEFORE:
                return
            pending = _Pending(fault)
            if request is None or request.expects_response:
                self._pending.append(pending)
            if request is not None and fault is not None and fault.action is FaultAction.ERROR:
                pending.answer = _encoded(frame, _refusal(request, fault))
                self._send_answers()
            else:
                self._broker.write(frame)
                await self._broker.drain()

    async def answers(self, reader: asyncio.StreamReader) -> None:
        """Until the broker goes, or a fault drops an answer."""
        while frame := await _frame(reader):
            pending = next(each for each in self._pending if each.answer is None)
            action = None if pending.fault is None else pending.fault.action
            if action is FaultAction.DROP_AFTER:
                return
            if pending.fault is not None and action is FaultAction.DELAY:
                is_late = asyncio.Event()
                asyncio.get_running_loop().call_later(pending.fault.delay_ms / 1000, is_late.set)
                await is_late.wait()
            pending.answer = frame
            self._send_answers()

    def _send_answers(self) -> None:
        while self._pending and self._pending[0].answer is not None:
            self._client.write(self._pending.popleft().answer or b"")

    def _understood(self, frame: bytes) -> ReceivedRequest | None:
        """The request, if anything hangs on what it says: without faults only whether a Produce is answered at all."""
        (key,) = struct.unpack_from(">h", frame, 4)
        if key not in APIS or not (key == PRODUCE_KEY or self._script):
            return None
        return ServerConnection().receive(frame)[0]

    def _fault_for(self, request: ReceivedRequest | None) -> Fault | None:
        if request is None or (request.client_id or "").startswith(NOT_CLIENTS):
            return None
        return self._script.take(request.api.name, request.client_id, lambda: [(None, None)])


def _refusal(request: ReceivedRequest, fault: Fault) -> Message:
    if not isinstance(request.message, ProduceRequest):
        return error_response(request, fault.error.wire("apache"))
    number = number_for(fault.error, request.version, "apache")
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(index=each.index, error_code=number, base_offset=-1) for each in topic.partitions
                ],
            )
            for topic in request.message.topics
        ]
    )


def _encoded(frame: bytes, message: Message) -> bytes:
    connection = ServerConnection()
    (request,) = connection.receive(frame)
    return b"".join(bytes(part) for part in connection.encode_response(request, message))


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """A request or an answer with the four bytes of its size; empty at the end."""
    try:
        size = await reader.readexactly(4)
        return size + await reader.readexactly(int.from_bytes(size))
    except (asyncio.IncompleteReadError, OSError):
        return b""
