"""Workload generator: topics, good and bad records, and rows of queries, all from the world's random generator.

Every record carries a unique number in its value, which identifies it in logs and responses. Bad records are permanently bad: a null key on
a compacted topic, a timestamp hours ahead of the broker's clock, or a value above the topic's size limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chaffinch.identifiers import TopicPartition
from chaffinch.spark.snapshot import TopicSnapshot
from simulation.brokers.broker_process import TopicPlan
from simulation.programs.programs import Burst, PlannedTransaction
from simulation.queries.query import DEAD_LETTER_TOPIC, Query, Row
from simulation.records import Fault, Record, value_of
from simulation.world import World

PLAIN, COMPACTED, NARROW = "plain", "compacted", "narrow"
NARROW_BYTES: Final = 1_500
"""max.message.bytes of the topic `narrow`: batches of several records have to be split."""
SEGMENT_BYTES: Final = str(1 << 20)
"""The smallest size allowed: worlds with large values fill several segments."""
COMPACTED_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": SEGMENT_BYTES,
    "segment.ms": "60000",
    "min.cleanable.dirty.ratio": "0.2",
    "delete.retention.ms": "10000",
}
"""Timestamps vary by up to 100 s, so segments are short and compacted all the time. Markers stay longer than a reader needs."""
HOT_KEYS: Final = 6
"""Number of keys that producers share on the compacted topic; the keys of query rows are all different."""
TOPICS: Final = (
    TopicPlan(name=PLAIN, partition_count=3, config={"segment.bytes": SEGMENT_BYTES, "segment.ms": "90000"}),
    TopicPlan(name=COMPACTED, partition_count=2, config=COMPACTED_CONFIG),
    TopicPlan(name=NARROW, partition_count=1, config={"max.message.bytes": str(NARROW_BYTES)}),
    TopicPlan(name=DEAD_LETTER_TOPIC, partition_count=2),
)
COUNTED: Final = TopicPlan(name="counted", partition_count=2)
"""Output topic of the programs that consume, transform and produce; they read `TRANSFORMED`."""
TRANSFORMED: Final = (PLAIN, NARROW)
RECREATED: Final = TopicPlan(name="remade", partition_count=2)
"""Deleted and recreated while producers write to it, in some worlds."""
TRIMMED: Final = (PLAIN, NARROW)
"""Topics that lose their oldest records, in some worlds."""
TARGETS: Final = TOPICS[:3]
"""Topics that all writers use."""
FUTURE_MS: Final = 10 * 3_600_000
"""Further ahead of the broker's clock than message.timestamp.after.max.ms (one hour), for the whole life of a world."""
QUERY_TASKS: Final = 2
BAD_SHARE_OF_TABLES: Final = 0.3


class Workload:
    """Generates records and rows, a `bad_share` of them bad."""

    def __init__(self, world: World, *, bad_share: float, value_bytes_max: int) -> None:
        self._world = world
        self._bad_share = bad_share
        self._value_bytes_max = value_bytes_max
        self._count = 0

    def record(self, targets: Sequence[TopicPlan] = TARGETS, *, may_share_key: bool = True, bad_share: float | None = None) -> Record:
        """The next record, for one of the target topics. `bad_share` overrides the workload's share."""
        rng = self._world.rng
        topic = rng.choice(targets)
        fault = self._fault(topic.name) if self._world.chance(self._bad_share if bad_share is None else bad_share) else None
        number = self._count
        self._count += 1
        size_max = 300 if topic.name == NARROW else self._value_bytes_max
        size = NARROW_BYTES + 100 if fault is Fault.TOO_LARGE else rng.randint(12, size_max)
        return Record(
            number=number,
            topic_partition=TopicPartition(topic.name, rng.randrange(topic.partition_count)),
            key=self._key(topic.name, number, fault, may_share_key),
            value=value_of(number, size),
            timestamp_ms=self._world.steady_ms + (FUTURE_MS if fault is Fault.FUTURE else -rng.randint(0, 100_000)),
            fault=fault,
        )

    def record_for(self, number: int) -> Record:
        """The good record a transformer writes for the record with that number, in a partition derived from it."""
        made, self._count = self._count, self._count + 1
        return Record(
            number=made,
            topic_partition=TopicPartition(COUNTED.name, number % COUNTED.partition_count),
            key=b"%d" % number,
            value=value_of(made, 20),
            timestamp_ms=self._world.steady_ms,
        )

    def _key(self, topic: str, number: int, fault: Fault | None, may_share: bool) -> bytes | None:
        rng = self._world.rng
        if fault is Fault.NULL_KEY or (topic != COMPACTED and rng.random() < 0.3):
            return None
        if may_share and topic == COMPACTED and rng.random() < 0.7:
            return b"hot-%d" % rng.randrange(HOT_KEYS)
        return b"key-%d" % number

    def bursts(self, record_count: int, targets: Sequence[TopicPlan] = TARGETS) -> list[Burst]:
        """`record_count` records in bursts of a few, with pauses in between."""
        rng = self._world.rng
        bursts = []
        left = record_count
        while left:
            count = min(left, rng.choice((1, 3, 8, 20)))
            left -= count
            records = [self.record(targets) for _ in range(count)]
            as_table = rng.random() < 0.3
            if as_table:
                # Sorted by partition, because the records of a table are grouped before they become batches.
                records.sort(key=lambda record: record.topic_partition)
            bursts.append(Burst(records=tuple(records), as_table=as_table, pause_ms=rng.choice((0, 5, 40, 400))))
        return bursts

    def tables(self, record_count: int) -> list[Burst]:
        """`record_count` records in tables of several batches each. Most are for the compacted topic, and many have no key."""
        rng = self._world.rng
        compacted, plain = [next(topic for topic in TARGETS if topic.name == name) for name in (COMPACTED, PLAIN)]
        targets = (compacted, compacted, compacted, plain)
        bursts = []
        left = record_count
        while left:
            count = min(left, rng.randint(15, 50))
            left -= count
            records = [self.record(targets, bad_share=BAD_SHARE_OF_TABLES) for _ in range(count)]
            records.sort(key=lambda record: record.topic_partition)
            bursts.append(Burst(records=tuple(records), as_table=True, pause_ms=rng.choice((0, 40, 400))))
        return bursts

    def good_burst(self, target: TopicPlan) -> Burst:
        """One good record for each partition of a topic."""
        records = []
        for partition in range(target.partition_count):
            number = self._count
            self._count += 1
            tp = TopicPartition(target.name, partition)
            value = value_of(number, 20)
            records.append(
                Record(number=number, topic_partition=tp, key=b"%d" % number, value=value, timestamp_ms=self._world.steady_ms, fault=None)
            )
        return Burst(records=tuple(records), as_table=False, pause_ms=0)

    def transactions(self, record_count: int, targets: Sequence[TopicPlan] = TARGETS) -> list[PlannedTransaction]:
        """`record_count` records in transactions of a few bursts each; one in ten has no records."""
        rng = self._world.rng
        planned = []
        left = record_count
        while left:
            count = 0 if rng.random() < 0.1 else min(left, rng.randint(1, 30))
            left -= count
            planned.append(
                PlannedTransaction(bursts=tuple(self.bursts(count, targets)), commits=rng.random() < 0.8, sends_offsets=rng.random() < 0.3)
            )
        return planned

    def _fault(self, topic: str) -> Fault:
        possible = [Fault.FUTURE]
        if topic == COMPACTED:
            possible.append(Fault.NULL_KEY)
        if topic == NARROW:
            possible.append(Fault.TOO_LARGE)
        return self._world.rng.choice(possible)

    def query(
        self, name: str, row_count: int, *, batch_count: int, is_stream: bool, may_be_empty: bool, has_checkpoint: bool, has_handler: bool
    ) -> Query:
        """A query with `row_count` rows over batches and tasks, where one batch may be empty; or a batch write with a token."""
        rng = self._world.rng
        tasks: list[list[list[Row]]] = [[[] for _ in range(QUERY_TASKS)] for _ in range(batch_count)]
        empty = rng.randrange(2 * batch_count)
        slots = sorted((rng.randrange(batch_count), rng.randrange(QUERY_TASKS)) for _ in range(row_count))
        for batch, task in slots:
            if batch != empty or not may_be_empty:
                tasks[batch][task].append(self._row())
        return Query(
            name=name,
            batches=tasks,
            marker_partition=TopicPartition(PLAIN, 0),
            dead_letter_target=TopicSnapshot(topic=DEAD_LETTER_TOPIC, topic_id=bytes(16), partition_count=TOPICS[-1].partition_count),
            record_count_max=rng.choice((1, 4, 10, 10)),
            is_stream=is_stream,
            has_checkpoint=has_checkpoint and is_stream,
            has_handler=has_handler,
        )

    def _row(self) -> Row:
        record = self.record(may_share_key=False)
        return Row(
            number=record.number,
            topic_partition=record.topic_partition,
            key=record.key,
            value=record.value,
            timestamp_ms=record.timestamp_ms,
            is_bad=record.fault is not None,
        )
