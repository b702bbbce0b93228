"""PartitionLog against a list of appended batches as model, over random histories with every kind of end."""

import errno
import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.records.batch import read_header, views
from chaffinch.storage.file_system import Interrupted, MemoryFileSystem, StorageError
from chaffinch.storage.partition_log import LogConfig, PartitionLog
from tests.storage.batches import batch

pytestmark = pytest.mark.long

PRODUCERS = (1, 2, 3)
NO_PRODUCER = ProducerIdentity(-1, -1)


@dataclass(frozen=True)
class Entry:
    """One batch of the list. `data`: as it was sent, empty for a marker."""

    identity: ProducerIdentity
    count: int = 1
    sequence: int = -1
    is_transactional: bool = False
    commits: bool | None = None
    data: bytes = b""


@dataclass
class Producer:
    epoch: int
    batches: list[tuple[int, int, int]] = field(default_factory=list)  # (first sequence, last sequence, base offset)
    first_offset: int | None = None


class Expected:
    """What the list says: offsets, producers, transactions."""

    def __init__(self, entries: list[Entry]) -> None:
        self.end = 0
        self.ends: list[int] = []
        self.producers: dict[int, Producer] = {}
        self.aborted: list[tuple[int, int, int]] = []  # (producer id, first offset, last offset)
        for entry in entries:
            if entry.identity.producer_id >= 0:
                self._note(entry)
            self.end += entry.count
            self.ends.append(self.end)

    def _note(self, entry: Entry) -> None:
        producer = self.producers.setdefault(entry.identity.producer_id, Producer(entry.identity.epoch))
        if producer.epoch != entry.identity.epoch:
            producer.epoch, producer.batches = entry.identity.epoch, []
        if entry.commits is None:
            producer.batches = [*producer.batches, (entry.sequence, entry.sequence + entry.count - 1, self.end)][-5:]
            if entry.is_transactional and producer.first_offset is None:
                producer.first_offset = self.end
        elif producer.first_offset is not None:
            if not entry.commits:
                self.aborted.append((entry.identity.producer_id, producer.first_offset, self.end))
            producer.first_offset = None

    @property
    def open(self) -> dict[int, int]:
        return {number: producer.first_offset for number, producer in self.producers.items() if producer.first_offset is not None}

    @property
    def stable(self) -> int:
        return min([self.end, *self.open.values()])


class LogLives(RuleBasedStateMachine):
    @initialize(
        segment_bytes=st.sampled_from([300, 1000, 1 << 20]),
        checkpoint_bytes=st.sampled_from([200, 700, 1 << 20]),
        index_interval_bytes=st.sampled_from([1, 200]),
        verify_bytes_max=st.sampled_from([0, 250, 1 << 20]),
    )
    def begin(self, **config: Any) -> None:
        self.config = LogConfig(**config)
        self.files = MemoryFileSystem()
        self.entries: list[Entry] = []
        self.durable = 0  # Entries that must survive a loss of power.
        self.open()

    def open(self) -> None:
        self.log = PartitionLog.open(self.files, "a/b", TopicPartition("a", 0), self.config, 0)

    def store(self, entry: Entry) -> None:
        base_offset = Expected(self.entries).end
        if entry.commits is None:
            result = self.log.append(bytearray(entry.data), steady_ms=0, leader_epoch=1)
        else:
            result = self.log.append_marker(entry.commits, entry.identity, 0, 0)
        assert result[:2] == (base_offset, base_offset + entry.count - 1)
        self.entries.append(entry)

    def next_entry(self, producer_id: int, count: int, wants_transaction: bool, bump: bool = False) -> Entry:
        producer = Expected(self.entries).producers.get(producer_id, Producer(0))
        epoch = producer.epoch + 1 if bump else producer.epoch
        sequence = producer.batches[-1][1] + 1 if producer.batches and not bump else 0
        transactional = wants_transaction or producer.first_offset is not None
        identity = ProducerIdentity(producer_id, epoch)
        data = bytes(batch(count, identity=identity, base_sequence=sequence, is_transactional=transactional))
        return Entry(identity, count, sequence, transactional, data=data)

    @rule(count=st.integers(1, 4), size=st.integers(0, 300))
    def append(self, count: int, size: int) -> None:
        self.store(Entry(NO_PRODUCER, count, data=bytes(batch(count, value=bytes(size)))))

    @rule(producer_id=st.sampled_from(PRODUCERS), count=st.integers(1, 4), wants_transaction=st.booleans(), bump=st.booleans())
    def append_idempotent(self, producer_id: int, count: int, wants_transaction: bool, bump: bool) -> None:
        entry = self.next_entry(producer_id, count, wants_transaction, bump)
        header = read_header(entry.data)
        assert self.log.check_producer(header) is None
        self.store(entry)
        gap = read_header(
            batch(identity=entry.identity, base_sequence=entry.sequence + entry.count + 1, is_transactional=entry.is_transactional)
        )
        assert self.log.check_producer(gap) is not None

    @rule(producer_id=st.sampled_from(PRODUCERS), commits=st.booleans(), bump=st.booleans())
    def mark(self, producer_id: int, commits: bool, bump: bool) -> None:
        epoch = Expected(self.entries).producers.get(producer_id, Producer(0)).epoch + bump
        self.store(Entry(ProducerIdentity(producer_id, epoch), commits=commits))

    @rule(producer_id=st.sampled_from(PRODUCERS))
    def full_disk(self, producer_id: int) -> None:
        self.files.bytes_free = 60
        entry = self.next_entry(producer_id, 1, True)
        with pytest.raises(StorageError) as caught:
            self.log.append(bytearray(entry.data), steady_ms=0)
        assert caught.value.error_number == errno.ENOSPC
        self.files.bytes_free = None

    @rule()
    def sync(self) -> None:
        self.log.sync()
        assert self.log.is_synced
        self.durable = len(self.entries)

    @rule()
    def close(self) -> None:
        self.log.close()
        self.files.kill()
        self.open()
        assert self.log.cuts == []
        self.durable = len(self.entries)
        self.compare()

    @rule()
    def kill(self) -> None:
        self.files.kill()
        self.open()
        assert self.log.cuts == []
        self.compare()

    @rule(producer_id=st.sampled_from(PRODUCERS), operations=st.integers(0, 12), share=st.integers(0, 10))
    def kill_inside_an_append(self, producer_id: int, operations: int, share: int) -> None:
        """After some operations of an append, those of a roll and a checkpoint included, in the middle of what is written."""
        entry = self.next_entry(producer_id, 2, True)
        left = operations

        def hook(operation: str, path: str, size: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Interrupted(size * share // 10)

        self.files.hook = hook
        before = Expected(self.entries).end
        with suppress(Interrupted):
            self.store(entry)
        self.files.hook = None
        self.files.kill()
        self.open()
        if before == Expected(self.entries).end and self.log.log_end_offset == before + entry.count:
            self.entries.append(entry)  # It is all there, though it was not acknowledged.
        self.compare()

    @rule(seed=st.integers(0, 2**32))
    def lose_power(self, seed: int) -> None:
        rng = random.Random(seed)
        self.files.crash(lambda path, unsynced: rng.choice([0, unsynced, rng.randint(0, unsynced)]))
        self.open()
        ends = [0, *Expected(self.entries).ends]
        assert self.log.log_end_offset in ends
        kept = ends.index(self.log.log_end_offset)
        assert kept >= self.durable
        del self.entries[kept:]
        self.durable = kept
        self.compare()

    @invariant()
    def offsets_agree(self) -> None:
        expected = Expected(self.entries)
        assert (self.log.log_end_offset, self.log.last_stable_offset) == (expected.end, expected.stable)
        assert {open_.producer_id: open_.first_offset for open_ in self.log.ongoing_transactions()} == expected.open

    def compare(self) -> None:
        """All that was appended is there, in order, and the producers are what the list says."""
        expected = Expected(self.entries)
        assert self.log.log_end_offset == expected.end
        offset = 0
        for entry in self.entries:
            (view, *_) = views(self.log.read(offset, 1)[0])
            assert (view.header.base_offset, view.header.last_offset_delta + 1) == (offset, entry.count)
            assert view.crc_is_valid()
            if entry.commits is None:
                assert view.data[16:] == entry.data[16:]
            offset += entry.count
        for number, producer in expected.producers.items():
            for first, last, base_offset in producer.batches:
                sent = read_header(batch(last - first + 1, identity=ProducerIdentity(number, producer.epoch), base_sequence=first))
                duplicate = self.log.find_duplicate(sent)
                assert duplicate is not None
                assert duplicate.base_offset == base_offset
        assert self.log.aborted_transactions(0, expected.end + 1) == [(number, first) for number, first, _ in expected.aborted]
        for middle in expected.ends[::3]:
            for upper in expected.ends[1::4]:
                wanted = [(number, first) for number, first, last in expected.aborted if last >= middle and first < upper]
                assert self.log.aborted_transactions(middle, upper) == wanted


LogLives.TestCase.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
TestLogLives = LogLives.TestCase
