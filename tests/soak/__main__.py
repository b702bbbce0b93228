"""`make soak`: a broker process killed at random instants under load from two clients of others, then everything is counted.

For each `flush.policy`: so many rounds of start, load, SIGKILL; at the end the writers finish, and what they were told is compared with
what a reader finds, once as it is and once more after another kill. Then the restart of a killed broker with 1 GB of log is timed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import threading
from pathlib import Path

from tests.soak.killed_broker import KilledBroker
from tests.soak.restart import timed_restart
from tests.soak.verdict import verdict
from tests.soak.writers import (
    PLAIN_PARTITIONS,
    PLAIN_TOPIC,
    TRANSACTIONAL_WRITERS,
    TRANSACTIONS_PARTITIONS,
    TRANSACTIONS_TOPIC,
    PlainWriter,
    TransactionalWriter,
    all_outcomes,
)

TOPICS = [
    f"{PLAIN_TOPIC}:{PLAIN_PARTITIONS},segment.bytes=1048576",
    f"{TRANSACTIONS_TOPIC}:{TRANSACTIONS_PARTITIONS},segment.bytes=1048576",
]
LIFE_SECONDS = (0.05, 1.5)
"""How long a broker lives in a round after it said it was ready: from nearly nothing to some thousand requests."""


def soaked(folder: Path, flush_policy: str, rounds: int, dice: random.Random) -> list[str]:
    """Faults found after so many kills under one policy."""
    starts: list[float] = []
    with KilledBroker(folder / flush_policy, flush_policy=flush_policy, topics=TOPICS) as broker:
        plain = PlainWriter(broker.bootstrap_servers)
        transactional = [
            TransactionalWriter(broker.bootstrap_servers, f"soak-{flush_policy}", index) for index in range(TRANSACTIONAL_WRITERS)
        ]
        writers = [plain, *transactional]
        for writer in writers:
            writer.start()
        for number in range(rounds):
            threading.Event().wait(dice.uniform(*LIFE_SECONDS))
            broker.kill()
            broker.start()
            starts.append(broker.seconds_to_ready)
            if number % 10 == 9:
                print(
                    f"  {flush_policy}: {number + 1} kills, {_counts(plain, transactional)}, slowest start {max(starts):.2f} s", flush=True
                )
        for writer in writers:
            writer.stop()
        outcomes = all_outcomes(transactional)
        faults = verdict(broker.bootstrap_servers, plain, outcomes)
        broker.kill()
        broker.start()
        faults += [f"after one more kill: {fault}" for fault in verdict(broker.bootstrap_servers, plain, outcomes)]
        if "Traceback" in broker.log_text:
            faults.append("the broker's log has a traceback")
            print(broker.log_text[broker.log_text.index("Traceback") - 500 :][:3000])
    print(f"{flush_policy}: {rounds} kills, {_counts(plain, transactional)}: {len(faults)} faults", flush=True)
    return [f"{flush_policy}: {fault}" for fault in faults]


def _counts(plain: PlainWriter, transactional: list[TransactionalWriter]) -> str:
    ends = all_outcomes(transactional)
    return (
        f"{len(plain.acknowledged)} records acknowledged, {len(ends.committed)} transactions committed, {len(ends.aborted)} aborted, "
        f"{len(ends.unknown)} unknown"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="kills in all, half of them for each flush.policy")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-bytes", type=int, default=1 << 30, help="size of the log whose restart is timed; 0 leaves it out")
    arguments = parser.parse_args()
    dice = random.Random(arguments.seed)
    faults: list[str] = []
    folder = Path(tempfile.mkdtemp(prefix="chaffinch-soak-"))
    print(f"data and logs are in {folder}; they stay there if something is wrong", flush=True)
    for flush_policy in ("os", "always"):
        faults += soaked(folder, flush_policy, arguments.rounds // 2, dice)
    if arguments.log_bytes:
        faults += timed_restart(folder / "large", arguments.log_bytes)
    for fault in faults:
        print(fault)
    if faults:
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
