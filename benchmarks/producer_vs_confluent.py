"""`make bench-producer`: our producer and consumer beside confluent-kafka, on `chaffinch broker` and on Apache Kafka, in one run.

Each client is a process of its own, and both take turns on the same broker, so that what else the machine does falls on both; a ratio is
the median over rounds. 100-byte values, idempotent, acknowledged; every topic that was written is read back and counted. On each broker:

- a table beside a loop of `produce`, and beside ready-made batches, which cost a client nothing;
- `send` beside `produce` with delivery callbacks: its futures looked at as their outcomes come, all of them kept to the end, or callbacks;
- tables and `send` with one culprit in a hundred (no key, compacted topic) beside the same without: a batch that is refused is sent twice,
  and so are those that were in flight behind it in their partition; all others once. Of a table few are: after the first refusal the
  others lose their culprits before they leave;
- `poll_table` beside `consume` with columns made of what it gives;
- `poll` beside `consume`, of a topic of which one partition has all records and nothing comes to the others;
- one record, its acknowledgement, the next.
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
"""Records of a ready-made batch: 1 MB, as large as those that `send_table` makes."""
READ_BATCH_RECORDS = 2000
IN_FLIGHT_MAX = 5

READY_BYTES = 1200 << 20
"""More than a load writes and its client takes."""

Measurements = Mapping[str, float]
Run = Callable[[BrokerProcess, str, int], Measurements]


@dataclass(frozen=True, slots=True)
class Aim:
    """What one side's `measure` over the other's is to be at least, or at most. `broker`: only there."""

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
    """Two loads of `count` records. `filled_partitions`: so many have records before, of one topic that is read; else each run writes
    a topic of its own."""

    name: str
    ours: Run
    theirs: Run
    count: int
    aims: Sequence[Aim] = ()
    filled_partitions: int = 0
    is_compacted: bool = False
    needs_memory: bool = False
    """Hundreds of megabytes a second, so that they are made ready."""


def client(module: str, load: str) -> Run:
    """A load in a process of its own."""

    def run(broker: BrokerProcess, topic: str, count: int) -> Measurements:
        command = [sys.executable, "-m", f"benchmarks.{module}", load, broker.bootstrap_servers, topic, str(count)]
        result: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        if "separated" in result:
            # What culprits cost: the batches that had some went once more, and those in flight behind them, refused for the gap.
            behind = result["sent"] - result["written"] - result["separated"]
            assert 0 <= behind <= (IN_FLIGHT_MAX - 1) * result["separated"], result
            assert (result["separated"] > 0) == ("culprits" in load), result
            assert "table" not in load or result["separated"] < result["written"] / 4, result
        return result

    return run


def ready_made(broker: BrokerProcess, topic: str, count: int) -> Measurements:
    """Batches as large as those of `send_table`, made before, from one pipelined connection."""
    wire = WireClient(broker)
    frame, response_bytes = wire.frame(produce_request(topic, 0, ready_made_batch(BATCH_RECORDS)))
    watch = Stopwatch()
    wire.pipeline(frame, response_bytes, count // BATCH_RECORDS - 1)
    result = watch.read()
    wire.close()
    return {**result, "count": (count // BATCH_RECORDS) * BATCH_RECORDS}


def against_callbacks(name: str, load: str, count: int, *aims: Aim) -> Comparison:
    """A way to use `send`, beside `produce` with a delivery callback for each record."""
    theirs = client(THEIRS, "produce-with-callbacks")
    return Comparison(name=f"{name}, beside callbacks", ours=client(OURS, load), theirs=theirs, count=count, aims=aims)


def comparisons(scale: float) -> Sequence[Comparison]:
    def scaled(count: int) -> int:
        return max(20_000, int(count * scale))

    fewer_cpu = Aim("CPU", at_most=0.2)
    clean = Aim("rate", at_least=0.8)
    return (
        Comparison(
            name="send_table beside a produce loop",
            ours=client(OURS, "send-table"),
            theirs=client(THEIRS, "produce"),
            needs_memory=True,
            count=scaled(2_000_000),
            aims=(Aim("rate", at_least=4.0, broker=CHAFFINCH), fewer_cpu),
        ),
        Comparison(
            name="send_table beside ready-made batches",
            ours=client(OURS, "send-table"),
            theirs=ready_made,
            needs_memory=True,
            count=scaled(4_000_000),
            aims=(Aim("rate", at_least=0.8, broker=APACHE),),
        ),
        against_callbacks("send, futures looked at", "send", scaled(1_000_000), Aim("rate", at_least=0.7)),
        against_callbacks("send, all futures kept", "send-and-keep", scaled(1_000_000)),
        against_callbacks("send with callbacks", "send-with-callbacks", scaled(500_000)),
        Comparison(
            name="a table with culprits beside a clean one",
            ours=client(OURS, "send-table-with-culprits"),
            theirs=client(OURS, "send-table-with-keys"),
            needs_memory=True,
            count=scaled(2_000_000),
            aims=(clean,),
            is_compacted=True,
        ),
        Comparison(
            name="send with culprits beside clean ones",
            ours=client(OURS, "send-with-culprits"),
            theirs=client(OURS, "send-with-keys"),
            count=scaled(500_000),
            aims=(clean,),
            is_compacted=True,
        ),
        Comparison(
            name="poll_table beside consume and columns",
            ours=client(OURS, "poll-table"),
            theirs=client(THEIRS, "consume-columns"),
            needs_memory=True,
            count=scaled(4_000_000),
            aims=(Aim("rate", at_least=3.0),),
            filled_partitions=PARTITIONS,
        ),
        Comparison(
            name="poll beside consume, one partition busy",
            ours=client(OURS, "poll"),
            theirs=client(THEIRS, "consume"),
            needs_memory=True,
            count=scaled(1_000_000),
            filled_partitions=1,
        ),
        Comparison(
            name="one send, its acknowledgement, the next",
            ours=client(OURS, "one-at-a-time"),
            theirs=client(THEIRS, "one-at-a-time"),
            count=max(500, int(20_000 * min(1.0, scale))),
            aims=(Aim("p50 ms", at_most=1.0), Aim("p99 ms", at_most=1.0)),
        ),
    )


WARM_UP = Comparison(name="warm-up", ours=client(OURS, "send-table"), theirs=ready_made, count=4_000_000, needs_memory=True)
WARM_UPS = 4
"""Each way of writing comes so often before anything counts: Java compiles what it meets, and its processor time halves until then."""


def measures(result: Measurements, count: int) -> Measurements:
    """Rate in millions of records a second, client CPU-seconds per million; latencies."""
    if "p50" in result:
        return {"p50 ms": result["p50"], "p99 ms": result["p99"]}
    return {"rate": count / result["seconds"] / 1e6, "CPU": max(result["client_cpu_seconds"], 1e-3) / (count / 1e6)}


class BrokerTarget:
    """One broker, and the topics on it."""

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
        """A topic with about `count` records in its first `partitions`; how many they are."""
        wire = WireClient(self.broker)
        wire.create_topic(topic, PARTITIONS)
        data, count_each = ready_made_batch(READ_BATCH_RECORDS), count // partitions // READ_BATCH_RECORDS
        for partition in range(partitions):
            wire.pipeline(*wire.frame(produce_request(topic, partition, data)), count_each - 1)
        wire.close()
        return count_each * partitions * READ_BATCH_RECORDS

    def run_when_quiet(self, run: Run, topic: str, count: int, *, needs_memory: bool) -> Measurements:
        """Run a load once the broker is quiet. The memory that it takes is there when its time begins."""
        self.broker.wait_until_quiet()
        os.environ[READY_BYTES_VARIABLE] = str(READY_BYTES if needs_memory else 0)
        return run(self.broker, topic, count)

    def run_and_verify(self, run: Run, topic: str, comparison: Comparison, *, has_culprits: bool) -> Measurements:
        """Run a load against a topic of its own, and count what is in it afterwards."""
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
        assert found == expected, f"{topic} on {self.broker.name}: {expected} records were acknowledged, {found} are there"
        return measures(result, count)


def compare(comparison: Comparison, target: BrokerTarget, number: int, rounds: int) -> list[str]:
    """Run both loads in turn, print a line for each measure; the aims that were missed."""
    topic = f"contest-{number}"
    is_reading = comparison.filled_partitions > 0
    count = target.fill_topic(topic, comparison.count, comparison.filled_partitions) if is_reading else comparison.count

    def run_load(run: Run, name: str) -> Measurements:
        if is_reading:
            return measures(target.run_when_quiet(run, topic, count, needs_memory=comparison.needs_memory), count)
        has_culprits = run is comparison.ours and "culprits" in comparison.name
        return target.run_and_verify(run, f"{topic}-{name}", comparison, has_culprits=has_culprits)

    figures: list[tuple[Measurements, Measurements]] = []
    for turn in range(rounds):  # Who comes first takes turns.
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
    parser.add_argument("--only", default="", help="contests whose name contains this")
    parser.add_argument("--broker", default="", help="brokers whose name contains this: chaffinch, Apache Kafka")
    arguments = parser.parse_args()
    missed: list[str] = []
    with brokers(arguments.broker) as targets:
        print(f"ours, the other, ours over the other: median of {arguments.rounds} rounds; M records/s, client CPU-seconds per million, ms")
        for number, comparison in enumerate(comparisons(arguments.scale)):
            for target in targets if arguments.only in comparison.name else ():
                missed += compare(comparison, target, number, arguments.rounds)
    for text in missed:
        print(f"aim missed: {text}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
