"""Asks the leaders what is left open of an earlier attempt: one request to each, for `CommitShell`."""

from __future__ import annotations

from collections.abc import Sequence

from chaffinch.client.addresses import Address
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import ApiException, codes, exception_for
from chaffinch.identifiers import TopicPartition
from chaffinch.spark.commit import remains
from chaffinch.spark.commit.operations import FindRemains, Remains


def find_remains(client: SyncClient, operation: FindRemains, timeout_ms: int) -> Remains:
    """What all of them said. `timeout_ms` is for each. Never raises an ApiException: asking again is the protocol's."""
    partitions = operation.partitions
    if operation.refresh or any(client.cluster.leader_address(place) is None for place in partitions):
        try:
            client.refresh_metadata({place.topic for place in partitions}, timeout_ms=timeout_ms)
        except ApiException as error:
            return _unanswered(partitions, error)
    by_leader: dict[Address, list[TopicPartition]] = {}
    found = []
    for place in partitions:
        leader = client.cluster.leader_address(place)
        if leader is None:
            found.append(_leaderless(client, place))
        else:
            by_leader.setdefault(leader, []).append(place)
    found += [_ask(client, leader, places, operation.producer_id, timeout_ms) for leader, places in by_leader.items()]
    return Remains(
        asked=frozenset().union(*(said.asked for said in found)),
        left_open=frozenset().union(*(said.left_open for said in found)),
        reason="; ".join(said.reason for said in found if said.reason),
    )


def _leaderless(client: SyncClient, place: TopicPartition) -> Remains:
    topic = client.cluster.topic(place.topic)
    if topic is not None and topic.code is not codes.NONE:
        return _unanswered([place], exception_for(topic.code, topic_partition=place, api="Metadata"))
    return Remains(reason=f"{place} has no leader")


def _ask(client: SyncClient, leader: Address, places: Sequence[TopicPartition], producer_id: int, timeout_ms: int) -> Remains:
    try:
        answer = client.request(remains.question(places), leader, timeout_ms=timeout_ms, retries=False)
    except ApiException as error:
        return _unanswered(places, error)
    return remains.read(answer, producer_id)


def _unanswered(places: Sequence[TopicPartition], error: ApiException) -> Remains:
    """Brokers without this API never will answer; where we are not let in at all, what follows says so."""
    if error.code.is_retriable:
        return Remains(reason=" ".join(error.message.split()))
    return Remains(asked=frozenset(places))
