"""Fault scripts: whom a rule hits, what it does, and that every error code can be had from every API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chaffinch.broker.core import fault_script
from chaffinch.broker.core.error_responses import error_response
from chaffinch.broker.core.events import RequestReceived, ThrottleConnection
from chaffinch.broker.core.fault_script import FaultScript, named_targets
from chaffinch.broker.core.handlers import PER_PARTITION_FAULTS
from chaffinch.errors import ConfigException, codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.protocol.apis import APIS, Api
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest
from chaffinch.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from chaffinch.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from chaffinch.protocol.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from chaffinch.protocol.schema import Message
from chaffinch.protocol.server_connection import ReceivedRequest
from tests.broker.batches import batch_of
from tests.broker.core_client import Cluster, produce_request
from tests.protocol.instances import sample

ERRORS = [code for code in codes.ALL if code is not codes.NONE]


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.topic("orders", 2)
    return cluster


def fetch(topic: dict[str, Any], *, session_id: int = 0, session_epoch: int = -1) -> FetchRequest:
    requested = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)]
    topics = [FetchTopic(partitions=requested, **topic)] if topic else []
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1000, topics=topics, session_id=session_id, session_epoch=session_epoch)


class TestMatching:
    @pytest.mark.parametrize(("client_id", "code"), [("test", 19), ("other", 0)])
    def test_rule_matches_client_id(self, cluster: Cluster, client_id: str, code: int) -> None:
        cluster.core.faults.add(client_id=client_id, error="NOT_ENOUGH_REPLICAS")
        assert cluster.client().produce("orders", batch_of(b"a")).error_code == code

    @pytest.mark.parametrize("version", [12, 13])
    def test_rule_matches_topic_by_name_and_by_id(self, cluster: Cluster, version: int) -> None:
        topic = cluster.core.topics.get("orders")
        assert topic is not None
        named = {"topic": "orders"} if version < 13 else {"topic_id": topic.topic_id}
        cluster.core.faults.add(api="Fetch", topic="orders", error="KAFKA_STORAGE_ERROR")
        answer = cluster.client().ask(fetch(named), version)
        assert answer.responses[0].partitions[0].error_code == 56

    def test_rule_matches_topic_of_a_fetch_session(self, cluster: Cluster) -> None:
        client = cluster.client()
        session_id = client.ask(fetch({"topic": "orders"}, session_epoch=0), 12).session_id
        assert session_id
        cluster.core.faults.add(api="Fetch", topic="orders", partition=0, error="KAFKA_STORAGE_ERROR")
        answer = client.ask(fetch({}, session_id=session_id, session_epoch=1), 12)
        assert answer.responses[0].partitions[0].error_code == 56

    TOPICS = (OffsetFetchRequestTopics(name="a", partition_indexes=[7]),)
    REQUESTS = (
        (OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=list(TOPICS))]), 7),
        (AddPartitionsToTxnRequest(v3_and_below_topics=[AddPartitionsToTxnTopic(name="a", partitions=[7])]), 7),
        (produce_request("a", None, partition=7), 7),
        (MetadataRequest(topics=[MetadataRequestTopic(name="a")]), None),
        (DeleteTopicsRequest(topic_names=["a"]), None),
        (ElectLeadersRequest(election_type=0, topic_partitions=[TopicPartitions(topic="a", partitions=[7])]), 7),
        (WriteTxnMarkersRequest(markers=[WritableTxnMarker(topics=[WritableTxnMarkerTopic(name="a", partition_indexes=[7])])]), 7),
    )  # fmt: skip

    @pytest.mark.parametrize(("request_", "partition"), REQUESTS, ids=lambda value: type(value).__name__)
    def test_named_targets_finds_topics_and_partitions_of_each_request(self, request_: Message, partition: int | None) -> None:
        targets = list(named_targets(request_, lambda _: None, lambda _: ()))
        assert targets[0] == (None, None)
        assert ("a", partition) in targets

    def test_first_matching_rule_applies_and_is_used_up(self) -> None:
        script = FaultScript()
        first = script.add(topic="a", count=2)
        second = script.add()
        hit = [script.take("Produce", None, lambda: [(None, None), ("a", None)]) for _ in range(4)]
        assert [fault and fault.id for fault in hit] == [first, first, second, None]


class TestScript:
    def test_list_returns_the_remaining_rules(self) -> None:
        script = FaultScript()
        script.add(topic="a", partition=0, error="INVALID_RECORD", count=2)
        script.add(api="Fetch", action="slow_down", bytes_per_second=10, direction="both", client_id="c")
        script.add(action="delay", delay_ms=5)
        script.add(action="drop_after")
        script.take("Produce", None, lambda: [("a", 0)])
        assert [fault.as_object() for fault in script.list()] == [
            {"id": 1, "api": "Produce", "action": "error", "topic": "a", "partition": 0, "error": "INVALID_RECORD", "count": 1},
            {"id": 2, "api": "Fetch", "action": "slow_down", "client_id": "c", "bytes_per_second": 10, "direction": "both", "count": 1},
            {"id": 3, "api": "Produce", "action": "delay", "delay_ms": 5, "count": 1},
            {"id": 4, "api": "Produce", "action": "drop_after", "count": 1},
        ]

    @pytest.mark.parametrize("api", [api for api in APIS.values() if api.served], ids=lambda api: api.name)
    def test_api_is_named_by_number_or_name(self, api: Api) -> None:
        script = FaultScript()
        for named in (int(api.key), str(api.key), api.name):
            script.add(api=named)
        assert [fault.as_object()["api"] for fault in script.list()] == [api.name] * 3

    def test_clear_removes_one_or_all_rules(self) -> None:
        script = FaultScript()
        ids = [script.add() for _ in range(3)]
        script.clear(ids[1])
        assert [fault.id for fault in script.list()] == [ids[0], ids[2]]
        with pytest.raises(ConfigException, match="no fault 2"):
            script.clear(ids[1])
        script.clear()
        assert not script
        assert script.add() == 4, "an id is never given twice"

    def test_number_of_rules_is_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fault_script, "RULES_MAX", 3)
        script = FaultScript()
        for _ in range(3):
            script.add()
        with pytest.raises(ConfigException, match="3 faults already"):
            script.add()

    IMPOSSIBLE = (
        ({"topic": ""}, "topic of a fault: a topic name cannot be empty"),
        ({"topic": "a b"}, "topic of a fault: topic name 'a b' has characters other than"),
        ({"api": "ApiVersions", "topic": "orders"}, "topic of a fault: ApiVersions requests contain no topics"),
        ({"api": "DescribeGroups", "topic": "orders"}, "topic of a fault: DescribeGroups requests contain no topics"),
        ({"api": "Metadata", "topic": "orders", "partition": 0}, "partition of a fault: Metadata requests contain no partitions"),
        ({"api": "Heartbeat", "partition": 0}, "partition of a fault: Heartbeat requests contain no partitions"),
        ({"error": "NO_SUCH_ERROR_AT_ALL"}, "unknown error"),
        (
            {"client_id": "a\ud800"},
            r"client_id of a fault: no request can have 'a\\ud800': character 1 is half a surrogate pair, and client ids are UTF-8$",
        ),
        ({"client_id": "\xe9" * 16_384}, "client_id of a fault: no request can have one of 32768 bytes, the limit is 32767$"),
        ({"topic": "\ud800"}, r"topic of a fault: topic name '\\ud800' has characters other than"),
        ({"api": "\ud800"}, r"unknown API '\\ud800' of a fault"),
        ({"error": "\ud800"}, r"unknown error '\\ud800' of a fault"),
        ({"api": 9999}, "unknown API 9999 of a fault: allowed: Produce, "),
        ({"api": 4}, "unknown API 4 of a fault: allowed: Produce, "),
        ({"api": -1}, "unknown API -1 of a fault"),
        ({"api": True}, "unknown API True of a fault"),
        ({"error": "NOPE"}, "unknown error 'NOPE' of a fault: no error code has this number or a name like it$"),
        ({"error": "NON"}, "unknown error 'NON' of a fault: no error code has this number or a name like it$"),
    )

    @pytest.mark.parametrize(("rule", "says"), IMPOSSIBLE)
    def test_impossible_rule_is_refused_and_takes_no_id(self, rule: dict[str, Any], says: str) -> None:
        script = FaultScript()
        with pytest.raises(ConfigException, match=f"^{says}"):
            script.add(**rule)
        assert not script
        assert script.add() == 1

    @pytest.mark.parametrize("api", [api for api in APIS.values() if api.served], ids=lambda api: api.name)
    def test_rule_fields_are_limited_to_those_of_the_api(self, api: Api) -> None:
        targets = [target for version in api.served for target in named_targets(sample(api.request, version), lambda _: "t", lambda _: ())]
        rules: list[tuple[dict[str, Any], bool]] = [
            ({"topic": "t"}, any(topic is not None for topic, _ in targets)),
            ({"partition": 0}, any(partition is not None for _, partition in targets)),
        ]
        for rule, is_named in rules:
            if is_named:
                FaultScript().add(api=api.name, **rule)
            else:
                with pytest.raises(ConfigException, match=f"{api.name} requests contain no"):
                    FaultScript().add(api=api.name, **rule)


class TestSlowDown:
    DIRECTIONS = (("answers", True, False), ("requests", False, True), ("both", True, True))

    @pytest.mark.parametrize(("direction", "answers", "requests"), DIRECTIONS)
    def test_slow_down_throttles_the_connection(self, cluster: Cluster, direction: str, answers: bool, requests: bool) -> None:
        cluster.core.faults.add(action="slow_down", bytes_per_second=100, direction=direction)
        request = ReceivedRequest(
            api=APIS[0], version=9, correlation_id=1, client_id="c", message=produce_request("orders", batch_of(b"a"))
        )
        effects = cluster.core.handle(RequestReceived(connection_id=5, request=request), cluster.steady_ms)
        assert effects[0] == ThrottleConnection(5, 100, answers, requests)
        assert len(effects) == 2
        assert cluster.partition("orders", 0).log.log_end_offset == 1


class TestDelay:
    def test_lost_connection_drops_its_delayed_response(self, cluster: Cluster) -> None:
        cluster.core.faults.add(action="delay", delay_ms=300)
        client = cluster.client()
        client.send(produce_request("orders", batch_of(b"a")))
        client.lose()
        assert not cluster.core._waits
        assert not cluster.core._unanswered
        cluster.advance(300)
        assert client.answers == []


def numbers_in(value: Any) -> Iterator[int]:
    """Everything in an answer that may be an error code."""
    if isinstance(value, Message):
        for field in value.FIELDS:
            found = getattr(value, field.name)
            if field.name.endswith("error_code") or isinstance(found, list | Message):
                yield from numbers_in(found)
    elif isinstance(value, list):
        for element in value:
            yield from numbers_in(element)
    elif isinstance(value, int):
        yield value


class TestEveryErrorCode:
    @pytest.mark.parametrize("code", ERRORS, ids=lambda code: code.name)
    def test_produce_and_fetch_answer_every_code(self, cluster: Cluster, code: ErrorCode) -> None:
        cluster.core.faults.add(error=code.name)
        cluster.core.faults.add(api="Fetch", topic="orders", error=code.name)
        client = cluster.client()
        assert client.produce("orders", batch_of(b"a"), version=12).error_code == code.number
        assert client.ask(fetch({"topic": "orders"}), 12).responses[0].partitions[0].error_code == code.number
        assert cluster.partition("orders", 0).log.log_end_offset == 0

    def test_injected_message_too_large_counts_no_bytes(self, cluster: Cluster) -> None:
        """The batch is not larger than it may be."""
        cluster.core.faults.add(error="MESSAGE_TOO_LARGE")
        assert cluster.client().produce("orders", batch_of(b"a")).error_code == codes.MESSAGE_TOO_LARGE.number
        assert cluster.core.counters.total("BytesRejectedPerSec", "orders") == 0

    @pytest.mark.parametrize(
        "api", [api for api in APIS.values() if api.served and api.key not in PER_PARTITION_FAULTS], ids=lambda api: api.name
    )
    def test_every_other_api_answers_a_code_in_every_version(self, api: Api) -> None:
        """A request that names something is answered with the code, in every version that is served."""
        for version in api.served:
            request = ReceivedRequest(api=api, version=version, correlation_id=1, client_id="c", message=sample(api.request, version))
            for code in (codes.UNKNOWN_SERVER_ERROR, codes.CLUSTER_AUTHORIZATION_FAILED):
                answer = api.response.decode(b"".join(error_response(request, code.number).encode(version)), version)
                assert code.number in set(numbers_in(answer)), (api.name, version)

    @pytest.mark.parametrize(
        ("name", "version", "says"),
        [
            ("FindCoordinator", 3, lambda answer: (answer.node_id, answer.host, answer.port) == (-1, "", -1)),
            ("FindCoordinator", 6, lambda answer: {(one.node_id, one.host, one.port) for one in answer.coordinators} == {(-1, "", -1)}),
            ("DeleteRecords", 2, lambda answer: answer.topics[0].partitions[0].low_watermark == -1),
            ("InitProducerId", 5, lambda answer: answer.producer_epoch == -1),
            ("CreateTopics", 7, lambda answer: answer.topics[0].configs is None),
            ("JoinGroup", 9, lambda answer: answer.member_id == "té4"),
        ],
    )
    def test_error_response_leaves_other_fields_empty(self, name: str, version: int, says: Callable[[Any], bool]) -> None:
        """But for the member's id, which is the request's."""
        (api,) = (api for api in APIS.values() if api.name == name)
        request = ReceivedRequest(api=api, version=version, correlation_id=1, client_id="c", message=sample(api.request, version))
        assert says(error_response(request, 41))

    @pytest.mark.parametrize("name", ["OffsetCommit", "DeleteTopics", "TxnOffsetCommit"])
    def test_error_response_names_topics_by_id(self, name: str) -> None:
        (api,) = (api for api in APIS.values() if api.name == name)
        version = api.served[-1]
        request = ReceivedRequest(api=api, version=version, correlation_id=1, client_id="c", message=sample(api.request, version))
        answer: Any = error_response(request, 41)
        answered = answer.responses if name == "DeleteTopics" else answer.topics
        requested: Any = request.message
        assert [topic.topic_id for topic in answered] == [topic.topic_id for topic in requested.topics]
