"""KIP-1050 to the end: each row of its tables as the answer to each request of a transaction, and what the application does then.

Here with the broker of this package, in `make interop` with Apache Kafka and a proxy before it that gives the one answer: the same rows,
the same ends. What is committed, records and the group's position, is what was acknowledged; librdkafka says so there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError
from confluent_kafka import TopicPartition as JudgedPartition
from confluent_kafka.admin import AdminClient

from chaffinch import EmbeddedBroker, Producer, TopicPartition, errors
from chaffinch.errors import Group, InvalidConfigurationException, KafkaException, TransactionAbortableException, group_of
from tests.kips.test_kip_1050 import ABSENT, BY_EXCEPTION, ROWS

pytestmark = pytest.mark.long

LATEST_S = 60
LOOKS_MAX = 99
RETRIABLE = (Group.RETRIABLE, Group.REFRESH_RETRIABLE)

_numbers = itertools.count()


class Column(NamedTuple):
    """A request of the producer in one transaction, which is answered with the error."""

    name: str
    api: str
    version: int = 2
    """Of transactions. In version 2 producers send no requests that add partitions and groups."""
    is_first: bool = False
    """The producer sends it once, before its first transaction."""
    finds: str = "FindCoordinator"
    """What the producer asks for again after an answer of the group REFRESH_RETRIABLE."""
    aborts: bool = False


PRODUCE = Column("Produce", "Produce", finds="Metadata")
OFFSETS = Column("TxnOffsetCommit", "TxnOffsetCommit")
ABORT = Column("EndTxn of an abort", "EndTxn", aborts=True)
FIND_GROUP = Column("FindCoordinator of the group", "FindCoordinator")
COLUMNS = [
    PRODUCE,
    Column("FindCoordinator", "FindCoordinator", is_first=True),
    Column("InitProducerId", "InitProducerId", is_first=True),
    Column("AddPartitionsToTxn", "AddPartitionsToTxn", version=1),
    Column("AddOffsetsToTxn", "AddOffsetsToTxn", version=1),
    FIND_GROUP,
    OFFSETS,
    Column("EndTxn", "EndTxn"),
    ABORT,
]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One row in one column: what the answer means there."""

    column: Column
    exception_name: str
    group: Group

    @property
    def clause(self) -> str | None:
        """Which `except` of the KIP's example catches it; None: the producer tries again, and the application gets no error."""
        if self.group in RETRIABLE:
            return None
        if self.column.aborts:  # "The producer.abortTransaction() method will not throw an abortable exception."
            return "restart"
        return {Group.TRANSACTION_ABORTABLE: "abort", Group.INVALID_CONFIGURATION: "stop"}.get(self.group, "restart")

    @property
    def error_class(self) -> type[KafkaException]:
        """Notes 4, 7 and 9 of the page, and that coordinators say INVALID_PRODUCER_EPOCH where they mean that a producer is fenced."""
        if self.column.aborts and self.group is not Group.APPLICATION_RECOVERABLE:
            return errors.UnknownServerException
        is_of_group = self.exception_name in ("UnknownMemberIdException", "IllegalGenerationException")
        if self.column is OFFSETS and is_of_group:
            return errors.CommitFailedException
        is_epoch = self.exception_name == "InvalidProducerEpochException"
        if is_epoch and self.column.api not in ("Produce", "FindCoordinator"):
            return errors.ProducerFencedException
        found: type[KafkaException] = getattr(errors, self.exception_name)
        return found

    @property
    def looks(self) -> int:
        """How often the producer asks for what the column `finds`: once before its first request, and again for REFRESH_RETRIABLE. No
        leader is wrong because of a coordinator."""
        asks_again = self.group is Group.REFRESH_RETRIABLE and (self.column is not PRODUCE or "Coordinator" not in self.exception_name)
        return self.column.is_first + asks_again


CELLS = [
    Cell(column=column, exception_name=name, group=group)
    for column in COLUMNS
    for name, produce, transaction in ROWS
    if (group := produce if column is PRODUCE else transaction) is not ABSENT
]


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config={"auto.create.topics.enable": False, "transaction.version": request.param}) as running:
        yield running


@pytest.fixture(scope="module")
def judge(broker: EmbeddedBroker) -> AdminClient:
    """librdkafka's, which knows nothing of our producer."""
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, "client.id": "judge", "log_level": 0})


class Application:
    """The loop of the KIP's example, a step at a time. Each transaction writes one record and the group's next position."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.name = f"row-{next(_numbers)}"
        """Of its topic, transactional id, group and client."""
        broker.create_topic(self.name, 1)
        self.committed: list[bytes] = []
        self.position = 0
        """What was acknowledged."""
        self._tries = 0
        self._make = partial(
            Producer,
            bootstrap_servers=broker.bootstrap_servers,
            client_id=self.name,
            transactional_id=self.name,
            linger_ms=0,
            retry_backoff_ms=10,
        )
        self.producer = self._make()

    def start(self) -> None:
        self.producer.init_transactions()

    def transaction(self, value: bytes, *, with_offsets: bool = True, aborts: bool = False) -> None:
        self._tries += 1
        self.producer.begin_transaction()
        record = self.producer.send(self.name, value)
        failure = record.exception(LATEST_S)
        if failure is not None:
            # An application that does not look at each record gets the error from the commit.
            with pytest.raises(type(failure)):
                self.producer.commit_transaction()
            raise failure
        if with_offsets:
            self.producer.send_offsets_to_transaction({TopicPartition(self.name, 0): self._tries}, self.name)
        if aborts:
            self.producer.abort_transaction()
            return
        self.producer.commit_transaction()
        self.committed.append(value)
        self.position = self._tries if with_offsets else self.position

    def go_on(self, error: KafkaException, *, has_begun: bool) -> str:
        """What the example does about it; the clause that it was caught in."""
        is_abortable = isinstance(error, TransactionAbortableException)
        if is_abortable or isinstance(error, InvalidConfigurationException):
            # The configuration is corrected by now; the producer stays usable. Before the first transaction nothing is to be aborted.
            self.producer.abort_transaction() if has_begun else self.producer.init_transactions()
            return "abort" if is_abortable else "stop"
        self._is_over()
        self.producer.close()
        self.producer = self._make()
        self.producer.init_transactions()
        return "restart"

    def _is_over(self) -> None:
        """Whatever is called says so; an abort too, in the group that does not ask for an abort."""
        for call in (self.producer.begin_transaction, self.producer.commit_transaction, self.producer.abort_transaction):
            with pytest.raises(KafkaException) as raised:
                call()
            assert group_of(raised.value) is Group.APPLICATION_RECOVERABLE


@pytest.fixture
def application(broker: EmbeddedBroker) -> Iterator[Application]:
    made = Application(broker)
    yield made
    broker.faults.clear()
    made.producer.close()


@pytest.mark.parametrize(
    ("broker", "cell"),
    [pytest.param(cell.column.version, cell, id=f"{cell.column.name}-{cell.exception_name}") for cell in CELLS],
    indirect=["broker"],
)
def test_response_decides_what_the_application_does(
    broker: EmbeddedBroker, judge: AdminClient, application: Application, cell: Cell
) -> None:
    column = cell.column
    if not column.is_first:
        application.start()
        application.transaction(b"before", with_offsets=column is not FIND_GROUP)
    looks_it_up = column.finds != column.api
    if looks_it_up:  # A rule that does nothing but count.
        broker.faults.add(api=column.finds, action="delay", delay_ms=0, count=LOOKS_MAX, client_id=application.name)
    broker.faults.add(api=column.api, error=BY_EXCEPTION[cell.exception_name].name, client_id=application.name)

    error = error_of(application.start if column.is_first else partial(application.transaction, b"hit", aborts=column.aborts))
    clause = None
    if error is not None:
        assert isinstance(error, cell.error_class)
        assert group_of(error) is (Group.APPLICATION_RECOVERABLE if column.aborts else cell.group)
        clause = application.go_on(error, has_begun=not column.is_first)
    assert clause == cell.clause
    left = {fault["api"]: fault["count"] for fault in broker.faults.list()}
    assert column.api not in left, "the request was made"
    if clause is None and looks_it_up:
        assert LOOKS_MAX - left[column.finds] == cell.looks
    if application.position:  # Else the group has never been asked for anything.
        assert position(judge, application.name) == application.position

    application.transaction(b"next")
    is_done = clause is None and not column.is_first and not column.aborts
    assert application.committed == [b"before"] * (not column.is_first) + [b"hit"] * is_done + [b"next"]
    assert broker.read(application.name).column("value").to_pylist() == application.committed
    assert position(judge, application.name) == application.position > 0


def test_page_states_the_number_of_cells() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "kips" / "1050.md"
    assert f": {len(CELLS)} cells." in page.read_text(encoding="utf-8")


def error_of(call: Callable[[], None]) -> KafkaException | None:
    """What a call raises."""
    try:
        call()
    except KafkaException as error:
        return error
    return None


def position(judge: AdminClient, name: str) -> int:
    """Where the group goes on, as soon as nothing is open that could change it."""
    asked = ConsumerGroupTopicPartitions(name, [JudgedPartition(name, 0)])
    while True:  # A transaction may have ended a moment before the group has the marker.
        (answer,) = judge.list_consumer_group_offsets([asked], require_stable=True).values()
        (place,) = answer.result(LATEST_S).topic_partitions
        if place.error is None:
            return int(place.offset)
        assert place.error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT
