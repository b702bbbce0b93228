"""Which batches are written, skipped and refused: the table of decision 37."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.spark.commit.marker import CheckpointState, Marker, Phase, Remembered
from chaffinch.spark.commit.plan import CommitPlan
from chaffinch.spark.commit.tolerance import Tolerance
from chaffinch.spark.commit.verdict import Verdict, check_not_lost, judge
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.snapshot import TargetSnapshot, TopicSnapshot
from tests.spark.commit.commit_world import RETRY_POLICY

DAY_MS = 24 * 3_600_000
NOW_MS = 1_700_000_000_000
WRITE, SKIP = Verdict.WRITE, Verdict.SKIP


def batch_plan(
    batch_id: int = 5, digest: str = "d5", *, marker: str = "orders-0", topic_id: UUID = ZERO_UUID, **changes: Any
) -> CommitPlan:
    """A batch whose marker is looked for on the partition `marker`, of a topic with this id."""
    topic, _, number = marker.rpartition("-")
    snapshot = TopicSnapshot(topic=topic, topic_id=topic_id.bytes, partition_count=1)
    fields: dict[str, Any] = {
        "query": "q", "batch_id": batch_id, "digest": digest, "wall_ms": NOW_MS, "writer_id": "w", "outcomes": (),
        "target": TargetSnapshot(topics=(snapshot,), offsets_retention_ms=7 * DAY_MS), "transactional_id": "t", "group_id": "g",
        "marker_partition": TopicPartition(topic, int(number)), "is_stream": True, "tolerance": Tolerance(tolerates=False),
        "push_bytes_per_s": 1e9, "retry_policy": RETRY_POLICY,
    }  # fmt: skip
    return CommitPlan(**{**fields, **changes})


def marker(batch_id: int, digest: str | None = None) -> Marker:
    return Marker(batch_id=batch_id, writer_id="w", digest=f"d{batch_id}" if digest is None else digest)


def remembered(batch_id: int, phase: Phase, digest: str | None = None, age_ms: int = 0) -> Remembered:
    return Remembered(batch_id=batch_id, phase=phase, digest=f"d{batch_id}" if digest is None else digest, noted_ms=NOW_MS - age_ms)


@pytest.mark.parametrize(
    ("seen", "noted", "verdict"),
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
def test_verdict_of_batch_5(seen: Marker | None, noted: Remembered | None, verdict: Verdict | str) -> None:
    if isinstance(verdict, Verdict):
        assert judge(batch_plan(), seen, CheckpointState(remembered=noted)) is verdict
    else:
        with pytest.raises(Refusal) as caught:
            judge(batch_plan(), seen, CheckpointState(remembered=noted))
        assert caught.value.name == verdict
        assert str(caught.value).startswith(f"KAFKA[InvalidConfiguration] {verdict}: batch 5" if "RESTORED" in verdict else "KAFKA[")


@pytest.mark.parametrize(
    ("seen", "noted", "is_lost"),
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
def test_acknowledged_batch_lost_by_kafka(seen: Marker | None, noted: Remembered | None, is_lost: bool) -> None:
    batch = batch_plan(marker="orders-0")
    if is_lost:
        assert noted is not None
        with pytest.raises(Refusal, match=r"^KAFKA\[InvalidConfiguration\] MARKER_LOST: group g has the marker of batch \d, ") as caught:
            check_not_lost(batch, seen, CheckpointState(remembered=noted))
        assert f"acknowledged batch {noted.batch_id} " in str(caught.value)
    else:
        check_not_lost(batch, seen, CheckpointState(remembered=noted))
    check_not_lost(replace(batch, writes_without_marker=True), seen, CheckpointState(remembered=noted))


SENT_BY_TASKS = replace(remembered(4, "written"), is_without_marker=True)


@pytest.mark.parametrize("later", [remembered(4, "empty"), remembered(4, "ending"), SENT_BY_TASKS])
@pytest.mark.parametrize(("seen", "tp", "is_lost"), [(2, "orders-0", True), (3, "orders-0", False), (2, "others-0", False)])
def test_acknowledged_batch_stays_after_batch_without_marker(later: Remembered, seen: int, tp: str, is_lost: bool) -> None:
    state = CheckpointState(remembered=replace(remembered(3, "written"), marker="orders-0")).with_newest(later)
    batch = batch_plan(marker=tp)
    if is_lost:
        with pytest.raises(Refusal, match=r"MARKER_LOST: group g has the marker of batch 2, but Kafka acknowledged batch 3 "):
            check_not_lost(batch, marker(seen), state)
    else:
        check_not_lost(batch, marker(seen), state)
    assert state.with_newest(remembered(5, "written")) == CheckpointState(remembered=remembered(5, "written"))


def test_the_first_batch_needs_no_marker() -> None:
    assert judge(batch_plan(0, "d0"), None, CheckpointState()) is WRITE


@pytest.mark.parametrize(
    ("noted", "verdict"),
    [
        (None, WRITE),
        (remembered(5, "ending", age_ms=4 * DAY_MS), WRITE),
        # What the checkpoint knows is not overridden.
        (remembered(5, "written"), SKIP),
        (remembered(6, "written"), "CHECKPOINT_RESTORED"),
    ],
)
def test_missing_marker_can_be_overridden_if_outcome_unknown(noted: Remembered | None, verdict: str | Verdict) -> None:
    if isinstance(verdict, Verdict):
        assert judge(batch_plan(writes_without_marker=True), None, CheckpointState(remembered=noted)) is verdict
    else:
        with pytest.raises(Refusal, match=verdict):
            judge(batch_plan(writes_without_marker=True), None, CheckpointState(remembered=noted))


@pytest.mark.parametrize(
    ("noted", "verdict"),
    [
        (remembered(5, "written"), SKIP),
        (remembered(4, "written"), WRITE),
        (remembered(5, "ending"), "MARKER_MISSING"),
        (remembered(5, "empty"), WRITE),
        (remembered(9, "written"), "CHECKPOINT_RESTORED"),
        (remembered(2, "written"), WRITE),
    ],
)
def test_marker_of_former_topic_does_not_cover_later_batches(noted: Remembered, verdict: Verdict | str) -> None:
    """The option `topic` went from orders to others and back: the marker on orders-0 is of batch 3."""
    batch, last_batch = batch_plan(marker="orders-0"), replace(noted, marker="others-0")
    if isinstance(verdict, Verdict):
        assert judge(batch, marker(3), CheckpointState(remembered=last_batch)) is verdict
    else:
        with pytest.raises(Refusal, match=verdict):
            judge(batch, marker(3), CheckpointState(remembered=last_batch))


@pytest.mark.parametrize(("seen", "verdict"), [(None, WRITE), (marker(0, ""), SKIP), (marker(0, "whatever"), SKIP)])
def test_verdict_of_batch_write_with_token(seen: Marker | None, verdict: Verdict) -> None:
    assert judge(batch_plan(0, "", is_stream=False), seen, CheckpointState()) is verdict


@pytest.mark.parametrize(
    ("seen", "noted", "verdict"),
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
def test_newer_of_marker_and_checkpoint_counts_after_direct_batch(seen: int | None, noted: int, verdict: Verdict | str) -> None:
    last_batch = replace(remembered(noted, "written"), is_without_marker=True)
    found = None if seen is None else marker(seen)
    if isinstance(verdict, Verdict):
        assert judge(batch_plan(), found, CheckpointState(remembered=last_batch)) is verdict
    else:
        with pytest.raises(Refusal, match=verdict):
            judge(batch_plan(), found, CheckpointState(remembered=last_batch))


@pytest.mark.parametrize("batch_id", [4, 5])
def test_deleted_marker_leaves_ending_batch_unknown(batch_id: int) -> None:
    batch = batch_plan(marker="m-0", topic_id=UUID(int=2))
    before = CheckpointState(topic_ids={"m": UUID(int=1)}, written_to=(TopicPartition("rows", 0),))
    ending = replace(before, remembered=remembered(batch_id, "ending"))
    if batch_id == 4:
        assert judge(batch, None, ending) is WRITE
        return
    with pytest.raises(
        Refusal, match=r"MARKER_MISSING: .* was in progress when the query stopped, and topic 'm' was deleted and created again:"
    ):
        judge(batch, None, ending)
    assert judge(replace(batch, writes_without_marker=True), None, ending) is WRITE
    assert judge(batch, None, replace(before, remembered=remembered(5, "written"))) is SKIP
    assert judge(batch, marker(4), ending) is WRITE
    rows_gone = replace(ending, written_to=(TopicPartition("m", 0),))
    assert judge(batch, None, rows_gone) is WRITE, "its rows are gone with the marker"
