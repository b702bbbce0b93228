"""The batches that batches.txt holds: name -> rows (key, value, timestamp, headers) and what stands in the header."""

from __future__ import annotations

from dataclasses import dataclass, field

from chaffinch.identifiers import NO_PRODUCER, ProducerIdentity

Row = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]


@dataclass(frozen=True)
class Sample:
    rows: list[Row] = field(default_factory=list)
    codec: int = 0
    identity: ProducerIdentity = NO_PRODUCER
    base_sequence: int = -1
    is_transactional: bool = False


NOW_MS = 1_700_000_000_000
SAMPLES = {
    "one-value": Sample([(None, b"value", NOW_MS, [])]),
    "key-and-value": Sample([(b"key", b"value", NOW_MS, [])]),
    "nulls-and-empties": Sample([(None, None, 0, []), (b"", b"", 0, []), (b"k", None, 0, []), (None, b"v", 0, [])]),
    "headers": Sample([(b"k", b"v", NOW_MS, [("h", b"1"), ("", None), ("ü", b"")]), (b"k", b"v", NOW_MS, [])]),
    "timestamps-out-of-order": Sample([(None, b"v", NOW_MS + delta, []) for delta in (0, -1, 63, 64, -64, -65, 2**40)]),
    "lengths-of-one-and-two-bytes": Sample([(b"k" * size, b"v" * size, NOW_MS, []) for size in (63, 64, 200)]),
    "many-offsets": Sample([(None, b"%d" % index, NOW_MS, []) for index in range(70)]),
    "idempotent": Sample([(b"k", b"v", NOW_MS, [])] * 2, identity=ProducerIdentity(4711, 3), base_sequence=2**31 - 1),
    "transactional": Sample([(b"k", b"v", NOW_MS, [])], 0, ProducerIdentity(2**62, 2**15 - 1), 0, True),
    "gzip": Sample([(b"k", b"value" * 20, NOW_MS, [])] * 3, codec=1),
    "snappy": Sample([(b"k", b"value" * 20, NOW_MS, [])] * 3, codec=2),
    "lz4": Sample([(b"k", b"value" * 20, NOW_MS, [])] * 3, codec=3),
    "zstd": Sample([(b"k", b"value" * 20, NOW_MS, [])] * 3, codec=4),
}
