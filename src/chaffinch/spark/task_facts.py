"""What a task sees of the query it belongs to, through the local properties that Spark gives its context. No PySpark in here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContextFacts:
    """What only a task can see of the query it belongs to; Spark tells neither planner nor committer.

    `run_id` changes with every start of a query, `query_id` never. All are None outside a stream.
    """

    task: int
    query_id: str | None = None
    run_id: str | None = None
    batch_id: int | None = None
    master: str | None = None

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
    return TaskContextFacts(
        task=context.partitionId(),
        query_id=context.getLocalProperty("sql.streaming.queryId"),
        run_id=context.getLocalProperty("spark.jobGroup.id") if batch_id is not None else None,
        batch_id=None if batch_id is None else int(batch_id),
        master=context.getLocalProperty("spark.master"),
    )
