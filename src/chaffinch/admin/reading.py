"""Reading records of partitions as columns, without a group: from given offsets, up to given ends or for ever.

One request per leader and round, each batch's checksum checked, aborted transactions left out where only committed records are
wanted. Records become objects nowhere here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from chaffinch.admin.by_leader import PartitionAnswer, ask_leaders, by_topic, group_by_leader
from chaffinch.admin.offsets import ISOLATION_LEVELS
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import CorruptRecordException, OffsetOutOfRangeException, Stored, TimeoutException
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from chaffinch.records import batch as batches
from chaffinch.records.columns import RecordColumns
from chaffinch.records.committed_batches import committed
from chaffinch.records.faults import CorruptBatch, Fault, RecordsError
from chaffinch.settings import Settings

# Small batches are handed out together up to so many bytes, and no further: what compressed batches become is not known before.
PART_BYTES: Final = 16 << 20


class RecordReader:
    """Reads partitions from `starts` to just before `ends` (None: for ever). `settings` are those of `options.READING_TABLE`.

    `positions` are the offsets after the last records handed out: what to commit once they are dealt with. Raises
    OffsetOutOfRangeException for a start that is not there (any more), CorruptRecordException for bytes that contradict themselves,
    TimeoutException when a partition gives nothing although it has not ended.
    """

    def __init__(
        self,
        client: SyncClient,
        starts: Mapping[TopicPartition, int],
        *,
        ends: Mapping[TopicPartition, int] | None,
        settings: Settings,
        records_max: int | None = None,
    ) -> None:
        self.positions = dict(starts)
        self._client = client
        self._ends = ends
        self._settings = settings
        self._left = records_max

    def __iter__(self) -> Iterator[tuple[TopicPartition, RecordColumns]]:
        """Records of one partition at a time, in the order of their offsets; `columns.offsets` has them."""
        patience = self._client.deadline(None, "reading")
        while (open_partitions := self._open_partitions()) and self._left != 0:
            before = dict(self.positions)
            for place, data in self._fetch(open_partitions).items():
                for columns, position in self._parts(place, data):
                    if len(columns):
                        yield place, columns
                    self.positions[place] = position
                    if self._left == 0:
                        return
            if self.positions != before:
                patience = self._client.deadline(None, "reading")
            elif self._ends is not None and patience.is_over:
                place = open_partitions[0]
                raise TimeoutException(
                    f"{place} gave nothing at offset {self.positions[place]} for {patience.waited_ms} ms; it ends at {self._ends[place]}",
                    topic_partition=place,
                    stored=Stored.NO,
                    api="Fetch",
                )

    def _open_partitions(self) -> list[TopicPartition]:
        if self._ends is None:
            return list(self.positions)
        return [place for place, position in self.positions.items() if position < self._ends[place]]

    def _fetch(self, partitions: list[TopicPartition]) -> dict[TopicPartition, PartitionData]:
        leader_count = len(group_by_leader(self._client, partitions))
        wait_ms = self._settings["fetch.max.wait.ms"] // leader_count
        names = {self._client.cluster.topic_id(place.topic): place.topic for place in partitions}

        def request_for(asked: list[TopicPartition]) -> FetchRequest:
            return FetchRequest(
                max_wait_ms=wait_ms,
                min_bytes=1,
                max_bytes=self._settings["fetch.max.bytes"],
                isolation_level=ISOLATION_LEVELS[self._settings["isolation.level"]],
                topics=[self._fetch_topic(topic, numbers) for topic, numbers in by_topic(asked).items()],
            )

        def read(answer: FetchResponse) -> Iterator[PartitionAnswer]:
            for topic in answer.responses:
                for data in topic.partitions:
                    place = TopicPartition(topic.topic or names[topic.topic_id], data.partition_index)
                    yield PartitionAnswer(place, answer.error_code or data.error_code, None, data)

        try:
            return ask_leaders(self._client, partitions, request_for, read)
        except OffsetOutOfRangeException as error:
            place = error.topic_partition
            text = f"offset {self.positions[place]} is not there, or not any more" if place is not None else error.message
            raise OffsetOutOfRangeException(text, topic_partition=place, stored=Stored.NO, api="Fetch") from None

    def _fetch_topic(self, topic: str, numbers: list[int]) -> FetchTopic:
        partitions = [
            FetchPartition(
                partition=number,
                fetch_offset=self.positions[TopicPartition(topic, number)],
                partition_max_bytes=self._settings["max.partition.fetch.bytes"],
            )
            for number in numbers
        ]
        found = FetchTopic(topic=topic, partitions=partitions)
        topic_id = self._client.cluster.topic_id(topic)
        if topic_id is not None:
            found.topic_id = topic_id
        return found

    def _parts(self, place: TopicPartition, data: PartitionData) -> Iterator[tuple[RecordColumns, int]]:
        """The records of an answer in parts of about `PART_BYTES`, each with the position after it. A part may be empty."""
        assert not isinstance(data.records, list), "records that were received are one buffer"
        end = None if self._ends is None else self._ends[place]
        position, waiting, waiting_bytes = self.positions[place], list[RecordColumns](), 0
        aborted = [(found.producer_id, found.first_offset) for found in data.aborted_transactions or ()]
        try:
            for view, is_visible in committed(batches.views(data.records or b"", may_be_cut_short=True), aborted):
                header = view.header
                if header.last_offset < position:
                    continue
                if (end is not None and header.base_offset >= end) or self._left == 0:
                    break
                position_next = header.last_offset + 1
                if is_visible:
                    columns = self._limited(_within(_decoded(view, self._settings["check.crcs"]), position, end))
                    waiting.append(columns)
                    waiting_bytes += len(columns.value_data) + len(columns.key_data)
                    if self._left == 0 and columns.offsets is not None and len(columns):
                        position_next = int(columns.offsets[-1]) + 1
                position = position_next
                if waiting_bytes >= PART_BYTES:
                    yield RecordColumns.concat(waiting), position
                    waiting, waiting_bytes = [], 0
        except RecordsError as error:
            raise CorruptRecordException(str(error), topic_partition=place, stored=Stored.NO, api="Fetch") from None
        yield RecordColumns.concat(waiting) if waiting else RecordColumns.from_lists([], [], []), position

    def _limited(self, columns: RecordColumns) -> RecordColumns:
        """As many of the records as are still wanted."""
        if self._left is None:
            return columns
        kept = columns.slice(0, self._left)
        self._left -= len(kept)
        return kept


def _decoded(view: batches.BatchView, checks_crc: bool) -> RecordColumns:
    if checks_crc and not view.crc_is_valid():
        text = f"the checksum of the batch at offset {view.header.base_offset} does not match its bytes"
        raise CorruptBatch(Fault.PAYLOAD, detail=text)
    return batches.decode(view)


def _within(columns: RecordColumns, start: int, end: int | None) -> RecordColumns:
    """The records whose offsets lie in start to end-1."""
    assert columns.offsets is not None, "decoded records have offsets"
    first = int(np.searchsorted(columns.offsets, start))
    last = len(columns) if end is None else int(np.searchsorted(columns.offsets, end))
    return columns if (first, last) == (0, len(columns)) else columns.slice(first, last)
