"""Verdict on a batch: write, skip, or refuse it. Compares its commit plan with the marker in Kafka and the checkpoint's state. Pure."""

from __future__ import annotations

from enum import Enum

from chaffinch.errors.codes import Group
from chaffinch.spark.commit.marker import CheckpointState, Marker, Remembered
from chaffinch.spark.commit.plan import CommitPlan
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.topic_ids import created_again, loss


class Verdict(Enum):
    """What happens to a batch."""

    WRITE = "write"
    SKIP = "skip"


_NEW_OUTPUT_HINT = "; an output that is new in its query, or was not called for batch 0, has none yet"
_RESTORED_ADVICE = "restore the newest copy, or start with a new checkpoint"


def judge(plan: CommitPlan, marker: Marker | None, state: CheckpointState) -> Verdict:
    """Write the batch, skip it because it is in Kafka already, or raise Refusal: see the table in decision 37."""
    if plan.group_id is None:
        return Verdict.WRITE
    remembered = state.remembered
    if marker is not None and remembered is not None and remembered.batch_id > marker.batch_id and _has_no_marker_here(plan, remembered):
        marker = None
    if marker is not None:
        if not plan.is_stream:
            return Verdict.SKIP
        return _compare(plan, marker.batch_id, marker.digest, f"the marker in group {plan.group_id} (written by run {marker.writer_id})")
    if not plan.is_stream:
        return Verdict.WRITE
    if remembered is None:
        if plan.batch_id == 0:
            return Verdict.WRITE
        return _missing(plan, "which is not the first, and the checkpoint has no record of this output", _NEW_OUTPUT_HINT)
    if remembered.phase != "ending":
        if remembered.phase == "empty" and remembered.batch_id == plan.batch_id:
            return Verdict.WRITE
        return _compare(plan, remembered.batch_id, remembered.digest, "the checkpoint's folder chaffinch")
    return _judge_ending(plan, remembered, state)


def _judge_ending(plan: CommitPlan, remembered: Remembered, state: CheckpointState) -> Verdict:
    """There is no marker, and the outcome of the remembered batch's transaction was not recorded."""
    if remembered.batch_id > plan.batch_id:
        raise _restored(plan, remembered.batch_id, "the checkpoint's folder chaffinch")
    if remembered.batch_id < plan.batch_id:
        return Verdict.WRITE
    under_way = "its commit was in progress when the query stopped"
    if _is_elsewhere(plan, remembered.marker):
        where = f"with its marker on {remembered.marker}, but the marker is now expected on {plan.marker_partition}"
        return _missing(plan, f"{under_way}, {where} (options topic and markerTopic)")
    both = created_again(state.topic_ids, plan.topic_ids).get(plan.marker_partition.topic)
    # If all topics of the transaction were recreated, its rows were deleted with the marker.
    if both and state.still_existing(plan.topic_ids):
        return _missing(plan, f"{under_way}, and {loss(plan.marker_partition.topic, *both, 'the marker belonged to')}")
    # Half the retention: if it were committed, the marker would still exist.
    if plan.wall_ms - remembered.noted_ms > plan.target.offsets_retention_ms // 2:
        return _missing(plan, f"{under_way}, too long ago for the marker to decide")
    return Verdict.WRITE


def check_not_lost(plan: CommitPlan, marker: Marker | None, state: CheckpointState) -> None:
    """Raises Refusal if the stable marker is older than the newest batch that Kafka has acknowledged: so Kafka has lost that batch.

    Without a marker this is unknown: it may have expired. Markers on different partitions are not compared.
    """
    acknowledged = state.newest_acknowledged()
    if plan.group_id is None or marker is None or acknowledged is None or plan.writes_without_marker:
        return
    if marker.batch_id >= acknowledged.batch_id or _is_elsewhere(plan, acknowledged.marker):
        return
    raise Refusal(
        Group.INVALID_CONFIGURATION,
        "MARKER_LOST",
        f"group {plan.group_id} has the marker of batch {marker.batch_id}, but Kafka acknowledged batch {acknowledged.batch_id} (the "
        "checkpoint's folder chaffinch): Kafka has since lost that transaction, perhaps with its rows (an unclean leader election, disks "
        "without power, another cluster at the same address): check the topic for rows that are missing after batch "
        f"{marker.batch_id}, then set onMissingMarker=write to continue with batch {plan.batch_id}",
    )


def _has_no_marker_here(plan: CommitPlan, remembered: Remembered) -> bool:
    """Whether the remembered batch has no marker where one is expected now: tasks sent it, or the option topic was different."""
    return remembered.is_without_marker or _is_elsewhere(plan, remembered.marker)


def _is_elsewhere(plan: CommitPlan, marker: str) -> bool:
    return marker not in ("", str(plan.marker_partition))


def _compare(plan: CommitPlan, batch_id: int, digest: str, source: str) -> Verdict:
    if batch_id < plan.batch_id:
        return Verdict.WRITE
    if batch_id > plan.batch_id:
        raise _restored(plan, batch_id, source)
    if digest and plan.digest and digest != plan.digest:
        raise Refusal(
            Group.INVALID_CONFIGURATION,
            "CHECKPOINT_RESTORED",
            f"batch {plan.batch_id} was written before with different contents: {source} has digest {digest[:12]}, the checkpoint "
            f"{plan.digest[:12]}; an older copy of the checkpoint was restored and rows would be lost: {_RESTORED_ADVICE}",
        )
    return Verdict.SKIP


def _restored(plan: CommitPlan, newest: int, source: str) -> Refusal:
    return Refusal(
        Group.INVALID_CONFIGURATION,
        "CHECKPOINT_RESTORED",
        f"batch {plan.batch_id} is older than batch {newest}, which is written according to {source}; an older copy of the checkpoint was "
        f"restored and its rows would be duplicated or lost: {_RESTORED_ADVICE}",
    )


def _missing(plan: CommitPlan, why: str, or_else: str = "") -> Verdict:
    """The outcome is unknown: the user decides."""
    if plan.writes_without_marker:
        return Verdict.WRITE
    raise Refusal(
        Group.INVALID_CONFIGURATION,
        "MARKER_MISSING",
        f"group {plan.group_id} has no marker for batch {plan.batch_id}, {why}: it is unknown whether it is written (committed offsets "
        f"expire after offsets.retention.minutes, and are deleted with their topic{or_else}); check the topic, "
        "then set onMissingMarker=write for one start to write it",
    )
