"""`chaffinch replay`: writes dead letters to their topics exactly once, optionally repaired.

It runs a local Spark whose log is discarded: errors are one line, and a terminal shows a status line.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from chaffinch.cli.connection import AsJson, BootstrapServer, CommandConfig, checked_settings, merged_options
from chaffinch.cli.display import print_error, print_json, print_line
from chaffinch.cli.main import EXIT_REFUSED
from chaffinch.cli.option_source import parse_pairs
from chaffinch.cli.progress import status_line
from chaffinch.cli.topic_names import legal_topic
from chaffinch.identifiers import pluralize

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from chaffinch.spark.replay.replaying import ReplayPlan, ReplayReport

_TOKEN_HELP: Final = "Write all dead letters once under this name, replayed before or not; a replay without it writes them again."


def replay(
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="NAME", callback=legal_topic, help="The dead letter topic.")
    ] = None,
    parquet: Annotated[str | None, typer.Option("--parquet", metavar="PATH", help="The directory of dead letters in Parquet.")] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TOPIC", callback=legal_topic, help="The topic to write to; default: the original topic of each."),
    ] = None,
    repair: Annotated[
        list[str] | None,
        typer.Option(
            "--repair", metavar="COLUMN=SQL",
            help="New value of a column, as an SQL expression over the dead letter's columns; may be repeated.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="ERROR", help="Only dead letters with this error, such as INVALID_RECORD; may be repeated."),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL", help="Only dead letters for which this condition over their columns is true."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing; show which would still be rejected.")] = False,
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="NAME", help=_TOKEN_HELP),
    ] = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Write dead letters to their topics, each once. Those that are still rejected become dead letters again.

    Replayed dead letters are recorded in the dead letter topic, or their file is moved to `_replayed`: the next call continues from
    there. Dead letters that a query wrote both to a topic and to Parquet files are written once, from either source. Files of an
    earlier version do not name the topic: give --topic with --parquet. --repair sets the columns key, value, headers, timestamp,
    partition and topic. Its expressions, and --where, can also read error_code, error_name, error_message, error_group, query and
    batch. The exit status is 1 if some are still rejected.
    """
    with _report_interruption():
        from chaffinch.spark.options import KAFKA_PREFIX
        from chaffinch.spark.replay.plan import COMMAND, WRITING
        from chaffinch.spark.replay.replaying import ReplayPlan

        entries = merged_options(bootstrap_server, command_config)
        unused = checked_settings(COMMAND, entries).ignored
        given = {KAFKA_PREFIX + entry.kafka_name: entry.value for entry in entries if entry.kafka_name not in unused}
        writing_names = {option.name for option in WRITING.options}
        plan = ReplayPlan(
            client={name: value for name, value in given.items() if name not in writing_names},
            writing={name: value for name, value in given.items() if name in writing_names},
            topic=topic, path=parquet, to=to, repairs=parse_pairs("--repair", repair), only=tuple(only or ()), where=where,
            token=token, is_dry_run=dry_run,
        )  # fmt: skip
        report = _run_replay(plan)
    _report(plan, report, as_json=as_json)


@contextmanager
def _report_interruption() -> Iterator[None]:
    """On Ctrl-C or SIGTERM: print on one line of stderr how much was written."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as interruption:
        written = "; ".join(getattr(interruption, "__notes__", ["nothing was written"]))
        print_error(f"interrupted: {written}")
        raise


def _run_replay(plan: ReplayPlan) -> ReplayReport:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from chaffinch.spark.error_texts import first_line, tag_of
    from chaffinch.spark.java import JavaNotFound
    from chaffinch.spark.refusals import Refusal
    from chaffinch.spark.replay.replaying import check_cluster, replay_dead_letters

    report = None
    try:
        check_cluster(plan)
        with status_line("starting Spark") as now, _quiet_session() as spark:
            now(f"replaying the dead letters of {plan.path or plan.topic}" + (" (dry run)" if plan.is_dry_run else ""))
            report = replay_dead_letters(spark, plan)
        return report
    except (KeyboardInterrupt, SystemExit) as interruption:
        if report is not None and report.read and not plan.is_dry_run:
            interruption.add_note("all letters replayed so far are written")
        raise
    except (Refusal, JavaNotFound, PySparkException, Py4JError) as error:
        text = str(error)
        print_error(f"{first_line(tag_of(text), text)}")
        raise typer.Exit(EXIT_REFUSED) from None


@contextmanager
def _quiet_session() -> Iterator[SparkSession]:
    from chaffinch.spark import session

    with tempfile.TemporaryDirectory(prefix="chaffinch-replay-") as folder, _redirect_stderr(Path(folder) / "stderr"):
        spark = session("chaffinch-replay", config={"spark.sql.warehouse.dir": folder, "spark.sql.session.timeZone": "UTC"})
        try:
            yield spark
        finally:
            # After an interrupted call the next one reads its response and fails. This process ends, and its JVM with it.
            with suppress(Exception):
                spark.stop()


@contextmanager
def _redirect_stderr(path: Path) -> Iterator[None]:
    """Redirect descriptor 2 to a file: Java, Spark's log and its workers write to the stderr that they inherit."""
    kept = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _report(plan: ReplayPlan, report: ReplayReport, *, as_json: bool) -> None:
    source = plan.path or str(plan.topic)
    rejected = sum(report.still_rejected.values())
    if as_json:
        print_json({
            "source": source, "dry_run": plan.is_dry_run, "repetition": report.is_repetition, "read": report.read,
            "written": report.written, "written_before": report.written_before,
            "written_before_by": dict(sorted(report.written_before_by.items())), "not_selected": report.not_selected,
            "dropped": dict(sorted(report.dropped.items())),
            "still_rejected": dict(sorted(report.still_rejected.items())), "examples": list(report.examples),
        })  # fmt: skip
    elif report.is_repetition and not report.read:
        print_line(f"{source}: nothing written: already replayed under the token {plan.token}")
    else:
        print_line(f"{source}: {_summary(report, is_dry_run=plan.is_dry_run)}")
        for example in report.examples:
            print_line(f"  {example}")
    if rejected:
        raise typer.Exit(EXIT_REFUSED)


def _summary(report: ReplayReport, *, is_dry_run: bool) -> str:
    """The outcome of each dead letter that was read, or would be in a dry run. Each is in exactly one count."""
    rejected, before = sum(report.still_rejected.values()), report.written_before
    parts = [f"{report.written - before} {'would be written' if is_dry_run else 'written now'}"]
    if before:
        by = "; ".join(f"{count} by {name}" for name, count in sorted(report.written_before_by.items())) or "by another replay"
        verb = ("was " if before == 1 else "were ") if is_dry_run else ""
        parts.append(f"{before} {verb}written before ({by})")
    if report.dropped:
        parts.append(f"{sum(report.dropped.values())} left out by the handler ({_by_error(report.dropped)})")
    names = f" ({_by_error(report.still_rejected)})" if rejected else ""
    parts.append(f"{rejected} {'would still be rejected' if is_dry_run else 'still rejected'}{names}")
    line = f"{pluralize(report.read, 'dead letter')} read: {', '.join(parts)}"
    return line + (f"; {report.not_selected} not selected" if report.not_selected else "")


def _by_error(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
