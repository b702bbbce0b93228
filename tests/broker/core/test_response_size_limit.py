"""Requests of few bytes whose answers would be large: what is named again and again is answered once, and no answer grows without limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chaffinch.broker.core.response_size_limit import STRUCTURE_BYTES, ResponseSizeLimit, ResponseTooLarge
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from chaffinch.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from chaffinch.protocol.messages.describe_configs import RESOURCE_TOPIC, DescribeConfigsRequest, DescribeConfigsResource
from chaffinch.protocol.messages.describe_groups import DescribedGroupMember, DescribeGroupsRequest
from chaffinch.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersTopicRequest
from chaffinch.protocol.messages.describe_transactions import DescribeTransactionsRequest
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from chaffinch.protocol.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from tests.broker.batches import batch_of
from tests.broker.core.groups.members import GROUP, ConsumerMember, commit, stable_group
from tests.broker.core_client import Client, Cluster

TIMES = 300
PARTITIONS = 40
LIMIT = 20_000


@pytest.fixture
def cluster() -> Cluster:
    """A topic, a classic group `g` with offsets, a consumer group `new`, an open transaction `t` and producers in partition 0."""
    cluster = Cluster({"queued.max.response.bytes": str(LIMIT), "offset.metadata.max.bytes": "1000"})
    cluster.topic("orders", PARTITIONS)
    client = cluster.client()
    for partition in range(PARTITIONS):
        assert commit(client, 7, partition=partition, metadata="m" * 1000) == 0
    stable_group(cluster, 3, big=bytes(5000))
    for name in "abc":
        ConsumerMember(cluster, name, group="new").join(["orders"])
    begun = client.ask(InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000))
    identity = {"v3_and_below_producer_id": begun.producer_id, "v3_and_below_producer_epoch": begun.producer_epoch}
    topics = [AddPartitionsToTxnTopic(name="orders", partitions=[0])]
    client.ask(AddPartitionsToTxnRequest(v3_and_below_transactional_id="t", v3_and_below_topics=topics, **identity), 3)
    client.produce("orders", batch_of(b"a"))
    return cluster


def configs(names: list[str], keys: list[str] | None = None, *, documentation: bool = True) -> DescribeConfigsRequest:
    resources = [DescribeConfigsResource(resource_type=RESOURCE_TOPIC, resource_name=name, configuration_keys=keys) for name in names]
    return DescribeConfigsRequest(resources=resources, include_documentation=documentation)


def offsets(*partitions: list[int]) -> OffsetFetchRequest:
    topics = [OffsetFetchRequestTopics(name="orders", partition_indexes=indexes) for indexes in partitions]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=topics)])


def producers(*partitions: list[int]) -> DescribeProducersRequest:
    return DescribeProducersRequest(topics=[DescribeProducersTopicRequest(name="orders", partition_indexes=one) for one in partitions])


ONCE: dict[str, tuple[Any, int | None, Callable[[Any], Any]]] = {
    "DescribeConfigs": (configs(["orders"] * TIMES, ["retention.ms"]), None, lambda answer: [len(one.configs) for one in answer.results]),
    "DescribeGroups": (DescribeGroupsRequest(groups=[GROUP] * TIMES), None, lambda answer: [len(one.members) for one in answer.groups]),
    "ConsumerGroupDescribe": (
        ConsumerGroupDescribeRequest(group_ids=["new"] * TIMES),
        None,
        lambda answer: [len(one.members) for one in answer.groups],
    ),
    "DescribeTransactions": (
        DescribeTransactionsRequest(transactional_ids=["t"] * TIMES),
        None,
        lambda answer: [len(one.topics) for one in answer.transaction_states],
    ),
    "DescribeProducers": (
        producers([0] * TIMES, *[[0]] * TIMES),
        None,
        lambda answer: [1 for topic in answer.topics for _ in topic.partitions],
    ),
    "OffsetFetch": (
        offsets([0] * TIMES, *[[0]] * TIMES),
        9,
        lambda answer: [len(part.metadata) // 1000 for topic in answer.groups[0].topics for part in topic.partitions],
    ),
    "AddPartitionsToTxn": (
        AddPartitionsToTxnRequest(v3_and_below_topics=[AddPartitionsToTxnTopic(name="orders", partitions=[0] * TIMES)]),
        3,
        lambda answer: [len(one.results_by_partition) for one in answer.results_by_topic_v3_and_below],
    ),
}


@pytest.mark.parametrize("api", ONCE)
def test_repeated_names_are_answered_once(cluster: Cluster, api: str) -> None:
    request, version, shown = ONCE[api]
    members = 3 if "Group" in api else 1
    assert shown(cluster.client().ask(request, version)) == [members]


def test_option_keys_of_repeated_resources_are_merged(cluster: Cluster) -> None:
    def resource(keys: list[str] | None) -> DescribeConfigsResource:
        return DescribeConfigsResource(resource_type=RESOURCE_TOPIC, resource_name="orders", configuration_keys=keys)

    client = cluster.client()
    for key_lists, count in (
        ([["retention.ms"], ["cleanup.policy", "retention.ms"]], 2),
        ([["retention.ms"], None], 30),
        ([[], ["retention.ms"]], 30),
        ([["no.such"]], 0),
    ):
        (result,) = client.ask(DescribeConfigsRequest(resources=[resource(keys) for keys in key_lists])).results
        assert len(result.configs) >= count, key_lists
        assert count == 30 or len(result.configs) == count, key_lists


def test_marker_for_a_repeated_partition_is_written_once(cluster: Cluster) -> None:
    topics = [WritableTxnMarkerTopic(name="orders", partition_indexes=[5] * TIMES)]
    marker = WritableTxnMarker(producer_id=9, producer_epoch=0, transaction_result=True, topics=topics, coordinator_epoch=0)
    (topic,) = cluster.client().ask(WriteTxnMarkersRequest(markers=[marker]), 1).markers[0].topics
    assert [part.partition_index for part in topic.partitions] == [5]
    assert cluster.partition("orders", 5).log.log_end_offset == 1


LARGE: dict[str, tuple[Any, int | None]] = {
    "DescribeConfigs": (configs(["orders", "others", "third", "fourth"]), None),
    "DescribeGroups": (DescribeGroupsRequest(groups=[GROUP, *map(str, range(TIMES))]), None),
    "ConsumerGroupDescribe": (ConsumerGroupDescribeRequest(group_ids=["new", *map(str, range(TIMES))]), None),
    "DescribeTransactions": (DescribeTransactionsRequest(transactional_ids=["t", *map(str, range(TIMES))]), None),
    "DescribeProducers": (producers([*range(TIMES)]), None),
    "OffsetFetch": (offsets([*range(PARTITIONS)]), 9),
    "OffsetFetch v7": (OffsetFetchRequest(group_id=GROUP, topics=None), 7),
    "OffsetFetch of groups": (OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="x", topics=[])] * TIMES), 9),
}


@pytest.mark.parametrize("api", LARGE)
def test_response_above_the_limit_closes_the_connection(cluster: Cluster, api: str) -> None:
    cluster.topic("others")
    cluster.topic("third")
    cluster.topic("fourth")
    client: Client = cluster.client()
    client.send(*LARGE[api])
    wanted = f"{api.split()[0]} requests too much at once: the response would exceed queued.max.response.bytes={LIMIT}"
    assert (client.answers, client.closed) == ([], wanted)
    assert cluster.client().closed is None, "the others are served"


def test_size_limit_counts_structures_and_texts() -> None:
    size_limit = ResponseSizeLimit({"queued.max.response.bytes": 2 * STRUCTURE_BYTES + 10})
    part = DescribedGroupMember(member_id="12345", member_metadata=b"12345")
    assert size_limit.add(part) is part
    size_limit.add(DescribedGroupMember())
    with pytest.raises(ResponseTooLarge):
        size_limit.add(DescribedGroupMember())
