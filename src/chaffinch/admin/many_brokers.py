"""Requests to several brokers: to the leaders of partitions, with retries for partitions that have moved, or to every node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NamedTuple, TypeVar

from chaffinch.client import response_errors
from chaffinch.client.pending_request import Deadline
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import (
    BrokerNotAvailableException,
    ErrorCode,
    NetworkException,
    RetriableException,
    TimeoutException,
    codes,
    exception_for,
)
from chaffinch.identifiers import TopicPartition, pluralize
from chaffinch.protocol.apis import api_of
from chaffinch.protocol.schema import Message

T = TypeVar("T")

PAUSE_MS: Final = 100


class PartitionAnswer(NamedTuple):
    """A leader's response for one partition: the error code (0: none), the broker's message, and the result if the code is 0."""

    topic_partition: TopicPartition
    code: int
    message: str | None
    result: Any


def ask_leaders(
    client: SyncClient,
    wanted: Collection[TopicPartition],
    request_for: Callable[[list[TopicPartition]], Message],
    read: Callable[[Any], Iterable[PartitionAnswer]],
    *,
    timeout_ms: int | None = None,
    leaderless_ms: int | None = None,
    version_max: int | None = None,
) -> dict[TopicPartition, Any]:
    """Send requests to the leaders of partitions, one per leader, until every partition has a result.

    Args:
        client: client of `options.connect`.
        wanted: the partitions.
        request_for: makes the request for partitions with the same leader.
        read: the results in a response.
        timeout_ms: limit for all requests together; None: the client's timeout.
        leaderless_ms: partitions without a leader after this time, all together, are left out; None: they are waited for.
        version_max: as for `SyncClient.request`.

    Returns:
        The results by partition.

    Raises:
        ApiException: the first code that is not retriable, and UNKNOWN_TOPIC_OR_PARTITION.
        TimeoutException: at the timeout.
    """
    api = api_of(request_for([])).name
    what = f"{api} request to the leaders of {pluralize(len(wanted), 'partition')}"
    deadline = client.deadline(timeout_ms, what)
    leader_deadline = None if leaderless_ms is None else client.deadline(leaderless_ms, what)
    found: dict[TopicPartition, Any] = {}
    missing = list(wanted)
    while True:
        if leader_deadline is not None:
            missing = _with_leaders(client, missing, leader_deadline)
        for leader, partitions in group_by_leader(client, missing, timeout_ms=max(1, deadline.left_ms)).items():
            try:
                answer = client.request(
                    request_for(partitions), leader, timeout_ms=max(1, deadline.left_ms), retries=False, version_max=version_max
                )
            except (
                RetriableException,
                BrokerNotAvailableException,
            ) as error:  # The latter: the leader has left the cluster after the lookup.
                deadline.note(error)
                continue
            for given in read(answer):
                if not given.code:
                    found[given.topic_partition] = given.result
                    continue
                code = codes.by_number(given.code)
                refusal = exception_for(code, message=given.message, topic_partition=given.topic_partition, api=api)
                if not code.is_retriable or code is codes.UNKNOWN_TOPIC_OR_PARTITION:
                    raise refusal
                deadline.note(refusal)
        missing = [partition for partition in missing if partition not in found]
        if not missing:
            return found
        if deadline.is_over:
            raise deadline.error(f"the last error was {last_code(deadline.last_error)}")
        client.pause(PAUSE_MS, deadline)
        client.refresh_metadata({partition.topic for partition in missing}, timeout_ms=max(1, deadline.left_ms))


def _with_leaders(client: SyncClient, partitions: list[TopicPartition], leader_deadline: Deadline) -> list[TopicPartition]:
    """The partitions that have a leader, after a wait for missing leaders until `leader_deadline`. Their metadata must be known."""
    while leaderless := {partition for partition in partitions if client.cluster.leader_of(partition) is None}:
        if leader_deadline.is_over:
            return [partition for partition in partitions if partition not in leaderless]
        client.pause(PAUSE_MS, leader_deadline)
        client.refresh_metadata({partition.topic for partition in leaderless})
    return partitions


def ask_nodes(client: SyncClient, message: Message) -> list[tuple[int, Any]]:
    """Send a request to every node. A coordinator that is still loading, as after its start, is retried.

    If a node leaves the cluster in the meantime, all nodes are requested again: other nodes coordinate its groups and ids now.

    Returns:
        (node id, response) pairs, by node id.

    Raises:
        ApiException: the first code that is not retriable.
        TimeoutException: the client's timeout for all nodes is over; the message contains the last code.
    """
    deadline = client.deadline(None, "to every node", message)
    while True:
        nodes = sorted(client.refresh_metadata([], timeout_ms=max(1, deadline.left_ms)).nodes)
        try:
            return [(node, _answer(client, node, message, deadline)) for node in nodes]
        except BrokerNotAvailableException as error:
            deadline.note(error)
            if deadline.is_over:
                raise deadline.error(f"the last error was {last_code(error)}") from error
            client.pause(PAUSE_MS, deadline)


def _answer(client: SyncClient, node: int, message: Message, deadline: Deadline) -> Any:
    answer = client.node_request(node, message, timeout_ms=max(1, deadline.left_ms))
    response_errors.raise_for(answer)
    return answer


def group_by_leader(
    client: SyncClient, partitions: Iterable[TopicPartition], *, timeout_ms: int | None = None
) -> dict[int, list[TopicPartition]]:
    """Partitions by the node id of their leader; waits for leaders. Raises the exceptions of `SyncClient.leader`."""
    groups: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        leader = client.cluster.leader_of(partition)
        if leader is None:
            leader = client.leader(partition, timeout_ms=timeout_ms)
        groups.setdefault(leader, []).append(partition)
    return groups


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, in the order given."""
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return found


def last_code(error: BaseException | None) -> str:
    """The name of an error's code, for a message; without a response from a broker, the reason."""
    if isinstance(error, NetworkException | TimeoutException):
        return error.message  # It contains the address and the reason.
    code = getattr(error, "code", None)
    return code.name if isinstance(code, ErrorCode) else str(error)
