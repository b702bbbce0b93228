"""Notes of replays: their two formats, as an option, as records, and as versions read them that know the first one only."""

import json
from dataclasses import replace

import pytest

from chaffinch.identifiers import TopicPartition
from chaffinch.records import batch as batches
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.replay.dead_letters import Span
from chaffinch.spark.replay.ledger import Ledger, Replay, _notes, _passed, _ranges_of
from chaffinch.spark.tasks.replay_notes import NOTE, NOTE_TOKEN, ReplayNotes, RetainedRows

ENDS = ReplayNotes(ends={0: 23, 2: 5}, run="a")
RANGES = ReplayNotes(ranges={0: ((3, 7), (9, 10))}, run="b", file="replay-f", number=4, partition_count=3)


def record(notes: ReplayNotes) -> tuple[bytes | None, bytes | None, dict[str, bytes | None]]:
    columns = batches.decode(notes.encoded("token", 5))
    return columns.key(0), columns.value(0), dict(columns.headers(0))


@pytest.mark.parametrize("notes", [ENDS, RANGES, replace(RANGES, ranges={})])
def test_notes_round_trip_as_option(notes: ReplayNotes) -> None:
    assert ReplayNotes.of_option(notes.to_option()) == notes


@pytest.mark.parametrize(
    "text",
    [
        '{"ranges": {"0": [[1, 2]]}, "run": "r", "file": "f", "number": 1, "partitions": 0}',
        '{"ranges": {"0": [[1]]}, "run": "r", "file": "f", "number": 1, "partitions": 1}',
        '{"ranges": {"x": []}, "run": "r", "file": "f", "number": 1, "partitions": 1}',
        '{"ranges": {"0": 5}, "run": "r", "file": "f", "number": 1, "partitions": 1}',
        '{"ranges": {"0": [["1", 2]]}, "run": "r", "file": "f", "number": 1, "partitions": 1}',
        '{"run": "r", "file": "f", "number": 1, "partitions": 1}',
    ],
)
def test_wrong_notes_options_are_none(text: str) -> None:
    assert ReplayNotes.of_option(text) is None


def test_format_1_is_readable_by_every_version() -> None:
    assert record(ENDS) == (None, b"a", {NOTE: b'{"0":23,"2":5}', NOTE_TOKEN: b"token"})
    assert [batch.topic_partition for batch in ENDS.staged("dead", "token", 5)] == [TopicPartition("dead", 0), TopicPartition("dead", 2)]
    assert _notes("dead", '{"0":23,"2":5}', "a") == ENDS


def test_format_2_is_readable_and_stops_earlier_versions() -> None:
    _, value, headers = record(RANGES)
    text, body = (headers[NOTE] or b"").decode(), (value or b"").decode()
    assert _notes("dead", text, body) == replace(RANGES, partition_count=0)
    assert [batch.topic_partition.partition for batch in RANGES.staged("dead", "token", 5)] == [0, 1, 2]
    # What such a version does with each name in the header, before it reads a letter.
    with pytest.raises(
        ValueError, match=r"invalid literal for int.*: 'format of this note, which an earlier version of Chaffinch cannot read'"
    ):
        [int(name) for name in json.loads(text)]


@pytest.mark.parametrize("header", ['{"another format":3}', '{"0":1,"format":9}'])
def test_later_format_is_refused(header: str) -> None:
    with pytest.raises(
        Refusal, match=r"FORMAT_NEWER: a note of a replay in dead cannot be read: it has format version \d, this Chaffinch supports"
    ):
        _notes("dead", header, "{}")


@pytest.mark.parametrize(("header", "value"), [("x", ""), ("[]", ""), ('{"0":"x"}', ""), ('{"format":2}', "{}"), ("5", ""), (None, "")])
def test_record_similar_to_note_is_ignored(header: str | None, value: str) -> None:
    assert _notes("dead", header, value) is None


def test_ranges_are_attributed_to_replays() -> None:
    """Whole replays pass over what lies between their ends; the others name it."""
    replays = [
        Replay(notes=notes, token="t", at_ms=0)
        for notes in (ENDS, RANGES, ReplayNotes(ends={0: 30}, run="c"), ReplayNotes(ends={0: 8}, run="d"))
    ]
    assert _passed(replays) == {0: [(0, 8, 3), (8, 23, 0), (23, 30, 2)], 2: [(0, 5, 0)]}
    assert _ranges_of(replays) == {0: [(3, 7, 1), (9, 10, 1)]}


def test_token_changes_with_notes_and_not_with_letters() -> None:
    ledger = Ledger(topic="dead", spans=(Span(partition=0, start=0, end=9, replayed=0),), replays=())
    after = ledger.with_notes(RANGES, "t", 0)
    more_letters = replace(ledger, spans=(Span(partition=0, start=0, end=20, replayed=0),))
    passed = replace(ledger, spans=(Span(partition=0, start=0, end=9, replayed=5),))
    assert ledger.token == more_letters.token
    assert len({ledger.token, after.token, after.with_notes(replace(RANGES, number=5), "t", 0).token, passed.token}) == 4
    # Older notes of format 2 may have expired: the newest says all.
    assert after.with_notes(replace(RANGES, number=5), "t", 0).token == ledger.with_notes(replace(RANGES, number=5), "t", 0).token
    of_file = after.of_file("replay-f")
    assert of_file is not None
    assert of_file.notes is RANGES
    assert after.of_file("replay-g") is None


def test_retained_rows_round_trip_as_option() -> None:
    kept = RetainedRows(name="x.parquet", ranges=((0, 2), (5, 6)))
    assert RetainedRows.of_option(kept.to_option()) == kept
    assert RetainedRows.of_option('{"name": "../x", "ranges": []}') is None
    assert RetainedRows.of_option('{"name": "x", "ranges": [5]}') is None
