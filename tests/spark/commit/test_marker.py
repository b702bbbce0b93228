"""Which batches are written, skipped and refused: the table of decision 37, and the texts that markers are kept in."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from chaffinch.identifiers import TopicPartition
from chaffinch.spark.commit.marker import (
    Acknowledged,
    BatchAtHand,
    CheckpointState,
    Marker,
    Remembered,
    Stage,
    Verdict,
    check_not_lost,
    judge,
)
from chaffinch.spark.commit.messages import BatchCounts
from chaffinch.spark.refusals import Refusal

DAY_MS = 24 * 3_600_000
NOW_MS = 1_700_000_000_000
WRITE, SKIP = Verdict.WRITE, Verdict.SKIP


def at_hand(batch_id: int = 5, digest: str = "d5", **changes: Any) -> BatchAtHand:
    fields: dict[str, Any] = {"group_id": "g", "is_stream": True, "writes_without_marker": False, "offsets_retention_ms": 7 * DAY_MS}
    return BatchAtHand(batch_id=batch_id, digest=digest, **{**fields, **changes})


def marker(batch_id: int, digest: str | None = None) -> Marker:
    return Marker(batch_id=batch_id, writer_id="w", digest=f"d{batch_id}" if digest is None else digest)


def remembered(batch_id: int, stage: Stage, digest: str | None = None, age_ms: int = 0) -> Remembered:
    return Remembered(batch_id=batch_id, stage=stage, digest=f"d{batch_id}" if digest is None else digest, noted_ms=NOW_MS - age_ms)


@pytest.mark.parametrize(
    ("seen", "kept", "verdict"),
    [
        (marker(4), None, WRITE),
        (marker(1), None, WRITE),
        (marker(5), None, SKIP),
        (marker(5, ""), None, SKIP),
        (marker(5, "other"), None, "CHECKPOINT_RESTORED"),
        (marker(6), None, "CHECKPOINT_RESTORED"),
        # The marker is what counts, whatever the checkpoint says.
        (marker(4), remembered(9, "written"), WRITE),
        (marker(6), remembered(4, "written"), "CHECKPOINT_RESTORED"),
        (None, None, "MARKER_MISSING"),
        (None, remembered(4, "written"), WRITE),
        (None, remembered(4, "empty"), WRITE),
        (None, remembered(4, "ending"), WRITE),
        (None, remembered(5, "written"), SKIP),
        (None, remembered(5, "written", "other"), "CHECKPOINT_RESTORED"),
        (None, remembered(5, "empty"), WRITE),
        (None, remembered(6, "written"), "CHECKPOINT_RESTORED"),
        (None, remembered(6, "ending"), "CHECKPOINT_RESTORED"),
        (None, remembered(5, "ending"), WRITE),
        (None, remembered(5, "ending", age_ms=3 * DAY_MS), WRITE),
        (None, remembered(5, "ending", age_ms=4 * DAY_MS), "MARKER_MISSING"),
    ],
)
def test_a_stream_s_batch_5(seen: Marker | None, kept: Remembered | None, verdict: Verdict | str) -> None:
    if isinstance(verdict, Verdict):
        assert judge(at_hand(), seen, kept, NOW_MS) is verdict
    else:
        with pytest.raises(Refusal) as caught:
            judge(at_hand(), seen, kept, NOW_MS)
        assert caught.value.name == verdict
        assert str(caught.value).startswith(f"KAFKA[InvalidConfiguration] {verdict}: batch 5" if "RESTORED" in verdict else "KAFKA[")


@pytest.mark.parametrize(
    ("seen", "kept", "is_lost"),
    [
        (marker(3), remembered(4, "written"), True),
        (marker(4), remembered(5, "written"), True),
        (marker(4), remembered(9, "written"), True),
        (marker(4), remembered(4, "written"), False),
        (marker(4), remembered(3, "written"), False),
        # Without a row there is no marker, and who is about to end may not have come to it.
        (marker(3), remembered(4, "empty"), False),
        (marker(4), remembered(5, "ending"), False),
        (marker(3), replace(remembered(4, "written"), is_without_marker=True), False),
        (marker(3), replace(remembered(4, "written"), marker="others-0"), False),
        (None, remembered(4, "written"), False),
        (marker(3), None, False),
    ],
)
def test_a_batch_that_kafka_acknowledged_and_lost(seen: Marker | None, kept: Remembered | None, is_lost: bool) -> None:
    batch = at_hand(marker="orders-0")
    if is_lost:
        assert kept is not None
        with pytest.raises(Refusal, match=r"^KAFKA\[InvalidConfiguration\] MARKER_LOST: group g has the marker of batch \d, ") as caught:
            check_not_lost(batch, seen, CheckpointState(remembered=kept))
        assert f"acknowledged batch {kept.batch_id} " in str(caught.value)
    else:
        check_not_lost(batch, seen, CheckpointState(remembered=kept))
    check_not_lost(replace(batch, writes_without_marker=True), seen, CheckpointState(remembered=kept))


SENT_BY_TASKS = replace(remembered(4, "written"), is_without_marker=True)


@pytest.mark.parametrize("later", [remembered(4, "empty"), remembered(4, "ending"), SENT_BY_TASKS])
@pytest.mark.parametrize(("seen", "place", "is_lost"), [(2, "orders-0", True), (3, "orders-0", False), (2, "others-0", False)])
def test_what_kafka_acknowledged_is_kept_behind_a_batch_that_has_no_marker_yet(
    later: Remembered, seen: int, place: str, is_lost: bool
) -> None:
    state = CheckpointState(remembered=replace(remembered(3, "written"), marker="orders-0")).noting(later)
    batch = at_hand(marker=place)
    if is_lost:
        with pytest.raises(Refusal, match=r"MARKER_LOST: group g has the marker of batch 2, but Kafka acknowledged batch 3 "):
            check_not_lost(batch, marker(seen), state)
    else:
        check_not_lost(batch, marker(seen), state)
    assert state.noting(remembered(5, "written")) == CheckpointState(remembered=remembered(5, "written"))


def test_the_first_batch_needs_no_marker() -> None:
    assert judge(at_hand(0, "d0"), None, None, NOW_MS) is WRITE


@pytest.mark.parametrize(
    ("kept", "verdict"),
    [
        (None, WRITE),
        (remembered(5, "ending", age_ms=4 * DAY_MS), WRITE),
        # What the checkpoint knows is not overridden.
        (remembered(5, "written"), SKIP),
        (remembered(6, "written"), "CHECKPOINT_RESTORED"),
    ],
)
def test_a_missing_marker_may_be_overridden_where_nobody_can_tell(kept: Remembered | None, verdict: str | Verdict) -> None:
    if isinstance(verdict, Verdict):
        assert judge(at_hand(writes_without_marker=True), None, kept, NOW_MS) is verdict
    else:
        with pytest.raises(Refusal, match=verdict):
            judge(at_hand(writes_without_marker=True), None, kept, NOW_MS)


@pytest.mark.parametrize(
    ("kept", "verdict"),
    [
        (remembered(5, "written"), SKIP),
        (remembered(4, "written"), WRITE),
        (remembered(5, "ending"), "MARKER_MISSING"),
        (remembered(5, "empty"), WRITE),
        (remembered(9, "written"), "CHECKPOINT_RESTORED"),
        (remembered(2, "written"), WRITE),
    ],
)
def test_a_marker_from_before_the_topic_was_another_one_says_nothing_of_later_batches(kept: Remembered, verdict: Verdict | str) -> None:
    """The option `topic` went from orders to others and back: the marker on orders-0 is of batch 3."""
    batch, noted = at_hand(marker="orders-0"), replace(kept, marker="others-0")
    if isinstance(verdict, Verdict):
        assert judge(batch, marker(3), noted, NOW_MS) is verdict
    else:
        with pytest.raises(Refusal, match=verdict):
            judge(batch, marker(3), noted, NOW_MS)


@pytest.mark.parametrize(("seen", "verdict"), [(None, WRITE), (marker(0, ""), SKIP), (marker(0, "whatever"), SKIP)])
def test_a_token(seen: Marker | None, verdict: Verdict) -> None:
    assert judge(at_hand(0, "", is_stream=False), seen, None, NOW_MS) is verdict


def test_markers_survive_their_text() -> None:
    kept = marker(7)
    assert Marker.from_text(kept.to_text()) == kept
    assert len(Marker(batch_id=10**9, writer_id="w" * 36, digest="d" * 64).to_text()) < 4096


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", '{"batch":"5"}'])
def test_other_texts_are_no_markers(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Marker.from_text(text)


@pytest.mark.parametrize(
    ("seen", "kept", "verdict"),
    [
        (4, 5, SKIP),  # Batch 5 was sent by tasks since.
        (None, 5, SKIP),
        (4, 3, WRITE),
        (5, 4, SKIP),
        (4, 6, "CHECKPOINT_RESTORED"),
        (6, 7, "CHECKPOINT_RESTORED"),
        (6, 5, "CHECKPOINT_RESTORED"),
    ],
)
def test_the_newer_of_marker_and_note_counts_where_tasks_have_sent(seen: int | None, kept: int, verdict: Verdict | str) -> None:
    noted = replace(remembered(kept, "written"), is_without_marker=True)
    found = None if seen is None else marker(seen)
    if isinstance(verdict, Verdict):
        assert judge(at_hand(), found, noted, NOW_MS) is verdict
    else:
        with pytest.raises(Refusal, match=verdict):
            judge(at_hand(), found, noted, NOW_MS)


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


def test_partitions_of_a_topic_that_was_created_again_are_not_there_any_more() -> None:
    a, b, c = TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("c", 0)
    state = CheckpointState(written_to=(a, b, c), topic_ids={"a": UUID(int=1), "b": UUID(int=2)})
    assert state.still_there({"a": UUID(int=1), "b": UUID(int=3), "c": UUID(int=4)}) == (a, c)
    assert state.still_there({"a": UUID(int=0)}) == (a, b, c), "a broker before 2.8 has no ids"
    assert replace(state, written_to=None).still_there({}) is None


@pytest.mark.parametrize("batch_id", [4, 5])
def test_marker_that_was_deleted_tells_nothing_of_a_batch_whose_end_was_not_noted(batch_id: int) -> None:
    batch = at_hand(deleted="topic 'm' was deleted and created again")
    if batch_id == 4:
        assert judge(batch, None, remembered(4, "ending"), NOW_MS) is WRITE
        return
    with pytest.raises(
        Refusal, match=r"MARKER_MISSING: .* was under way when the query stopped, and topic 'm' was deleted and created again:"
    ):
        judge(batch, None, remembered(5, "ending"), NOW_MS)
    assert judge(replace(batch, writes_without_marker=True), None, remembered(5, "ending"), NOW_MS) is WRITE
    assert judge(batch, None, remembered(5, "written"), NOW_MS) is SKIP
    assert judge(batch, marker(4), remembered(5, "ending"), NOW_MS) is WRITE


def test_a_state_from_before_there_were_counts() -> None:
    text = '{"version": 1, "transactional.id": "t", "batch": {"id": 3, "stage": "ending", "digest": "d3", "noted_ms": 5, "marker": "m"}}'
    kept = Remembered(batch_id=3, stage="ending", digest="d3", noted_ms=5, marker="m")
    assert CheckpointState.from_text(text) == CheckpointState(transactional_id="t", remembered=kept)


def test_a_state_from_before_an_acknowledged_batch_was_kept_apart() -> None:
    text = '{"version": 1, "transactional.id": "t", "batch": {"id": 3, "stage": "written", "digest": "d3", "noted_ms": 5, "marker": "m"}}'
    later = CheckpointState.from_text(text).noting(remembered(4, "empty"))
    assert later.acknowledged == Acknowledged(batch_id=3, marker="m")


@pytest.mark.parametrize("text", ["", "{}", '{"version": 2}', "[1]"])
def test_other_texts_are_no_states(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        CheckpointState.from_text(text)


def test_a_marker_says_what_a_handler_left_out_of_a_batch_write() -> None:
    marker = Marker(batch_id=0, writer_id="w", dropped={"MESSAGE_TOO_LARGE": 3})
    assert Marker.from_text(marker.to_text()) == marker
    assert "dropped" not in Marker(batch_id=0, writer_id="w").to_text(), "of all others it is as ever"
