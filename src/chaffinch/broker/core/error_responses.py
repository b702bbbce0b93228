"""Answers that say nothing but an error, for fault scripts: the shape of the request, with the code wherever the API has room for one.

A walk over the fields of the answer, next to the lists of the request. Produce and Fetch are not here: their handlers answer a scripted
error for the partition it is meant for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeGuard

from chaffinch.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest, AlterUserScramCredentialsResult
from chaffinch.protocol.messages.describe_log_dirs import DescribeLogDirsResult
from chaffinch.protocol.primitives import Array, Field, Int32, String, Structure
from chaffinch.protocol.schema import Message
from chaffinch.protocol.server_connection import ReceivedRequest

_NAMES: Final = frozenset(
    {
        "group_id",
        "name",
        "partition",
        "partition_index",
        "producer_id",
        "resource_name",
        "resource_type",
        "topic",
        "topic_id",
        "transactional_id",
    }
)
"""What says which part of a request an answer is about: a field of both."""
_NOTHING: Final = {"node_id": -1, "port": -1, "low_watermark": -1}
"""Fields whose default would say something."""


def error_response(request: ReceivedRequest, number: int) -> Message:
    """The answer of this request's API that carries `number` in every place for an error. KeyError for Produce and Fetch."""
    name, requested = request.api.name, request.message
    if name in ("Produce", "Fetch"):
        raise KeyError(name)
    values = _values(request.api.response, requested, request.version, number)
    return request.api.response(**values | (_OWN[name](requested, number) if name in _OWN else {}))


def _values(kind: type[Structure], requested: Any, version: int, number: int) -> dict[str, Any]:
    """The fields of an answer to a request, or to an element of one of its lists, that are not what they are by default."""
    fields = [field for field in kind.FIELDS if field.exists_in(version)]
    values: dict[str, Any] = {field.name: _NOTHING[field.name] for field in fields if field.name in _NOTHING}
    values |= {field.name: None for field in fields if isinstance(field.kind, Array) and field.is_nullable_in(version)}
    values |= {field.name: number for field in fields if _is_error(field)}
    if not any(_is_error(field) and _is_always_there(field, kind) for field in fields):
        lists = [
            (field.name, field.kind.element) for field in fields if isinstance(field.kind, Array) and _can_carry_error(field.kind.element)
        ]
        for (name, element), parts in zip(lists, _lists_of(requested, version), strict=False):
            values[name] = [element(**_named(element, part, version) | _values(element, part, version, number)) for part in parts]
    return values


def _named(kind: type[Structure], requested: Any, version: int) -> dict[str, Any]:
    """Which element of the request is meant: a structure, a name or a number."""
    if isinstance(requested, Structure):
        return {
            field.name: getattr(requested, field.name) for field in kind.FIELDS if field.name in _NAMES and hasattr(requested, field.name)
        }
    scalar = String if isinstance(requested, str) else Int32
    fields = (field for field in kind.FIELDS if field.kind is scalar and field.exists_in(version) and not field.is_nullable_in(version))
    return {next(fields).name: requested}


def _lists_of(requested: Any, version: int) -> list[list[Any]]:
    """The lists of a request, or of an element of one; none of a name or a number."""
    fields: Sequence[Field] = getattr(requested, "FIELDS", ())
    return [getattr(requested, field.name) or [] for field in fields if isinstance(field.kind, Array) and field.exists_in(version)]


def _is_error(field: Field) -> bool:
    return field.name in ("error_code", "partition_error_code")


def _is_always_there(field: Field, kind: type[Structure]) -> bool:
    """Whether the structure has this field in all its versions: then its error is enough, and its lists stay empty."""
    return field.since == min(known.since for known in kind.FIELDS) and field.until == max(known.until for known in kind.FIELDS)


def _can_carry_error(element: object) -> TypeGuard[type[Structure]]:
    """Whether elements of a list have room for an error, at any depth."""
    fields: Sequence[Field] = getattr(element, "FIELDS", ())
    return any(_is_error(field) or (isinstance(field.kind, Array) and _can_carry_error(field.kind.element)) for field in fields)


def _alter_scram(requested: AlterUserScramCredentialsRequest, number: int) -> dict[str, Any]:
    """One result per user, who may be in both lists."""
    users = dict.fromkeys([*(change.name for change in requested.deletions), *(change.name for change in requested.upsertions)])
    return {"results": [AlterUserScramCredentialsResult(user=user, error_code=number) for user in users]}


_OWN: Final[Mapping[str, Callable[[Any, int], dict[str, Any]]]] = {
    "AlterUserScramCredentials": _alter_scram,
    # Before version 3 the error is that of a directory, which requests do not name.
    "DescribeLogDirs": lambda _, number: {"results": [DescribeLogDirsResult(error_code=number)]},
    "InitProducerId": lambda *_: {"producer_epoch": -1},
    "JoinGroup": lambda requested, _: {"member_id": requested.member_id},
}
"""What an API has of its own."""
