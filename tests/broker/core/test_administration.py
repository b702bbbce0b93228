"""What Kafka's command line tools ask on the way: directories, reassignments, quotas, credentials, ACLs, names of resources."""

from __future__ import annotations

import pytest

from chaffinch.broker.core.error_responses import error_response
from chaffinch.broker.core.handlers import PER_PARTITION_FAULTS
from chaffinch.protocol.apis import APIS
from chaffinch.protocol.messages.describe_acls import DescribeAclsRequest
from chaffinch.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from chaffinch.protocol.messages.describe_configs import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
)
from chaffinch.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from chaffinch.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from chaffinch.protocol.messages.list_config_resources import ListConfigResourcesRequest
from chaffinch.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from chaffinch.protocol.server_connection import ReceivedRequest
from tests.broker.batches import batch_of
from tests.broker.core_client import Cluster
from tests.protocol.instances import sample


class TestLogDirs:
    @pytest.mark.parametrize("version", range(1, 6))
    def test_log_dirs_report_sizes(self, version: int) -> None:
        cluster = Cluster()
        cluster.topic("orders", 2)
        cluster.topic("bills")
        client = cluster.client()
        client.produce("orders", batch_of(b"a"), partition=1)
        answer = client.ask(DescribeLogDirsRequest(topics=None), version)
        (result,) = answer.results
        assert (answer.error_code, result.error_code, result.log_dir) == (0, 0, "logs")
        shown = {topic.name: [(part.partition_index, part.partition_size) for part in topic.partitions] for topic in result.topics}
        assert shown == {"orders": [(0, 0), (1, len(batch_of(b"a")))], "bills": [(0, 0)]}

    @pytest.mark.parametrize(
        ("requested", "shown"),
        [
            ([], []),
            ([("orders", [1, 7, 1])], [("orders", [1])]),
            ([("missing", [0])], []),
            ([("orders", [0]), ("orders", [1])], [("orders", [0, 1])]),
        ],
    )
    def test_log_dirs_report_requested_partitions(self, requested: list[tuple[str, list[int]]], shown: list[tuple[str, list[int]]]) -> None:
        cluster = Cluster()
        cluster.topic("orders", 2)
        topics = [DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in requested]
        (result,) = cluster.client().ask(DescribeLogDirsRequest(topics=topics)).results
        assert [(topic.name, [part.partition_index for part in topic.partitions]) for topic in result.topics] == shown

    def test_log_dirs_report_replicas_of_the_node(self) -> None:
        cluster = Cluster(nodes=2)
        cluster.topic("orders", 2)
        shown = []
        for node in (0, 1):
            (result,) = cluster.client(node=node).ask(DescribeLogDirsRequest(topics=None)).results
            shown += [(node, part.partition_index) for topic in result.topics for part in topic.partitions]
        replicas = [cluster.partition("orders", index).replicas.assigned for index in (0, 1)]
        assert sorted(shown) == sorted((replicas[index][0], index) for index in (0, 1))


def test_no_reassignments_are_listed() -> None:
    answer = Cluster().client().ask(ListPartitionReassignmentsRequest())
    assert (answer.error_code, answer.topics) == (0, [])


def test_no_quotas_are_described() -> None:
    answer = Cluster().client().ask(DescribeClientQuotasRequest())
    assert (answer.error_code, answer.entries) == (0, [])


def test_acls_are_refused_without_an_authorizer() -> None:
    answer = Cluster().client().ask(DescribeAclsRequest())
    assert (answer.error_code, answer.resources) == (54, [])


def test_scram_users_are_unknown() -> None:
    client = Cluster().client()
    no_users: tuple[list[UserName] | None, ...] = (None, [])
    for users in no_users:
        answer = client.ask(DescribeUserScramCredentialsRequest(users=users))
        assert (answer.error_code, answer.results) == (0, [])
    answer = client.ask(DescribeUserScramCredentialsRequest(users=[UserName(name="a"), UserName(name="b"), UserName(name="a")]))
    assert [(result.user, result.error_code) for result in answer.results] == [("a", 92), ("b", 91)]


@pytest.mark.parametrize(
    ("version", "types", "code", "names"),
    [
        (1, [RESOURCE_TOPIC], 0, ["orders"]),
        (1, [RESOURCE_BROKER], 0, ["0", "1"]),
        (1, [RESOURCE_BROKER, RESOURCE_BROKER], 0, ["0", "1"]),
        (1, [RESOURCE_BROKER_LOGGER], 0, ["0", "1"]),
        (1, [RESOURCE_GROUP, RESOURCE_CLIENT_METRICS], 0, []),
        (1, [], 0, ["orders", "0", "1", "0", "1"]),
        (1, [77], 35, []),
        (0, [], 0, []),
    ],
)
def test_config_resources_are_listed(version: int, types: list[int], code: int, names: list[str]) -> None:
    cluster = Cluster(nodes=2)
    cluster.topic("orders")
    answer = cluster.client().ask(ListConfigResourcesRequest(resource_types=types), version)
    assert (answer.error_code, [resource.resource_name for resource in answer.config_resources]) == (code, names)


@pytest.mark.parametrize("name", [api.name for api in APIS.values() if api.served and api.key not in PER_PARTITION_FAULTS])
def test_error_response_has_any_code_in_any_version(name: str) -> None:
    """Whatever was asked, in every version served: the number is in the bytes."""
    (api,) = (api for api in APIS.values() if api.name == name)
    number = 0x3A5C
    for version in api.served:
        request = ReceivedRequest(api=api, version=version, correlation_id=1, client_id="", message=sample(api.request, version))
        answer = error_response(request, number)
        assert isinstance(answer, api.response)
        assert number.to_bytes(2, "big") in b"".join(answer.encode(version))
