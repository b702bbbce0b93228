"""`chaffinch produce`: writes lines, JSON lines, CSV, Parquet or Arrow to a topic and reports the outcome of every row.

Pieces of the input are sent with `Producer.send_table`, which blocks while the producer's memory is full; the number of pieces in flight is
limited. A bad row does not stop the others. With `--transactional-id` all rows are written in one transaction, or none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, Annotated, Final

import typer

from chaffinch.admin import options, topics
from chaffinch.cli.connection import AsJson, BootstrapServer, CommandConfig, Timeout, open_client, parse_settings, timeout_ms
from chaffinch.cli.display import print_error, print_json, print_line
from chaffinch.cli.main import EXIT_REFUSED
from chaffinch.cli.old_format_run import OldFormatRun
from chaffinch.cli.option_source import SourcedOption
from chaffinch.cli.produce_run import ProduceRun, Run, reject_unknown_partitions, report_interruption
from chaffinch.cli.progress import progress
from chaffinch.cli.rows import record_texts
from chaffinch.cli.rows import sources as row_sources
from chaffinch.cli.rows.rejected import RejectedRows, rejected_rows
from chaffinch.cli.rows.sinks import FORMATS, format_of
from chaffinch.cli.rows.sources import Piece
from chaffinch.cli.rows.standard_input import standard_input
from chaffinch.cli.topic_names import legal_topic
from chaffinch.errors import ConfigException, KafkaException
from chaffinch.identifiers import pluralize
from chaffinch.producer.core.options import PRODUCER_OPTIONS, parse_options
from chaffinch.producer.producer import Producer
from chaffinch.records.compression import from_name
from chaffinch.records.old_formats.encoding import CODECS
from chaffinch.settings import Settings

# Progress counts bytes for these formats, rows for the others.
TEXT_FORMATS: Final = ("lines", "json", "csv")


def produce(
    topic: Annotated[str, typer.Option("--topic", metavar="NAME", callback=legal_topic, help="The topic to write to.")],
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="File to read; default, or with -: stdin.")] = None,
    file_format: Annotated[
        str | None, typer.Option("--format", metavar="|".join(FORMATS), help="Default: by the file's suffix, else lines.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", help="Lines: the text before it is the key; \\t is a tab.")
    ] = None,
    null_marker: Annotated[str | None, typer.Option("--null-marker", help="Lines and CSV: text for null.")] = None,
    key_field: Annotated[
        str | None, typer.Option("--key-field", metavar="NAME", help="All but lines: write the row as JSON, with this field as the key.")
    ] = None,
    rejected: Annotated[
        str | None, typer.Option("--rejected", metavar="FILE", help="File for rejected rows and their errors: .jsonl or .parquet.")
    ] = None,
    compression: Annotated[
        str | None, typer.Option("--compression", metavar="none|gzip|snappy|lz4|zstd", help="Codec of the batches.")
    ] = None,
    acks: Annotated[
        str | None, typer.Option("--acks", metavar="all|1|0", help="Replicas that must have a record before it counts as written.")
    ] = None,
    idempotent: Annotated[
        bool | None, typer.Option("--idempotent/--no-idempotent", help="Write each batch once, even if it is sent again (default).")
    ] = None,
    transactional_id: Annotated[
        str | None, typer.Option("--transactional-id", metavar="ID", help="Write everything in one transaction: all rows or none.")
    ] = None,
    message_format: Annotated[
        int | None,
        typer.Option("--message-format", min=0, max=1, help="Send message sets of Kafka before 0.11, to brokers that accept them."),
    ] = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Write the rows of a file, or of stdin, to a topic."""
    given = (
        SourcedOption("compression.type", compression, "--compression"),
        SourcedOption("acks", acks, "--acks"),
        SourcedOption("enable.idempotence", idempotent, "--idempotent" if idempotent else "--no-idempotent"),
        SourcedOption("transactional.id", transactional_id, "--transactional-id"),
        SourcedOption("max.block.ms", timeout_ms(timeout), "--timeout"),
    )
    settings = parse_settings(PRODUCER_OPTIONS, bootstrap_server, command_config, given, parse_options)
    if message_format is not None:
        _check_old_format(message_format, settings)
    path = None if file == "-" else file
    name = _format(file_format, path, key_separator=key_separator, null_marker=null_marker, key_field=key_field)
    with report_interruption() as register_run, ExitStack() as stack:
        source = stack.enter_context(_open_source(path))
        _check_rejected(source, rejected)
        shared = settings.given & {option.name for option in options.CLIENT_OPTIONS}
        asked = {name: settings[name] for name in shared} | {"default.api.timeout.ms": timeout_ms(timeout)}
        client = stack.enter_context(open_client(options.ADMIN_TABLE.parse(asked)))
        (found,) = topics.find_topics(client, [topic])
        pieces = _pieces(name, source, key_separator=key_separator, null_marker=null_marker, key_field=key_field)
        bad = stack.enter_context(rejected_rows(topic, "line" if name in ("lines", "json") else "row", rejected))
        is_text = name in TEXT_FORMATS
        show = stack.enter_context(progress(f"{path or 'stdin'} to {topic}", _size(source) if is_text else None, is_bytes=is_text))
        pieces = reject_unknown_partitions(pieces, found, bad)
        try:
            if message_format is None:
                written = _write(settings, topic, pieces, bad, show, register_run)
            else:
                register_run(run := OldFormatRun(client, found, bad, show, message_format, settings))
                written = run.send(pieces)
        except KafkaException as error:
            raise _with_source_name(error, path) from None
    _report(topic, written, bad, rejected, settings, as_json=as_json)


def _write(
    settings: Settings,
    topic: str,
    pieces: Iterator[Piece],
    bad: RejectedRows,
    show: Callable[[int], None],
    register_run: Callable[[Run], None],
) -> int:
    """Send all pieces. Returns the number of rows written.

    After an interruption the outcomes are known once the producer is closed; rows rejected by then are written to the rejected file.
    """
    run: ProduceRun | None = None
    try:
        with Producer({option: settings[option] for option in settings.given}) as producer:
            register_run(run := ProduceRun(producer, topic, bad, show))
            return run.in_transaction(pieces) if settings["transactional.id"] else run.send(pieces)
    except (KeyboardInterrupt, SystemExit):
        if run is not None:
            run.collect_done()
        raise


# Input --------------------------------------------------------------------------------------------------------------------------------


def _format(name: str | None, path: str | None, **given: str | None) -> str:
    chosen = format_of(path, "FILE") if name is None else name
    if chosen not in FORMATS:
        raise ConfigException(f"--format {chosen!r}: it must be one of {', '.join(FORMATS)}")
    for option, formats in _OPTION_FORMATS.items():
        if given[option] is not None and chosen not in formats:
            raise ConfigException(f"--{option.replace('_', '-')} is for {', '.join(formats)}; the format is {chosen}")
    if given["key_separator"] == "":
        raise ConfigException("--key-separator is empty")
    return chosen


_OPTION_FORMATS: Final = {
    "key_separator": ("lines",),
    "null_marker": ("lines", "csv"),
    "key_field": ("json", "csv", "parquet", "arrow"),
}


def _check_old_format(magic: int, settings: Settings) -> None:
    compression = from_name(settings["compression.type"])
    if settings["transactional.id"] is not None or ("enable.idempotence" in settings.given and settings["enable.idempotence"]):
        raise ConfigException(f"--message-format {magic} is neither idempotent nor transactional: both need format 2")
    if settings["acks"] == "0":
        raise ConfigException(f"--message-format {magic} waits for each response: --acks must be all or 1")
    if compression not in CODECS[magic]:
        names = ", ".join(codec.name.lower() for codec in CODECS[magic])
        raise ConfigException(f"--message-format {magic} supports {names}, not {settings['compression.type']}")


def _pieces(name: str, source: IO[bytes], *, key_separator: str | None, null_marker: str | None, key_field: str | None) -> Iterator[Piece]:
    match name:
        case "json":
            return row_sources.read_json(source, record_texts.record_of if key_field is None else record_texts.keyed_object(key_field))
        case "csv":
            return row_sources.read_csv(source, key_field=key_field, null_marker=null_marker)
        case "parquet":
            return row_sources.read_parquet(source, key_field)
        case "arrow":
            return row_sources.read_arrow(source, key_field)
        case _:
            separator = None if key_separator is None else key_separator.replace("\\t", "\t")
            return row_sources.read_lines(source, key_separator=separator, null_marker=null_marker)


@contextmanager
def _open_source(path: str | None) -> Iterator[IO[bytes]]:
    if path is None:
        if sys.stdin is None:
            raise KafkaException("stdin is closed: name a file, or redirect stdin")
        with standard_input() as source:
            yield source
        return
    with open(path, "rb") as file:
        yield file


def _check_rejected(source: IO[bytes], rejected: str | None) -> None:
    """Raises ConfigException if the rejected file is the input, under any name: opening it would truncate the input."""
    try:
        if rejected is not None and os.path.samestat(os.fstat(source.fileno()), os.stat(rejected)):
            raise ConfigException(f"--rejected {rejected!r} is the input file")
    except OSError:  # The file does not exist yet, or the stream has no descriptor.
        return


def _size(source: IO[bytes]) -> int | None:
    """Size of a file in bytes; None for a pipe or terminal."""
    try:
        return os.fstat(source.fileno()).st_size or None
    except OSError:
        return None


# Output -------------------------------------------------------------------------------------------------------------------------------


def _report(topic: str, written: int, bad: RejectedRows, path: str | None, settings: Settings, *, as_json: bool) -> None:
    if as_json:
        print_json({"topic": topic, "written": written, "rejected": bad.count, "rejected_file": path, "first_rejection": bad.first})
    elif not bad.count and settings["acks"] == "0":
        print_line(f"{pluralize(written, 'row')} sent to {topic}: with acks=0 the broker does not acknowledge them")
    elif not bad.count:
        print_line(f"{pluralize(written, 'row')} written to {topic}")
    if bad.count:
        done = f"{written} {'sent' if settings['acks'] == '0' else 'written'}"
        rest = "nothing was written: the transaction was aborted" if settings["transactional.id"] else done
        kept = f"all of them are in {path}" if path else "--rejected FILE saves them"
        count = f"{pluralize(bad.count, 'row')} rejected"
        print_error(f"{topic}: {count}, {rest}; {bad.first}; {kept}")
        raise typer.Exit(EXIT_REFUSED)


def _with_source_name(error: KafkaException, path: str | None) -> KafkaException:
    """Add the name of the input to an error about it."""
    if type(error) is KafkaException:
        return KafkaException(f"{path or 'stdin'}: {error.message}")
    return error
