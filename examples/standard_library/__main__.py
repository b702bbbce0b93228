"""`make demo`: the main job, narrated. Exits 1 when a single row is missing, double or wrong, 2 when it could not run."""

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

from examples.standard_library.inputs import SourceFile, lay_out, list_files, standard_library
from examples.standard_library.judge import (
    NULL_KEY,
    TOO_LARGE,
    Comparison,
    compare,
    read_dead_letter_files,
    read_dead_letter_topic,
    read_topic,
    reason,
)
from examples.standard_library.processes import Broker, Failed, Query
from examples.standard_library.today import Losses, losses
from examples.standard_library.workplace import (
    BATCH_OF_BROKER_KILL,
    BATCH_OF_QUERY_KILL,
    MESSAGE_BYTES_MAX,
    PARTITIONS,
    TOPIC,
    Workplace,
    batches_expected,
    files_per_trigger,
)

LOOK_SECONDS = 0.1
"""How often the story looks at its processes; nothing but the picture depends on it."""
EXAMPLES_SHOWN = 3

console = Console()


def tell(text: str) -> None:
    console.print("[bold cyan]>[/]", escape(text))


def tell_input(root: Path, files: list[SourceFile]) -> None:
    refused = [reason(file) for file in files]
    table = Table(title=f"Input: {len(files)} files below {root}, {sum(file.size for file in files) / 1e6:.0f} MB")
    table.add_column("what must become of them")
    table.add_column("files", justify="right")
    table.add_row("written to the topic", str(refused.count(None)))
    table.add_row("set aside: no module of that name, so the key is null", str(refused.count(NULL_KEY)))
    table.add_row("set aside: larger than the topic allows", str(refused.count(TOO_LARGE)))
    console.print(table)
    tell(f"topic {TOPIC}: compacted, {PARTITIONS} partitions, max.message.bytes={MESSAGE_BYTES_MAX}")


@contextmanager
def progress_bar(workplace: Workplace, expected: int) -> Iterator[Progress]:
    """A bar over the micro-batches that Spark has committed."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        progress.add_task("micro-batches committed", total=expected)
        yield progress


def run_stream(workplace: Workplace, broker: Broker, files: list[SourceFile]) -> None:
    """The stream, with both kills. Each waits for a condition or a named step, never for a time."""
    query = Query(workplace, broker.address, files_per_trigger(files))
    tell("Spark, another process, streams the files into the topic; it takes a while to start")
    with progress_bar(workplace, batches_expected(files)) as progress:

        def look_again() -> None:
            progress.update(progress.task_ids[0], completed=workplace.batches_committed())
            time.sleep(LOOK_SECONDS)

        try:
            query.start(pause=True)
            query.wait_until(lambda: workplace.batches_committed() > BATCH_OF_BROKER_KILL, look_again)
            broker.kill()
            tell(f"broker killed (SIGKILL) after micro-batch {BATCH_OF_BROKER_KILL}; starting it again on the same directory")
            broker.start()
            query.wait_until(workplace.paused.exists, look_again)
            query.kill()
            tell(f"query killed (SIGKILL) in micro-batch {BATCH_OF_QUERY_KILL}: Kafka has committed it, Spark has not; starting it again")
            query.start(pause=False)
            query.wait(look_again)
            look_again()
        finally:
            query.kill()


def compare_all(workplace: Workplace, broker: Broker, files: list[SourceFile], root: Path) -> list[Comparison]:
    by_path = {file.path: file for file in files}
    legal = [file for file in files if reason(file) is None]
    refused = [file for file in files if reason(file) is not None]
    return [
        compare("topic", legal, read_topic(broker.address, TOPIC, by_path, root)),
        compare("dead letter topic", refused, read_dead_letter_topic(broker.address, by_path, root)),
        compare("dead letters, Parquet", refused, read_dead_letter_files(workplace, by_path, root)),
    ]


def tell_comparison(comparisons: list[Comparison]) -> None:
    table = Table(title="Counted by confluent-kafka (read_committed), compared with the list of files")
    for column in ("place", "expected", "exactly once", "missing", "double", "foreign", "wrong"):
        table.add_column(column, justify="left" if column == "place" else "right")
    for line in comparisons:
        counts = (line.expected, line.once, len(line.missing), len(line.double), len(line.foreign), len(line.wrong))
        table.add_row(line.place, *map(str, counts), style="green" if line.is_exact else "bold red")
    console.print(table)
    for line in comparisons:
        for kind in ("missing", "double", "foreign", "wrong"):
            for example in getattr(line, kind)[:EXAMPLES_SHOWN]:
                console.print(f"  {line.place}: {kind}: {example}", style="red", markup=False)


def tell_losses(found: Losses) -> None:
    table = Table(title="The same rows through confluent-kafka's own producer, same kind of topic")
    table.add_column("files")
    table.add_column("count", justify="right")
    table.add_row("with nothing wrong", str(found.legal))
    table.add_row("  of these written", str(found.written))
    table.add_row("  of these lost", str(found.lost), style="red" if found.lost else "")
    table.add_row("  of these blamed for an error of another row", str(found.wrongly_blamed), style="red" if found.wrongly_blamed else "")
    console.print(table)
    if found.example:
        console.print(f"  for example {found.example}", markup=False)


def run(workplace: Workplace) -> bool:
    root = standard_library()
    files = list_files(root)
    lay_out(files, root, workplace.links, workplace.empties)
    tell_input(root, files)
    broker = Broker(workplace)
    try:
        broker.start()
        tell(f"chaffinch broker runs as a process of its own at {broker.address}")
        run_stream(workplace, broker, files)
        comparisons = compare_all(workplace, broker, files, root)
        tell_comparison(comparisons)
        tell_losses(losses(broker.address, files, root))
        return all(line.is_exact for line in comparisons)
    finally:
        broker.stop()


def stop_in_order(number: int, _frame: object) -> NoReturn:
    """A signal to end: leave through every `finally`, so that no process of ours stays behind."""
    sys.exit(128 + number)


def main() -> int:
    started = time.monotonic()
    signal.signal(signal.SIGTERM, stop_in_order)
    workplace = Workplace(Path(tempfile.mkdtemp(prefix="chaffinch-demo-")))
    try:
        exact = run(workplace)
    except KeyboardInterrupt:
        shutil.rmtree(workplace.folder)
        return 128 + signal.SIGINT
    except SystemExit:
        shutil.rmtree(workplace.folder)
        raise
    except Failed as failure:
        console.print(str(failure), style="bold red", markup=False)
        console.print(f"everything is kept in {workplace.folder}", markup=False)
        return 2
    seconds = time.monotonic() - started
    if exact:
        console.print(f"[bold green]Every row exactly once[/], through both kills, in {seconds:.0f} s.")
        shutil.rmtree(workplace.folder)
        return 0
    console.print(f"[bold red]Rows are missing, double or wrong[/], see above; everything is kept in {workplace.folder}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
