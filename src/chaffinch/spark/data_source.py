"""Spark data source `chaffinch`. `sink/writers.py` and `source/batch_reader.py` check options and schema before any task runs.

Spark imports this module in every planner and once per query, so it imports nothing heavy except PySpark, which is loaded anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from chaffinch.spark.refusals import line_first

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from chaffinch.spark.sink.writers import BatchWriter, StreamWriter
    from chaffinch.spark.source.batch_reader import TopicReader
    from chaffinch.spark.source.stream_reader import TopicStreamReader


class ChaffinchDataSource(DataSource):
    """`format("chaffinch")`: writes Kafka topics exactly once, with dead letters for bad rows, and reads them with Spark's Kafka schema.

    Options: `sink.option_tables.TABLES`, `source.options`. Columns: `tasks/row_codec.py` and `source/rows.py`.
    """

    @classmethod
    def name(cls) -> str:
        return "chaffinch"

    @line_first()
    def schema(self) -> str:
        """The schema of the source."""
        from chaffinch.spark.source.batch_reader import schema_read

        return schema_read(self._given())

    @line_first()
    def reader(self, schema: StructType) -> TopicReader:
        from chaffinch.spark.source.batch_reader import planned_reader

        return planned_reader(self._given(), schema)

    @line_first()
    def streamReader(self, schema: StructType) -> TopicStreamReader:
        from chaffinch.spark.source.stream_reader import planned_stream_reader

        return planned_stream_reader(self._given(), schema)

    @line_first()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """`overwrite` is true in output mode `complete`: each micro-batch appends the whole result."""
        from chaffinch.spark.sink.writers import planned_stream_writer

        return planned_stream_writer(self._given(), schema)

    @line_first()
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from chaffinch.spark.sink.writers import planned_batch_writer

        return planned_batch_writer(self._given(), schema, overwrite=overwrite)

    def _given(self) -> Mapping[str, str]:
        return dict(self.options)


class DefaultSource(ChaffinchDataSource):
    """The class name that Spark looks up in modules named `pyspark_*`."""
