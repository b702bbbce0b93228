"""Random lives of a compacted log with rolls, retention, deleted records and compactions, ended by a kill or a loss of power in any write.

The model is the list of all records that were appended, and where the log starts. After every step: the log ends where it must, everything
in it was appended, the last value of each key is there, and producers are known by their last batch.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from chaffinch.identifiers import NO_PRODUCER, ProducerIdentity
from chaffinch.records.batch import read_header
from chaffinch.records.compression import Compression
from chaffinch.storage import compaction
from chaffinch.storage.compaction import Compaction, cleanable
from chaffinch.storage.file_system import Interrupted, MemoryFileSystem, StorageError
from chaffinch.storage.partition_log import LogConfig, PartitionLog
from tests.storage.compacted_log import ONE, TWO, committed, records
from tests.storage.orders_log import DIRECTORY, ORDERS

pytestmark = pytest.mark.long

STEPS = 45


@dataclass
class Record:
    offset: int
    key: bytes
    value: bytes | None
    is_transactional: bool
    is_committed: bool | None
    """None while its transaction is open."""


@dataclass
class Model:
    records: list[Record] = field(default_factory=list)
    end: int = 0
    durable_end: int = 0
    starts: set[int] = field(default_factory=lambda: {0})
    """Where the log may start: several offsets while it is not known whether a deletion was carried out."""
    sequences: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0})
    last_batch: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Producer id -> (first sequence, records, offset)."""


class Life:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.files = MemoryFileSystem()
        self.model = Model()
        self.steady_ms = 0
        self.config = LogConfig(
            segment_bytes=self.dice.choice([400, 1500]),
            segment_ms=self.dice.choice([20, 2**62]),
            index_interval_bytes=self.dice.choice([1, 300]),
            checkpoint_bytes=self.dice.choice([300, 1 << 20]),
            retention_ms=self.dice.choice([-1, 60]),
            retention_bytes=self.dice.choice([-1, 3000]),
            compacts=True,
            delete_retention_ms=self.dice.choice([0, 30]),
        )
        self.open()

    def open(self) -> None:
        self.log = PartitionLog.open(self.files, DIRECTORY, ORDERS, self.config, self.steady_ms)
        self.job: Compaction | None = None

    # Steps.

    def append(self) -> None:
        dice, model = self.dice, self.model
        pairs = [(f"k{dice.randrange(5)}", None if dice.random() < 0.2 else f"v{model.end}") for _ in range(dice.randint(1, 4))]
        identity = dice.choice([NO_PRODUCER, ONE, TWO])
        sequence = model.sequences.get(identity.producer_id, -1)
        batch = records(
            *pairs,
            identity=identity,
            base_sequence=sequence,
            is_transactional=identity == TWO,
            compression=dice.choice(list(Compression)),
        )
        offset = self.log.log_end_offset
        before, size = offset, len(pairs)
        try:
            self.log.append(batch, steady_ms=self.steady_ms)
        except Interrupted:
            self.files.hook = None
            self.restart()
            if self.log.log_end_offset == before:
                return
        for index, (key, value) in enumerate(pairs):
            text = None if value is None else value.encode()
            model.records.append(Record(offset + index, key.encode(), text, identity == TWO, None if identity == TWO else True))
        model.end = offset + size
        if identity != NO_PRODUCER:
            model.last_batch[identity.producer_id] = (sequence, size, offset)
            model.sequences[identity.producer_id] = sequence + size

    def mark(self) -> None:
        is_commit = self.dice.random() < 0.6
        before = self.log.log_end_offset
        try:
            self.log.append_marker(is_commit, TWO, 0, self.steady_ms)
        except Interrupted:
            self.files.hook = None
            self.restart()
            if self.log.log_end_offset == before:
                return
        self.model.end = before + 1
        for record in self.model.records:
            if record.is_committed is None:
                record.is_committed = is_commit

    def roll(self) -> None:
        self.log.roll(self.steady_ms)

    def sync(self) -> None:
        self.log.sync()
        self.model.durable_end = self.model.end

    def delete_old_segments(self) -> None:
        before = self.log.log_start_offset
        self.model.starts = {before, *(segment.end_offset for segment in self.log.files.segments)}
        self.log.delete_old_segments(self.steady_ms)
        self.model.starts = {self.log.log_start_offset}

    def delete(self) -> None:
        offset = self.dice.randint(0, self.log.log_end_offset)
        self.model.starts |= {offset}
        self.log.delete_records_before(offset, self.steady_ms)
        self.model.starts = {self.log.log_start_offset}

    def compact(self) -> None:
        if not self.log.files.segments:
            return
        found = cleanable(self.log.files.segments, self.log.files.state, self.config, self.log.last_stable_offset, self.steady_ms)
        if self.job is None:
            self.job = Compaction(self.log, found.end_offset, self.steady_ms, map_bytes_max=self.dice.choice([700, 1 << 20]))
        slices = self.dice.choice([1, 2, 5, 1000])  # What happens between two of them is up to the other steps.
        try:
            if any(self.job.step() for _ in range(slices)):
                self.job = None
        except StorageError:
            self.job = None
            raise

    def close(self) -> None:
        self.log.close()
        self.model.durable_end = self.model.end
        self.restart()

    def kill(self) -> None:
        self.restart()

    def fill_disk(self) -> None:
        """For one other step."""
        self.files.bytes_free = self.dice.randrange(400)
        with suppress(StorageError):
            self.dice.choice([self.roll, self.delete_old_segments, self.delete, self.compact])()
        self.files.bytes_free = None
        self.model.starts.add(self.log.log_start_offset)

    def restart(self) -> None:
        self.files.kill()
        self.open()

    def lose_power(self) -> None:
        dice, model = self.dice, self.model
        self.files.crash(lambda path, unsynced: dice.choice([0, unsynced, dice.randint(0, unsynced)]))
        self.open()
        end = self.log.log_end_offset
        assert model.durable_end <= end or max(model.starts) >= end, "something durable is lost"
        assert end <= model.end
        model.records = [record for record in model.records if record.offset < end]
        model.last_batch = {number: last for number, last in model.last_batch.items() if last[2] < end}
        model.end = model.durable_end = end
        # What producers were is only known from what is left; the model goes on from the log.
        for record in model.records:
            if record.is_transactional and record.offset >= self.log.last_stable_offset:
                record.is_committed = None
        for number, state in ((1, self.log.producers._states.get(1)), (2, self.log.producers._states.get(2))):
            model.sequences[number] = 0 if state is None else state.last_sequence + 1
            assert number not in model.last_batch or (state is not None and state.batches), "a producer is forgotten"

    def step(self) -> None:
        dice = self.dice
        self.steady_ms += dice.randrange(8)
        chosen = dice.choice(
            [*[self.append] * 8, *[self.mark] * 3, self.roll, self.sync, self.delete_old_segments, self.delete, self.compact, self.compact]
        )
        last = dice.choice([None, None, None, self.kill, self.close, self.lose_power, self.fill_disk])
        if dice.random() < 0.35:
            left = dice.randrange(40)

            def hook(operation: str, path: str, size: int) -> None:
                nonlocal left
                left -= 1
                if left < 0 and operation != "read":
                    raise Interrupted(dice.randint(0, size))

            self.files.hook = hook
            last = dice.choice([self.kill, self.lose_power])
        with suppress(Interrupted):
            chosen()
        self.files.hook = None
        if last is not None:
            last()
        self.check()

    # What must hold.

    def check(self) -> None:
        log, model = self.log, self.model
        start = log.log_start_offset
        assert start in model.starts
        model.starts = {start}
        assert log.log_end_offset == max(model.end, start)
        model.end = log.log_end_offset
        found = [row for row in committed(log, until=log.last_stable_offset) if row[0] >= start]
        appended = {(record.offset, record.key, record.value) for record in model.records if record.is_committed}
        assert set(found) <= appended
        expected = {
            record.key: record.value for record in model.records if record.is_committed and start <= record.offset < log.last_stable_offset
        }
        there = {key: value for _, key, value in found}
        assert {key: value for key, value in there.items() if value is not None} == {
            key: value for key, value in expected.items() if value is not None
        }
        for number, (sequence, count, _) in model.last_batch.items():
            sent = records(*[("x", "x")] * count, identity=ProducerIdentity(number, 0), base_sequence=sequence)
            assert log.find_duplicate(read_header(sent)) is not None


@pytest.mark.parametrize("seed", range(120))
def test_random_life_matches_the_model(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SLICE_BYTES", 1 if seed % 3 else 1 << 20)
    monkeypatch.setattr(compaction, "REMOVED_PER_SLICE", 1)
    life = Life(seed)
    for _ in range(STEPS):
        life.step()
