"""Records of one `chaffinch consume` on their way, and how that ends: what stays in the output, and what is committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import pyarrow as pa

from chaffinch.admin.reading import RecordReader
from chaffinch.cli.rows.outputs import Output
from chaffinch.cli.rows.sinks import BINARY_FORMATS, NotText, RowSink, read_batch
from chaffinch.errors import KafkaException
from chaffinch.identifiers import TopicPartition
from chaffinch.records.columns import RecordColumns
from chaffinch.signals import deferred_signals


class Unwritable(KafkaException):
    """A record of `place` that the format cannot hold."""

    def __init__(self, message: str, place: TopicPartition) -> None:
        super().__init__(message)
        self.place = place


class ConsumeRun:
    """From a reader to a sink. `commit` takes the positions behind what stays in the output, and returns those that it committed."""

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
        self._has_gone_on = output.is_seen and file_format not in BINARY_FORMATS
        """Whether what was flushed is with its reader, whatever becomes of the rest."""
        self._written: dict[TopicPartition, int] = {}
        """Positions behind what the sink has taken, of which the reader learns when it is asked for more."""
        self._count = 0
        self._is_torn = False
        """A write broke off, and nobody knows where."""
        self.kept = 0
        """How many records stay in the output."""
        self.committed: Mapping[TopicPartition, int] = {}

    def run(self, show: Callable[[int], None]) -> None:
        """Everything there is. Where it breaks off, the records until then stay, if there are any."""
        try:
            for place, records in self._reader:
                with self._undivided():
                    self._write(place, records)
                show(self._count)
        except (KeyboardInterrupt, SystemExit):
            self._finish(is_whole=False)  # Another signal ends this, too.
            raise
        except BaseException:
            with self._undivided():
                self._finish(is_whole=False)
            raise
        with self._undivided():
            self._finish(is_whole=True)

    def _undivided(self) -> AbstractContextManager[None]:
        """Signals wait, unless somebody may keep them waiting for ever."""
        return nullcontext() if self._output.may_block else deferred_signals()

    def _write(self, place: TopicPartition, records: RecordColumns) -> None:
        assert records.offsets is not None, "records that were read have offsets"
        batch = read_batch(place, records).select(self._columns)
        try:
            self._put(batch)
        except NotText as error:
            refused, before = error, 0
            while refused.row > before:  # Those before it stay; another column may refuse an earlier one.
                try:
                    self._put(batch.slice(0, refused.row))
                    before = refused.row
                except NotText as earlier:
                    refused = earlier
            self._note(place, records, refused.row)
            raise Unwritable(f"{place}, offset {records.offsets[refused.row]}: {refused.message}", place) from None
        self._note(place, records, len(records))

    def _put(self, batch: pa.RecordBatch) -> None:
        self._is_torn = True
        try:
            self._sink.write(batch)
        except NotText:
            self._is_torn = False
            raise
        self._sink.flush()
        self._is_torn = False

    def _note(self, place: TopicPartition, records: RecordColumns, count: int) -> None:
        """The first `count` records are in the sink."""
        assert records.offsets is not None
        if count:
            self._written[place] = int(records.offsets[count - 1]) + 1
            self._count += count

    def _finish(self, *, is_whole: bool) -> None:
        if not self._is_torn:
            self._sink.close()
            if is_whole or self._count:
                self._output.keep()
        elif not self._has_gone_on:
            return
        self.kept = self._count
        positions = self._reader.positions.items()
        self.committed = self._commit({place: max(position, self._written.get(place, position)) for place, position in positions})
