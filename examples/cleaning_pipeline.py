"""A cleaning pipeline in Spark: writes JSON files to a topic, with invalid rows as dead letters that are repaired and replayed, once each.

    python -m examples.cleaning_pipeline --bootstrap-server localhost:9092 --input orders --checkpoint /tmp/checkpoint

Each line of the files in the directory `orders` is one order, `{"id": "7", "amount": 3}`; some programs write `order` instead of `id`. The
topic `clean-orders`, which the program creates, is compacted: an order without a key is refused. The stream reads all files and writes such
lines to `clean-orders-dead-letters`, in the same transaction. Then the dead letters are replayed with the key from `order`, and the
remaining errors are printed. Run it as often as you like, with more files or without: nothing is written twice.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from chaffinch.admin import Admin
from chaffinch.errors import KafkaException, TopicExistsException
from chaffinch.spark import JavaNotFound, Refusal, ReplayPlan, ReplayReport, SupervisionEnded, replay_dead_letters, session, supervise

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Names of their own: an existing topic might accept orders without a key.
ORDERS, DEAD_LETTERS = "clean-orders", "clean-orders-dead-letters"
KEY = "get_json_object(cast(value as string), '$.id')"
REPAIRED_KEY = "coalesce(key, get_json_object(cast(value as string), '$.order'))"


def create_topics(bootstrap_servers: str) -> None:
    """Create the topics of the pipeline if they do not exist."""
    with Admin(bootstrap_servers=bootstrap_servers) as admin:
        for name, configs in ((ORDERS, {"cleanup.policy": "compact"}), (DEAD_LETTERS, {})):
            try:
                admin.create_topic(name, partitions=2, configs=configs)
            except TopicExistsException:
                continue


def start(spark: SparkSession, bootstrap_servers: str, folder: str, checkpoint: str) -> StreamingQuery:
    """Start the stream over all existing files."""
    return (
        spark.readStream.text(folder).selectExpr("value", f"{KEY} AS key")
        .writeStream.format("chaffinch")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("topic", ORDERS)
        .option("errors.tolerance", "all")
        .option("errors.dead.letter.queue.topic.name", DEAD_LETTERS)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )  # fmt: skip


def run(spark: SparkSession, bootstrap_servers: str, folder: str, checkpoint: str) -> tuple[ReplayReport, ReplayReport]:
    """Stream the files and replay the dead letters. Returns the reports of a dry run without repair and of the repaired replay."""
    create_topics(bootstrap_servers)
    supervise(lambda: start(spark, bootstrap_servers, folder, checkpoint))
    client = {"kafka.bootstrap.servers": bootstrap_servers}
    as_they_are = replay_dead_letters(spark, ReplayPlan(client=client, topic=DEAD_LETTERS, is_dry_run=True))
    repaired = replay_dead_letters(spark, ReplayPlan(client=client, topic=DEAD_LETTERS, repairs={"key": REPAIRED_KEY}))
    return as_they_are, repaired


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Clean orders on their way into a topic.")
    for name in ("--bootstrap-server", "--input", "--checkpoint"):
        parser.add_argument(name, required=True)
    chosen = parser.parse_args(arguments)
    try:
        spark = session("cleaning-pipeline")
        try:
            as_they_are, repaired = run(spark, chosen.bootstrap_server, chosen.input, chosen.checkpoint)
        finally:
            spark.stop()
    except (SupervisionEnded, KafkaException, Refusal, JavaNotFound) as error:
        print(f"stop: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: uncommitted rows are written next time", file=sys.stderr)
        return 130
    print(f"{as_they_are.read} lines became dead letters: {dict(as_they_are.still_rejected)}")
    print(f"with the key repaired, written: {repaired.written}; still rejected: {sum(repaired.still_rejected.values())}")
    for example in repaired.examples:
        print(f"  {example}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
