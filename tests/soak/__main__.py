"""`make soak`: the broker killed under clients of others (`broker.py`), then under our own (`clients.py`), then around a Spark query
(`spark.py`), around other ways to write (`spark_variants.py`, `spark_tokens.py`), at last Apache Kafka at the ends of commits
(`commit_completion.py`) and around a query that writes to it; everything is counted.

`make spark-memory`: a micro-batch larger than the driver (`spark_memory.py`).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.interop.processes import NotRun
from tests.soak import broker, clients, commit_completion, spark, spark_memory, spark_tokens, spark_variants

BROKER_ROUNDS = 200
APACHE_ROUNDS = 10


def with_apache_kafka(folder: Path, seed: int) -> list[str]:
    """Kills at the ends of commits, and fewer rounds around a Spark query, both on Apache Kafka where that can be had."""
    for part in ("ends", "spark"):
        (folder / part).mkdir(parents=True)
    try:
        return [
            *commit_completion.soaked(folder / "ends", commit_completion.ROUNDS, seed, on_apache=True),
            *spark.soaked(folder / "spark", APACHE_ROUNDS, seed, on_apache=True),
        ]
    except NotRun as reason:
        print(f"spark with Apache Kafka: not run: {reason}", flush=True)
        return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "part",
        nargs="?",
        choices=("broker", "clients", "spark", "spark-ways", "spark-tokens", "apache", "spark-memory"),
        help="one part; unless given, all but the last",
    )
    parser.add_argument("--rounds", type=int, help="kills of the broker part, half for each flush.policy, or of each Spark part")
    parser.add_argument("--log-bytes", type=int, default=1 << 30, help="size of the log whose restart is timed; 0 leaves it out")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the clients' part loads the broker: 3 or more")
    parser.add_argument("--gb", type=float, default=spark_memory.BATCH_GB, help="size of the micro-batch whose memory is looked at")
    parser.add_argument("--apache", action="store_true", help="Apache Kafka as the broker of the Spark parts")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chaffinch-soak-"))
    print(f"data and logs are in {folder}; they stay there if something is wrong", flush=True)
    faults: list[str] = []
    if arguments.part in (None, "broker"):
        faults += broker.soaked_and_restarted(folder, arguments.rounds or BROKER_ROUNDS, arguments.log_bytes, arguments.seed)
    if arguments.part in (None, "clients"):
        faults += clients.soaked(folder, arguments.minutes, arguments.seed)
    if arguments.part in (None, "spark"):
        faults += spark.soaked(folder, arguments.rounds or spark.SPARK_ROUNDS, arguments.seed, on_apache=arguments.apache)
    if arguments.part in (None, "spark-ways"):
        faults += spark_variants.soaked(folder, arguments.seed, arguments.rounds if arguments.part else None)
    if arguments.part in (None, "spark-tokens"):
        faults += spark_tokens.soaked(folder / "tokens", arguments.seed, arguments.rounds if arguments.part else None)
    if arguments.part in (None, "apache"):
        faults += with_apache_kafka(folder / "apache", arguments.seed)
    if arguments.part == "spark-memory":
        faults += spark_memory.measured(folder, arguments.gb, on_apache=arguments.apache)
    for fault in faults:
        print(fault)
    print(f"{len(faults)} faults" if faults else "nothing is wrong")
    if faults:
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
