"""Sending from asyncio coroutines: futures of `send` and `send_table` can be awaited in any running loop.

`send` blocks for the metadata of a new topic and for memory, and would block the loop. So the topic is looked up in a thread first, and no
more records are in flight than fit into `buffer.memory`.

    python -m examples.asyncio_producer --bootstrap-server localhost:9092 orders
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from chaffinch import Producer, RecordMetadata
from chaffinch.errors import KafkaException

IN_FLIGHT_MAX = 1_000


async def send_all(producer: Producer, topic: str, values: list[bytes]) -> list[RecordMetadata | KafkaException]:
    """Send all values. Returns their outcomes in order; a failed record does not fail others."""
    await asyncio.to_thread(producer.partitions_for, topic)
    slots = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def send(value: bytes) -> RecordMetadata | KafkaException:
        async with slots:
            try:
                return await producer.send(topic, value, key=value)
            except KafkaException as error:
                return error

    return list(await asyncio.gather(*(send(value) for value in values)))


async def main(bootstrap_servers: str, topic: str, values: list[bytes]) -> list[RecordMetadata | KafkaException]:
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    try:
        return await send_all(producer, topic, values)
    finally:
        await asyncio.to_thread(producer.close)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Send from coroutines.")
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("topic")
    chosen = parser.parse_args()
    try:
        outcomes = asyncio.run(main(chosen.bootstrap_server, chosen.topic, [b"one", b"two", b"three"]))
    except KafkaException as error:
        sys.exit(f"stop: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted: records that were not reported as written may exist")
    for outcome in outcomes:
        print(outcome)
    failed = sum(isinstance(outcome, KafkaException) for outcome in outcomes)
    print(f"{chosen.topic}: {len(outcomes) - failed} written, {failed} failed")
