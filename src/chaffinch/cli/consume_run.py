"""One run of `chaffinch consume`: copies records from the reader to the sink and commits the positions of written records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import pyarrow as pa

from chaffinch.admin.reading import RecordReader
from chaffinch.cli.rows.outputs import Output
from chaffinch.cli.rows.sinks import BINARY_FORMATS, NotUtf8Text, RowSink, read_batch
from chaffinch.errors import KafkaException
from chaffinch.identifiers import TopicPartition
from chaffinch.records.columns import RecordColumns
from chaffinch.signals import deferred_signals


class UnwritableRecord(KafkaException):
    """The format cannot represent a record of `tp`."""

    def __init__(self, message: str, tp: TopicPartition) -> None:
        super().__init__(message)
        self.tp = tp


class ConsumeRun:
    """Copies records from a reader to a sink. `commit` gets the positions after the written records and returns the committed ones."""

    def __init__(
        self,
        reader: RecordReader,
        sink: RowSink,
        output: Output,
        *,
        file_format: str,
        columns: list[str],
        commit: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]],
    ) -> None:
        self._reader = reader
        self._sink = sink
        self._output = output
        self._columns = columns
        self._commit = commit
        self._is_flush_final = output.is_streamed and file_format not in BINARY_FORMATS
        """Whether flushed bytes have reached the reader and stay valid if a later write fails."""
        self._written: dict[TopicPartition, int] = {}
        """Positions after the records in the sink. The reader's own positions advance only with the next request."""
        self._count = 0
        self._has_partial_write = False
        """A write was interrupted at an unknown point."""
        self.written_count = 0
        """Number of records in the output."""
        self.committed: Mapping[TopicPartition, int] = {}

    def run(self, show: Callable[[int], None]) -> None:
        """Copy all records. If an error or a signal ends the run, the records written so far stay in the output."""
        try:
            for tp, records in self._reader:
                with self._signals_deferred():
                    self._write(tp, records)
                show(self._count)
        except (KeyboardInterrupt, SystemExit):
            self._finish(is_whole=False)  # A second signal interrupts this as well.
            raise
        except BaseException:
            with self._signals_deferred():
                self._finish(is_whole=False)
            raise
        with self._signals_deferred():
            self._finish(is_whole=True)

    def _signals_deferred(self) -> AbstractContextManager[None]:
        """Defer signals, unless a write may block without limit."""
        return nullcontext() if self._output.may_block else deferred_signals()

    def _write(self, tp: TopicPartition, records: RecordColumns) -> None:
        assert records.offsets is not None, "fetched records have offsets"
        batch = read_batch(tp, records).select(self._columns)
        try:
            self._write_to_sink(batch)
        except NotUtf8Text as error:
            refused, before = error, 0
            while refused.row > before:  # Keep the rows before it; another column may refuse an earlier row.
                try:
                    self._write_to_sink(batch.slice(0, refused.row))
                    before = refused.row
                except NotUtf8Text as earlier:
                    refused = earlier
            self._record_written(tp, records, refused.row)
            raise UnwritableRecord(f"{tp}, offset {records.offsets[refused.row]}: {refused.message}", tp) from None
        self._record_written(tp, records, len(records))

    def _write_to_sink(self, batch: pa.RecordBatch) -> None:
        self._has_partial_write = True
        try:
            self._sink.write(batch)
        except NotUtf8Text:
            self._has_partial_write = False
            raise
        self._sink.flush()
        self._has_partial_write = False

    def _record_written(self, tp: TopicPartition, records: RecordColumns, count: int) -> None:
        """Record that the sink has the first `count` records."""
        assert records.offsets is not None
        if count:
            self._written[tp] = int(records.offsets[count - 1]) + 1
            self._count += count

    def _finish(self, *, is_whole: bool) -> None:
        if not self._has_partial_write:
            self._sink.close()
            if is_whole or self._count:
                self._output.publish()
        elif not self._is_flush_final:
            return
        self.written_count = self._count
        positions = self._reader.positions.items()
        self.committed = self._commit({tp: max(position, self._written.get(tp, position)) for tp, position in positions})
