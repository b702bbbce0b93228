"""The texts that a marker and the state of a checkpoint are kept in, and what a state remembers."""

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import pytest

from chaffinch.identifiers import TopicPartition
from chaffinch.spark.commit.marker import Acknowledged, CheckpointState, Marker, Remembered
from chaffinch.spark.commit.messages import BatchCounts
from tests.spark.commit.test_verdict import marker, remembered


def test_markers_survive_their_text() -> None:
    kept = marker(7)
    assert Marker.from_text(kept.to_text()) == kept
    assert len(Marker(batch_id=10**9, writer_id="w" * 36, digest="d" * 64).to_text()) < 4096


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", '{"batch":"5"}'])
def test_invalid_marker_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Marker.from_text(text)


COUNTS = BatchCounts(rows_written=3, rejected={"X": 1}, byte_count=9)
FULL = replace(remembered(3, "written"), counts=COUNTS, is_without_marker=True, marker="orders-0")


@pytest.mark.parametrize("totals", [None, COUNTS + COUNTS])
@pytest.mark.parametrize("kept", [None, remembered(3, "ending"), remembered(0, "empty", ""), FULL])
@pytest.mark.parametrize("topic_ids", [{}, {"a": UUID(int=1), "b": UUID(int=2**127 + 5)}])
@pytest.mark.parametrize("written_to", [None, (), (TopicPartition("a", 0), TopicPartition("a", 12), TopicPartition("b", 1))])
@pytest.mark.parametrize("acknowledged", [None, Acknowledged(batch_id=2, marker="orders-0")])
def test_the_state_survives_its_text(
    kept: Remembered | None,
    totals: BatchCounts | None,
    written_to: tuple[TopicPartition, ...] | None,
    acknowledged: Acknowledged | None,
    topic_ids: Mapping[str, UUID],
) -> None:
    state = CheckpointState(
        transactional_id="t",
        remembered=kept,
        totals=totals,
        written_to=written_to,
        acknowledged=acknowledged,
        topic_ids=topic_ids,
        partition_counts=dict.fromkeys(topic_ids, 3),
    )
    assert CheckpointState.from_text(state.to_text()) == state


def test_partitions_of_recreated_topic_are_removed() -> None:
    a, b, c = TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("c", 0)
    state = CheckpointState(written_to=(a, b, c), topic_ids={"a": UUID(int=1), "b": UUID(int=2)})
    assert state.still_existing({"a": UUID(int=1), "b": UUID(int=3), "c": UUID(int=4)}) == (a, c)
    assert state.still_existing({"a": UUID(int=0)}) == (a, b, c), "a broker before 2.8 has no ids"
    assert replace(state, written_to=None).still_existing({}) is None


def test_state_without_counts() -> None:
    text = '{"version": 1, "transactional.id": "t", "batch": {"id": 3, "stage": "ending", "digest": "d3", "noted_ms": 5, "marker": "m"}}'
    kept = Remembered(batch_id=3, phase="ending", digest="d3", noted_ms=5, marker="m")
    assert CheckpointState.from_text(text) == CheckpointState(transactional_id="t", remembered=kept)


def test_state_without_acknowledged_batch() -> None:
    text = '{"version": 1, "transactional.id": "t", "batch": {"id": 3, "stage": "written", "digest": "d3", "noted_ms": 5, "marker": "m"}}'
    later = CheckpointState.from_text(text).with_newest(remembered(4, "empty"))
    assert later.acknowledged == Acknowledged(batch_id=3, marker="m")


@pytest.mark.parametrize("text", ["", "{}", '{"version": 2}', "[1]"])
def test_invalid_state_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        CheckpointState.from_text(text)


def test_marker_of_batch_write_has_dropped_counts() -> None:
    marker = Marker(batch_id=0, writer_id="w", dropped={"MESSAGE_TOO_LARGE": 3})
    assert Marker.from_text(marker.to_text()) == marker
    assert "dropped" not in Marker(batch_id=0, writer_id="w").to_text(), "of all others it is as ever"
