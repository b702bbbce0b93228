"""Example 1 of KIP-1038: a record that is too large is dropped, and its transaction commits without it.

It reads `input-topic` and writes a large record to `output-topic` for each record that requests one, else a normal one. The offsets read
are committed in the same transaction. Without the handler the first large record would fail the transaction.

    python -m examples.drop_large_records --bootstrap-server localhost:9092

It ends after --count records, after a minute without records, or with Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys

from chaffinch import (
    Consumer,
    ConsumerRecord,
    NonRetriableResponse,
    OffsetAndMetadata,
    Producer,
    ProducerExceptionHandler,
    ProducerRecord,
    TopicPartition,
)
from chaffinch.errors import KafkaException, RecordTooLargeException

LARGE = b"0123456789" * 1_000_000
NORMAL = b"normalMessage"


class DropLargeRecords(ProducerExceptionHandler):
    def handle_record_too_large(self, record: ProducerRecord, exception: RecordTooLargeException) -> NonRetriableResponse:
        return NonRetriableResponse.SWALLOW


def requests_large_record(record: ConsumerRecord) -> bool:
    return bool(record.value == b"large")


def run(bootstrap_servers: str, wait_s: float, count: int) -> None:
    """Read until `count` records have been read, or for `wait_s` seconds without a record."""
    print(f"reading input-topic until {count} records are read or {wait_s:g} s pass without one", flush=True)
    read = dropped = 0
    servers = {"bootstrap.servers": bootstrap_servers}
    handler = {"custom.exception.handler.class": DropLargeRecords}
    reading = {"group.id": "example-1", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    with (
        Producer({**servers, **handler, "transactional.id": "example-1"}) as producer,
        Consumer({**servers, **reading}) as consumer,
    ):
        producer.init_transactions()
        consumer.subscribe(["input-topic"])
        while read < count and (records := consumer.poll(wait_s)):
            read += len(records)
            try:
                producer.begin_transaction()
                offsets: dict[TopicPartition, OffsetAndMetadata] = {}
                futures = []
                for record in records:
                    sent = producer.send("output-topic", LARGE if requests_large_record(record) else NORMAL)
                    futures.append(sent)
                    has_failed = sent.done() and sent.exception() is not None
                    if not has_failed:
                        offsets[record.topic_partition] = OffsetAndMetadata(record.offset + 1)
                producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
                producer.commit_transaction()
                dropped += sum(future.result().dropped for future in futures)
            except KafkaException:
                producer.abort_transaction()
                raise
    print(f"{read} records read: {read - dropped} written to output-topic, {dropped} too large and dropped")


def run_without_transactions(bootstrap_servers: str, values: list[bytes]) -> list[bool]:
    """The same handler without a transaction. Returns for each value whether it was dropped."""
    options = {"bootstrap.servers": bootstrap_servers, "custom.exception.handler.class": DropLargeRecords}
    with Producer(options) as producer:
        futures = [producer.send("output-topic", value) for value in values]
        return [future.result().dropped for future in futures]


def record_count(text: str) -> int:
    """Parse a number of records from the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return int(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Drop records that are too large.")
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--count", type=record_count, default=1_000_000)
    chosen = parser.parse_args()
    try:
        run(chosen.bootstrap_server, 60.0, chosen.count)
    except KafkaException as error:
        sys.exit(f"stop: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted: uncommitted records are read again next time")
