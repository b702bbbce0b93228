"""`chaffinch topics`: lists, describes, creates, alters and deletes topics of any Kafka cluster. Options are those of kafka-topics."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from chaffinch.admin.topics import NO_LEADER, Topic, TopicDescription
from chaffinch.cli.connection import AsJson, BootstrapServer, CommandConfig, Timeout, connect, new_app, print_deleted, print_separated, warn
from chaffinch.cli.display import print_error, print_json, print_line, print_table
from chaffinch.cli.main import EXIT_REFUSED
from chaffinch.cli.option_source import parse_pairs
from chaffinch.cli.topic_names import legal_topic, legal_topics
from chaffinch.errors import ConfigException, TopicExistsException
from chaffinch.identifiers import kafka_id, pluralize
from chaffinch.settings import INT_MAX

app = new_app("List, describe, create, alter and delete topics.")

TopicName = Annotated[str, typer.Option("--topic", metavar="NAME", callback=legal_topic, help="The topic.")]
TopicNames = Annotated[list[str], typer.Option("--topic", metavar="NAME", callback=legal_topics, help="A topic; may be repeated.")]
Configs = Annotated[list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="A topic option; may be repeated.")]


@app.command("list")
def list_command(
    exclude_internal: Annotated[bool, typer.Option("--exclude-internal", help="Leave out internal topics.")] = False,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Print the names of all topics, one per line."""
    with connect(bootstrap_server, command_config, timeout) as admin:
        found = admin.list_topics(with_internal=not exclude_internal)
    if as_json:
        print_json([_summary(topic) for topic in found])
    else:
        for topic in found:
            print_line(topic.name)


@app.command()
def describe(
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="NAME", callback=legal_topics, help="A topic; may be repeated. Default: all."),
    ] = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Show partitions, leaders, in-sync replicas, offsets, and options that differ from their defaults."""
    with connect(bootstrap_server, command_config, timeout) as admin:
        found = admin.describe_topics(topic or None)
    if as_json:
        print_json([_details(description) for description in found])
    else:
        print_separated(found, _print_description)
    count = sum(description.unknown_count for description in found)
    if count:
        print_error(f"the offsets of {pluralize(count, 'partition')} are unknown: {found[0].offsets_error}")
        raise typer.Exit(EXIT_REFUSED)


@app.command()
def create(
    topic: TopicName,
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, max=INT_MAX, help="Number of partitions; default: the broker's.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", min=1, max=32_767, help="Replicas of each partition; default: the broker's.")
    ] = None,
    config: Configs = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Do nothing if the topic exists.")] = False,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Create a topic."""
    settings = parse_pairs("--config", config)
    with connect(bootstrap_server, command_config, timeout) as admin:
        try:
            description = admin.create_topic(topic, partitions=partitions, replication_factor=replication_factor, configs=settings)
        except TopicExistsException:
            if not if_not_exists:
                raise
            if not as_json:
                return
            (description,) = admin.describe_topics([topic])
    _report_changed(description, as_json, "created")


@app.command()
def alter(
    topic: TopicName,
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, max=INT_MAX, help="New number of partitions; it can only grow.")
    ] = None,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None, typer.Option("--delete-config", metavar="NAME", help="An option to reset to its default; may be repeated.")
    ] = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Add partitions to a topic, or change its options."""
    changed, deleted = parse_pairs("--config", config), delete_config or []
    if not (partitions or changed or deleted):
        raise ConfigException("nothing to alter: give --partitions, --config or --delete-config")
    if both := sorted(set(changed) & set(deleted)):
        raise ConfigException(f"{both[0]} is given in --config and in --delete-config")
    with connect(bootstrap_server, command_config, timeout) as admin:
        admin.find_topics([topic])
        if changed or deleted:
            if partitions:  # Validated first, so that a refusal leaves the options unchanged.
                admin.add_partitions(topic, partitions, is_dry_run=True)
            admin.alter_topic_configs(topic, changed, deleted=deleted)
        if partitions:
            admin.add_partitions(topic, partitions)
        (description,) = admin.describe_topics([topic])
    _report_changed(description, as_json, "altered")


@app.command()
def delete(
    topic: TopicNames,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Ignore topics that do not exist.")] = False,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Delete topics with all their records."""
    with connect(bootstrap_server, command_config, timeout) as admin:
        names = list(dict.fromkeys(topic))
        if if_exists:
            known = {found.name for found in admin.list_topics()}
            names = [name for name in names if name in known]
        else:
            admin.find_topics(names)
        admin.delete_topics(names)
    print_deleted(names, as_json=as_json)


# Printing -----------------------------------------------------------------------------------------------------------------------------


def _report_changed(description: TopicDescription, as_json: bool, done: str) -> None:
    topic = description.topic
    if as_json:
        print_json(_details(description))
    else:
        print_line(f"{done} {topic.name}: {pluralize(len(topic.partitions), 'partition')}, replication factor {topic.replication_factor}")
    for warning in description.warnings:
        warn(warning)


def _print_description(description: TopicDescription) -> None:
    topic = description.topic
    counts = f"{pluralize(len(topic.partitions), 'partition')}, replication factor {topic.replication_factor}"
    print_line(f"{topic.name}: {counts}, id {kafka_id(topic.topic_id)}{', internal' if topic.is_internal else ''}")
    for warning in description.warnings:
        print_line(f"  warning: {warning}")
    for entry in description.configs.values():
        if entry.differs_from_default:
            origin = "" if entry.source == "topic" else f" ({entry.source})"
            print_line(f"  {entry.name}={'(secret)' if entry.is_sensitive else entry.value}{origin}")
    titles = ("partition", "leader", "epoch", "replicas", "in sync", "first offset", "end offset")
    rows = [
        (
            part.partition,
            "none" if part.leader == NO_LEADER else part.leader,
            part.leader_epoch,
            ",".join(map(str, part.replicas)),
            ",".join(map(str, part.in_sync)),
            part.first_offset,
            part.end_offset,
        )
        for part in topic.partitions
    ]
    print_table(titles, rows, indent=2)


def _summary(topic: Topic) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "id": kafka_id(topic.topic_id),
        "is_internal": topic.is_internal,
        "partition_count": len(topic.partitions),
        "replication_factor": topic.replication_factor,
    }


def _details(description: TopicDescription) -> dict[str, Any]:
    return {
        **_summary(description.topic),
        "partitions": [
            {
                "partition": part.partition,
                "leader": None if part.leader == NO_LEADER else part.leader,
                "leader_epoch": part.leader_epoch,
                "replicas": list(part.replicas),
                "in_sync": list(part.in_sync),
                "first_offset": part.first_offset,
                "end_offset": part.end_offset,
            }
            for part in description.topic.partitions
        ],
        "configs": {
            entry.name: {"value": entry.value, "source": entry.source}
            for entry in description.configs.values()
            if entry.differs_from_default
        },
        "warnings": list(description.warnings),
    }
