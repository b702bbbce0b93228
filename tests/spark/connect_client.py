"""A client of Spark Connect: `connect_client.py REMOTE SERVERS TOPIC FOLDER`. Writes a batch and a stream, and prints what it reads back.

It needs no Java, and Chaffinch only where the server is.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import countDistinct

KEYED = ("cast(id as string) as key", "cast(concat('value ', id) as binary) as value")


def main() -> None:
    remote, servers, topic, folder = sys.argv[1:]
    spark = SparkSession.builder.remote(remote).getOrCreate()
    options = {"kafka.bootstrap.servers": servers, "topic": topic}
    spark.range(100).selectExpr(*KEYED).write.format("chaffinch").mode("append").options(**options).save()
    spark.range(100, 200).selectExpr(KEYED[0], "concat('value ', id) as value").write.mode("append").parquet(f"{folder}/input")
    query = (
        spark.readStream.schema("key string, value string").parquet(f"{folder}/input").writeStream.format("chaffinch").options(**options)
        .option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    try:
        spark.range(1).selectExpr("cast(null as string) as key", "'a' as value").write.format("chaffinch").mode("append").options(
            **options
        ).save()
    except Exception as error:
        print(f"refused: {' '.join(str(error).split())}")
    rows = spark.read.format("chaffinch").option("kafka.bootstrap.servers", servers).option("subscribe", topic).load()
    found = rows.select(countDistinct("key"), countDistinct("partition", "offset")).first()
    print(f"read: {found[0]} keys in {found[1]} records by {type(spark).__module__}")


if __name__ == "__main__":
    main()
