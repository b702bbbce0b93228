"""What the broker must hold after the kills, read by confluent-kafka with read_committed, and what is wrong with it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import confluent_kafka

from tests.soak.writers import ABORT_EVERY, PLAIN_TOPIC, TRANSACTIONS_TOPIC, Outcomes, PlainWriter

SECONDS_WITHOUT_RECORDS_MAX = 30.0
CONSUME_BATCH = 5000
CONSUME_SECONDS = 0.5


def read_all(bootstrap_servers: str, topic: str) -> dict[int, list[bytes]]:
    """partition -> values in order, up to the last stable offset."""
    found = read_with_offsets(bootstrap_servers, topic)
    return {partition: [value for _, value in records] for partition, records in found.items()}


def read_with_offsets(bootstrap_servers: str, topic: str) -> dict[int, list[tuple[int, bytes]]]:
    """partition -> (offset, value) in order, up to the last stable offset."""
    found = read_messages(bootstrap_servers, topic)
    return {partition: [offset_and_value(message) for message in messages] for partition, messages in found.items()}


def offset_and_value(message: confluent_kafka.Message) -> tuple[int, bytes]:
    offset, value = message.offset(), message.value()
    assert offset is not None
    assert value is not None
    return offset, value


def read_messages(bootstrap_servers: str, topic: str) -> dict[int, list[confluent_kafka.Message]]:
    """partition -> messages in order, up to the last stable offset."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "verdict",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = sorted(consumer.list_topics(topic, 30).topics[topic].partitions)
        consumer.assign([confluent_kafka.TopicPartition(topic, number, confluent_kafka.OFFSET_BEGINNING) for number in partitions])
        records: dict[int, list[confluent_kafka.Message]] = {number: [] for number in partitions}
        unfinished, silent_seconds = set(partitions), 0.0
        while unfinished:
            # It waits for a whole batch, or for so long.
            messages = consumer.consume(CONSUME_BATCH, CONSUME_SECONDS)
            silent_seconds = 0.0 if messages else silent_seconds + CONSUME_SECONDS
            assert silent_seconds < SECONDS_WITHOUT_RECORDS_MAX, f"no end of {topic}-{sorted(unfinished)} in sight"
            for message in messages:
                error, partition = message.error(), message.partition()
                assert partition is not None
                if error is None:
                    records[partition].append(message)
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    unfinished.discard(partition)
                else:
                    raise confluent_kafka.KafkaException(error)
        return records
    finally:
        consumer.close()


def faults_of_plain(values: dict[int, list[bytes]], writer: PlainWriter) -> Iterator[str]:
    """Acknowledged means stored; nothing twice; in order within a partition."""
    numbers = {partition: [int(value) for value in stored] for partition, stored in values.items()}
    counts = Counter(number for stored in numbers.values() for number in stored)
    twice = [number for number, count in counts.items() if count > 1]
    if twice:
        yield f"{PLAIN_TOPIC}: {len(twice)} records are stored twice, for example {sorted(twice)[:5]}"
    lost = writer.acknowledged - counts.keys()
    if lost:
        yield f"{PLAIN_TOPIC}: {len(lost)} acknowledged records are lost, for example {sorted(lost)[:5]}"
    for partition, stored in numbers.items():
        if not twice and stored != sorted(stored):
            yield f"{PLAIN_TOPIC}-{partition}: records are out of order"
    if writer.failed:
        yield f"{PLAIN_TOPIC}: {len(writer.failed)} records failed, for example {next(iter(writer.failed.items()))}"


def faults_of_transactions(values: dict[int, list[bytes]], outcomes: Outcomes) -> Iterator[str]:
    """All of a committed transaction, nothing of an aborted one, and of one whose end is unknown all or nothing."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for stored in values.values():
        for value in stored:
            transaction, _, index = value.partition(b":")
            found[int(transaction)].append(int(index))
    expectations = (("committed", outcomes.committed, True), ("aborted", outcomes.aborted, False), ("unknown", outcomes.unknown, None))
    for kind, ledger, must_be_there in expectations:
        for number, count in ledger.items():
            seen = sorted(found.pop(number, []))
            is_right = seen == list(range(count)) if must_be_there or (must_be_there is None and seen) else not seen
            if not is_right:
                yield f"{TRANSACTIONS_TOPIC}: of {kind} transaction {number} with {count} records there are {seen}"
    if found:
        yield f"{TRANSACTIONS_TOPIC}: records of transactions that no writer ended: {sorted(found)[:5]}"


def verdict(bootstrap_servers: str, plain: PlainWriter, outcomes: Outcomes) -> list[str]:
    """Everything that is wrong; empty when nothing is."""
    faults = list(faults_of_plain(read_all(bootstrap_servers, PLAIN_TOPIC), plain))
    faults += faults_of_transactions(read_all(bootstrap_servers, TRANSACTIONS_TOPIC), outcomes)
    if not plain.acknowledged or len(outcomes.committed) < ABORT_EVERY:
        faults.append("the writers got nothing done: this run proves nothing")
    return faults
