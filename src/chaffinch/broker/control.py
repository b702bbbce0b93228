"""Control API (`--control`): nodes and faults of a running broker over HTTP and JSON.

    GET    /nodes             -> [{"id": 0, "host": "...", "port": 9092, "state": "running", "leaders": 3, "in_sync": 5}, ...]
    POST   /nodes/1/stop      {"abruptly": false} -> the nodes after the change
    POST   /nodes/1/start     {} -> the nodes after the change
    GET    /faults            -> [{"id": 1, "api": "Produce", "action": "error", "error": "...", "count": 2}, ...]
    POST   /faults            {"api": "Produce", "topic": "orders", ...} as `FaultScript.add` -> the faults after the change
    DELETE /faults, /faults/1 -> the faults after the change

Errors are `{"error": "..."}` with status 400 (bad input), 404 (no such node or fault), 405, 409 (the operating system refuses), 413, 415 or
503 (too many connections).

There is no password: every client that reaches the port may do all of this. To keep out web pages in a browser on the same machine, a body
must be declared as JSON, and the Host header must name an address or `localhost`, not a domain that others may point here.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from chaffinch.broker.core.fault_script import Fault, FaultScript
from chaffinch.broker.core.refusal import disk_failure_message
from chaffinch.broker.http_listener import JSON, Refused, Reply, Request, check_host, json_reply
from chaffinch.broker.server import BrokerServer
from chaffinch.errors import ConfigException
from chaffinch.identifiers import pluralize
from chaffinch.storage.file_system import StorageError

LOG = logging.getLogger("chaffinch.broker")

FAULT_FIELDS: Final = tuple(inspect.signature(FaultScript.add).parameters)[1:]
"""Parameter names of `FaultScript.add`, which validates their values."""

DIGITS_MAX: Final = 20
"""Longest accepted node or fault number; Python refuses to parse numbers of thousands of digits."""


class Control:
    """Request handler of the control port."""

    def __init__(self, server: BrokerServer, host: str) -> None:
        self._server = server
        self._host = host

    async def __call__(self, request: Request) -> Reply:
        """Raises Refused."""
        check_host(request, [self._host])
        try:
            match request.path.strip("/").split("/"):
                case ["nodes"]:
                    _allow(request, "GET")
                    return self._nodes()
                case ["nodes", node_id, "stop" | "start" as verb]:
                    _allow(request, "POST")
                    return self._change_node(_number("a node", node_id), verb, request)
                case ["faults"]:
                    return self._faults(request, None)
                case ["faults", fault_id]:
                    _allow(request, "DELETE")
                    return self._faults(request, _number("a fault", fault_id))
        except ConfigException as error:
            raise Refused(400, str(error)) from None
        except StorageError as error:
            LOG.error("%s %s: %s", request.method, request.path, error)
            raise Refused(409, disk_failure_message(request.path)) from None
        except OSError as error:
            raise Refused(409, error.strerror or str(error)) from None
        raise Refused(404, f"there is no {request.path}: only /nodes and /faults")

    def _nodes(self) -> Reply:
        state = self._server.core.state
        partitions = list(state.topics.partitions())
        return json_reply(
            [
                {
                    "id": node.id,
                    "host": node.host,
                    "port": node.port,
                    "state": state.nodes.state_of(node.id),
                    "leaders": sum(partition.replicas.leader == node.id for partition in partitions),
                    "in_sync": sum(node.id in partition.replicas.in_sync for partition in partitions),
                }
                for node in state.nodes.nodes
            ]
        )

    def _change_node(self, node_id: int, verb: str, request: Request) -> Reply:
        wanted = _object(request, ("abruptly",) if verb == "stop" else ())
        abruptly = wanted.get("abruptly", False)
        if not isinstance(abruptly, bool):
            raise Refused(400, f"abruptly must be true or false, not {abruptly!r}")
        with _found():
            if verb == "stop":
                self._server.stop_node(node_id, abruptly=abruptly)
            else:
                self._server.start_node(node_id)
        return self._nodes()

    def _faults(self, request: Request, fault_id: int | None) -> Reply:
        _allow(request, "GET", "POST", "DELETE")
        faults = self._server.core.faults
        if request.method == "POST":
            fault_id = faults.add(**_object(request, FAULT_FIELDS))
            (added,) = (fault for fault in faults.list() if fault.id == fault_id)
            LOG.info("fault added: %s", json.dumps(added.as_object()))
        elif request.method == "DELETE":
            with _found():
                faults.clear(fault_id)
            LOG.info("%s cleared", "all faults are" if fault_id is None else f"fault {fault_id} is")
        return json_reply([fault.as_object() | self._note(fault) for fault in faults.list()])

    def _note(self, fault: Fault) -> dict[str, str]:
        """A note for a fault whose topic or partition does not exist (yet): it may be created later, or be misspelled."""
        if fault.topic is None:
            return {}
        topic = self._server.core.topics.get(fault.topic)
        if topic is None:
            return {"note": f"topic {fault.topic} does not exist yet"}
        count = len(topic.partitions)
        if fault.partition is None or fault.partition < count:
            return {}
        return {"note": f"topic {fault.topic} currently has {pluralize(count, 'partition')}"}


@contextmanager
def _found() -> Iterator[None]:
    """Converts ConfigException to status 404, for calls that fail only if nothing has the number."""
    try:
        yield
    except ConfigException as error:
        raise Refused(404, str(error)) from None


def _allow(request: Request, *methods: str) -> None:
    if request.method not in methods:
        raise Refused(405, f"method {request.method} is not allowed for {request.path}: use {', '.join(methods)}")


def _number(what: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise Refused(400, f"expected the number of {what}, not {text!r}")
    digits = text.lstrip("0") or "0"
    if len(digits) > DIGITS_MAX:
        raise Refused(404, f"there is no {what.rpartition(' ')[2]} with a number of {len(digits)} digits")
    return int(digits)


def _object(request: Request, fields: tuple[str, ...]) -> dict[str, Any]:
    """Parse the body: a JSON object without fields other than these."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise Refused(415, f"send the header Content-Type: {JSON}, even without a body: it keeps out requests of web pages")
    try:
        value = json.loads(request.body or b"{}")
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(value, dict):
        raise Refused(400, "the body must be a JSON object")
    for name in value:
        if not fields:
            raise Refused(400, f"unknown field {name!r}: {request.path.rpartition('/')[2]} takes no fields")
        if name not in fields:
            raise Refused(400, f"unknown field {name!r}, allowed: {', '.join(fields)}")
    return value
