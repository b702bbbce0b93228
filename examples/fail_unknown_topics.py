"""Example 2 of KIP-1038: records for an unknown topic fail at once, unless the topic is important; then the producer waits for it.

By default the producer retries for `max.block.ms` and then raises TimeoutException. A broker that creates topics automatically
(`auto.create.topics.enable`, on by default) has no unknown topics: start it with `--config auto.create.topics.enable=false`.

    python -m examples.fail_unknown_topics --bootstrap-server localhost:9092 some-topic
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from chaffinch import Producer, ProducerExceptionHandler, ProducerRecord, RetriableResponse
from chaffinch.errors import KafkaException, UnknownTopicOrPartitionException

IMPORTANT = "important-topic"


class WaitForImportantTopics(ProducerExceptionHandler):
    def handle_unknown_topic_or_partition(self, record: ProducerRecord, exception: UnknownTopicOrPartitionException) -> RetriableResponse:
        return RetriableResponse.RETRY if record.topic == IMPORTANT else RetriableResponse.FAIL


def send(bootstrap_servers: str, topic: str, transactional_id: str | None = None) -> KafkaException | None:
    """Send one record, in a transaction if an id is given. Returns its error, or None."""
    options = {"bootstrap.servers": bootstrap_servers, "custom.exception.handler.class": WaitForImportantTopics}
    with Producer({**options, "transactional.id": transactional_id}) as producer, maybe_transaction(producer, transactional_id):
        future = producer.send(topic, "someMessage")
        producer.flush()
        error = future.exception()
        if error is None:
            print(f"{topic}: written at offset {future.result().offset}")
            return None
        print(f"{topic}: {error}")
        assert isinstance(error, KafkaException), "futures of the producer fail with KafkaException only"
        return error


@contextmanager
def maybe_transaction(producer: Producer, transactional_id: str | None) -> Iterator[None]:
    if transactional_id is None:
        yield
        return
    producer.init_transactions()
    with producer.transaction():
        yield


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Send a record to a topic that may not exist.")
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("topic")
    chosen = parser.parse_args()
    try:
        sys.exit(send(chosen.bootstrap_server, chosen.topic) is not None)
    except KafkaException as error:
        sys.exit(f"stop: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted: records that were not reported as written may exist")
