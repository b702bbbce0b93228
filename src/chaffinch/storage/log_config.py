"""Log configuration of a partition. The broker makes it from validated topic and broker options (`broker/core/topics/topic_options.py`)."""

from dataclasses import dataclass, field

from chaffinch.storage.offset_index import SPAN_MAX

NEVER = 2**63 - 1
"""A time (ms) or number that is never reached, as in Kafka's defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Sizes in bytes, times in ms; -1 for no limit where stated. Fields are named after the topic options where there is one.

    segment_bytes: a segment that would grow beyond it is sealed (a larger single batch gets its own segment).
    segment_ms: difference of timestamps at which a new segment begins; a random part of `segment_jitter_ms` is subtracted.
    index_interval_bytes: bytes between two index entries.
    retention_ms, retention_bytes: age and size beyond which sealed segments are deleted, -1 for no limit; only while `deletes`.
    deletes, compacts: `cleanup.policy`.
    delete_retention_ms: how long compaction keeps tombstones and transaction markers.
    compaction_lag_min_ms, compaction_lag_max_ms: minimum and maximum time for which records stay uncompacted.
    dirty_ratio_min: `min.cleanable.dirty.ratio`.
    flush_policy: `always`: the caller of `append` syncs before a response; `os`: the system decides.
    checkpoint_bytes: maximum number of bytes reread after a SIGKILL.
    verify_bytes_max: intact bytes whose CRCs are checked when the log is opened, from the end backwards.
    decompressed_bytes_max: `max.decompressed.bytes`, largest decompressed size of a batch.
    roll_ms: `segment_ms`, or less if a compacted log must roll for `compaction_lag_max_ms` (Kafka's `maxSegmentMs`).
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = NEVER
    segment_jitter_ms: int = 0
    index_interval_bytes: int = 4096
    retention_ms: int = -1
    retention_bytes: int = -1
    deletes: bool = True
    compacts: bool = False
    delete_retention_ms: int = 86_400_000
    compaction_lag_min_ms: int = 0
    compaction_lag_max_ms: int = NEVER
    dirty_ratio_min: float = 0.5
    checkpoint_bytes: int = 64 << 20
    verify_bytes_max: int = 16 << 20
    decompressed_bytes_max: int = 128 << 20
    roll_ms: int = field(init=False)

    def __post_init__(self) -> None:
        if not 0 < self.segment_bytes <= SPAN_MAX:
            raise ValueError(f"segment_bytes is {self.segment_bytes}, allowed: 1 to {SPAN_MAX}")
        roll_ms = min(self.segment_ms, self.compaction_lag_max_ms) if self.compacts else self.segment_ms
        object.__setattr__(self, "roll_ms", roll_ms)
