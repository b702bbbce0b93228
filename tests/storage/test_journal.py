"""The journal: atomic puts, and no loss of acknowledged entries after process death or loss of power."""

import errno
import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from chaffinch.records.batch import encode, views
from chaffinch.records.columns import RecordColumns
from chaffinch.storage.file_system import CorruptLog, DiskFileSystem, FileSystem, Interrupted, MemoryFileSystem, StorageError
from chaffinch.storage.journal import Journal

PATH = "meta/topics.journal"
NEW = "meta/topics.journal.new"


def opened(files: FileSystem, **options: Any) -> Journal:
    return Journal.open(files, "meta", "topics", **options)


def reopened(files: MemoryFileSystem) -> dict[bytes, bytes]:
    files.kill()
    return opened(files).items()


def being_rewritten(monkeypatch: pytest.MonkeyPatch, *, key_count: int) -> tuple[MemoryFileSystem, Journal]:
    """A journal of which a part has been copied to its new file, a slice with each put."""
    monkeypatch.setattr("chaffinch.storage.journal.REWRITE_BATCH_BYTES", 50)
    files = MemoryFileSystem()
    journal = opened(files, rewrite_bytes_min=500)
    number = 0
    while NEW.rpartition("/")[2] not in files.list("meta"):
        journal.put({b"%d" % (number % key_count): b"%d" % number})
        number += 1
    return files, journal


def written(count: int = 3) -> tuple[MemoryFileSystem, list[int]]:
    """A journal of `count` puts, and where each put ends."""
    files = MemoryFileSystem()
    journal = opened(files)
    ends = []
    for number in range(count):
        journal.put({b"key": b"%d" % number, b"%d" % number: b""})
        ends.append(journal.size_bytes)
    files.kill()
    return files, ends


class TestPut:
    def test_put_replaces_and_removes_entries(self) -> None:
        files = MemoryFileSystem()
        journal = opened(files)
        journal.put({b"a": b"1", b"b": b"2", b"c": b""})
        journal.put({b"a": b"3", b"b": None, b"absent": None}, steady_ms=17)
        journal.put({})
        expected = {b"a": b"3", b"c": b""}
        assert (journal.items(), journal.get(b"a"), journal.get(b"b"), len(journal)) == (expected, b"3", None, 2)
        assert reopened(files) == expected

    def test_journal_on_a_real_disk_is_rewritten_and_reopened(self, tmp_path: object) -> None:
        files = DiskFileSystem(str(tmp_path))
        journal = opened(files, rewrite_bytes_min=500)
        for number in range(100):
            journal.put({b"n": b"%d" % number, b"%d" % (number % 3): b"x"})
        journal.close()
        assert opened(DiskFileSystem(str(tmp_path))).items() == {b"n": b"99", b"0": b"x", b"1": b"x", b"2": b"x"}
        assert files.list("meta") == ["topics.journal"]

    def test_items_returns_a_copy(self) -> None:
        journal = opened(MemoryFileSystem())
        journal.items()[b"a"] = b"1"
        assert journal.items() == {}

    def test_a_put_is_one_batch_and_one_write(self) -> None:
        files = MemoryFileSystem()
        journal = opened(files)
        writes = []
        files.hook = lambda operation, path, size: writes.append(operation)
        journal.put({b"%d" % number: b"x" for number in range(50)}, steady_ms=17)
        assert writes == ["append"]
        (view,) = views(files.open(PATH).read(0, 1 << 20))
        assert (view.header.count, view.header.base_offset, view.header.max_timestamp) == (50, 0, 17)

    def test_journal_in_the_root_directory_is_durable(self) -> None:
        files = MemoryFileSystem()
        journal = Journal.open(files, "", "topics")
        journal.put({b"a": b"1"})
        journal.sync()
        files.crash(lambda path, unsynced: 0)
        assert Journal.open(files, "", "topics").items() == {b"a": b"1"}

    def test_a_failed_put_changes_nothing(self) -> None:
        files = MemoryFileSystem()
        journal = opened(files)
        journal.put({b"a": b"1"})
        files.bytes_free = 10
        with pytest.raises(StorageError) as caught:
            journal.put({b"a": b"2", b"b": b"2"})
        assert caught.value.error_number == errno.ENOSPC
        assert journal.items() == {b"a": b"1"}
        files.bytes_free = None
        journal.put({b"b": b"3"})
        assert reopened(files) == {b"a": b"1", b"b": b"3"}

    def test_two_journals_share_a_directory(self) -> None:
        files = MemoryFileSystem()
        one, two = Journal.open(files, "meta", "one"), Journal.open(files, "meta", "two")
        one.put({b"a": b"1"})
        two.put({b"a": b"2"})
        assert (one.get(b"a"), two.get(b"a")) == (b"1", b"2")

    def test_missing_journal_is_an_error_with_must_exist(self) -> None:
        files = MemoryFileSystem()
        with pytest.raises(StorageError, match=r"meta/topics.journal: the journal is missing"):
            Journal.open(files, "meta", "topics", must_exist=True)
        opened(files)
        Journal.open(files, "meta", "topics", must_exist=True)


class TestReplay:
    def test_journal_torn_at_any_byte_loses_only_the_last_put(self) -> None:
        files, ends = written()
        whole = files.open(PATH).read(0, 1 << 20)
        for size in range(ends[1], ends[2]):
            file = files.open(PATH)
            file.truncate(0)
            file.append((whole[:size],))
            journal = opened(files)
            assert journal.items() == {b"key": b"1", b"0": b"", b"1": b""}
            if size > ends[1]:
                assert journal.cut is not None
                assert (journal.cut.path, journal.cut.position, journal.cut.bytes_cut) == (PATH, ends[1], size - ends[1])
            journal.put({b"key": b"new"})
            assert reopened(files)[b"key"] == b"new"

    def test_damage_before_a_whole_put_is_refused_with_file_and_byte(self) -> None:
        """Every byte of the second of three puts in turn, but for the leader epoch, which means nothing here."""
        files, ends = written()
        whole = files.open(PATH).read(0, 1 << 20)
        for changed in range(ends[0], ends[1]):
            if 12 <= changed - ends[0] < 16:
                continue
            damaged = whole[:changed] + bytes([whole[changed] ^ 0x55]) + whole[changed + 1 :]
            file = files.open(PATH)
            file.truncate(0)
            file.append((damaged,))
            with pytest.raises(CorruptLog, match=f"{PATH}: at byte {ends[0]}: .* and a whole batch follows at byte {ends[1]}"):
                opened(files)
            assert files.open(PATH).read(0, 1 << 20) == damaged

    def test_file_that_is_not_a_journal_is_refused(self) -> None:
        """A partition's log under the journal's name: whole batches whose records have no key."""
        files = MemoryFileSystem()
        files.make_directory("meta")
        files.open(PATH).append((encode(RecordColumns.from_lists([None], [b"v"], [0])),))
        with pytest.raises(CorruptLog, match="record 0 has no key"):
            opened(files)


class TestRewrite:
    def test_journal_that_is_mostly_garbage_is_rewritten(self) -> None:
        files = MemoryFileSystem()
        journal = opened(files, rewrite_bytes_min=2000)
        for number in range(1000):
            journal.put({b"key": b"%d" % number, b"%d" % (number % 5): b"x"})
            assert journal.size_bytes < 2200
        assert files.list("meta") == ["topics.journal"]
        assert reopened(files) == journal.items()

    def test_journal_without_garbage_is_not_rewritten(self) -> None:
        files = MemoryFileSystem()
        journal = opened(files, rewrite_bytes_min=100)
        renames = []
        files.hook = lambda operation, path, size: renames.append(path) if operation == "rename" else None
        for number in range(1000):
            journal.put({b"%d" % number: b"x" * 100})
        assert renames == []

    def test_large_journal_is_rewritten_in_several_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("chaffinch.storage.journal.REWRITE_BATCH_BYTES", 300)
        files = MemoryFileSystem()
        journal = opened(files, rewrite_bytes_min=10_000)
        for number in range(400):
            journal.put({b"%d" % (number % 20): b"x" * 20})
            if journal.size_bytes < 9000 and number > 100:
                break
        assert len(list(views(files.open(PATH).read(0, 1 << 20)))) >= 3
        journal.put({b"new": b"1"})
        assert reopened(files) == {**{b"%d" % number: b"x" * 20 for number in range(20)}, b"new": b"1"}

    def test_large_journal_is_rewritten_a_slice_with_each_put(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """And says in the end what was put, replaced and taken away before, between and after."""
        monkeypatch.setattr("chaffinch.storage.journal.REWRITE_BATCH_BYTES", 300)
        files = MemoryFileSystem()
        journal = opened(files, rewrite_bytes_min=10_000)
        written: list[int] = []
        files.hook = lambda operation, path, size: written.append(size) if size and path == NEW else None
        number = 0
        while not written:
            journal.put({b"%02d" % (number % 50): b"x" * 20})
            number += 1
        puts, most = 0, 0
        while NEW.rpartition("/")[2] in files.list("meta"):
            written.clear()
            journal.put({b"%02d" % puts: None if puts % 2 else b"other", b"%02d" % (49 - puts): b"late", b"new%d" % puts: b"y"})
            puts, most = puts + 1, max(most, sum(written))
        assert puts >= 5
        assert most < 800
        assert journal.size_bytes < 6000
        journal.put({b"after": b"z", b"new0": None})
        assert reopened(files) == journal.items()

    def test_put_interrupted_by_a_signal_is_in_the_rewritten_file(self, monkeypatch: pytest.MonkeyPatch) -> None:
        files, journal = being_rewritten(monkeypatch, key_count=9)

        def interrupts(operation: str, path: str, size: int) -> None:
            if size and path == NEW:
                raise KeyboardInterrupt

        files.hook = interrupts
        with pytest.raises(KeyboardInterrupt):
            journal.put({b"0": b"interrupted", b"1": None})
        files.hook = None
        renamed: list[str] = []
        files.hook = lambda operation, path, size: renamed.append(path) if operation == "rename" else None
        while not renamed:
            journal.put({b"8": b"later"})
        assert journal.get(b"0") == b"interrupted"
        assert reopened(files) == journal.items()

    def test_journal_closed_during_a_rewrite_is_unchanged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        files, journal = being_rewritten(monkeypatch, key_count=5)
        size = journal.size_bytes
        journal.close()
        assert files.list("meta") == ["topics.journal", "topics.journal.closed"]
        again = opened(files)
        assert (again.items(), again.size_bytes) == (journal.items(), size)

    def test_put_succeeds_without_space_for_a_rewrite(self, caplog: pytest.LogCaptureFixture) -> None:
        files = MemoryFileSystem()
        journal = opened(files, rewrite_bytes_min=500)

        def hook(operation: str, path: str, size: int) -> None:
            if size and path == NEW:
                raise StorageError(path, operation, "No space left on device")

        files.hook = hook
        for number in range(50):
            journal.put({b"a": b"%d" % number})
        assert "is not rewritten" in caplog.text
        assert len(caplog.records) < 6, "a rewrite is not tried at every put"
        assert files.list("meta") == ["topics.journal"]
        files.hook = None
        for number in range(200):
            journal.put({b"a": b"%d" % number})
        assert journal.size_bytes < 1000
        assert reopened(files) == {b"a": b"199"}

    def test_leftover_of_a_failed_rewrite_is_not_reused(self) -> None:
        """A disk that fails may fail twice: the rewrite, and the removal of what there is of it."""
        files = MemoryFileSystem()
        journal = opened(files, rewrite_bytes_min=500)

        def hook(operation: str, path: str, size: int) -> None:
            if path == NEW and operation in ("sync", "remove"):
                raise StorageError(path, operation, "Input/output error")

        files.hook = hook
        for number in range(50):
            journal.put({b"a": b"%d" % number})
        assert NEW.rpartition("/")[2] in files.list("meta")
        files.hook = None
        size, number = 0, 50
        while journal.size_bytes > size:
            size, number = journal.size_bytes, number + 1
            journal.put({b"a": b"%d" % number})
        assert len(list(views(files.open(PATH).read(0, 1 << 20)))) == 1, "rewritten just now"
        journal.put({b"b": b"after"})
        assert reopened(files) == {b"a": b"%d" % number, b"b": b"after"}

    def test_failed_directory_sync_is_retried(self) -> None:
        """After the rename the new file is the journal; until the directory is synced, `sync` must not say that it is."""
        files = MemoryFileSystem()
        journal = opened(files, rewrite_bytes_min=500)
        journal.sync()

        def hook(operation: str, path: str, size: int) -> None:
            if operation == "sync directory":
                raise StorageError(path, operation, "Input/output error")

        files.hook = hook
        for number in range(50):
            journal.put({b"a": b"%d" % number})
        with pytest.raises(StorageError, match="Input/output"):
            journal.sync()
        files.hook = None
        journal.put({b"a": b"last"})
        journal.sync()
        files.crash(lambda path, unsynced: 0)
        assert opened(files).items() == {b"a": b"last"}

    def test_journal_without_its_file_refuses_puts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        files = MemoryFileSystem()
        journal = opened(files, rewrite_bytes_min=500)
        open_file = files.open

        def failing(path: str, *, create: bool = True) -> object:
            if not create:
                raise StorageError(path, "open", "Too many open files")
            return open_file(path)

        monkeypatch.setattr(files, "open", failing)
        with pytest.raises(StorageError, match="Too many open files"):
            put_numbers(journal, 50)
        for call in (journal.sync, lambda: journal.put({b"a": b"1"})):
            with pytest.raises(StorageError, match="Too many open files"):
                call()


def put_numbers(journal: Journal, count: int) -> None:
    for number in range(count):
        journal.put({b"a": b"%d" % number})


def grown(files: MemoryFileSystem) -> tuple[Journal, dict[bytes, bytes]]:
    """A synced journal whose next put rewrites it."""
    journal = opened(files, rewrite_bytes_min=600)
    number = 0
    while journal.size_bytes < 520:
        journal.put({b"a": b"%d" % number, b"b%d" % (number % 3): b"x"})
        number += 1
    journal.sync()
    return journal, journal.items()


LAST_PUT: Mapping[bytes, bytes | None] = {b"a": b"last", b"b0": None, b"c": b"new"}


@pytest.mark.parametrize("end", ["killed", "power lost", "power lost, names kept", "power lost, bytes kept", "power lost, all kept"])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_crash_at_any_operation_of_a_rewrite_keeps_all_puts(end: str, share: float) -> None:
    """The put that triggers the rewrite is there whole or not at all; all before it is there; and once acknowledged it stays."""
    operation_count = 0
    for stop_at in range(100):
        files = MemoryFileSystem()
        journal, before = grown(files)
        after = {**before, b"a": b"last", b"c": b"new"}
        del after[b"b0"]
        seen: list[str] = []

        def hook(operation: str, path: str, size: int, seen: list[str] = seen, stop_at: int = stop_at) -> None:
            seen.append(operation)
            if len(seen) > stop_at:
                raise Interrupted(int(size * share))

        files.hook = hook
        acknowledged = False
        try:
            journal.put(LAST_PUT)
            journal.sync()
            acknowledged = True
        except Interrupted:
            pass
        files.hook = None
        if end == "killed":
            files.kill()
        else:
            names, data = "names" in end or "all" in end, "bytes" in end or "all" in end
            files.crash(lambda path, unsynced, names=names, data=data: unsynced if (data if "journal" in path else names) else 0)  # type: ignore[misc]
        found = opened(files).items()
        assert found in ([after] if acknowledged else [before, after])
        assert files.list("meta") == ["topics.journal"]
        if acknowledged:
            operation_count = len(seen)
            break
    assert operation_count >= 6, "append, open, append, sync, rename, sync directory at least"


class JournalLives(RuleBasedStateMachine):
    """A journal against a list of its puts; what a crash leaves must be the result of some prefix that holds every synced put."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()

    @initialize(rewrite_bytes_min=st.sampled_from([200, 600, 1 << 20]), slice_bytes=st.sampled_from([20, 60, 1 << 20]))
    def begin(self, rewrite_bytes_min: int, slice_bytes: int) -> None:
        self.rewrite_bytes_min = rewrite_bytes_min
        self.patch.setattr("chaffinch.storage.journal.REWRITE_BATCH_BYTES", slice_bytes)
        self.files = MemoryFileSystem()
        self.states: list[dict[bytes, bytes]] = [{}]
        self.durable = 0
        self.open()

    def open(self) -> None:
        self.journal = opened(self.files, rewrite_bytes_min=self.rewrite_bytes_min)

    @staticmethod
    def after(state: dict[bytes, bytes], entries: dict[bytes, bytes | None]) -> dict[bytes, bytes]:
        merged = {**state, **entries}
        return {key: value for key, value in merged.items() if value is not None}

    entries = st.dictionaries(st.sampled_from([b"", b"a", b"b", b"c"]), st.none() | st.binary(max_size=40), min_size=1, max_size=3)

    @rule(entries=entries)
    def put(self, entries: dict[bytes, bytes | None]) -> None:
        self.journal.put(entries)
        self.states.append(self.after(self.states[-1], entries))

    @rule()
    def sync(self) -> None:
        self.journal.sync()
        self.durable = len(self.states) - 1

    @rule()
    def close(self) -> None:
        self.journal.close()
        self.files.kill()
        self.durable = len(self.states) - 1
        self.open()
        assert self.journal.cut is None

    @rule(entries=entries, operations=st.integers(0, 8), share=st.integers(0, 10))
    def die_inside_a_put(self, entries: dict[bytes, bytes | None], operations: int, share: int) -> None:
        left = operations

        def hook(operation: str, path: str, size: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Interrupted(size * share // 10)

        self.files.hook = hook
        with suppress(Interrupted):
            self.journal.put(entries)
        self.files.hook = None
        self.files.kill()
        self.open()
        before, after = self.states[-1], self.after(self.states[-1], entries)
        assert self.journal.items() in (before, after)
        self.states.append(self.journal.items())

    @rule(seed=st.integers(0, 2**32))
    def lose_power(self, seed: int) -> None:
        rng = random.Random(seed)
        self.files.crash(lambda path, unsynced: rng.choice([0, unsynced, rng.randint(0, unsynced)]))
        self.open()
        assert self.journal.items() in self.states[self.durable :]
        self.states = [self.journal.items()]
        self.durable = 0

    def teardown(self) -> None:
        self.patch.undo()

    @invariant()
    def agrees(self) -> None:
        assert self.journal.items() == self.states[-1]


JournalLives.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestJournalLives = JournalLives.TestCase
