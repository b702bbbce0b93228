"""`python -m tests.soak clients`: our producers and consumers, each in a process, while the broker is killed every few seconds.

An idempotent sender with culprits, a transactional transformer, and two readers in one group. In the first part of the run clients are
killed too, and the transformer is overtaken by a second one; from then on they live on, and their memory has to stay where it is. In the
end everything is counted by a client of others (`clients_verdict.py`), once as it is and once more after another kill.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

from tests.soak.clients_ledgers import Ledgers
from tests.soak.clients_memory import Memory
from tests.soak.clients_process import BROKER_RECORD_BYTES_MAX, COMPACTED, OUTPUT, PARTITIONS, PLAIN, ClientProcess, JournalReader
from tests.soak.clients_verdict import faults_of_load, verdict
from tests.soak.killed_broker import KilledBroker

CLIENT_KILLS_SHARE = 0.35
"""Part of the run in which clients are killed."""
WARM_SHARE = 0.45
"""Part of the run after which memory must be flat."""
WARM_SECONDS_MIN = 90.0
"""Time to load code and fill buffers, with killed clients starting again."""
BROKER_LIFE_SECONDS = (2.0, 6.0)
CLIENT_LIFE_SECONDS = (8.0, 20.0)
LOOK_SECONDS = 1.0
FAULTS_SHOWN = 40
BROKER_CONFIG = ("group.initial.rebalance.delay.ms=100", "group.min.session.timeout.ms=500")
TOPIC_OPTIONS = {
    PLAIN: "",
    COMPACTED: ",cleanup.policy=compact",
    OUTPUT: "",
}


class Conductor:
    """One run."""

    def __init__(self, folder: Path, broker: KilledBroker, minutes: float, seed: int) -> None:
        self._broker, self._seconds = broker, 60 * minutes
        # One for each, so that what happens to clients does not depend on how long a broker took to start.
        self._broker_dice, self._client_dice = random.Random(f"{seed} broker"), random.Random(f"{seed} clients")
        roles = ("sender", "transformer", "reader", "table_reader")
        self._clients = {role: ClientProcess(role, role, folder, broker.bootstrap_servers, seed) for role in roles}
        self._journals = {role: JournalReader(client.journal_path) for role, client in self._clients.items()}
        self._ledgers = Ledgers()
        self._memory = Memory(across_lives=frozenset({"broker"}))
        self._began_s = time.monotonic()
        self._broker_starts: list[float] = []
        self._client_kills = 0

    def run(self) -> list[str]:
        """Faults."""
        for client in self._clients.values():
            client.start()
        faults = self._load()
        print("  the broker lives on, and the clients end", flush=True)
        # The sender first, then who reads what it sent, then who reads that.
        for client in self._clients.values():
            if client.role == "reader":
                faults += self._finish_readers()
            elif client.role != "table_reader":
                faults += client.finish()
        self._ledgers.catch_up(self._journals)
        lines, grown = self._memory.growth(self._began_s + max(WARM_SECONDS_MIN, WARM_SHARE * self._seconds))
        for line in lines:
            print(f"  memory of {line}", flush=True)
        last_sender = self._clients["sender"].lives
        faults += grown + faults_of_load(
            self._seconds, len(self._broker_starts), CLIENT_KILLS_SHARE * self._seconds, self._client_kills, self._ledgers.sender
        )
        faults += verdict(self._broker.bootstrap_servers, self._ledgers, last_sender)
        self._broker.kill()
        self._broker.start()
        faults += [f"after one more kill: {fault}" for fault in verdict(self._broker.bootstrap_servers, self._ledgers, last_sender)]
        return faults

    def _finish_readers(self) -> list[str]:
        """Both at once: one that stays gets the partitions of the one that leaves."""
        readers = [self._clients["reader"], self._clients["table_reader"]]
        for reader in readers:
            reader.ask_to_end()
        return [fault for reader in readers for fault in reader.finish()]

    def _load(self) -> list[str]:
        now_s = time.monotonic()
        end_s, kills_end_s, minute = now_s + self._seconds, now_s + CLIENT_KILLS_SHARE * self._seconds, 1
        broker_kill_s = now_s + self._broker_dice.uniform(*BROKER_LIFE_SECONDS)
        client_kill_s = now_s + self._client_dice.uniform(*CLIENT_LIFE_SECONDS)
        while (now_s := time.monotonic()) < end_s:
            self._look(now_s)
            faults = [fault for client in self._clients.values() for fault in client.faults()]
            if faults:
                return faults
            if now_s >= broker_kill_s:
                self._broker.kill()
                self._broker.start()
                self._broker_starts.append(self._broker.seconds_to_ready)
                broker_kill_s = time.monotonic() + self._broker_dice.uniform(*BROKER_LIFE_SECONDS)
            if client_kill_s <= now_s < kills_end_s:
                self._end_a_life()
                client_kill_s = now_s + self._client_dice.uniform(*CLIENT_LIFE_SECONDS)
            if now_s >= self._began_s + 60 * minute:
                self._report(minute)
                minute += 1
            threading.Event().wait(min(LOOK_SECONDS, max(0.0, broker_kill_s - time.monotonic())))
        return []

    def _end_a_life(self) -> None:
        client = self._clients[self._client_dice.choice(["sender", "transformer", "transformer", "reader", "table_reader"])]
        self._client_kills += 1
        if client.role == "transformer" and self._client_dice.random() < 0.5:
            client.overtake()
        else:
            client.kill()

    def _look(self, now_s: float) -> None:
        self._memory.look("broker", self._broker.pid, now_s)
        for name, client in self._clients.items():
            assert client.process is not None
            self._memory.look(name, client.process.pid, now_s)

    def _report(self, minute: int) -> None:
        self._ledgers.catch_up(self._journals)
        print(f"  minute {minute}: {self}; {self._memory.now()}", flush=True)

    def __str__(self) -> str:
        starts = self._broker_starts
        return (
            f"{len(starts)} kills of the broker (slowest start {max(starts, default=0):.1f} s), {self._client_kills} of clients, "
            f"{self._ledgers.transformer.fenced} fenced; {self._ledgers}"
        )

    def errors(self) -> dict[str, int]:
        """Errors that clients got on the way and that are no faults."""
        return {
            f"{role}: {text}": count
            for role in ("transformer", "reader", "table_reader")
            for text, count in getattr(self._ledgers, role).errors.most_common(8)
        }


def soaked(folder: Path, minutes: float, seed: int) -> list[str]:
    """Faults found after this many minutes."""
    topics = [
        f"{topic}:{count},segment.bytes=4194304,max.message.bytes={BROKER_RECORD_BYTES_MAX}{TOPIC_OPTIONS[topic]}"
        for topic, count in PARTITIONS.items()
    ]
    with KilledBroker(folder / "broker", flush_policy="os", topics=topics, config=BROKER_CONFIG) as broker:
        conductor = Conductor(folder, broker, minutes, seed)
        faults = conductor.run()
        if "Traceback" in broker.log_text:
            faults.append("the broker's log has a traceback")
            print(broker.log_text[broker.log_text.index("Traceback") - 500 :][:3000])
    for error, count in conductor.errors().items():
        print(f"  {count} times {error}")
    print(f"clients, seed {seed}, {minutes:g} minutes: {conductor}: {len(faults)} faults", flush=True)
    if len(faults) > FAULTS_SHOWN:
        faults[FAULTS_SHOWN:] = [f"and {len(faults) - FAULTS_SHOWN} more"]
    return faults
