"""What the planner learns of the target, and what it refuses because of that."""

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from chaffinch.broker.core.handlers import api_versions
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors.codes import Group
from chaffinch.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from chaffinch.spark import target
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.sink.writers import task_plan
from chaffinch.spark.snapshot import TargetSnapshot, TopicSnapshot
from chaffinch.spark.target import check_codec, check_replication, take_snapshot
from chaffinch.spark.task_facts import TaskContextFacts
from chaffinch.spark.worker_cache import LruCache
from tests.spark.query_driver import QueryDriver

INCONSISTENT = TopicSnapshot(topic="orders", topic_id=bytes(16), partition_count=1, replica_count=1, in_sync_min=3)
ROWS = {"key": ["a"], "value": [b"1"]}


@pytest.fixture(autouse=True)
def nothing_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_logged", set())


@pytest.mark.parametrize("policy", ["kip579", "legacy"])
def test_min_insync_above_replicas_is_refused(policy: str) -> None:
    with pytest.raises(Refusal, match=r"topic orders has replication factor 1, below its min\.insync\.replicas of 3: lower") as caught:
        check_replication(INCONSISTENT, policy)
    assert (caught.value.group, caught.value.name) == (Group.INVALID_CONFIGURATION, "INCONSISTENT_REPLICATION_FACTOR")


def test_unknown_replication_policy_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            check_replication(INCONSISTENT, None)
        check_replication(INCONSISTENT, "capped")
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "topic orders has replication factor 1, below its min.insync.replicas of 3"
    ]


@pytest.fixture(params=["kip579", "capped"])
def policy(request: pytest.FixtureRequest) -> object:
    return request.param


@pytest.fixture
def kafka(policy: str) -> Iterator[EmbeddedBroker]:
    topics = {"orders": {"partitions": 1, "min.insync.replicas": 2}, "plain": {"partitions": 1}}
    with EmbeddedBroker(topics=topics, config={"min.insync.replicas.policy": policy}) as broker:
        yield broker


def test_min_insync_is_checked_before_tasks(kafka: EmbeddedBroker, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SyncClient([kafka.bootstrap_servers]) as client:
        seen = take_snapshot(client, [("orders", "topic"), ("plain", "topic")], 5000)
    assert (seen.replication_policy, [(topic.replica_count, topic.in_sync_min) for topic in seen.topics]) == (
        policy,
        [(1, 2), (1, 1)],
    )
    query = QueryDriver(monkeypatch, kafka.bootstrap_servers, tmp_path)
    if policy == "capped":
        query.run(ROWS)
        assert kafka.read("orders").num_rows == 1
    else:
        for guarantee in ("exactly-once", "at-least-once"):
            with pytest.raises(Refusal, match="INCONSISTENT_REPLICATION_FACTOR: topic orders"):
                query.writer(deliveryGuarantee=guarantee)
        query.writer(deliveryGuarantee="none")  # Without acknowledgements replicas are not checked.
        del query.options["topic"]
        with pytest.raises(Refusal, match="INCONSISTENT_REPLICATION_FACTOR: task 0: topic orders"):
            query.run(ROWS | {"topic": ["orders"]}, markerTopic="plain")
    query.close()


@pytest.fixture
def of_2_0(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedBroker]:
    """A broker that knows Produce as far as Apache Kafka 2.0, to which zstd is unknown."""
    others = [version for version in api_versions._SERVED if version.api_key != 0]
    monkeypatch.setattr(api_versions, "_SERVED", [ApiVersion(api_key=0, min_version=0, max_version=6), *others])
    with EmbeddedBroker(topics={"orders": {}}) as broker:
        yield broker


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "none"])
def test_unsupported_codec_is_refused_before_tasks(
    guarantee: str, of_2_0: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    query = QueryDriver(monkeypatch, of_2_0.bootstrap_servers, tmp_path, deliveryGuarantee=guarantee)
    text = rf"kafka\.compression\.type=zstd is not supported by a broker of {of_2_0.bootstrap_servers}; it requires Apache Kafka 2\.1:"
    with pytest.raises(Refusal, match=text) as caught:
        query.writer(kafka__compression__type="zstd")
    assert (caught.value.group, caught.value.name) == (Group.INVALID_CONFIGURATION, "UNSUPPORTED_COMPRESSION_TYPE")
    query.writer(kafka__compression__type="lz4")
    query.close()


PRODUCE_OF_2_0 = ApiVersion(api_key=0, min_version=0, max_version=6)


def client_with_response(answer: ApiVersionsResponse) -> SyncClient:
    """Stands for a client of a cluster in the midst of an upgrade, one of whose brokers gives this answer."""
    nodes = {1: "old:9092", 2: "new:9092"}
    return cast(SyncClient, SimpleNamespace(request=lambda request, timeout_ms: answer, cluster=SimpleNamespace(nodes=nodes)))


def test_unsupported_codec_of_one_broker_names_that_broker() -> None:
    with pytest.raises(Refusal, match=r"zstd is not supported by a broker of old:9092, new:9092; it requires"):
        check_codec(client_with_response(ApiVersionsResponse(api_keys=[PRODUCE_OF_2_0])), "zstd", 1)


@pytest.mark.parametrize(
    "answer",
    [
        ApiVersionsResponse(error_code=35, api_keys=[]),
        ApiVersionsResponse(error_code=35, api_keys=[PRODUCE_OF_2_0]),
        ApiVersionsResponse(api_keys=[ApiVersion(api_key=18, min_version=0, max_version=2)]),
    ],
    ids=["an error", "an error with a version", "without Produce"],
)
def test_response_without_versions_refuses_no_codec(answer: ApiVersionsResponse) -> None:
    check_codec(client_with_response(answer), "zstd", 1)


def test_long_wait_is_logged_with_bootstrap_option(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    made = {}
    monkeypatch.setattr(target, "SyncClient", lambda *_, **given: made.update(given))
    monkeypatch.setattr(target, "_clients", LruCache(lambda _: None))
    options = SinkOptions.parse({"kafka.bootstrap.servers": "a:1,b:2", "topic": "orders"}, is_stream=False).client
    target.client_for(options)
    made["on_wait"]("no broker reachable; retrying")
    assert [record.message for record in caplog.records] == ["kafka.bootstrap.servers=a:1,b:2: no broker reachable; retrying"]


@pytest.mark.parametrize(("guarantee", "is_refused"), [("exactly-once", True), ("at-least-once", True), ("none", False)])
def test_min_insync_is_checked_for_topic_column_with_acks(monkeypatch: pytest.MonkeyPatch, guarantee: str, is_refused: bool) -> None:
    few = TopicSnapshot(topic="few", topic_id=bytes(16), partition_count=1, replica_count=1, in_sync_min=2)
    monkeypatch.setattr(target, "client_for", lambda _: None)
    monkeypatch.setattr(target, "find_topic", lambda *_: few)
    options = SinkOptions.parse({"kafka.bootstrap.servers": "a:1", "deliveryGuarantee": guarantee}, is_stream=False)
    plan = task_plan(options, TargetSnapshot(topics=(), replication_policy="strict"), TaskContextFacts(task=0), "q")
    if is_refused:
        with pytest.raises(Refusal, match=r"topic few has replication factor 1, below its min\.insync\.replicas of 2"):
            plan.snapshot_of("few", 0)
    else:
        assert plan.snapshot_of("few", 0) == few
