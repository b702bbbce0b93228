"""Error responses for fault scripts: the response has the structure of the request, with the error code in every field for one.

Walks over the fields of the response alongside the lists of the request. Produce and Fetch are not handled here: their handlers return a
scripted error for the affected partition.
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
"""Fields that identify the part of a request that a part of the response is about; they exist in both."""
_NOTHING: Final = {"node_id": -1, "port": -1, "low_watermark": -1}
"""Fields whose default value would have a meaning."""


def error_response(request: ReceivedRequest, number: int) -> Message:
    """The response of this request's API with `number` in every error field. KeyError for Produce and Fetch."""
    name, requested = request.api.name, request.message
    if name in ("Produce", "Fetch"):
        raise KeyError(name)
    values = _values(request.api.response, requested, request.version, number)
    return request.api.response(**values | (_OWN[name](requested, number) if name in _OWN else {}))


def _values(kind: type[Structure], requested: Any, version: int, number: int) -> dict[str, Any]:
    """The non-default fields of the response to a request, or to an element of one of its lists."""
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
    """The fields that identify an element of the request: a structure, a name or a number."""
    if isinstance(requested, Structure):
        return {
            field.name: getattr(requested, field.name) for field in kind.FIELDS if field.name in _NAMES and hasattr(requested, field.name)
        }
    scalar = String if isinstance(requested, str) else Int32
    fields = (field for field in kind.FIELDS if field.kind is scalar and field.exists_in(version) and not field.is_nullable_in(version))
    return {next(fields).name: requested}


def _lists_of(requested: Any, version: int) -> list[list[Any]]:
    """The lists in a request or in one of its elements; none in a name or a number."""
    fields: Sequence[Field] = getattr(requested, "FIELDS", ())
    return [getattr(requested, field.name) or [] for field in fields if isinstance(field.kind, Array) and field.exists_in(version)]


def _is_error(field: Field) -> bool:
    return field.name in ("error_code", "partition_error_code")


def _is_always_there(field: Field, kind: type[Structure]) -> bool:
    """Whether this field exists in all versions of the structure: then its error is enough, and its lists stay empty."""
    return field.since == min(known.since for known in kind.FIELDS) and field.until == max(known.until for known in kind.FIELDS)


def _can_carry_error(element: object) -> TypeGuard[type[Structure]]:
    """Whether list elements have an error field, at any depth."""
    fields: Sequence[Field] = getattr(element, "FIELDS", ())
    return any(_is_error(field) or (isinstance(field.kind, Array) and _can_carry_error(field.kind.element)) for field in fields)


def _alter_scram(requested: AlterUserScramCredentialsRequest, number: int) -> dict[str, Any]:
    """One result per user, who may be named in both lists."""
    users = dict.fromkeys([*(change.name for change in requested.deletions), *(change.name for change in requested.upsertions)])
    return {"results": [AlterUserScramCredentialsResult(user=user, error_code=number) for user in users]}


_OWN: Final[Mapping[str, Callable[[Any, int], dict[str, Any]]]] = {
    "AlterUserScramCredentials": _alter_scram,
    # Before version 3 the error belongs to a directory, which requests do not name.
    "DescribeLogDirs": lambda _, number: {"results": [DescribeLogDirsResult(error_code=number)]},
    "InitProducerId": lambda *_: {"producer_epoch": -1},
    "JoinGroup": lambda requested, _: {"member_id": requested.member_id},
}
"""Special cases of single APIs."""
