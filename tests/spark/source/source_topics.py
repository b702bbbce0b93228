"""What tests of the source do to topics: fill them, and remove their first records."""

from __future__ import annotations

from chaffinch import Producer
from chaffinch.client.sync_client import SyncClient
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic

FIRST_MS = 1_700_000_000_000


def fill(servers: str, topic: str, counts: dict[int, int], *, first_ms: int = FIRST_MS) -> None:
    """Append this many records to each partition, one batch each, values 0, 1, ... with a millisecond between them."""
    with Producer(bootstrap_servers=servers) as producer:
        for partition, count in counts.items():
            for number in range(count):
                producer.send(topic, b"%d" % number, partition=partition, timestamp_ms=first_ms + number)
            producer.flush()


def drop_first(client: SyncClient, tp: TopicPartition, before: int) -> None:
    """Remove what lies before an offset."""
    topics = [DeleteRecordsTopic(name=tp.topic, partitions=[DeleteRecordsPartition(partition_index=tp.partition, offset=before)])]
    answer = client.leader_request(tp, DeleteRecordsRequest(topics=topics, timeout_ms=10_000))
    assert answer.topics[0].partitions[0].error_code == 0


def numbers(stop: int, start: int = 0) -> list[int]:
    """The values of the records that `fill` appended, from `start` up to and without `stop`."""
    return list(range(start, stop))
