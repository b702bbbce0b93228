"""`make spark-memory`: one micro-batch larger than all memory that the driver may take, and what each process took at its peak.

The driver is every process that runs where Spark's driver runs: its JVM, the Python application, and the Python workers that plan and
commit. In local mode its JVM is that of the tasks too, so it does more here than on a cluster; the tasks' own Python workers belong to
executors, and are shown beside. `spark.driver.memory` bounds the JVM's heap, `spark.sql.planner.pythonExecution.memory` (RLIMIT_AS) all
addresses of each Python worker that plans or commits, so neither could hold the batch. What they took is VmHWM, the largest resident set,
as Linux keeps it. In the end a client of others counts the rows and adds up their ids.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka

from tests.soak.killed_broker import KilledApacheKafka, KilledBroker, killed_broker
from tests.soak.spark_process import ROOT, processes_below

TOPIC, PARTITIONS = "large", 8
GB = 10**9
BATCH_GB = 5.0
VALUE_BYTES = 1_000
DRIVER_BYTES_MAX = 2 * GB
MASTER = "local[2]"
CONFIG: Mapping[str, object] = {
    "spark.driver.memory": "1g",
    "spark.sql.planner.pythonExecution.memory": "1g",
}
DISK_SHARE = 2.2
"""Staged files and log exist at the same time: this multiple of the batch size has to be free."""
LOOK_S = 0.2
CONSUME_BATCH, CONSUME_SECONDS = 10_000, 0.5
SILENT_SECONDS_MAX = 60.0

JVM, APPLICATION, COMMITTER, PLANNER, TASK = "JVM", "application", "worker that commits", "workers that plan", "tasks' workers"
DRIVER = (JVM, APPLICATION, COMMITTER, PLANNER)
ROLES: Mapping[bytes, str] = {
    b"pyspark.sql.worker.python_streaming_sink_runner": COMMITTER,
    b"pyspark.sql.worker": PLANNER,
    b"pyspark.worker": TASK,
    b"java": JVM,
    b"tests.soak.spark_memory_query": APPLICATION,
}
"""What stands in a process's command line; the first one that does."""


@dataclass(slots=True)
class Peaks:
    """The largest resident set of every process below one, in bytes; processes may come and go."""

    of: dict[int, tuple[str, int]] = field(default_factory=dict)
    """pid -> (role, bytes)."""

    def look(self, root: int) -> None:
        for pid in (root, *processes_below(root)):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                size = peak_bytes(pid)
            except OSError:
                continue
            role = next((role for part, role in ROLES.items() if part in command), None)
            if role is not None and size:
                self.of[pid] = role, size

    @property
    def driver(self) -> int:
        """All that the driver's processes took, as if each had been at its peak at the same time."""
        return sum(size for role, size in self.of.values() if role in DRIVER)

    def lines(self) -> Iterator[str]:
        for role in (*DRIVER, TASK):
            sizes = sorted((size for found, size in self.of.values() if found == role), reverse=True)
            yield f"{role}: {', '.join(f'{size / 1e6:.0f}' for size in sizes)} MB"


def peak_bytes(pid: int) -> int:
    """VmHWM of a process; 0 when it has just ended. Raises OSError when it is gone."""
    found = Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2]
    return int(found.split()[0]) * 1024 if found else 0


def written(folder: Path, bootstrap_servers: str, rows: int) -> Peaks:
    """Runs the query to its end, watching it. Raises RuntimeError with the end of its output when it fails."""
    plan = {
        "rows": rows,
        "value_bytes": VALUE_BYTES,
        "master": MASTER,
        "config": CONFIG,
        "input": str(folder / "input"),
        "checkpoint": str(folder / "checkpoint"),
        "options": {"kafka.bootstrap.servers": bootstrap_servers, "topic": TOPIC},
    }
    command = [sys.executable, "-m", "tests.soak.spark_memory_query", json.dumps(plan)]
    peaks = Peaks()
    with (folder / "query.log").open("w") as log:
        query = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )  # fmt: skip
    assert query.stdout is not None
    try:
        while not select.select([query.stdout], [], [], LOOK_S)[0]:
            peaks.look(query.pid)
        if not query.stdout.readline():
            raise RuntimeError(f"the query failed: {(folder / 'query.log').read_text(errors='replace')[-3000:]}")
        peaks.look(query.pid)
    finally:
        os.killpg(query.pid, signal.SIGKILL)
        query.wait()
    return peaks


def counted(bootstrap_servers: str) -> tuple[int, int]:
    """(rows, sum of their ids), read by confluent-kafka with read_committed."""
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": bootstrap_servers, "group.id": "count", "isolation.level": "read_committed",
        "enable.auto.commit": False, "enable.partition.eof": True,
    })  # fmt: skip
    rows, ids, ends, silent_s = 0, 0, 0, 0.0
    try:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, number, confluent_kafka.OFFSET_BEGINNING) for number in range(PARTITIONS)])
        while ends < PARTITIONS:
            messages = consumer.consume(CONSUME_BATCH, CONSUME_SECONDS)
            silent_s = 0.0 if messages else silent_s + CONSUME_SECONDS
            if silent_s > SILENT_SECONDS_MAX:
                raise RuntimeError(f"no end of topic {TOPIC} in sight, {rows} rows were read")
            for message in messages:
                error = message.error()
                if error is None:
                    rows, ids = rows + 1, ids + int(message.key() or b"")
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ends += 1
                else:
                    raise confluent_kafka.KafkaException(error)
    finally:
        consumer.close()
    return rows, ids


def measured(folder: Path, gb: float, *, on_apache: bool) -> list[str]:
    """Faults found after a micro-batch of this many GB."""
    if (free := shutil.disk_usage(folder).free) < (needed := int(DISK_SHARE * gb * GB)):
        return [
            f"{folder} has {free / GB:.1f} GB free, a micro-batch of {gb:g} GB needs {needed / GB:.1f}: staged files, and the broker's log"
        ]
    with killed_broker(folder / "memory-broker", [f"{TOPIC}:{PARTITIONS}"], on_apache=on_apache) as broker:
        return _measured(folder, broker, gb)


def _measured(folder: Path, broker: KilledApacheKafka | KilledBroker, gb: float) -> list[str]:
    rows = int(gb * GB / VALUE_BYTES)
    servers = broker.bootstrap_servers
    began_s = time.monotonic()
    try:
        peaks = written(folder, servers, rows)
    except RuntimeError as error:
        return [str(error)]
    written_s = time.monotonic() - began_s
    counts = json.loads((folder / "checkpoint" / "chaffinch" / "state.json").read_text())["totals"]
    found = counted(servers)
    counted_s = time.monotonic() - began_s - written_s
    print(f"a micro-batch of {counts['staged_bytes'] / GB:.2f} GB in {counts['staging_files']} staging files, {rows} rows:")
    print(f"  {written_s:.0f} s with Spark's start, its push {counts['push_ms'] / 1000:.0f} s; counted in {counted_s:.0f} s")
    for line in peaks.lines():
        print(f"  {line}")
    print(f"  the driver: {peaks.driver / 1e6:.0f} MB, had all its processes been at their peaks at once")
    print(f"  the broker: {peak_bytes(broker.pid) / 1e6:.0f} MB", flush=True)
    faults = []
    if found != (expected := (rows, rows * (rows - 1) // 2)):
        faults.append(f"the topic has {found} rows and sum of ids, not {expected}")
    if counts["staged_bytes"] < gb * GB:
        faults.append(f"only {counts['staged_bytes']} bytes were staged in files")
    if peaks.driver > DRIVER_BYTES_MAX:
        faults.append(f"the driver took {peaks.driver} bytes, more than {DRIVER_BYTES_MAX}")
    return faults
