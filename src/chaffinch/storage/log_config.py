"""What a partition's log needs to know of its topic's and broker's configuration."""

from dataclasses import dataclass
from typing import Literal

from chaffinch.storage.offset_index import SPAN_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Sizes in bytes.

    segment_bytes: `segment.bytes`, a segment that would grow beyond it is sealed (a single larger batch gets a segment of its own).
    index_interval_bytes: `index.interval.bytes`, distance of two index entries.
    flush_policy: whether the log is synced before an answer (`always`, by the caller of `append`) or when the system likes (`os`).
    checkpoint_bytes: so much is read again at most after a SIGKILL.
    verify_bytes_max: so much of what should be intact has its CRCs checked when the log is opened, from the end backwards.
    """

    segment_bytes: int = 1 << 30
    index_interval_bytes: int = 4096
    flush_policy: Literal["os", "always"] = "os"
    checkpoint_bytes: int = 64 << 20
    verify_bytes_max: int = 16 << 20

    def __post_init__(self) -> None:
        if not 0 < self.segment_bytes <= SPAN_MAX:
            raise ValueError(f"segment_bytes is {self.segment_bytes}, allowed: 1 to {SPAN_MAX}")
