"""What each option changes in the requests, or in what is done when."""

import re

import pytest

from chaffinch import errors
from chaffinch.consumer.core.group_protocol import decode_subscription
from chaffinch.consumer.core.membership_states import State
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.fetch import FetchRequest
from chaffinch.protocol.messages.heartbeat import HeartbeatRequest
from chaffinch.protocol.messages.join_group import JoinGroupRequest
from chaffinch.protocol.messages.list_offsets import ListOffsetsRequest
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataResponseTopic
from chaffinch.protocol.messages.offset_commit import OffsetCommitRequest
from tests.consumer.core.rig import Rig

P0 = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("option", "value", "field", "expected"),
    [
        ("fetch.min.bytes", 9, "min_bytes", 9),
        ("fetch.max.wait.ms", 77, "max_wait_ms", 77),
        ("fetch.max.bytes", 5000, "max_bytes", 5000),
        ("isolation.level", "read_committed", "isolation_level", 1),
        ("client.rack", "r1", "rack_id", "r1"),
    ],
)
def test_fetch_options(option: str, value: int | str, field: str, expected: int | str) -> None:
    usual, changed = (rig.pending(FetchRequest)[0] for rig in (Rig().assign(0), Rig(**{option: value}).assign(0)))
    assert getattr(changed.message, field) == expected
    assert getattr(usual.message, field) != expected
    assert changed.timeout_ms == 30_000 + changed.message.max_wait_ms


def test_max_partition_fetch_bytes() -> None:
    rig = Rig(**{"max.partition.fetch.bytes": 1234}).assign(0)
    assert rig.pending(FetchRequest)[0].message.topics[0].partitions[0].partition_max_bytes == 1234


def test_read_committed_ends_at_the_last_stable_offset() -> None:
    rig = Rig(**{"isolation.level": "read_committed", "group.id": None})
    rig.core.assign([P0], 0)
    rig.step()
    rig.answer_metadata()
    assert rig.pending(ListOffsetsRequest)[0].message.isolation_level == 1


@pytest.mark.parametrize(
    ("option", "value", "field", "expected"),
    [
        ("session.timeout.ms", 7_000, "session_timeout_ms", 7_000),
        ("max.poll.interval.ms", 9_000, "rebalance_timeout_ms", 9_000),
        ("group.instance.id", "i", "group_instance_id", "i"),
        ("group.id", "h", "group_id", "h"),
    ],
)
def test_join_options(option: str, value: int | str, field: str, expected: int | str) -> None:
    rig = Rig(**{option: value}).reach(State.JOINING)
    assert getattr(rig.pending(JoinGroupRequest)[0].message, field) == expected


@pytest.mark.parametrize(("options", "expected"), [({"client.rack": "r1"}, "r1"), ({}, None)])
def test_client_rack_in_subscription(options: dict[str, str], expected: str | None) -> None:
    rig = Rig(**options).reach(State.JOINING)
    said = rig.pending(JoinGroupRequest)[0].message.protocols[0].metadata
    assert decode_subscription(said).rack == expected


def test_strategies_keep_their_order() -> None:
    rig = Rig(**{"partition.assignment.strategy": "sticky,range"}).reach(State.JOINING)
    assert [found.name for found in rig.pending(JoinGroupRequest)[0].message.protocols] == ["sticky", "range"]


@pytest.mark.parametrize("may_create", [True, False])
def test_allow_auto_create_topics(may_create: bool) -> None:
    rig = Rig(**{"allow.auto.create.topics": may_create})
    rig.core.assign([P0], rig.steady_ms)
    rig.step()
    assert rig.pending(MetadataRequest)[0].message.allow_auto_topic_creation is may_create


@pytest.mark.parametrize("excludes", [True, False])
def test_exclude_internal_topics(excludes: bool) -> None:
    rig = Rig(**{"exclude.internal.topics": excludes})
    rig.core.subscribe_pattern(re.compile(".*"))
    rig.step()
    metadata = rig.metadata()
    metadata.topics.append(MetadataResponseTopic(name="__consumer_offsets", is_internal=True, partitions=metadata.topics[0].partitions))
    rig.answer(MetadataRequest, metadata)
    assert rig.core.subscriptions.topics == ({"t"} if excludes else {"t", "__consumer_offsets"})


def test_metadata_max_age() -> None:
    rig = Rig(**{"metadata.max.age.ms": 2_000}).assign(0)
    rig.advance(1_999)
    assert not rig.pending(MetadataRequest)
    rig.advance(1)
    assert len(rig.pending(MetadataRequest)) == 1


@pytest.mark.parametrize(("commits", "interval_ms", "expected"), [(True, 500, 1), (True, 100_000, 0), (False, 500, 0)])
def test_auto_commit_interval(commits: bool, interval_ms: int, expected: int) -> None:
    rig = Rig(**{"enable.auto.commit": commits, "auto.commit.interval.ms": interval_ms}).assign(0)
    rig.group.commits._auto_due_ms = rig.steady_ms + interval_ms
    rig.advance(1_000)
    rig.poll()
    assert len(rig.pending(OffsetCommitRequest)) == expected


def test_auto_commit_times_out_after_default_api_timeout() -> None:
    rig = Rig(**{"enable.auto.commit": True, "auto.commit.interval.ms": 0, "default.api.timeout.ms": 700}).assign(0)
    rig.poll()
    assert rig.pending(OffsetCommitRequest)
    rig.advance(699)
    assert rig.reports == []
    rig.advance(1)
    assert "offsets of t-0 were not committed within 700 ms (default.api.timeout.ms)" in rig.reports[0]


def test_request_timeout() -> None:
    rig = Rig(**{"request.timeout.ms": 4_000}).reach(State.STABLE)
    rig.advance(3_000)
    assert rig.pending(HeartbeatRequest)[0].timeout_ms == 4_000


def test_throttle_time_is_respected() -> None:
    from chaffinch.protocol.messages.fetch import FetchResponse

    rig = Rig().assign(0)
    rig.answer(FetchRequest, FetchResponse(throttle_time_ms=300))
    assert not rig.pending(FetchRequest)
    rig.advance(299)
    assert not rig.pending(FetchRequest)
    rig.advance(1)
    assert len(rig.pending(FetchRequest)) == 1


def test_no_committed_offset_with_reset_none_raises() -> None:
    rig = Rig(**{"auto.offset.reset": "none"})
    rig.core.assign([P0], rig.steady_ms)
    rig.step()
    rig.answer_metadata()
    rig.find_coordinator()
    rig.answer_offsets({0: -1})
    for _ in range(2):
        with pytest.raises(errors.NoOffsetForPartitionException, match=r"no committed offset for t-0"):
            rig.poll()


@pytest.mark.parametrize(("strategy", "asked"), [("rebootstrap", {"b", "first"}), ("none", {"b"})])
def test_metadata_recovery_strategy(strategy: str, asked: set[str]) -> None:
    rig = Rig(**{"bootstrap.servers": "first:1", "group.id": None, "metadata.recovery.strategy": strategy})
    rig.core.assign([TopicPartition("t", 0)], rig.steady_ms)
    rig.step()
    assert rig.pending(MetadataRequest)[0].address.host == "first"
    rig.answer_metadata()
    found = set()
    for _ in range(6):
        rig.core.context.refresh()
        rig.advance(2_000)
        found.add(rig.pending(MetadataRequest)[0].address.host)
        rig.fail(MetadataRequest)
    assert found == asked
