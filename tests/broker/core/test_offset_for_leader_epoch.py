"""OffsetForLeaderEpoch (KIP-101, KIP-320): where the records of each leader end."""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.broker.batches import batch_of
from tests.broker.core.fetch_requests import fetch, first, offsets
from tests.broker.core_client import Client, Cluster


def ask(client: Client, epoch: int, *, topic: str = "orders", partition: int = 0, current: int = -1) -> EpochEndOffset:
    requested = [OffsetForLeaderPartition(partition=partition, leader_epoch=epoch, current_leader_epoch=current)]
    answer = client.ask(OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=topic, partitions=requested)]))
    result: EpochEndOffset = answer.topics[0].partitions[0]
    return result


@pytest.fixture
def client() -> Client:
    """Offsets 0 to 2 were written under epoch 0, 3 to 4 under epoch 2, 5 under epoch 5; the leader has epoch 7."""
    cluster = Cluster()
    cluster.topic("orders", segment_bytes="1048576")
    client = cluster.client()
    replicas = cluster.partition("orders", 0).replicas
    for epoch, count in ((0, 3), (2, 2), (5, 1), (7, 0)):
        replicas.leader_epoch = epoch
        for _ in range(count):
            client.produce("orders", batch_of(b"a" * 400_000))
    assert len(cluster.partition("orders", 0).log._files.segments) == 3
    return client


@pytest.mark.parametrize(
    ("epoch", "found", "end"),
    [(0, 0, 3), (1, 0, 3), (2, 2, 5), (3, 2, 5), (4, 2, 5), (5, 5, 6), (6, 5, 6), (7, 7, 6), (8, -1, -1), (-1, -1, -1)],
)
def test_epoch_has_its_end_offset(client: Client, epoch: int, found: int, end: int) -> None:
    answer = ask(client, epoch)
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, found, end)


def test_epoch_before_all_records_ends_at_the_start() -> None:
    cluster = Cluster()
    cluster.topic("orders")
    client = cluster.client()
    cluster.partition("orders", 0).replicas.leader_epoch = 3
    assert (ask(client, 1).leader_epoch, ask(client, 1).end_offset) == (1, 0)
    client.produce("orders", batch_of(b"a"))
    assert (ask(client, 1).leader_epoch, ask(client, 1).end_offset) == (1, 0)


@pytest.mark.parametrize(
    ("start", "ends"),
    [
        (2, {0: (0, 3), 1: (0, 3), 2: (2, 5)}),
        (3, {0: (0, 3), 1: (1, 3), 2: (2, 5), 4: (2, 5), 5: (5, 6)}),
        (4, {0: (0, 4), 1: (1, 4), 2: (2, 5), 6: (5, 6)}),
        (6, {0: (0, 6), 2: (2, 6), 5: (5, 6), 7: (7, 6)}),
    ],
)
def test_offsets_below_the_log_start_are_not_returned(client: Client, start: int, ends: dict[int, tuple[int, int]]) -> None:
    """Whether or not its segments are there still: a reader that is sent below the start could not read on."""
    cluster = client.cluster
    log = cluster.partition("orders", 0).log
    log.delete_records_before(start, cluster.steady_ms)
    for _ in range(2):
        assert {epoch: (ask(client, epoch).leader_epoch, ask(client, epoch).end_offset) for epoch in ends} == ends
        log.delete_old_segments(cluster.steady_ms)
    request = fetch(start, topic_id=cluster.topic_named("orders").topic_id)
    for epoch in ends:
        request.topics[0].partitions[0].last_fetched_epoch = epoch
        data = first(client.ask(request, 12))
        assert data.error_code == 0
        assert data.diverging_epoch is None or data.diverging_epoch.end_offset > start


def test_log_start_within_a_batch() -> None:
    """The batch is still there as a whole."""
    cluster = Cluster()
    cluster.topic("orders")
    client = cluster.client()
    cluster.partition("orders", 0).replicas.leader_epoch = 3
    client.produce("orders", batch_of(b"a", b"b", b"c"))
    cluster.partition("orders", 0).log.delete_records_before(2, cluster.steady_ms)
    assert (ask(client, 1).leader_epoch, ask(client, 1).end_offset) == (1, 2)


@pytest.mark.parametrize("kill", [True, False])
def test_small_log_has_its_epochs_after_a_restart(kill: bool) -> None:
    """Their segments have no index in a file."""
    cluster = Cluster()
    cluster.topic("orders")
    cluster.partition("orders", 0).replicas.leader_epoch = 1
    cluster.client().produce("orders", batch_of(b"a"))
    cluster.restart(kill=kill)
    cluster.partition("orders", 0).replicas.leader_epoch = 3
    answers = [ask(cluster.client(), epoch) for epoch in (0, 1, 2)]
    assert [(answer.leader_epoch, answer.end_offset) for answer in answers] == [(0, 0), (1, 1), (1, 1)]


@pytest.mark.parametrize(
    ("options", "code"), [({"topic": "missing"}, 3), ({"partition": 5}, 3), ({"current": 6}, 74), ({"current": 7}, 0), ({"current": 8}, 75)]
)
def test_invalid_request_is_refused(client: Client, options: dict[str, Any], code: int) -> None:
    answer = ask(client, 0, **options)
    assert answer.error_code == code
    assert (answer.end_offset == -1) == (code != 0)


def test_request_at_another_node_is_refused() -> None:
    cluster = Cluster(nodes=2)
    cluster.topic("orders")
    leader = cluster.partition("orders", 0).replicas.leader
    assert ask(cluster.client(node=1 - leader), 0).error_code == 6


DIVERGING = [
    (-1, 3, 0, None),
    (0, 3, 0, None),
    (0, 4, 0, (0, 3)),
    (1, 2, 0, (0, 3)),
    (2, 5, 0, None),
    (2, 6, 0, (2, 5)),
    (5, 6, 0, None),
    (7, 6, 0, None),
    (8, 6, 1, None),
]


@pytest.mark.parametrize(("epoch", "offset", "code", "diverging"), DIVERGING)
@pytest.mark.parametrize("version", [12, 18])
def test_fetch_with_last_epoch_gets_the_diverging_epoch(
    client: Client, epoch: int, offset: int, code: int, diverging: Any, version: int
) -> None:
    """KIP-595: the answer comes at once, with the point where the log and the reader diverge."""
    wait_ms = 500 if diverging or code else 0
    request = fetch(offset, topic_id=client.cluster.topic_named("orders").topic_id, wait_ms=wait_ms)
    request.topics[0].partitions[0].last_fetched_epoch = epoch
    data = first(client.ask(request, version))
    found = None if data.diverging_epoch is None else (data.diverging_epoch.epoch, data.diverging_epoch.end_offset)
    assert (data.error_code, found, data.high_watermark) == (code, diverging, -1 if code else 6)
    assert not (diverging and offsets(data))
