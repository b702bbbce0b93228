"""`chaffinch produce --message-format 0|1`: sends message sets of Kafka before 0.11, to brokers that still accept them.

It is for testing how a broker handles them. It is neither idempotent nor transactional and sends one message set at a time. The response
names no culprits, so all rows of a refused set are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from chaffinch.admin.topics import Topic
from chaffinch.cli.produce_run import format_progress, row_range
from chaffinch.cli.rows.rejected import RejectedRows, rejected_table
from chaffinch.cli.rows.sources import Piece
from chaffinch.client import response_errors
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import InvalidRecordException, KafkaException, UnsupportedVersionException
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.options import ACKS
from chaffinch.producer.tables.columns import read_table
from chaffinch.producer.tables.split import Run, runs
from chaffinch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from chaffinch.records.compression import from_name
from chaffinch.records.old_formats.encoding import encode_message_set
from chaffinch.runtime.clock import SystemClock
from chaffinch.settings import Settings

SET_BYTES: Final = 500_000
TIMEOUT_MS: Final = 30_000
# The newest Produce version for each format; brokers refuse message sets in later versions.
VERSION_MAX: Final = {0: 1, 1: 2}


class OldFormatRun:
    """Sends one input in an old format. `send` works as in `ProduceRun`."""

    def __init__(
        self, client: SyncClient, topic: Topic, bad: RejectedRows, show: Callable[[int], None], magic: int, settings: Settings
    ) -> None:
        self._client = client
        self._topic = topic.name
        self._partition_count = len(topic.partitions)
        self._bad = bad
        self._show = show
        self._magic = magic
        self._compression = from_name(settings["compression.type"])
        self._acks = ACKS[settings["acks"]]
        self._clock = SystemClock()
        self._piece_count = 0
        self._written = 0
        self._last = 0
        """Number of the last line or row up to which all outcomes are known."""
        self._sending: list[Piece] = []
        """The piece in flight, if any."""

    def send(self, pieces: Iterator[Piece]) -> int:
        """Send all pieces. Returns the number of rows written."""
        for piece in pieces:
            self._bad.add_broken(piece.broken)
            if len(piece.table):
                self._sending = [piece]
                rejected = self._send(piece)
                self._bad.add(piece.table, piece.numbers, rejected, self._clock.wall_ms())
                self._written += len(piece.table) - rejected.num_rows
                self._sending, self._last = [], row_range(piece)[1]
            self._show(piece.done)
        return self._written

    def describe_progress(self) -> str:
        """A text about the progress so far."""
        return format_progress(self._written, self._bad, self._last, self._sending)

    def _send(self, piece: Piece) -> pa.Table:
        """Send one piece. Returns the rejected rows in the schema of `SendTableResult.rejected`."""
        parts = read_table(piece.table, self._clock.wall_ms())
        partitions = parts.columns.murmur2_partitions(self._partition_count).astype(np.int64)
        # Without keys each piece goes to the next partition.
        partitions[partitions < 0] = self._piece_count % self._partition_count
        self._piece_count += 1
        if parts.partitions is not None:
            partitions = np.where(parts.partitions >= 0, parts.partitions, partitions)
        refused: list[tuple[int, int, KafkaException]] = []
        bad = self._mark_rows_with_headers(parts.columns.header_offsets, partitions, refused)
        good = np.flatnonzero(~bad)
        for run in runs(parts.columns.take(good), good, partitions[good], self._partition_count, SET_BYTES):
            try:
                self._write(run)
            except UnsupportedVersionException:
                text = f"format {self._magic} needs Produce {VERSION_MAX[self._magic]} or older, which this broker no longer supports"
                raise UnsupportedVersionException(text, api="Produce") from None
            except KafkaException as error:
                refused += [(int(row), run.partition, error) for row in run.rows]
        return rejected_table(self._topic, refused)

    def _mark_rows_with_headers(self, header_offsets: Any, partitions: Any, refused: list[tuple[int, int, KafkaException]]) -> Any:
        """A mask of the rows with headers, which the format cannot hold. Their errors are appended to `refused`."""
        marked = np.diff(header_offsets) > 0
        for row in np.flatnonzero(marked):
            error = InvalidRecordException(f"format {self._magic} has no headers", api="Produce")
            refused.append((int(row), int(partitions[row]), error))
        return marked

    def _write(self, run: Run) -> None:
        data = encode_message_set(run.columns, self._magic, self._compression)
        topic = TopicProduceData(name=self._topic, partitions=[PartitionProduceData(index=run.partition, records=data)])
        request = ProduceRequest(acks=self._acks, timeout_ms=TIMEOUT_MS, topics=[topic])
        response = self._client.leader_request(TopicPartition(self._topic, run.partition), request, version_max=VERSION_MAX[self._magic])
        response_errors.raise_for(response)
