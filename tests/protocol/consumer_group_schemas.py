"""The messages of KIP-848, which kafka-python does not have, described once more and encoded by kafka-python's own machinery."""

from __future__ import annotations

from typing import Any
from unittest import mock

from kafka.protocol import api_data
from kafka.protocol.api_message import ApiMessage


def _field(name: str, kind: str, fields: list[Any] | None = None, *, null: bool = False, since: int = 0, default: Any = None) -> Any:
    field: dict[str, Any] = {"name": name, "type": kind, "versions": f"{since}+"}
    if fields is not None:
        field["fields"] = fields
    if null:
        field |= {"nullableVersions": f"{since}+", "default": "null"}
    if default is not None:
        field["default"] = default
    return field


def _partitions(*more: Any) -> list[Any]:
    return [_field("TopicId", "uuid"), *more, _field("Partitions", "[]int32")]


_NAMED = [_field("TopicPartitions", "[]TopicPartitions", _partitions(_field("TopicName", "string")))]

_MEMBER = [
    _field("MemberId", "string"),
    _field("InstanceId", "string", null=True),
    _field("RackId", "string", null=True),
    _field("MemberEpoch", "int32"),
    _field("ClientId", "string"),
    _field("ClientHost", "string"),
    _field("SubscribedTopicNames", "[]string"),
    _field("SubscribedTopicRegex", "string", null=True),
    _field("Assignment", "Assignment", _NAMED),
    _field("TargetAssignment", "Assignment", _NAMED),
    _field("MemberType", "int8", since=1, default="-1"),
]

_GROUP = [
    _field("ErrorCode", "int16"),
    _field("ErrorMessage", "string", null=True),
    _field("GroupId", "string"),
    _field("GroupState", "string"),
    _field("GroupEpoch", "int32"),
    _field("AssignmentEpoch", "int32"),
    _field("AssignorName", "string"),
    _field("Members", "[]Member", _MEMBER),
    _field("Operations", "int32", default="-2147483648"),
]

_FIELDS: dict[str, tuple[int, list[Any]]] = {
    "ConsumerGroupHeartbeatRequest": (
        68,
        [
            _field("GroupId", "string"),
            _field("MemberId", "string"),
            _field("MemberEpoch", "int32"),
            _field("InstanceId", "string", null=True),
            _field("RackId", "string", null=True),
            _field("RebalanceTimeoutMs", "int32", default="-1"),
            _field("SubscribedTopicNames", "[]string", null=True),
            _field("SubscribedTopicRegex", "string", null=True, since=1),
            _field("ServerAssignor", "string", null=True),
            _field("TopicPartitions", "[]TopicPartitions", _partitions(), null=True),
        ],
    ),
    "ConsumerGroupHeartbeatResponse": (
        68,
        [
            _field("ThrottleTimeMs", "int32"),
            _field("ErrorCode", "int16"),
            _field("ErrorMessage", "string", null=True),
            _field("MemberId", "string", null=True),
            _field("MemberEpoch", "int32"),
            _field("HeartbeatIntervalMs", "int32"),
            _field("Assignment", "Assignment", [_field("TopicPartitions", "[]TopicPartitions", _partitions())], null=True),
        ],
    ),
    "ConsumerGroupDescribeRequest": (69, [_field("GroupIds", "[]string"), _field("IncludeAuthorizedOperations", "bool")]),
    "ConsumerGroupDescribeResponse": (69, [_field("ThrottleTimeMs", "int32"), _field("Groups", "[]DescribedGroup", _GROUP)]),
}


def _class(name: str) -> type[ApiMessage]:
    key, fields = _FIELDS[name]
    kind = "request" if name.endswith("Request") else "response"
    json = {"apiKey": key, "type": kind, "name": name, "validVersions": "0-1", "flexibleVersions": "0+", "fields": fields}
    with mock.patch.object(api_data, "load_json", return_value=json):
        made: type[ApiMessage] = type(ApiMessage)(name, (ApiMessage,), {})
        return made


CLASSES: dict[str, type[ApiMessage]] = {name: _class(name) for name in _FIELDS}
"""By the message's name."""
