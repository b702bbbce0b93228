"""Fault injection for tests: respond with an error, close the connection before or after processing, delay a response, throttle.

A rule applies to one API and, if given, one topic, partition and client id. It expires after `count` requests. Rules are checked in the
order in which they were added; the first match applies.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias
from uuid import UUID

from chaffinch.broker.core.topics import creation_rules
from chaffinch.errors import ConfigException, codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.protocol import apis
from chaffinch.protocol.messages.fetch import FetchRequest
from chaffinch.protocol.primitives import Array
from chaffinch.protocol.schema import Message
from chaffinch.settings import LIKENESS_MIN

RULES_MAX = 1000
"""Limit of rules. More is assumed to be a mistake, and every request is compared with all of them."""

NUMBER_MAX = 2**31 - 1

# Field names in Kafka's messages: lists of topics, lists of their partitions, lists whose elements contain topics.
_TOPICS = ("topics", "topic_names", "v3_and_below_topics", "topic_partitions")
_PARTITIONS = ("partitions", "partition_indexes")
_AROUND_TOPICS = ("groups", "transactions", "markers")

CLIENT_ID_BYTES_MAX = 2**15 - 1

_APIS_BY_NUMBER = {str(api.key): api.name for api in apis.APIS.values() if api.served}
_CODES_BY_NUMBER = {str(code.number): code for code in reversed(codes.ALL)}

FaultTarget: TypeAlias = tuple[str | None, int | None]
"""Topic and partition as named by a request, None if not named."""


class FaultAction(Enum):
    ERROR = "error"
    """Do not process the request; return the error, for the rule's partition or for all partitions."""
    DROP_BEFORE = "drop_before"
    """Close the connection without processing the request."""
    DROP_AFTER = "drop_after"
    """Process the request, then close the connection instead of responding."""
    DELAY = "delay"
    """Process the request and delay its response by `delay_ms`."""
    SLOW_DOWN = "slow_down"
    """Process the request; from now on throttle this connection to `bytes_per_second` in `direction`, until it is closed."""


DIRECTIONS = ("answers", "requests", "both")


@dataclass(slots=True, kw_only=True)
class Fault:
    """A rule. `topic`, `partition` and `client_id` match any value if None; `remaining` requests are still to be affected."""

    id: int
    api: str
    topic: str | None
    partition: int | None
    client_id: str | None
    action: FaultAction
    error: ErrorCode
    delay_ms: int
    bytes_per_second: int
    direction: str
    remaining: int

    def covers(self, topic: str | None, partition: int | None) -> bool:
        """Whether the rule matches this topic and partition; a rule that names one does not match a request that does not."""
        return (self.topic is None or self.topic == topic) and (self.partition is None or self.partition == partition)

    def as_object(self) -> dict[str, Any]:
        """The rule as arguments of `FaultScript.add`, without those that its action does not use."""
        known: dict[str, Any] = {"id": self.id, "api": self.api, "action": self.action.value}
        known |= {name: getattr(self, name) for name in ("topic", "partition", "client_id") if getattr(self, name) is not None}
        known |= {name: self.error.name if name == "error" else getattr(self, name) for name in _CONCERNS.get(self.action, ())}
        return known | {"count": self.remaining}


_CONCERNS = {
    FaultAction.ERROR: ("error",),
    FaultAction.DELAY: ("delay_ms",),
    FaultAction.SLOW_DOWN: ("bytes_per_second", "direction"),
}

_DEFAULTS = {"error": codes.NOT_LEADER_OR_FOLLOWER.name, "delay_ms": 0, "bytes_per_second": 1024, "direction": "answers"}
"""Default arguments of the actions; delay_ms must be given."""


class FaultScript:
    """The rules of a broker; see `add`. Without rules it costs one comparison per request."""

    def __init__(self) -> None:
        self.rules: list[Fault] = []
        """Read-only; changed by `add` and `clear`."""
        self._last_id = 0

    def __len__(self) -> int:
        return len(self.rules)

    def add(
        self,
        *,
        api: str | int = "Produce",
        topic: str | None = None,
        partition: int | None = None,
        client_id: str | None = None,
        action: str = "error",
        error: str | int | None = None,
        count: int = 1,
        delay_ms: int | None = None,
        bytes_per_second: int | None = None,
        direction: str | None = None,
    ) -> int:
        """Add a rule and return its id. Names are Kafka's; `api` and `error` may be numbers. None means the action's default.

        Raises ConfigException for an unknown name, an invalid number, an argument of another action, and a rule that can match no request.
        """
        requests = {known.name: known.request for known in apis.APIS.values() if known.served}
        api = _api_named(api, list(requests))
        _check_name("action", action, [known.value for known in FaultAction])
        given = {"error": error, "delay_ms": delay_ms, "bytes_per_second": bytes_per_second, "direction": direction}
        parameters = _parameters(FaultAction(action), given)
        _check_name("direction", parameters["direction"], DIRECTIONS)
        _check_text("topic", topic)
        _check_text("client_id", client_id)
        _check_client_id(client_id)
        if partition is not None:
            _check_number("partition", partition, 0)
        _check_target(requests[api], api, topic, partition)
        _check_number("count", count, 1)
        _check_number("delay_ms", parameters["delay_ms"], 0)
        _check_number("bytes_per_second", parameters["bytes_per_second"], 1)
        if len(self.rules) >= RULES_MAX:
            raise ConfigException(f"there are {RULES_MAX} faults already: clear some")
        fault = Fault(
            id=self._last_id + 1,
            api=api,
            topic=topic,
            partition=partition,
            client_id=client_id,
            action=FaultAction(action),
            error=_error_named(parameters["error"]),
            delay_ms=parameters["delay_ms"],
            bytes_per_second=parameters["bytes_per_second"],
            direction=parameters["direction"],
            remaining=count,
        )
        self.rules.append(fault)
        self._last_id = fault.id
        return fault.id

    def list(self) -> Sequence[Fault]:
        """The pending rules, in order."""
        return tuple(self.rules)

    def clear(self, fault_id: int | None = None) -> None:
        """Remove one rule, or all. Raises ConfigException for an unknown or expired id."""
        remaining_rules = [] if fault_id is None else [fault for fault in self.rules if fault.id != fault_id]
        if fault_id is not None and len(remaining_rules) == len(self.rules):
            raise ConfigException(f"there is no fault {fault_id}: it does not exist, or has expired")
        self.rules = remaining_rules

    def take(self, api: str, client_id: str | None, targets: Callable[[], Iterable[FaultTarget]]) -> Fault | None:
        """The rule that matches this request, with its count decreased; None if none does. `targets`: the topics and partitions of the
        request.
        """
        for fault in self.rules:
            if fault.api != api or (fault.client_id is not None and fault.client_id != client_id):
                continue
            if any(fault.covers(topic, partition) for topic, partition in targets()):
                fault.remaining -= 1
                if fault.remaining == 0:
                    self.rules.remove(fault)
                return fault
        return None


def named_targets(
    message: Any, name_of: Callable[[UUID], str | None], session_targets: Callable[[int], Iterable[FaultTarget]]
) -> Iterator[FaultTarget]:
    """The topics and partitions that a request names, after (None, None) for the request itself; for a Fetch in a session also those of the
    session.

    Topics have the field `name`, `topic` or `topic_id`, or are strings; partitions have `index` or `partition`, or are numbers.
    """
    yield None, None
    for part in (message, *(inner for field in _AROUND_TOPICS for inner in getattr(message, field, None) or ())):
        for field in _TOPICS:
            for topic in getattr(part, field, None) or ():
                yield from _targets_of_topic(topic, name_of)
    if isinstance(message, FetchRequest) and message.session_id:
        yield from session_targets(message.session_id)


def _targets_of_topic(topic: Any, name_of: Callable[[UUID], str | None]) -> Iterator[FaultTarget]:
    name = topic if isinstance(topic, str) else getattr(topic, "name", None) or getattr(topic, "topic", None)
    if not name and getattr(topic, "topic_id", None) is not None:
        name = name_of(topic.topic_id)
    yield name, None
    for field in _PARTITIONS:
        for partition in getattr(topic, field, None) or ():
            yield name, partition_index(partition)


def partition_index(partition: Any) -> int:
    """A partition's number, by any of the field names in Kafka's messages."""
    for name in ("index", "partition_index", "partition"):
        number = getattr(partition, name, None)
        if number is not None:
            return int(number)
    return int(partition)


def _parameters(action: FaultAction, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of an action, with defaults. Raises ConfigException for parameters of another action, and for a delay without
    delay_ms.
    """
    for name, value in given.items():
        if value is not None and name not in _CONCERNS.get(action, ()):
            (other,) = (known for known, names in _CONCERNS.items() if name in names)
            raise ConfigException(f"{name} of a fault is for action {other.value}, not for {action.value}")
    if action is FaultAction.DELAY and given["delay_ms"] is None:
        raise ConfigException("a fault with action delay requires delay_ms, the delay of the response")
    return _DEFAULTS | {name: value for name, value in given.items() if value is not None}


def _check_name(what: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        near = difflib.get_close_matches(str(value), known, n=1, cutoff=LIKENESS_MIN)
        raise ConfigException(
            f"unknown {what} {value!r} of a fault: {f'did you mean {near[0]}?' if near else 'allowed: ' + ', '.join(known)}"
        )


def _check_text(what: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise ConfigException(f"{what} of a fault must be a string, not {value!r}")


def _check_client_id(client_id: str | None) -> None:
    """Refuse invalid client ids: they are UTF-8 with a length of 15 bits."""
    client_id = client_id or ""
    try:
        size = len(client_id.encode())
    except UnicodeEncodeError as error:
        raise ConfigException(
            f"client_id of a fault: no request can have {client_id[:40]!r}: character {error.start} is half a surrogate pair, "
            "and client ids are UTF-8"
        ) from None
    if size > CLIENT_ID_BYTES_MAX:
        raise ConfigException(f"client_id of a fault: no request can have one of {size} bytes, the limit is {CLIENT_ID_BYTES_MAX}")


def _check_target(request: type[Message], api: str, topic: str | None, partition: int | None) -> None:
    """Refuse invalid topic names, and fields that requests of this API do not have: such a rule would never match."""
    fault = None if topic is None else creation_rules.fault_of(topic)
    if fault is not None:
        raise ConfigException(f"topic of a fault: {fault}")
    around = [element for name, element in _lists(request) if name in _AROUND_TOPICS]
    topics = [element for part in (request, *around) for name, element in _lists(part) if name in _TOPICS]
    if topic is not None and not topics:
        raise ConfigException(f"topic of a fault: {api} requests contain no topics")
    if partition is not None and not any(name in _PARTITIONS for element in topics for name, _ in _lists(element)):
        raise ConfigException(f"partition of a fault: {api} requests contain no partitions")


def _lists(part: object) -> Iterator[tuple[str, object]]:
    """The list fields of a message with their element types; none if it is not a message."""
    for field in getattr(part, "FIELDS", ()):
        if isinstance(field.kind, Array):
            yield field.name, field.kind.element


def _check_number(what: str, value: object, minimum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= NUMBER_MAX:
        raise ConfigException(f"{what} of a fault must be a whole number from {minimum} to {NUMBER_MAX}, not {value!r}")


def _api_named(api: object, served: Sequence[str]) -> str:
    """The name of a served API, given its name or number."""
    name = _APIS_BY_NUMBER.get(str(api).strip(), api)
    _check_name("API", name, served)
    return str(name)


def _error_named(name: object) -> ErrorCode:
    """An error code, given its name, number or alias."""
    text = str(name).strip().upper()
    found = _CODES_BY_NUMBER.get(text)
    try:
        code = found or codes.by_name(text)
    except KeyError:
        near = next(name for name in codes.nearest_names(text, 2) if name != codes.NONE.name)
        is_like = difflib.SequenceMatcher(None, text, near).ratio() >= LIKENESS_MIN
        hint = f"the nearest is {near}" if is_like else "no error code has this number or a name like it"
        raise ConfigException(f"unknown error {name!r} of a fault: {hint}") from None
    if code is codes.NONE:
        raise ConfigException("NONE is not an error: success without processing the request would be a false response")
    return code
