"""`make bench-spark`: compares our sink and source with Spark's own Kafka connector in one run, in the same Spark, on the same broker.

It uses PySpark 4.2, the newest release with a connector, with `local[2]`. The broker (Apache Kafka, or `--broker chaffinch`) is a process
on the same cores. Both sides take turns, their order alternates, and each write has its own topic; a ratio is the median over rounds. Rows
come from Parquet: a key of 12 bytes, 100 bytes of JSON of which a third is noise, 4 partitions. Spark's connector reads back the rows that
we wrote, and the run fails unless each exists once; the rows of the connector are counted.

- writing exactly once in one transaction vs the connector, which is at-least-once: with defaults, with equal compression, and with both
  tuned; our at-least-once mode vs the tuned connector;
- a Python sink that discards its rows vs the connector: the cost of Spark before any sink;
- one bad row in a hundred (no key, compacted topic, dead letters to a topic) vs none;
- reading, with the lengths of values summed;
- micro-batches, empty and of ten rows, vs a Python no-op sink;
- growth: rows, partitions, cores.

A failed load is reported in one line, and the others continue.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from benchmarks.broker import ready_made_batch
from benchmarks.broker_vs_apache import apache_kafka
from benchmarks.brokers import BrokerProcess, chaffinch_broker
from benchmarks.wire_client import WireClient, produce_request
from tests.interop.spark_environments import connector_jars, variables

OURS, THEIRS, NOTHING = "ours", "theirs", "nothing"
PARTITIONS = 4
READ_BATCH_RECORDS = 2000
BAD_EVERY = 100
EXTRA_MS_MAX = 100
LOG_BYTES_SHOWN = 4000
GROWTH_ROUNDS_MAX = 2
ROWS_MAX, ROWS_MAX_LARGE = 10_000_000, 100_000_000
WARM_UP_ROUNDS = 2
"""Java compiles what it runs often: the first million rows of a session cost twice as much as later ones, on either side."""
TUNED = {"kafka.batch.size": "262144", "kafka.linger.ms": "5"}
LZ4 = {"kafka.compression.type": "lz4"}
SHORT_ROWS = {"spark.sql.execution.arrow.maxBytesPerBatch": "2147483647", "spark.sql.execution.arrow.maxRecordsPerBatch": "2000"}
"""Our best tuning for short rows, from docs/reference/spark-session.md."""
AT_LEAST_ONCE = {"deliveryGuarantee": "at-least-once"}
DEAD_LETTERS = "letters"
TOLERANT = {"errors.tolerance": "all", "errors.dead.letter.queue.topic.name": DEAD_LETTERS}


class LoadFailed(Exception):
    """A load produced no result; the text is one line."""


class Spark:
    """A Spark session with both formats, in its own process and Python environment. Use it in a `with` statement."""

    def __init__(self, cores: int, folder: Path) -> None:
        folder.mkdir()
        command = [sys.executable, "-m", "benchmarks.spark_loads", f"local[{cores}]", connector_jars(), str(folder)]
        environment = {**variables("spark-4.2"), "TMPDIR": str(folder)}
        self._log = folder / "log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        self.version = self._read_response()["spark"]

    def run_load(self, load: str, **parts: object) -> Mapping[str, Any]:
        """Run a load of `spark_loads.py` and return its result."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"load": load, **parts}) + "\n")
        self._process.stdin.flush()
        response = self._read_response()
        if "failed" in response:
            raise LoadFailed(f"{parts.get('side', '')} {load}: {response['failed']}".strip())
        return response

    def _read_response(self) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the session has ended with status {self._process.wait()}: {self._log.read_text()[-LOG_BYTES_SHOWN:]}")
        response: Mapping[str, Any] = json.loads(line)
        return response

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """How one side writes. `session`: Spark settings. `keyless`: one row in a hundred has no key; the topic is compacted."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    session: Mapping[str, str] = field(default_factory=dict)
    keyless: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two ways to write `count` rows. `aim`: minimum of the first rate over the second."""

    name: str
    first: Side
    second: Side
    count: int
    partitions: int = PARTITIONS
    is_compacted: bool = False
    aim: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Millions of rows a second, and CPU-seconds per million rows of the Spark processes and of the broker."""

    rate: float
    spark_cpu: float
    broker_cpu: float

    @classmethod
    def median(cls, figures: Sequence[Figure]) -> Figure:
        return cls(**{name: statistics.median(getattr(figure, name) for figure in figures) for name in cls.__slots__})

    def __str__(self) -> str:
        return f"{self.rate:5.2f} M rows/s, CPU {self.spark_cpu:5.2f} + {self.broker_cpu:4.2f}"


def comparisons(count: int) -> Sequence[Comparison]:
    ours, theirs = Side(name=OURS), Side(name=THEIRS)
    ours_lz4, theirs_lz4 = Side(name=OURS, options=LZ4), Side(name=THEIRS, options=LZ4)
    tuned, tuned_lz4 = Side(name=THEIRS, options=TUNED), Side(name=THEIRS, options={**TUNED, **LZ4})
    ours_tuned, ours_tuned_lz4 = Side(name=OURS, session=SHORT_ROWS), Side(name=OURS, options=LZ4, session=SHORT_ROWS)
    at_least_once = Side(name=OURS, options=AT_LEAST_ONCE, session=SHORT_ROWS)
    tolerant, clean = Side(name=OURS, options=TOLERANT, keyless=True), Side(name=OURS, options=TOLERANT)
    return (
        Comparison(name="write, vs defaults", first=ours, second=theirs, count=count, aim=2.0),
        Comparison(name="write lz4, vs defaults", first=ours_lz4, second=theirs_lz4, count=count, aim=2.0),
        Comparison(name="write, both tuned", first=ours_tuned, second=tuned, count=count, aim=1.5),
        Comparison(name="write lz4, both tuned", first=ours_tuned_lz4, second=tuned_lz4, count=count, aim=1.5),
        Comparison(name="write at-least-once, both tuned", first=at_least_once, second=tuned, count=count),
        Comparison(name="into nothing, vs defaults", first=Side(name=NOTHING), second=theirs, count=count),
        Comparison(name="into nothing, both tuned", first=Side(name=NOTHING, session=SHORT_ROWS), second=tuned, count=count),
        Comparison(name="write 1 % bad, vs none", first=tolerant, second=clean, count=count, is_compacted=True, aim=0.8),
    )


class SparkBenchmark:
    """Runs comparisons with one broker and one session.

    `name` is the prefix of topic names. Each topic has a new name, because a deleted topic may be recreated automatically: a producer of
    the connector still requests its metadata.
    """

    def __init__(self, name: str, broker: BrokerProcess, spark: Spark, rows: Path, rounds: int) -> None:
        self._name = name
        self.broker = broker
        self.spark = spark
        self.rounds = rounds
        self.missed: list[str] = []
        self._rows = rows
        self._topics = 0

    def rows(self, count: int, *, keyless: bool = False) -> str:
        """The Parquet directory with this many rows, created once."""
        path = self._rows / f"{count}{'-keyless' if keyless else ''}"
        if not (path / "_SUCCESS").exists():
            self.spark.run_load("rows", path=str(path), count=count, keyless_every=BAD_EVERY if keyless else 0)
        return str(path)

    def _new_topic(self) -> str:
        self._topics += 1
        return f"{self._name}-{self._topics}"

    def warm_up(self, count: int) -> None:
        comparison = against_defaults("warming up", count)
        for side in WARM_UP_ROUNDS * (comparison.first, comparison.second):
            self.attempt(comparison.name, partial(self.write_and_measure, comparison, side))

    def attempt(self, name: str, load: Callable[[], object]) -> None:
        """Run a load; print one line if it fails."""
        try:
            load()
        except LoadFailed as failure:
            print(f"{name:<35} FAILED: {failure}", flush=True)
            self.missed.append(f"{name}: failed")

    def remove_rows(self, count: int, *, unless: int) -> None:
        """Remove the Parquet directory with this many rows, which no later comparison reads."""
        if count != unless:
            shutil.rmtree(self._rows / str(count), ignore_errors=True)

    def compare(self, comparison: Comparison, rounds: int | None = None) -> None:
        """Run both sides in turn and print a line with their medians."""
        self.attempt(comparison.name, lambda: self._compare(comparison, rounds or self.rounds))

    def _compare(self, comparison: Comparison, rounds: int) -> None:
        figures: list[tuple[Figure, Figure]] = []
        for turn in range(rounds):
            sides = {
                side_name: getattr(comparison, side_name) for side_name in (("first", "second") if turn % 2 == 0 else ("second", "first"))
            }
            results = {side_name: self.write_and_measure(comparison, side) for side_name, side in sides.items()}
            figures.append((results["first"], results["second"]))
        self.report(comparison.name, figures, comparison.aim)

    def report(self, name: str, figures: Sequence[tuple[Figure, Figure]], aim: float | None) -> None:
        ratio = statistics.median(first.rate / second.rate for first, second in figures)
        first, second = (Figure.median(side) for side in zip(*figures, strict=True))
        is_met = aim is None or ratio >= aim
        aimed = "" if aim is None else f"  (at least {aim:g})"
        print(f"{name:<35} {first}   {second}   ratio {ratio:5.2f}{aimed}{'' if is_met else '  MISSED'}", flush=True)
        if not is_met:
            self.missed.append(f"{name}: {ratio:.2f}, at least {aim:g}")

    def write_and_measure(self, comparison: Comparison, side: Side) -> Figure:
        """Write to a new topic and check that every row exists."""
        wire = WireClient(self.broker)
        topic = self._new_topic()
        wire.create_topic(topic, comparison.partitions, **({"cleanup_policy": "compact"} if comparison.is_compacted else {}))
        # If the first batch of an idempotent producer is sent too early and the second is not, it retries the first until it expires.
        wire.await_leaders(topic, comparison.partitions)
        has_dead_letters = DEAD_LETTERS in side.options.values()
        if has_dead_letters:
            wire.create_topic(DEAD_LETTERS, PARTITIONS)
        try:
            return self._write_and_verify(comparison, side, topic, wire)
        finally:
            for name in [topic, DEAD_LETTERS] if has_dead_letters else [topic]:
                wire.delete_topic(name)
            wire.close()

    def _write_and_verify(self, comparison: Comparison, side: Side, topic: str, wire: WireClient) -> Figure:
        path = self.rows(comparison.count, keyless=side.keyless)
        os.sync()  # Earlier writes must not be measured now.
        broker_cpu = self.broker.cpu_seconds
        options = {**self._servers, **side.options, "topic": topic}
        results = self.spark.run_load("write", side=side.name, path=path, options=options, session=side.session)
        broker_cpu = self.broker.cpu_seconds - broker_cpu
        if side.name == OURS:
            self._check_rows(path, topic, "key is not null")
            if DEAD_LETTERS in side.options.values():
                self._check_rows(path, DEAD_LETTERS, "key is null")
        elif side.name == THEIRS:
            found = sum(wire.read_back(topic, partition, 0) for partition in range(comparison.partitions))
            self._expect(found == comparison.count, f"{topic}: {comparison.count} rows were written, {found} exist")
        millions = comparison.count / 1e6
        return Figure(rate=millions / results["seconds"], spark_cpu=results["cpu_seconds"] / millions, broker_cpu=broker_cpu / millions)

    @staticmethod
    def _expect(condition: bool, text: str) -> None:
        if not condition:
            raise LoadFailed(text)

    def _check_rows(self, path: str, topic: str, where: str) -> None:
        found = self.spark.run_load("is_whole", path=path, options={**self._servers, "subscribe": topic}, where=where)
        text = f"{topic}: rows and the sum of their hashes are {found['found']}, expected {found['expected']}"
        self._expect(found["is_whole"], text)

    @property
    def _servers(self) -> Mapping[str, str]:
        return {"kafka.bootstrap.servers": self.broker.bootstrap_servers}

    def compare_reads(self, name: str, count: int, aim: float | None) -> None:
        """Read a topic of ready-made batches with both sides in turn."""
        self.attempt(name, lambda: self._compare_reads(name, count, aim))

    def _compare_reads(self, name: str, count: int, aim: float | None) -> None:
        wire = WireClient(self.broker)
        topic = self._new_topic()
        wire.create_topic(topic, PARTITIONS)
        batch, count_each = ready_made_batch(READ_BATCH_RECORDS), max(1, count // PARTITIONS // READ_BATCH_RECORDS)
        for partition in range(PARTITIONS):
            # `frame` has sent one batch to learn the size of its response.
            wire.pipeline(*wire.frame(produce_request(topic, partition, batch)), count_each - 1)
        count = count_each * PARTITIONS * READ_BATCH_RECORDS
        figures: list[tuple[Figure, Figure]] = []
        for turn in range(self.rounds):
            results = {side: self._read(side, topic, count) for side in ((OURS, THEIRS) if turn % 2 == 0 else (THEIRS, OURS))}
            figures.append((results[OURS], results[THEIRS]))
        self.report(name, figures, aim)
        wire.delete_topic(topic)
        wire.close()

    def _read(self, side: str, topic: str, count: int) -> Figure:
        broker_cpu = self.broker.cpu_seconds
        results = self.spark.run_load("read", side=side, options={**self._servers, "subscribe": topic})
        broker_cpu = self.broker.cpu_seconds - broker_cpu
        self._expect(results["count"] == count, f"{topic}: {count} rows were written, {side} read {results['count']}")
        millions = count / 1e6
        return Figure(rate=millions / results["seconds"], spark_cpu=results["cpu_seconds"] / millions, broker_cpu=broker_cpu / millions)

    def micro_batches(self, name: str, where: str) -> None:
        """Compare micro-batches of our sink and the connector's with those of a no-op sink."""
        self.attempt(name, lambda: self._micro_batches(name, where))

    def _micro_batches(self, name: str, where: str) -> None:
        wire = WireClient(self.broker)
        medians: dict[str, list[float]] = {}
        for turn in range(self.rounds):
            sides = (NOTHING, OURS, THEIRS)
            for side in sides if turn % 2 == 0 else reversed(sides):
                topic = self._new_topic()
                wire.create_topic(topic, PARTITIONS)
                options = {} if side == NOTHING else {**self._servers, "topic": topic}
                medians.setdefault(side, []).append(self.spark.run_load("micro_batches", side=side, options=options, where=where)["ms"])
                wire.delete_topic(topic)
        wire.close()
        extra_ms = statistics.median(ours - nothing for ours, nothing in zip(medians[OURS], medians[NOTHING], strict=True))
        ours, theirs, nothing = (statistics.median(medians[side]) for side in (OURS, THEIRS, NOTHING))
        is_met = extra_ms <= EXTRA_MS_MAX
        text = f"{name:<35} {ours:5.0f} ms, Spark's sink {theirs:4.0f} ms, a no-op sink {nothing:4.0f} ms   {extra_ms:4.0f} ms more"
        print(f"{text}  (at most {EXTRA_MS_MAX}){'' if is_met else '  MISSED'}", flush=True)
        if not is_met:
            self.missed.append(f"{name}: {extra_ms:.0f} ms more, at most {EXTRA_MS_MAX}")


def two_cores(benchmark: SparkBenchmark, arguments: argparse.Namespace, count: int) -> None:
    for comparison in comparisons(count):
        if arguments.only in comparison.name:
            benchmark.compare(comparison)
    if arguments.only in "read":
        benchmark.compare_reads("read", int(10_000_000 * arguments.scale), 1.0)
    for name, where in (("micro-batches, empty", "value < 0"), ("micro-batches of ten rows", "true")):
        if arguments.only in name:
            benchmark.micro_batches(name, where)
    growth_rounds = min(GROWTH_ROUNDS_MAX, arguments.rounds)
    if arguments.only in "rows":
        size = 10_000
        while size <= (ROWS_MAX_LARGE if arguments.large else ROWS_MAX):
            benchmark.compare(against_defaults(f"rows: {size:,}", size), growth_rounds if size <= ROWS_MAX else 1)
            benchmark.remove_rows(size, unless=count)
            size *= 10
    for partitions in (1, 4, 16, 64) if arguments.only in "partitions" else ():
        benchmark.compare(against_defaults(f"partitions: {partitions}", count, partitions), growth_rounds)


def one_core(benchmark: SparkBenchmark, arguments: argparse.Namespace, count: int) -> None:
    if arguments.only in "cores":
        benchmark.compare(against_defaults("cores: 1, write", count), min(GROWTH_ROUNDS_MAX, arguments.rounds))
        benchmark.compare_reads("cores: 1, read", int(10_000_000 * arguments.scale), None)


def against_defaults(name: str, count: int, partitions: int = PARTITIONS) -> Comparison:
    return Comparison(name=name, first=Side(name=OURS), second=Side(name=THEIRS), count=count, partitions=partitions)


@contextmanager
def broker(name: str, folder: Path) -> Iterator[BrokerProcess]:
    with chaffinch_broker(str(folder / "broker")) if name == "chaffinch" else apache_kafka() as running:
        yield running


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full number of rows: 4 M written, 10 M read")
    parser.add_argument("--large", action="store_true", help="100 M rows too: ten minutes more, and 35 GB of disk")
    parser.add_argument("--only", default="", help="comparisons whose name contains this; rows, partitions, cores: growth")
    parser.add_argument("--broker", choices=("apache", "chaffinch"), default="apache")
    arguments = parser.parse_args()
    count = max(20_000, int(4_000_000 * arguments.scale))
    sessions = [(2, two_cores)] if arguments.only != "cores" else []
    sessions += [(1, one_core)] if arguments.only in "cores" else []
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with broker(arguments.broker, folder) as running:
            for cores, run_comparisons in sessions:
                with Spark(cores, folder / f"spark-{cores}") as spark:
                    title = f"Spark {spark.version}, local[{cores}], {running.name}: ours, Spark's connector, ours over it; median of"
                    print(f"{title} {arguments.rounds} rounds; CPU-seconds per million rows of Spark + broker", flush=True)
                    benchmark = SparkBenchmark(f"cores-{cores}", running, spark, folder / "rows", arguments.rounds)
                    benchmark.warm_up(count)
                    run_comparisons(benchmark, arguments, count)
                    missed += benchmark.missed
    for text in missed:
        print(f"target missed: {text}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
