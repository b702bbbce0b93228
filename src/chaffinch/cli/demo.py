"""`chaffinch demo`: the README's first example, told step by step on a broker inside this process. Needs nothing but the package.

A hundred records go to a compacted topic, one of them without a key. Chaffinch's producer writes ninety-nine. Where confluent-kafka is
installed, the same records go through it, to the same broker, and what it loses is counted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.cli.connection import AsJson, print_json
from chaffinch.errors import KafkaException
from chaffinch.producer.producer import Producer

COUNT: Final = 100
KEYLESS: Final = 50
OURS: Final = "orders"
THEIRS: Final = "orders-of-confluent"
TOPIC: Final = {"partitions": 1, "cleanup.policy": "compact"}
FLUSH_S: Final = 15


def demo(as_json: AsJson = False) -> None:
    """Show in a few seconds what one bad record does to its batch, and what it need not do."""

    def say(text: str) -> None:
        if not as_json:
            print(text, flush=True)

    with _silence(), EmbeddedBroker(topics={OURS: TOPIC, THEIRS: TOPIC}) as broker:
        say(f"A broker runs in this process at {broker.bootstrap_servers}; its topics are compacted, so every record needs a key.")
        say(f"{COUNT} records are sent in one batch. Record {KEYLESS} has no key.\n")
        ours = _with_chaffinch(broker)
        say(f"chaffinch        {ours['written']} written, {ours['failed']} failed")
        say(f"                 {ours['error']}")
        theirs = _with_confluent(broker)
        if theirs is None:
            say("confluent-kafka  is not installed: pip install confluent-kafka, and this line counts what it loses")
        else:
            innocent = f"{theirs['failed'] - 1} of them with nothing wrong"
            say(f"confluent-kafka  {theirs['written']} written, {theirs['failed']} failed, {innocent}")
            say(f"                 {theirs['error']}")
        kept = broker.read(OURS).num_rows
    say(f"\nThe topic holds {kept} records. The one that is missing is known by name, and its neighbours never noticed.")
    if as_json:
        print_json({"records": COUNT, "chaffinch": ours, "confluent_kafka": theirs})


@contextmanager
def _silence() -> Iterator[None]:
    """The broker's log of refusals is not part of the story."""
    log = logging.getLogger("chaffinch")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _keys() -> list[bytes | None]:
    return [None if number == KEYLESS else b"key-%d" % number for number in range(COUNT)]


def _with_chaffinch(broker: EmbeddedBroker) -> dict[str, Any]:
    with Producer(bootstrap_servers=broker.bootstrap_servers, linger_ms=1_000) as producer:
        futures = [producer.send(OURS, b"value", key=key) for key in _keys()]
        producer.flush()
    errors = [error for future in futures if (error := future.exception()) is not None]
    return {"written": broker.read(OURS).num_rows, "failed": len(errors), "error": _one_line(errors)}


def _with_confluent(broker: EmbeddedBroker) -> dict[str, Any] | None:
    try:
        from confluent_kafka import Producer as Confluent
    except ImportError:
        return None
    errors: list[Any] = []
    producer = Confluent({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 1_000})
    for key in _keys():
        producer.produce(THEIRS, b"value", key, on_delivery=lambda error, _: errors.append(error) if error is not None else None)
    producer.flush(FLUSH_S)
    return {"written": broker.read(THEIRS).num_rows, "failed": len(errors), "error": _one_line(errors)}


def _one_line(errors: list[Any]) -> str | None:
    """The first error in words."""
    if not errors:
        return None
    return str(errors[0]) if isinstance(errors[0], KafkaException) else str(errors[0].str())
