"""One file per API: `handle(state, event, now_ms, fault)` says what to do about the answer. Only this table knows them all."""

from __future__ import annotations

from collections.abc import Mapping

from chaffinch.broker.core.broker_state import Handler
from chaffinch.broker.core.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_topics,
    delete_groups,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_producers,
    describe_transactions,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    produce,
    sync_group,
    txn_offset_commit,
    write_txn_markers,
)

HANDLERS: Mapping[int, Handler] = {
    0: produce.handle,
    1: fetch.handle,
    2: list_offsets.handle,
    3: metadata.handle,
    8: offset_commit.handle,
    9: offset_fetch.handle,
    10: find_coordinator.handle,
    11: join_group.handle,
    12: heartbeat.handle,
    13: leave_group.handle,
    14: sync_group.handle,
    15: describe_groups.handle,
    16: list_groups.handle,
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
    42: delete_groups.handle,
    44: incremental_alter_configs.handle,
    47: offset_delete.handle,
    60: describe_cluster.handle,
    61: describe_producers.handle,
    65: describe_transactions.handle,
    66: list_transactions.handle,
    68: consumer_group_heartbeat.handle,
    69: consumer_group_describe.handle,
}
"""By API key; exactly the APIs that `protocol/apis.py` says are served."""

PER_PARTITION_FAULTS = frozenset({0, 1})
"""APIs whose handlers answer a scripted error for the partition it is meant for, and do their work for the others."""
