"""TxnOffsetCommit 6 (KIP-1319), which kafka-python does not have: its own description of version 5, with topic ids in place of names."""

from __future__ import annotations

from unittest import mock

from kafka.protocol import api_data
from kafka.protocol.api_message import ApiMessage


def _class(name: str) -> type[ApiMessage]:
    json = api_data.load_json(name)
    json["validVersions"] = "0-6"
    topics = next(field for field in json["fields"] if field["name"] == "Topics")
    by_name = next(field for field in topics["fields"] if field["name"] == "Name")
    by_name["versions"] = "0-5"
    topics["fields"].insert(1, {"name": "TopicId", "type": "uuid", "versions": "6+"})
    with mock.patch.object(api_data, "load_json", return_value=json):
        made: type[ApiMessage] = type(ApiMessage)(name, (ApiMessage,), {})
        return made


CLASSES: dict[str, type[ApiMessage]] = {name: _class(name) for name in ("TxnOffsetCommitRequest", "TxnOffsetCommitResponse")}
"""By the message's name."""
