"""The marker: an offset commit in Kafka that names the last committed batch of a query (decision 37).

It is committed in its own consumer group, in the same transaction as the rows. Its metadata names the batch, the writer, and the digest of
the checkpoint's record of the batch. `verdict.py` compares the marker, and the state in `<checkpoint>/chaffinch/`, with the batch to be
committed. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final, Literal

from chaffinch.identifiers import TopicPartition
from chaffinch.spark.commit.messages import BatchCounts
from chaffinch.spark.topic_ids import PartitionCounts, TopicIds, created_again, parsed, shown
from chaffinch.spark.versions import check_format

MARKER_VERSION: Final = 1
STATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The last committed batch of a query. `digest` is empty if the sink does not know the checkpoint's location."""

    batch_id: int
    writer_id: str
    digest: str = ""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Rows of a batch write that the user's handler dropped, by error name: a replay has no other source for them. Earlier versions ignore
    this field."""

    def to_text(self) -> str:
        """The metadata of the offset commit; Kafka allows 4096 bytes, this takes about 130."""
        fields: dict[str, Any] = {"batch": self.batch_id, "writer": self.writer_id, "digest": self.digest}
        return json.dumps(fields | ({"dropped": dict(self.dropped)} if self.dropped else {}), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Marker:
        """Raises NewerFormat, and ValueError for metadata that is not a marker. A later format has a field `version`; this one has none."""
        fields = json.loads(text)
        if isinstance(fields, dict):
            check_format(fields, MARKER_VERSION)
        if not isinstance(fields, dict) or not isinstance(fields.get("batch"), int):
            raise ValueError(f"no marker: {text[:100]!r}")
        dropped = {str(name): int(count) for name, count in dict(fields.get("dropped", {})).items()}
        return cls(
            batch_id=fields["batch"], writer_id=str(fields.get("writer", "")), digest=str(fields.get("digest", "")), dropped=dropped
        )  # fmt: skip


Phase = Literal["ending", "written", "empty"]
"""How far the commit of a batch is. Stored as `stage`, which has nothing to do with staging."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """The newest batch in the state of `<checkpoint>/chaffinch/`. `ending`: written before EndTxn is sent; the outcome is not recorded."""

    batch_id: int
    phase: Phase
    digest: str
    noted_ms: int
    marker: str = ""
    """The partition of the marker."""
    counts: BatchCounts | None = None
    """Counts of the batch; None before it is finished, and from versions that recorded none."""
    is_without_marker: bool = False
    """Its rows were sent by tasks: a marker in Kafka, if any, belongs to an older batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """The newest batch whose commit Kafka has acknowledged, with its marker on the partition `marker`."""

    batch_id: int
    marker: str


STATE_FILE: Final = "state.json"
"""Name of the file in the sink's folder of a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """The state in a checkpoint: the transactional id, fixed at the first batch (decision 38), the newest batch, and its topics."""

    transactional_id: str | None = None
    remembered: Remembered | None = None
    totals: BatchCounts | None = None
    """Sums over all batches. A batch whose commit died between EndTxn and its record is missing: for people only, never for decisions."""
    written_to: tuple[TopicPartition, ...] | None = None
    """Partitions of the newest transaction that was to be committed, where its completion is checked. None: not recorded."""
    topic_ids: TopicIds = field(default_factory=dict)
    """Id of each topic that was written to, and of the marker's topic, at that time."""
    partition_counts: PartitionCounts = field(default_factory=dict)
    """Partition counts of the topics that rows were written to. Versions without this field ignore it, and drop it."""
    sink: str = ""
    """Name of the sink that this state belongs to; empty for the query's own sink. For people only."""
    acknowledged: Acknowledged | None = None
    """Set if the newest batch is not the acknowledged one: it is empty, was sent by tasks, or is about to end."""

    def with_newest(self, remembered: Remembered) -> CheckpointState:
        """A copy with another newest batch, which keeps the last acknowledged one."""
        return replace(self, remembered=remembered, acknowledged=None if _is_acknowledged(remembered) else self.newest_acknowledged())

    def newest_acknowledged(self) -> Acknowledged | None:
        """The batch whose marker, or a newer one, must be in Kafka until the offset retention removes it."""
        newest = self.remembered
        if newest is not None and _is_acknowledged(newest):
            return Acknowledged(batch_id=newest.batch_id, marker=newest.marker)
        return self.acknowledged

    def with_topics(self, topics: Iterable[str], ids: TopicIds, counts: PartitionCounts, *, marker_topic: str = "") -> CheckpointState:
        """A copy with current ids and counts of these topics, which rows are written to, and of `marker_topic`. Others stay unchanged."""
        used = {*topics, marker_topic}
        with_rows = used if marker_topic in self.partition_counts else {*topics}
        return replace(
            self,
            topic_ids={**self.topic_ids, **{topic: ids[topic] for topic in used & ids.keys()}},
            partition_counts={**self.partition_counts, **{topic: counts[topic] for topic in with_rows & counts.keys()}},
        )

    def still_existing(self, ids: TopicIds) -> tuple[TopicPartition, ...] | None:
        """`written_to` without topics that have since been recreated. `ids`: the current topic ids."""
        recreated = created_again(self.topic_ids, ids)
        return self.written_to and tuple(where for where in self.written_to if where.topic not in recreated)

    def to_text(self) -> str:
        newest = self.remembered
        return json.dumps({
            "version": STATE_VERSION,
            "sink": self.sink,
            "transactional.id": self.transactional_id,
            "batch": None if newest is None else {
                "id": newest.batch_id, "stage": newest.phase, "digest": newest.digest, "noted_ms": newest.noted_ms,
                "marker": newest.marker, "counts": None if newest.counts is None else newest.counts.to_fields(),
                "without_marker": newest.is_without_marker,
            },
            "totals": None if self.totals is None else self.totals.to_fields(),
            "written_to": None if self.written_to is None else {
                topic: " ".join(str(tp.partition) for tp in tps)
                for topic, tps in groupby(sorted(self.written_to), lambda tp: tp.topic)
            },
            "topic_ids": {topic: shown(topic_id) for topic, topic_id in sorted(self.topic_ids.items())},
            "partition_counts": dict(sorted(self.partition_counts.items())),
            "acknowledged": None if self.acknowledged is None else {
                "id": self.acknowledged.batch_id, "marker": self.acknowledged.marker,
            },
        }, indent=1)  # fmt: skip

    @classmethod
    def from_text(cls, text: str) -> CheckpointState:
        """Raises NewerFormat, and ValueError for text that `to_text` has not written."""
        fields = json.loads(text)
        if isinstance(fields, dict):
            check_format(fields, STATE_VERSION)
        if not isinstance(fields, dict) or fields.get("version") != STATE_VERSION:
            raise ValueError("not the state of this version of Chaffinch")
        batch = fields.get("batch")
        remembered = None
        if batch is not None:
            remembered = Remembered(
                batch_id=int(batch["id"]), phase=batch["stage"], digest=str(batch["digest"]), noted_ms=int(batch["noted_ms"]),
                marker=str(batch.get("marker", "")), counts=_counts(batch.get("counts")),
                is_without_marker=bool(batch.get("without_marker", False)),
            )  # fmt: skip
        return cls(
            transactional_id=fields.get("transactional.id"), remembered=remembered, totals=_counts(fields.get("totals")),
            written_to=_topic_partitions(fields.get("written_to")), acknowledged=_acknowledged(fields.get("acknowledged")),
            sink=str(fields.get("sink", "")), topic_ids={topic: parsed(text) for topic, text in fields.get("topic_ids", {}).items()},
            partition_counts={topic: int(count) for topic, count in fields.get("partition_counts", {}).items()},
        )  # fmt: skip


def _topic_partitions(fields: Any) -> tuple[TopicPartition, ...] | None:
    if fields is None:
        return None
    return tuple(TopicPartition(topic, int(number)) for topic, numbers in fields.items() for number in numbers.split())


def _is_acknowledged(batch: Remembered) -> bool:
    return batch.phase == "written" and not batch.is_without_marker


def _acknowledged(fields: Any) -> Acknowledged | None:
    return None if fields is None else Acknowledged(batch_id=int(fields["id"]), marker=str(fields["marker"]))


def _counts(fields: Any) -> BatchCounts | None:
    return None if fields is None else BatchCounts.from_fields(fields)
