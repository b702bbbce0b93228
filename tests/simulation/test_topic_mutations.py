"""Guarantees about recreated topics and trimmed logs, broken once by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from chaffinch.broker.core.topics.registry import Topic, TopicRegistry
from chaffinch.consumer.core.fetcher import Fetcher
from chaffinch.consumer.core.options import LATEST
from chaffinch.consumer.core.reset_policy import RecreatedTopics
from chaffinch.producer.core.batches.batch import ProducerBatch
from chaffinch.producer.core.exception_handler import HandlerDecision
from chaffinch.producer.core.produce_response_handler import ProduceResponseHandler
from chaffinch.producer.core.refusals import culprits
from chaffinch.storage import log_state, snapshot
from chaffinch.storage.partition_log import PartitionLog
from chaffinch.storage.producer_sequences import ProducerSequences
from chaffinch.storage.snapshot import SnapshotFiles
from simulation.nemesis import FaultSchedule
from simulation.network import NetworkFaults
from tests.simulation.mutation import CORRUPT, RECREATED, TRIMMED, Mutation, Patch, find, without_contents_record
from tests.simulation.regression_seeds import RECREATED_ROUGHLY


def takes_old_ids(patch: Patch) -> None:
    """What is for a topic that was deleted goes to the next of its name."""
    delete, by_id = TopicRegistry.delete, TopicRegistry.by_id
    names: dict[UUID, str] = {}

    def deletes(self: TopicRegistry, name: str) -> None:
        topic = self.get(name)
        assert topic is not None
        names[topic.topic_id] = name
        delete(self, name)

    def finds(self: TopicRegistry, topic_id: UUID) -> Topic | None:
        return by_id(self, topic_id) or self.get(names.get(topic_id, ""))

    patch.setattr(TopicRegistry, "delete", deletes)
    patch.setattr(TopicRegistry, "by_id", finds)


def does_not_try_again(patch: Patch) -> None:
    """A RETRY decision of the handler is ignored: the record fails."""
    unknown = culprits._unknown_topic

    def forgetful(answer: Any, situation: Any) -> Any:
        decision = situation.decision and HandlerDecision(swallowed=situation.decision.swallowed)
        return unknown(answer, replace(situation, decision=decision))

    patch.setattr(culprits, "_unknown_topic", forgetful)


def drops_what_is_unknown(patch: Patch) -> None:
    """Whatever the handler says: it is dropped."""
    unknown = culprits._unknown_topic

    def drops(answer: Any, situation: Any) -> Any:
        decision = situation.decision and HandlerDecision(swallowed=frozenset(range(situation.count)))
        return unknown(answer, replace(situation, decision=decision))

    patch.setattr(culprits, "_unknown_topic", drops)


def goes_on_at_the_end(patch: Patch) -> None:
    """A consumer whose position is gone begins with what comes, whatever auto.offset.reset says."""
    refused = Fetcher._raise_or_reset

    def to_the_end(self: Fetcher, fetched: Any, state: Any, index: int) -> None:
        refused(self, fetched, state, index)
        state.reset(LATEST)

    patch.setattr(Fetcher, "_raise_or_reset", to_the_end)


def forgets_where_logs_begin(patch: Patch) -> None:
    patch.setattr(log_state, "create_start_file", lambda *_: None)


def forgets_producers(patch: Patch) -> None:
    """The last segment goes, and what the producers were is written nowhere."""
    patch.setattr(PartitionLog, "persist_producers", lambda *_: None)


ASKED: dict[str, Any] = {**RECREATED, "has_handler": True}


def repeats_what_may_be_stored(patch: Patch) -> None:
    """Once real: what may be in the topic that is gone went into the new one under its old number, before what had come back."""

    def mark_retried(self: ProduceResponseHandler, batch: ProducerBatch) -> None:
        if batch not in self.queue(batch.topic_partition).retries:
            self._schedule_retry(batch, 0)

    patch.setattr(ProduceResponseHandler, "fail_of_deleted_topic", mark_retried)


def reads_on_in_new_topics(patch: Patch) -> None:
    """A consumer goes on in the next topic of a name where it was in the one before."""
    patch.setattr(RecreatedTopics, "drop_outdated", lambda *_: set())


def loses_snapshots(patch: Patch) -> None:
    """Once real: records went for good, and who had written them was not yet on the disk; what was open before is still open then."""
    write = snapshot.write
    patch.setattr(snapshot, "write", lambda *arguments, **_syncs: write(*arguments))
    patch.setattr(SnapshotFiles, "sync_durable", lambda _self: None)
    patch.setattr(ProducerSequences, "forget_ongoing", lambda _self: None)


def starts_beyond_the_disk(patch: Patch) -> None:
    """Once real: a log's start is named before what lies below it is on the disk, and with it who had written that."""
    start_at = PartitionLog._advance_start

    def starts(self: PartitionLog, offset: int) -> None:
        with patch.context() as inner:
            inner.setattr(PartitionLog, "sync", lambda _self: None)
            start_at(self, offset)

    patch.setattr(PartitionLog, "_advance_start", starts)


POWER_LOST: dict[str, Any] = {
    **TRIMMED,
    "transactional_count": 1,
    "flush_policy": "always",
    "fault_schedule": FaultSchedule(broker_death_ms=400, power_loss_share=0.9, trim_ms=200),
}
BEYOND: dict[str, Any] = {
    **POWER_LOST,
    "transactional_count": 0,
    "value_bytes_max": 50,
    "fault_schedule": FaultSchedule(broker_death_ms=60, power_loss_share=0.95, trim_ms=4),
}
READ: dict[str, Any] = {**TRIMMED, "reader_count": 2}
MUTATIONS = [
    Mutation(
        name="ids of deleted topics are taken for those of new ones",
        breaks=takes_old_ids,
        knobs=ASKED,
        says=("was made",),
        by="records_stay_in_their_topic",
        seeds=40,
        first=12,
    ),
    Mutation(name="a handler says RETRY and the record fails", breaks=does_not_try_again, knobs=ASKED, says=("for no good reason",)),
    Mutation(name="a handler says RETRY and the record is dropped", breaks=drops_what_is_unknown, knobs=ASKED, says=("was dropped",)),
    Mutation(
        name="who is behind a log's start goes on at its end",
        breaks=goes_on_at_the_end,
        knobs=READ,
        says=("not given", "no member processed"),
        first=1,
    ),
    Mutation(
        name="where a log begins is forgotten",
        breaks=forgets_where_logs_begin,
        knobs=TRIMMED,
        says=("the log spanned",),
        by="logs_survive_a_death",
    ),
    Mutation(
        name="once real: what may be in a topic that is gone is sent to the next",
        breaks=repeats_what_may_be_stored,
        knobs={**RECREATED_ROUGHLY, "has_inline_send": False},
        says=("which was sent later",),
        first=221,
    ),
    Mutation(
        name="positions of a topic that is gone are used in the next",
        breaks=reads_on_in_new_topics,
        knobs={**RECREATED, "reader_count": 2, "faults": NetworkFaults(latency_max_ms=4), "value_bytes_max": 100, "bad_share": 0.0},
        says=("nor begins a new topic",),
        by="recreated_topics_are_read_from_the_start",
        seeds=40,
    ),
    Mutation(
        name="once real: snapshots are lost after the records",
        breaks=without_contents_record(loses_snapshots),
        knobs=POWER_LOST,
        says=("stored 2 times",),
        seeds=60,
        first=14,
    ),
    Mutation(
        name="once real: a log starts beyond what is on disk",
        breaks=starts_beyond_the_disk,
        knobs=BEYOND,
        raises=(CORRUPT,),
        first=5,
    ),
    Mutation(
        name="a log starts beyond what is on disk, and nothing is noted of it",
        breaks=without_contents_record(starts_beyond_the_disk),
        knobs=BEYOND,
        says=("has sequence",),
        by="sequences_ascend",
        first=5,
    ),
    Mutation(
        name="producers are forgotten with the last segment",
        breaks=without_contents_record(forgets_producers),
        knobs=TRIMMED,
        says=("stored 2 times",),
        first=16,
    ),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_is_found(mutation: Mutation, monkeypatch: Patch) -> None:
    find(mutation, monkeypatch)
