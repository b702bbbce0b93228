"""Staging: inline or in a file, read back, refused with the location's name."""

import os
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from chaffinch.errors.codes import Group
from chaffinch.spark.commit.messages import StagedBytes
from chaffinch.spark.folders import Folder
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.sink.parquet_file import DeadLetterFileInfo, dead_letter_metadata, write_parquet
from chaffinch.spark.snapshot import TopicSnapshot
from chaffinch.spark.tasks import staging
from chaffinch.spark.tasks.replay_notes import RetainedRows
from chaffinch.spark.tasks.staging import DeadLetterStore, StagedReader, StagedWriter


def staged(folder: Folder, parts: Sequence[bytes], inline_bytes_max: int = 100) -> list[StagedBytes]:
    writer = StagedWriter(lambda: folder, "task-0", inline_bytes_max=inline_bytes_max)
    spans = [writer.append(part) for part in parts]
    writer.close()
    return [writer.staged(span) for span in spans]


@pytest.mark.parametrize("size", [1, 50, 100, 101, 5000])
def test_staged_bytes_are_read_back(tmp_path: Path, size: int) -> None:
    parts = [bytes([65 + number]) * size for number in range(3)] + [b""]
    folder = Folder(str(tmp_path / "staging"), "stagingLocation")
    found = staged(folder, parts)
    assert {part.file is None for part in found} == {size * 3 <= 100}
    reader = StagedReader(pickle.loads(pickle.dumps(folder)))
    # In any order, and twice: a batch may be pushed again.
    for index in (2, 0, 1, 3, 0):
        data = reader.read(found[index])
        assert isinstance(data, bytearray)
        assert data == parts[index]
    reader.close()


def test_open_staging_files_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "FILES_OPEN_MAX", 3)
    folder = Folder(str(tmp_path), "stagingLocation")
    parts = [bytes([65 + number]) * 200 for number in range(8)]
    found = [staged(folder, [part])[0] for part in parts]
    reader = StagedReader(folder)
    opened = []
    for index in (0, 1, 2, 0, 3, 0, 4, 5, 6, 7, 0, 1):
        assert reader.read(found[index]) == parts[index]
        opened.append(len(open_below(tmp_path)))
    assert max(opened) == 3
    reader.close()
    assert not open_below(tmp_path)


def open_below(path: Path) -> list[str]:
    """The files of this process that lie there."""
    paths = (os.path.realpath(link) for link in Path("/proc/self/fd").iterdir())
    return [found for found in paths if found.startswith(str(path))]


def test_task_attempts_use_different_files(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path), "stagingLocation")
    first, second = staged(folder, [b"a" * 200]), staged(folder, [b"b" * 200])
    assert first[0].file != second[0].file


def test_staging_folder_is_only_needed_for_spilling() -> None:
    def nowhere() -> Folder:
        raise Refusal(Group.INVALID_CONFIGURATION, "STAGING_LOCATION_MISSING", "name a place")

    def staged_nowhere(data: bytes) -> StagedBytes:
        writer = StagedWriter(nowhere, "task-0", inline_bytes_max=100)
        span = writer.append(data)
        writer.discard()
        return writer.staged(span)

    assert staged_nowhere(b"a" * 100).data == b"a" * 100
    with pytest.raises(Refusal, match="STAGING_LOCATION_MISSING: name a place"):
        staged_nowhere(b"a" * 101)


def test_missing_or_short_staging_file_is_reported(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path), "stagingLocation")
    found = staged(folder, [b"a" * 200])[0]
    assert found.file is not None
    (tmp_path / found.file).write_bytes(b"short")
    with pytest.raises(Refusal, match="5 bytes at 0 where 200 were staged; start the query again") as caught:
        StagedReader(folder).read(found)
    assert caught.value.group is Group.APPLICATION_RECOVERABLE
    (tmp_path / found.file).unlink()
    with pytest.raises(Refusal, match="STAGING_LOST"):
        StagedReader(folder).read(found)


def test_parquet_file_is_replaced_atomically(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def stream(values: Sequence[int]) -> bytes:
        sink = pa.BufferOutputStream()
        table = pa.table({"a": values})
        with pa.ipc.new_stream(sink, table.schema) as out:
            out.write_table(table)
        data: bytes = sink.getvalue().to_pybytes()
        return data

    folder = Folder(str(tmp_path / "dead"), "errors.dead.letter.path")
    write_parquet(folder, "x.parquet", [stream([1, 2]), stream([3])])
    write_parquet(folder, "x.parquet", [stream([4])])
    assert pq.read_table(tmp_path / "dead").to_pydict() == {"a": [4]}
    assert [path.name for path in (tmp_path / "dead").iterdir()] == ["x.parquet"]


def test_retained_rows_of_older_file_come_first(tmp_path: Path) -> None:
    """By their numbers, over its row groups; a column that it did not have is null there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = Folder(str(tmp_path), "errors.dead.letter.path")
    pq.write_table(pa.table({"a": pa.array(range(10), pa.int32()), "old": ["x"] * 10}), tmp_path / "old.parquet", row_group_size=4)
    sink = pa.BufferOutputStream()
    made = pa.table({"a": pa.array([99], pa.int64()), "old": ["made"], "new": ["n"]})
    with pa.ipc.new_stream(sink, made.schema) as out:
        out.write_table(made)
    kept = RetainedRows(name="old.parquet", ranges=((1, 3), (3, 6), (9, 10)))
    write_parquet(folder, "x.parquet", [sink.getvalue().to_pybytes()], dead_letter_metadata(None), kept)
    found = pq.read_table(tmp_path / "x.parquet")
    assert found.to_pydict() == {"a": [1, 2, 3, 4, 5, 9, 99], "old": ["x"] * 6 + ["made"]}
    assert DeadLetterFileInfo.of(found.schema.metadata) == DeadLetterFileInfo(format=2)
    write_parquet(folder, "y.parquet", [], dead_letter_metadata(None), kept)
    assert pq.read_table(tmp_path / "y.parquet").num_rows == 6


def test_parquet_metadata_names_dead_letter_topic() -> None:
    target = TopicSnapshot(topic="dead", topic_id=bytes(range(16)), partition_count=1)
    assert DeadLetterFileInfo.of(dead_letter_metadata(target)) == DeadLetterFileInfo(format=2, topic="dead", topic_id=bytes(range(16)))
    assert DeadLetterFileInfo.of(None) == DeadLetterFileInfo(format=1)


def test_failed_parquet_write_leaves_no_file(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "dead"), "errors.dead.letter.path")

    def streams() -> Iterator[bytes]:
        raise Refusal(Group.APPLICATION_RECOVERABLE, "STAGING_LOST", "gone")
        yield b""

    with pytest.raises(Refusal, match="gone"):
        write_parquet(folder, "x.parquet", streams())
    assert list((tmp_path / "dead").iterdir()) == []


class TestLetters:
    """What the committing process sets aside itself."""

    def test_dead_letters_above_limit_spill_to_files(self, tmp_path: Path) -> None:
        letters = DeadLetterStore(Folder(str(tmp_path), "stagingLocation"), inline_bytes_max=100)
        data = [bytes([number]) * 30 for number in range(20)]
        kept = [letters.keep(part) for part in data]
        assert [part.data is not None for part in kept] == [True] * 3 + [False] * 17
        letters.flush()
        assert sorted(path.stat().st_size for path in tmp_path.iterdir()) == [30, 120, 120, 120, 120]
        reader = StagedReader(Folder(str(tmp_path), "stagingLocation"))
        assert [bytes(reader.read(part)) for part in kept] == data
        later = letters.keep(b"later")
        letters.flush()
        assert bytes(reader.read(later)) == b"later"
        reader.close()
        letters.discard()
        assert list(tmp_path.iterdir()) == []

    def test_unwritable_folder_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        letters = DeadLetterStore(Folder(str(tmp_path / "file"), "stagingLocation"), inline_bytes_max=10)
        with pytest.raises(Refusal, match=r"LOCATION_NOT_USABLE: stagingLocation=.*file cannot be written"):
            letters.keep(b"x" * 11)
        letters.discard()
