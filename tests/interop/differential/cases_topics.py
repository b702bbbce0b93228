"""Cases: versions, topics and their options."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from tests.interop.differential.peer import Peer
from tests.interop.differential.requests import API_BY_NAME, request

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def versions(peer: Peer) -> None:
    for version in API_BY_NAME["ApiVersions"].served:
        peer.ask(
            f"ApiVersions v{version}", request("ApiVersions", client_software_name="differential", client_software_version="1"), version
        )
    peer.ask("ApiVersions with an illegal name", request("ApiVersions", client_software_name="a b", client_software_version="1"), 3)


def created(name: str, partitions: int = 1, replication: int = 1, **configs: str) -> dict[str, object]:
    options = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    return {"name": name, "num_partitions": partitions, "replication_factor": replication, "configs": options}


def topics(peer: Peer) -> None:
    def create(label: str, *wanted: dict[str, object], version: int = 7, **more: object) -> None:
        peer.ask(f"create: {label}", request("CreateTopics", topics=list(wanted), timeout_ms=10_000, **more), version)

    for version in API_BY_NAME["CreateTopics"].served:
        create(f"plain v{version}", created(f"plain-{version}", 2), version=version)
    create("three at once", created("orders", 3), created("compacted", cleanup_policy="compact"), created("tiny", max_message_bytes="1000"))
    create("append time", created("append-time", message_timestamp_type="LogAppendTime"))
    create("a short past", created("strict", message_timestamp_before_max_ms="60000", message_timestamp_after_max_ms="60000"))
    create("again", created("orders"))
    create("named twice", created("double"), created("double"))
    create("only validated", created("not-there", 4), validate_only=True)
    create("validated and there", created("orders"), validate_only=True)
    create("broker's defaults", created("defaults", -1, -1))
    for name in ("", ".", "..", "a b", "x" * 250, "é"):
        create(f"called {name!r:.20}", created(name))
    create("no partitions", created("wrong", 0))
    create("10,001 partitions", created("wrong", 10_001))
    create("10,001 partitions of three", created("wrong", 5000), created("wrong/too", 5000), created("three", -1))
    create("minus two partitions", created("wrong", -2))
    create("replication 5", created("wrong", 1, 5))
    create("replication 0", created("wrong", 1, 0))
    create("unknown option", created("wrong", no_such="1"))
    create("illegal value", created("wrong", retention_ms="soon"))
    create("illegal policy", created("wrong", cleanup_policy="burn"))
    create("collides", created("or.ders"), created("or_ders"))
    create("assigned and counted", {**created("wrong", 1), "assignments": [{"partition_index": 0, "broker_ids": [1]}]})
    create("unknown replica", {**created("wrong", -1, -1), "assignments": [{"partition_index": 0, "broker_ids": [99]}]})
    create("a gap in partitions", {**created("wrong", -1, -1), "assignments": [{"partition_index": 1, "broker_ids": [0]}]})


def partitions(peer: Peer) -> None:
    def grow(label: str, name: str, count: int, **more: object) -> None:
        wanted = [{"name": name, "count": count, "assignments": None}]
        for version in API_BY_NAME["CreatePartitions"].served[-1:]:
            peer.ask(f"partitions: {label}", request("CreatePartitions", topics=wanted, timeout_ms=10_000, **more), version)

    grow("two more", "plain-5", 4)
    grow("fewer", "plain-5", 2)
    grow("as many", "plain-5", 4)
    grow("missing topic", "missing", 3)
    grow("zero", "plain-5", 0)
    grow("only validated", "plain-5", 9, validate_only=True)
    grow("10,000 more", "plain-5", 10_004, validate_only=True)
    grow("10,001 more", "plain-5", 10_005, validate_only=True)


def deletion(peer: Peer) -> None:
    for version in API_BY_NAME["DeleteTopics"].served:
        if version < 6:
            peer.ask(f"delete: missing v{version}", request("DeleteTopics", topic_names=["missing"], timeout_ms=5000), version)
    peer.ask("delete: there", request("DeleteTopics", topic_names=["defaults"], timeout_ms=5000), 5)
    peer.ask("delete: unknown id", request("DeleteTopics", topics=[{"name": None, "topic_id": UUID(int=5)}], timeout_ms=5000), 6)
    peer.ask("delete: twice", request("DeleteTopics", topics=[{"name": "double"}, {"name": "double"}], timeout_ms=5000), 6)
    both = [{"name": "orders", "topic_id": UUID(int=5)}]
    peer.ask("delete: name and id", request("DeleteTopics", topics=both, timeout_ms=5000), 6)


def metadata(peer: Peer) -> None:
    for version in API_BY_NAME["Metadata"].served:
        asked = request("Metadata", topics=[{"name": "orders"}, {"name": "missing"}], allow_auto_topic_creation=False)
        if version >= 4:
            peer.ask(f"metadata v{version}", asked, version)
    for name in ("", "a b", "x" * 250):
        asked = request("Metadata", topics=[{"name": name}], allow_auto_topic_creation=True)
        peer.ask(f"metadata of {name!r:.20}", asked, 12)
    peer.ask("metadata: created on demand", request("Metadata", topics=[{"name": "on-demand"}], allow_auto_topic_creation=True), 9)
    peer.ask("metadata: unknown id", request("Metadata", topics=[{"name": None, "topic_id": UUID(int=9)}]), 12)
    peer.ask("metadata: id in 10", request("Metadata", topics=[{"name": None, "topic_id": UUID(int=9)}]), 10)
    peer.ask("metadata: nothing", request("Metadata", topics=[]), 9)
    peer.ask("describe cluster", request("DescribeCluster"), 1)
    peer.ask(
        "describe partitions",
        request("DescribeTopicPartitions", topics=[{"name": "orders"}, {"name": "missing"}], response_partition_limit=2),
        0,
    )


def _describe_config(peer: Peer, label: str, kind: int, name: str, keys: list[str] | None = None) -> None:
    asked = [{"resource_type": kind, "resource_name": name, "configuration_keys": keys}]
    peer.ask(f"configs: {label}", request("DescribeConfigs", resources=asked, include_synonyms=True, include_documentation=False), 4)


def _alter_config(peer: Peer, label: str, kind: int, name: str, *changes: tuple[str, int, str | None], **more: object) -> None:
    wanted = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resources = [{"resource_type": kind, "resource_name": name, "configs": wanted}]
    peer.ask(f"alter: {label}", request("IncrementalAlterConfigs", resources=resources, **more), 1)
    peer.settle()  # Apache Kafka's brokers learn of it a moment later.


def configs(peer: Peer) -> None:
    describe, alter = partial(_describe_config, peer), partial(_alter_config, peer)
    describe("of a topic", TOPIC, "compacted")
    describe("one option", TOPIC, "compacted", ["cleanup.policy"])
    describe("unknown option", TOPIC, "compacted", ["no.such"])
    describe("missing topic", TOPIC, "missing")
    describe("illegal topic", TOPIC, "a b")
    describe("unknown broker", BROKER, "77")
    describe("no number", BROKER, "here")
    describe("unknown kind", 77, "orders")
    alter("set", TOPIC, "plain-2", ("retention.ms", SET, "1000"))
    describe("after set", TOPIC, "plain-2", ["retention.ms"])
    alter("append", TOPIC, "plain-2", ("cleanup.policy", APPEND, "compact"))
    describe("after append", TOPIC, "plain-2", ["cleanup.policy"])
    alter("subtract", TOPIC, "plain-2", ("cleanup.policy", SUBTRACT, "delete"))
    describe("after subtract", TOPIC, "plain-2", ["cleanup.policy"])
    alter("delete", TOPIC, "plain-2", ("retention.ms", DELETE, None), ("cleanup.policy", DELETE, None))
    describe("after delete", TOPIC, "plain-2", ["retention.ms", "cleanup.policy"])
    alter("append to a number", TOPIC, "plain-2", ("retention.ms", APPEND, "5"))
    alter("unknown option", TOPIC, "plain-2", ("no.such", SET, "1"))
    alter("illegal value", TOPIC, "plain-2", ("retention.ms", SET, "soon"))
    alter("no value", TOPIC, "plain-2", ("retention.ms", SET, None))
    alter("named twice", TOPIC, "plain-2", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
    alter("unknown operation", TOPIC, "plain-2", ("retention.ms", 9, "1"))
    alter("missing topic", TOPIC, "missing", ("retention.ms", SET, "1"))
    alter("only validated", TOPIC, "plain-2", ("retention.ms", SET, "1"), validate_only=True)
    describe("after validation", TOPIC, "plain-2", ["retention.ms"])


def group_configs(peer: Peer) -> None:
    heartbeat, session = options = ["consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"]
    describe, alter = partial(_describe_config, peer), partial(_alter_config, peer)
    describe("of a group that nobody knows", GROUP, "set", options)
    describe("of no group", GROUP, "")
    alter("a group's", GROUP, "set", (heartbeat, SET, "6000"), (session, SET, "50000"))
    describe("of a group that has set both", GROUP, "set", options)
    for option, values in ((heartbeat, ("4999", "15001", "soon", None)), (session, ("44999", "60001"))):
        for value in values:
            alter(f"a group's {option} to {value}", GROUP, "set", (option, SET, value))
    alter("a group's by appending", GROUP, "set", (heartbeat, APPEND, "1"))
    alter("a group's that nobody knows", GROUP, "set", ("no.such", SET, "1"))
    alter("those of no group", GROUP, "", (heartbeat, SET, "6000"))
    alter("a group's, only validated", GROUP, "validated", (heartbeat, SET, "6000"), validate_only=True)
    alter("a group's back to its default", GROUP, "set", (heartbeat, DELETE, None))
    describe("of a group that has set one", GROUP, "set", options)
    peer.ask("groups with options", request("ListConfigResources", resource_types=[GROUP]), 1)
    alter("all of a group's back", GROUP, "set", (session, DELETE, None))
    peer.ask("no group with options", request("ListConfigResources", resource_types=[GROUP]), 1)


SCENARIOS = (versions, topics, partitions, metadata, configs, group_configs)
LAST_SCENARIOS = (deletion,)
