"""`python -m tests.soak spark`: a streaming query whose driver, workers and broker are killed at named steps of its commits, and which has
a second driver at times.

Each round is one event at one step of one micro-batch: the commit waits there (`pause_at_step.py`), so nothing is left to luck. A query
lives through several events until its driver is killed; the next life goes on from its checkpoint. In the end every row is counted
(`spark_checker.py`).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import cycle, islice
from pathlib import Path

from chaffinch.spark.commit.operations import Step
from tests.soak.killed_broker import KilledApacheKafka, KilledBroker, killed_broker
from tests.soak.spark_checker import verdict
from tests.soak.spark_process import QueryProcess
from tests.soak.spark_query import Variant, gate_name

TOPIC, DEAD = "rows", "dead"
TOPICS = [f"{TOPIC}:3,segment.bytes=1048576", f"{DEAD}:2"]
TRANSACTION_TIMEOUT_MS = 6_000
BROKER_CONFIG = ("transaction.abort.timed.out.transaction.cleanup.interval.ms=500",)
SLEEP_SECONDS = 2 * TRANSACTION_TIMEOUT_MS / 1000
HANDED_ON_SECONDS = 2.0
"""For the rows that other tasks have, and that the one at its gate has handed on: they are staged, or sent."""
SPARK_ROUNDS = 32
LOCAL = Variant()
ROWS = 300
BAD_EVERY = 20
EVENTS_PER_LIFE = 5
AFTER_A_FAILURE = (Step.ABORT, Step.READ_MARKER_AFTER_FENCING)
STEPS = [step for step in Step if step not in AFTER_A_FAILURE]
"""That every commit takes; the first one only fixes the transactional id."""


class Kind(Enum):
    DRIVER = "the driver is killed"
    COMMITTER = "the Python worker that commits is killed"
    BROKER = "the broker is killed and started"
    STOP = "the query is stopped, and started again"
    SLEEP = "the commit sleeps beyond the transaction's time-out"
    TASK_WORKER = "all Python workers are killed in the middle of a task"
    SLOW_TASK = "a task takes longer than a transaction may"
    STOP_TASKS = "the query is stopped in the middle of a task, and started again"
    REFERENCE = "a second driver runs from the same checkpoint"
    COPY = "a second driver runs from a copy of the checkpoint"
    EXECUTOR = "the executor of a task is killed in the middle of it"
    EXECUTORS = "all executors are killed in the middle of a task"


FENCED_NAME = "ANOTHER_WRITER"
"""The first driver's error then, also if the second has removed what both had staged in the same directory."""
LATE_PUSH = "was not acknowledged within transaction.timeout.ms"
"""Or this, where it pushes: what stood for longer than its transaction may last does not wait for what the broker says to it."""
PUSHES = (Step.PUSH, Step.PUSH_DEAD_LETTERS)
AT_GATE = (Kind.TASK_WORKER, Kind.SLOW_TASK, Kind.STOP_TASKS)
ON_A_CLUSTER = (Kind.EXECUTOR, Kind.EXECUTORS)
"""Local mode has no executors; see `spark_variants.py`."""
AT_ANY_STEP = (Kind.COMMITTER, Kind.BROKER, Kind.STOP)
TWINS = (Kind.REFERENCE, Kind.COPY)
LAST = (Kind.DRIVER, *TWINS)
"""After these a life has no further micro-batch."""
OPEN_STEPS = (Step.PUSH, Step.PUSH_DEAD_LETTERS, Step.WRITE_DEAD_LETTERS, Step.COMMIT_MARKER, Step.NOTE_ENDING)
"""While the transaction is open."""
FENCED_STEPS = (Step.READ_MARKER_AGAIN, Step.FIND_HANGING_TRANSACTIONS, Step.ADD_PARTITIONS, *OPEN_STEPS)
"""At these steps Kafka fences the driver that was overtaken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    kind: Kind
    step: Step | None = None
    """Where the commit stands; None: a task stands at its gate."""

    def __str__(self) -> str:
        if self.step is not None:
            return f"{self.kind.value} at {self.step.value}"
        return f"{self.kind.value} in the middle of a task" if self.kind is Kind.DRIVER else self.kind.value


def events_of(rounds: int, rng: random.Random) -> list[Event]:
    """The driver's death at each step, and the others in turn, at steps by chance; in any order. The transactional id is fixed first."""
    steps = [step for step in STEPS if step is not Step.FIX_TRANSACTIONAL_ID]
    events = [Event(kind=Kind.DRIVER, step=step) for step in rng.sample(steps, len(steps))]
    others = {
        **{kind: [Event(kind=kind, step=step) for step in rng.sample(steps, len(steps))] for kind in AT_ANY_STEP},
        Kind.SLEEP: [Event(kind=Kind.SLEEP, step=step) for step in rng.sample(OPEN_STEPS, len(OPEN_STEPS))],
        **{kind: [Event(kind=kind, step=step) for step in rng.sample(FENCED_STEPS, len(FENCED_STEPS))] for kind in TWINS},
        **{kind: [Event(kind=kind)] for kind in AT_GATE},
    }
    turns = cycle(zip(*(cycle(found) for found in others.values()), strict=True))
    rest = (event for turn in turns for event in turn)
    # Half and half, so that few rounds have some of each.
    drivers = min(len(events), rounds // 2)
    chosen = [*events[:drivers], *islice(rest, max(0, rounds - 1 - drivers))]
    rng.shuffle(chosen)
    return [Event(kind=Kind.DRIVER, step=Step.FIX_TRANSACTIONAL_ID), *chosen][:rounds]


def lives_of(events: Sequence[Event]) -> Iterator[list[Event]]:
    """A life ends with its driver's death, with a second driver, or after some events."""
    life: list[Event] = []
    for event in events:
        if len(life) == EVENTS_PER_LIFE:
            yield life
            life = []
        life.append(event)
        if event.kind in LAST:
            yield life
            life = []
    if life:
        yield life


class Run:
    """A query and a broker, over all lives."""

    def __init__(
        self,
        folder: Path,
        broker: KilledBroker | KilledApacheKafka,
        rng: random.Random,
        way: Variant = LOCAL,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.good: set[str] = set()
        self.bad: set[str] = set()
        self.done: Counter[str] = Counter()
        self.staged: list[int] = []
        """Files that tasks had staged when executors were killed."""
        self._broker, self._rng = broker, rng
        self._next_batch = 0
        self._began_s = time.monotonic()
        self.options = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "topic": TOPIC,
            "errors.tolerance": "all",
            "errors.dead.letter.queue.topic.name": DEAD,
            "errors.dead.letter.path": str(folder / "letters"),
            **({"kafka.transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS)} if options is None else options),
        }
        self.letters = folder / "letters"
        self.query_folder = folder / "query"
        self._way = way
        self._process = QueryProcess(self.query_folder, self.options, way)

    def close(self) -> None:
        self._process.close()

    def live(self, events: Sequence[Event]) -> None:
        """One life: each event in a micro-batch of its own. Raises RuntimeError when the query does not come to where it ought to."""
        batches = [self.add(has_gate=event.step is None) for event in events]
        pauses = [(event.step, batch_id) for event, batch_id in zip(events, batches, strict=True) if event.step is not None]
        self._process.start(pauses, has_gates=any(event.step is None for event in events))
        for event, batch_id in zip(events, batches, strict=True):
            self._happens(event, batch_id)
            self.done[event.kind.value] += 1
            print(f"  {time.monotonic() - self._began_s:5.0f} s, batch {batch_id}: {event}", flush=True)
        if not events or events[-1].kind is not Kind.DRIVER:
            self._process.wait_for("ended")
            for line in self._process.lines:
                if line.startswith("failed"):
                    print(f"           {line}", flush=True)
        self._process.kill()

    def verdict(self) -> list[str]:
        return verdict(self._broker.bootstrap_servers, TOPIC, DEAD, self.letters, self.good, self.bad)

    def add(self, *, has_gate: bool) -> int:
        """Rows for one more micro-batch: its id."""
        batch_id = self._next_batch
        self._next_batch += 1
        size = self._way.large_value if self._rng.random() < self._way.large_share else 10
        # Before a task has handed on a row, or when it has handed on all others.
        gate_at = self._rng.choice((0, ROWS - 1)) if has_gate else None
        rows: list[Mapping[str, object]] = []
        for number in range(ROWS):
            key, is_bad = f"{batch_id}-{number}", number % BAD_EVERY == 1
            (self.bad if is_bad else self.good).add(key)
            value = gate_name(batch_id) if number == gate_at else "v" * size
            # The broker takes no timestamps so far ahead.
            rows.append({"key": key, "value": value, "timestamp": "2200-01-01T00:00:00Z" if is_bad else None})
        self._process.add_input(batch_id, rows)
        return batch_id

    def _happens(self, event: Event, batch_id: int) -> None:
        process = self._process
        if event.step is None:
            self._happens_at_gate(event.kind, batch_id)
            return
        pid = process.wait_at(event.step, batch_id)
        match event.kind:
            case Kind.DRIVER:
                process.kill()
                return  # The committing process may live a moment longer, and must not continue.
            case Kind.COMMITTER:
                os.kill(pid, signal.SIGKILL)
            case Kind.BROKER:
                self._broker.kill()
                self._broker.start()
            case Kind.STOP:
                # It stands until the commit under way has ended, and is then interrupted.
                process.ask_to_stop()
                process.wait_for("stopping")
            case Kind.SLEEP:
                threading.Event().wait(SLEEP_SECONDS)
            case Kind.REFERENCE | Kind.COPY:
                self._twin_runs(is_copy=event.kind is Kind.COPY)
        process.go(event.step, batch_id)
        if event.kind in TWINS:
            error = process.wait_for("failed")
            if FENCED_NAME not in error and not (event.step in PUSHES and LATE_PUSH in error):
                raise RuntimeError(f"after a second driver had written batch {batch_id}, the first failed with: {error}")

    def _happens_at_gate(self, kind: Kind, batch_id: int) -> None:
        process = self._process
        worker = process.wait_at_gate(batch_id)
        threading.Event().wait(HANDED_ON_SECONDS)
        match kind:
            case Kind.DRIVER:
                process.kill()
            case Kind.TASK_WORKER:
                killed(process.python_workers())
            case Kind.SLOW_TASK:
                threading.Event().wait(SLEEP_SECONDS)
            case Kind.STOP_TASKS:
                process.ask_to_stop()
                process.wait_for("stopped")
                process.wait_at_gate(batch_id)  # Of the query that was started again.
            case Kind.EXECUTOR | Kind.EXECUTORS:
                self.staged.append(len(list(self.query_folder.rglob("task-*"))))
                killed([process.executor_of(worker)] if kind is Kind.EXECUTOR else process.executors())
                process.wait_at_gate(batch_id)  # Spark runs the task again, in another executor.
        process.open_gate(batch_id)

    def _twin_runs(self, *, is_copy: bool) -> None:
        """A second driver writes all there is, and ends."""
        checkpoint = self.query_folder / "checkpoint"
        if is_copy:
            checkpoint = checkpoint.with_name("copied-checkpoint")
            shutil.copytree(self.query_folder / "checkpoint", checkpoint)
        twin = QueryProcess(self.query_folder, self.options, self._way, name="twin", checkpoint=checkpoint)
        try:
            twin.start()
            twin.wait_for("ended")
        finally:
            twin.close()
            if is_copy:
                shutil.rmtree(checkpoint)


def killed(pids: Sequence[int]) -> None:
    """SIGKILL for each of them; there has to be one."""
    if not pids:
        raise RuntimeError("there is no process to kill")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def soaked(folder: Path, rounds: int, seed: int, *, on_apache: bool) -> list[str]:
    """Faults found after this many events."""
    rng = random.Random(f"{seed} spark")
    began_s = time.monotonic()
    with killed_broker(folder / "spark-broker", TOPICS, BROKER_CONFIG, on_apache=on_apache) as broker:
        run = Run(folder / "spark", broker, rng)
        try:
            for life in lives_of(events_of(rounds, rng)):
                run.live(life)
            run.live([])
            faults = run.verdict()
            broker.kill()
            broker.start()
            faults += [f"after one more kill: {fault}" for fault in run.verdict()]
        except RuntimeError as error:
            faults = [str(error)]
        finally:
            run.close()
        if "Traceback" in broker.log_text:
            faults.append("the broker's log has a traceback")
            print(broker.log_text[broker.log_text.index("Traceback") - 500 :][:3000])
    for kind, count in sorted(run.done.items()):
        print(f"  {count} times {kind}")
    where = " with Apache Kafka" if on_apache else ""
    print(
        f"spark{where}, seed {seed}, {rounds} rounds: {len(run.good)} good rows, {len(run.bad)} bad ones, "
        f"{time.monotonic() - began_s:.0f} s: {len(faults)} faults", flush=True,
    )  # fmt: skip
    return faults
