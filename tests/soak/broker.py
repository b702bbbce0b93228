"""`python -m tests.soak broker`: a broker process killed at random under two clients of others, then everything is counted.

For each `flush.policy`: rounds of start, load, SIGKILL; at the end the writers finish, and their outcomes are compared with
what a reader finds, once as it is and once more after another kill. Then the restart of a killed broker with 1 GB of log is timed.
"""

from __future__ import annotations

import random
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


def soaked(folder: Path, flush_policy: str, rounds: int, rng: random.Random) -> list[str]:
    """Faults found after this many kills under one policy."""
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
            threading.Event().wait(rng.uniform(*LIFE_SECONDS))
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


def soaked_and_restarted(folder: Path, rounds: int, log_bytes: int, seed: int) -> list[str]:
    """Faults found after this many kills, half of them under each policy; a restart with `log_bytes` of log is timed unless that is 0."""
    rng = random.Random(seed)
    faults = [fault for flush_policy in ("os", "always") for fault in soaked(folder, flush_policy, rounds // 2, rng)]
    if log_bytes:
        faults += timed_restart(folder / "large", log_bytes)
    return faults
