"""The contents journal: recorded extents of logs and journals, and expectations of the next start."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from chaffinch.records.batch import encode
from chaffinch.records.columns import RecordColumns
from chaffinch.storage import log_state, snapshot
from chaffinch.storage.contents import Contents, Extent, open_contents
from chaffinch.storage.file_system import CorruptLog, MemoryFileSystem, MissingLog
from chaffinch.storage.journal import Journal
from chaffinch.storage.log_state import NOTHING_EXPECTED, Expected, LogState
from chaffinch.storage.partition_log import LogConfig, PartitionLog
from tests.storage.batches import batch
from tests.storage.orders_log import DIRECTORY, FIRST, ORDERS, SIZE, filled

LOG = "logs/orders/0"


def begun(files: MemoryFileSystem, *, is_new: bool = False) -> Contents:
    contents = open_contents(files, "journals", must_exist=not is_new)
    contents.begin({LOG: Extent(0, 0, 0), **({} if is_new else {LOG: Extent(*contents.expected(LOG), contents.expected(LOG).end)})})
    return contents


def opened(files: MemoryFileSystem) -> Contents:
    return open_contents(files, "journals", must_exist=True)


class TestExpected:
    def test_kill_expects_all_written_bytes(self) -> None:
        files = MemoryFileSystem()
        begun(files, is_new=True).note({LOG: Extent(2, 5, 9)})
        files.kill()
        assert opened(files).expected(LOG) == Expected(2, 9)

    def test_loss_of_power_expects_synced_bytes(self) -> None:
        files = MemoryFileSystem()
        begun(files, is_new=True).note({LOG: Extent(2, 5, 9)})
        files.crash(lambda path, unsynced: unsynced)
        assert opened(files).expected(LOG) == Expected(2, 5)

    def test_lost_note_expects_less(self) -> None:
        files = MemoryFileSystem()
        begun(files, is_new=True).note({LOG: Extent(2, 5, 9)})
        files.crash(lambda path, unsynced: 0)
        assert opened(files).expected(LOG) == Expected(0, 0)

    def test_synced_extent_is_kept_across_processes(self) -> None:
        files = MemoryFileSystem()
        begun(files, is_new=True).note({LOG: Extent(2, 9, 9)})
        files.kill()
        contents = opened(files)
        contents.begin({LOG: Extent(2, 0, 9)})
        contents.note({LOG: Extent(2, 0, 12)})
        files.crash(lambda path, unsynced: unsynced)
        assert opened(files).expected(LOG) == Expected(2, 9)

    def test_log_cut_after_a_loss_of_power_is_expected_with_its_new_end(self) -> None:
        files = MemoryFileSystem()
        begun(files, is_new=True).note({LOG: Extent(0, 5, 9)})
        files.crash(lambda path, unsynced: unsynced)
        opened(files).begin({LOG: Extent(0, 0, 7)})
        files.kill()
        assert opened(files).expected(LOG) == Expected(0, 7)

    def test_deleted_log_is_not_expected(self) -> None:
        files = MemoryFileSystem()
        contents = begun(files, is_new=True)
        contents.note({LOG: Extent(0, 5, 9)})
        contents.forget([LOG])
        files.kill()
        assert opened(files).expected(LOG) == NOTHING_EXPECTED

    def test_log_missing_at_the_start_is_not_expected(self) -> None:
        """Its topic was deleted, and the process was killed before that was noted."""
        files = MemoryFileSystem()
        begun(files, is_new=True).note({LOG: Extent(0, 5, 9)})
        opened(files).begin({"journals/cluster": Extent(0, 1, 1)})
        assert opened(files).expected(LOG) == NOTHING_EXPECTED

    def test_note_before_begin_is_ignored(self) -> None:
        files = MemoryFileSystem()
        contents = open_contents(files, "journals", must_exist=False)
        contents.note({LOG: Extent(0, 5, 9)})
        assert LOG not in contents

    def test_directory_without_contents_expects_nothing(self) -> None:
        files = MemoryFileSystem()
        begun(files, is_new=True).note({LOG: Extent(0, 5, 9)})
        assert open_contents(files, "journals", must_exist=False).expected(LOG) == NOTHING_EXPECTED


class TestTheJournalItself:
    def test_missing_contents_journal_is_refused_by_name(self) -> None:
        files = MemoryFileSystem()
        begun(files, is_new=True)
        files.remove("journals/contents.journal")
        with pytest.raises(MissingLog, match=r"journals/contents\.journal: the journal is missing"):
            opened(files)

    def test_emptied_contents_journal_is_refused_by_name(self, caplog: pytest.LogCaptureFixture) -> None:
        files = MemoryFileSystem()
        begun(files, is_new=True)
        files.open("journals/contents.journal").truncate(0)
        with pytest.raises(CorruptLog, match=r"journals/contents\.journal: .* empty, though the directory was in use") as refusal:
            opened(files)
        assert refusal.value.is_loss
        with caplog.at_level(logging.WARNING):
            open_contents(files, "journals", must_exist=True, accepts_loss=True)
        assert "other files may be missing as well" in caplog.text

    def damaged(self, files: MemoryFileSystem) -> None:
        """The note of offset 9 is, and a later one is not."""
        contents = begun(files, is_new=True)
        contents.note({LOG: Extent(0, 5, 5)})
        file = files.open("journals/contents.journal")
        position = file.size
        contents.note({LOG: Extent(0, 9, 9)})
        contents.note({LOG: Extent(0, 12, 12)})
        data = bytearray(file.read(0, file.size))
        data[position + 70] ^= 1
        file.truncate(0)
        file.append((data,))

    def test_damage_after_a_loss_of_power_is_cut(self, caplog: pytest.LogCaptureFixture) -> None:
        """The system writes pages in its own order. The directory is whole, so it must not be refused for that."""
        files = MemoryFileSystem()
        self.damaged(files)
        files.crash(lambda path, unsynced: unsynced)
        with caplog.at_level(logging.WARNING):
            assert opened(files).expected(LOG) == Expected(0, 5)
        assert "contents.journal" in caplog.text

    def test_other_damage_is_refused_unless_the_loss_is_accepted(self) -> None:
        files = MemoryFileSystem()
        self.damaged(files)
        files.kill()
        with pytest.raises(CorruptLog, match=r"contents\.journal: at byte .* a whole batch follows") as refusal:
            opened(files)
        assert refusal.value.is_loss
        assert open_contents(files, "journals", must_exist=True, accepts_loss=True).expected(LOG) == Expected(0, 5)

    def test_another_file_in_place_of_the_journal_is_not_an_acceptable_loss(self) -> None:
        files = MemoryFileSystem()
        begun(files, is_new=True)
        file = files.open("journals/contents.journal")
        file.truncate(0)
        file.append((encode(RecordColumns.from_lists([None], [b"x"], [0])),))
        for accepts_loss in (False, True):
            with pytest.raises(CorruptLog, match="this is not a journal") as refusal:
                open_contents(files, "journals", must_exist=True, accepts_loss=accepts_loss)
            assert not refusal.value.is_loss


class TestJournals:
    def written(self, files: MemoryFileSystem, count: int) -> None:
        journal = Journal.open(files, "", "offsets")
        for number in range(count):
            journal.put({b"%d" % number: b"x"})

    def test_fewer_entries_than_expected_are_refused(self, caplog: pytest.LogCaptureFixture) -> None:
        files = MemoryFileSystem()
        self.written(files, 3)
        with pytest.raises(CorruptLog, match=r"offsets\.journal: at byte .* the file ends here, after 3 entries; it held 4 entries"):
            Journal.open(files, "", "offsets", expected_count=4)
        with caplog.at_level(logging.WARNING):
            assert len(Journal.open(files, "", "offsets", expected_count=4, accepts_loss=True)) == 3
        assert "at least 1 entries are lost: the loss is accepted" in caplog.text

    def test_damage_in_the_middle_is_not_an_acceptable_loss(self, caplog: pytest.LogCaptureFixture) -> None:
        files = MemoryFileSystem()
        self.written(files, 4)
        flip(files, "offsets.journal", 70)
        for accepts_loss in (False, True):
            with pytest.raises(CorruptLog, match="is expected, and a whole batch follows at byte ") as refusal:
                Journal.open(files, "", "offsets", expected_count=4, accepts_loss=accepts_loss)
            assert not refusal.value.is_loss
        assert caplog.text == ""

    def test_damaged_last_batch_is_not_reported_as_unfinished_write(self, caplog: pytest.LogCaptureFixture) -> None:
        files = MemoryFileSystem()
        self.written(files, 4)
        flip(files, "offsets.journal", files.open("offsets.journal").size - 1)
        with pytest.raises(CorruptLog, match="offset 3 does not match its CRC, after 3 entries; it held 4") as refusal:
            Journal.open(files, "", "offsets", expected_count=4)
        assert refusal.value.is_loss
        Journal.open(files, "", "offsets", expected_count=4, accepts_loss=True)
        assert "bytes that cannot be read off" in caplog.text
        assert "unfinished" not in caplog.text

    def test_rewrite_never_expects_more_than_the_file_holds(self) -> None:
        """At every instant of a rewrite no more is expected than the file holds that a crash leaves."""
        operations = 0
        while True:
            files = MemoryFileSystem()
            contents = begun(files, is_new=True)
            journal = Journal.open(files, "journals", "offsets", rewrite_bytes_min=1000)
            journal.before_rewrite = lambda count, contents=contents: contents.note_rewrite("journals/offsets", count)  # type: ignore[misc]
            files.hook = _interrupting(operations)
            try:
                for number in range(40):
                    journal.put({b"%d" % (number % 2): b"x" * 50})
                    contents.note({"journals/offsets": Extent(0, 0, journal.count)})
                    journal.sync()
                    contents.note({"journals/offsets": Extent(0, journal.count, journal.count)})
            except _Died:
                pass
            else:
                break
            files.hook = None
            files.crash(lambda path, unsynced: unsynced if "contents" not in path else 0)
            again = opened(files)
            Journal.open(files, "journals", "offsets", expected_count=again.expected("journals/offsets").end)
            operations += 1
        assert operations > 150
        assert journal.count < 40, "it was rewritten"


class _Died(BaseException):
    pass


def flip(files: MemoryFileSystem, path: str, position: int) -> None:
    """Change the byte at `position`; the file is no shorter."""
    file = files.open(path, create=False)
    data = bytearray(file.read(0, file.size))
    data[position] ^= 0xFF
    file.truncate(0)
    file.append((bytes(data),))
    file.sync()


def remove_snapshots(files: MemoryFileSystem) -> None:
    for name in files.list(DIRECTORY):
        if name.endswith(snapshot.SUFFIX):
            files.remove(f"{DIRECTORY}/{name}")


def _interrupting(operations: int):  # type: ignore[no-untyped-def]
    left = [operations]

    def hook(operation: str, path: str, size: int) -> None:
        if operation in ("append", "sync", "rename", "sync directory", "open", "remove"):
            left[0] -= 1
            if left[0] < 0:
                raise _Died

    return hook


class TestLogs:
    """Of a log that a killed process has left."""

    def reopened(self, files: MemoryFileSystem, expected: Expected, *, accepts_loss: bool = False, **config: Any) -> PartitionLog:
        return PartitionLog.open(files, DIRECTORY, ORDERS, LogConfig(**config), 1000, expected=expected, accepts_loss=accepts_loss)

    def test_extent_ends_at_synced_and_written_offsets(self) -> None:
        log = filled(MemoryFileSystem(), 6, segment_bytes=4 * SIZE)
        assert log.extent == Extent(0, 4, 6)
        log.sync()
        assert log.extent == Extent(0, 6, 6)

    @pytest.mark.parametrize("size", [2 * SIZE, 7 * SIZE - 1])
    def test_closed_file_of_another_length_is_an_acceptable_loss(self, size: int) -> None:
        files = MemoryFileSystem()
        filled(files, 6).close()
        files.kill()
        file = files.open(FIRST + ".log")
        file.append((bytes(size - file.size),)) if size > file.size else file.truncate(size)
        if size < 6 * SIZE:
            with pytest.raises(CorruptLog, match=f"the file ends here; it held {6 * SIZE} bytes of records") as refusal:
                self.reopened(files, Expected(0, 6))
            assert refusal.value.is_loss
        assert self.reopened(files, Expected(0, 6), accepts_loss=True).log_end_offset == 6

    @pytest.mark.parametrize("size", [0, 1, SIZE - 1, SIZE, 3 * SIZE + 5, 5 * SIZE])
    def test_shorter_file_is_refused_and_unchanged(self, size: int) -> None:
        files = MemoryFileSystem()
        filled(files, 6)
        files.kill()
        files.open(FIRST + ".log").truncate(size)
        left = size // SIZE
        text = f"the records end at offset {left}; they extended to offset 5"
        if size % SIZE:
            text = f"the batch of offset {left} ends after {size % SIZE} bytes; it held the records of offsets {left} to 5"
        match = rf"{FIRST}\.log: at byte {left * SIZE}: {text}"
        for _ in range(2):
            with pytest.raises(CorruptLog, match=match) as refusal:
                self.reopened(files, Expected(0, 6))
            assert refusal.value.is_loss
            assert files.open(FIRST + ".log").size == size

    def test_a_missing_file_is_refused(self) -> None:
        files = MemoryFileSystem()
        filled(files, 6)
        files.kill()
        files.remove(FIRST + ".log")
        with pytest.raises(CorruptLog, match=rf"{FIRST}\.log: at byte 0: the file is missing; it held the records of offsets 0 to 5"):
            self.reopened(files, Expected(0, 6))
        assert not files.list(DIRECTORY)

    @pytest.mark.parametrize("is_closed", [False, True])
    def test_damage_in_the_middle_is_not_an_acceptable_loss(self, is_closed: bool) -> None:
        files = MemoryFileSystem()
        log = filled(files, 6)
        if is_closed:
            log.close()
        files.kill()
        flip(files, FIRST + ".log", 2 * SIZE + 70)
        with pytest.raises(CorruptLog, match=f"offset 2 does not match .* and a whole batch follows at byte {3 * SIZE}$") as refusal:
            self.reopened(files, Expected(0, 6))
        assert not refusal.value.is_loss
        with pytest.raises(CorruptLog, match=r"not a loss that can be accepted|a whole batch follows") as refusal:
            self.reopened(files, Expected(0, 6), accepts_loss=True)
        assert not refusal.value.is_loss

    @pytest.mark.parametrize("position_in_batch", [5, 7])
    def test_wrong_offset_in_the_middle_cuts_no_whole_batches(self, position_in_batch: int) -> None:
        """No CRC covers it, and without `log.state` it might stand behind a gap."""
        files = MemoryFileSystem()
        filled(files, 6)
        files.kill()
        flip(files, FIRST + ".log", 2 * SIZE + position_in_batch)
        for accepts_loss in (False, True):
            with pytest.raises(CorruptLog, match="is where offset") as refusal:
                self.reopened(files, Expected(0, 6), accepts_loss=accepts_loss)
            assert not refusal.value.is_loss
            assert files.open(FIRST + ".log").size == 6 * SIZE

    @pytest.mark.parametrize("is_closed", [False, True])
    def test_damaged_last_batch_is_named(self, is_closed: bool, caplog: pytest.LogCaptureFixture) -> None:
        files = MemoryFileSystem()
        log = filled(files, 6)
        if is_closed:
            log.close()
        files.kill()
        flip(files, FIRST + ".log", 6 * SIZE - 1)
        text = f"at byte {5 * SIZE}: the batch of offset 5 does not match its CRC; it held the records of offsets 5 to 5$"
        with pytest.raises(CorruptLog, match=text) as refusal:
            self.reopened(files, Expected(0, 6))
        assert refusal.value.is_loss
        assert self.reopened(files, Expected(0, 6), accepts_loss=True).log_end_offset == 6
        assert "1 offsets are lost, 5 to 5: the loss is accepted" in caplog.text
        assert f"cut {SIZE} bytes that cannot be read off" in caplog.text
        assert "unfinished" not in caplog.text

    @pytest.mark.parametrize("size", [0, 1, 3 * SIZE + 5, None])
    def test_offsets_of_lost_records_are_not_reused(self, size: int | None, caplog: pytest.LogCaptureFixture) -> None:
        files = MemoryFileSystem()
        filled(files, 6)
        files.kill()
        if size is None:
            files.remove(FIRST + ".log")
        else:
            files.open(FIRST + ".log").truncate(size)
        left = (size or 0) // SIZE
        with caplog.at_level(logging.WARNING):
            log = self.reopened(files, Expected(0, 6), accepts_loss=True)
        assert f"{DIRECTORY}: {6 - left} offsets are lost, {left} to 5: the loss is accepted" in caplog.text
        assert log.append(batch(), steady_ms=0).base_offset == 6
        assert (log.log_start_offset, log.log_end_offset) == (0 if left else 6, 7)
        found = log.find(left, 1000) if left else log.find(6, 1000)
        assert found is not None
        assert found.end_offset == 7, "a read in the gap goes on behind it"
        files.kill()
        again = self.reopened(files, Expected(0, 7))
        assert (again.log_start_offset, again.log_end_offset) == (log.log_start_offset, 7)

    @pytest.mark.parametrize("left", ["killed", "closed", "without snapshots"])
    @pytest.mark.parametrize("number", [0, 2, 4])
    def test_missing_segment_keeps_the_others(self, number: int, left: str) -> None:
        files = MemoryFileSystem()
        log = filled(files, 6, segment_bytes=2 * SIZE)
        expected = Expected(*log.extent[::2])
        if left == "closed":
            log.close()
        files.kill()
        if left == "without snapshots":
            remove_snapshots(files)
        files.remove(f"{DIRECTORY}/{number:020d}.log")
        with pytest.raises(CorruptLog, match=f"{number:020d}|offset {number} comes next") as refusal:
            self.reopened(files, expected, segment_bytes=2 * SIZE)
        assert refusal.value.is_loss
        log = self.reopened(files, expected, accepts_loss=True, segment_bytes=2 * SIZE)
        assert [segment.base_offset for segment in log.files.segments] == sorted({0, 2, 4} - {number} | ({6} if number == 4 else set()))
        assert (log.log_start_offset, log.log_end_offset) == (2 if number == 0 else 0, 6)
        log.append(batch(), steady_ms=0)
        files.kill()
        assert self.reopened(files, Expected(log.log_start_offset, 7), segment_bytes=2 * SIZE).log_end_offset == 7

    def test_damaged_log_state_is_an_acceptable_loss(self) -> None:
        files = MemoryFileSystem()
        filled(files, 6, segment_bytes=2 * SIZE).close()
        files.kill()
        files.remove(f"{FIRST}.log")
        log_state.create_start_file(files, DIRECTORY, 2)
        remove_snapshots(files)
        with pytest.raises(CorruptLog, match="the snapshot, or a later one, is missing") as refusal:
            self.reopened(files, Expected(2, 6))
        assert refusal.value.is_loss
        log_state.write(files, DIRECTORY, LogState(log_start_offset=2))
        flip(files, f"{DIRECTORY}/{log_state.NAME}", 3)
        with pytest.raises(CorruptLog, match="the CRC does not match its contents") as refusal:
            self.reopened(files, Expected(2, 6))
        assert refusal.value.is_loss
        assert self.reopened(files, Expected(2, 6), accepts_loss=True).log_end_offset == 6

    def test_rewritten_damage_is_not_an_acceptable_loss(self) -> None:
        files = MemoryFileSystem()
        filled(files, 6)
        files.kill()
        file = files.open(FIRST + ".log")
        data = bytearray(file.read(0, file.size))
        data[2 * SIZE + 70] ^= 1
        file.truncate(0)
        file.append((data,))
        with pytest.raises(CorruptLog, match="does not match its CRC"):
            self.reopened(files, Expected(0, 6), accepts_loss=True)
