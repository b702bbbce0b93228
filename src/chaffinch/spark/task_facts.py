"""What a task sees of the query it belongs to, through the local properties that Spark gives its context. No PySpark in here."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from typing import Final, Protocol

DESCRIPTION_PROPERTY: Final = "spark.job.description"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContextFacts:
    """What only a task can see of the query it belongs to; Spark tells neither planner nor committer.

    `run_id` changes with every start of a query, `query_id` never. What concerns the query is None outside a stream; `run_id` and
    `query_name` are so too where the function of a foreachBatch has described its jobs.
    """

    task: int
    query_id: str | None = None
    run_id: str | None = None
    batch_id: int | None = None
    master: str | None = None
    query_name: str | None = None
    checkpoint_root: str | None = None
    """The session's `spark.sql.streaming.checkpointLocation`: Spark keeps a query with a name below it, under its name."""
    default_file_system: str | None = None
    """The session's `spark.hadoop.fs.defaultFS`."""
    host: str = ""

    def query(self, write_id: str | None) -> str:
        """The name of what is written: `write_id` of a batch write, else the query's id."""
        return write_id or self.query_id or "unknown"


class TaskContext(Protocol):
    """The part of PySpark's TaskContext that is read."""

    def partitionId(self) -> int: ...

    def getLocalProperty(self, key: str) -> str | None: ...


def facts_of(context: TaskContext | None) -> TaskContextFacts:
    """The facts of a task; None stands for code that runs outside of any."""
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
    """Spark's local mode, where tasks run beside the driver. `local-cluster[...]` has executors as any cluster has."""
    return master is not None and (master == "local" or master.startswith("local["))


def host() -> str:
    """This machine under the name that Spark knows it by."""
    return os.environ.get("SPARK_LOCAL_HOSTNAME") or os.environ.get("SPARK_LOCAL_IP") or socket.gethostname()


def run_in(description: str) -> str | None:
    """The id of the query's run in Spark's description of a batch. None: somebody has given the jobs another description; the group that
    Spark names after the run may be somebody's, too, and the same in every run."""
    found = re.search(r"\nrunId = (\S+)\nbatch = \S+\Z", description)
    return found[1] if found else None


def _name_in(description: str) -> str | None:
    """The query's name in Spark's description of a batch: lines `NAME`, `id = ...`, `runId = ...`, the first where it has one."""
    found = re.match(r"(.+?)\nid = ", description, re.DOTALL)
    return found[1] if found else None
