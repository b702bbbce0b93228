"""Faults on purpose, for tests: answer with an error, cut the connection before or after the work, answer late, go slow.

A rule applies to one API and, where given, one topic, partition and client id, and is used up after `count` requests. Rules are asked in
the order in which they were added; the first that matches a request decides.
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
"""Rules at a time. More is a mistake, and every request is held against all of them."""

NUMBER_MAX = 2**31 - 1

# The names that Kafka's messages share: of lists of topics, of lists of their partitions, of lists whose elements hold topics.
_TOPICS = ("topics", "topic_names", "v3_and_below_topics", "topic_partitions")
_PARTITIONS = ("partitions", "partition_indexes")
_AROUND_TOPICS = ("groups", "transactions", "markers")

CLIENT_ID_BYTES_MAX = 2**15 - 1

_APIS_BY_NUMBER = {str(api.key): api.name for api in apis.APIS.values() if api.served}
_CODES_BY_NUMBER = {str(code.number): code for code in reversed(codes.ALL)}

FaultTarget: TypeAlias = tuple[str | None, int | None]
"""Topic and partition as far as a request names them."""


class FaultAction(Enum):
    ERROR = "error"
    """Do nothing, answer with the error: for the partition where the rule names one, else for all."""
    DROP_BEFORE = "drop_before"
    """Close the connection without looking at the request."""
    DROP_AFTER = "drop_after"
    """Do the work, then close the connection instead of answering."""
    DELAY = "delay"
    """Do the work, answer `delay_ms` later than otherwise."""
    SLOW_DOWN = "slow_down"
    """Do the work; from now on this connection moves `bytes_per_second`, in the `direction` asked for, as long as it lives."""


DIRECTIONS = ("answers", "requests", "both")


@dataclass(slots=True, kw_only=True)
class Fault:
    """One rule. `topic`, `partition`, `client_id` None mean any; `remaining` requests are still to be hit."""

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
        """Whether the rule is meant for this topic and partition; what the request does not name matches only open rules."""
        return (self.topic is None or self.topic == topic) and (self.partition is None or self.partition == partition)

    def as_object(self) -> dict[str, Any]:
        """The rule in the words of `FaultScript.add`, without what does not concern its action."""
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
"""Of what concerns an action; a delay has to be said."""


class FaultScript:
    """See `add`. Without `rules`, one comparison per request."""

    def __init__(self) -> None:
        self.rules: list[Fault] = []
        """To look at; `add` and `remove` change them."""
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
        """Add a rule; its id. Names are Kafka's; `api` and `error` may be numbers. None: the action's default, where it has one.

        Raises ConfigException for an unknown name, for numbers that mean nothing, for what another action is told, and for a rule that
        no request can fit.
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
        """What is still to come, in order."""
        return tuple(self.rules)

    def clear(self, fault_id: int | None = None) -> None:
        """Forget one rule, or all. Raises ConfigException for an id that is not, or no longer, there."""
        remaining_rules = [] if fault_id is None else [fault for fault in self.rules if fault.id != fault_id]
        if fault_id is not None and len(remaining_rules) == len(self.rules):
            raise ConfigException(f"there is no fault {fault_id}: it never was, or is used up")
        self.rules = remaining_rules

    def take(self, api: str, client_id: str | None, targets: Callable[[], Iterable[FaultTarget]]) -> Fault | None:
        """The fault that hits this request, used up by one; None for none. `targets`: what the request names."""
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
    """What a request names, after (None, None) for the request itself; for a Fetch in a session also what the session knows.

    Topics have `name`, `topic` or `topic_id`, or are names; partitions have `index` or `partition`, or are numbers.
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
    """A partition's number, whichever of Kafka's names it has in this message."""
    for name in ("index", "partition_index", "partition"):
        number = getattr(partition, name, None)
        if number is not None:
            return int(number)
    return int(partition)


def _parameters(action: FaultAction, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the action is told, with defaults. Raises ConfigException for what only another one uses, and a delay of no length."""
    for name, value in given.items():
        if value is not None and name not in _CONCERNS.get(action, ()):
            (other,) = (known for known, names in _CONCERNS.items() if name in names)
            raise ConfigException(f"{name} of a fault is for action {other.value}, not for {action.value}")
    if action is FaultAction.DELAY and given["delay_ms"] is None:
        raise ConfigException("a fault with action delay needs delay_ms: how much later the answer comes")
    return _DEFAULTS | {name: value for name, value in given.items() if value is not None}


def _check_name(what: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        near = difflib.get_close_matches(str(value), known, n=1, cutoff=LIKENESS_MIN)
        raise ConfigException(
            f"unknown {what} {value!r} of a fault: {f'did you mean {near[0]}?' if near else 'known are ' + ', '.join(known)}"
        )


def _check_text(what: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise ConfigException(f"{what} of a fault must be a text, not {value!r}")


def _check_client_id(client_id: str | None) -> None:
    """Refuse what no request can have for a client id, which is UTF-8 behind its length in 15 bits."""
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
    """Refuse a topic that nobody can have, and what this API's requests do not name: such a rule would wait for ever."""
    fault = None if topic is None else creation_rules.fault_of(topic)
    if fault is not None:
        raise ConfigException(f"topic of a fault: {fault}")
    around = [element for name, element in _lists(request) if name in _AROUND_TOPICS]
    topics = [element for part in (request, *around) for name, element in _lists(part) if name in _TOPICS]
    if topic is not None and not topics:
        raise ConfigException(f"topic of a fault: {api} requests name no topics")
    if partition is not None and not any(name in _PARTITIONS for element in topics for name, _ in _lists(element)):
        raise ConfigException(f"partition of a fault: {api} requests name no partitions")


def _lists(part: object) -> Iterator[tuple[str, object]]:
    """The lists in a message, with what they are lists of; none in what is no message."""
    for field in getattr(part, "FIELDS", ()):
        if isinstance(field.kind, Array):
            yield field.name, field.kind.element


def _check_number(what: str, value: object, minimum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= NUMBER_MAX:
        raise ConfigException(f"{what} of a fault must be a whole number from {minimum} to {NUMBER_MAX}, not {value!r}")


def _api_named(api: object, served: Sequence[str]) -> str:
    """The name of an API that is served, by its name or its number."""
    name = _APIS_BY_NUMBER.get(str(api).strip(), api)
    _check_name("API", name, served)
    return str(name)


def _error_named(name: object) -> ErrorCode:
    """A code by its name, its number or an alias."""
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
        raise ConfigException("NONE is no error: an answer without the work would be a lie, not a fault")
    return code
