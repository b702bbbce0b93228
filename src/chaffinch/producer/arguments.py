"""Argument checks of `send`: TypeError or ValueError with the argument, its value, and the allowed values.

Errors of the record rather than of the call (too large, an illegal topic name) fail its future instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from chaffinch.client.arguments import INT32_MAX as INT32_MAX
from chaffinch.client.arguments import INT64_MAX as INT64_MAX
from chaffinch.client.arguments import as_int, checked_utf8
from chaffinch.client.arguments import checked_offsets as checked_offsets
from chaffinch.client.arguments import checked_timeout_ms as checked_timeout_ms
from chaffinch.client.arguments import checked_topic as checked_topic
from chaffinch.client.arguments import illegal_topic_error as illegal_topic_error
from chaffinch.client.options import STRING_BYTES_MAX
from chaffinch.client.plugins import callable_name
from chaffinch.identifiers import ConsumerGroupMetadata
from chaffinch.producer.records import GroupMetadata, Headers
from chaffinch.settings import shown_value

# How to convert other types to whole numbers, by the name of the type or a base class, so that numpy and pandas need not be imported.
_WRITE_INSTEAD: Final = {
    "datetime": "int(value.timestamp() * 1000)",
    "datetime64": "int(value.astype('datetime64[ms]').astype(int))",
    "date": "the number of milliseconds since 1970-01-01 UTC",
    "float": "int(value)",
    "floating": "int(value)",
}

_WRITE_HEADERS: Final[Mapping[type, str]] = {Mapping: "list(headers.items())", Iterator: "list(headers)"}


def content(value: Any, name: str, serializer: Callable[[Any], Any] | None = None, topic: str = "") -> bytes | None:
    """A key or value as bytes; a string is encoded as UTF-8. The serializer is called for every value but None, which stays null.

    `topic`: for the note in an exception of the serializer, since the caller of `send` may not know that there is one.
    """
    if serializer is not None and value is not None:
        try:
            value = serializer(value)
        except BaseException as error:
            whose = f"the {name}.serializer {callable_name(serializer)}"
            error.add_note(f"raised by {whose}, which was called for the {name} of a record of {shown_value(topic)}")
            raise
        name = f"{name} (the result of {name}.serializer)"
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return checked_utf8(value, name)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"argument {name} must be bytes, str or None, not {type(value).__name__}")


def checked_number(value: Any, name: str, maximum: int) -> int | None:
    """Check a partition or timestamp: None, or from 0 up to `maximum`."""
    if value is None:
        return None
    number = as_int(value)
    if number is None:
        raise _type_error(value, name)
    if not 0 <= number <= maximum:
        raise ValueError(f"argument {name} must be from 0 to {maximum}, not {number}")
    return number


def _type_error(value: Any, name: str) -> TypeError:
    """The TypeError for a value that is not a whole number, with a way to convert it: nothing is rounded or interpreted."""
    hint = next((f": write {how}" for kind, how in _WRITE_INSTEAD.items() if kind in {base.__name__ for base in type(value).__mro__}), "")
    return TypeError(f"argument {name} must be an int or None, not {type(value).__name__}{hint}")


def checked_headers(headers: Any) -> Headers:
    """Headers as a list of (str, bytes or None) pairs; strings as values are encoded as UTF-8."""
    if headers is None or (isinstance(headers, str | bytes | Mapping) and not headers):
        return ()
    # Arrays and data frames have no truth value.
    if type(headers) is not list and type(headers) is not tuple:
        _check_headers_are_reusable(headers)
    checked = []
    for entry in headers:
        if not isinstance(entry, tuple | list) or len(entry) != 2 or not isinstance(entry[0], str):
            raise TypeError(f"argument headers must be a sequence of (str, bytes) pairs; one entry is {shown_value(entry)}")
        checked_utf8(entry[0], "headers, in a key,")
        value = entry[1]
        if value is not None and type(value) is not bytes:
            value = content(value, f"headers[{shown_value(entry[0])}]")
        checked.append((entry[0], value))
    return checked


def _check_headers_are_reusable(headers: Any) -> None:
    """Refuse an iterator: an exception handler, or a second `send` of the same ProducerRecord, would find no headers."""
    if isinstance(headers, str | bytes | Mapping | Iterator) or not isinstance(headers, Iterable):
        hint = next((f": {pairs} is one" for kind, pairs in _WRITE_HEADERS.items() if isinstance(headers, kind)), "")
        raise TypeError(f"argument headers must be a sequence of (str, bytes) pairs, not {type(headers).__name__}{hint}")


def check_is_alone(others: Mapping[str, Any]) -> None:
    """Raise TypeError if another argument is given with a ProducerRecord, which has all of them."""
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise TypeError(f"argument {given[0]} cannot be given with a ProducerRecord, which has its own")


def checked_callback(callback: Any) -> Callable[..., object]:
    if not callable(callback):
        raise TypeError(f"argument on_delivery must be callable, not {type(callback).__name__}")
    return callback  # type: ignore[no-any-return]


def checked_group(group: Any) -> GroupMetadata:
    """Check a group id or a GroupMetadata. Every field must fit into a request: otherwise the transaction would fail later."""
    if not isinstance(group, GroupMetadata) and not (isinstance(group, str) and group):
        raise TypeError(f"argument group_metadata must be a group id or a GroupMetadata, not {shown_value(group)}")
    found = group if isinstance(group, GroupMetadata) else GroupMetadata(group)
    _check_text_of_group("group_id", found.group_id)
    if not found.group_id:
        raise ValueError("argument group_metadata has an empty group_id: it must be the id of a group, as in the option group.id")
    generation = as_int(found.generation_id)
    if generation is None:
        raise TypeError(f"argument group_metadata has the generation_id {shown_value(found.generation_id)}, which is not an int")
    if not -1 <= generation <= INT32_MAX:
        raise ValueError(f"argument group_metadata has the generation_id {generation}: it must be from 0 to {INT32_MAX}, or -1 for none")
    _check_text_of_group("member_id", found.member_id)
    if found.group_instance_id is not None:
        _check_text_of_group("group_instance_id", found.group_instance_id)
    checked = found._replace(generation_id=generation)
    if isinstance(found, ConsumerGroupMetadata) and isinstance(checked, ConsumerGroupMetadata):
        checked.topic_ids = found.topic_ids
    return checked


def _check_text_of_group(field: str, text: Any) -> None:
    if not isinstance(text, str):
        raise TypeError(f"argument group_metadata has the {field} {shown_value(text)}, which is not a str")
    size = len(checked_utf8(text, f"group_metadata, in its {field},"))
    if size > STRING_BYTES_MAX:
        raise ValueError(f"argument group_metadata has a {field} of {size} bytes: it must have at most {STRING_BYTES_MAX}")
