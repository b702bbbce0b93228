"""Reading records of partitions as columns, without a group: from given offsets, up to given ends or for ever.

One request per leader and round, each batch's checksum checked, aborted transactions left out where only committed records are
wanted. Records become objects nowhere here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from uuid import UUID

from chaffinch.admin.many_brokers import PartitionAnswer, ask_leaders, by_topic, group_by_leader
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import CorruptRecordException, OffsetOutOfRangeException, Stored, TimeoutException, codes
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.apis import api_of
from chaffinch.protocol.messages.fetch import ISOLATION_LEVELS, FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.records.columns import RecordColumns
from chaffinch.records.errors import RecordsError
from chaffinch.records.fetched import FetchedRecords
from chaffinch.settings import Settings

RECORDS_MAX: Final = 2**31
"""More than an answer holds."""
TOPIC_RECREATED_CODES: Final = frozenset({codes.UNKNOWN_TOPIC_ID.number, codes.INCONSISTENT_TOPIC_ID.number})
"""Also said by brokers that have yet to hear of a topic: what metadata says decides."""


class RecordReader:
    """Reads partitions from `starts` to just before `ends` (None: for ever). `settings` are those of `options.READING_TABLE`.

    `positions` are the offsets after the last records handed out: what to commit once they are dealt with. Raises
    OffsetOutOfRangeException for a start that is not there (any more), CorruptRecordException for bytes that contradict themselves,
    TimeoutException when a partition gives nothing although it has not ended. A topic that was deleted and made anew meanwhile is an
    OffsetOutOfRangeException, too, and has no positions then: in the new one they would leave records out.
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
        self._topic_ids: dict[str, UUID] = {}
        self._learn_topic_ids()

    def __iter__(self) -> Iterator[tuple[TopicPartition, RecordColumns]]:
        """Records of one partition at a time, in the order of their offsets; `columns.offsets` has them."""
        read_deadline = self._client.deadline(None, "reading")
        while (open_partitions := self._open_partitions()) and self._left != 0:
            before = dict(self.positions)
            for tp, data in self._fetch(open_partitions).items():
                for columns, position in self._parts(tp, data):
                    if len(columns):
                        yield tp, columns
                    self.positions[tp] = position
                    if self._left == 0:
                        return
            if self.positions != before:
                read_deadline = self._client.deadline(None, "reading")
            elif self._ends is not None and read_deadline.is_over:
                tp = open_partitions[0]
                raise TimeoutException(
                    f"{tp} gave nothing at offset {self.positions[tp]} for {read_deadline.waited_ms} ms; it ends at {self._ends[tp]}",
                    topic_partition=tp,
                    stored=Stored.NO,
                    api="Fetch",
                )

    @property
    def topic_ids(self) -> Mapping[str, UUID]:
        """Of the topics that the positions belong to, where brokers tell ids."""
        return self._topic_ids

    def _open_partitions(self) -> list[TopicPartition]:
        if self._ends is None:
            return list(self.positions)
        return [tp for tp, position in self.positions.items() if position < self._ends[tp]]

    def _fetch(self, partitions: list[TopicPartition]) -> dict[TopicPartition, PartitionData]:
        leader_count = len(group_by_leader(self._client, partitions))
        wait_ms = self._settings["fetch.max.wait.ms"] // leader_count
        self._learn_topic_ids()
        names = {topic_id: name for name, topic_id in self._topic_ids.items()}

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
                    tp = TopicPartition(topic.topic or names[topic.topic_id], data.partition_index)
                    code = answer.error_code or data.error_code
                    self._check_position(tp, code, is_by_name=bool(topic.topic))
                    yield PartitionAnswer(tp, code, None, data)

        # By ids, where brokers tell them: by its name a topic made anew would be read on as if it were the one before.
        has_ids = all(tp.topic in self._topic_ids for tp in partitions)
        version_max = api_of(FetchRequest).reach[-1] if has_ids else None
        return ask_leaders(self._client, partitions, request_for, read, version_max=version_max)

    def _learn_topic_ids(self) -> None:
        """The ids of the topics as they are first heard of: positions belong to these."""
        for topic in {tp.topic for tp in self.positions} - self._topic_ids.keys():
            topic_id = self._client.cluster.topic_id(topic)
            if topic_id is not None and topic_id != ZERO_UUID:
                self._topic_ids[topic] = topic_id

    def _check_position(self, tp: TopicPartition, code: int, *, is_by_name: bool) -> None:
        """Raise OffsetOutOfRangeException where the answer says that the position is not, or may be that of another record."""
        if code == codes.OFFSET_OUT_OF_RANGE.number:
            text = f"offset {self.positions[tp]} is not there, or not any more"
        elif (is_by_name or code in TOPIC_RECREATED_CODES) and self._was_recreated(tp.topic):
            text = f"topic {tp.topic!r} was deleted and created anew: offset {self.positions[tp]} was one of the topic before"
            self.positions = {other: position for other, position in self.positions.items() if other.topic != tp.topic}
        else:
            return
        raise OffsetOutOfRangeException(text, topic_partition=tp, stored=Stored.NO, api="Fetch")

    def _was_recreated(self, topic: str) -> bool:
        begun_with, now = self._topic_ids.get(topic), self._client.cluster.topic_id(topic)
        return begun_with is not None and now not in (None, ZERO_UUID, begun_with)

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
        # Not that of a topic made anew: its leader does not know it by this id, and says so.
        if topic in self._topic_ids:
            found.topic_id = self._topic_ids[topic]
        return found

    def _parts(self, tp: TopicPartition, data: PartitionData) -> Iterator[tuple[RecordColumns, int]]:
        """The records of an answer in parts, each with the position after it. A part may be empty."""
        assert not isinstance(data.records, list), "records that were received are one buffer"
        end = None if self._ends is None else self._ends[tp]
        aborted = [(found.producer_id, found.first_offset) for found in data.aborted_transactions or ()]
        records = FetchedRecords(data.records or b"", self.positions[tp], aborted=aborted, checks_crc=self._settings["check.crcs"])
        try:
            while self._left != 0 and (end is None or records.position < end):
                piece = records.read(RECORDS_MAX if self._left is None else self._left)
                if piece is None:
                    break
                columns = piece.columns if end is None else piece.columns.below(end)
                if self._left is not None:
                    self._left -= len(columns)
                yield columns, records.position
        except RecordsError as error:
            raise CorruptRecordException(str(error), topic_partition=tp, stored=Stored.NO, api="Fetch") from None
        yield RecordColumns.from_lists([], [], []), records.position
