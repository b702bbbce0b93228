"""Other ways to write, killed as `spark.py` kills the ordinary one: a query on executors, a sink in `foreachBatch`, and tasks that send.

Each way has a broker of its own. What Kafka holds in the end is counted by a client of others (`spark_checker.py`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

from chaffinch.spark.commit.operations import Step
from tests.soak.killed_broker import KilledBroker
from tests.soak.spark import AFTER_A_FAILURE, BROKER_CONFIG, DEAD, LOCAL, TOPIC, TOPICS, Event, Kind, Run, lives_of
from tests.soak.spark_checker import doubled, keys_in_files, keys_in_topic, lost
from tests.soak.spark_query import IN_PIECES, Variant

CLUSTER = Variant(
    master="local-cluster[2,1,1024]",
    config={
        **IN_PIECES,
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        # Three tasks of each file.
        "spark.sql.files.openCostInBytes": 1,
        "spark.sql.files.minPartitionNum": 3,
    },
    # More than a task takes at a time (16 MiB): it has staged some when it comes to its last row.
    large_value=300_000,
)
FOR_EACH_BATCH = Variant(is_for_each_batch=True)
SENT_IN_PART = Variant(large_value=200_000, large_share=1.0)
"""Here, too: each of two tasks has sent some rows when it comes to its last one."""
DIRECT_STEPS = (Step.READ_STATE, Step.WRITE_DEAD_LETTERS, Step.NOTE_DONE)
"""Where tasks send, there is no transaction."""


def executor_events(rounds: int, rng: random.Random) -> list[Event]:
    """Executors killed in turn, one or both; the driver, too, in every sixth round, at a step by chance."""
    kinds = (Kind.EXECUTOR, Kind.EXECUTORS, Kind.EXECUTOR, Kind.EXECUTOR, Kind.EXECUTORS, Kind.DRIVER)
    return [Event(kind=kind, step=_any_step(rng) if kind is Kind.DRIVER else None) for kind in islice(cycle(kinds), rounds)]


def for_each_batch_events(rounds: int, rng: random.Random) -> list[Event]:
    """The driver's death at each step and in the middle of a task, and a stop there; the transactional id is fixed in the first batch."""
    steps = [step for step in Step if step not in (*AFTER_A_FAILURE, Step.FIX_TRANSACTIONAL_ID)]
    events = [Event(kind=Kind.STOP_TASKS), Event(kind=Kind.DRIVER), *(Event(kind=Kind.DRIVER, step=step) for step in steps)]
    rng.shuffle(events)
    return list(islice(cycle([Event(kind=Kind.DRIVER, step=Step.FIX_TRANSACTIONAL_ID), *events]), rounds))


def direct_events(rounds: int, rng: random.Random) -> list[Event]:
    """The driver's death in the middle of a task, and at each of the few steps; a stop, and workers that are killed."""
    events = [
        Event(kind=Kind.DRIVER), Event(kind=Kind.STOP_TASKS), Event(kind=Kind.TASK_WORKER),
        *(Event(kind=Kind.DRIVER, step=step) for step in DIRECT_STEPS),
    ]  # fmt: skip
    rng.shuffle(events)
    return list(islice(cycle(events), rounds))


def _any_step(rng: random.Random) -> Step:
    return rng.choice((Step.PUSH, Step.COMMIT_MARKER, Step.END_TRANSACTION, Step.NOTE_DONE))


def at_least_once(run: Run, servers: str) -> list[str]:
    """Nothing is lost; what is there twice is counted."""
    tps = {
        TOPIC: (keys_in_topic(servers, TOPIC), run.good),
        DEAD: (keys_in_topic(servers, DEAD), run.bad),
        "Parquet files": (keys_in_files(run.letters), run.bad),
    }
    for where, (found, _) in tps.items():
        print(f"  {where}: {doubled(found)}", flush=True)
    return [fault for where, (found, expected) in tps.items() for fault in lost(where, found, expected)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One variant, with its own number of rounds."""

    name: str
    rounds: int
    events: Callable[[int, random.Random], Sequence[Event]]
    way: Variant = LOCAL
    options: Mapping[str, str] | None = None
    verdict: Callable[[Run, str], list[str]] = field(default=lambda run, _: run.verdict())


PARTS = (
    Part(name="executors", rounds=12, events=executor_events, way=CLUSTER),
    Part(name="foreachBatch", rounds=19, events=for_each_batch_events, way=FOR_EACH_BATCH),
    Part(
        name="at-least-once", rounds=6, events=direct_events, way=SENT_IN_PART,
        options={"deliveryGuarantee": "at-least-once", "kafka.batch.size": "4096"}, verdict=at_least_once,
    ),
)  # fmt: skip


def soaked(folder: Path, seed: int, rounds: int | None = None) -> list[str]:
    """Faults, each in a sentence; `rounds`: instead of each part's own."""
    return [f"{part.name}: {fault}" for part in PARTS for fault in _part_soaked(part, folder / part.name, rounds or part.rounds, seed)]


def _part_soaked(part: Part, folder: Path, rounds: int, seed: int) -> list[str]:
    folder.mkdir()
    rng = random.Random(f"{seed} {part.name}")
    began_s = time.monotonic()
    with KilledBroker(folder / "broker", flush_policy="os", topics=TOPICS, config=BROKER_CONFIG) as broker:
        run = Run(folder, broker, rng, part.way, part.options)
        try:
            for life in lives_of(part.events(rounds, rng)):
                run.live(life)
            run.live([])
            faults = part.verdict(run, broker.bootstrap_servers)
        except RuntimeError as error:
            faults = [str(error)]
        finally:
            run.close()
        if "Traceback" in broker.log_text:
            faults.append("the broker's log has a traceback")
    for kind, count in sorted(run.done.items()):
        print(f"  {count} times {kind}")
    if run.staged:
        print(f"  files that were staged when executors were killed: {run.staged}")
    print(
        f"{part.name}, seed {seed}, {rounds} rounds: {len(run.good)} good rows, {len(run.bad)} bad ones, "
        f"{time.monotonic() - began_s:.0f} s: {len(faults)} faults", flush=True,
    )  # fmt: skip
    return faults
