"""`chaffinch groups`: lists, describes and deletes groups, resets and deletes their offsets. Options are those of kafka-consumer-groups."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import typer

from chaffinch.admin.admin import Admin
from chaffinch.admin.groups import STATES, TYPES, GroupDescription, GroupListing, GroupOffset, Member, Reset
from chaffinch.admin.topics import partitions_of
from chaffinch.cli.connection import (
    AsJson,
    BootstrapServer,
    CommandConfig,
    Timeout,
    check_known,
    connect,
    new_app,
    print_deleted,
    print_separated,
    refuse_empty,
    warn,
)
from chaffinch.cli.display import heading, print_json, print_line, print_table
from chaffinch.cli.times import parse_lookup_time, parse_time_ago
from chaffinch.errors import ConfigException, KafkaException
from chaffinch.identifiers import TopicPartition, format_partitions
from chaffinch.runtime.clock import SystemClock
from chaffinch.settings import LONG_MAX

app = new_app("List, describe and delete groups, reset and delete their offsets.")

_TOPIC: Final = re.compile(r"(?P<topic>[^:]+)(?::(?P<partitions>\d{1,9}(?:,\d{1,9})*))?")

GroupName = Annotated[str, typer.Option("--group", metavar="ID", callback=refuse_empty("--group"), help="The group.")]
TopicArguments = Annotated[
    list[str] | None, typer.Option("--topic", metavar="NAME[:0,1,2]", help="A topic, or some of its partitions; may be repeated.")
]


@app.command("list")
def list_command(
    state: Annotated[list[str] | None, typer.Option("--state", help="Only groups in this state; may be repeated.")] = None,
    group_type: Annotated[list[str] | None, typer.Option("--type", help="Only groups of this type; may be repeated.")] = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """List groups with type, protocol and state."""
    check_known("--state", state, STATES)
    check_known("--type", group_type, TYPES)
    with connect(bootstrap_server, command_config, timeout) as admin:
        found = admin.list_groups(states=state or (), types=group_type or ())
    if as_json:
        print_json([_listing(listing) for listing in found])
    elif found:
        rows = [(entry.group, entry.group_type or None, entry.protocol_type or None, entry.state or None) for entry in found]
        print_table(("group", "type", "protocol", "state"), rows)


@app.command()
def describe(
    group: Annotated[list[str] | None, typer.Option("--group", metavar="ID", help="A group; may be repeated. Default: all.")] = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Show state, members, committed offsets and lag."""
    with connect(bootstrap_server, command_config, timeout) as admin:
        found = admin.describe_groups(group or None)
    if as_json:
        print_json([_details(description) for description in found])
        return
    print_separated(found, _print_description)


@app.command()
def delete(
    group: Annotated[list[str], typer.Option("--group", metavar="ID", help="A group; may be repeated.")],
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Delete groups without members, and their offsets."""
    names = list(dict.fromkeys(group))
    with connect(bootstrap_server, command_config, timeout) as admin:
        admin.delete_groups(names)
    print_deleted(names, as_json=as_json)


@app.command("reset-offsets")
def reset_offsets(
    group: GroupName,
    topic: TopicArguments = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All partitions with a committed offset.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="To the committed offset; to the end if there is none.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, max=LONG_MAX, help="To this offset.")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option("--to-datetime", metavar="TIME", help="To the first record of this time or later; UTC unless it names a zone."),
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option("--by-duration", metavar="P7D", help="To this long ago, as an ISO 8601 duration.")
    ] = None,
    shift_by: Annotated[int | None, typer.Option("--shift-by", help="By this many records forward; negative: back.")] = None,
    execute: Annotated[bool, typer.Option("--execute/--dry-run", help="Reset the offsets; default: only print the plan.")] = False,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Change the committed offsets of a group without members. Only prints the plan, unless --execute is given."""
    wall_ms = SystemClock().wall_ms()
    time_ms = None if to_datetime is None else parse_lookup_time("--to-datetime", to_datetime)
    ago_ms = None if by_duration is None else parse_time_ago("--by-duration", by_duration, wall_ms)
    target = _target(
        {
            "--to-earliest": ("to", "earliest" if to_earliest else None),
            "--to-latest": ("to", "latest" if to_latest else None),
            "--to-current": ("to", "current" if to_current else None),
            "--to-offset": ("to_offset", to_offset),
            "--to-datetime": ("to_time_ms", time_ms),
            "--by-duration": ("to_time_ms", ago_ms),
            "--shift-by": ("shift_by", shift_by),
        }
    )
    if topic and all_topics:
        raise ConfigException("--topic and --all-topics contradict each other: give one")
    if not (topic or all_topics):
        raise ConfigException("no partitions given: give --topic, or --all-topics for all with a committed offset")
    with connect(bootstrap_server, command_config, timeout) as admin:
        tps = _partitions(admin, topic) if topic else _committed(admin, group)
        plan = admin.reset_offsets(group, tps, **target, is_dry_run=not execute)
    planned = {reset.topic_partition for reset in plan}
    for tp in tps:
        if tp not in planned:
            warn(f"group {group!r} has no committed offset for {tp}: it cannot be shifted and is left out")
    _report_reset(group, plan, execute, as_json)


@app.command("delete-offsets")
def delete_offsets(
    group: GroupName,
    topic: TopicArguments = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Delete the committed offsets of a group for topics that it no longer reads."""
    if not topic:
        raise ConfigException("--topic is missing: it names the offsets to delete")
    with connect(bootstrap_server, command_config, timeout) as admin:
        tps = _partitions(admin, topic)
        committed = admin.committed_offsets(group, tps)
        admin.delete_offsets(group, tps)
    for tp in tps:
        if tp not in committed:
            warn(f"group {group!r} has no committed offset for {tp}")
    deleted = [tp for tp in tps if tp in committed]
    if as_json:
        print_json({"group": group, "deleted": [{"topic": tp.topic, "partition": tp.partition} for tp in deleted]})
    else:
        for tp in deleted:
            print_line(f"deleted the offset of {tp}")


# Arguments ----------------------------------------------------------------------------------------------------------------------------


def _target(requested: dict[str, tuple[str, Any]]) -> dict[str, Any]:
    """The argument of `Admin.reset_offsets` for the only option that is given. `requested`: argument and value, by option."""
    given = {option: {argument: value} for option, (argument, value) in requested.items() if value is not None}
    if len(given) != 1:
        raise ConfigException(f"no unique target: give one of {', '.join(given or requested)}")
    return next(iter(given.values()))


def _committed(admin: Admin, group: str) -> list[TopicPartition]:
    """Partitions with a committed offset. Raises KafkaException if there are none."""
    tps = sorted(admin.committed_offsets(group))
    if not tps:
        raise KafkaException(f"group {group!r} has no committed offsets: name topics with --topic")
    return tps


def _partitions(admin: Admin, texts: list[str]) -> list[TopicPartition]:
    """Parse values `topic` or `topic:0,1`; several values of one topic are combined. Raises ConfigException for a missing partition."""
    requested: dict[str, set[int] | None] = {}
    for text in texts:
        found = _TOPIC.fullmatch(text)
        if found is None:
            raise ConfigException(f"--topic {text!r}: expected NAME or NAME:0,1,2")
        numbers = None if found["partitions"] is None else {int(number) for number in found["partitions"].split(",")}
        before = requested.get(found["topic"], set())
        requested[found["topic"]] = None if numbers is None or before is None else before | numbers
    tps: list[TopicPartition] = []
    for topic in admin.find_topics(requested):
        known, wanted = partitions_of(topic), requested[topic.name]
        for number in wanted or ():
            if TopicPartition(topic.name, number) not in known:
                raise ConfigException(f"--topic: topic {topic.name!r} has {format_partitions(len(known))}, but not {number}")
        tps += [tp for tp in known if wanted is None or tp.partition in wanted]
    return tps


# Printing -----------------------------------------------------------------------------------------------------------------------------


def _report_reset(group: str, plan: list[Reset], is_done: bool, as_json: bool) -> None:
    for reset in plan:
        if reset.after != reset.wanted:
            end = "first" if reset.wanted < reset.after else "end"
            warn(f"{reset.topic_partition} has no offset {reset.wanted}: its {end} offset {reset.after} is used")
    if as_json:
        entries = [
            {
                "topic": reset.topic_partition.topic,
                "partition": reset.topic_partition.partition,
                "before": reset.before,
                "after": reset.after,
            }
            for reset in plan
        ]
        print_json({"group": group, "is_done": is_done, "offsets": entries})
        return
    rows = [(reset.topic_partition.topic, reset.topic_partition.partition, reset.before, reset.after) for reset in plan]
    print_table(("topic", "partition", "before", "after"), rows)
    if not is_done:
        print_line("nothing was changed: add --execute to reset the offsets")


def _print_description(description: GroupDescription) -> None:
    listing = description.listing
    facts = [listing.group_type, listing.state, f"assignor {description.assignor}" if description.assignor else ""]
    print_line(f"{heading(listing.group)}: {', '.join(filter(None, [*facts, f'coordinator {listing.coordinator}']))}")
    if description.members:
        rows = [
            (member.member_id, member.instance_id, member.client_id, member.host, _format_partitions(member))
            for member in description.members
        ]
        print_table(("member", "instance", "client", "host", "partitions"), rows, indent=2)
    if description.offsets:
        print_table(
            ("topic", "partition", "committed", "end", "lag", "member"), [_offset_row(offset) for offset in description.offsets], indent=2
        )


def _format_partitions(member: Member) -> tuple[str, ...]:
    return tuple(map(str, sorted(member.partitions)))


def _offset_row(found: GroupOffset) -> tuple[Any, ...]:
    topic, partition = found.topic_partition
    return topic, partition, found.committed, found.end, found.lag, found.member and found.member.member_id


def _listing(listing: GroupListing) -> dict[str, Any]:
    return {
        "group": listing.group,
        "type": listing.group_type,
        "protocol_type": listing.protocol_type,
        "state": listing.state,
        "coordinator": listing.coordinator,
    }


def _details(description: GroupDescription) -> dict[str, Any]:
    return {
        **_listing(description.listing),
        "assignor": description.assignor,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in sorted(member.partitions)],
            }
            for member in description.members
        ],
        "offsets": [
            {
                "topic": found.topic_partition.topic,
                "partition": found.topic_partition.partition,
                "committed": found.committed,
                "end": found.end,
                "lag": found.lag,
                "member_id": found.member.member_id if found.member else None,
            }
            for found in description.offsets
        ],
    }
