"""The headers of dead letters, put together for all rows at once: each row gets what it would get alone."""

import random

import numpy as np
import pytest

from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.records.batch import encode, encode_measured
from chaffinch.records.columns import RecordColumns
from chaffinch.spark.commit.messages import Rejection
from chaffinch.spark.snapshot import TopicSnapshot
from chaffinch.spark.tasks.dead_letter_headers import Origin, with_reasons
from chaffinch.spark.tasks.dead_letters import dead_letter_records, groups_by_partition

ORIGIN = Origin(query="q", batch_id=5, task=2)
NOW_MS = 1_700_000_000_000
CODES = [codes.INVALID_COMPACTION_KEY, codes.MESSAGE_TOO_LARGE, codes.INVALID_TIMESTAMP]


def rows(count: int, seed: int, *, value_bytes: int = 20) -> tuple[RecordColumns, list[Rejection]]:
    """Rows with and without headers, null keys and values, some in the far future; and why each is rejected."""
    dice = random.Random(seed)

    def perhaps(value: bytes) -> bytes | None:
        return None if dice.random() < 0.3 else value

    headers = [[(f"h{dice.randrange(3)}", perhaps(b"%d" % n)) for n in range(dice.choice([0, 0, 1, 3]))] for _ in range(count)]
    columns = RecordColumns.from_lists(
        [perhaps(b"k%d" % number) for number in range(count)],
        [perhaps(b"v" * dice.randrange(value_bytes)) for _ in range(count)],
        [NOW_MS + dice.choice([0, 0, 10**9]) for _ in range(count)],
        headers,
    )
    rejections = [
        Rejection(
            row=number, topic_partition=TopicPartition("orders", dice.randrange(-1, 3)), code=dice.choice(CODES),
            message=f"message {dice.randrange(4)}",
        )
        for number in range(count)
    ]  # fmt: skip
    return columns, rejections


def each(columns: RecordColumns) -> list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]]:
    return [
        (columns.key(index), columns.value(index), int(columns.timestamps[index]), columns.headers(index)) for index in range(len(columns))
    ]


@pytest.mark.parametrize("seed", range(5))
def test_headers_of_many_rows_equal_those_of_single_rows(seed: int) -> None:
    columns, rejections = rows(40, seed)
    is_late = columns.timestamps > NOW_MS
    together = with_reasons(columns, rejections, ORIGIN, is_late, NOW_MS)
    alone = [
        with_reasons(columns.take([index]), [rejections[index]], ORIGIN, is_late[index : index + 1], NOW_MS)
        for index in range(len(columns))
    ]
    assert each(together) == [row for one in alone for row in each(one)]


def test_headers_of_one_row() -> None:
    columns = RecordColumns.from_lists([b"k"], [b"v"], [NOW_MS + 10**9], [[("own", b"x"), ("empty", None)]])
    rejection = Rejection(row=3, topic_partition=TopicPartition("orders", -1), code=codes.INVALID_TIMESTAMP, message="late")
    letters = with_reasons(columns, [rejection], ORIGIN, np.array([True]), NOW_MS)
    (row,) = each(letters)
    assert row[:3] == (b"k", b"v", NOW_MS)
    assert row[3] == [
        ("own", b"x"),
        ("empty", None),
        ("__connect.errors.topic", b"orders"),
        ("__connect.errors.partition", b""),
        ("__connect.errors.connector.name", b"q"),
        ("__connect.errors.task.id", b"2"),
        ("__connect.errors.stage", b"KAFKA_PRODUCE"),
        ("__connect.errors.class.name", b"chaffinch.spark.sink.writers"),
        ("__connect.errors.exception.class.name", b"org.apache.kafka.common.errors.InvalidTimestampException"),
        ("__connect.errors.exception.message", b"late"),
        ("chaffinch.error.code", b"32"),
        ("chaffinch.error.name", b"INVALID_TIMESTAMP"),
        ("chaffinch.error.group", b"InvalidConfiguration"),
        ("chaffinch.error.message", b"late"),
        ("chaffinch.error.query", b"q"),
        ("chaffinch.error.batch", b"5"),
        ("chaffinch.error.row", b"3"),
        ("chaffinch.error.timestamp", b"%d" % (NOW_MS + 10**9)),
    ]


@pytest.mark.parametrize("seed", range(3))
def test_too_large_letters_keep_their_order(seed: int) -> None:
    columns, rejections = rows(60, seed, value_bytes=800)
    target = TopicSnapshot(topic="dead", topic_id=bytes(16), partition_count=1, batch_bytes_max=1100)
    letters = dead_letter_records(columns, rejections, ORIGIN, target, NOW_MS)
    assert [letters.key(index) for index in range(60)] == [columns.key(index) for index in range(60)]
    cut = [index for index in range(60) if letters.value(index) != columns.value(index)]
    assert 0 < len(cut) < 60
    for index in cut:
        headers = dict(letters.headers(index))
        assert letters.value(index) is None
        assert headers["chaffinch.error.value.bytes"] == b"%d" % len(columns.value(index) or b"")
        assert headers["chaffinch.error.message"] == rejections[index].message.encode()
    assert (letters.sizes() + 61 <= 1100 + 10).all()


@pytest.mark.parametrize("highest", [3, 2**15])
def test_picked_records_are_grouped_like_a_table_of_them(highest: int) -> None:
    dice = np.random.default_rng(7)
    columns, _ = rows(200, 7)
    picked = np.flatnonzero(dice.random(200) < 0.8)
    partitions = dice.integers(0, 4, len(picked)).astype(np.int32)
    partitions[partitions == 3] = highest
    found = groups_by_partition(columns, partitions, 500, picked)
    taken = columns.take(picked)
    expected = groups_by_partition(taken, partitions, 500)
    assert [(where, each(columns.take(part))) for where, part, _ in found] == [
        (where, each(taken.take(part))) for where, part, _ in expected
    ]
    assert [where for where, *_ in found] == sorted(where for where, *_ in found)
    assert {where for where, *_ in found} == set(partitions.tolist())
    in_turn = np.concatenate([rows for _, rows, _ in found])
    assert sorted(in_turn.tolist()) == picked.tolist()
    for _, rows_of_group, size_max in found:
        batch = encode_measured(columns, size_max, rows=rows_of_group)
        assert batch == encode(columns.take(rows_of_group))
        assert len(batch) <= 500 or len(rows_of_group) == 1
