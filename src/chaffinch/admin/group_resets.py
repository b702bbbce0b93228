"""Where a group would read next after a reset: planned first, and done only when it is asked for (KIP-122)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from chaffinch.admin import groups, offsets
from chaffinch.admin.group_offsets import commit_offsets, committed_offsets
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import GroupNotEmptyException
from chaffinch.identifiers import NO_OFFSET, TopicPartition
from chaffinch.protocol.primitives import ZERO_UUID

Kind = Literal["earliest", "latest", "offset", "time", "shift", "current"]


class Target(NamedTuple):
    """Where to: `number` is the offset, the time in ms, or how far to shift."""

    kind: Kind
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """One partition: where the group stood (None: nowhere), and where it is to go on: the nearest to `wanted` that can be read."""

    topic_partition: TopicPartition
    before: int | None
    wanted: int
    after: int


def plan_reset(client: SyncClient, group: str, partitions: Iterable[TopicPartition], target: Target) -> list[Reset]:
    """What a reset would do. Partitions without a committed offset are left out of a shift, and go to their end for `current`."""
    places = sorted(partitions)
    first, end = offsets.earliest(client, places), offsets.latest(client, places)
    before = {place: found.offset for place, found in committed_offsets(client, group, places).items()}
    times: dict[TopicPartition, int] = {}
    if target.kind == "time":
        times = offsets.list_offsets(client, dict.fromkeys(places, target.number))
    plan = []
    for place in places:
        wanted = _wanted(target, before.get(place), first[place], end[place], times.get(place, NO_OFFSET))
        if wanted is not None:
            after = min(max(wanted, first[place]), end[place])
            plan.append(Reset(topic_partition=place, before=before.get(place), wanted=wanted, after=after))
    return plan


def _wanted(target: Target, before: int | None, first: int, end: int, of_time: int) -> int | None:
    match target.kind:
        case "earliest":
            return first
        case "latest":
            return end
        case "offset":
            return target.number
        case "time":
            return end if of_time == NO_OFFSET else of_time
        case "shift":
            return None if before is None else before + target.number
        case "current":
            return end if before is None else before


def execute_reset(client: SyncClient, group: str, plan: Iterable[Reset]) -> None:
    """Commit what was planned. GroupNotEmptyException while the group has members; UnknownTopicIdException if a topic was deleted and
    created again since the plan was made."""
    wanted = {reset.topic_partition: reset.after for reset in plan}
    topic_ids = {place.topic: client.cluster.topic_id(place.topic) or ZERO_UUID for place in wanted}
    for listing in groups.list_groups(client):
        if listing.group == group and listing.state and listing.state not in groups.WITHOUT_MEMBERS:
            raise GroupNotEmptyException(
                f"group {group!r} is in state {listing.state}: its offsets can be reset only without members", api="OffsetCommit"
            )
    commit_offsets(client, group, wanted, topic_ids)
