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

from benchmarks.broker import ready_made_batch, warmed_up
from benchmarks.broker_beside_apache import apache_kafka
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

Told = Mapping[str, float]
Run = Callable[[BrokerProcess, str, int], Told]


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
class Contest:
    """Two loads of `count` records. `filled_partitions`: so many have records before, of one topic that is read; else each run writes
    a topic of its own."""

    name: str
    ours: Run
    theirs: Run
    count: int
    aims: Sequence[Aim] = ()
    filled_partitions: int = 0
    is_compacted: bool = False
    takes_memory: bool = False
    """Hundreds of megabytes a second, so that they are made ready."""


def client(module: str, load: str) -> Run:
    """A load in a process of its own."""

    def run(broker: BrokerProcess, topic: str, count: int) -> Told:
        command = [sys.executable, "-m", f"benchmarks.{module}", load, broker.bootstrap_servers, topic, str(count)]
        told: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        if "separated" in told:
            # What culprits cost: the batches that had some went once more, and those in flight behind them, refused for the gap.
            behind = told["sent"] - told["written"] - told["separated"]
            assert 0 <= behind <= (IN_FLIGHT_MAX - 1) * told["separated"], told
            assert (told["separated"] > 0) == ("culprits" in load), told
            assert "table" not in load or told["separated"] < told["written"] / 4, told
        return told

    return run


def ready_made(broker: BrokerProcess, topic: str, count: int) -> Told:
    """Batches as large as those of `send_table`, made before, from one pipelined connection."""
    wire = WireClient(broker)
    frame, answer_bytes = wire.frame(produce_request(topic, 0, ready_made_batch(BATCH_RECORDS)))
    watch = Stopwatch()
    wire.pipeline(frame, answer_bytes, count // BATCH_RECORDS - 1)
    told = watch.read()
    wire.close()
    return {**told, "count": (count // BATCH_RECORDS) * BATCH_RECORDS}


def beside_callbacks(name: str, load: str, count: int, *aims: Aim) -> Contest:
    """A way to use `send`, beside `produce` with a delivery callback for each record."""
    theirs = client(THEIRS, "produce-with-callbacks")
    return Contest(name=f"{name}, beside callbacks", ours=client(OURS, load), theirs=theirs, count=count, aims=aims)


def contests(scale: float) -> Sequence[Contest]:
    def scaled(count: int) -> int:
        return max(20_000, int(count * scale))

    fewer_cpu = Aim("CPU", at_most=0.2)
    clean = Aim("rate", at_least=0.8)
    return (
        Contest(
            name="send_table beside a produce loop",
            ours=client(OURS, "send-table"),
            theirs=client(THEIRS, "produce"),
            takes_memory=True,
            count=scaled(2_000_000),
            aims=(Aim("rate", at_least=4.0, broker=CHAFFINCH), fewer_cpu),
        ),
        Contest(
            name="send_table beside ready-made batches",
            ours=client(OURS, "send-table"),
            theirs=ready_made,
            takes_memory=True,
            count=scaled(4_000_000),
            aims=(Aim("rate", at_least=0.8, broker=APACHE),),
        ),
        beside_callbacks("send, futures looked at", "send", scaled(1_000_000), Aim("rate", at_least=0.7)),
        beside_callbacks("send, all futures kept", "send-and-keep", scaled(1_000_000)),
        beside_callbacks("send with callbacks", "send-with-callbacks", scaled(500_000)),
        Contest(
            name="a table with culprits beside a clean one",
            ours=client(OURS, "send-table-with-culprits"),
            theirs=client(OURS, "send-table-with-keys"),
            takes_memory=True,
            count=scaled(2_000_000),
            aims=(clean,),
            is_compacted=True,
        ),
        Contest(
            name="send with culprits beside clean ones",
            ours=client(OURS, "send-with-culprits"),
            theirs=client(OURS, "send-with-keys"),
            count=scaled(500_000),
            aims=(clean,),
            is_compacted=True,
        ),
        Contest(
            name="poll_table beside consume and columns",
            ours=client(OURS, "poll-table"),
            theirs=client(THEIRS, "consume-columns"),
            takes_memory=True,
            count=scaled(4_000_000),
            aims=(Aim("rate", at_least=3.0),),
            filled_partitions=PARTITIONS,
        ),
        Contest(
            name="poll beside consume, one partition busy",
            ours=client(OURS, "poll"),
            theirs=client(THEIRS, "consume"),
            takes_memory=True,
            count=scaled(1_000_000),
            filled_partitions=1,
        ),
        Contest(
            name="one send, its acknowledgement, the next",
            ours=client(OURS, "one-at-a-time"),
            theirs=client(THEIRS, "one-at-a-time"),
            count=max(500, int(20_000 * min(1.0, scale))),
            aims=(Aim("p50 ms", at_most=1.0), Aim("p99 ms", at_most=1.0)),
        ),
    )


WARM_UP = Contest(name="warm-up", ours=client(OURS, "send-table"), theirs=ready_made, count=4_000_000, takes_memory=True)
WARM_UPS = 4
"""Each way of writing comes so often before anything counts: Java compiles what it meets, and its processor time halves until then."""


def measures(told: Told, count: int) -> Told:
    """Rate in millions of records a second, client CPU-seconds per million; latencies."""
    if "p50" in told:
        return {"p50 ms": told["p50"], "p99 ms": told["p99"]}
    return {"rate": count / told["seconds"] / 1e6, "CPU": max(told["client_cpu_seconds"], 1e-3) / (count / 1e6)}


class Lane:
    """One broker, and the topics on it."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        wire = WireClient(broker)
        wire.create_topic("warm-up", 1)
        warmed_up(broker, wire, *wire.frame(produce_request("warm-up", 0, ready_made_batch(READ_BATCH_RECORDS))))
        wire.close()
        for turn in range(WARM_UPS):
            for name, run in (("table", WARM_UP.ours), ("ready-made", WARM_UP.theirs)):
                self.written(run, f"warm-up-{turn}-{name}", WARM_UP, has_culprits=False)

    def filled(self, topic: str, count: int, partitions: int) -> int:
        """A topic with about `count` records in its first `partitions`; how many they are."""
        wire = WireClient(self.broker)
        wire.create_topic(topic, PARTITIONS)
        data, count_each = ready_made_batch(READ_BATCH_RECORDS), count // partitions // READ_BATCH_RECORDS
        for partition in range(partitions):
            wire.pipeline(*wire.frame(produce_request(topic, partition, data)), count_each - 1)
        wire.close()
        return count_each * partitions * READ_BATCH_RECORDS

    def quietly(self, run: Run, topic: str, count: int, *, takes_memory: bool) -> Told:
        """Run a load once the broker is quiet. The memory that it takes is there when its time begins."""
        self.broker.settle()
        os.environ[READY_BYTES_VARIABLE] = str(READY_BYTES if takes_memory else 0)
        return run(self.broker, topic, count)

    def written(self, run: Run, topic: str, contest: Contest, *, has_culprits: bool) -> Told:
        """Run a load against a topic of its own, and count what is in it afterwards."""
        wire = WireClient(self.broker)
        wire.create_topic(topic, PARTITIONS, **({"cleanup_policy": "compact"} if contest.is_compacted else {}))
        told = self.quietly(run, topic, contest.count, takes_memory=contest.takes_memory)
        count = int(told.get("count", contest.count))
        expected = count - (-(-count // CULPRIT_EVERY) if has_culprits else 0)
        if "p50" in told:
            expected += contest.count // 10  # The warm-up.
        found = sum(wire.read_back(topic, partition, 0) for partition in range(PARTITIONS))
        wire.delete_topic(topic)
        wire.close()
        assert found == expected, f"{topic} on {self.broker.name}: {expected} records were acknowledged, {found} are there"
        return measures(told, count)


def compared(contest: Contest, lane: Lane, number: int, rounds: int) -> list[str]:
    """Run both loads in turn, print a line for each measure; the aims that were missed."""
    topic = f"contest-{number}"
    is_reading = contest.filled_partitions > 0
    count = lane.filled(topic, contest.count, contest.filled_partitions) if is_reading else contest.count

    def told(run: Run, name: str) -> Told:
        if is_reading:
            return measures(lane.quietly(run, topic, count, takes_memory=contest.takes_memory), count)
        has_culprits = run is contest.ours and "culprits" in contest.name
        return lane.written(run, f"{topic}-{name}", contest, has_culprits=has_culprits)

    figures: list[tuple[Told, Told]] = []
    for turn in range(rounds):  # Who comes first takes turns.
        order = [("ours", contest.ours), ("theirs", contest.theirs)]
        found = {name: told(run, f"{turn}-{name}") for name, run in (order if turn % 2 == 0 else reversed(order))}
        figures.append((found["ours"], found["theirs"]))
    missed = []
    for measure in figures[0][0]:
        ratio = statistics.median(ours[measure] / theirs[measure] for ours, theirs in figures)
        one, other = (statistics.median(told[measure] for told in side) for side in zip(*figures, strict=True))
        aims = [aim for aim in contest.aims if aim.measure == measure and aim.broker in (None, lane.broker.name)]
        text = f"{lane.broker.name:<13} {contest.name:<41} {measure:<7} {one:7.3f} {other:7.3f}  ratio {ratio:5.2f}"
        is_met = all(aim.is_met(ratio) for aim in aims)
        print(text + "".join(f"  ({aim})" for aim in aims) + ("" if is_met else "  MISSED"), flush=True)
        if not is_met:
            missed.append(f"{contest.name}, {measure}, on {lane.broker.name}: {ratio:.2f}, {', '.join(map(str, aims))}")
    return missed


@contextmanager
def brokers(only: str) -> Iterator[list[Lane]]:
    """The brokers whose name contains `only`, warmed up."""
    with tempfile.TemporaryDirectory() as folder, chaffinch_broker(str(Path(folder) / "ours")) as ours:
        lanes = [Lane(ours)] if only in CHAFFINCH else []
        if only not in APACHE:
            yield lanes
            return
        with apache_kafka() as theirs:
            yield [*lanes, Lane(theirs)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full number of records")
    parser.add_argument("--only", default="", help="contests whose name contains this")
    parser.add_argument("--broker", default="", help="brokers whose name contains this: chaffinch, Apache Kafka")
    arguments = parser.parse_args()
    missed: list[str] = []
    with brokers(arguments.broker) as lanes:
        print(f"ours, the other, ours over the other: median of {arguments.rounds} rounds; M records/s, client CPU-seconds per million, ms")
        for number, contest in enumerate(contests(arguments.scale)):
            for lane in lanes if arguments.only in contest.name else ():
                missed += compared(contest, lane, number, arguments.rounds)
    for text in missed:
        print(f"aim missed: {text}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
