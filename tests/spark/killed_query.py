"""A streaming query in a process of its own, to be killed: JSON files below ARGV[1]/input into the topic ARGV[3] of the broker ARGV[2]."""

import sys
from pathlib import Path

from chaffinch.spark import session


def main() -> None:
    folder, servers, topic, dead = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    spark = session("killed", master="local[2]")
    frame = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1).json(str(folder / "input"))
    query = (
        frame.writeStream.format("chaffinch")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("kafka.bootstrap.servers", servers)
        .option("topic", topic)
        .option("errors.tolerance", "all")
        .option("errors.dead.letter.queue.topic.name", dead)
        .option("errors.dead.letter.path", str(folder / "dead"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
