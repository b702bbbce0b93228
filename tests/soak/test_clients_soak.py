"""What `make soak` would find: a small run that is right, and one line for each thing that can be wrong with it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.soak.clients_ledgers import Ledgers, SenderLedger
from tests.soak.clients_memory import MEGABYTE, Memory, Sample, sample
from tests.soak.clients_process import COMPACTED, NUMBERS_PER_LIFE, OUTPUT, PARTITIONS, PLAIN, Journal, JournalReader
from tests.soak.clients_reader import digest
from tests.soak.clients_verdict import Stored, faults_of_load, faults_of_readers, faults_of_sender, faults_of_transactions

FIRST = NUMBERS_PER_LIFE
LIFE = 1


class World:
    """Three records of PLAIN and one of COMPACTED, two culprits, one transaction committed and one aborted; all was read."""

    def __init__(self) -> None:
        self.stored: Stored = {(topic, partition): [] for topic, count in PARTITIONS.items() for partition in range(count)}
        self.stored[PLAIN, 0] = [(0, _record(0)), (1, _record(2))]
        self.stored[PLAIN, 1] = [(0, _record(1))]
        self.stored[COMPACTED, 2] = [(0, _record(5))]
        self.stored[OUTPUT, 0] = [(0, b"1.1|0|0|0"), (1, b"1.1|2|0|1")]
        self.stored[OUTPUT, 1] = [(0, b"1.1|1|1|0")]
        self.transformed = {(PLAIN, partition): len(self.stored[PLAIN, partition]) for partition in range(PARTITIONS[PLAIN])}
        self.committed = {tp: len(records) for tp, records in self.stored.items()}
        self.ledgers = Ledgers()
        self.journal("sender", "sent", PLAIN, FIRST, 4, {str(FIRST + 3): "large"})
        self.journal("sender", "sent", COMPACTED, FIRST + 4, 2, {str(FIRST + 4): "null"})
        for (topic, partition), records in self.stored.items():
            if topic != OUTPUT:
                self.journal("sender", "acked", topic, partition, [[int(value.split(b":")[0]), offset] for offset, value in records])
            if records:
                runs, crc = [[records[0][0], records[-1][0]]], digest(value for _, value in records)
                self.journal("reader" if partition else "table_reader", "read", topic, partition, runs, crc)
        self.journal(
            "sender", "failed", [[FIRST + 3, "RecordTooLargeException", "no", ""], [FIRST + 4, "InvalidCompactionKeyException", "no", ""]]
        )
        self.journal("transformer", "begun", "1.1", 3, "commit")
        self.journal("transformer", "ended", "1.1", "committed")
        self.journal("transformer", "begun", "1.2", 3, "abort")
        self.journal("transformer", "ended", "1.2", "aborted")

    def journal(self, role: str, *entry: object) -> None:
        getattr(self.ledgers, role).take(*entry)

    def faults(self) -> list[str]:
        return [
            *self.ledgers.faults(),
            *self.ledgers.sender.outcome_faults(LIFE),
            *faults_of_sender(self.stored, self.ledgers.sender),
            *faults_of_transactions(self.stored, self.ledgers.transformer, self.transformed),
            *faults_of_readers(self.stored, [self.ledgers.reader, self.ledgers.table_reader], self.committed),
        ]


def _record(number: int, kind: str = "") -> bytes:
    return b"%d:%s:..." % (FIRST + number, kind.encode())


def test_correct_run_has_no_faults() -> None:
    assert World().faults() == []


def _append(tp: tuple[str, int], value: bytes) -> Callable[[World], None]:
    def change(world: World) -> None:
        records = world.stored[tp]
        records.append((records[-1][0] + 1 if records else 0, value))

    return change


def _journal(role: str, *entry: object) -> Callable[[World], None]:
    return lambda world: world.journal(role, *entry)


def _drop(tp: tuple[str, int]) -> Callable[[World], None]:
    return lambda world: world.stored[tp].clear()


def _fail(number: int, name: str, stored: str) -> Callable[[World], None]:
    return lambda world: world.ledgers.sender.failed.update({FIRST + number: (name, stored, "")})


def _commit(name: str, tp: tuple[str, int], offset: int) -> Callable[[World], None]:
    return lambda world: getattr(world, name).update({tp: offset})


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_append((PLAIN, 1), _record(2)), "is stored twice"),
        (_append((PLAIN, 1), _record(0)), "is behind"),
        (_append((PLAIN, 2), _record(3, "large")), "culprit 1000000003 (large) is stored"),
        (_append((PLAIN, 2), _record(3, "large")), "surely not stored, and is at"),
        (_append((PLAIN, 2), _record(9)), "no sender sent it"),
        (_drop((PLAIN, 1)), "was acknowledged at ('plain', 1, 0), and is at None"),
        (_journal("sender", "acked", PLAIN, 1, [[FIRST + 1, 0]]), "has two outcomes"),
        (_journal("sender", "failed", [[FIRST + 3, "RecordTooLargeException", "no", ""]]), "has two outcomes"),
        (_journal("sender", "acked", PLAIN, 1, [[FIRST + 3, 1]]), "culprit 1000000003 (large) was acknowledged"),
        (_journal("sender", "sent", PLAIN, FIRST + 6, 2, {}), "2 records from 1000000006 on have no outcome"),
        (_journal("sender", "fault", "reported twice"), "reported twice"),
        (_fail(3, "InvalidTimestampException", "no"), "culprit 1000000003 (large) failed with"),
        (_fail(1, "TimeoutException", "no"), "innocent 1000000001 failed with"),
        (_drop((OUTPUT, 1)), "transaction 1.1 (commit, committed): 2 of 3 records are seen"),
        (_append((OUTPUT, 1), b"1.2|0|1|0"), "transaction 1.2 (abort, aborted): 1 of 3 records are seen"),
        (_append((OUTPUT, 1), b"1.3|0|1|0"), "transactions that no transformer began"),
        (_append((OUTPUT, 1), b"1.1|1|1|0"), "plain-1, committed up to 1: 1 records are not transformed once"),
        (_append((OUTPUT, 1), b"culprit of 1.2"), "a culprit is at 1"),
        (_commit("transformed", (PLAIN, 1), 0), "plain-1, committed up to 0: 1 records are not transformed once"),
        (_append((PLAIN, 1), _record(9)), "records were never transformed"),
        (_append((OUTPUT, 2), b"1.1|1|1|0"), "('output', 2): 1 records were never read"),
        (_commit("committed", (PLAIN, 2), 50_000), "far beyond the end"),
        (_journal("reader", "read", PLAIN, 1, [[0, 0]], 7), "what was read at [[0, 0]] is not what is there"),
        (lambda world: world.ledgers.reader.read.pop(0), "committed up to 1, and 1 records below were never read"),
        (_journal("table_reader", "fault", "out of order"), "out of order"),
    ],
)
def test_each_fault_is_found(change: Callable[[World], object], fault: str) -> None:
    world = World()
    change(world)
    assert any(fault in found for found in world.faults()), world.faults()


@pytest.mark.parametrize("change", [_fail(1, "NetworkException", "possibly"), _fail(3, "NetworkException", "possibly")])
def test_unknown_outcome_is_no_fault(change: Callable[[World], object]) -> None:
    world = World()
    for number in (1, 3):
        world.ledgers.sender.acked.pop(FIRST + number, None)
    world.ledgers.sender.failed[FIRST + 1] = ("NetworkException", "possibly", "")
    change(world)
    assert world.faults() == []


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        (lambda second: (100 * MEGABYTE, 8, 4), []),
        (lambda second: (100 * MEGABYTE + second * MEGABYTE // 100, 8, 4), []),
        (lambda second: (100 * MEGABYTE + second * MEGABYTE // 10, 8, 4), ["it grew by 13.4 MB"]),
        (lambda second: (100 * MEGABYTE, 8 + second // 20, 4), ["it has 7 more file descriptors"]),
        (lambda second: (100 * MEGABYTE, 8, 4 + second // 20), ["it has 7 more threads"]),
    ],
)
def test_growth_is_found_by_medians(change: Callable[[int], tuple[int, int, int]], faults: Sequence[str]) -> None:
    memory = Memory()
    memory.samples["it"] = [Sample(second, *change(second)) for second in range(300)]
    lines, found = memory.growth(window_begins_s=100)
    assert found == faults
    assert len(lines) == 1


@pytest.mark.parametrize(("samples", "is_known"), [(8, False), (9, True)])
def test_too_few_samples_give_no_verdict(samples: int, is_known: bool) -> None:
    memory = Memory()
    memory.samples["it"] = [Sample(second, 100 * MEGABYTE, 8, 4) for second in range(100 + samples)]
    lines, found = memory.growth(window_begins_s=100)
    assert (len(lines), found == []) == (is_known, is_known)
    assert is_known or found[0].startswith("it has only 8 samples of memory, 9 are needed")


def test_process_without_samples_is_reported() -> None:
    memory = Memory()
    memory.look("it", 0, 0.0)  # No process has this number.
    assert memory.growth(0)[1] == ["it has only 0 samples of memory, 9 are needed: whether it grows is not known"]


ENOUGH: dict[str, Any] = {
    "seconds": 600.0,
    "broker_kills": 60,
    "killing_seconds": 210.0,
    "client_kills": 7,
    "acked": 45_000,
    "sent": 50_100,
}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"broker_kills": 59}, "59 kills of the broker, at least 60 are needed"),
        ({"client_kills": 6}, "6 kills of clients, at least 7 are needed"),
        ({"acked": 29_999, "sent": 30_100}, "29999 records acknowledged, at least 30000 are needed"),
        ({"acked": 44_999}, "44999 of 50000 records that are no culprits acknowledged, at least 45000 are needed"),
    ],
)
def test_run_with_little_load_is_a_fault(change: dict[str, int], fault: str | None) -> None:
    load = ENOUGH | change
    ledger = SenderLedger(acked=dict.fromkeys(range(load.pop("acked")), (PLAIN, 0, 0)), culprits=dict.fromkeys(range(100), "large"))
    ledger.take("sent", PLAIN, FIRST, load.pop("sent"), {})
    found = faults_of_load(**load, ledger=ledger)
    assert found == ([] if fault is None else [f"{fault}: this run proves nothing"])


def test_short_lives_are_compared_by_their_maximum() -> None:
    memory = Memory(across_lives=frozenset({"broker"}))
    memory.samples["broker"] = [Sample(life, (100 + (70 if life % 5 == 0 or life < 10 else 0)) * MEGABYTE, 30, 1) for life in range(60)]
    assert memory.growth(0)[1] == []
    memory.samples["broker"][-1] = Sample(60, 190 * MEGABYTE, 30, 1)
    assert memory.growth(0)[1] == ["broker grew by 20.0 MB"]


def test_growing_journal_is_read_without_a_torn_line(tmp_path: Path) -> None:
    reader = JournalReader(tmp_path / "journal")
    assert list(reader) == []
    journal = Journal(reader.path)
    journal.write("sent", 1)
    journal.close()
    with reader.path.open("ab") as file:
        file.write(b'["torn",')
    assert list(reader) == [["sent", 1]]
    with reader.path.open("ab") as file:
        file.write(json.dumps(2).encode() + b"]\n")
    assert list(reader) == [["torn", 2]]


def test_log_files_do_not_count_as_leaked_descriptors(tmp_path: Path) -> None:
    def descriptors() -> int:
        found = sample(os.getpid(), 0.0)
        assert found is not None
        return found.file_descriptors

    before = descriptors()
    with (tmp_path / "00.log").open("wb"):
        assert descriptors() == before
        with (tmp_path / "other").open("wb"):
            assert descriptors() == before + 1
