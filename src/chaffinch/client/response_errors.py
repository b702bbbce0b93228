"""Error codes in a response of any API, found by field names, which are the same in all Kafka message definitions.

For responses with few entries (administration, transactions, single partitions); the produce path reads its fields directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from chaffinch.errors import ErrorCode, codes, exception_for
from chaffinch.errors.handling import TRANSACTION, Handling, handling_of
from chaffinch.protocol.apis import api_of
from chaffinch.protocol.schema import Message

CODE_FIELDS: Final = frozenset({"error_code", "partition_error_code"})
MESSAGE_FIELDS: Final = ("error_message",)
RETRIED: Final = frozenset({Handling.RETRY, Handling.REFRESH_AND_RETRY})


def codes_in(response: Message) -> Iterator[tuple[ErrorCode, str | None]]:
    """Every code other than NONE in a response, each with the broker's message, outermost first."""
    message = next((getattr(response, name, None) for name in MESSAGE_FIELDS if hasattr(response, name)), None)
    for field in response.FIELDS:
        value = getattr(response, field.name)
        if field.name in CODE_FIELDS:
            if value:
                yield codes.by_number(value, message=message), message
        elif isinstance(value, Message):
            yield from codes_in(value)
        elif isinstance(value, list):
            for element in value:
                if not isinstance(element, Message):
                    break
                yield from codes_in(element)


def raise_for(response: Message) -> None:
    """Raise the exception of the first code other than NONE in a response, if there is one."""
    for code, message in codes_in(response):
        raise exception_for(code, message=message, api=api_of(response).name)


def worst_handling(response: Message) -> Handling:
    """COMPLETE without an error; RETRY or REFRESH_AND_RETRY if every code is retriable; otherwise the handling of the first other code."""
    found = [handling_of(code, TRANSACTION) for code, _ in codes_in(response)]
    final = [handling for handling in found if handling not in RETRIED]
    if final:
        return final[0]
    if Handling.REFRESH_AND_RETRY in found:
        return Handling.REFRESH_AND_RETRY
    return found[0] if found else Handling.COMPLETE


def handling_of_coordinators(response: Message) -> Handling:
    """Like `worst_handling`, but UNKNOWN_TOPIC_OR_PARTITION and UNKNOWN_TOPIC_ID are not retried: the caller named the partition."""
    is_unknown = any(code in (codes.UNKNOWN_TOPIC_OR_PARTITION, codes.UNKNOWN_TOPIC_ID) for code, _ in codes_in(response))
    return Handling.COMPLETE if is_unknown else worst_handling(response)


def handling_of_controllers(response: Message) -> Handling:
    """REFRESH_AND_RETRY if the broker is not the controller; otherwise COMPLETE: the caller reads the codes."""
    is_elsewhere = any(code is codes.NOT_CONTROLLER for code, _ in codes_in(response))
    return Handling.REFRESH_AND_RETRY if is_elsewhere else Handling.COMPLETE
