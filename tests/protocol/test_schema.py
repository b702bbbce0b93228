"""Message classes: slots, keywords, defaults, equality, versions."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest

from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from chaffinch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from chaffinch.protocol.primitives import ZERO_UUID, Int32, String
from chaffinch.protocol.schema import Message, wire
from chaffinch.protocol.violations import MalformedMessage, UnencodableMessage


def test_fields_have_the_defaults_of_their_types() -> None:
    request = ProduceRequest()
    assert (request.transactional_id, request.acks, request.timeout_ms, request.topics) == (None, 0, 0, [])
    assert TopicProduceData().topic_id is ZERO_UUID


def test_lists_are_not_shared() -> None:
    ProduceRequest().topics.append(TopicProduceData())
    assert ProduceRequest().topics == []


def test_nullable_array_keeps_none() -> None:
    assert MetadataRequest(topics=None).topics is None


def test_unknown_fields_are_refused_when_built_and_when_set() -> None:
    with pytest.raises(TypeError, match="acs"):
        ProduceRequest(acs=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        ProduceRequest().acs = 1  # type: ignore[attr-defined]


def test_positional_values_are_refused() -> None:
    with pytest.raises(TypeError):
        ProduceRequest("id")  # type: ignore[call-arg]


def test_equality_is_by_class_and_value() -> None:
    assert ProduceRequest(acks=1) == ProduceRequest(acks=1)
    assert ProduceRequest(acks=1) != ProduceRequest(acks=-1)
    assert ProduceRequest() != MetadataRequest()
    assert PartitionProduceData(records=b"abc") == PartitionProduceData(records=memoryview(b"abc"))


def test_messages_are_mutable_and_so_not_hashable() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(ProduceRequest())


def test_copies_are_equal_and_replace_changes_one_field() -> None:
    request = ProduceRequest(acks=1, topics=[TopicProduceData(name="orders")])
    assert copy.deepcopy(request) == request
    assert pickle.loads(pickle.dumps(request)) == request
    changed = request.replace(acks=-1)
    assert (changed.acks, request.acks, changed.topics) == (-1, 1, request.topics)


def test_repr_shows_fields_and_spares_records() -> None:
    assert repr(MetadataRequestTopic(name="orders")) == f"MetadataRequestTopic(topic_id={ZERO_UUID!r}, name='orders')"
    assert repr(PartitionProduceData(index=3, records=b"x" * 33)) == "PartitionProduceData(index=3, records=<33 bytes>)"


@pytest.mark.parametrize("version", [-1, 14])
def test_undescribed_version_is_refused(version: int) -> None:
    with pytest.raises(UnencodableMessage, match=r"versions 0 to 13 are described"):
        ProduceRequest().encode(version)
    with pytest.raises(MalformedMessage, match=r"versions 0 to 13 are described"):
        ProduceRequest.decode(b"", version)


class Changing(Message, api_key=99, versions=(0, 3), flexible_since=2):
    """A message whose fields come, go and become tagged."""

    always: int = wire(Int32)
    early: str = wire(String, until=1)
    late: str | None = wire(String, since=1, nullable_since=2, default="late")
    tagged: int = wire(Int32, since=1, tag=7, tagged_since=2, default=5)


@pytest.mark.parametrize(
    ("version", "encoded"),
    [
        (0, "00000001 0001 65"),
        (1, "00000001 0001 65 0001 6c 00000009"),
        (2, "00000001 02 6c 01 07 04 00000009"),
        (3, "00000001 02 6c 01 07 04 00000009"),
    ],
)
def test_one_description_encodes_every_version(version: int, encoded: str) -> None:
    message = Changing(always=1, early="e", late="l", tagged=9)
    assert b"".join(message.encode(version)) == bytes.fromhex(encoded)


def test_tagged_fields_with_their_default_are_not_encoded() -> None:
    assert b"".join(Changing(late=None).encode(2)) == bytes.fromhex("00000000 00 00")
    assert Changing.decode(bytes.fromhex("00000000 00 00"), 2) == Changing(late=None, tagged=5)


@pytest.mark.parametrize("first", ["broker.server", "protocol.schema", "protocol.source", "protocol.decoder", "protocol.encoder"])
def test_codecs_are_imported_with_the_schema(first: str) -> None:
    """Whichever module is asked for first: at the first request there may be no descriptor left with which to open a module."""
    code = f"import sys, chaffinch.{first}, chaffinch.protocol.schema; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert {"chaffinch.protocol.decoder", "chaffinch.protocol.encoder"} <= set(done.stdout.split()), done.stderr
