"""`make bench-broker`: compares `chaffinch broker` with Apache Kafka in one run, on the same cores, under the same loads.

Both brokers run all the time, each in its own process. A load is sent to one, then to the other, so that other work of the machine affects
both. A ratio is the median over rounds, printed with its 95 % interval (`benchmarks/ratios.py`). Every load is acknowledged, or read to its
end. Values have 100 bytes, data is on disk.

- A load that writes gets a new topic each round, which is deleted afterwards. Otherwise data would accumulate until the speed of the disk
  is measured.
- The order of the brokers alternates, because the first one may have to allocate memory that the second one finds free.
- A load begins when both brokers are idle and its memory is faulted in. The host of a virtual machine reclaims pages that are unused for
  two seconds; getting them back costs several times as much as writing to them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.broker import ready_made_batch, start_and_idle, warm_up_broker
from benchmarks.broker_growth import growth
from benchmarks.brokers import BrokerProcess, chaffinch_broker
from benchmarks.ratios import Aim, Ratio
from benchmarks.stopwatch import prefault_memory
from benchmarks.wire_client import WireClient, produce_request
from tests.interop.apache_kafka import ApacheKafka, run_tool

PARTITIONS = 4
TOOL_SECONDS = 300.0
DELETE_TIMEOUT_S = 90.0
LATENCY_COUNT = 20_000
"""Enough for a stable p99: the system writes to disk in bursts, and with 3,000 the ratio varied from 0.8 to 1.1 between runs."""

NO_DELAY = "group.initial.rebalance.delay.ms"
"""0 in the default configuration of Apache Kafka. A Java client that waited for its group would be warmer."""

ROUNDS_FACTOR_MAX = 4
"""Limit of additional rounds, as a multiple: on a shared machine one round differs from the next by a tenth."""

READY_BYTES = 600 << 20
"""More than a load writes or its client allocates."""

NOT_BELOW, NOT_ABOVE = Aim(at_least=1.0), Aim(at_most=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Result of one load on one broker: millions of records a second, or ms if `is_latency`; broker CPU-seconds per million records."""

    value: float
    cpu_per_million: float
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One load.

    `prepare(broker, topic)` creates the topic: once if `is_reading`, else each round. `run(broker, topic)` is measured and returns seconds,
    or the latency in ms, with the number of records. `warm_up(broker, topic)` runs once per broker, on its own topic.

    `aim` is the target for our value over Apache Kafka's, `cpu_aim` for our CPU over theirs. `rounds`: number of rounds, up to
    `ROUNDS_FACTOR_MAX` times as many while the target is undecided.
    """

    name: str
    run: Callable[[BrokerProcess, str], tuple[float, int, str]]
    prepare: Callable[[BrokerProcess, str], None]
    warm_up: Callable[[BrokerProcess, str], object] | None = None
    rounds: int = 11
    is_reading: bool = False
    aim: Aim = NOT_BELOW
    cpu_aim: Aim | None = None
    is_latency: bool = False


@contextmanager
def apache_kafka() -> Iterator[BrokerProcess]:
    """Apache Kafka with its default configuration and a heap of 1 GiB. It frees memory and disk of deleted topics at once, as ours does."""
    started = time.perf_counter()
    with ApacheKafka({"log.segment.delete.delay.ms": "0"}) as kafka:
        yield BrokerProcess("Apache Kafka", kafka.pid, kafka.bootstrap_servers, time.perf_counter() - started)


def ready_made(records_per_batch: int, record_count: int) -> Load:
    """Ready-made batches from one pipelined connection."""

    def warm_up(broker: BrokerProcess, topic: str) -> None:
        client = WireClient(broker)
        warm_up_broker(broker, client, *client.frame(produce_request(topic, 0, ready_made_batch(records_per_batch))))
        client.close()

    def run(broker: BrokerProcess, topic: str) -> tuple[float, int, str]:
        client = WireClient(broker)
        frame, response_bytes = client.frame(produce_request(topic, 0, ready_made_batch(records_per_batch)))
        count = record_count // records_per_batch
        started = time.perf_counter()
        client.pipeline(frame, response_bytes, count)
        seconds = time.perf_counter() - started
        client.close()
        return seconds, count * records_per_batch, ""

    aim, cpu_aim = (Aim(at_least=3.0), Aim(at_most=1 / 3)) if records_per_batch == 2000 else (Aim(at_least=2.0), None)
    name = f"ready-made batches of {records_per_batch}"
    return Load(name=name, run=run, prepare=empty, warm_up=warm_up, rounds=9, aim=aim, cpu_aim=cpu_aim)


def fill_topic(record_count: int) -> Callable[[BrokerProcess, str], None]:
    """Returns a `prepare` that fills a topic of four partitions with this many records."""

    def prepare(broker: BrokerProcess, topic: str) -> None:
        empty(broker, topic)
        client = WireClient(broker)
        data = ready_made_batch(2000)
        for partition in range(PARTITIONS):
            frame, response_bytes = client.frame(produce_request(topic, partition, data))
            client.pipeline(frame, response_bytes, record_count // PARTITIONS // 2000)
        client.close()

    return prepare


def confluent(load: str, count: int) -> Callable[[BrokerProcess, str], tuple[float, int, str]]:
    """Returns a `run` with confluent-kafka in its own process."""

    def run(broker: BrokerProcess, topic: str) -> tuple[float, int, str]:
        command = [sys.executable, "-m", "benchmarks.confluent_loads", load, broker.bootstrap_servers, topic, str(count)]
        result = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        if load == "one-at-a-time":
            return result["p99"], count, f"p50 {result['p50']:.2f}"
        return result["seconds"], count, ""

    return run


def producer_performance(count: int) -> Callable[[BrokerProcess, str], tuple[float, int, str]]:
    """Returns a `run` with Java's ProducerPerformance and its defaults."""

    def run(broker: BrokerProcess, topic: str) -> tuple[float, int, str]:
        arguments = ["--topic", topic, "--num-records", str(count), "--record-size", "100", "--throughput", "-1"]
        done = run_tool("producer-perf-test", *arguments, "--bootstrap-server", broker.bootstrap_servers, timeout_s=TOOL_SECONDS)
        assert done.succeeded, done.errors
        last = done.output.strip().splitlines()[-1]
        rate = float(last.split(" records/sec")[0].rpartition(" ")[2])
        return count / rate, count, last.split(", ")[-2].replace(" 99th", " p99")

    return run


def consumer_performance(count: int) -> Callable[[BrokerProcess, str], tuple[float, int, str]]:
    """Returns a `run` with Java's ConsumerPerformance; its time excludes joining the group."""

    def run(broker: BrokerProcess, topic: str) -> tuple[float, int, str]:
        arguments = ["--topic", topic, "--num-records", str(count), "--bootstrap-server", broker.bootstrap_servers, "--timeout", "60000"]
        done = run_tool("consumer-perf-test", *arguments, timeout_s=TOOL_SECONDS)
        assert done.succeeded, done.errors
        lines = [line.split(", ") for line in done.output.splitlines()]
        names = next(line for line in lines if line[0] == "start.time")
        values = next(line for line in lines if len(line) == len(names) and line is not names)
        row = dict(zip(names, values, strict=True))
        return float(row["fetch.time.ms"]) / 1000, int(row["data.consumed.in.nMsg"]), ""

    return run


def wire_latency(broker: BrokerProcess, topic: str) -> tuple[float, int, str]:
    """Produce one record at a time over a plain connection. Returns the 99th percentile of the latency in ms."""
    client = WireClient(broker)
    frame, response_bytes = client.frame(produce_request(topic, 0, ready_made_batch(1)))
    latencies = []
    for number in range(2 * LATENCY_COUNT):
        started = time.perf_counter()
        client.exchange(frame, response_bytes)
        if number >= LATENCY_COUNT:  # The first half warms up.
            latencies.append((time.perf_counter() - started) * 1000)
    client.close()
    latencies.sort()
    return latencies[LATENCY_COUNT * 99 // 100], LATENCY_COUNT, f"p50 {latencies[LATENCY_COUNT // 2]:.2f}"


def empty(broker: BrokerProcess, topic: str) -> None:
    client = WireClient(broker)
    client.create_topic(topic, PARTITIONS)
    client.close()


def delete_and_wait(broker: BrokerProcess, topic: str) -> None:
    """Delete the topic and wait until its files are closed.

    Apache Kafka begins to delete files 30 seconds after its start. Memory that it still holds would have to be allocated again.
    """
    client = WireClient(broker)
    client.delete_topic(topic)
    client.close()
    deadline = time.monotonic() + DELETE_TIMEOUT_S
    while broker.has_open(topic):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{broker.name} has not deleted the files of {topic} after {DELETE_TIMEOUT_S:.0f} s")
        time.sleep(0.05)


def loads(scale: float) -> Sequence[Load]:
    def scaled(count: int) -> int:
        return max(20_000, int(count * scale))

    read_count = scaled(5_000_000)
    one, one_by_confluent = wire_latency, confluent("one-at-a-time", LATENCY_COUNT)
    return (
        ready_made(2000, scaled(3_000_000)),
        ready_made(150, scaled(2_000_000)),
        Load(name="confluent-kafka producing", prepare=empty, run=confluent("produce", scaled(1_500_000))),
        Load(name="Java ProducerPerformance", prepare=empty, run=producer_performance(scaled(1_500_000))),
        Load(name="confluent-kafka consuming", prepare=fill_topic(read_count), is_reading=True, run=confluent("consume", read_count)),
        Load(name="Java ConsumerPerformance", prepare=fill_topic(read_count), is_reading=True, run=consumer_performance(read_count)),
        Load(name="one acknowledged at a time, p99 ms", prepare=empty, run=one, is_latency=True, rounds=7, aim=NOT_ABOVE),
        Load(name="the same, confluent-kafka", prepare=empty, run=one_by_confluent, is_latency=True, rounds=7, aim=NOT_ABOVE),
    )


def measure(load: Load, broker: BrokerProcess, topic: str) -> Figure:
    if not load.is_reading:
        load.prepare(broker, topic)
        broker.wait_until_quiet()
    prefault_memory(READY_BYTES)
    cpu = broker.cpu_seconds
    value, count, detail = load.run(broker, topic)
    cpu_per_million = (broker.cpu_seconds - cpu) / (count / 1e6)
    if not load.is_reading:
        delete_and_wait(broker, topic)
    broker.wait_until_quiet()
    return Figure(value=value if load.is_latency else count / value / 1e6, cpu_per_million=cpu_per_million, detail=detail)


def run_round(load: Load, brokers: Sequence[BrokerProcess], topic: str, *, is_reversed: bool) -> list[Figure]:
    """Run one round. Returns the figures in the order of `brokers`."""
    figures = {broker.name: measure(load, broker, topic) for broker in (reversed(brokers) if is_reversed else brokers)}
    return [figures[broker.name] for broker in brokers]


def compare(load: Load, brokers: Sequence[BrokerProcess], topic: str, rounds: int) -> bool:
    """Run one load on both brokers and print its line. Returns whether the targets are met."""
    for broker in brokers:
        if load.is_reading:
            load.prepare(broker, topic)
        if load.warm_up is not None:
            load.prepare(broker, f"{topic}-warm-up")
            load.warm_up(broker, f"{topic}-warm-up")
            delete_and_wait(broker, f"{topic}-warm-up")
        broker.wait_until_quiet()
    figures: list[list[Figure]] = []
    while len(figures) < rounds or (len(figures) < ROUNDS_FACTOR_MAX * rounds and load.aim.needs_more_rounds(ratio_of(figures))):
        number = len(figures)
        figures.append(run_round(load, brokers, topic if load.is_reading else f"{topic}-{number}", is_reversed=number % 2 == 1))
    ratio = ratio_of(figures)
    cpu = Ratio.of([ours.cpu_per_million / max(theirs.cpu_per_million, 1e-9) for ours, theirs in figures])
    columns = [
        f"{statistics.median(figure.value for figure in column):6.2f} ({statistics.median(f.cpu_per_million for f in column):6.3f} CPU-s/M)"
        for column in zip(*figures, strict=True)
    ]
    limit = str(load.aim) + (f", CPU {load.cpu_aim}" if load.cpu_aim else "")
    details = " | ".join(figure.detail for figure in figures[-1] if figure.detail)
    outcome = f"ratio {ratio} in {len(figures)} rounds, CPU {cpu}; {limit} {details}".rstrip()
    print(f"{load.name:<36} {columns[0]}  {columns[1]}  {outcome}", flush=True)
    return load.aim.is_met(ratio) and (load.cpu_aim is None or load.cpu_aim.is_met(cpu))


def ratio_of(figures: Sequence[Sequence[Figure]]) -> Ratio:
    return Ratio.of([ours.value / theirs.value for ours, theirs in figures])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=0, help="rounds of every load; 0: its own number")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full number of records")
    parser.add_argument("--only", default="", help="loads whose name contains this")
    arguments = parser.parse_args()
    missed = []
    with (
        tempfile.TemporaryDirectory() as folder,
        chaffinch_broker(str(Path(folder) / "ours"), config=[f"{NO_DELAY}=0"]) as ours,
        apache_kafka() as theirs,
    ):
        print("M records/s (broker CPU-seconds per million): chaffinch, Apache Kafka; medians over the rounds")
        print(f"start: chaffinch {ours.seconds_to_ready:.2f} s, Apache Kafka {theirs.seconds_to_ready:.2f} s (format included)")
        for number, load in enumerate(loads(arguments.scale)):
            rounds = arguments.rounds or load.rounds
            if arguments.only in load.name and not compare(load, (ours, theirs), f"load-{number}", rounds):
                missed.append(load.name)
        print(f"resident memory at the end: chaffinch {ours.resident_mb:.0f} MB, Apache Kafka {theirs.resident_mb:.0f} MB")
    if not arguments.only:
        missed += start_and_idle() + growth()
    for name in missed:
        print(f"target missed: {name}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
