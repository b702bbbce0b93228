"""Requests to partition leaders about hanging transactions: finds them and writes their markers, one request per leader."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from chaffinch.client.addresses import Address
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import ApiException, Stored, codes, exception_for
from chaffinch.identifiers import TopicPartition
from chaffinch.spark.commit import complete_previous, hanging_transactions, requests
from chaffinch.spark.commit.operations import (
    CountPartitions,
    FindHangingTransactions,
    HangingTransactions,
    Lost,
    WriteMarkers,
    WriteMarkersResult,
)
from chaffinch.spark.refusals import refusal_of


def find_hanging_transactions(
    client: SyncClient, operation: FindHangingTransactions, look_up_timeout_ms: int, request_timeout_ms: int
) -> HangingTransactions:
    """The combined result of all leaders. `request_timeout_ms` applies to each. Never raises ApiException: the protocol retries."""
    partitions = operation.partitions
    if operation.refresh or any(client.cluster.leader_address(tp) is None for tp in partitions):
        try:
            client.refresh_metadata({tp.topic for tp in partitions}, timeout_ms=look_up_timeout_ms)
        except ApiException as error:
            return _failed_search(partitions, error)
    by_leader = _by_leader(client, partitions)
    found = [_failed_search([tp], without_leader(client, tp)) for tp in by_leader.pop(None, [])]
    for leader, tps in by_leader.items():
        assert leader is not None
        for requested in [[tp] for tp in tps] if operation.refresh else [tps]:
            found.append(_describe_producers(client, leader, requested, operation.producer_id, request_timeout_ms))
            if not found[-1].answered:
                break  # The next request would not be answered either, and would take as long.
    return HangingTransactions.merged(found)


def count_partitions(client: SyncClient, operation: CountPartitions, look_up_timeout_ms: int) -> int | Lost:
    """See the operation. Returns 0 for a topic that does not exist or may not be described. Raises Refusal if a retry cannot help."""
    try:
        client.refresh_metadata([operation.topic], timeout_ms=look_up_timeout_ms)
    except ApiException as error:
        if not requests.is_retried(error.code):
            raise refusal_of(error) from None
        return Lost(reason=" ".join(error.message.split()))
    topic = client.cluster.topic(operation.topic)
    if topic is None or topic.partitions:
        return 0 if topic is None else topic.partition_count
    code = topic.code
    return Lost(reason=code.text) if code.is_retriable and code is not codes.UNKNOWN_TOPIC_OR_PARTITION else 0


def write_markers(client: SyncClient, operation: WriteMarkers, look_up_timeout_ms: int, request_timeout_ms: int) -> WriteMarkersResult:
    """The combined result of all leaders. `request_timeout_ms` applies to each. Never raises ApiException: the protocol retries."""
    by_tp = {transaction.tp: transaction for transaction in operation.transactions}
    try:
        client.refresh_metadata({tp.topic for tp in by_tp}, timeout_ms=look_up_timeout_ms)
    except ApiException as error:
        return _failed_write(error, by_tp)
    found = []
    for leader, tps in _by_leader(client, by_tp).items():
        if leader is None:
            found += [_failed_write(without_leader(client, tp), [tp]) for tp in tps]
            continue
        request = complete_previous.write_markers_request(operation.identity, [by_tp[tp] for tp in tps])
        try:
            found.append(complete_previous.parse_response(client.request(request, leader, timeout_ms=request_timeout_ms, retries=False)))
        except ApiException as error:
            found.append(_failed_write(error, tps, was_sent=True))
    return WriteMarkersResult.merged(found)


def _failed_write(error: ApiException, tps: Collection[TopicPartition], *, was_sent: bool = False) -> WriteMarkersResult:
    reason = " ".join(error.message.split())
    if requests.is_retried(error.code):
        unknown = tps if error.code is codes.UNKNOWN_TOPIC_OR_PARTITION else ()
        possibly_written = tps if was_sent and error.stored is not Stored.NO else ()
        return WriteMarkersResult(reason=reason, code=error.code, unknown=frozenset(unknown), possibly_written=frozenset(possibly_written))
    if was_sent:
        return WriteMarkersResult(refused=error.code, denied=frozenset(tps))
    return WriteMarkersResult(
        refused=error.code, reason=reason, code=error.code
    )  # No leader has received the request, so none has refused it.


def _by_leader(client: SyncClient, partitions: Iterable[TopicPartition]) -> dict[Address | None, list[TopicPartition]]:
    """Partitions by their known leader; under None those without one."""
    found: dict[Address | None, list[TopicPartition]] = {}
    for tp in partitions:
        found.setdefault(client.cluster.leader_address(tp), []).append(tp)
    return found


def without_leader(client: SyncClient, tp: TopicPartition) -> ApiException:
    """Error for a partition without a known leader."""
    topic = client.cluster.topic(tp.topic)
    if topic is not None and topic.code is not codes.NONE:
        return exception_for(topic.code, message=f"{tp}: {topic.code.summary}", topic_partition=tp, api="Metadata")
    if topic is not None and topic.partitions and tp.partition not in topic.partitions:
        # The topic was recreated with fewer partitions.
        gone = codes.UNKNOWN_TOPIC_OR_PARTITION
        return exception_for(gone, message=f"{tp}: {gone.summary}", topic_partition=tp, api="Metadata")
    return exception_for(codes.LEADER_NOT_AVAILABLE, message=f"{tp} has no leader", topic_partition=tp, api="Metadata")


def _describe_producers(
    client: SyncClient, leader: Address, tps: Sequence[TopicPartition], producer_id: int, timeout_ms: int
) -> HangingTransactions:
    try:
        answer = client.request(hanging_transactions.describe_producers_request(tps), leader, timeout_ms=timeout_ms, retries=False)
    except ApiException as error:
        return _failed_search(tps, error)
    return hanging_transactions.parse_response(answer, producer_id)


def _failed_search(tps: Sequence[TopicPartition], error: ApiException) -> HangingTransactions:
    """Brokers that do not support this API, or refuse it, never answer. If the broker rejects the connection, later requests report
    that.
    """
    if requests.is_retried(error.code):
        unknown = frozenset(tps) if error.code is codes.UNKNOWN_TOPIC_OR_PARTITION else frozenset[TopicPartition]()
        return HangingTransactions(unknown=unknown, reason=" ".join(error.message.split()), code=error.code)
    return HangingTransactions(answered=frozenset(tps), refused=error.code)
