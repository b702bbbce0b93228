"""Control batches: transaction markers (KIP-98, Kafka's `EndTransactionMarker`), and which batches they hide.

A marker is one uncompressed record. Key: version i16 0, type i16 (0 ABORT, 1 COMMIT). Value: version i16 0, coordinator epoch i32. Readers
accept newer versions and longer keys and values.

Reading committed records follows Kafka's consumer (CompletedFetch). The fetch response lists aborted transactions by producer and first
offset. Before each batch, those that begin at or before its last offset become active. An abort marker of the producer ends its
transaction. Transactional batches of a producer with an active one are skipped, and so are all control batches.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from struct import Struct

from chaffinch.identifiers import ProducerIdentity
from chaffinch.records.batch_header import ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, BatchView
from chaffinch.records.errors import CorruptBatch, Fault
from chaffinch.records.few_records import encode_few, plain_records

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_VERSION = 0
_COMMIT_BY_TYPE = {0: False, 1: True}
_TYPE_BY_COMMIT = {is_commit: number for number, is_commit in _COMMIT_BY_TYPE.items()}
# Control records have a few dozen bytes; a larger payload is invalid.
_DECOMPRESSED_BYTES_MAX = 1 << 16


def encode_control_batch(
    is_commit: bool, identity: ProducerIdentity, coordinator_epoch: int, timestamp_ms: int, base_offset: int = 0
) -> bytearray:
    """The marker that commits or aborts the transaction of `identity`: 78 bytes."""
    key, value = _KEY.pack(_VERSION, _TYPE_BY_COMMIT[is_commit]), _VALUE.pack(_VERSION, coordinator_epoch)
    attributes = ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL
    return encode_few([key], [value], [timestamp_ms], attributes=attributes, identity=identity, base_offset=base_offset)


def read_control(view: BatchView) -> tuple[bool | None, int]:
    """Whether a control batch commits, and the coordinator's epoch; None and -1 for a type other than abort and commit.

    Batches of such types must be skipped, as Kafka's consumer does. Raises CorruptBatch (CONTROL_RECORD) if this is not a control batch.
    """
    records = plain_records(view, decompressed_bytes_max=_DECOMPRESSED_BYTES_MAX)
    if not view.header.is_control or len(records) != 1:
        raise CorruptBatch(Fault.CONTROL_RECORD, detail=f"{len(records)} records, control bit {int(view.header.is_control)}")
    _, key, value = records[0]
    key, value = key or b"", value or b""
    if len(key) < _KEY.size:
        raise CorruptBatch(Fault.CONTROL_RECORD, 0, detail=f"key of {len(key)} bytes")
    is_commit = _COMMIT_BY_TYPE.get(_KEY.unpack_from(key)[1])
    if is_commit is None:
        return None, -1
    if len(value) < _VALUE.size:
        raise CorruptBatch(Fault.CONTROL_RECORD, 0, detail=f"value of {len(value)} bytes")
    return is_commit, _VALUE.unpack_from(value)[1]


def committed(views: Iterable[BatchView], aborted: Iterable[tuple[int, int]]) -> Iterator[tuple[BatchView, bool]]:
    """Each batch, in order, and whether its records are visible. `aborted`: (producer id, first offset), any order."""
    pending = [(first_offset, producer_id) for producer_id, first_offset in aborted]
    heapq.heapify(pending)
    active: set[int] = set()
    for view in views:
        header = view.header
        while pending and pending[0][0] <= header.last_offset:
            active.add(heapq.heappop(pending)[1])
        if header.is_control:
            is_commit, _ = read_control(view)
            if is_commit is False:
                active.discard(header.producer_id)
            yield view, False
        else:
            yield view, not (header.is_transactional and header.producer_id in active)
