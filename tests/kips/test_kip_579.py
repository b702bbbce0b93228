"""KIP-579 on the wire: acks=all on a topic whose min.insync.replicas is above its replication factor.

One line per request: policy, replication factor, nodes running, min.insync.replicas, acks -> code.
"""

from __future__ import annotations

import pytest

from chaffinch.errors import codes
from chaffinch.identifiers import ProducerIdentity
from tests.broker.batches import batch_of
from tests.broker.core_client import Cluster, produce_request

NODES = 3

CASES = [
    # policy, replicas, stopped nodes, min in sync, acks, code
    ("kip579", 1, 0, 2, -1, 40),
    ("kip579", 1, 0, 2, 1, 0),
    ("kip579", 1, 0, 2, 0, 0),  # No answer is sent, and it is stored.
    ("kip579", 2, 0, 2, -1, 0),
    ("kip579", 2, 0, 3, -1, 40),
    ("kip579", 3, 0, 3, -1, 0),
    ("kip579", 3, 1, 3, -1, 19),
    ("kip579", 3, 1, 2, -1, 0),
    ("kip579", 3, 2, 2, -1, 19),
    ("kip579", 3, 2, 2, 1, 0),
    ("kip579", 3, 2, 2, 0, 0),
    ("kip579", 2, 1, 3, -1, 40),  # The mismatch comes before the in-sync count.
    ("legacy", 1, 0, 2, -1, 19),
    ("legacy", 3, 1, 3, -1, 19),
    ("legacy", 3, 0, 3, -1, 0),
    ("capped", 1, 0, 2, -1, 0),
    ("capped", 2, 0, 3, -1, 0),
    ("capped", 2, 1, 3, -1, 19),
    ("capped", 3, 1, 2, -1, 0),
]


def produce_code(
    policy: str, replicas: int, stopped: int, in_sync_min: int, acks: int, *, numbering: str = "apache", version: int = 9
) -> int:
    cluster = Cluster({"min.insync.replicas.policy": policy, "error.numbering": numbering}, nodes=NODES)
    cluster.topic("orders", 1, replicas, min_insync_replicas=str(in_sync_min))
    partition = cluster.core.topics.partition("orders", 0)
    assert partition is not None
    for node in [node for node in partition.replicas.assigned if node != partition.replicas.leader][:stopped]:
        cluster.stop_node(node)
    client = cluster.client(node=partition.replicas.leader)
    if acks == 0:
        client.send(produce_request("orders", batch_of(b"a"), acks=0), version)
        assert (client.answers, client.silent, client.closed) == ([], 1, None)
        assert partition.log.log_end_offset == 1
        return 0
    answer = client.produce("orders", batch_of(b"a"), acks=acks, version=version)
    assert (partition.log.log_end_offset == 1) == (answer.error_code == 0)
    return answer.error_code


@pytest.mark.parametrize(("policy", "replicas", "stopped", "in_sync_min", "acks", "code"), CASES)
def test_produce_code_follows_policy_and_replicas(policy: str, replicas: int, stopped: int, in_sync_min: int, acks: int, code: int) -> None:
    assert produce_code(policy, replicas, stopped, in_sync_min, acks) == code


@pytest.mark.parametrize("version", range(14))
@pytest.mark.parametrize(("numbering", "code"), [("apache", 40), ("kip", 89)])
def test_every_version_has_the_same_code(numbering: str, code: int, version: int) -> None:
    """Non-retriable everywhere: 40 is known to all clients; 89 literally on demand."""
    assert produce_code("kip579", 1, 0, 2, -1, numbering=numbering, version=version) == code


def test_message_starts_with_the_name_and_has_both_numbers() -> None:
    """Under `apache` numbering only the name tells apart this error and any other INVALID_CONFIG."""
    cluster = Cluster()
    cluster.topic("orders", min_insync_replicas="2")
    message = cluster.client().produce("orders", batch_of(b"a")).error_message
    assert message is not None
    assert message.startswith("INCONSISTENT_REPLICATION_FACTOR")
    assert "replication factor 1" in message
    assert "min.insync.replicas of 2" in message
    assert codes.INCONSISTENT_REPLICATION_FACTOR.is_retriable is False


def test_topic_with_the_mismatch_can_be_created_and_corrected() -> None:
    """Refusing them at creation is the KIP's rejected alternative; lowering the option helps at once."""
    cluster = Cluster()
    cluster.topic("orders", min_insync_replicas="2")
    client = cluster.client()
    assert client.produce("orders", batch_of(b"a")).error_code == 40
    cluster.core.topics.alter("orders", {})
    assert client.produce("orders", batch_of(b"a")).error_code == 0


def test_raising_the_option_refuses_new_batches_only() -> None:
    """From then on refused; what is stored stays, and a repeated batch is still answered with its old offset."""
    cluster = Cluster()
    cluster.topic("orders")
    client = cluster.client()
    batch = bytes(batch_of(b"a", identity=ProducerIdentity(7, 0), sequence=0))
    assert client.produce("orders", batch).base_offset == 0
    cluster.core.topics.alter("orders", {"min.insync.replicas": "2"})
    assert client.produce("orders", batch_of(b"b")).error_code == 40
    assert client.produce("orders", batch_of(b"b"), acks=1).error_code == 0
    again = client.produce("orders", batch)
    assert (again.error_code, again.base_offset) == (0, 0)


def test_each_topic_of_a_request_has_its_own_code() -> None:
    cluster = Cluster()
    cluster.topic("orders", min_insync_replicas="2")
    cluster.topic("payments")
    request = produce_request("orders", batch_of(b"a"))
    request.topics += produce_request("payments", batch_of(b"a")).topics
    answer = cluster.client().ask(request)
    assert [topic.partition_responses[0].error_code for topic in answer.responses] == [40, 0]


def test_retries_are_logged_once() -> None:
    """The KIP's motivation: each retry was a line."""
    cluster = Cluster()
    cluster.topic("orders", min_insync_replicas="2")
    client = cluster.client()
    for _ in range(100):
        client.produce("orders", batch_of(b"a"))
    warning, *refusals = cluster.lines
    assert "min.insync.replicas above the replication factor: orders (2 of 1)" in warning
    assert len(refusals) == 1
