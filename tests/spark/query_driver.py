"""What Spark does around the sink, played by hand: planner, tasks and committer of one streaming query, each with a writer of its own."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage

from chaffinch.spark.sink import writers
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.target import forget_client
from chaffinch.spark.task_facts import TaskContextFacts
from chaffinch.spark.tasks.task_sender import forget_producer


class QueryDriver:
    """One query with its checkpoint. `close` ends the connections that this process keeps for it."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        bootstrap_servers: str,
        checkpoint: Path,
        query_id: str = "q",
        run_id: str = "run",
        **options: str,
    ) -> None:
        self._monkeypatch = monkeypatch
        self._used: list[SinkOptions] = []
        self.checkpoint, self.query_id, self.run_id = checkpoint, query_id, run_id
        self.options = {
            "kafka.bootstrap.servers": bootstrap_servers, "topic": "orders", "checkpointlocation": str(checkpoint),
            "kafka.max.block.ms": "60000", **named(options),
        }  # fmt: skip
        self.begin()

    def begin(self) -> None:
        """A checkpoint as Spark begins it, with the offsets of batches 0 to 9."""
        (self.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text(f'{{"id":"{self.query_id}"}}')
        for batch_id in range(10):
            (self.checkpoint / "offsets" / str(batch_id)).write_text(f"v1\n{self.query_id} {batch_id}")

    def writer(self, **changes: str) -> writers.StreamWriter:
        options = SinkOptions.parse({**self.options, **named(changes)}, is_stream=True)
        self._used.append(options)
        return writers.stream_writer(options)

    def write(self, *tables: Mapping[str, Any], batch_id: int = 0, **changes: Any) -> list[writers.CommitMessage]:
        """What planner and tasks do: the messages."""
        messages = []
        for task, table in enumerate(tables):
            facts = TaskContextFacts(task=task, query_id=self.query_id, run_id=self.run_id, batch_id=batch_id, master="local[2]")
            self._monkeypatch.setattr(writers, "task_facts", lambda facts=facts: facts)
            travelled = pickle.loads(pickle.dumps(self.writer(**changes)))
            messages.append(pickle.loads(pickle.dumps(travelled.write(iter([pa.record_batch(table)])))))
        return messages

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int = 0, **changes: Any) -> None:
        self.writer(**changes).commit(list(messages), batch_id)

    def run(self, *tables: Mapping[str, Any], batch_id: int = 0, **changes: Any) -> None:
        """A whole micro-batch."""
        self.commit(self.write(*tables, batch_id=batch_id, **changes), batch_id, **changes)

    def close(self) -> None:
        for options in self._used:
            forget_producer(options.producer)
            forget_client(options.client)


def named(options: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("__", "."): value for name, value in options.items()}
