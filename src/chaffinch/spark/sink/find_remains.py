"""Asks the leaders what is left open of an earlier attempt: one request to each at first, for `CommitShell`."""

from __future__ import annotations

from collections.abc import Sequence

from chaffinch.client.addresses import Address
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import ApiException, codes, exception_for
from chaffinch.identifiers import TopicPartition
from chaffinch.spark.commit import remains
from chaffinch.spark.commit.operations import FindRemains, Remains


def find_remains(client: SyncClient, operation: FindRemains, look_up_timeout_ms: int, request_timeout_ms: int) -> Remains:
    """What all of them said. `request_timeout_ms` is for each. Never raises an ApiException: asking again is the protocol's."""
    partitions = operation.partitions
    if operation.refresh or any(client.cluster.leader_address(place) is None for place in partitions):
        try:
            client.refresh_metadata({place.topic for place in partitions}, timeout_ms=look_up_timeout_ms)
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
    for leader, places in by_leader.items():
        for asked in [[place] for place in places] if operation.refresh else [places]:
            found.append(_ask(client, leader, asked, operation.producer_id, request_timeout_ms))
            if not found[-1].asked:
                break  # Who does not answer would not for the next one either, each time for as long.
    failed = [said for said in found if said.reason]
    return Remains(
        asked=frozenset().union(*(said.asked for said in found)),
        left_open=frozenset().union(*(said.left_open for said in found)),
        refused=next((said.refused for said in found if said.refused is not codes.NONE), codes.NONE),
        reason="; ".join(dict.fromkeys(said.reason for said in failed)),
        code=failed[0].code if failed else codes.NETWORK_EXCEPTION,
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
        return Remains(reason=" ".join(error.message.split()), code=error.code)
    return Remains(asked=frozenset(places), refused=error.code)
