"""Clients that fill a broker for a fixture, in a process of its own: `python -m tests.upgrades.write_records SERVERS FACTS`.

The process writes FACTS (what the broker must still have later, as JSON), opens one more transaction, prints `open` and waits to be killed.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import confluent_kafka

from chaffinch import Consumer, OffsetAndMetadata, Producer, TopicPartition
from chaffinch.client.sync_client import SyncClient
from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.broker.batches import batch_of
from tests.spark.source.source_topics import drop_first

TOPICS = (
    "orders:2",
    "keyed:1,cleanup.policy=compact,segment.bytes=1048576,min.cleanable.dirty.ratio=0,min.compaction.lag.ms=0",
    "trimmed:1",
    "paid:1",
    "retried:1",
)
WRITER, OPEN_WRITER = "writer", "open-writer"
ORDERS, KEYED, TRIMMED, TRIMMED_BEFORE, PAID = 40, 5, 20, 12, 5
KEYED_BYTES = 200_000
"""Of a value: three of each key fill more than two segments."""
GROUPS = {"classic": ("classic-readers", 25), "consumer": ("new-readers", 31)}
"""By protocol: the name, and what it has committed of partition 0; of partition 1 it is one more."""
OFFSETS_GROUP, OFFSETS_END = "in-transaction", 17
SESSION_MS = 2_000
"""Of the classic member: so long the next one waits, because this one does not leave."""
RETRIED = TopicPartition("retried", 0)


class Facts:
    """What a reader must find: of each topic, by isolation, the values of each partition in order; offsets of groups; identities."""

    def __init__(self) -> None:
        self.committed: dict[str, dict[int, list[str]]] = {}
        self.open: dict[str, dict[int, list[str]]] = {}
        self.aborted: dict[str, dict[int, list[str]]] = {}
        self.latest: dict[str, dict[str, str]] = {}
        """Of a compacted topic: how the newest value of each key begins."""
        self.groups: dict[str, dict[str, Any]] = {}
        self.retried: dict[str, int] = {}

    def note(self, kind: str, topic: str, partition: int, value: str) -> None:
        getattr(self, kind).setdefault(topic, {}).setdefault(partition, []).append(value)

    def note_group(self, group: str, metadata: str, offsets: dict[str, int]) -> None:
        self.groups[group] = {"offsets": offsets, "metadata": metadata}

    def to_text(self) -> str:
        return json.dumps(self.__dict__, indent=1)


def write_plainly(servers: str, facts: Facts) -> None:
    with Producer(bootstrap_servers=servers, linger_ms=5) as producer:
        for number in range(ORDERS):
            for partition in (0, 1):
                value = f"order {partition} {number}"
                producer.send("orders", value.encode(), key=b"%d" % number, partition=partition, headers=[("n", b"%d" % number)])
                facts.note("committed", "orders", partition, value)
        for number in range(TRIMMED):
            producer.send("trimmed", f"trimmed {number}".encode())
            if number >= TRIMMED_BEFORE:
                facts.note("committed", "trimmed", 0, f"trimmed {number}")
        for version in range(3):
            for key in range(KEYED):
                producer.send("keyed", f"{key} {version} ".encode().ljust(KEYED_BYTES, b"."), key=b"%d" % key)
            producer.flush()
    facts.latest["keyed"] = {str(key): f"{key} 2" for key in range(KEYED)}
    with SyncClient([servers]) as client:
        drop_first(client, TopicPartition("trimmed", 0), TRIMMED_BEFORE)


def write_transactions(servers: str, facts: Facts) -> None:
    with Producer(bootstrap_servers=servers, transactional_id=WRITER) as producer:
        producer.init_transactions()
        for number in range(4):
            producer.begin_transaction()
            kind = "aborted" if number == 1 else "committed"
            for record in range(PAID):
                producer.send("paid", f"{kind} {number} {record}".encode())
                facts.note(kind, "paid", 0, f"{kind} {number} {record}")
            if number == 2:
                producer.send_offsets_to_transaction({TopicPartition("orders", 0): OffsetAndMetadata(OFFSETS_END, "sent")}, OFFSETS_GROUP)
                facts.note_group(OFFSETS_GROUP, "sent", {"orders-0": OFFSETS_END})
            producer.flush()  # Records that an abort finds waiting are never sent.
            producer.abort_transaction() if number == 1 else producer.commit_transaction()


def write_twice(servers: str, facts: Facts) -> None:
    """A producer without transactions whose id outlives the broker: it repeats its newest batch, and goes on behind it."""
    with SyncClient([servers]) as client:
        found = client.request(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0))
        identity = ProducerIdentity(found.producer_id, found.producer_epoch)
        for sequence in range(2):
            produce_once(client, identity, sequence)
            facts.note("committed", "retried", 0, f"retried {sequence}")
    facts.retried = {"producer_id": identity.producer_id, "epoch": identity.epoch, "sequence": 1}


def produce_once(client: SyncClient, identity: ProducerIdentity, sequence: int) -> tuple[int, int]:
    """One record of that sequence: the code and the offset of the answer."""
    records = batch_of(f"retried {sequence}".encode(), identity=identity, sequence=sequence)
    topics = [TopicProduceData(name="retried", partitions=[PartitionProduceData(index=0, records=bytes(records))])]
    answer = client.leader_request(
        RETRIED, ProduceRequest(transactional_id=None, acks=-1, timeout_ms=30_000, topics=topics), version_max=12
    )
    found = answer.responses[0].partition_responses[0]
    return found.error_code, found.base_offset


def read_in_groups(servers: str, facts: Facts) -> list[Any]:
    """Members that have read all, and have committed less. They are not closed."""
    return [read_as_classic(servers, facts), read_by_consumer_protocol(servers, facts)]


def read_as_classic(servers: str, facts: Facts) -> Consumer:
    group, end = GROUPS["classic"]
    member = Consumer(
        bootstrap_servers=servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=SESSION_MS // 4,
    )
    member.subscribe(["orders"])
    read = 0
    while read < 2 * ORDERS:
        read += len(member.poll(1.0))
    member.commit({TopicPartition("orders", 0): end, TopicPartition("orders", 1): end + 1})
    facts.note_group(group, "", {"orders-0": end, "orders-1": end + 1})
    return member


def read_by_consumer_protocol(servers: str, facts: Facts) -> confluent_kafka.Consumer:
    """KIP-848, which our own client does not speak."""
    group, end = GROUPS["consumer"]
    config = {"bootstrap.servers": servers, "group.id": group, "group.protocol": "consumer", "auto.offset.reset": "earliest"}
    member = confluent_kafka.Consumer({**config, "enable.auto.commit": False})
    member.subscribe(["orders"])
    read = 0
    while read < 2 * ORDERS:
        read += len(member.consume(100, 1.0))
    ends = [confluent_kafka.TopicPartition("orders", number, end + number) for number in (0, 1)]
    member.commit(offsets=ends, asynchronous=False)
    facts.note_group(group, "", {"orders-0": end, "orders-1": end + 1})
    return member


def main() -> None:
    servers, path = sys.argv[1:]
    facts = Facts()
    write_plainly(servers, facts)
    write_transactions(servers, facts)
    write_twice(servers, facts)
    members = read_in_groups(servers, facts)
    producer = Producer(bootstrap_servers=servers, transactional_id=OPEN_WRITER, transaction_timeout_ms=900_000)
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(PAID):
        producer.send("paid", f"open {number}".encode())
        facts.note("open", "paid", 0, f"open {number}")
    producer.flush()
    Path(path).write_text(facts.to_text())
    print("open", flush=True)
    threading.Event().wait()
    del members


if __name__ == "__main__":
    main()
