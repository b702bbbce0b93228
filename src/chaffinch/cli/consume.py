"""`chaffinch consume`: writes the records of a topic as lines, JSON lines, CSV, Parquet or Arrow.

It reads up to the end offsets found at its start; with `--follow` it never stops. `--group` starts from the committed offsets of a group
and commits to it without joining it, like a simple consumer: it reads all requested partitions and shares none with members.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import PurePath
from typing import IO, Annotated, Final

import typer

from chaffinch.admin import group_offsets, offsets, options, topics
from chaffinch.admin.reading import RecordReader
from chaffinch.cli.connection import BootstrapServer, CommandConfig, Timeout, open_client, parse_settings, timeout_option
from chaffinch.cli.consume_run import ConsumeRun, UnwritableRecord
from chaffinch.cli.display import print_error, terminal_text
from chaffinch.cli.option_source import SourcedOption
from chaffinch.cli.progress import progress
from chaffinch.cli.rows.outputs import open_replacement
from chaffinch.cli.rows.sinks import BINARY_FORMATS, FORMATS, SCHEMA, SUFFIXES, format_of, open_sink
from chaffinch.cli.times import parse_lookup_time
from chaffinch.cli.topic_names import legal_topic
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import ConfigException, KafkaException, OffsetOutOfRangeException, Stored
from chaffinch.identifiers import NO_OFFSET, OFFSET_EARLIEST, OFFSET_LATEST, TopicPartition, format_partitions, pluralize
from chaffinch.signals import deferred_signals

NULL_TEXT: Final = "null"
"""Default of `--null-marker`: the text for null in lines."""

_WORDS: Final = {"earliest": OFFSET_EARLIEST, "latest": OFFSET_LATEST}


def consume(
    topic: Annotated[str, typer.Option("--topic", metavar="NAME", callback=legal_topic, help="The topic to read.")],
    output: Annotated[str | None, typer.Option("--output", metavar="FILE", help="File to write; default, or with -: stdout.")] = None,
    file_format: Annotated[
        str | None, typer.Option("--format", metavar="|".join(FORMATS), help="Default: by the file's suffix, else lines.")
    ] = None,
    fields: Annotated[
        str | None,
        typer.Option("--fields", metavar="NAME,...", help=f"Fields to write, from {', '.join(SCHEMA.names)}; default: all."),
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", help="Lines: print the key, then this text, before the value.")
    ] = None,
    null_marker: Annotated[str | None, typer.Option("--null-marker", help="Lines: text for null; default: null.")] = None,
    partition: Annotated[list[int] | None, typer.Option("--partition", min=0, help="A partition; may be repeated. Default: all.")] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Start with the first record.")] = False,
    offset: Annotated[
        str | None, typer.Option("--offset", metavar="N|earliest|latest", help="Start at this offset of each partition.")
    ] = None,
    from_timestamp: Annotated[
        str | None, typer.Option("--from-timestamp", metavar="MS|TIME", help="Start with the first record of this time or later.")
    ] = None,
    max_messages: Annotated[int | None, typer.Option("--max-messages", min=1, help="Stop after this many records.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Do not stop at the end; wait for more records.")] = False,
    isolation_level: Annotated[
        str | None, typer.Option("--isolation-level", metavar="read_committed|read_uncommitted", help="Default: read_committed.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="ID", help="Start at this group's committed offsets and commit to it, without joining it."),
    ] = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout: Timeout = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Print the records of a topic, or write them to a file."""
    given = (SourcedOption("isolation.level", isolation_level, "--isolation-level"), timeout_option(timeout))
    settings = parse_settings(options.READING_TABLE, bootstrap_server, command_config, given)
    output = None if output == "-" else output
    name = _format(file_format, output, as_json=as_json)
    _check_text_options(name, key_separator, null_marker, group, output)
    columns = _columns(fields, name)
    starting = _parse_start(from_beginning, offset, from_timestamp)
    with _report_interruption(output) as register, ExitStack() as stack:
        client = stack.enter_context(open_client(settings))
        tps = _partitions_to_read(client, topic, partition)
        starts = _start_offsets(client, tps, starting, group, follow=follow)
        ends = None if follow else offsets.latest(client, tps, isolation=settings["isolation.level"])
        reader = RecordReader(client, starts, ends=ends, settings=settings, records_max=max_messages)
        null_text = NULL_TEXT if null_marker is None else null_marker
        out = stack.enter_context(open_replacement(output, is_followed=follow))
        file: IO[bytes] = terminal_text(out.file) if out.file.isatty() and name not in BINARY_FORMATS else out.file
        with deferred_signals():  # If the file were closed before its sink, Python would print an error.
            sink = stack.enter_context(
                open_sink(name, file, columns, key_separator=key_separator, null_marker=null_text, is_file=output is not None)
            )
        show = stack.enter_context(progress("reading", _expected_count(starts, ends, max_messages), is_wanted=output is not None))
        run = ConsumeRun(reader, sink, out, file_format=name, columns=columns, commit=partial(_commit, client, group, starts, reader))
        register(run)
        try:
            run.run(show)
        except UnwritableRecord as error:
            raise KafkaException(
                f"{error.message}; {_format_written(run.written_count, output)}{_format_group_position(group, error.tp, run)}"
            ) from None


@contextmanager
def _report_interruption(output: str | None) -> Iterator[Callable[[ConsumeRun], None]]:
    """On Ctrl-C or SIGTERM: print the number of records in the output file. Yields a function that registers the run."""
    runs: list[ConsumeRun] = []
    try:
        yield runs.append
    except (KeyboardInterrupt, SystemExit):
        if output is not None:
            written_count = runs[0].written_count if runs else 0
            print_error(f"interrupted: {_format_written(written_count, output)}")
        raise


def _format_written(written_count: int, output: str | None) -> str:
    return f"{pluralize(written_count, 'record')} in {output or 'the output'}" if written_count else "nothing written"


def _format_group_position(group: str | None, tp: TopicPartition, run: ConsumeRun) -> str:
    """The group's next offset in the partition of the record that ended the run."""
    if group is None:
        return ""
    offset = run.committed.get(tp)
    return f"; group {group!r} " + (f"keeps its offset in {tp}" if offset is None else f"continues at {tp}, offset {offset}")


def _commit(
    client: SyncClient,
    group: str | None,
    starts: Mapping[TopicPartition, int],
    reader: RecordReader,
    positions: Mapping[TopicPartition, int],
) -> Mapping[TopicPartition, int]:
    """Commit the positions of written records only, however the command ends. Returns the committed positions."""
    changed = {tp: position for tp, position in positions.items() if position != starts[tp]}
    if not changed or group is None:
        return {}
    group_offsets.commit_offsets(client, group, changed, reader.topic_ids)
    return changed


# Arguments ----------------------------------------------------------------------------------------------------------------------------


def _format(name: str | None, output: str | None, *, as_json: bool) -> str:
    if as_json:
        # An unknown suffix does not contradict any format.
        if (name or SUFFIXES.get(PurePath(output or "").suffix.lower(), "json")) not in ("json", *([] if name else ["lines"])):
            raise ConfigException(f"--json contradicts {f'--format {name}' if name else f'--output {output}'}: give one")
        name = "json"
    chosen = format_of(output, "--output") if name is None else name
    if chosen not in FORMATS:
        raise ConfigException(f"--format {chosen!r}: it must be one of {', '.join(FORMATS)}")
    if chosen in BINARY_FORMATS and output is None and sys.stdout.isatty():
        raise ConfigException(f"--format {chosen} is not for terminals: name a file with --output, or redirect stdout")
    return chosen


def _check_text_options(name: str, key_separator: str | None, null_marker: str | None, group: str | None, output: str | None) -> None:
    """Raises ConfigException for options that the format does not use, and for empty values."""
    for option, text in (("--key-separator", key_separator), ("--null-marker", null_marker)):
        if text is not None and name != "lines":
            raise ConfigException(f"{option} is for lines; the format is {name}")
    for option, text in (("--key-separator", key_separator), ("--group", group), ("--output", output)):
        if text == "":
            raise ConfigException(f"{option} is empty: give it a value, or leave it out")


def _columns(fields: str | None, name: str) -> list[str]:
    if fields is None or name == "lines":
        if fields is not None:
            raise ConfigException("--fields is for json, csv, parquet and arrow; lines have the value, and with --key-separator the key")
        return list(SCHEMA.names)
    columns = [field.strip() for field in fields.split(",")]
    for column in columns:
        if column not in SCHEMA.names or columns.count(column) > 1:
            raise ConfigException(f"--fields {fields!r}: {column!r} is not one of {', '.join(SCHEMA.names)}, or is repeated")
    return columns


def _parse_start(from_beginning: bool, offset: str | None, from_timestamp: str | None) -> tuple[int | None, int | None]:
    """(offset or sentinel, timestamp in ms); each is None if not given."""
    choices = {"--from-beginning": from_beginning, "--offset": offset is not None, "--from-timestamp": from_timestamp is not None}
    given = [name for name, is_given in choices.items() if is_given]
    if len(given) > 1:
        raise ConfigException(f"{given[0]} and {given[1]} contradict each other: give one")
    if from_timestamp is not None:
        return None, parse_lookup_time("--from-timestamp", from_timestamp)
    if offset is None:
        return (OFFSET_EARLIEST if from_beginning else None), None
    if offset in _WORDS:
        return _WORDS[offset], None
    if not (offset.isascii() and offset.isdecimal() and len(offset) < 20) or int(offset) >= 2**63:
        raise ConfigException(f"--offset {offset!r}: it must be earliest, latest or a whole number")
    return int(offset), None


def _partitions_to_read(client: SyncClient, topic: str, numbers: list[int] | None) -> list[TopicPartition]:
    (found,) = topics.find_topics(client, [topic])
    tps = topics.partitions_of(found)
    for number in numbers or ():
        if TopicPartition(topic, number) not in tps:
            raise ConfigException(f"--partition {number}: topic {topic!r} has {format_partitions(len(tps))}")
    return tps if not numbers else [TopicPartition(topic, number) for number in sorted(set(numbers))]


def _start_offsets(
    client: SyncClient, tps: list[TopicPartition], starting: tuple[int | None, int | None], group: str | None, *, follow: bool
) -> dict[TopicPartition, int]:
    """Start offsets: as requested, else the committed ones, else the beginning, or with `--follow` the end."""
    offset, time_ms = starting
    if offset is not None and offset >= 0:
        return _check_in_range(client, dict.fromkeys(tps, offset))
    if time_ms is not None:
        found = offsets.list_offsets(client, dict.fromkeys(tps, time_ms))
        without_match = [tp for tp, start in found.items() if start == NO_OFFSET]
        return {**found, **offsets.latest(client, without_match)}
    committed: Mapping[TopicPartition, int] = {}
    if group is not None and offset is None:
        committed = {tp: found.offset for tp, found in group_offsets.committed_offsets(client, group, tps).items()}
    default = offset if offset is not None else OFFSET_LATEST if follow else OFFSET_EARLIEST
    unknown = [tp for tp in tps if tp not in committed]
    found = offsets.list_offsets(client, dict.fromkeys(unknown, default))
    return {tp: committed.get(tp, found.get(tp, 0)) for tp in tps}


def _check_in_range(client: SyncClient, starts: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return `starts`. Raises OffsetOutOfRangeException for an offset before the first or after the end offset."""
    first, end = offsets.earliest(client, starts), offsets.latest(client, starts)
    for tp, start in starts.items():
        if not first[tp] <= start <= end[tp]:
            text = f"offset {start} does not exist: the partition begins at {first[tp]} and ends at {end[tp]}"
            raise OffsetOutOfRangeException(text, topic_partition=tp, stored=Stored.NO, api="ListOffsets")
    return starts


def _expected_count(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int] | None, max_messages: int | None
) -> int | None:
    if ends is None:
        return max_messages
    total = sum(max(0, ends[tp] - start) for tp, start in starts.items())
    return total if max_messages is None else min(total, max_messages)
