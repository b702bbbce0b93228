"""Record reader: reads partitions as columns, without a group, from given offsets up to given ends, or forever.

One Fetch per leader and round. The checksum of each batch is verified, and records of aborted transactions are skipped with
`read_committed`. No objects are made for single records.
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
"""More records than a response can contain."""
TOPIC_RECREATED_CODES: Final = frozenset({codes.UNKNOWN_TOPIC_ID.number, codes.INCONSISTENT_TOPIC_ID.number})
"""Also returned by brokers that do not know a new topic yet, so metadata decides."""


class RecordReader:
    """Iterator over records of partitions, from `starts` to just before `ends`.

    `positions` are the offsets after the last returned records: commit them after the records are processed.

    Iteration raises:

    - OffsetOutOfRangeException: a start offset is not available. Also if a topic was deleted and created again; then `positions` no longer
      contains the topic, because its offsets would skip records of the new one.
    - CorruptRecordException: a batch has a wrong checksum or is inconsistent.
    - TimeoutException: a partition returns no records although its end is not reached.
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
        """Make a reader.

        Args:
            client: client of `options.open_client`.
            starts: offset of the first record, by partition.
            ends: offset after the last record, by partition; None: read forever.
            settings: result of `options.READING_TABLE.parse`.
            records_max: stop after this number of records; None: no limit.
        """
        self.positions = dict(starts)
        self._client = client
        self._ends = ends
        self._settings = settings
        self._left = records_max
        self._topic_ids: dict[str, UUID] = {}
        self._learn_topic_ids()

    def __iter__(self) -> Iterator[tuple[TopicPartition, RecordColumns]]:
        """Records of one partition at a time, in the order of their offsets (`columns.offsets`)."""
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
                position, waited_ms = self.positions[tp], read_deadline.waited_ms
                raise TimeoutException(
                    f"{tp} returned no records at offset {position} for {waited_ms} ms; its end is {self._ends[tp]}",
                    topic_partition=tp,
                    stored=Stored.NO,
                    api="Fetch",
                )

    @property
    def topic_ids(self) -> Mapping[str, UUID]:
        """Ids of the topics to which the positions belong, if brokers return ids."""
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

        # With topic ids, if brokers return them: by name a topic that was created again would be read like the previous one.
        has_ids = all(tp.topic in self._topic_ids for tp in partitions)
        version_max = api_of(FetchRequest).reach[-1] if has_ids else None
        return ask_leaders(self._client, partitions, request_for, read, version_max=version_max)

    def _learn_topic_ids(self) -> None:
        """Remember the first known id of each topic: the positions belong to it."""
        for topic in {tp.topic for tp in self.positions} - self._topic_ids.keys():
            topic_id = self._client.cluster.topic_id(topic)
            if topic_id is not None and topic_id != ZERO_UUID:
                self._topic_ids[topic] = topic_id

    def _check_position(self, tp: TopicPartition, code: int, *, is_by_name: bool) -> None:
        """Raise OffsetOutOfRangeException if the position is not available, or may belong to a topic that was created again."""
        if code == codes.OFFSET_OUT_OF_RANGE.number:
            text = f"offset {self.positions[tp]} does not exist, or no longer exists"
        elif (is_by_name or code in TOPIC_RECREATED_CODES) and self._was_recreated(tp.topic):
            text = f"topic {tp.topic!r} was deleted and created again: offset {self.positions[tp]} belongs to the previous topic"
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
        # Even if the topic was created again: its leader rejects the old id.
        if topic in self._topic_ids:
            found.topic_id = self._topic_ids[topic]
        return found

    def _parts(self, tp: TopicPartition, data: PartitionData) -> Iterator[tuple[RecordColumns, int]]:
        """The records of a response in parts, each with the position after it. A part may be empty."""
        assert not isinstance(data.records, list), "received records are one buffer"
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
