"""One file per API: `handle(state, event, now_ms, fault)` says what to do about the answer. Only this table knows them all."""

from __future__ import annotations

from collections.abc import Mapping

from chaffinch.broker.core.broker_state import BrokerState, Handler, Result
from chaffinch.broker.core.error_answers import error_answer
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.broker.core.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    api_versions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_producers,
    describe_transactions,
    end_txn,
    fetch,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_fetch,
    produce,
    txn_offset_commit,
    write_txn_markers,
)
from chaffinch.errors import codes


def _not_yet(broker: BrokerState, event: RequestReceived, now_ms: int, fault: Fault | None) -> Result:
    return error_answer(event.request, codes.COORDINATOR_NOT_AVAILABLE.number)


HANDLERS: Mapping[int, Handler] = {
    0: produce.handle,
    1: fetch.handle,
    2: list_offsets.handle,
    3: metadata.handle,
    8: offset_commit.handle,
    9: offset_fetch.handle,
    10: find_coordinator.handle,
    11: _not_yet,
    12: _not_yet,
    13: _not_yet,
    14: _not_yet,
    15: _not_yet,
    16: _not_yet,
    18: api_versions.handle,
    19: create_topics.handle,
    20: delete_topics.handle,
    22: init_producer_id.handle,
    24: add_partitions_to_txn.handle,
    25: add_offsets_to_txn.handle,
    26: end_txn.handle,
    27: write_txn_markers.handle,
    28: txn_offset_commit.handle,
    32: describe_configs.handle,
    42: _not_yet,
    44: incremental_alter_configs.handle,
    47: _not_yet,
    60: describe_cluster.handle,
    61: describe_producers.handle,
    65: describe_transactions.handle,
    66: list_transactions.handle,
    68: _not_yet,
    69: _not_yet,
}
"""By API key; exactly the APIs that `protocol/apis.py` says are served."""

PER_PARTITION_FAULTS = frozenset({0, 1})
"""APIs whose handlers answer a scripted error for the partition it is meant for, and do their work for the others."""
