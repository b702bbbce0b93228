"""`make bench-producer`: compares our producer and consumer with confluent-kafka, on `chaffinch broker` and on Apache Kafka, in one run.

Each client is its own process. Both take turns on the same broker, so that other work of the machine affects both. A ratio is the median
over rounds. Values have 100 bytes; producers are idempotent and all records acknowledged; every written topic is read back and counted.
On each broker:

- `send_table` vs a loop of `produce`, and vs ready-made batches, which cost a client no encoding;
- `send` vs `produce` with delivery callbacks: with futures checked continuously, with all futures kept to the end, and with callbacks;
- `send_table` and `send` with one culprit in a hundred (no key, compacted topic) vs the same without culprits. A refused batch is sent
  twice, and so are the batches in flight after it in its partition; all others once. Few batches of a table are refused: after the first
  refusal the producer removes culprits from the others before it sends them;
- `poll_table` vs `consume` with conversion to columns;
- `poll` vs `consume` of a topic with all records in one partition;
- one acknowledged record at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.broker import ready_made_batch, warm_up_broker
from benchmarks.broker_vs_apache import apache_kafka
from benchmarks.brokers import BrokerProcess, chaffinch_broker
from benchmarks.chaffinch_loads import CULPRIT_EVERY, PARTITIONS
from benchmarks.stopwatch import READY_BYTES_VARIABLE, Stopwatch
from benchmarks.wire_client import WireClient, produce_request

OURS, THEIRS = "chaffinch_loads", "confluent_loads"
CHAFFINCH, APACHE = "chaffinch", "Apache Kafka"
BATCH_RECORDS = 8500
"""Records of a ready-made batch: 1 MB, the size of the batches of `send_table`."""
READ_BATCH_RECORDS = 2000
IN_FLIGHT_MAX = 5

READY_BYTES = 1200 << 20
"""More than a load writes and its client allocates."""

Measurements = Mapping[str, float]
Run = Callable[[BrokerProcess, str, int], Measurements]


@dataclass(frozen=True, slots=True)
class Aim:
    """Target for our `measure` over the other side's. `broker`: only on this broker."""

    measure: str
    at_least: float | None = None
    at_most: float | None = None
    broker: str | None = None

    def is_met(self, ratio: float) -> bool:
        return (self.at_least is None or ratio >= self.at_least) and (self.at_most is None or ratio <= self.at_most)

    def __str__(self) -> str:
        return f"at least {self.at_least:g}" if self.at_most is None else f"at most {self.at_most:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two loads of `count` records.

    `filled_partitions`: the loads read one topic with this many filled partitions; 0: each run writes to its own topic.
    """

    name: str
    ours: Run
    theirs: Run
    count: int
    aims: Sequence[Aim] = ()
    filled_partitions: int = 0
    is_compacted: bool = False
    needs_memory: bool = False
    """Whether memory is faulted in before: the load needs hundreds of megabytes a second."""


def client(module: str, load: str) -> Run:
    """Returns a `Run` of a load in its own process."""

    def run(broker: BrokerProcess, topic: str, count: int) -> Measurements:
        command = [sys.executable, "-m", f"benchmarks.{module}", load, broker.bootstrap_servers, topic, str(count)]
        result: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        if "separated" in result:
            # Batches with culprits were sent again, and those in flight after them, which were refused for the sequence gap.
            behind = result["sent"] - result["written"] - result["separated"]
            assert 0 <= behind <= (IN_FLIGHT_MAX - 1) * result["separated"], result
            assert (result["separated"] > 0) == ("culprits" in load), result
            assert "table" not in load or result["separated"] < result["written"] / 4, result
        return result

    return run


def ready_made(broker: BrokerProcess, topic: str, count: int) -> Measurements:
    """Send ready-made batches of the size of `send_table`'s over one pipelined connection."""
    wire = WireClient(broker)
    frame, response_bytes = wire.frame(produce_request(topic, 0, ready_made_batch(BATCH_RECORDS)))
    watch = Stopwatch()
    wire.pipeline(frame, response_bytes, count // BATCH_RECORDS - 1)
    result = watch.read()
    wire.close()
    return {**result, "count": (count // BATCH_RECORDS) * BATCH_RECORDS}


def against_callbacks(name: str, load: str, count: int, *aims: Aim) -> Comparison:
    """Compare a use of `send` with `produce` with a delivery callback for each record."""
    theirs = client(THEIRS, "produce-with-callbacks")
    return Comparison(name=f"{name}, vs callbacks", ours=client(OURS, load), theirs=theirs, count=count, aims=aims)


def comparisons(scale: float) -> Sequence[Comparison]:
    def scaled(count: int) -> int:
        return max(20_000, int(count * scale))

    fewer_cpu = Aim("CPU", at_most=0.2)
    clean = Aim("rate", at_least=0.8)
    return (
        Comparison(
            name="send_table vs a produce loop",
            ours=client(OURS, "send-table"),
            theirs=client(THEIRS, "produce"),
            needs_memory=True,
            count=scaled(2_000_000),
            aims=(Aim("rate", at_least=4.0, broker=CHAFFINCH), fewer_cpu),
        ),
        Comparison(
            name="send_table vs ready-made batches",
            ours=client(OURS, "send-table"),
            theirs=ready_made,
            needs_memory=True,
            count=scaled(4_000_000),
            aims=(Aim("rate", at_least=0.8, broker=APACHE),),
        ),
        against_callbacks("send, futures checked", "send", scaled(1_000_000), Aim("rate", at_least=0.7)),
        against_callbacks("send, all futures kept", "send-and-keep", scaled(1_000_000)),
        against_callbacks("send with callbacks", "send-with-callbacks", scaled(500_000)),
        Comparison(
            name="send_table with culprits vs without",
            ours=client(OURS, "send-table-with-culprits"),
            theirs=client(OURS, "send-table-with-keys"),
            needs_memory=True,
            count=scaled(2_000_000),
            aims=(clean,),
            is_compacted=True,
        ),
        Comparison(
            name="send with culprits vs without",
            ours=client(OURS, "send-with-culprits"),
            theirs=client(OURS, "send-with-keys"),
            count=scaled(500_000),
            aims=(clean,),
            is_compacted=True,
        ),
        Comparison(
            name="poll_table vs consume and columns",
            ours=client(OURS, "poll-table"),
            theirs=client(THEIRS, "consume-columns"),
            needs_memory=True,
            count=scaled(4_000_000),
            aims=(Aim("rate", at_least=3.0),),
            filled_partitions=PARTITIONS,
        ),
        Comparison(
            name="poll vs consume, one partition filled",
            ours=client(OURS, "poll"),
            theirs=client(THEIRS, "consume"),
            needs_memory=True,
            count=scaled(1_000_000),
            filled_partitions=1,
        ),
        Comparison(
            name="one acknowledged send at a time",
            ours=client(OURS, "one-at-a-time"),
            theirs=client(THEIRS, "one-at-a-time"),
            count=max(500, int(20_000 * min(1.0, scale))),
            aims=(Aim("p50 ms", at_most=1.0), Aim("p99 ms", at_most=1.0)),
        ),
    )


WARM_UP = Comparison(name="warm-up", ours=client(OURS, "send-table"), theirs=ready_made, count=4_000_000, needs_memory=True)
WARM_UPS = 4
"""Warm-up runs of each way of writing. Java compiles during them, which halves its processor time."""


def measures(result: Measurements, count: int) -> Measurements:
    """Rate in millions of records a second and client CPU-seconds per million, or latencies."""
    if "p50" in result:
        return {"p50 ms": result["p50"], "p99 ms": result["p99"]}
    return {"rate": count / result["seconds"] / 1e6, "CPU": max(result["client_cpu_seconds"], 1e-3) / (count / 1e6)}


class BrokerTarget:
    """Runs loads on one broker and manages their topics."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        wire = WireClient(broker)
        wire.create_topic("warm-up", 1)
        warm_up_broker(broker, wire, *wire.frame(produce_request("warm-up", 0, ready_made_batch(READ_BATCH_RECORDS))))
        wire.close()
        for turn in range(WARM_UPS):
            for name, run in (("table", WARM_UP.ours), ("ready-made", WARM_UP.theirs)):
                self.run_and_verify(run, f"warm-up-{turn}-{name}", WARM_UP, has_culprits=False)

    def fill_topic(self, topic: str, count: int, partitions: int) -> int:
        """Create a topic with about `count` records in its first `partitions`. Returns the exact number."""
        wire = WireClient(self.broker)
        wire.create_topic(topic, PARTITIONS)
        data, count_each = ready_made_batch(READ_BATCH_RECORDS), count // partitions // READ_BATCH_RECORDS
        for partition in range(partitions):
            wire.pipeline(*wire.frame(produce_request(topic, partition, data)), count_each - 1)
        wire.close()
        return count_each * partitions * READ_BATCH_RECORDS

    def run_when_quiet(self, run: Run, topic: str, count: int, *, needs_memory: bool) -> Measurements:
        """Run a load once the broker is quiet, with its memory faulted in if `needs_memory`."""
        self.broker.wait_until_quiet()
        os.environ[READY_BYTES_VARIABLE] = str(READY_BYTES if needs_memory else 0)
        return run(self.broker, topic, count)

    def run_and_verify(self, run: Run, topic: str, comparison: Comparison, *, has_culprits: bool) -> Measurements:
        """Run a load with its own topic, then count the records in it."""
        wire = WireClient(self.broker)
        wire.create_topic(topic, PARTITIONS, **({"cleanup_policy": "compact"} if comparison.is_compacted else {}))
        result = self.run_when_quiet(run, topic, comparison.count, needs_memory=comparison.needs_memory)
        count = int(result.get("count", comparison.count))
        expected = count - (-(-count // CULPRIT_EVERY) if has_culprits else 0)
        if "p50" in result:
            expected += comparison.count // 10  # The warm-up.
        found = sum(wire.read_back(topic, partition, 0) for partition in range(PARTITIONS))
        wire.delete_topic(topic)
        wire.close()
        assert found == expected, f"{topic} on {self.broker.name}: {expected} records were acknowledged, {found} exist"
        return measures(result, count)


def compare(comparison: Comparison, target: BrokerTarget, number: int, rounds: int) -> list[str]:
    """Run both loads in turn and print a line for each measure. Returns the missed targets."""
    topic = f"contest-{number}"
    is_reading = comparison.filled_partitions > 0
    count = target.fill_topic(topic, comparison.count, comparison.filled_partitions) if is_reading else comparison.count

    def run_load(run: Run, name: str) -> Measurements:
        if is_reading:
            return measures(target.run_when_quiet(run, topic, count, needs_memory=comparison.needs_memory), count)
        has_culprits = run is comparison.ours and "culprits" in comparison.name
        return target.run_and_verify(run, f"{topic}-{name}", comparison, has_culprits=has_culprits)

    figures: list[tuple[Measurements, Measurements]] = []
    for turn in range(rounds):  # The order alternates.
        order = [("ours", comparison.ours), ("theirs", comparison.theirs)]
        found = {name: run_load(run, f"{turn}-{name}") for name, run in (order if turn % 2 == 0 else reversed(order))}
        figures.append((found["ours"], found["theirs"]))
    missed = []
    for measure in figures[0][0]:
        ratio = statistics.median(ours[measure] / theirs[measure] for ours, theirs in figures)
        one, other = (statistics.median(result[measure] for result in side) for side in zip(*figures, strict=True))
        aims = [aim for aim in comparison.aims if aim.measure == measure and aim.broker in (None, target.broker.name)]
        text = f"{target.broker.name:<13} {comparison.name:<41} {measure:<7} {one:7.3f} {other:7.3f}  ratio {ratio:5.2f}"
        is_met = all(aim.is_met(ratio) for aim in aims)
        print(text + "".join(f"  ({aim})" for aim in aims) + ("" if is_met else "  MISSED"), flush=True)
        if not is_met:
            missed.append(f"{comparison.name}, {measure}, on {target.broker.name}: {ratio:.2f}, {', '.join(map(str, aims))}")
    return missed


@contextmanager
def brokers(only: str) -> Iterator[list[BrokerTarget]]:
    """The brokers whose name contains `only`, warmed up."""
    with tempfile.TemporaryDirectory() as folder, chaffinch_broker(str(Path(folder) / "ours")) as ours:
        targets = [BrokerTarget(ours)] if only in CHAFFINCH else []
        if only not in APACHE:
            yield targets
            return
        with apache_kafka() as theirs:
            yield [*targets, BrokerTarget(theirs)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full number of records")
    parser.add_argument("--only", default="", help="comparisons whose name contains this")
    parser.add_argument("--broker", default="", help="brokers whose name contains this: chaffinch, Apache Kafka")
    arguments = parser.parse_args()
    missed: list[str] = []
    with brokers(arguments.broker) as targets:
        print(f"ours, the other, ours over the other: median of {arguments.rounds} rounds; M records/s, client CPU-seconds per million, ms")
        for number, comparison in enumerate(comparisons(arguments.scale)):
            for target in targets if arguments.only in comparison.name else ():
                missed += compare(comparison, target, number, arguments.rounds)
    for text in missed:
        print(f"target missed: {text}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
