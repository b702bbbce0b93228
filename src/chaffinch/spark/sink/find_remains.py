"""Asks the leaders what is left open of an earlier attempt, and tells them what is committed: one request to each, for `CommitShell`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from chaffinch.client.addresses import Address
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import ApiException, Stored, codes, exception_for
from chaffinch.identifiers import TopicPartition
from chaffinch.spark.commit import finish, remains, requests
from chaffinch.spark.commit.operations import CountPartitions, FindRemains, Lost, Remains, Told, WriteMarkers
from chaffinch.spark.refusals import refusal_of


def find_remains(client: SyncClient, operation: FindRemains, look_up_timeout_ms: int, request_timeout_ms: int) -> Remains:
    """What all of them said. `request_timeout_ms` is for each. Never raises an ApiException: asking again is the protocol's."""
    partitions = operation.partitions
    if operation.refresh or any(client.cluster.leader_address(place) is None for place in partitions):
        try:
            client.refresh_metadata({place.topic for place in partitions}, timeout_ms=look_up_timeout_ms)
        except ApiException as error:
            return _unanswered(partitions, error)
    by_leader = _by_leader(client, partitions)
    found = [_unanswered([place], without_leader(client, place)) for place in by_leader.pop(None, [])]
    for leader, places in by_leader.items():
        assert leader is not None
        for asked in [[place] for place in places] if operation.refresh else [places]:
            found.append(_ask(client, leader, asked, operation.producer_id, request_timeout_ms))
            if not found[-1].asked:
                break  # Who does not answer would not for the next one either, each time for as long.
    return Remains.of_all(found)


def count_partitions(client: SyncClient, operation: CountPartitions, look_up_timeout_ms: int) -> int | Lost:
    """See the operation. A topic that does not exist, or of which we may not hear, has none that are told. Raises Refusal where asking
    again is no use."""
    try:
        client.refresh_metadata([operation.topic], timeout_ms=look_up_timeout_ms)
    except ApiException as error:
        if not requests.is_asked_again(error.code):
            raise refusal_of(error) from None
        return Lost(reason=" ".join(error.message.split()))
    topic = client.cluster.topic(operation.topic)
    if topic is None or topic.partitions:
        return 0 if topic is None else topic.partition_count
    code = topic.code
    return Lost(reason=code.text) if code.is_retriable and code is not codes.UNKNOWN_TOPIC_OR_PARTITION else 0


def write_markers(client: SyncClient, operation: WriteMarkers, look_up_timeout_ms: int, request_timeout_ms: int) -> Told:
    """What all of them said. `request_timeout_ms` is for each. Never raises an ApiException: telling again is the protocol's."""
    opened = {left.place: left for left in operation.places}
    try:
        client.refresh_metadata({place.topic for place in opened}, timeout_ms=look_up_timeout_ms)
    except ApiException as error:
        return _untold(error, opened)
    found = []
    for leader, places in _by_leader(client, opened).items():
        if leader is None:
            found += [_untold(without_leader(client, place), [place]) for place in places]
            continue
        request = finish.markers(operation.identity, [opened[place] for place in places])
        try:
            found.append(finish.read(client.request(request, leader, timeout_ms=request_timeout_ms, retries=False)))
        except ApiException as error:
            found.append(_untold(error, places, was_sent=True))
    return Told.of_all(found)


def _untold(error: ApiException, places: Collection[TopicPartition], *, was_sent: bool = False) -> Told:
    reason = " ".join(error.message.split())
    if requests.is_asked_again(error.code):
        unknown = places if error.code is codes.UNKNOWN_TOPIC_OR_PARTITION else ()
        unsure = places if was_sent and error.stored is not Stored.NO else ()
        return Told(reason=reason, code=error.code, unknown=frozenset(unknown), unsure=frozenset(unsure))
    if was_sent:
        return Told(refused=error.code, not_ours=frozenset(places))
    return Told(refused=error.code, reason=reason, code=error.code)  # Nobody was asked, so nobody has refused.


def _by_leader(client: SyncClient, partitions: Iterable[TopicPartition]) -> dict[Address | None, list[TopicPartition]]:
    """Who leads what, as far as is known; under None what nobody leads."""
    found: dict[Address | None, list[TopicPartition]] = {}
    for place in partitions:
        found.setdefault(client.cluster.leader_address(place), []).append(place)
    return found


def without_leader(client: SyncClient, place: TopicPartition) -> ApiException:
    """Why nobody is known to lead a partition."""
    topic = client.cluster.topic(place.topic)
    if topic is not None and topic.code is not codes.NONE:
        return exception_for(topic.code, message=f"{place}: {topic.code.summary}", topic_partition=place, api="Metadata")
    if topic is not None and topic.partitions and place.partition not in topic.partitions:
        # Of a topic that was deleted, and created again with fewer.
        gone = codes.UNKNOWN_TOPIC_OR_PARTITION
        return exception_for(gone, message=f"{place}: {gone.summary}", topic_partition=place, api="Metadata")
    return exception_for(codes.LEADER_NOT_AVAILABLE, message=f"{place} has no leader", topic_partition=place, api="Metadata")


def _ask(client: SyncClient, leader: Address, places: Sequence[TopicPartition], producer_id: int, timeout_ms: int) -> Remains:
    try:
        answer = client.request(remains.question(places), leader, timeout_ms=timeout_ms, retries=False)
    except ApiException as error:
        return _unanswered(places, error)
    return remains.read(answer, producer_id)


def _unanswered(places: Sequence[TopicPartition], error: ApiException) -> Remains:
    """Brokers without this API never answer, nor those that forbid it. Where we are not let in at all, what follows says so."""
    if requests.is_asked_again(error.code):
        unknown = frozenset(places) if error.code is codes.UNKNOWN_TOPIC_OR_PARTITION else frozenset[TopicPartition]()
        return Remains(unknown=unknown, reason=" ".join(error.message.split()), code=error.code)
    return Remains(asked=frozenset(places), refused=error.code)
