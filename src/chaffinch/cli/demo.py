"""`chaffinch demo`: the README's first example, step by step, on a broker in this process. It needs only the package.

A hundred records are sent to a compacted topic, one of them without a key. Chaffinch's producer writes ninety-nine. If confluent-kafka is
installed, the same records are sent through it to the same broker, and its losses are counted. With `--bootstrap-server` the demo uses a
running broker, for example Apache Kafka: it creates two topics there and deletes them at the end.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer

from chaffinch.admin import topics
from chaffinch.admin.options import ADMIN_TABLE
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.cli.connection import AsJson, open_client, parse_settings
from chaffinch.cli.display import print_json, print_text
from chaffinch.consumer.consumer import Consumer
from chaffinch.errors import KafkaException
from chaffinch.producer.producer import Producer

COUNT: Final = 100
KEYLESS: Final = 50
OURS: Final = "orders"
THEIRS: Final = "orders-of-confluent"
COMPACTED: Final = {"cleanup.policy": "compact"}
FLUSH_S: Final = 15

# Not from the environment: the demo uses a cluster only if the option names it.
Server = Annotated[
    str | None,
    typer.Option("--bootstrap-server", metavar="HOST:PORT", help="Use this cluster; two topics are created and deleted."),
]


def demo(bootstrap_server: Server = None, as_json: AsJson = False) -> None:
    """Show in a few seconds how one bad record affects its batch, with and without Chaffinch."""

    def print_line(text: str) -> None:
        if not as_json:
            print_text(text)

    with _silence(), _cluster(bootstrap_server) as (servers, which, ours_topic, theirs_topic):
        print_line(f"{which}; its topics are compacted, so every record needs a key.")
        print_line(f"{COUNT} records are sent in one batch. Record {KEYLESS} has no key.\n")
        ours = _with_chaffinch(servers, ours_topic)
        print_line(f"chaffinch        {ours['written']} written, {ours['failed']} failed")
        print_line(f"                 {ours['error']}")
        theirs = _with_confluent(servers, theirs_topic)
        if theirs is None:
            print_line("confluent-kafka  is not installed: pip install confluent-kafka, and this line counts its losses")
        else:
            innocent = f"{theirs['failed'] - 1} of them valid"
            print_line(f"confluent-kafka  {theirs['written']} written, {theirs['failed']} failed, {innocent}")
            print_line(f"                 {theirs['error']}")
        kept = _count(servers, ours_topic)
    print_line(f"\nThe topic holds {kept} records. Only the bad record is missing; the other records of its batch are written.")
    if as_json:
        print_json({"records": COUNT, "chaffinch": ours, "confluent_kafka": theirs})


@contextmanager
def _cluster(bootstrap_server: str | None) -> Iterator[tuple[str, str, str, str]]:
    """(bootstrap servers, a sentence about the broker, topic for Chaffinch, topic for confluent-kafka)."""
    if bootstrap_server is None:
        topic = {"partitions": 1, **COMPACTED}
        with EmbeddedBroker(topics={OURS: topic, THEIRS: topic}) as broker:
            servers = broker.bootstrap_servers
            yield servers, f"A broker runs in this process at {servers}", OURS, THEIRS
        return
    mark = f"chaffinch-demo-{secrets.token_hex(4)}"
    names = [f"{mark}-{name}" for name in (OURS, THEIRS)]
    with open_client(parse_settings(ADMIN_TABLE, bootstrap_server, None)) as client:  # Admin also waits, but what is created must be noted.
        created = []
        try:
            for name in names:
                topics.create_topic(client, name, partitions=1, config=COMPACTED)
                created.append(name)
                topics.wait_for_topic(client, name)
            yield bootstrap_server, f"The broker is at {bootstrap_server}", names[0], names[1]
        finally:
            if created:
                topics.delete_topics(client, created)


@contextmanager
def _silence() -> Iterator[None]:
    """Hides the log lines about the refused record."""
    log = logging.getLogger("chaffinch")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _keys() -> list[bytes | None]:
    return [None if number == KEYLESS else b"key-%d" % number for number in range(COUNT)]


def _count(servers: str, topic: str) -> int:
    """Number of records that a consumer reads."""
    with Consumer(bootstrap_servers=servers) as consumer:
        tps = consumer.partitions_for(topic)
        consumer.assign(tps)
        consumer.seek_to_beginning()
        found, ends = 0, consumer.end_offsets(tps)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            found += consumer.poll_table(1.0).num_rows
    return found


def _with_chaffinch(servers: str, topic: str) -> dict[str, Any]:
    with Producer(bootstrap_servers=servers, linger_ms=1_000) as producer:
        futures = [producer.send(topic, b"value", key=key) for key in _keys()]
        producer.flush()
    errors = [error for future in futures if (error := future.exception()) is not None]
    return {"written": _count(servers, topic), "failed": len(errors), "error": _one_line(errors)}


def _with_confluent(servers: str, topic: str) -> dict[str, Any] | None:
    try:
        from confluent_kafka import Producer as Confluent
    except ImportError:
        return None
    errors: list[Any] = []
    producer = Confluent({"bootstrap.servers": servers, "linger.ms": 1_000})
    for key in _keys():
        producer.produce(topic, b"value", key, on_delivery=lambda error, _: errors.append(error) if error is not None else None)
    producer.flush(FLUSH_S)
    return {"written": _count(servers, topic), "failed": len(errors), "error": _one_line(errors)}


def _one_line(errors: list[Any]) -> str | None:
    """The text of the first error."""
    if not errors:
        return None
    return str(errors[0]) if isinstance(errors[0], KafkaException) else str(errors[0].str())
