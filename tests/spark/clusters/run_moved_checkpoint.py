"""A query of the Kafka source of Spark, continued here and there again from one checkpoint. Run by `make cluster`, with Spark 4.2, of which
there is a connector: `python -m tests.interop.spark_environments spark-4.2 pytest tests/spark/clusters/run_moved_checkpoint.py`.
"""

from collections import Counter
from pathlib import Path

import pyspark
import pytest

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.spark import session
from tests.interop.spark_environments import connector_jars

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.skipif(not pyspark.__version__.startswith("4.2."), reason="the connector is that of Spark 4.2"),
]


def test_both_sources_read_each_record_once(tmp_path: Path) -> None:
    with EmbeddedBroker(topics={"read": {"partitions": 2}, "written": {"partitions": 1}}) as broker:
        spark = session("moved", master="local[1]", config={"spark.jars": connector_jars()})
        options = {"kafka.bootstrap.servers": broker.bootstrap_servers}

        def micro_batch(source: str, first: int, last: int) -> tuple[int, int]:
            rows = spark.range(first, last).selectExpr("cast(id as string) as key", "cast(id as string) as value")
            rows.write.format("chaffinch").mode("append").options(**options, topic="read").save()
            stream = spark.readStream.format(source).options(**options, subscribe="read", startingOffsets="earliest").load()
            writer = stream.select("key", "value").writeStream.format("chaffinch").options(**options, topic="written")
            query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
            query.awaitTermination()
            assert query.lastProgress is not None
            return query.lastProgress["batchId"], query.lastProgress["sink"]["numOutputRows"]

        try:
            assert micro_batch("kafka", 0, 100) == (0, 100)
            assert micro_batch("chaffinch", 100, 150) == (1, 50)
            assert micro_batch("kafka", 150, 160) == (2, 10)
        finally:
            spark.stop()
        assert Counter(map(int, broker.read("written").column("key").to_pylist())) == Counter(range(160))
