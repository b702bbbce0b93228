"""What was said of topics and configurations survives a loss of power, whatever `flush.policy` is: all that was not synced goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from chaffinch.broker.core.events import CloseConnection, RequestReceived, Respond
from chaffinch.broker.core.transactions.coordinator import PRODUCER_IDS_PER_BLOCK
from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest, ScramCredentialUpsertion
from chaffinch.protocol.messages.create_partitions import CreatePartitionsRequest
from chaffinch.protocol.messages.create_topics import CreateTopicsRequest
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from chaffinch.protocol.messages.describe_configs import RESOURCE_BROKER, RESOURCE_TOPIC
from chaffinch.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from chaffinch.storage.file_system import StorageError
from tests.broker.batches import batch_of
from tests.broker.core.configs.config_requests import change
from tests.broker.core.test_create_partitions import increase_to
from tests.broker.core.test_topics import creatable
from tests.broker.core_client import Client, Cluster

UPSERTION = ScramCredentialUpsertion(name="ann", mechanism=1, iterations=4096, salt=b"salt" * 4, salted_password=b"s" * 32)


def effects_of(cluster: Cluster, message: Any, client: Client | None = None) -> Sequence[Any]:
    """Of one request as the server hands it over: no `handle`, no sync of its own."""
    client = client or cluster.client()
    (request,) = client.server.receive(b"".join(client.connection.encode_request(message)[1]))
    return cluster.core.apply(RequestReceived(connection_id=client.connection_id, request=request), cluster.steady_ms)


def synced(cluster: Cluster) -> list[str]:
    """Files as they are synced from now on."""
    paths: list[str] = []
    cluster.file_system.hook = lambda operation, path, _: paths.append(path) if operation == "sync" else None
    return paths


def lose_power(cluster: Cluster) -> None:
    cluster.core.abandon()
    cluster.file_system.hook = None
    cluster.file_system.crash(lambda path, unsynced: 0)
    cluster.clients.clear()
    cluster.core = cluster._core()


def test_producer_id_is_not_reused_after_a_loss_of_power() -> None:
    """A log that kept more than the journal of ids would take the batches of the second producer for those of the first."""
    cluster = Cluster()
    cluster.topic("orders")
    ids = []
    for _ in range(2):
        client = cluster.client()
        ids.append(client.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)).producer_id)
        answer = client.produce("orders", batch_of(b"a", identity=ProducerIdentity(ids[-1], 0), sequence=0))
        assert (answer.error_code, answer.base_offset) == (0, len(ids) - 1)
        cluster.partition("orders", 0).log.sync()
        lose_power(cluster)
    assert ids == [0, PRODUCER_IDS_PER_BLOCK]


def topics(cluster: Cluster) -> dict[str, int]:
    return {topic.name: len(topic.partitions) for topic in cluster.core.topics}


CHANGES: list[tuple[str, Any, Callable[[Cluster], Any], Any]] = [
    ("create", CreateTopicsRequest(topics=[creatable("new", 3)]), topics, {"old": 1, "new": 3}),
    ("create many", CreateTopicsRequest(topics=[creatable(f"new-{n}") for n in range(20)]), lambda cluster: len(topics(cluster)), 21),
    ("create by asking", MetadataRequest(topics=[MetadataRequestTopic(name="new")]), topics, {"old": 1, "new": 1}),
    ("delete", DeleteTopicsRequest(topics=[DeleteTopicState(name="old")], timeout_ms=0), topics, {}),
    ("widen", CreatePartitionsRequest(topics=[increase_to(4, name="old")], timeout_ms=0), topics, {"old": 4}),
    (
        "a topic's option",
        IncrementalAlterConfigsRequest(resources=[change("old", RESOURCE_TOPIC, retention_ms="5000")]),
        lambda cluster: cluster.topic_named("old").overrides,
        {"retention.ms": "5000"},
    ),
    (
        "the broker's option",
        IncrementalAlterConfigsRequest(resources=[change("", RESOURCE_BROKER, log_retention_ms="5000")]),
        lambda cluster: cluster.core.state.settings["log.retention.ms"],
        5000,
    ),
    (
        "a credential",
        AlterUserScramCredentialsRequest(upsertions=[UPSERTION]),
        lambda cluster: [user for user, _ in cluster.core.state.authentication.credentials.added()],
        ["ann"],
    ),
]


@pytest.mark.parametrize(("message", "look", "expected"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES])
def test_acknowledged_change_survives_a_loss_of_power(message: Any, look: Callable[[Cluster], Any], expected: Any) -> None:
    cluster = Cluster({"flush.policy": "os"})
    cluster.topic("old")
    paths = synced(cluster)
    assert [type(effect) for effect in effects_of(cluster, message)].count(Respond) == 1
    before_directories_go = isinstance(message, DeleteTopicsRequest)
    assert paths == ["journals/cluster.journal"] * (1 + before_directories_go)
    lose_power(cluster)
    assert look(cluster) == expected


def test_topic_of_the_command_line_survives_a_loss_of_power() -> None:
    cluster = Cluster()
    cluster.topic("orders", 2)
    lose_power(cluster)
    assert topics(cluster) == {"orders": 2}


def test_metadata_of_a_killed_process_is_synced_before_it_is_returned() -> None:
    cluster = Cluster()
    cluster.core.topics.create("orders", partition_count=2, steady_ms=cluster.steady_ms)
    cluster.restart()
    effects_of(cluster, MetadataRequest(topics=[MetadataRequestTopic(name="orders")]))
    lose_power(cluster)
    assert topics(cluster) == {"orders": 2}


@pytest.mark.parametrize(("failing", "answers_later"), [("sync", 0), ("sync directory", 1)])
def test_no_answer_leaves_until_the_sync_succeeds(failing: str, answers_later: int) -> None:
    """A file's own never does after one that failed; that of its name may."""
    cluster = Cluster()
    client = cluster.client()
    cluster.restart()

    def broken(operation: str, path: str, size: int) -> None:
        if operation == failing:
            raise StorageError(path, "sync", "input/output error")

    cluster.file_system.hook = broken
    for message in (CreateTopicsRequest(topics=[creatable("new")]), MetadataRequest(topics=None)):
        effects = effects_of(cluster, message, client)
        assert [type(effect) for effect in effects if not hasattr(effect, "text")] == [CloseConnection]
    cluster.file_system.hook = None
    assert [type(effect) for effect in effects_of(cluster, MetadataRequest(topics=None), client)].count(Respond) == answers_later


def test_request_without_changes_syncs_nothing() -> None:
    cluster = Cluster()
    cluster.topic("old")
    paths = synced(cluster)
    effects_of(cluster, MetadataRequest(topics=None))
    assert paths == []
