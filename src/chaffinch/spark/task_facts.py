"""Facts about the query that only a task can see, read from the local properties of its TaskContext. Does not import PySpark."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from typing import Final, Protocol

DESCRIPTION_PROPERTY: Final = "spark.job.description"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContextFacts:
    """Facts about a query that only its tasks see; Spark does not pass them to planner or committer.

    `run_id` changes with every start of a query, `query_id` never. Fields of the query are None outside a stream. `run_id` and
    `query_name` are also None if the foreachBatch function sets its own job description.
    """

    task: int
    query_id: str | None = None
    run_id: str | None = None
    batch_id: int | None = None
    master: str | None = None
    query_name: str | None = None
    checkpoint_root: str | None = None
    """The session's `spark.sql.streaming.checkpointLocation`: the checkpoint of a named query is the folder of its name below it."""
    default_file_system: str | None = None
    """The session's `spark.hadoop.fs.defaultFS`."""
    host: str = ""

    def query(self, write_id: str | None) -> str:
        """The id of the write: `write_id` of a batch write, or else the query id."""
        return write_id or self.query_id or "unknown"


class TaskContext(Protocol):
    """The used part of the TaskContext of PySpark."""

    def partitionId(self) -> int: ...

    def getLocalProperty(self, key: str) -> str | None: ...


def facts_of(context: TaskContext | None) -> TaskContextFacts:
    """The facts of a task. `context` is None outside tasks."""
    if context is None:
        return TaskContextFacts(task=0)
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    description = context.getLocalProperty(DESCRIPTION_PROPERTY) or ""
    return TaskContextFacts(
        task=context.partitionId(),
        query_id=context.getLocalProperty("sql.streaming.queryId"),
        run_id=None if batch_id is None else run_in(description),
        batch_id=None if batch_id is None else int(batch_id),
        master=context.getLocalProperty("spark.master"),
        query_name=None if batch_id is None else _name_in(description),
        checkpoint_root=context.getLocalProperty("spark.sql.streaming.checkpointLocation"),
        default_file_system=context.getLocalProperty("spark.hadoop.fs.defaultFS"),
        host=host(),
    )


def is_one_machine(master: str | None) -> bool:
    """Whether `master` is Spark's local mode, where tasks run on the driver's machine. `local-cluster[...]` has separate executors."""
    return master is not None and (master == "local" or master.startswith("local["))


def host() -> str:
    """The name of this machine in Spark."""
    return os.environ.get("SPARK_LOCAL_HOSTNAME") or os.environ.get("SPARK_LOCAL_IP") or socket.gethostname()


def run_in(description: str) -> str | None:
    """The run id in Spark's description of a batch; None if the user has set another job description.

    The job group, which Spark names after the run, is not used: the user may set it too, to the same name in every run.
    """
    found = re.search(r"\nrunId = (\S+)\nbatch = \S+\Z", description)
    return found[1] if found else None


def _name_in(description: str) -> str | None:
    """The query's name in Spark's description of a batch: lines `NAME`, `id = ...`, `runId = ...`; the first only for a named query."""
    found = re.match(r"(.+?)\nid = ", description, re.DOTALL)
    return found[1] if found else None
