"""Committer of one writer: plans the commit from options and tasks' messages, runs it, and cleans up."""

from __future__ import annotations

import logging
import os
import random
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from chaffinch import plain_text
from chaffinch.errors.codes import Group
from chaffinch.identifiers import TopicPartition
from chaffinch.spark.commit.direct import finish_direct_batch
from chaffinch.spark.commit.messages import TaskOutcome
from chaffinch.spark.commit.plan import CommitPlan, CommitResult
from chaffinch.spark.commit.protocol import commit_batch
from chaffinch.spark.commit.retry_policy import RetryPolicy
from chaffinch.spark.folders import Folder
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.sink.option_tables import NONE
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.sink.paths import SinkPaths
from chaffinch.spark.sink.pause_at_step import pause_hook
from chaffinch.spark.sink.recreated_topics import warn_recreated_topics_of_process
from chaffinch.spark.snapshot import TargetSnapshot
from chaffinch.spark.task_facts import TaskContextFacts

if TYPE_CHECKING:
    from chaffinch.client.sync_client import SyncClient

_log = plain_text.logger(__name__)

LOGGER: Final = "chaffinch.spark"
LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
PUSH_BYTES_PER_S_ASSUMED = 20e6
"""Before any measurement: slow enough for a distant cluster, so that timeouts are too long rather than too short."""
_PUSH_MEASURED_BYTES_MIN = 32 << 20
"""Smaller batches mostly wait for round trips: their rate would forbid a large batch that would fit."""
_NO_QUERY_ID = "Spark gave the tasks no query id (local property sql.streaming.queryId); this version of Spark is not supported"
_NO_TASKS = "no task has sent a message: trigger(continuous=...) gives no rows to a sink in Python, use trigger(processingTime=...)"
# Queries for which this process has logged the risk of their guarantee.
_warned: set[str] = set()
# Push rate of earlier batches of this process, by bootstrap servers: an estimate for timeouts only.
_push_bytes_per_s: dict[tuple[str, ...], float] = {}


@dataclass(frozen=True, slots=True)
class Committer:
    """Commits the batches of one writer. `write_id`: the id of a batch write; the id of a stream's query comes from its tasks."""

    options: SinkOptions
    snapshot: TargetSnapshot
    write_id: str | None
    paths: SinkPaths

    def run(self, outcomes: tuple[TaskOutcome, ...], batch_id: int) -> CommitResult:
        """Commits one batch of Spark. Raises Refusal, and then closes the connections."""
        from chaffinch.spark.target import client_for, forget_client

        if not outcomes and self.options.batch_id is not None:
            return CommitResult(outcome="empty")  # Without a task the query is unknown; without a row it is not needed.
        facts = self.options.completed_facts(outcomes[0].context) if outcomes else TaskContextFacts(task=-1)
        plan = self.plan(outcomes, facts, batch_id)
        try:
            result = self.commit(plan, facts, client_for(self.options.client))
        except BaseException:
            forget_client(self.options.client)
            raise
        if plan.is_stream and not plan.has_checkpoint and result.outcome == "written":
            warn_recreated_topics_of_process(plan)
        enable_info_log()
        if self.options.guarantee == NONE and plan.query not in _warned:
            _warned.add(plan.query)
            text = "rows are not acknowledged; if the broker refuses one record, its whole record batch is lost without notice"
            _log.warning("query %s: deliveryGuarantee=%s: %s", plan.query, NONE, text)
        _log.info("query %s, %s", plan.query, result.counts.line(batch_id, result.outcome))
        return result

    def commit(self, plan: CommitPlan, facts: TaskContextFacts, client: SyncClient) -> CommitResult:
        """Runs the commit protocol for a plan, and cleans up. Raises Refusal; then the connections of `client` are no longer usable."""
        from chaffinch.spark.sink.commit_shell import CommitShell

        plan = replace(plan, target=self._target(client, plan.outcomes))
        commit = commit_batch(plan) if self.options.is_exactly_once else finish_direct_batch(plan)
        shell = CommitShell(
            plan,
            self.options,
            client,
            staging=self._staging(facts),
            state=self.paths.state(facts),
            after_step=pause_hook(os.environ),
        )
        result = shell.run(commit)
        if self.options.is_exactly_once:
            self.update_push_rate(result)
        self.clean_up(plan.outcomes, plan.batch_id, facts if shell.has_staged else None)
        return result

    def _target(self, client: SyncClient, outcomes: tuple[TaskOutcome, ...]) -> TargetSnapshot:
        """A snapshot of the target that is newer than those of the tasks. The writer of a batch write was planned before its tasks, and
        topics that rows name are known to the tasks only. If the snapshot is current, no request is sent.
        """
        from chaffinch.spark.target import refresh_snapshot

        used = {snapshot.topic: snapshot for outcome in outcomes for snapshot in outcome.snapshots}
        fresh = () if self.write_id is not None or self.options.batch_id is not None else self.snapshot.topics
        if not used.keys() - {topic.topic for topic in fresh}:
            return self.snapshot
        return refresh_snapshot(client, self.snapshot, used.values(), self.options.block_max_ms)

    def plan(self, outcomes: tuple[TaskOutcome, ...], facts: TaskContextFacts, batch_id: int) -> CommitPlan:
        from chaffinch.spark.target import wall_ms

        options = self.options
        query = self._query(facts)
        is_stream = self.write_id is None
        if is_stream and facts.query_id is None:
            # The query id names the marker's group: with an invented id one query could mistake another's batches for its own.
            raise Refusal(Group.INVALID_CONFIGURATION, "QUERY_UNKNOWN", _NO_QUERY_ID if outcomes else _NO_TASKS)
        began_ms = wall_ms()
        notes = () if options.notes is None else options.notes.staged(options.dead_letter_topic or "", query, began_ms)
        return CommitPlan(
            query=query,
            batch_id=batch_id,
            wall_ms=began_ms,
            writer_id=facts.run_id or options.writer_id or secrets.token_hex(8),
            outcomes=outcomes,
            target=self.snapshot,
            notes=notes,
            transactional_id=options.transactional_id or f"chaffinch-{query}",
            group_id=f"chaffinch-{query}" if is_stream or options.marker_topic is not None else None,
            marker_partition=TopicPartition(options.marker_topic or "", 0),
            is_stream=is_stream,
            digest=self.paths.digest(batch_id, facts),
            has_checkpoint=self.paths.checkpoint(facts) is not None,
            writes_without_marker=options.writes_without_marker,
            tolerance=options.tolerance,
            writes_dead_letter_file=options.dead_letter_path is not None,
            retains_dead_letters=options.retained_rows is not None,
            has_handler=options.handler is not None,
            transaction_timeout_ms=options.transaction_timeout_ms,
            push_bytes_per_s=_push_bytes_per_s.get(options.client.bootstrap_servers, PUSH_BYTES_PER_S_ASSUMED),
            retry_policy=RetryPolicy(block_max_ms=options.block_max_ms, wait_ms=partial(options.client.retry_backoff.wait_ms, rng=random)),
        )

    def update_push_rate(self, result: CommitResult) -> None:
        counts = result.counts
        if result.outcome == "written" and counts.byte_count >= _PUSH_MEASURED_BYTES_MIN and counts.push_ms + counts.commit_ms > 0:
            servers = self.options.client.bootstrap_servers
            measured = 1000 * counts.byte_count / (counts.push_ms + counts.commit_ms)
            # Starts from the assumed rate, so that one batch during an outage does not forbid the next.
            before = _push_bytes_per_s.get(servers, PUSH_BYTES_PER_S_ASSUMED)
            _push_bytes_per_s[servers] = (before + measured) / 2

    def clean_up(self, outcomes: Iterable[TaskOutcome | None], batch_id: int, facts: TaskContextFacts | None = None) -> None:
        """Removes staged files of this batch, and of older ones whose committer died. Never raises: the files only take up space.

        `facts`: of the committing process, if it has staged files itself.
        """
        found = [outcome.context for outcome in outcomes if outcome is not None and outcome.files()]
        if facts is not None:
            found.append(facts)
        if not found:
            return
        with suppress(Refusal, OSError, ValueError):
            folder = self._staging(found[0])
            folder.remove_all()
            query_folder = folder.parent()
            for name in query_folder.names():
                if name.isdigit() and int(name) < batch_id:
                    query_folder.below(name).remove_all()
            if not query_folder.names():
                query_folder.remove_all()

    def discard_staged(self, outcomes: Iterable[TaskOutcome]) -> None:
        """Removes the staged files of these tasks only: a writer that has fenced this one stages in the same folder. Never raises."""
        for outcome in outcomes:
            with suppress(Refusal, OSError, ValueError):
                for name in outcome.files():
                    self._staging(outcome.context).remove(name)

    def _staging(self, facts: TaskContextFacts) -> Folder:
        """The tasks' staging folder. If they have none, a local temporary folder for files that only the committing process reads."""
        query = self._query(facts)
        return self.paths.staging(facts, query) or self.paths.temporary(facts, query)

    def _query(self, facts: TaskContextFacts) -> str:
        return self.options.qualified_name(facts.query(self.write_id))


def enable_info_log() -> None:
    """Shows the sink's log lines of level INFO on standard error, which Spark displays, if logging is not configured, as in a Spark worker.

    Has no effect if it is configured.
    """
    logger = logging.getLogger(LOGGER)
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
