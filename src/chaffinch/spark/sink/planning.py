"""Plan of a write before its rows are read: checks of the target, and the plan of each task. Without PySpark.

Internal; may change without notice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from chaffinch.errors.codes import Group
from chaffinch.spark.commit.timeout import check_timeout
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.sink.option_tables import NONE
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.snapshot import TargetSnapshot, TopicSnapshot
from chaffinch.spark.task_facts import TaskContextFacts
from chaffinch.spark.tasks.plan import TaskPlan

if TYPE_CHECKING:
    from chaffinch.client.sync_client import SyncClient


def planned_target(options: SinkOptions, client: SyncClient) -> TargetSnapshot:
    """The topics that the options name, and the limits of the brokers. Raises Refusal for errors that these report."""
    from chaffinch.spark.target import check_codec, check_replication, take_snapshot

    topics = {}
    if options.marker_topic is not None:
        topics[options.marker_topic] = "markerTopic"
    if options.topic is not None:
        topics[options.topic] = "topic"
    if options.dead_letter_topic is not None:
        topics[options.dead_letter_topic] = "errors.dead.letter.queue.topic.name"
    snapshot = take_snapshot(client, list(topics.items()), options.block_max_ms)
    check_codec(client, options.compression_type, options.block_max_ms)
    check_timeout(options.transaction_timeout_ms, snapshot)
    if options.guarantee != NONE:
        for topic in snapshot.topics:
            check_replication(topic, snapshot.replication_policy)
    dead_letters = snapshot.topic(options.dead_letter_topic) if options.dead_letter_topic else None
    if dead_letters is not None and dead_letters.is_compacted:
        text = f"errors.dead.letter.queue.topic.name={dead_letters.topic} is compacted: it would refuse rows without a key and drop others"
        raise Refusal(Group.INVALID_CONFIGURATION, "INVALID_CONFIG", f"{text}; set its cleanup.policy to delete")
    return snapshot


def plan_of_task(
    options: SinkOptions, target: TargetSnapshot, facts: TaskContextFacts, query: str, client: Callable[[], SyncClient]
) -> TaskPlan:
    """Plan of a task that writes for `query`. Topics that rows name are looked up if `target` does not contain them."""
    from chaffinch.spark.target import check_replication, find_topic, wall_ms
    from chaffinch.spark.tasks.dead_letter_headers import Origin
    from chaffinch.spark.tasks.row_handler import handler_for

    def snapshot_of(topic: str, patience_ms: int) -> TopicSnapshot | None:
        known = target.topic(topic)
        if known is not None:
            return known
        found = find_topic(client(), topic, options.block_max_ms, patience_ms)
        if found is not None and options.guarantee != NONE:
            check_replication(found, target.replication_policy)
        return found

    dead_letter_target = target.topic(options.dead_letter_topic) if options.dead_letter_topic else None
    if dead_letter_target is not None and not options.is_exactly_once and options.request_bytes_max is not None:
        # If tasks send, a dead letter must fit into a request as well.
        dead_letter_target = replace(dead_letter_target, batch_bytes_max=min(dead_letter_target.batch_bytes_max, options.request_bytes_max))
    batch_id = (facts.batch_id or 0) if options.batch_id is None else options.batch_id
    return TaskPlan(
        options=options,
        context=facts,
        origin=Origin(query=query, batch_id=batch_id, task=facts.task),
        dead_letter_target=dead_letter_target,
        snapshot_of=snapshot_of,
        handler=handler_for(options.handler),
        wall_ms=wall_ms(),
    )
