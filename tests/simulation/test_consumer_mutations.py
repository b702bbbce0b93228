"""Each guarantee of consumers broken once by hand: group members, positions, and programs that consume, transform and produce.

Those marked "once real" were defects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from chaffinch.broker.core.groups.classic_requests import ClassicRequests
from chaffinch.broker.core.groups.offsets import GroupOffsets
from chaffinch.client import offset_requests
from chaffinch.client.effects import CompleteCall
from chaffinch.consumer.core import fetcher
from chaffinch.consumer.core.committed import CommittedOffsets
from chaffinch.consumer.core.consumer_core import ConsumerCore
from chaffinch.consumer.core.group_leader import GroupLeader
from chaffinch.consumer.core.group_protocol import encode_assignment
from chaffinch.consumer.core.options import EARLIEST, LATEST
from chaffinch.consumer.core.positions import PartitionState, Position, Subscriptions
from chaffinch.errors import codes
from chaffinch.identifiers import GroupMetadata, TopicPartition
from chaffinch.records.fetched import FetchedRecords, whole_batches
from chaffinch.storage import readable_log
from simulation.nemesis import FaultSchedule
from simulation.network import NetworkFaults
from tests.simulation.mutation import NO_ACTORS, Mutation, Patch, find

LOSSY = NetworkFaults(lost_response_share=0.05, cut_share=0.2)
COMING_AND_GOING = FaultSchedule(broker_death_ms=2_000, client_death_ms=1_000, zombie_ms=1_500)
READERS: dict[str, Any] = {
    **NO_ACTORS,
    "plain_count": 1,
    "transactional_count": 1,
    "reader_count": 2,
    "faults": LOSSY,
    "fault_schedule": COMING_AND_GOING,
    "trouble_ms": 6_000,
}
TRANSFORMERS: dict[str, Any] = {**READERS, "reader_count": 0, "transformer_count": 2, "transactional_count": 0}


def delivers_aborted_records(patch: Patch) -> None:
    made = FetchedRecords.__init__
    patch.setattr(FetchedRecords, "__init__", lambda self, data, position, *, aborted=(), checks_crc=True: made(self, data, position))


def skips_a_record(patch: Patch) -> None:
    """The offset after a batch is one too large."""

    def passes_over(records: bytes | memoryview) -> tuple[int | None, int]:
        end, size = whole_batches(records)
        return None if end is None else end + 1, size

    patch.setattr(fetcher, "whole_batches", passes_over)


def ignores_committed_offsets(patch: Patch) -> None:
    """What is committed is not looked at."""
    tp = CommittedOffsets._set_positions
    patch.setattr(CommittedOffsets, "_set_positions", lambda self, found, *others: tp(self, dict.fromkeys(found), *others))


def commits_one_too_many(patch: Patch) -> None:
    consumed = Subscriptions.consumed

    def ahead(self: Subscriptions) -> Mapping[TopicPartition, Position]:
        return {tp: position._replace(offset=position.offset + 1) for tp, position in consumed(self).items()}

    patch.setattr(Subscriptions, "consumed", ahead)


def commits_undelivered_records(patch: Patch) -> None:
    """`poll` commits before it returns, not when the caller comes back."""
    take = ConsumerCore.take

    def takes(self: ConsumerCore, records_max: int) -> Any:
        portions = take(self, records_max)
        if portions and self.group is not None:
            self.group.commits.commit_all(2**60, lambda _error: None, retries=False)
        return portions

    patch.setattr(ConsumerCore, "take", takes)


def writes_without_membership(patch: Patch) -> None:
    """Once real: a member that was out of its group wrote records in a transaction that other members had read since."""

    def as_nobody(self: ConsumerCore) -> GroupMetadata:
        assert self.group is not None
        membership = self.group.membership
        return GroupMetadata(self.context.group_id, *membership.identity, self.context.instance_id)

    patch.setattr(ConsumerCore, "group_metadata", as_nobody)


def assigns_everything_to_every_member(patch: Patch) -> None:
    def shares(self: GroupLeader) -> dict[str, bytes]:
        self._counts = self._current_counts()
        everything = [TopicPartition(topic, index) for topic, count in self._counts.items() for index in range(count)]
        self._assigned = set(everything)
        return {member: encode_assignment(everything) for member in self._members}

    patch.setattr(GroupLeader, "assignments", shares)


def accepts_commits_of_any_member(patch: Patch) -> None:
    patch.setattr(ClassicRequests, "commit_fault", lambda *_arguments, **_keywords: codes.NONE)


def accepts_commits_of_earlier_generations(patch: Patch) -> None:
    """Of who is a member still: what was sent before a rebalance, and comes when another member has gone on, counts."""
    fault = ClassicRequests.commit_fault

    def of_any_generation(self: ClassicRequests, group: Any, member_id: str, instance_id: Any, generation: int, **how: Any) -> Any:
        return fault(self, group, member_id, instance_id, group.generation if generation >= 0 else generation, **how)

    patch.setattr(ClassicRequests, "commit_fault", of_any_generation)


def accepts_commits_of_fenced_members(patch: Patch) -> None:
    """Commits of a fenced member are accepted, whichever process has its group.instance.id now."""
    fault = ClassicRequests.commit_fault

    def of_any_process(self: ClassicRequests, *who: Any, **how: Any) -> Any:
        code = fault(self, *who, **how)
        return codes.NONE if code is codes.FENCED_INSTANCE_ID else code

    patch.setattr(ClassicRequests, "commit_fault", of_any_process)


def does_not_seek_after_abort(patch: Patch) -> None:
    """After an abort a program reads on where it was, though it asked for what is committed."""
    patch.setattr(ConsumerCore, "seek", lambda *_: None)


def treats_timeout_as_no_offset(patch: Patch) -> None:
    """A lookup of committed offsets that takes too long returns none."""
    expire = CommittedOffsets.expire

    def expires(self: CommittedOffsets, steady_ms: int) -> None:
        for lookup in [found for found in self._lookups if found.deadline_ms is not None and steady_ms >= found.deadline_ms]:
            self._lookups.remove(lookup)
            self._context.out.append(CompleteCall(call=lookup.call, result=dict.fromkeys(lookup.tps)))
        expire(self, steady_ms)

    patch.setattr(CommittedOffsets, "expire", expires)


def does_not_wait_for_transactions(patch: Patch) -> None:
    """Committed offsets are returned while a transaction may still replace them."""
    ask = offset_requests.offset_fetch
    patch.setattr(offset_requests, "offset_fetch", lambda group, tps, ids, **_: ask(group, tps, ids, require_stable=False))


def forgets_commits(patch: Patch) -> None:
    patch.setattr(GroupOffsets, "commit", lambda *_: None)


def keeps_commits_in_memory(patch: Patch) -> None:
    """What is committed outside transactions is not written down."""

    def commit(self: GroupOffsets, group: str, offsets: Mapping[TopicPartition, Any]) -> None:
        self._store(group, self._committed_of(group), self._numbered(offsets))

    patch.setattr(GroupOffsets, "commit", commit)


def finds_no_epoch(patch: Patch) -> None:
    """Once real: leaders reported that an earlier epoch has no records left, and consumers were reset."""
    patch.setattr(readable_log, "end_of_epoch", lambda *_: (readable_log.NO_EPOCH, 0))


def begins_at_the_beginning(patch: Patch) -> None:
    """Whatever auto.offset.reset says."""
    reset = PartitionState.reset
    patch.setattr(PartitionState, "reset", lambda self, strategy: reset(self, EARLIEST if strategy == LATEST else strategy))


TWINS: dict[str, Any] = {**READERS, "fault_schedule": FaultSchedule(client_death_ms=2_000, twin_ms=400)}
ABORTING: dict[str, Any] = {**TRANSFORMERS, "abort_share": 0.3}
LATE: dict[str, Any] = {
    "reader_count": 3,
    "faults": NetworkFaults(latency_max_ms=20, slow_share=0.08),
    "fault_schedule": FaultSchedule(client_death_ms=700),
}
MOVING: dict[str, Any] = {"node_count": 3, "fault_schedule": FaultSchedule(broker_death_ms=1_500, client_death_ms=2_000, node_stop_ms=800)}
MUTATIONS = [
    Mutation(
        name="aborted records are given",
        breaks=delivers_aborted_records,
        knobs=READERS,
        says=("was aborted",),
        by="no_aborted_record_is_delivered",
    ),
    Mutation(
        name="a record is passed over",
        breaks=skips_a_record,
        knobs=READERS,
        says=("no member processed",),
        by="every_record_is_delivered",
        first=2,
    ),
    Mutation(
        name="members ignore committed offsets",
        breaks=ignores_committed_offsets,
        knobs=READERS,
        says=("is reset, although",),
        by="members_start_at_committed_offsets",
    ),
    Mutation(
        name="more is committed than was read",
        breaks=commits_one_too_many,
        knobs=READERS,
        says=("before it was done",),
        by="only_processed_records_are_committed",
    ),
    Mutation(name="what was just given is committed", breaks=commits_undelivered_records, knobs=READERS, says=("before it was done",)),
    Mutation(
        name="once real: transactions of a lost member have no member",
        breaks=writes_without_membership,
        knobs=TRANSFORMERS,
        says=("records were made",),
        seeds=60,
        first=26,
    ),
    Mutation(
        name="two members are given a partition",
        breaks=assigns_everything_to_every_member,
        knobs=READERS,
        says=("members in generation",),
        by="one_member_per_partition",
    ),
    Mutation(
        name="the group takes offsets of any generation",
        breaks=accepts_commits_of_any_member,
        knobs=TRANSFORMERS,
        says=("records were made", "begins at"),
        seeds=60,
        first=26,
    ),
    Mutation(
        name="commits of earlier generations are taken",
        breaks=accepts_commits_of_earlier_generations,
        knobs={**READERS, **LATE},
        says=("begins at", "records were made"),
        seeds=100,
        first=84,  # One world in fifty shows it.
    ),
    Mutation(
        name="commits of who was overtaken are taken",
        breaks=accepts_commits_of_fenced_members,
        knobs=TWINS,
        says=("had fenced it",),
        by="fenced_members_commit_nothing",
    ),
    Mutation(
        name="programs do not go back",
        breaks=does_not_seek_after_abort,
        knobs=ABORTING,
        says=("records were made",),
        by="records_are_transformed_once",
    ),
    Mutation(
        name="what is not found in time is taken for nothing",
        breaks=treats_timeout_as_no_offset,
        knobs={**ABORTING, "seek_timeout_ms": 20},
        says=("is reset, although", "records were made"),
        first=5,
    ),
    Mutation(
        name="offsets of open transactions are not waited for",
        breaks=does_not_wait_for_transactions,
        knobs=TRANSFORMERS,
        says=("records were made", "begins at", "is reset, although"),
        seeds=60,
        first=66,
    ),
    Mutation(
        name="latest is taken for earliest",
        breaks=begins_at_the_beginning,
        knobs={**READERS, "reads_latest": True},
        says=("the end lay between",),
        by="members_start_at_the_end",
    ),
    Mutation(
        name="commits are not written down",
        breaks=keeps_commits_in_memory,
        knobs={**READERS, "fault_schedule": FaultSchedule()},
        says=("come after it",),
        by="last_offset_is_committed",
    ),
    Mutation(name="commits are forgotten", breaks=forgets_commits, knobs=READERS, says=("stuck: work is left",)),
    Mutation(
        name="once real: leaders find no epoch",
        breaks=finds_no_epoch,
        knobs={**READERS, **MOVING},
        says=("out of order",),
        by="records_are_delivered_in_order",
    ),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_is_found(mutation: Mutation, monkeypatch: Patch) -> None:
    find(mutation, monkeypatch)
