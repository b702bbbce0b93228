"""`make demo`: runs the demo and prints each step. Exits with 1 if a row is missing, duplicated or wrong, with 2 if it could not run."""

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.standard_library.baseline import Losses, losses
from examples.standard_library.inputs import SourceFile, create_input_tree, list_files, standard_library
from examples.standard_library.processes import Broker, JobFailed, Query
from examples.standard_library.verification import (
    NULL_KEY,
    TOO_LARGE,
    Comparison,
    compare,
    read_dead_letter_files,
    read_dead_letter_topic,
    read_topic,
    reason,
)
from examples.standard_library.workspace import (
    BROKER_KILL_BATCH,
    MESSAGE_BYTES_MAX,
    PARTITIONS,
    QUERY_KILL_BATCH,
    TOPIC,
    Workspace,
    batches_expected,
    files_per_trigger,
)

POLL_INTERVAL_S = 0.1
"""Interval of polling the processes; only the progress bar depends on it."""
EXAMPLES_SHOWN = 3

console = Console()


def print_step(text: str) -> None:
    console.print("[bold cyan]>[/]", escape(text))


def print_input(root: Path, files: list[SourceFile]) -> None:
    refused = [reason(file) for file in files]
    table = Table(title=f"Input: {len(files)} files below {root}, {sum(file.size for file in files) / 1e6:.0f} MB")
    table.add_column("expected outcome")
    table.add_column("files", justify="right")
    table.add_row("written to the topic", str(refused.count(None)))
    table.add_row("dead letter: no module of that name, so the key is null", str(refused.count(NULL_KEY)))
    table.add_row("dead letter: larger than the topic allows", str(refused.count(TOO_LARGE)))
    console.print(table)
    print_step(f"topic {TOPIC}: compacted, {PARTITIONS} partitions, max.message.bytes={MESSAGE_BYTES_MAX}")


@contextmanager
def progress_bar(workspace: Workspace, expected: int) -> Iterator[Progress]:
    """A progress bar of the micro-batches that Spark has committed."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        progress.add_task("micro-batches committed", total=expected)
        yield progress


def run_stream(workspace: Workspace, broker: Broker, files: list[SourceFile]) -> None:
    """Run the stream with both kills. Each waits for a condition or a named step, never for a time."""
    query = Query(workspace, broker.address, files_per_trigger(files))
    print_step("Spark, another process, streams the files into the topic; it takes a while to start")
    with progress_bar(workspace, batches_expected(files)) as progress:

        def poll() -> None:
            progress.update(progress.task_ids[0], completed=workspace.batches_committed())
            time.sleep(POLL_INTERVAL_S)

        try:
            query.start(pause=True)
            query.wait_until(lambda: workspace.batches_committed() > BROKER_KILL_BATCH, poll)
            broker.kill()
            print_step(f"broker killed (SIGKILL) after micro-batch {BROKER_KILL_BATCH}; starting it again on the same directory")
            broker.start()
            query.wait_until(workspace.paused.exists, poll)
            query.kill()
            print_step(
                f"query killed (SIGKILL) in micro-batch {QUERY_KILL_BATCH}: Kafka has committed it, Spark has not; starting it again"
            )
            query.start(pause=False)
            query.wait(poll)
            poll()
        finally:
            query.kill()


def compare_all(workspace: Workspace, broker: Broker, files: list[SourceFile], root: Path) -> list[Comparison]:
    by_path = {file.path: file for file in files}
    legal = [file for file in files if reason(file) is None]
    refused = [file for file in files if reason(file) is not None]
    return [
        compare("topic", legal, read_topic(broker.address, TOPIC, by_path, root)),
        compare("dead letter topic", refused, read_dead_letter_topic(broker.address, by_path, root)),
        compare("dead letters, Parquet", refused, read_dead_letter_files(workspace, by_path, root)),
    ]


def print_comparison(comparisons: list[Comparison]) -> None:
    table = Table(title="Counted by confluent-kafka (read_committed), compared with the list of files")
    for column in ("location", "expected", "exactly once", "missing", "double", "foreign", "wrong"):
        table.add_column(column, justify="left" if column == "location" else "right")
    for line in comparisons:
        counts = (line.expected, line.once, len(line.missing), len(line.double), len(line.foreign), len(line.wrong))
        table.add_row(line.location, *map(str, counts), style="green" if line.is_exact else "bold red")
    console.print(table)
    for line in comparisons:
        for kind in ("missing", "double", "foreign", "wrong"):
            for example in getattr(line, kind)[:EXAMPLES_SHOWN]:
                console.print(f"  {line.location}: {kind}: {example}", style="red", markup=False)


def print_losses(found: Losses) -> None:
    table = Table(title="The same rows through confluent-kafka's own producer, same kind of topic")
    table.add_column("files")
    table.add_column("count", justify="right")
    table.add_row("valid", str(found.legal))
    table.add_row("  of these written", str(found.written))
    table.add_row("  of these lost", str(found.lost), style="red" if found.lost else "")
    table.add_row("  of these failed because of another row", str(found.wrongly_blamed), style="red" if found.wrongly_blamed else "")
    console.print(table)
    if found.example:
        console.print(f"  for example {found.example}", markup=False)


def run(workspace: Workspace) -> bool:
    root = standard_library()
    files = list_files(root)
    create_input_tree(files, root, workspace.links, workspace.empties)
    print_input(root, files)
    broker = Broker(workspace)
    try:
        broker.start()
        print_step(f"chaffinch broker runs in its own process at {broker.address}")
        run_stream(workspace, broker, files)
        comparisons = compare_all(workspace, broker, files, root)
        print_comparison(comparisons)
        print_losses(losses(broker.address, files, root))
        return all(line.is_exact for line in comparisons)
    finally:
        broker.stop()


def exit_on_signal(number: int, _frame: object) -> NoReturn:
    """Signal handler: exit through every `finally`, so that no child process is left."""
    sys.exit(128 + number)


def main() -> int:
    started = time.monotonic()
    signal.signal(signal.SIGTERM, exit_on_signal)
    workspace = Workspace(Path(tempfile.mkdtemp(prefix="chaffinch-demo-")))
    try:
        exact = run(workspace)
    except KeyboardInterrupt:
        shutil.rmtree(workspace.folder)
        return 128 + signal.SIGINT
    except SystemExit:
        shutil.rmtree(workspace.folder)
        raise
    except JobFailed as failure:
        console.print(str(failure), style="bold red", markup=False)
        console.print(f"everything is kept in {workspace.folder}", markup=False)
        return 2
    seconds = time.monotonic() - started
    if exact:
        console.print(f"[bold green]Every row exactly once[/], through both kills, in {seconds:.0f} s.")
        shutil.rmtree(workspace.folder)
        return 0
    console.print(f"[bold red]Rows are missing, double or wrong[/], see above; everything is kept in {workspace.folder}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
