"""The Spark query of the demo, run as a process: files -> rows -> `format("chaffinch")`.

Run as `python -m examples.standard_library.query FOLDER BOOTSTRAP_SERVERS FILES_PER_TRIGGER`; FOLDER is a `workspace.Workspace`.
It ends when all files are written, and continues from its checkpoint after a restart.
"""

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from chaffinch.spark import session
from examples.standard_library.inputs import import_name, original, standard_library
from examples.standard_library.workspace import DEAD_LETTER_TOPIC, TOPIC, Workspace

BINARY_FILE = "path string, modificationTime timestamp, length long, content binary"
EMPTY_FILE = "path string, modified_ms long"
CONFIGURATION = {
    "spark.sql.session.timeZone": "UTC",
    # The driver lists the directory itself: a Spark job for each listing costs more than the listing.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": 100_000,
}


def files_with_bytes(spark: SparkSession, links: Path, per_trigger: int) -> DataFrame:
    """(path below the standard library, content, timestamp) of each file as Spark's `binaryFile` source reads it."""
    prefix = f"file:{links}/"
    path_below = F.udf(lambda path: original(path.removeprefix(prefix)), "string", useArrow=False)
    source = spark.readStream.format("binaryFile").schema(BINARY_FILE).option("recursiveFileLookup", "true")
    # By default Spark ignores files that are a week older than the newest one.
    source = source.option("maxFilesPerTrigger", per_trigger).option("maxFileAge", "36500d")
    return source.load(str(links)).select(path_below("path").alias("path"), "content", F.col("modificationTime").alias("timestamp"))


def files_without_bytes(spark: SparkSession, empties: Path) -> DataFrame:
    source = spark.readStream.schema(EMPTY_FILE).option("maxFileAge", "36500d").json(str(empties))
    return source.select("path", F.lit(b"").alias("content"), F.timestamp_millis("modified_ms").alias("timestamp"))


def rows(files: DataFrame) -> DataFrame:
    """The columns of the sink: key, value, timestamp, headers."""
    root = standard_library()
    key = F.udf(lambda path: import_name(root / path, root), "string", useArrow=False)
    header = F.struct(F.lit("path").alias("key"), F.encode("path", "UTF-8").alias("value"))
    return files.select(key("path").alias("key"), F.col("content").alias("value"), "timestamp", F.array(header).alias("headers"))


def start(spark: SparkSession, workspace: Workspace, bootstrap_servers: str, per_trigger: int) -> StreamingQuery:
    files = files_with_bytes(spark, workspace.links, per_trigger).unionByName(files_without_bytes(spark, workspace.empties))
    return (
        rows(files)
        .writeStream.format("chaffinch")
        .queryName("standard-library")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("topic", TOPIC)
        .option("errors.tolerance", "all")
        .option("errors.dead.letter.queue.topic.name", DEAD_LETTER_TOPIC)
        .option("errors.dead.letter.path", str(workspace.dead_letters))
        .option("checkpointLocation", str(workspace.checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def main() -> None:
    workspace, bootstrap_servers, per_trigger = Workspace(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
    spark = session("standard-library", master="local[2]", config=CONFIGURATION)
    start(spark, workspace, bootstrap_servers, per_trigger).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
