"""`chaffinch transactions`: lists and describes transactions, finds and aborts hanging ones. Options are those of kafka-transactions."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from chaffinch.admin.admin import Admin
from chaffinch.admin.topics import partitions_of
from chaffinch.admin.transactions import (
    STATES,
    TRANSACTION_TIMEOUT_MAX_MS,
    PartitionProducer,
    TransactionDescription,
    abort_in_partition,
    check_open,
)
from chaffinch.cli.connection import AsJson, BootstrapServer, CommandConfig, Timeout, check_known, connect, new_app, refuse_empty
from chaffinch.cli.display import heading, print_json, print_line, print_table
from chaffinch.cli.times import format_time
from chaffinch.cli.topic_names import legal_topic
from chaffinch.errors import ConfigException, UnsupportedVersionException
from chaffinch.identifiers import TopicPartition, format_partitions
from chaffinch.runtime.clock import SystemClock
from chaffinch.settings import INT_MAX, LONG_MAX

app = new_app("List and describe transactions, find and abort hanging ones.")

MINUTE_MS: Final = 60_000

Topic = Annotated[str, typer.Option("--topic", metavar="NAME", callback=legal_topic, help="The topic.")]
Partition = Annotated[int, typer.Option("--partition", min=0, max=INT_MAX, help="Its partition.")]
TransactionalId = Annotated[
    str, typer.Option("--transactional-id", metavar="ID", callback=refuse_empty("--transactional-id"), help="The transactional id.")
]
_PRODUCER_TITLES: Final = (
    "topic",
    "partition",
    "producer",
    "epoch",
    "coordinator epoch",
    "last sequence",
    "last timestamp",
    "open since offset",
)


@app.command("list")
def list_command(
    state: Annotated[list[str] | None, typer.Option("--state", help="Only transactions in this state; may be repeated.")] = None,
    producer_id: Annotated[
        list[int] | None, typer.Option("--producer-id", min=0, max=LONG_MAX, help="Only transactions of this producer; may be repeated.")
    ] = None,
    duration_filter: Annotated[
        int | None,
        typer.Option("--duration-filter", min=0, max=LONG_MAX, metavar="MS", help="Only transactions open for longer than this."),
    ] = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """List transactional ids with coordinator, producer and state."""
    check_known("--state", state, STATES)
    with connect(bootstrap_server, command_config, timeout) as admin:
        found = admin.list_transactions(states=state or (), producer_ids=producer_id or (), duration_min_ms=duration_filter)
    rows = [(entry.transactional_id, entry.coordinator, entry.producer_id, entry.state) for entry in found]
    if as_json:
        print_json([dict(zip(("transactional_id", "coordinator", "producer_id", "state"), row, strict=True)) for row in rows])
    elif rows:
        print_table(("transactional id", "coordinator", "producer", "state"), rows)


@app.command()
def describe(
    transactional_id: TransactionalId,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Show the producer, state, timeout and partitions of a transactional id."""
    with connect(bootstrap_server, command_config, timeout) as admin:
        found = admin.describe_transaction(transactional_id)
    if as_json:
        print_json(_details(found))
        return
    producer = f"producer {found.producer_id} epoch {found.producer_epoch}"
    print_line(f"{heading(found.transactional_id)}: {found.state}, {producer}, timeout {found.timeout_ms} ms")
    if found.started_ms is not None:
        print_line(f"  open since {format_time(found.started_ms)}, {SystemClock().wall_ms() - found.started_ms} ms ago")
    for tp in found.partitions:
        print_line(f"  {tp}")


@app.command("describe-producers")
def describe_producers(
    topic: Topic,
    partition: Partition,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Show the producers of a partition, and their open transactions."""
    with connect(bootstrap_server, command_config, timeout) as admin:
        (tp,) = _partitions(admin, topic, partition)
        found = admin.describe_producers([tp])[tp]
    _print_producers(found, as_json)


@app.command("find-hanging")
def find_hanging(
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="NAME", callback=legal_topic, help="Search this topic only; default: all.")
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0, max=INT_MAX, help="Search this partition of it only.")] = None,
    max_transaction_timeout: Annotated[
        int, typer.Option("--max-transaction-timeout", min=0, metavar="MINUTES", help="Ignore younger transactions.")
    ] = TRANSACTION_TIMEOUT_MAX_MS // MINUTE_MS,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Find transactions that are open in a partition but unknown to the coordinator: they block readers of committed records."""
    if partition is not None and topic is None:
        raise ConfigException("--partition needs --topic")
    with connect(bootstrap_server, command_config, timeout) as admin:
        found = admin.find_hanging_transactions(_partitions(admin, topic, partition), older_than_ms=max_transaction_timeout * MINUTE_MS)
    _print_producers(found, as_json)


@app.command()
def abort(
    topic: Topic,
    partition: Partition,
    start_offset: Annotated[
        int | None, typer.Option("--start-offset", min=0, max=LONG_MAX, help="First offset of the transaction; the producer is looked up.")
    ] = None,
    producer_id: Annotated[
        int | None, typer.Option("--producer-id", min=0, max=LONG_MAX, help="The producer, for brokers that do not list producers.")
    ] = None,
    producer_epoch: Annotated[int | None, typer.Option("--producer-epoch", min=0, max=32_767, help="Its epoch.")] = None,
    coordinator_epoch: Annotated[
        int | None, typer.Option("--coordinator-epoch", min=-1, max=INT_MAX, help="The epoch of its coordinator.")
    ] = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Abort a hanging transaction in one partition. Use terminate for one that its coordinator knows."""
    if (start_offset is None) == (producer_id is None):
        raise ConfigException("give --start-offset, or --producer-id with --producer-epoch and --coordinator-epoch")
    if start_offset is not None and (producer_epoch is not None or coordinator_epoch is not None):
        raise ConfigException("--start-offset looks up the producer and its epochs: leave out --producer-epoch and --coordinator-epoch")
    if producer_id is not None and (producer_epoch is None or coordinator_epoch is None):
        raise ConfigException("--producer-id needs --producer-epoch and --coordinator-epoch")
    with connect(bootstrap_server, command_config, timeout) as admin:
        (tp,) = _partitions(admin, topic, partition)
        is_known_open = True
        if start_offset is not None:
            aborted = admin.abort_hanging_transaction(tp, start_offset)
            producer_id, producer_epoch = aborted.producer_id, aborted.producer_epoch
        else:
            assert producer_id is not None
            assert producer_epoch is not None
            assert coordinator_epoch is not None
            is_known_open = _is_known_open(admin, tp, producer_id)
            abort_in_partition(
                admin._client, tp, producer_id=producer_id, producer_epoch=producer_epoch, coordinator_epoch=coordinator_epoch
            )
    if as_json:
        print_json({"topic": topic, "partition": partition, "producer_id": producer_id, "producer_epoch": producer_epoch})
    elif is_known_open:
        print_line(f"aborted the transaction of producer {producer_id} epoch {producer_epoch} in {tp}")
    else:
        print_line(
            f"wrote an abort marker for producer {producer_id} epoch {producer_epoch} in {tp}; its broker cannot list open transactions"
        )


@app.command()
def terminate(
    transactional_id: TransactionalId,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Abort the open transaction of a transactional id and fence its producer."""
    with connect(bootstrap_server, command_config, timeout) as admin:
        admin.abort_transaction(transactional_id)
    if as_json:
        print_json({"terminated": transactional_id})
    else:
        print_line(f"terminated {transactional_id}")


# Helpers ------------------------------------------------------------------------------------------------------------------------------


def _partitions(admin: Admin, topic: str | None, partition: int | None) -> list[TopicPartition]:
    found = admin.list_topics() if topic is None else admin.find_topics([topic])
    tps = [tp for entry in found for tp in partitions_of(entry)]
    if topic is None or partition is None:
        return tps
    if TopicPartition(topic, partition) not in tps:
        raise ConfigException(f"--partition {partition}: topic {topic!r} has {format_partitions(len(tps))}")
    return [TopicPartition(topic, partition)]


def _is_known_open(admin: Admin, tp: TopicPartition, producer_id: int) -> bool:
    """Whether the partition lists the open transaction. False if the broker cannot list producers."""
    try:
        check_open(admin._client, tp, producer_id)
    except UnsupportedVersionException:
        return False
    return True


def _details(found: TransactionDescription) -> dict[str, Any]:
    return {
        "transactional_id": found.transactional_id,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "state": found.state,
        "timeout_ms": found.timeout_ms,
        "started_ms": found.started_ms,
        "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in found.partitions],
    }


def _print_producers(found: list[PartitionProducer], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "topic": producer.topic_partition.topic,
                    "partition": producer.topic_partition.partition,
                    "producer_id": producer.producer_id,
                    "producer_epoch": producer.producer_epoch,
                    "coordinator_epoch": producer.coordinator_epoch,
                    "last_sequence": producer.last_sequence,
                    "last_timestamp": producer.last_timestamp_ms,
                    "transaction_start_offset": producer.transaction_start_offset,
                }
                for producer in found
            ]
        )
    elif found:
        print_table(_PRODUCER_TITLES, [_producer_row(producer) for producer in found])


def _producer_row(found: PartitionProducer) -> tuple[Any, ...]:
    last = format_time(found.last_timestamp_ms) if found.last_timestamp_ms >= 0 else None
    facts = (found.producer_id, found.producer_epoch, found.coordinator_epoch, found.last_sequence, last, found.transaction_start_offset)
    return (*found.topic_partition, *facts)
