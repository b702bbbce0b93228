"""What the clients wrote down, gathered from their journals as it comes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.soak.clients_process import NUMBERS_PER_LIFE, JournalReader
from tests.soak.clients_sender import CULPRITS

Tp = tuple[str, int]


@dataclass(slots=True)
class SenderLedger:
    """Records by number."""

    topics: list[tuple[int, int, str]] = field(default_factory=list)
    """(first number, count, topic) of each round, ascending."""
    culprits: dict[int, str] = field(default_factory=dict)
    acked: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    failed: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    """number -> class of the error, whether stored, text."""
    faults: list[str] = field(default_factory=list)

    def take(self, kind: str, *facts: Any) -> None:
        if kind == "sent":
            topic, first, count, culprits = facts
            self.topics.append((first, count, topic))
            self.culprits.update((int(number), culprit) for number, culprit in culprits.items())
        elif kind == "acked":
            topic, partition, records = facts
            for number, offset in records:
                self._once(number)
                self.acked[number] = (topic, partition, offset)
        elif kind == "failed":
            for number, *error in facts[0]:
                self._once(number)
                self.failed[number] = tuple(error)
        elif kind != "closed":
            self.faults.append(f"sender: {' '.join(map(str, facts))}")

    def _once(self, number: int) -> None:
        if number in self.acked or number in self.failed:
            self.faults.append(f"record {number} has two outcomes")

    @property
    def unknown_count(self) -> int:
        """Records for which it is unknown whether they were stored."""
        return sum(stored == "possibly" for _, stored, _ in self.failed.values())

    @property
    def sent_count(self) -> int:
        return sum(count for _, count, _ in self.topics)

    def outcome_faults(self, closed_life: int) -> list[str]:
        """Of records without outcome in a life that closed its producer, and of outcomes that are not the right ones."""
        # Only where it is unknown whether an earlier attempt of its batch was stored may an innocent fail, and a culprit with another
        # error than its own.
        faults = []
        for first, count, _ in self.topics:
            missing = [n for n in range(first, first + count) if n not in self.acked and n not in self.failed]
            if missing and first // NUMBERS_PER_LIFE == closed_life:
                faults.append(f"{len(missing)} records from {missing[0]} on have no outcome although the producer was closed")
        for number, kind in self.culprits.items():
            if number in self.acked:
                faults.append(f"culprit {number} ({kind}) was acknowledged at {self.acked[number]}")
            elif number in self.failed and self.failed[number][0] not in CULPRITS[kind] and self.failed[number][1] != "possibly":
                faults.append(f"culprit {number} ({kind}) failed with {self.failed[number]}")
        for number, (name, stored, text) in self.failed.items():
            if number not in self.culprits and stored != "possibly":
                faults.append(f"innocent {number} failed with {name}, stored: {stored}: {text}")
        return faults


@dataclass(slots=True)
class TransformerLedger:
    """Transactions by name."""

    begun: dict[str, tuple[int, str]] = field(default_factory=dict)
    """name -> records, plan."""
    ended: dict[str, str] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    fenced: int = 0
    faults: list[str] = field(default_factory=list)

    def take(self, kind: str, *facts: Any) -> None:
        if kind == "begun":
            name, count, plan = facts
            self.begun[name] = (count, plan)
        elif kind == "ended":
            self.ended[facts[0]] = facts[1]
        elif kind == "error":
            self.errors[facts[0]] += 1
        elif kind == "fenced":
            self.fenced += 1
        else:
            self.faults.append(f"transformer: {' '.join(map(str, facts))}")

    def must_be_seen(self, name: str) -> bool | None:
        """None: unknown."""
        _, plan = self.begun[name]
        if plan != "commit" or self.ended.get(name) == "aborted":
            return False
        return True if self.ended.get(name) == "committed" else None


@dataclass(slots=True)
class ReaderLedger:
    """What one reader has read, in its order."""

    read: list[tuple[Tp, list[tuple[int, int]], int]] = field(default_factory=list)
    """Place, runs of offsets, digest of their values."""
    errors: Counter[str] = field(default_factory=Counter)
    rebalances: int = 0
    faults: list[str] = field(default_factory=list)

    def take(self, kind: str, *facts: Any) -> None:
        if kind == "read":
            topic, partition, runs, crc = facts
            self.read.append(((topic, partition), runs, crc))
        elif kind == "error":
            self.errors[facts[0]] += 1
        elif kind in ("assigned", "lost"):
            self.rebalances += 1
        else:
            self.faults.append(f"reader: {' '.join(map(str, facts))}")

    @property
    def count(self) -> int:
        return sum(last - first + 1 for _, runs, _ in self.read for first, last in runs)


@dataclass(slots=True)
class Ledgers:
    """Those of all clients."""

    sender: SenderLedger = field(default_factory=SenderLedger)
    transformer: TransformerLedger = field(default_factory=TransformerLedger)
    reader: ReaderLedger = field(default_factory=ReaderLedger)
    table_reader: ReaderLedger = field(default_factory=ReaderLedger)

    def catch_up(self, journals: dict[str, JournalReader]) -> None:
        for role, journal in journals.items():
            ledger = getattr(self, role)
            for entry in journal:
                ledger.take(*entry)

    def faults(self) -> list[str]:
        """Those that the clients noticed themselves."""
        return [fault for ledger in (self.sender, self.transformer, self.reader, self.table_reader) for fault in ledger.faults]

    def __str__(self) -> str:
        sender, transformer = self.sender, self.transformer
        ends = Counter(transformer.ended.values())
        return (
            f"{sender.sent_count} records sent, {len(sender.acked)} acknowledged, {len(sender.failed)} failed, "
            f"{sender.unknown_count} of these possibly stored; "
            f"transactions {ends['committed']} committed, {ends['aborted']} aborted, {len(transformer.begun) - ends.total()} unknown; "
            f"read {self.reader.count} and {self.table_reader.count}, {self.reader.rebalances + self.table_reader.rebalances} assignments"
        )
