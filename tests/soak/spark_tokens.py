"""Batch writes with a token whose driver is killed at each step and which are run again, twice; then `chaffinch replay` of their dead
letters, killed at each step and run again, of topics and of Parquet. What Kafka holds in the end is counted by a client of others.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from chaffinch.spark.commit.operations import Step
from tests.soak.killed_broker import KilledBroker
from tests.soak.spark import BAD_EVERY, BROKER_CONFIG, LOCAL, ROWS, TRANSACTION_TIMEOUT_MS
from tests.soak.spark_batch_writes import dead_topic
from tests.soak.spark_checker import keys_in_files, keys_in_topic, miscounted
from tests.soak.spark_process import HeldProcess

TOPIC, REPLAYED, REPLAYED_FILES = "rows", "replayed", "replayed-files"
REPLAY_STEPS = (
    Step.READ_MARKER, Step.INIT_PRODUCER, Step.READ_MARKER_AGAIN, Step.FIND_HANGING_TRANSACTIONS, Step.ADD_PARTITIONS, Step.PUSH,
    Step.PUSH_DEAD_LETTERS, Step.ADD_OFFSETS, Step.COMMIT_MARKER, Step.END_TRANSACTION,
)  # fmt: skip
"""That a write without a checkpoint takes, and without letters in files; a replay pushes its notes as a write does its letters."""
WRITE_STEPS = (*REPLAY_STEPS, Step.WRITE_DEAD_LETTERS)
FILE_STEPS = (Step.PUSH, Step.COMMIT_MARKER, Step.END_TRANSACTION)
"""Behind the last one the file is written, and lies where it lay."""
TIMES = 2
BATCH_ID = 0
"""Of every batch write."""


class Tokens:
    """Writes and replays at one broker. Raises RuntimeError when a process does not come to where it ought to."""

    def __init__(self, folder: Path, broker: KilledBroker, rng: random.Random) -> None:
        self.good: dict[int, set[str]] = {}
        self.bad: dict[int, set[str]] = {}
        self._folder, self._servers, self._rng = folder, broker.bootstrap_servers, rng
        self._letters = folder / "letters"
        self._process = HeldProcess(folder)
        self._began_s = time.monotonic()
        (folder / "input").mkdir()
        options = {
            "kafka.bootstrap.servers": self._servers, "topic": TOPIC, "kafka.transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
            "errors.tolerance": "all", "errors.dead.letter.path": str(self._letters),
        }  # fmt: skip
        (folder / "options.json").write_text(json.dumps(options))

    def close(self) -> None:
        self._process.close()

    def write_killed(self, steps: Sequence[Step]) -> Iterator[str]:
        """One write per step, whose driver dies there; then each again. Yields what is wrong."""
        for number, step in enumerate(steps):
            self._add(number)
            self._killed("the driver of a write with a token is killed", self._writing(1, number), step)
        self._process.launch(self._writing(TIMES, *self.good))
        self._process.wait_for("ended")
        self._process.kill()
        yield from miscounted(TOPIC, keys_in_topic(self._servers, TOPIC), set().union(*self.good.values()))
        for number, bad in self.bad.items():
            yield from miscounted(dead_topic(number), keys_in_topic(self._servers, dead_topic(number)), bad)
        yield from miscounted("Parquet files", keys_in_files(self._letters), set().union(*self.bad.values()))

    def replay_killed(self, steps: Sequence[Step]) -> Iterator[str]:
        """One topic of letters per step, at which its replay is killed; it is run again, and of the last once more, with nothing to do."""
        for number, step in zip(self.bad, steps, strict=False):
            command = self._replaying("--topic", dead_topic(number), "--to", REPLAYED)
            self._killed("chaffinch replay is killed", command, step)
            self._run_to_end(command)
        self._run_to_end(command)
        replayed = [bad for bad, _ in zip(self.bad.values(), steps, strict=False)]
        yield from miscounted(REPLAYED, keys_in_topic(self._servers, REPLAYED), set().union(*replayed))

    def replay_of_files_killed(self, steps: Sequence[Step]) -> Iterator[str]:
        """The replay of the folder is killed at its first file, again and again, until it is left alone."""
        command = self._replaying("--parquet", str(self._letters), "--to", REPLAYED_FILES)
        for step in steps:
            self._killed("chaffinch replay --parquet is killed", command, step)
        self._run_to_end(command)
        yield from miscounted(REPLAYED_FILES, keys_in_topic(self._servers, REPLAYED_FILES), set().union(*self.bad.values()))

    def _add(self, number: int) -> None:
        size = LOCAL.large_value if self._rng.random() < LOCAL.large_share else 10
        is_bad = {f"{number}-{row}": row % BAD_EVERY == 1 for row in range(ROWS)}
        self.bad[number] = {key for key, bad in is_bad.items() if bad}
        self.good[number] = is_bad.keys() - self.bad[number]
        # The broker takes no timestamps so far ahead.
        rows = [{"key": key, "value": "v" * size, "timestamp": "2200-01-01T00:00:00Z" if bad else None} for key, bad in is_bad.items()]
        (self._folder / "input" / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))

    def _writing(self, times: int, *numbers: int) -> list[str]:
        return [sys.executable, "-m", "tests.soak.spark_batch_writes", str(self._folder), str(times), *map(str, numbers)]

    def _replaying(self, *arguments: str) -> list[str]:
        program = str(Path(sys.executable).with_name("chaffinch"))
        repair = "timestamp=cast(null as timestamp)"
        return [program, "replay", "--bootstrap-server", self._servers, "--repair", repair, *arguments]

    def _killed(self, what: str, command: Sequence[str], step: Step) -> None:
        self._process.launch(command, [(step, BATCH_ID)])
        self._process.wait_at(step, BATCH_ID)
        self._process.kill()
        print(f"  {time.monotonic() - self._began_s:5.0f} s: {what} at {step.value}", flush=True)

    def _run_to_end(self, command: Sequence[str]) -> None:
        self._process.launch(command)
        if status := self._process.wait():
            raise RuntimeError(f"{command[1]} ended with {status}: {self._process.output[-1000:]}")


def soaked(folder: Path, seed: int, rounds: int | None = None) -> list[str]:
    """Faults, each in a sentence; `rounds`: maximum number of steps of each kind."""
    folder.mkdir()
    rng = random.Random(f"{seed} tokens")
    began_s = time.monotonic()
    topics = [f"{TOPIC}:3", f"{REPLAYED}:2", f"{REPLAYED_FILES}:2", *(f"{dead_topic(number)}:2" for number in range(len(WRITE_STEPS)))]
    writes, replays, files = (rng.sample(steps, len(steps))[:rounds] for steps in (WRITE_STEPS, REPLAY_STEPS, FILE_STEPS))
    with KilledBroker(folder / "broker", flush_policy="os", topics=topics, config=BROKER_CONFIG) as broker:
        tokens = Tokens(folder / "driver", broker, rng)
        try:
            faults = [*tokens.write_killed(writes), *tokens.replay_killed(replays), *tokens.replay_of_files_killed(files)]
        except RuntimeError as error:
            faults = [str(error)]
        finally:
            tokens.close()
        if "Traceback" in broker.log_text:
            faults.append("the broker's log has a traceback")
    count = sum(map(len, [*tokens.good.values(), *tokens.bad.values()]))
    print(
        f"tokens, seed {seed}: {len(writes)} kills of writes, {len(replays)} of replays, {len(files)} of replays of Parquet, {count} rows, "
        f"{time.monotonic() - began_s:.0f} s: {len(faults)} faults", flush=True,
    )  # fmt: skip
    return faults
