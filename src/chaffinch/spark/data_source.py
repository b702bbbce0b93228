"""The format `chaffinch`, as Spark finds it: options and schema are checked here, before any task runs.

Spark imports this module in every planner and once per query, so it imports nothing heavy; PySpark is there already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource

from chaffinch.errors import ConfigException
from chaffinch.spark.refusals import invalid

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from chaffinch.spark.sink import BatchWriter, StreamWriter
    from chaffinch.spark.source import TopicReader
    from chaffinch.spark.source_options import SourceOptions


class ChaffinchDataSource(DataSource):
    """`format("chaffinch")`: Kafka topics, written exactly once with bad rows set aside, and read with Spark's Kafka schema.

    Options: `chaffinch.spark.sink_options.SINK`, `chaffinch.spark.source_options.SOURCE`. Columns: `chaffinch.spark.row_codec`.
    """

    @classmethod
    def name(cls) -> str:
        return "chaffinch"

    def schema(self) -> str:
        """Of a topic that is read."""
        from chaffinch.spark.row_codec import read_schema

        return read_schema(include_headers=self._source_options().include_headers)

    def reader(self, schema: StructType) -> TopicReader:
        from chaffinch.spark.source import TopicReader

        return TopicReader(self._source_options())

    def streamReader(self, schema: StructType) -> NoReturn:
        raise invalid(ConfigException('streams cannot be read with this format yet: use the source of Spark, readStream.format("kafka")'))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """`overwrite` is output mode `complete`: the whole result is appended each time."""
        from chaffinch.spark.row_codec import check_schema
        from chaffinch.spark.sink import stream_writer
        from chaffinch.spark.sink_options import SinkOptions

        try:
            options = SinkOptions.parse(self._given(), is_stream=True)
            check_schema(schema, has_topic=options.topic is not None)
            return stream_writer(options)
        except ConfigException as error:
            raise invalid(error) from None

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from chaffinch.spark.row_codec import check_schema
        from chaffinch.spark.sink import batch_writer
        from chaffinch.spark.sink_options import SinkOptions

        try:
            if overwrite:
                raise ConfigException('mode("overwrite") cannot be: a topic is appended to, never replaced; use mode("append")')
            options = SinkOptions.parse(self._given(), is_stream=False)
            check_schema(schema, has_topic=options.topic is not None)
            return batch_writer(options)
        except ConfigException as error:
            raise invalid(error) from None

    def _source_options(self) -> SourceOptions:
        from chaffinch.spark.source_options import SourceOptions

        try:
            return SourceOptions.parse(self._given())
        except ConfigException as error:
            raise invalid(error) from None

    def _given(self) -> Mapping[str, str]:
        return dict(self.options)


class DefaultSource(ChaffinchDataSource):
    """The name under which Spark looks for a format in a module `pyspark_*`."""
