"""The sink's commit against an Apache Kafka that is killed right behind its answer to EndTxn, and started again: with one broker it forgets
to write markers to partitions, and the next driver writes them. That one may die, too, before or after any of its
requests, or the broker again after it. Without Spark: the protocol and its shell; every row counted once.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

from chaffinch.client.sync_client import SyncClient
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from chaffinch.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from chaffinch.spark.commit.protocol import commit_batch
from chaffinch.spark.folders import Folder
from chaffinch.spark.sink.commit_shell import CommitShell
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.snapshot import TargetSnapshot, TopicSnapshot
from tests.soak.killed_broker import KilledApacheKafka, KilledBroker, killed_broker
from tests.soak.verdict import read_all
from tests.spark.commit.commit_world import BEGIN_MS, Query, outcome

TOPIC, PARTITIONS, ROUNDS = "ends", 20, 10


class Died(BaseException):
    """The committing process is gone: no error, which the commit would answer with an abort."""


class Clock:
    """What a plan of the commit world asks its broker for."""

    steady_ms = BEGIN_MS


class Ends:
    """A broker, and the batches that were written to it so far."""

    def __init__(self, broker: KilledBroker | KilledApacheKafka, seed: int) -> None:
        self._broker = broker
        self._rng = random.Random(seed)
        self._is_armed = False
        self._send = SyncClient.request
        self.seen: Counter[str] = Counter()

    def write(self, batch_id: int) -> None:
        """One batch, the broker killed at its end; half the time the committing process dies with it and is restarted."""
        self._is_armed = True
        self.finish(batch_id)

    def finish(self, batch_id: int) -> None:
        """The next driver finds the last forgotten transaction."""
        while True:
            try:
                self._commit(batch_id)
            except Died:
                continue
            self._is_armed = False
            return

    def _commit(self, batch_id: int) -> None:
        rows = {number: [(b"key", value_of(batch_id, number))] for number in range(PARTITIONS)}
        query = Query(Clock(), [(outcome(rows, topic=TOPIC),)] * (batch_id + 1), transactional_id="ends", has_checkpoint=False)  # type: ignore[arg-type]
        target = TargetSnapshot(topics=(TopicSnapshot(topic=TOPIC, topic_id=bytes(16), partition_count=PARTITIONS),))
        plan = query.plan(batch_id, "run", group_id="ends", marker_partition=TopicPartition(TOPIC, 0), target=target)
        given = {"kafka.bootstrap.servers": self._broker.bootstrap_servers, "topic": TOPIC, "kafka.request.timeout.ms": "10000"}
        options = SinkOptions.parse(given, is_stream=True)
        ends = self

        def request(client: SyncClient, message: Any, *args: Any, **options: Any) -> Any:
            is_finishing = isinstance(message, WriteTxnMarkersRequest)
            if is_finishing:
                ends._die("before markers are written", 1 / 4)
            answer = ends._send(client, message, *args, **options)
            if ends._is_armed and isinstance(message, EndTxnRequest) and message.committed:
                ends._is_armed = False
                ends._kill("behind EndTxn")
                ends._die("behind EndTxn", 1 / 2)
            if is_finishing:
                ends.seen["markers written"] += 1
                ends._die("after markers are written", 1 / 4)
                if ends._rng.random() < 1 / 4:
                    ends._kill("after markers are written")
            return answer

        with mock.patch.object(SyncClient, "request", request), SyncClient([self._broker.bootstrap_servers]) as client:
            shell = CommitShell(plan, options, client, staging=Folder("/none", "stagingLocation"), state=None)
            shell.run(commit_batch(plan))

    def _kill(self, when: str) -> None:
        self.seen[f"kills {when}"] += 1
        self._broker.kill()
        self._broker.start()

    def _die(self, when: str, share: float) -> None:
        if self._rng.random() < share:
            self.seen[f"deaths of who commits {when}"] += 1
            raise Died


def value_of(batch_id: int, partition: int) -> bytes:
    return b"%d in %d" % (batch_id, partition)


def soaked(folder: Path, rounds: int, seed: int, *, on_apache: bool) -> list[str]:
    """Faults, each in a sentence."""
    broker = killed_broker(folder / "data", [f"{TOPIC}:{PARTITIONS},retention.ms=-1"], on_apache=on_apache)
    try:
        ends = Ends(broker, seed)
        for batch_id in range(rounds):
            ends.write(batch_id)
        ends.finish(rounds)
        found = Counter(value for values in read_all(broker.bootstrap_servers, TOPIC).values() for value in values)
    finally:
        broker.kill()
    wanted = {value_of(batch_id, number) for batch_id in range(rounds + 1) for number in range(PARTITIONS)}
    print(f"kills at the ends of commits, seed {seed}: {len(wanted)} rows; {dict(sorted(ends.seen.items()))}", flush=True)
    lost, twice = wanted - found.keys(), [value for value, count in found.items() if count > 1]
    return [f"{len(lost)} rows are lost: {sorted(lost)[:5]}"] * bool(lost) + [f"{len(twice)} rows are there twice: {twice[:5]}"] * bool(
        twice
    )
