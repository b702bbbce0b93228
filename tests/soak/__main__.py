"""`make soak`: the broker killed under clients of others (`broker.py`), then under our own (`clients.py`), then around a Spark query
(`spark.py`); everything is counted."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.soak import broker, clients, spark

BROKER_ROUNDS = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=("broker", "clients", "spark"), help="one of the parts; all unless given")
    parser.add_argument("--rounds", type=int, help="kills of the broker's part, half for each flush.policy, or of Spark's")
    parser.add_argument("--log-bytes", type=int, default=1 << 30, help="size of the log whose restart is timed; 0 leaves it out")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the clients' part loads the broker")
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
        faults += spark.soaked(folder, arguments.rounds or spark.SPARK_ROUNDS, arguments.seed)
    for fault in faults:
        print(fault)
    print(f"{len(faults)} faults" if faults else "nothing is wrong")
    if faults:
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
