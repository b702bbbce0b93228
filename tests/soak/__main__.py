"""`make soak`: the broker killed under clients of others (`broker.py`), then under our own (`clients.py`); everything is counted."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.soak import broker, clients


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=("broker", "clients"), help="one of the two parts; both unless given")
    parser.add_argument("--rounds", type=int, default=200, help="kills in all of the broker's part, half of them for each flush.policy")
    parser.add_argument("--log-bytes", type=int, default=1 << 30, help="size of the log whose restart is timed; 0 leaves it out")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the clients' part loads the broker")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chaffinch-soak-"))
    print(f"data and logs are in {folder}; they stay there if something is wrong", flush=True)
    faults: list[str] = []
    if arguments.part != "clients":
        faults += broker.soaked_and_restarted(folder, arguments.rounds, arguments.log_bytes, arguments.seed)
    if arguments.part != "broker":
        faults += clients.soaked(folder, arguments.minutes, arguments.seed)
    for fault in faults:
        print(fault)
    print(f"{len(faults)} faults" if faults else "nothing is wrong")
    if faults:
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
