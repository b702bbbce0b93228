"""A partition is added while a consumer with auto.offset.reset=latest runs."""

from __future__ import annotations

from chaffinch import EmbeddedBroker, TopicPartition
from chaffinch.admin.topics import add_partitions
from chaffinch.client.sync_client import SyncClient
from tests.consumer.conftest import ConsumerOf
from tests.consumer.polling import poll_until, read, values_of, write


def test_records_written_before_the_partition_is_found_are_read(broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf) -> None:
    broker.create_topic(name, 1)
    consumer = consumer_of(broker, auto_offset_reset="latest", auto_offset_reset_new_partitions="earliest", metadata_max_age_ms=300)
    write(broker, name, [b"old"])
    consumer.subscribe([name])
    poll_until(lambda: len(consumer.assignment()) == 1, consumer)
    assert consumer.position(TopicPartition(name, 0)) == 1
    with SyncClient(broker.bootstrap_servers) as client:
        add_partitions(client, name, 2)
    write(broker, name, [b"early"], partition=1)
    assert values_of(read(consumer, 1)) == [b"early"]
