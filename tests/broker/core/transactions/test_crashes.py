"""A transaction of either version, cut at each of its disk operations by a kill and by a loss of power: all or nothing, nothing twice.

A producer that repeats what was not answered, as clients do, has committed in the end, whatever happened in between. One that is gone too
leaves nothing behind that a newer one could commit. And a disk that refuses one write delays, and changes nothing.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count

import pytest

from chaffinch.broker import embedded
from chaffinch.identifiers import NO_PRODUCER, OFFSET_LATEST, ProducerIdentity
from chaffinch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from chaffinch.storage.file_system import Interrupted, StorageError
from tests.broker.batches import batch_of
from tests.broker.core.transactions.test_transactions import add, add_group, commit_offset, committed, init
from tests.broker.core.transactions.transactional_ends import finish
from tests.broker.core_client import Client, Cluster

pytestmark = pytest.mark.long

PARTITIONS = 2
AGAIN = frozenset({16, 19, 51, 56})
"""Codes after which a client asks again."""
CHANGING = frozenset({"append", "truncate", "sync", "open", "make directory", "remove", "rename", "sync directory"})
Loss = Callable[[str, int], int]
LOSSES: dict[str, Loss | None] = {
    "killed": None,
    "power, nothing is kept": lambda path, unsynced: 0,
    "power, logs are kept": lambda path, unsynced: unsynced if path.startswith("logs") else 0,
    "power, journals are kept": lambda path, unsynced: unsynced if path.startswith("journals") else 0,
    "power, offsets are kept": lambda path, unsynced: unsynced if path.startswith("journals/offsets") else 0,
}


class Gone(Exception):
    """The producer's process has ended with the broker's."""


class Writer:
    """A producer whose requests are repeated until they are answered: one transaction with two batches and an offset, then another."""

    meant = CHANGING

    def __init__(self, version: int, loss: Loss | None, operations: int, *, insists: bool = True, policy: str = "") -> None:
        self.version = version
        self.insists = insists
        self.loss = loss
        self.cluster = Cluster({"flush.policy": policy or ("os" if loss is None else "always")})
        self.cluster.topic("orders", PARTITIONS)
        self.cluster.topic("lines")
        self.client = self.cluster.client()
        self.identity = NO_PRODUCER
        self.is_cut = False
        self.start()
        self._left = operations
        self.cluster.file_system.hook = self._hook

    def _hook(self, operation: str, path: str, size: int) -> None:
        if operation in self.meant:
            self._left -= 1
            if self._left < 0:
                self.is_cut = True
                raise self.harm(path, size)

    def harm(self, path: str, size: int) -> BaseException:
        return Interrupted(size // 2)

    def insist(self, ask: Callable[[Client], int]) -> None:
        """Until it succeeds, after a new start of the broker where it died."""
        while True:
            try:
                code = ask(self.client)
                if code == 0:
                    return
                assert code in AGAIN
                self.cluster.file_system.hook = None
                self.cluster.advance(1000)
            except Interrupted:
                files = self.cluster.file_system
                files.hook = None
                if self.loss is not None:
                    files.crash(self.loss)
                self.cluster.restart()
                self.client = self.cluster.client()
                if not self.insists:
                    raise Gone from None

    def start(self) -> None:
        def ask(client: Client) -> int:
            answer = init(client)
            self.identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
            code: int = answer.error_code
            return code

        self.insist(ask)

    def write(self, partition: int, value: bytes, sequence: int) -> None:
        if self.version == 1:
            self.insist(lambda client: add(client, self.identity, partition, version=3)[0])
        records = bytes(batch_of(value, identity=self.identity, sequence=sequence, transactional=True))
        version = 12 if self.version == 2 else 11
        self.insist(lambda client: client.produce("orders", records, partition=partition, txn="t", version=version).error_code)

    def send_offset(self, offset: int, topic: str = "orders") -> None:
        if self.version == 1:
            self.insist(lambda client: add_group(client, self.identity))
        version = 5 if self.version == 2 else 4
        self.insist(lambda client: commit_offset(client, self.identity, offset, topic=topic, version=version))

    def end(self, commit: bool) -> None:
        def ask(client: Client) -> int:
            code, identity = finish(client, self.identity, commit, 5 if self.version == 2 else 4)
            if code == 0 and self.version == 2:
                self.identity = identity
            return code

        self.insist(ask)


class FullOnce(Writer):
    """The disk refuses one write, and all after it until the producer has got the error."""

    meant = frozenset({"append"})

    def harm(self, path: str, size: int) -> BaseException:
        return StorageError(path, "write", "no space left")


def live(writer: Writer) -> None:
    """Two transactions in all partitions and a group: the first commits, the second aborts."""
    for number, commit in enumerate((True, False)):
        sequence = number if writer.version == 1 else 0
        for partition in range(PARTITIONS):
            writer.write(partition, b"%d-%d" % (number, partition), sequence)
        writer.send_offset(number)
        writer.end(commit)


def visible(cluster: Cluster) -> list[bytes]:
    table = embedded.to_table(embedded.collect(cluster.core, "orders", is_committed=True))
    return sorted(table["value"].to_pylist())


def check(writer: Writer) -> None:
    cluster = writer.cluster
    cluster.file_system.hook = None
    assert visible(cluster) == [b"0-0", b"0-1"]
    assert committed(cluster.client(), stable=True) == (0, "m", 0)
    for partition in range(PARTITIONS):
        log = cluster.partition("orders", partition).log
        assert (log.ongoing_transactions(), log.last_stable_offset) == ([], log.log_end_offset)
        if writer.version == 2:
            assert log.log_end_offset == 4, "two batches, two markers"


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
@pytest.mark.parametrize("version", [1, 2])
def test_crash_at_any_operation_keeps_transactions_atomic(version: int, loss: Loss | None) -> None:
    for operations in count():
        writer = Writer(version, loss, operations)
        live(writer)
        check(writer)
        if not writer.is_cut:
            assert operations > 20
            return


@pytest.mark.parametrize("policy", ["os", "always"])
@pytest.mark.parametrize("version", [1, 2])
def test_refused_write_keeps_transactions_atomic(version: int, policy: str) -> None:
    for operations in count():
        writer = FullOnce(version, None, operations, policy=policy)
        live(writer)
        writer.cluster.file_system.hook = None
        writer.cluster.advance(2000)
        check(writer)
        if not writer.is_cut:
            assert operations > 15
            return


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
@pytest.mark.parametrize("version", [1, 2])
def test_producer_after_a_crash_commits_only_its_own_records(version: int, loss: Loss | None) -> None:
    """The records and the offset of the one that is gone are there together or not at all."""
    for operations in count():
        writer = Writer(version, loss, operations, insists=False)
        cluster = writer.cluster
        with suppress(Gone):
            for partition in range(PARTITIONS):
                writer.write(partition, b"first", 0)
            writer.send_offset(7)
            writer.end(commit=True)
        cluster.file_system.hook = None
        writer.start()
        writer.write(0, b"second", 0)
        writer.send_offset(8, topic="lines")
        writer.end(commit=True)
        firsts = visible(cluster).count(b"first")
        assert (firsts, committed(cluster.client(), stable=True)) in ((0, (-1, "", 0)), (PARTITIONS, (7, "m", 0)))
        for partition in range(PARTITIONS):
            log = cluster.partition("orders", partition).log
            assert (log.ongoing_transactions(), log.last_stable_offset) == ([], log.log_end_offset)
        if not writer.is_cut:
            assert firsts == PARTITIONS
            return


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("seed", range(40))
def test_random_loss_keeps_transactions_atomic(version: int, seed: int) -> None:
    """Torn at any byte, file by file."""
    rng = random.Random(seed)
    writer = Writer(version, lambda path, unsynced: rng.choice((0, unsynced, rng.randint(0, unsynced))), rng.randrange(60))
    live(writer)
    check(writer)


@pytest.mark.parametrize("version", [1, 2])
def test_marker_written_at_a_start_is_synced_before_it_is_readable(version: int) -> None:
    """The next partition's is refused by the disk, so the start goes on without it, and tries again later."""
    writer = Writer(version, None, sys.maxsize, policy="always")
    cluster = writer.cluster
    for partition in range(PARTITIONS):
        writer.write(partition, b"first", 0)
    first, second = (cluster.partition("orders", partition).log.directory for partition in range(PARTITIONS))
    cluster.file_system.hook = failing_at(first, Interrupted(0))
    with pytest.raises(Interrupted):
        finish(writer.client, writer.identity, True, 5 if version == 2 else 4)
    cluster.file_system.hook = failing_at(second, StorageError(second, "write", "no space left"))
    cluster.restart()
    read_to = readable_end(cluster.client())
    assert read_to == 2, "a batch, a marker"
    cluster.file_system.hook = failing_at(first, StorageError(first, "write", "no space left"))  # Else it would be written again.
    cluster.file_system.crash(lambda path, unsynced: 0)
    cluster.restart()
    assert readable_end(cluster.client()) == read_to


def failing_at(directory: str, error: BaseException) -> Callable[[str, str, int], None]:
    def fail(operation: str, path: str, size: int) -> None:
        if operation == "append" and path.startswith(directory):
            raise error

    return fail


def readable_end(client: Client) -> int:
    """Where partition 0 of "orders" ends for readers of committed records."""
    partition = ListOffsetsPartition(partition_index=0, timestamp=OFFSET_LATEST)
    answer = client.ask(ListOffsetsRequest(isolation_level=1, topics=[ListOffsetsTopic(name="orders", partitions=[partition])]))
    offset: int = answer.topics[0].partitions[0].offset
    return offset
