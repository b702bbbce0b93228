"""What a writer does in the committing process: plan the commit from options and tasks' messages, run it, clean up after it."""

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
"""Before anything was measured: slow enough for a far-away cluster, so that time-outs err on the long side."""
_PUSH_MEASURED_BYTES_MIN = 32 << 20
"""Of smaller batches the round trips take the time: their rate would forbid a large batch that fits well."""
_NO_QUERY_ID = "Spark told the tasks no query id (local property sql.streaming.queryId); this version of Spark is not supported"
_NO_TASKS = "no task has handed anything over: trigger(continuous=...) gives no rows to a sink in Python, use trigger(processingTime=...)"
# Queries of which this process has said what they do without.
_warned: set[str] = set()
# What earlier batches of this process reached, by bootstrap servers: a hint for time-outs, never truth.
_push_bytes_per_s: dict[tuple[str, ...], float] = {}


@dataclass(frozen=True, slots=True)
class Committer:
    """Commits the batches of one writer. `write_id`: of a batch write; a stream's query is known to its tasks only."""

    options: SinkOptions
    snapshot: TargetSnapshot
    write_id: str | None
    paths: SinkPaths

    def run(self, outcomes: tuple[TaskOutcome, ...], batch_id: int) -> CommitResult:
        """Runs the commit protocol for one batch. Raises Refusal; afterwards connections begin anew."""
        from chaffinch.spark.sink.commit_shell import CommitShell
        from chaffinch.spark.target import client_for, forget_client

        if not outcomes and self.options.batch_id is not None:
            return CommitResult(outcome="empty")  # Without a task nobody knows the query; without a row there is nothing to know it for.
        facts = self.options.completed_facts(outcomes[0].context) if outcomes else TaskContextFacts(task=-1)
        plan = self.plan(outcomes, facts, batch_id)
        try:
            client = client_for(self.options.client)
            plan = replace(plan, target=self._target(client, outcomes))
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
        except BaseException:
            forget_client(self.options.client)
            raise
        if self.options.is_exactly_once:
            self.update_push_rate(result)
        if plan.is_stream and not plan.has_checkpoint and result.outcome == "written":
            warn_recreated_topics_of_process(plan)
        enable_info_log()
        if self.options.guarantee == NONE and plan.query not in _warned:
            _warned.add(plan.query)
            text = "nobody acknowledges rows; a record batch of which the broker refuses one is lost as a whole, unseen"
            _log.warning("query %s: deliveryGuarantee=%s: %s", plan.query, NONE, text)
        _log.info("query %s, %s", plan.query, result.counts.line(batch_id, result.outcome))
        self.clean_up(outcomes, batch_id, facts if shell.has_staged else None)
        return result

    def _target(self, client: SyncClient, outcomes: tuple[TaskOutcome, ...]) -> TargetSnapshot:
        """The target, later than the tasks saw it: a batch write is committed by the writer that was planned before them, and of topics
        that rows named only the tasks know. Where all of it is of this moment, nobody is asked."""
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
            # Its id names the marker's group: a made-up one would let two queries take each other's batches for written.
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
            # From the assumed rate on, so that one batch that met an outage does not forbid the next.
            before = _push_bytes_per_s.get(servers, PUSH_BYTES_PER_S_ASSUMED)
            _push_bytes_per_s[servers] = (before + measured) / 2

    def clean_up(self, outcomes: Iterable[TaskOutcome | None], batch_id: int, facts: TaskContextFacts | None = None) -> None:
        """Removes what this batch, and older ones whose committer died, have staged in files. Never raises: it is only space.

        `facts`: of the committing process, if it has staged something itself.
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
        """Removes what these tasks have staged in files, and nothing else: whoever has fenced this writer stages in the same folder.
        Never raises."""
        for outcome in outcomes:
            with suppress(Refusal, OSError, ValueError):
                for name in outcome.files():
                    self._staging(outcome.context).remove(name)

    def _staging(self, facts: TaskContextFacts) -> Folder:
        """Where tasks have staged; where none can, what only the committing process reads lies in a folder of its machine's."""
        query = self._query(facts)
        return self.paths.staging(facts, query) or self.paths.temporary(facts, query)

    def _query(self, facts: TaskContextFacts) -> str:
        return self.options.qualified_name(facts.query(self.write_id))


def enable_info_log() -> None:
    """From now on the sink's log lines of level INFO are seen in this process, on its standard error, which Spark shows: in a Spark worker
    nobody configures logging. Changes nothing where somebody has."""
    logger = logging.getLogger(LOGGER)
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
