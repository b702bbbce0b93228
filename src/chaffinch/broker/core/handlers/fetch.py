"""Fetch: returns record batches, immediately or when enough of them are available (`min_bytes`, `max_wait_ms`).

A request names its partitions or continues a fetch session (`fetch/sessions.py`). Topics are identified by name up to version 12, and by
id from version 13 on.
"""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, DelayedResponse, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.broker.core.fetch import partition_reads
from chaffinch.broker.core.fetch.partition_reads import DelayedFetch, FetchTerms, ReadResult
from chaffinch.broker.core.fetch.sessions import FetchContext
from chaffinch.broker.core.replicas.leader_epochs import DEBUGGING_REPLICA
from chaffinch.errors.codes import ErrorCode
from chaffinch.protocol.messages.fetch import READ_COMMITTED, FetchRequest, FetchResponse
from chaffinch.protocol.messages.produce import NodeEndpoint
from chaffinch.storage.file_system import StorageError

VERSION_WITH_FOLLOWERS = 11
"""Consumers that use this version may read from followers (KIP-392)."""
WAIT_MS_MAX = 600_000
"""Longest wait for records, whatever the request says: connections idle for longer are closed."""

UNREADABLE_WAITING_MAX = 1_000
"""A request that names more nonexistent partitions than this is not delayed: while it waits, each of them takes some 300 bytes, and the
number of connections is not limited. Partitions of fetch sessions have their own limit."""


def handle(broker: BrokerState, event: RequestReceived, request: FetchRequest, steady_ms: int, fault: Fault | None = None) -> Result:
    context = broker.fetch_sessions.begin(request, event.request.version, broker.topics, steady_ms)
    if isinstance(context, ErrorCode):
        return FetchResponse(error_code=context.number)
    bytes_max = min(max(request.max_bytes, 0), broker.settings["fetch.max.bytes"])
    terms = _terms(event, request, fault, min(bytes_max, broker.records_max()))
    first = partition_reads.read(broker, terms, context.positions)
    is_bounded = context.session is not None or len(context.positions) - len(first.readable) <= UNREADABLE_WAITING_MAX
    if request.max_wait_ms <= 0 or first.is_enough(terms) or not is_bounded:
        return _answer(broker, context, first, steady_ms)
    try:
        awaited = DelayedFetch(broker, terms, first)
    except StorageError:
        return _answer(broker, context, first, steady_ms)

    def answer(steady_ms: int, is_last: bool) -> FetchResponse | None:
        if not is_last and not awaited.is_enough():
            return None
        terms.bytes_max = min(bytes_max, broker.records_max())  # Other clients may have large unread responses by now.
        return _answer(broker, context, partition_reads.read(broker, terms, context.positions), steady_ms)

    request.topics = []  # The context holds the relevant partitions; the rest, up to a million duplicates, would stay in memory too.
    return DelayedResponse(deadline_ms=steady_ms + min(request.max_wait_ms, WAIT_MS_MAX), keys=awaited.keys, answer=answer)


def _terms(event: RequestReceived, request: FetchRequest, fault: Fault | None, bytes_max: int) -> FetchTerms:
    replica_id = request.replica_id if request.replica_state is None else request.replica_state.replica_id
    return FetchTerms(
        version=event.request.version,
        node_id=event.node_id,
        is_follower=replica_id >= 0,
        allows_follower=replica_id == DEBUGGING_REPLICA or event.request.version >= VERSION_WITH_FOLLOWERS,
        is_committed=request.isolation_level == READ_COMMITTED,
        bytes_min=min(request.min_bytes, bytes_max),
        bytes_max=bytes_max,
        fault=fault,
    )


def _answer(broker: BrokerState, context: FetchContext, read: ReadResult, steady_ms: int) -> FetchResponse:
    partition_reads.count(broker, context.positions, read.partition_data)
    response = broker.fetch_sessions.conclude(context, read.partition_data, steady_ms)
    leaders = {data.current_leader.leader_id for data in read.partition_data if data is not None and data.current_leader is not None}
    if leaders:
        nodes = (broker.nodes.by_id(leader) for leader in sorted(leaders))
        response.node_endpoints = [NodeEndpoint(node_id=node.id, host=node.host, port=node.port) for node in nodes if node is not None]
    return response
