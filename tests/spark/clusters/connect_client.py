"""A client of Spark Connect: `connect_client.py REMOTE SERVERS FOLDER SCENARIO...`; each scenario prints one line, `NAME: what was found`.

It needs no Java; those of `WITH_CHAFFINCH` need Chaffinch where the client is, the others only where the server is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import countDistinct

LATE = "Python worker failed to connect back"
"""Spark gives the process that calls what `foreachBatch` was given 10 seconds to start, which on a loaded machine are not enough."""
STARTS_MAX = 5
KEYED = ("cast(id as string) as key", "cast(concat('value ', id) as binary) as value")
Options = Mapping[str, str]


def write(frame: Any, options: Options) -> None:
    frame.write.format("chaffinch").mode("append").options(**options).save()


def stream_of(spark: Any, folder: str, first: int, last: int) -> Any:
    """A stream of the rows first to last, which are new, and of all that were there before."""
    spark.range(first, last).selectExpr(KEYED[0], "concat('value ', id) as value").write.mode("append").parquet(f"{folder}/input")
    return spark.readStream.schema("key string, value string").parquet(f"{folder}/input")


def start(frame: Any, options: Options) -> Any:
    return frame.writeStream.format("chaffinch").options(**options).trigger(availableNow=True).start()


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return " ".join(str(error).split())
    return "none"


def in_time(start: Callable[[], Any]) -> Any:
    """What it starts, tried again where only Spark's patience has ended: nothing of the query has run then."""
    for _ in range(STARTS_MAX - 1):
        try:
            return start()
        except Exception as error:
            if LATE not in str(error):
                raise
    return start()


def format(spark: Any, options: Options, folder: str) -> Any:
    """A batch, a stream, a refusal, and what is read back."""
    write(spark.range(100).selectExpr(*KEYED), options)
    start(stream_of(spark, folder, 100, 200), {**options, "checkpointLocation": f"{folder}/checkpoint"}).awaitTermination()
    refused = error_of(lambda: write(spark.range(1).selectExpr("cast(null as string) as key", "'a' as value"), options))
    rows = spark.read.format("chaffinch").options(**without_topic(options), subscribe=options["topic"]).load()
    keys, records = rows.select(countDistinct("key"), countDistinct("partition", "offset")).first()
    return {"refused": refused, "keys": keys, "records": records, "session": type(spark).__module__}


def direct(spark: Any, options: Options, folder: str) -> None:
    """Rows that tasks send: a batch and a stream."""
    options = {**options, "deliveryGuarantee": "at-least-once"}
    write(spark.range(100).selectExpr(*KEYED), options)
    start(stream_of(spark, folder, 100, 200), {**options, "checkpointLocation": f"{folder}/checkpoint"}).awaitTermination()


def source(spark: Any, options: Options, folder: str) -> None:
    """A stream from the topic `format` into another; the second start goes on where the first has ended."""
    given = {**without_topic(options), "subscribe": "format", "startingOffsets": "earliest"}
    for _ in range(2):
        rows = spark.readStream.format("chaffinch").options(**given).load().select("key", "value")
        start(rows, {**options, "checkpointLocation": f"{folder}/checkpoint"}).awaitTermination()
        write(spark.range(200, 250).selectExpr(*KEYED), {**options, "topic": "format", "idempotencyToken": "more"})


def sinks(spark: Any, options: Options, folder: str) -> Any:
    """Output mode update through `foreachBatch`, restarted once; and a sink without the option checkpointLocation."""
    from chaffinch.spark import KafkaSink

    def run(sink: Any, checkpoint: str) -> None:
        counts = stream.groupBy("key").count().selectExpr("key", "cast(count as string) as value")
        writer = counts.writeStream.outputMode("update").foreachBatch(sink).option("checkpointLocation", checkpoint)
        in_time(writer.trigger(availableNow=True).start).awaitTermination()

    checkpoint = f"{folder}/checkpoint"
    for first in (0, 100):
        stream = stream_of(spark, folder, first, first + 100)
        run(KafkaSink(options, checkpointLocation=checkpoint), checkpoint)
    others = {"unknown": KafkaSink(options), "strange": KafkaSink(options, checkpointLocation=checkpoint)}
    found = {name: error_of(lambda sink=sink, name=name: run(sink, f"{folder}/{name}")) for name, sink in others.items()}  # type: ignore[misc]
    update = stream.writeStream.format("chaffinch").outputMode("update").options(**options)
    found["update"] = error_of(lambda: update.option("checkpointLocation", f"{folder}/update").start())
    return found | {"no mode": error_of(lambda: spark.range(1).write.format("chaffinch").options(**options).save())}


def supervised(spark: Any, options: Options, folder: str) -> Any:
    """A query whose first start reaches no broker; and one that ends for good."""
    from chaffinch.spark import supervise

    restarts: list[str] = []
    given = {**options, "checkpointLocation": f"{folder}/checkpoint"}
    unreachable = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.max.block.ms": "300"}
    stream = stream_of(spark, folder, 0, 100)
    query = supervise(
        lambda: start(stream, given if restarts else {**given, **unreachable}),
        pause_s=0,
        on_restart=lambda tag, *_: restarts.append(tag.name),
    )
    keyless = stream.selectExpr("cast(null as string) as key", "value")
    ended = error_of(lambda: supervise(lambda: start(keyless, {**given, "checkpointLocation": f"{folder}/keyless"})))
    assert query.lastProgress is not None
    return {"restarts": restarts, "batch": query.lastProgress["batchId"], "ended": ended}


def without_topic(options: Options) -> dict[str, str]:
    return {name: value for name, value in options.items() if name != "topic"}


WITH_CHAFFINCH = ("sinks", "supervised")
"""They call what is of Chaffinch in the client."""


def main() -> None:
    remote, servers, folder, *scenarios = sys.argv[1:]
    if scenarios == ["unfit"]:
        print(f"unfit: {json.dumps(unfit(remote))}")
        return
    spark = with_chaffinch(remote) if scenarios[0] in WITH_CHAFFINCH else SparkSession.builder.remote(remote).getOrCreate()
    for scenario in scenarios:
        found = globals()[scenario](spark, {"kafka.bootstrap.servers": servers, "topic": scenario}, f"{folder}/{scenario}")
        print(f"{scenario}: {json.dumps(found)}", flush=True)


def with_chaffinch(remote: str) -> Any:
    from chaffinch.spark.session import session

    return session("client", remote=remote)


def unfit(remote: str) -> str:
    try:
        with_chaffinch(remote)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing is wrong"


if __name__ == "__main__":
    main()
