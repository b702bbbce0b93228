"""Writes fixtures in the formats of this tree: `python -m tests.upgrades.make_fixtures FOLDER [NAME ...]`, all of them without a name.

Each is one zip: a broker's data directory (`broker/`), what a query keeps beside it, and `facts.json`, which says what must be there later.
README.md says when a new folder of them is due. It takes about three minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from chaffinch import Producer
from chaffinch.spark import session
from chaffinch.spark.commit.operations import Step
from chaffinch.spark.replay import file_replay
from chaffinch.spark.replay.replaying import ReplayPlan
from chaffinch.spark.replay.replaying import replay_dead_letters as replay
from chaffinch.spark.sink.pause_at_step import FILE_VARIABLE, STEP_VARIABLE
from tests.soak.killed_broker import KilledBroker
from tests.upgrades import query, write_records
from tests.upgrades.make_messages import make_messages

ROOT = Path(__file__).parents[2]
CONFIG = ("log.cleaner.backoff.ms=100", "group.initial.rebalance.delay.ms=0", "group.min.session.timeout.ms=1000", "log.retention.ms=-1")
FACTS = "facts.json"
LEFT_OUT = (".lock", "query.json", "paused")
"""Names that are no part of a fixture."""
WAIT_S = 120.0
FIRST_ROWS, SECOND_ROWS, BAD_EVERY = 60, 400, 20
SECOND_BYTES = 12_000
"""Of a value in the second micro-batch: each of the two tasks stages more than 1 MiB, so in a file."""
REPLAYED, UNREPLAYED = 6, 4
"""Letters of a topic that were replayed, and that were not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where the second micro-batch of a query is killed: after this step of its commit; None: it is not, the first is its newest."""

    step: Step | None
    is_for_each_batch: bool = False


QUERIES: Mapping[str, Cut] = {
    "query_stopped": Cut(step=None),
    "query_staged": Cut(step=Step.READ_MARKER),
    "query_begun": Cut(step=Step.ADD_PARTITIONS),
    "query_pushed": Cut(step=Step.NOTE_ENDING),
    "query_committed": Cut(step=Step.END_TRANSACTION),
    "query_noted": Cut(step=Step.NOTE_DONE),
    "for_each_batch_committed": Cut(step=Step.END_TRANSACTION, is_for_each_batch=True),
}
BROKERS: Mapping[str, signal.Signals] = {"broker_stopped": signal.SIGTERM, "broker_killed": signal.SIGKILL}
LETTERS, MESSAGES = "letters", "messages"


class StoppedBroker(KilledBroker):
    """A broker process that may also be ended in order."""

    def end(self, by: signal.Signals) -> None:
        os.kill(self.pid, by)
        assert self._process is not None
        self._process.wait(WAIT_S)
        self._process = None


def make_broker(folder: Path, end: signal.Signals) -> dict[str, Any]:
    """A data directory with topics, groups, transactions; the one that is open belongs to a producer that was killed."""
    facts = folder / "of_clients.json"
    with StoppedBroker(folder / "broker", flush_policy="os", topics=list(write_records.TOPICS), config=CONFIG) as broker:
        command = [sys.executable, "-m", "tests.upgrades.write_records", broker.bootstrap_servers, str(facts)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as clients:
            expect(clients, "open")
            wait_for(lambda: bool(list((folder / "broker").rglob("log.state"))), "no compaction has come")
            clients.kill()
        broker.end(end)
    found: dict[str, Any] = json.loads(facts.read_text())
    facts.unlink()
    return found


def make_query(folder: Path, cut: Cut) -> dict[str, Any]:
    """A query whose first micro-batch is written, and whose second one is killed somewhere."""
    good: list[str] = []
    bad: list[str] = []
    with StoppedBroker(folder / "broker", flush_policy="os", topics=list(query.TOPICS), config=CONFIG) as broker:
        plan = {"servers": broker.bootstrap_servers, "is_for_each_batch": cut.is_for_each_batch}
        (folder / "query.json").write_text(json.dumps(plan))
        add_rows(broker.bootstrap_servers, "first", FIRST_ROWS, 10, good, bad)
        paused = folder / "paused"
        os.mkfifo(paused)
        step = "" if cut.step is None else f"{cut.step.value}@1"
        environment = {**os.environ, STEP_VARIABLE: step, FILE_VARIABLE: str(paused)}
        command = [sys.executable, "-m", "tests.upgrades.query", str(folder)]
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            expect(process, "first")
            if cut.step is not None:
                add_rows(broker.bootstrap_servers, "second", SECOND_ROWS, SECOND_BYTES, good, bad)
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
                step_reached = paused.read_text()
                assert step_reached.startswith(step), step_reached
            os.killpg(process.pid, signal.SIGKILL)
        paused.unlink()
        broker.end(signal.SIGKILL)
    return {"good": good, "bad": bad, "is_for_each_batch": cut.is_for_each_batch}


def add_rows(servers: str, name: str, count: int, size: int, good: list[str], bad: list[str]) -> None:
    """Records for a query's input; some are too large for its output. Their keys go to `good` and to `bad`."""
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(count):
            key, is_bad = f"{name}-{number}", number % BAD_EVERY == 1
            (bad if is_bad else good).append(key)
            producer.send(query.INPUT, b"v" * (query.TOO_LARGE if is_bad else size), key=key.encode(), partition=number % 2)


def make_letters(folder: Path) -> dict[str, Any]:
    """Dead letters of batch writes, some of them replayed: in a topic with its notes, and in Parquet files, one of which was written by a
    replay that did not come to moving it."""
    topics = ["rows:1,cleanup.policy=compact", "dead:2"]
    letters = folder / query.LETTERS
    written: list[str] = []
    spark = session("upgrades", master="local[2]", config=query.SESSION)
    try:
        with StoppedBroker(folder / "broker", flush_policy="os", topics=topics, config=CONFIG) as broker:
            client = {"kafka.bootstrap.servers": broker.bootstrap_servers}
            keyed = {"key": "value"}

            def write(name: str, count: int, **options: str) -> list[str]:
                """Rows without a key, which a compacted topic does not take."""
                rows = spark.range(count).selectExpr("cast(null as string) as key", f"cast(concat('{name} ', id) as binary) as value")
                given = {**client, "topic": "rows", "errors.tolerance": "all", **options}
                rows.coalesce(1).write.format("chaffinch").mode("append").options(**given).save()
                return [f"{name} {number}" for number in range(count)]

            to_topic = {"errors.dead.letter.queue.topic.name": "dead"}
            written += write("topic replayed", REPLAYED, **to_topic)
            replay(spark, ReplayPlan(client=client, topic="dead", repairs=keyed))
            in_topic = write("topic", UNREPLAYED, **to_topic)

            to_files = {"errors.dead.letter.path": str(letters)}
            written += write("file replayed", REPLAYED, **to_files)
            replay(spark, ReplayPlan(client=client, path=str(letters), repairs=keyed))
            written += write("file not moved", REPLAYED, **to_files)
            with mock.patch.object(file_replay, "_move_to_replayed"):
                replay(spark, ReplayPlan(client=client, path=str(letters), repairs=keyed))
            in_files = write("file", UNREPLAYED, **to_files)
            broker.end(signal.SIGKILL)
    finally:
        spark.stop()
    return {"written": written, "in_topic": in_topic, "in_files": in_files}


def make_both_places(folder: Path) -> dict[str, Any]:
    """Dead letters that are in a topic and in Parquet files alike, one of them cut in the topic: one is replayed from the topic, one from a
    file that the replay did not come to moving."""
    topics = ["rows:1,cleanup.policy=compact", "dead:2,max.message.bytes=3000"]
    letters = str(folder / query.LETTERS)
    spark = session("upgrades", master="local[2]", config=query.SESSION)
    try:
        with StoppedBroker(folder / "broker", flush_policy="os", topics=topics, config=CONFIG) as broker:
            client, keyed = {"kafka.bootstrap.servers": broker.bootstrap_servers}, {"key": "'k'"}
            places = {"errors.dead.letter.queue.topic.name": "dead", "errors.dead.letter.path": letters}
            given = {**client, **places, "topic": "rows", "errors.tolerance": "all"}
            for name in ("first", "second"):
                value = f"cast(if(id = 0, rpad('{name} 0', 5000, 'x'), concat('{name} ', id)) as binary) as value"
                rows = spark.range(UNREPLAYED).selectExpr("cast(null as string) as key", value)
                rows.coalesce(1).write.format("chaffinch").mode("append").options(**given).save()
            replay(spark, ReplayPlan(client=client, topic="dead", repairs=keyed, where="cast(value as string) = 'first 1'"))
            with mock.patch.object(file_replay, "_move_to_replayed"):
                replay(spark, ReplayPlan(client=client, path=letters, repairs=keyed, where="cast(value as string) = 'second 2'"))
            broker.end(signal.SIGKILL)
    finally:
        spark.stop()
    numbers = range(1, UNREPLAYED)
    return {
        "all": [f"{name} 0".ljust(20, "x") for name in ("first", "second")]
        + [f"{name} {n}" for name in ("first", "second") for n in numbers]
    }


def expect(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    found = process.stdout.readline().strip()
    assert found == line, f"{process.args!r}: {found!r}"


def wait_for(is_so: Callable[[], bool], otherwise: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s, otherwise
        threading.Event().wait(0.1)


def pack(folder: Path, target: Path) -> None:
    """The files of a folder in the order of their names, all with one time. Empty folders are kept: a partition may have one."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(folder.rglob("*")):
            if path.name in LEFT_OUT or (path.suffix == ".log" and path.parent == folder):
                continue
            name = str(path.relative_to(folder)) + ("/" if path.is_dir() else "")
            archive.writestr(zipfile.ZipInfo(name), b"" if path.is_dir() else path.read_bytes(), zipfile.ZIP_DEFLATED, 9)


def makers() -> dict[str, Callable[[Path], dict[str, Any]]]:
    return {
        **{name: partial(make_broker, end=end) for name, end in BROKERS.items()},
        **{name: partial(make_query, cut=cut) for name, cut in QUERIES.items()},
        LETTERS: make_letters,
        "both_places": make_both_places,
        MESSAGES: make_messages,
    }


def main() -> None:
    target, *names = sys.argv[1:]
    found = makers()
    Path(target).mkdir(parents=True, exist_ok=True)
    for name in names or found:
        folder = Path(tempfile.mkdtemp(prefix=f"fixture-{name}-"))
        facts = found[name](folder)
        # A replay knows a Parquet file by its name, size and time.
        times = {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}
        facts |= {"times_ns": times, "made_ms": time.time_ns() // 1_000_000}
        (folder / FACTS).write_text(json.dumps(facts, indent=1))
        packed = Path(target) / f"{name}.zip"
        pack(folder, packed)
        shutil.rmtree(folder)
        print(f"{packed}: {packed.stat().st_size} bytes", flush=True)


if __name__ == "__main__":
    main()
