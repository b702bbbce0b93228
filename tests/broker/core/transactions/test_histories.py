"""Random histories of two transactional producers, one of each version: exactly what was acknowledged is committed, whatever happened.

Writes, offsets, ends, newer instances, late requests of older ones, time limits, kills, kills and full disks in the middle of an end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from chaffinch.broker import embedded
from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.storage.file_system import Interrupted, StorageError
from tests.broker.batches import batch_of
from tests.broker.core_client import Client, Cluster

PARTITIONS = 2
TIMEOUT_MS = 60_000
ATTEMPTS = 5


class World:
    """A cluster that may be killed at any time, and what its clients were promised."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.cluster.topic("orders", PARTITIONS)
        self.committed: Counter[bytes] = Counter()
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = self.cluster.client()
        return self._client

    def restart(self) -> None:
        self.cluster.file_system.hook = None
        self.cluster.restart()
        self._client = None

    def visible(self) -> Counter[bytes]:
        table = embedded.to_table(embedded.collect(self.cluster.core, "orders", is_committed=True))
        return Counter(table["value"].to_pylist())


class Writer:
    """A producer that behaves: it repeats what was not answered, aborts after a refusal, and takes a new epoch when it is fenced."""

    def __init__(self, world: World, version: int) -> None:
        self.world = world
        self.version = version
        self.name = f"writer-{version}"
        self.serial = 0
        self.past: list[ProducerIdentity] = []
        self.start()

    def start(self) -> None:
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=TIMEOUT_MS)
        for _ in range(ATTEMPTS):
            answer = self.world.client.ask(request)
            if answer.error_code == 0:
                break
            assert answer.error_code == 51
            self.world.cluster.advance(1000)
        self.take(ProducerIdentity(answer.producer_id, answer.producer_epoch))

    def take(self, identity: ProducerIdentity) -> None:
        self.identity = identity
        self.sequences = dict.fromkeys(range(PARTITIONS), 0)
        self.begin()

    def begin(self) -> None:
        self.values: list[bytes] = []
        self.added: set[int] = set()
        self.is_lost = False

    def write(self, partition: int) -> None:
        self.serial += 1
        value = b"%s %d" % (self.name.encode(), self.serial)
        code = self.send(self.identity, self.sequences[partition], partition, value)
        if code == 0:
            self.sequences[partition] += 1
            self.values.append(value)
        else:
            self.is_lost = True

    def send(self, identity: ProducerIdentity, sequence: int, partition: int, value: bytes) -> int:
        if self.version == 1 and partition not in self.added:
            topics = [AddPartitionsToTxnTopic(name="orders", partitions=[partition])]
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=identity.producer_id,
                v3_and_below_producer_epoch=identity.epoch,
                v3_and_below_topics=topics,
            )
            code: int = self.world.client.ask(request).results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            if code:
                return code
            self.added.add(partition)
        records = batch_of(value, identity=identity, sequence=sequence, transactional=True)
        version = 12 if self.version == 2 else 11
        return self.world.client.produce("orders", records, partition=partition, txn=self.name, version=version).error_code

    def end(self, commit: bool) -> None:
        commit = commit and not self.is_lost and bool(self.values)
        code, following = self.ask_end(self.identity, commit)
        if code == 0:
            self.world.committed.update(self.values if commit else [])
            self.past.append(self.identity)
            if following is not None:
                self.take(following)
            self.begin()
        elif self.version == 2 and commit:
            assert code in (48, 90), "timed out: aborted already, or a newer producer is there"
            self.end(False)
        else:
            assert code in (48, 90)
            self.start()

    def ask_end(self, identity: ProducerIdentity, commit: bool) -> tuple[int, ProducerIdentity | None]:
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=identity.producer_id, producer_epoch=identity.epoch, committed=commit
        )
        for _ in range(ATTEMPTS):
            try:
                answer = self.world.client.ask(request, 5 if self.version == 2 else 4)
            except Interrupted:
                self.world.restart()
                continue
            if answer.error_code not in (16, 51):
                break
            self.world.cluster.file_system.hook = None
            self.world.cluster.advance(1000)
        self.world.cluster.file_system.hook = None
        is_new = answer.error_code == 0 and self.version == 2
        return answer.error_code, ProducerIdentity(answer.producer_id, answer.producer_epoch) if is_new else None

    def haunt(self, partition: int) -> None:
        """A request of an earlier identity arrives late: it writes nothing, and ends nothing of the newer one's.

        Not always refused: while the marker waits for the disk, it may pass for a repetition of what is stored.
        """
        for identity in set(self.past) - {self.identity}:
            log = self.world.cluster.partition("orders", partition).log
            end_offset = log.log_end_offset
            self.send(identity, 0, partition, b"late")
            assert log.log_end_offset == end_offset
            self.ask_end(identity, True)


def fails_at(operation_index: int, error: Callable[[str, int], BaseException]) -> Callable[[str, str, int], None]:
    countdown = [operation_index]

    def fail(operation: str, path: str, size: int) -> None:
        if operation == "append":
            countdown[0] -= 1
            if countdown[0] < 0:
                raise error(path, size)

    return fail


OPERATIONS = st.one_of(
    st.tuples(st.just("write"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("end"), st.booleans()),
    st.tuples(st.just("end, killed"), st.integers(0, 5)),
    st.tuples(st.just("end, disk full"), st.integers(0, 5)),
    st.tuples(st.sampled_from(["start", "restart", "late", "haunt"]), st.just(0)),
)


def do(world: World, writer: Writer, operation: str, argument: int) -> None:
    hooks: dict[str, Callable[[], Callable[[str, str, int], None]]] = {
        "end, killed": lambda: fails_at(argument, lambda path, size: Interrupted(size // 2)),
        "end, disk full": lambda: fails_at(argument, lambda path, size: StorageError(path, "append to", "no space left")),
    }
    if operation == "write":
        writer.write(argument)
    elif operation == "end":
        writer.end(bool(argument))
    elif operation in hooks:
        world.cluster.file_system.hook = hooks[operation]()
        writer.end(True)
    elif operation == "late":
        world.cluster.advance(TIMEOUT_MS)
    else:
        others: dict[str, Callable[[], object]] = {"start": writer.start, "restart": world.restart, "haunt": lambda: writer.haunt(0)}
        others[operation]()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), OPERATIONS), max_size=25))
def test_committed_records_are_those_acknowledged(history: list[tuple[int, tuple[str, int]]]) -> None:
    world = World()
    writers = [Writer(world, version) for version in (1, 2)]
    for index, (operation, argument) in history:
        writer = writers[index]
        if operation == "start":
            writer.past.append(writer.identity)
        do(world, writer, operation, argument)
    for writer in writers:
        writer.start()
    world.cluster.advance(2000)
    assert world.visible() == world.committed
    for partition in range(PARTITIONS):
        log = world.cluster.partition("orders", partition).log
        assert log.ongoing_transactions() == []
        assert log.last_stable_offset == log.log_end_offset
