"""BrokerTopicStats counters: writes, reads and refusals, per topic and in total (KIP-467 point 4).

Names are those of the KIP and of Apache Kafka; values are totals since the broker started, not rates. A record rule counts one per culprit,
a batch rule one per batch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from types import MappingProxyType

ALL_TOPICS = ""
"""Key of the totals of all topics in `Counters.snapshot`."""

HELP: Mapping[str, str] = MappingProxyType(
    {
        "MessagesInPerSec": "records stored",
        "BytesInPerSec": "bytes of batches stored",
        "BytesOutPerSec": "bytes of batches returned to fetches",
        "BytesRejectedPerSec": "bytes of batches refused as too large",
        "TotalProduceRequestsPerSec": "partitions in Produce requests",
        "TotalFetchRequestsPerSec": "partitions in Fetch requests",
        "FailedProduceRequestsPerSec": (
            "partitions that refused a batch; as in Apache Kafka not for an unknown topic or partition, another leader, a batch too"
            " large or damaged, or a disk that fails"
        ),
        "StorageErrorsPerSec": "partitions that could not store a batch because the disk failed or is full; specific to Chaffinch",
        "FailedFetchRequestsPerSec": "partitions that could not be read",
        "NoKeyCompactedTopicRecordsPerSec": "records without a key for a compacted topic",
        "InvalidMagicNumberRecordsPerSec": "batches or records of a format other than the announced one",
        "InvalidMessageCrcRecordsPerSec": "batches, and messages of formats 0 and 1, whose checksum does not match their bytes",
        "NonIncreasingOffsetRecordsPerSec": (
            "records with a wrong inner offset, batches with wrong counts; Apache Kafka calls it InvalidOffsetOrSequenceRecordsPerSec"
        ),
        "InvalidTimestampRecordsPerSec": "records whose timestamp is out of range",
        "TooLargeBatchesPerSec": "batches, and messages of formats 0 and 1, beyond max.message.bytes",
        "OutOfOrderSequenceBatchesPerSec": "batches whose producer epoch or sequence does not fit",
        "DuplicateBatchesPerSec": "duplicates of stored batches, answered with the stored offsets",
    }
)
"""Every counter with its description, for the documentation and the metrics."""


class Counters:
    """Counts per topic. Not thread-safe: the core's thread counts and takes snapshots."""

    def __init__(self) -> None:
        self._by_topic: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._gone: Counter[str] = Counter()  # Counts of deleted topics.

    def add(self, topic: str, name: str, count: int = 1) -> None:
        """Add to one counter of a topic. An unknown name is a programming error."""
        assert name in HELP, f"unknown counter {name!r}"
        self._by_topic[topic][name] += count

    def add_stored(self, topic: str, records: int, size: int) -> None:
        """Count a stored batch: the common counters together."""
        counters = self._by_topic[topic]
        counters["TotalProduceRequestsPerSec"] += 1
        counters["MessagesInPerSec"] += records
        counters["BytesInPerSec"] += size

    def add_read(self, topic: str, size: int) -> None:
        """Count a read of a partition with this many bytes of records."""
        counters = self._by_topic[topic]
        counters["TotalFetchRequestsPerSec"] += 1
        if size:
            counters["BytesOutPerSec"] += size

    def total(self, name: str, topic: str = ALL_TOPICS) -> int:
        """The value of one counter, of one topic or of all."""
        if topic != ALL_TOPICS:
            return self._by_topic[topic][name] if topic in self._by_topic else 0
        return self._gone[name] + sum(counters[name] for counters in self._by_topic.values() if name in counters)

    def forget(self, topic: str) -> None:
        """Remove a deleted topic's counters; the totals keep its counts."""
        self._gone.update(self._by_topic.pop(topic, {}))

    def counted(self) -> Mapping[str, Mapping[str, int]]:
        """Totals by topic and name, only of counters in use. Read-only."""
        return self._by_topic

    def snapshot(self) -> dict[str, dict[str, int]]:
        """Totals by topic and name; the sums are under ALL_TOPICS. Unused counters are 0."""
        result = {topic: {name: counters.get(name, 0) for name in HELP} for topic, counters in self._by_topic.items()}
        result[ALL_TOPICS] = {name: self._gone[name] + sum(counters[name] for counters in result.values()) for name in HELP}
        return result
