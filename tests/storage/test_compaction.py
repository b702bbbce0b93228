"""Compaction of one log: removed and retained records, without effect on readers and producers."""

from __future__ import annotations

import pytest

from chaffinch.identifiers import ProducerIdentity
from chaffinch.records.batch import decode, encode, read_header
from chaffinch.records.batch_header import ATTRIBUTE_DELETE_HORIZON
from chaffinch.records.columns import RecordColumns
from chaffinch.records.compression import Compression
from chaffinch.storage import compaction
from chaffinch.storage.compaction import Compaction, cleanable
from chaffinch.storage.file_system import CorruptLog, MemoryFileSystem
from chaffinch.storage.partition_log import LogConfig, PartitionLog
from tests.storage.compacted_log import ONE, TWO, all_batches, compact, headers, opened, records, rows, transaction
from tests.storage.orders_log import DIRECTORY


class TestKeys:
    @pytest.mark.parametrize("codec", list(Compression))
    def test_last_record_of_each_key_keeps_its_offset(self, codec: Compression) -> None:
        log = opened(MemoryFileSystem())
        log.append(records(("a", "1"), ("b", "1"), ("a", "2"), compression=codec), steady_ms=0)
        log.append(records(("c", "1"), compression=codec), steady_ms=0)
        log.append(records(("a", "3"), ("a", "4"), compression=codec), steady_ms=0)
        log.append(records(("b", "2"), compression=codec), steady_ms=0)
        log.roll(0)
        log.append(records(("c", "2")), steady_ms=0)
        compact(log)
        assert rows(log) == [(3, b"c", b"1"), (5, b"a", b"4"), (6, b"b", b"2"), (7, b"c", b"2")]
        assert headers(log) == [(3, 3, 1), (4, 5, 1), (6, 6, 1), (7, 7, 1)]
        assert log.files.state.first_dirty_offset == 7

    def test_last_segment_is_not_compacted(self) -> None:
        log = opened(MemoryFileSystem())
        for value in "123":
            log.append(records(("a", value)), steady_ms=0)
        assert cleanable(log.files.segments, log.files.state, log.config, 3, 0).dirty_bytes == 0
        compact(log)
        assert len(rows(log)) == 3

    def test_records_without_a_key_are_removed(self) -> None:
        log = opened(MemoryFileSystem())
        log.append(records((None, "1"), ("a", "1"), (None, None)), steady_ms=0)
        log.append(records((None, "2")), steady_ms=0)
        log.roll(0)
        compact(log)
        assert rows(log) == [(1, b"a", b"1")]
        assert headers(log) == [(0, 2, 1), (3, 3, 0)]

    def test_small_segments_are_merged_up_to_segment_bytes(self) -> None:
        files = MemoryFileSystem()
        log = opened(files, segment_bytes=300, index_interval_bytes=1)
        for number in range(30):
            log.append(records((f"k{number % 3}", f"{number}" * 10)), steady_ms=0)
        before = len(log.files.segments)
        compact(log)
        compact(log)  # Groups are made by the sizes before.
        assert len(log.files.segments) < before / 2
        assert all(segment.size <= 300 for segment in log.files.segments)
        assert [key for _, key, _ in rows(log)][-3:] == [b"k0", b"k1", b"k2"]

    def test_later_compaction_removes_records_of_earlier_ones(self) -> None:
        log = opened(MemoryFileSystem())
        for value in ("1", "2", "3"):
            log.append(records(("a", value), ("b", value)), steady_ms=0)
            log.append(records(("only" + value, value)), steady_ms=0)
            log.roll(0)
            compact(log)
        assert rows(log) == [(2, b"only1", b"1"), (5, b"only2", b"2"), (6, b"a", b"3"), (7, b"b", b"3"), (8, b"only3", b"3")]

    def test_keys_that_do_not_fit_are_left_for_later(self) -> None:
        log = opened(MemoryFileSystem())
        for number in range(20):
            log.append(records((f"k{number % 10}", str(number))), steady_ms=0)
        log.roll(0)
        compact(log, map_bytes_max=600)
        middle = log.files.state.first_dirty_offset
        assert 0 < middle < 20
        for _ in range(10):
            compact(log, map_bytes_max=600)
        assert log.files.state.first_dirty_offset == 20
        assert {key: value for _, key, value in rows(log)} == {b"k%d" % number: b"%d" % (number + 10) for number in range(10)}
        assert len(rows(log)) <= 19

    def test_number_of_keys_that_fit_is_independent_of_value_sizes(self) -> None:
        ends = []
        for size in (1, 10_000):
            log = opened(MemoryFileSystem())
            for number in range(20):
                log.append(records((f"k{number:02}", "v" * size)), steady_ms=0)
            log.roll(0)
            compact(log, map_bytes_max=10 * 153)
            ends.append(log.files.state.first_dirty_offset)
        assert ends == [10, 10]

    def test_abandoned_compaction_is_repeated_by_the_next(self) -> None:
        log = opened(MemoryFileSystem(), segment_bytes=100)
        for value in ("1", "2", "3"):
            log.append(records(("a", value)), steady_ms=0)
            log.append(records(("b", value)), steady_ms=0)
        log.append(records(("c", "1")), steady_ms=0)
        job = Compaction(log, 6, 0, map_bytes_max=1 << 30)
        while not log.files.state.gaps_below:
            assert not job.step()
        job.abandon()
        assert log.files.state.first_dirty_offset == 0
        compact(log)
        assert rows(log) == [(4, b"a", b"3"), (5, b"b", b"3"), (6, b"c", b"1")]

    def test_log_without_repeated_keys_is_not_rewritten(self) -> None:
        files = MemoryFileSystem()
        log = opened(files)
        log.append(records(("a", "1"), ("b", "1")), steady_ms=0)
        log.roll(0)
        before = files.open(f"{DIRECTORY}/{0:020d}.log").read(0, 1000)
        compact(log)
        assert files.open(f"{DIRECTORY}/{0:020d}.log").read(0, 1000) == before
        assert not [name for name in files.list(DIRECTORY) if name.endswith(".cleaned")]
        assert cleanable(log.files.segments, log.files.state, log.config, 2, 0).dirty_bytes == 0


class TestTombstones:
    def test_tombstone_stays_for_delete_retention_after_the_first_compaction(self) -> None:
        log = opened(MemoryFileSystem(), delete_retention_ms=100)
        log.append(records(("a", "1"), ("b", "1"), ("a", None)), steady_ms=0)
        log.roll(0)
        compact(log, 5000)
        assert rows(log) == [(1, b"b", b"1"), (2, b"a", None)]
        (view,) = all_batches(log)
        assert view.header.attributes & ATTRIBUTE_DELETE_HORIZON
        assert view.header.base_timestamp == 5100
        assert decode(view).timestamps.tolist() == [1000, 1000]
        compact(log, 5099)
        assert len(rows(log)) == 2
        assert all_batches(log)[0].header.base_timestamp == 5100
        compact(log, 5100)
        assert rows(log) == [(1, b"b", b"1")]

    def test_tombstone_above_the_keys_that_fit_stays(self) -> None:
        log = opened(MemoryFileSystem(), delete_retention_ms=0)
        log.append(records(("a", "1")), steady_ms=0)
        log.append(records(("x", "1")), steady_ms=0)
        log.append(records(("a", None)), steady_ms=0)
        log.roll(0)
        compact(log, 10, map_bytes_max=1)  # Knows of the first record only; the tombstone gets its horizon.
        compact(log, 20, map_bytes_max=1)
        assert [value for _, key, value in rows(log) if key == b"a"] == [b"1", None]
        for steady_ms in (30, 40):
            compact(log, steady_ms)
        assert rows(log) == [(1, b"x", b"1")]

    def test_a_value_after_a_tombstone_stays(self) -> None:
        log = opened(MemoryFileSystem(), delete_retention_ms=0)
        log.append(records(("a", None), ("a", "2")), steady_ms=0)
        log.roll(0)
        compact(log, 10)
        compact(log, 20)
        assert rows(log) == [(1, b"a", b"2")]

    def test_old_value_does_not_reappear_after_its_tombstone_is_removed(self) -> None:
        log = opened(MemoryFileSystem(), delete_retention_ms=0)
        log.append(records(("a", "1")), steady_ms=0)
        log.append(records(("x", "1")), steady_ms=0)
        log.roll(0)
        compact(log, 10)
        log.append(records(("a", None)), steady_ms=0)
        log.roll(0)
        for steady_ms in (20, 30, 40):
            compact(log, steady_ms)
        assert rows(log) == [(1, b"x", b"1")]


class TestTransactions:
    def test_aborted_records_are_removed_and_hide_no_older_records(self) -> None:
        log = opened(MemoryFileSystem(), delete_retention_ms=100)
        log.append(records(("a", "old")), steady_ms=0)
        transaction(log, ONE, 0, ("a", "aborted"), ("b", "aborted"))
        log.append_marker(False, ONE, 0, 1000)
        transaction(log, ONE, 2, ("c", "committed"))
        log.append_marker(True, ONE, 0, 1000)
        log.roll(0)
        compact(log)
        assert rows(log) == [(0, b"a", b"old"), (4, b"c", b"committed")]

    def test_marker_outlives_the_batches_of_its_transaction_by_delete_retention(self) -> None:
        log = opened(MemoryFileSystem(), delete_retention_ms=100)
        transaction(log, ONE, 0, ("a", "1"))
        log.append_marker(True, ONE, 0, 1000)
        transaction(log, ONE, 1, ("a", "2"))
        log.append_marker(True, ONE, 0, 1000)
        log.append(records(("z", "1")), steady_ms=0)
        log.roll(0)
        compact(log, 10_000)  # Takes the first record; its marker has been seen with it.
        assert headers(log) == [(1, 1, 1), (2, 2, 1), (3, 3, 1), (4, 4, 1)]
        compact(log, 20_000)  # Nothing is left of the transaction: the marker gets its horizon.
        assert all_batches(log)[0].header.base_timestamp == 20_100
        compact(log, 20_099)
        assert len(headers(log)) == 4
        compact(log, 20_100)
        assert headers(log) == [(2, 2, 1), (3, 3, 1), (4, 4, 1)]

    def test_commit_marker_is_synced_before_superseded_records_are_removed(self) -> None:
        files = MemoryFileSystem()
        log = opened(files)
        log.append(records(("a", "old")), steady_ms=0)
        transaction(log, ONE, 0, ("a", "new"))
        log.roll(0)
        log.append_marker(True, ONE, 0, 1000)
        compact(log)
        assert rows(log) == [(1, b"a", b"new")]
        files.crash(lambda _path, _unsynced: 0)
        log = opened(files)
        assert (rows(log), log.last_stable_offset) == ([(1, b"a", b"new")], 3), "else an abort would leave nothing of the key"

    def test_marker_is_removed_though_an_earlier_one_of_its_producer_stays(self) -> None:
        log = opened(MemoryFileSystem(), delete_retention_ms=100)
        for sequence, key in enumerate(("a", "b", "b")):
            transaction(log, ONE, sequence, (key, "1"))
            log.append_marker(True, ONE, 0, 1000)
        log.append(records(("z", "1")), steady_ms=0)
        log.roll(0)
        for steady_ms in (10_000, 20_000, 30_000):
            compact(log, steady_ms)
        assert headers(log) == [(0, 0, 1), (1, 1, 1), (4, 4, 1), (5, 5, 1), (6, 6, 1)]

    def test_open_transaction_is_not_compacted(self) -> None:
        log = opened(MemoryFileSystem(), segment_bytes=1)
        log.append(records(("a", "1")), steady_ms=0)
        log.append(records(("a", "2")), steady_ms=0)
        transaction(log, ONE, 0, ("a", "3"))
        log.append(records(("a", "4")), steady_ms=0)
        log.roll(0)
        compact(log)
        assert [value for _, _, value in rows(log)] == [b"2", b"3", b"4"]
        assert log.files.state.first_dirty_offset == 2
        assert log.last_stable_offset == 2

    @pytest.mark.parametrize("restarts", [False, True])
    def test_aborted_index_and_producers_are_unchanged(self, restarts: bool) -> None:
        files = MemoryFileSystem()
        log = opened(files, segment_bytes=200, delete_retention_ms=0)
        for sequence in range(8):
            transaction(log, ONE, sequence, ("a", str(sequence)))
            log.append(records(("b", str(sequence)), identity=TWO, base_sequence=sequence), steady_ms=0)
            log.append_marker(sequence % 2 == 0, ONE, 0, 1000)
        log.roll(0)
        compact(log, 10)
        if restarts:
            log.close()
            files.kill()
            log = opened(files)
        for identity, last in ((ONE, 7), (TWO, 7)):
            sent = [records(("a", "x"), identity=identity, base_sequence=sequence) for sequence in range(last - 4, last + 2)]
            found = [log.find_duplicate(read_header(batch)) is not None for batch in sent]
            assert found == [True] * 5 + [False]
        assert [value for _, key, value in rows(log) if key == b"a"] == [b"6"]
        offsets = {view.header.base_offset for view in all_batches(log)}
        for producer_id, first in log.aborted_transactions(0, log.log_end_offset):
            assert producer_id == 1
            assert first in {3, 9, 15, 21}
        markers = [view.header.base_offset for view in all_batches(log) if view.header.is_control]
        assert markers
        assert offsets >= set(markers)

    def test_last_sequence_of_a_producer_survives_the_loss_of_derived_files(self) -> None:
        """The last batch stays, empty, though its only record was overwritten."""
        files = MemoryFileSystem()
        log = opened(files)
        log.append(records(("a", "1"), ("a", "2"), identity=ONE, base_sequence=7), steady_ms=0)
        transaction(log, TWO, 0, ("a", "3"))
        log.append_marker(False, TWO, 4, 1000)
        log.append(records(("a", "4")), steady_ms=0)
        log.append(records(("z", "4")), steady_ms=0)
        log.roll(0)
        compact(log)
        assert headers(log) == [(0, 1, 0), (2, 2, 0), (3, 3, 1), (4, 4, 1), (5, 5, 1)]
        log.close()
        files.kill()
        for name in files.list(DIRECTORY):
            if not name.endswith((".log", ".state")):
                files.remove(f"{DIRECTORY}/{name}")
        log = opened(files)
        assert log.log_end_offset == 6
        assert log.find_duplicate(read_header(records(("x", "1"), ("x", "2"), identity=ONE, base_sequence=7))) is not None
        assert log.find_duplicate(read_header(records(("x", "1"), identity=TWO, base_sequence=0))) is not None
        assert log.ongoing_transactions() == []

    def test_five_batches_of_a_durable_snapshot_survive_a_loss_of_power(self) -> None:
        """Snapshots that are corrected for a swap are as durable as they were."""
        files = MemoryFileSystem()
        log = opened(files)
        for sequence in range(8):
            log.append(records(("a", str(sequence)), identity=ONE, base_sequence=sequence), steady_ms=0)
        log.roll(0)
        log.sync()
        compact(log)
        files.crash(lambda _path, _unsynced: 0)
        log = opened(files)
        sent = [records(("a", "x"), identity=ONE, base_sequence=sequence) for sequence in range(3, 8)]
        assert [log.find_duplicate(read_header(batch)) is not None for batch in sent] == [True] * 5

    def test_epoch_recorded_only_in_a_marker_survives(self) -> None:
        files = MemoryFileSystem()
        log = opened(files, delete_retention_ms=0)
        log.append_marker(False, ProducerIdentity(1, 5), 0, 1000)
        log.append(records(("z", "4")), steady_ms=0)
        log.roll(0)
        for steady_ms in (10, 20, 30):
            compact(log, steady_ms)
        assert headers(log)[0] == (0, 0, 1)
        log.forget_idle_producers(10**15, 1)
        compact(log, 40)
        assert headers(log) == [(1, 1, 1)]


class TestReading:
    def test_read_in_an_offset_gap_returns_the_next_record(self) -> None:
        log = opened(MemoryFileSystem(), segment_bytes=400, index_interval_bytes=1)
        for number in range(20):
            log.append(records((f"k{number // 19}", "x" * 30)), steady_ms=0)
        compact(log)
        for offset in range(20):
            header = read_header(log.read(offset, 10_000)[0])
            assert header.last_offset >= offset
        assert log.read(20, 10_000) == []

    def test_timestamp_lookup_returns_existing_records(self) -> None:
        log = opened(MemoryFileSystem())
        for number in range(6):
            columns = RecordColumns.from_lists([b"a", b"k%d" % number], [b"x", b"y"], [100 * number + 50, 100 * number])
            log.append(encode(columns), steady_ms=0)
        log.roll(0)
        log.append(records(("z", "1")), steady_ms=0)
        compact(log)
        assert [log.offset_for_timestamp(time) for time in (0, 1, 50, 101, 500, 550, 551)] == [
            (1, 0),
            (3, 100),
            (3, 100),
            (5, 200),
            (10, 550),
            (10, 550),
            (12, 1000),
        ]
        assert log.files.segments[0].max_timestamp == 550

    def test_batch_above_the_decompression_limit_is_an_error(self) -> None:
        log = opened(MemoryFileSystem(), decompressed_bytes_max=100)
        log.append(records(("a", "1" * 1000), compression=Compression.GZIP), steady_ms=0)
        with pytest.raises(Exception, match="100"):
            log.offset_for_timestamp(0)


class TestWhen:
    def state_of(self, log: PartitionLog, steady_ms: int = 0) -> tuple[int, bool]:
        found = cleanable(log.files.segments, log.files.state, log.config, log.last_stable_offset, steady_ms)
        return found.end_offset, found.is_due(log.config)

    def test_log_is_cleanable_above_the_dirty_ratio(self) -> None:
        log = opened(MemoryFileSystem(), dirty_ratio_min=0.5)
        log.append(records(("a", "1")), steady_ms=0)
        assert self.state_of(log) == (0, False)
        log.roll(0)
        assert self.state_of(log) == (1, True)
        compact(log)
        assert self.state_of(log) == (1, False)
        log.append(records(("b", "1")), steady_ms=0)
        log.roll(0)
        assert self.state_of(log) == (2, False)  # As many dirty bytes as clean ones: not more than half.
        log.append(records(("c", "1")), steady_ms=0)
        log.roll(0)
        assert self.state_of(log) == (3, True)

    def test_log_is_not_cleanable_before_min_compaction_lag(self) -> None:
        log = opened(MemoryFileSystem(), compaction_lag_min_ms=100)
        log.append(records(("a", "1")), steady_ms=0)
        log.roll(0)
        assert self.state_of(log, 1099) == (0, False)
        assert cleanable(log.files.segments, log.files.state, log.config, 1, 1099).check_again_ms == 1100
        assert self.state_of(log, 1100) == (1, True)

    def test_log_is_cleanable_after_max_compaction_lag(self) -> None:
        log = opened(MemoryFileSystem(), compaction_lag_max_ms=100, dirty_ratio_min=1.0)
        log.append(records(("a", "1")), steady_ms=0)
        log.roll(0)
        assert self.state_of(log, 1100) == (1, False)
        assert cleanable(log.files.segments, log.files.state, log.config, 1, 1099).check_again_ms == 1101
        assert self.state_of(log, 1101) == (1, True)

    def test_log_without_compaction_is_never_cleanable(self) -> None:
        log = opened(MemoryFileSystem())
        log.append(records(("a", "1")), steady_ms=0)
        log.roll(0)
        log.config = LogConfig()
        assert not self.state_of(log)[1]


def test_concurrent_retention_ends_the_compaction() -> None:
    files = MemoryFileSystem()
    log = opened(files, segment_bytes=3 << 20, retention_ms=0)
    for number in range(4):
        log.append(records((f"k{number}", "x" * (2 << 20))), steady_ms=0)
    job = Compaction(log, 3, 0, map_bytes_max=1 << 30)
    for _ in range(4):
        assert not job.step()
    assert log.delete_old_segments(10**9) == 4
    assert job.step()
    assert {name.partition(".")[2] for name in files.list(DIRECTORY)} == {"snapshot", "start"}


@pytest.mark.parametrize("is_changed", [False, True])
def test_retention_before_any_step_ends_the_compaction(is_changed: bool) -> None:
    steps = 0
    is_done = False
    while not is_done:
        files = MemoryFileSystem()
        log = opened(files, segment_bytes=3 << 20, retention_ms=0)
        for number in range(4):
            log.append(records(("k" if is_changed else f"k{number}", "x" * (2 << 20))), steady_ms=0)
        job = Compaction(log, 3, 0, map_bytes_max=1 << 30)
        is_done = any(job.step() for _ in range(steps))
        log.delete_old_segments(10**9)
        assert is_done or job.step()
        assert not [name for name in files.list(DIRECTORY) if name.endswith(".cleaned")]
        steps += 1
    assert steps > 8


@pytest.mark.parametrize("fitting", range(4))
def test_compacted_segment_stays_within_its_index(monkeypatch: pytest.MonkeyPatch, fitting: int) -> None:
    """A time from which on a tombstone may go takes more bytes than its own; where there is no room the batch stays as it is."""
    log = opened(MemoryFileSystem())
    sizes = []
    for batch in range(3):
        data = records(*((f"{batch}-{number}", None) for number in range(20)))
        log.append(data, steady_ms=0)
        sizes.append(len(data))
    log.roll(0)
    before = rows(log)
    growth = 20 * 5  # A timestamp of 2001 seconds after one of 1970: 7 bytes instead of 2, per record.
    limit = sum(sizes) + fitting * growth
    monkeypatch.setattr(compaction, "SPAN_MAX", limit)
    compact(log, 10**12)
    assert log.files.segments[0].size == sum(sizes) + min(fitting, 3) * growth
    horizons = [bool(view.header.attributes & ATTRIBUTE_DELETE_HORIZON) for view in all_batches(log)]
    assert horizons == [number < fitting for number in range(3)]
    assert rows(log) == before


def test_removed_records_free_space_for_delete_horizons(monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(MemoryFileSystem())
    log.append(records(("a", "1" * 1000)), steady_ms=0)
    log.append(records(("a", "2"), *((f"{number}", None) for number in range(20))), steady_ms=0)
    log.roll(0)
    monkeypatch.setattr(compaction, "SPAN_MAX", log.size_bytes)
    compact(log, 10**12)
    assert [view.header.attributes & ATTRIBUTE_DELETE_HORIZON for view in all_batches(log)] == [ATTRIBUTE_DELETE_HORIZON]


def test_damaged_batch_is_an_error_and_not_copied() -> None:
    files = MemoryFileSystem()
    log = opened(files)
    log.append(records(("a", "1"), ("a", "2")), steady_ms=0)
    log.append(records(("b", "1")), steady_ms=0)
    log.roll(0)
    contents = files._root.names[DIRECTORY].names[f"{0:020d}.log"]  # type: ignore[union-attr]
    contents.data[70] ^= 1  # type: ignore[union-attr]
    with pytest.raises(CorruptLog):
        compact(log)
    assert [name for name in files.list(DIRECTORY) if name.endswith(".cleaned")] == []
