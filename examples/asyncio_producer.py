"""Sending from asyncio coroutines with `AsyncProducer`: a failed record does not fail the others.

It needs a broker:

    python -m examples.asyncio_producer --bootstrap-server localhost:9092 orders
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from chaffinch import AsyncProducer, RecordMetadata
from chaffinch.errors import KafkaException


async def main(bootstrap_servers: str, topic: str, values: list[bytes]) -> list[RecordMetadata | BaseException]:
    """The outcome of each value, in their order."""
    async with AsyncProducer({"bootstrap.servers": bootstrap_servers}) as producer:
        # `send` waits while `buffer.memory` is full, so that a fast source does not use all memory.
        futures = [await producer.send(topic, value, key=value) for value in values]
        return await asyncio.gather(*futures, return_exceptions=True)


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
    failed = sum(isinstance(outcome, BaseException) for outcome in outcomes)
    print(f"{chosen.topic}: {len(outcomes) - failed} written, {failed} failed")
