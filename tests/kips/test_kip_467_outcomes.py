"""KIP-467 to the end: the fates of the tables' records with a real broker in the place of scripted answers.

Here with the broker of this package, in `make interop` with Apache Kafka: the same rows, the same ends. What was sent in between is
the business of the tables themselves (`test_kip_467_client.py` and its neighbours).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.errors import (
    ApiException,
    InvalidCompactionKeyException,
    InvalidTimestampException,
    Stored,
    TransactionAbortableException,
)
from tests.kips import test_kip_467_client, test_kip_467_client_in_flight

LATEST_S = 60
COUNT = 100
FAR_FUTURE_MS = 4_102_444_800_000
COMPACTED, PLAIN = {"cleanup.policy": "compact"}, {"cleanup.policy": "delete"}
NO_KEY, LATE = "InvalidCompactionKeyException no", "InvalidTimestampException no"

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config={"auto.create.topics.enable": False}) as running:
        yield running


@pytest.fixture
def compacted(broker: EmbeddedBroker) -> str:
    return made(broker, COMPACTED)


def made(broker: EmbeddedBroker, config: dict[str, str]) -> str:
    """A new topic of one partition."""
    name = f"outcomes-{next(_numbers)}"
    broker.create_topic(name, 1, config=config)
    return name


class Kind(NamedTuple):
    """What is wrong with a culprit: its topic's configuration, its own fields, and its error."""

    config: dict[str, str]
    fields: dict[str, Any]
    error: type[ApiException]


KINDS = {
    "null key": Kind(COMPACTED, {"key": None}, InvalidCompactionKeyException),
    "timestamp": Kind(PLAIN, {"timestamp_ms": FAR_FUTURE_MS}, InvalidTimestampException),
}
CULPRIT_INDICES: dict[str, Sequence[int]] = {
    "none": (),
    "one": (50,),
    "first and last": (0, 99),
    "several": (3, 50, 51, 97),
    "all": range(COUNT),
}
IN_ONE_BATCH: dict[str, Any] = {"linger_ms": 1_000}
SEVERAL_BATCHES = {"batch_size": 1_000, "linger_ms": 0}
OPTIONS: dict[str, dict[str, Any]] = {
    "one batch": IN_ONE_BATCH,
    "five in flight": {**SEVERAL_BATCHES, "max_in_flight_requests_per_connection": 5},
    "one in flight": {**SEVERAL_BATCHES, "max_in_flight_requests_per_connection": 1},
    "each alone": {"batch_size": 1, "linger_ms": 0},
    "without idempotence": {**IN_ONE_BATCH, "enable_idempotence": False},
    "acks=1": {**SEVERAL_BATCHES, "acks": "1", "max_in_flight_requests_per_connection": 1},
    **{codec: {**IN_ONE_BATCH, "compression_type": codec} for codec in ("gzip", "snappy", "lz4", "zstd")},
}


def send_all(producer: Producer, topic: str, kind: Kind, culprits: Sequence[int]) -> list[BaseException | int]:
    """Each record's error, or its offset."""
    futures = [
        producer.send(topic, b"%d" % number, **{"key": f"key-{number}", **(kind.fields if number in culprits else {})})
        for number in range(COUNT)
    ]
    producer.flush(LATEST_S)
    return [future.exception(0) or future.result(0).offset for future in futures]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("culprits", CULPRIT_INDICES.values(), ids=CULPRIT_INDICES.keys())
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_innocents_arrive_once_and_in_order(broker: EmbeddedBroker, kind: Kind, culprits: Sequence[int], options: dict[str, Any]) -> None:
    topic = made(broker, kind.config)
    with Producer(bootstrap_servers=broker.bootstrap_servers, **options) as producer:
        fates = send_all(producer, topic, kind, culprits)
    innocents = [number for number in range(COUNT) if number not in culprits]
    assert broker.read(topic).column("value").to_pylist() == [b"%d" % number for number in innocents]
    assert [fates[number] for number in innocents] == broker.read(topic).column("offset").to_pylist()
    for number in culprits:
        error = fates[number]
        assert type(error) is kind.error
        assert error.stored is Stored.NO
        assert [culprit.code for culprit in error.culprits] == [error.code]
        assert f"(key 'key-{number}')" in error.message if kind.config is PLAIN else "(no key)" not in error.message


class TestInTransactions:
    """A culprit aborts its transaction, whatever is in flight; the next one is whole (decision 16)."""

    @pytest.mark.parametrize("options", [IN_ONE_BATCH, SEVERAL_BATCHES], ids=["one batch", "five in flight"])
    @pytest.mark.parametrize(
        "culprits", [CULPRIT_INDICES["one"], CULPRIT_INDICES["several"], CULPRIT_INDICES["all"]], ids=["one", "several", "all"]
    )
    def test_culprit_aborts_its_transaction(
        self, broker: EmbeddedBroker, compacted: str, culprits: Sequence[int], options: dict[str, Any]
    ) -> None:
        kind = KINDS["null key"]
        with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=compacted, **options) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            fates = self._fates(producer, compacted, culprits)
            with pytest.raises(InvalidCompactionKeyException):
                producer.commit_transaction()
            producer.abort_transaction()
            failed = {type(fate) for number, fate in enumerate(fates) if number in culprits and not isinstance(fate, int)}
            assert InvalidCompactionKeyException in failed <= {InvalidCompactionKeyException, TransactionAbortableException}
            others = [fate for number, fate in enumerate(fates) if number not in culprits]
            assert all(isinstance(fate, int | TransactionAbortableException) for fate in others)
            with producer.transaction():
                whole = send_all(producer, compacted, kind, ())
            assert not [fate for fate in whole if not isinstance(fate, int)]
        assert broker.read(compacted).column("value").to_pylist() == [b"%d" % number for number in range(COUNT)]

    @staticmethod
    def _fates(producer: Producer, topic: str, culprits: Sequence[int]) -> list[Any]:
        """Once a culprit is known, `send` itself says so."""
        fates: list[Any] = []
        for number in range(COUNT):
            fates.append(producer.send(topic, b"%d" % number, key=None if number in culprits else f"key-{number}"))
        producer.flush(LATEST_S)
        return [future.exception(0) or future.result(0).offset for future in fates]


class FromTable(NamedTuple):
    """A scenario of the tables: the records in their order, which are at fault, what becomes of each."""

    name: str
    records: str
    culprits: str
    fates: list[str]


SCRIPTED = ("no culprit", "one culprit", "first and last", "all are culprits", "a single record", "one in each round", "timestamps")
SCRIPTED_IN_FLIGHT = (
    "a culprit in the first",
    "a culprit in the second",
    "a culprit in the last",
    "a culprit in each",
    "all of the first are culprits",
    "a broker that names one at a time",
)


def from_tables() -> Iterator[FromTable]:
    """Scenarios that a broker plays by itself; the refused records are its culprits. Those in flight follow an acknowledged `z`."""
    for one in test_kip_467_client.SCENARIOS:
        if one.name in SCRIPTED:
            yield FromTable(one.name, one.records, _refused(one.records, one.fates), one.fates)
    for two in test_kip_467_client_in_flight.SCENARIOS:
        if two.name in SCRIPTED_IN_FLIGHT:
            records = two.batches.replace(" ", "")
            yield FromTable(two.name, f"z{records}", _refused(records, two.fates), ["0", *two.fates])


def _refused(records: str, fates: list[str]) -> str:
    return "".join(record for record, fate in zip(records, fates, strict=True) if "Exception" in fate)


ROWS = list(from_tables())


def test_every_scenario_is_found_in_its_table() -> None:
    assert [row.name for row in ROWS] == [*SCRIPTED, *SCRIPTED_IN_FLIGHT]


@pytest.mark.parametrize("options", [IN_ONE_BATCH, {"batch_size": 1}], ids=["one batch", "five in flight"])
@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_scenario_has_the_fates_of_its_table(broker: EmbeddedBroker, compacted: str, row: FromTable, options: dict[str, Any]) -> None:
    """The fates of the table; in place of its INVALID_RECORD, which no client can bring about, a null key."""
    is_late = LATE in row.fates
    at_fault: dict[str, Any] = {"key": "k", "timestamp_ms": FAR_FUTURE_MS} if is_late else {"key": None}
    with Producer(bootstrap_servers=broker.bootstrap_servers, **options) as producer:
        futures = [producer.send(compacted, record, **(at_fault if record in row.culprits else {"key": "k"})) for record in row.records]
        producer.flush(LATEST_S)
    assert [_fate(future) for future in futures] == [LATE if fate == LATE else NO_KEY if "E" in fate else fate for fate in row.fates]
    kept = [record.encode() for record in row.records if record not in row.culprits]
    assert broker.read(compacted).column("value").to_pylist() == kept


def _fate(future: Any) -> str:
    error = future.exception(0)
    return str(future.result(0).offset) if error is None else f"{type(error).__name__} {error.stored.value}"


def test_each_record_of_one_batch_has_its_own_error(broker: EmbeddedBroker, compacted: str) -> None:
    """One code travels for all of them, and each record has its own error."""
    fields: list[dict[str, Any]] = [{"key": "k"}, {"key": None}, {"key": "k", "timestamp_ms": FAR_FUTURE_MS}, {"key": None}, {"key": "k"}]
    with Producer(bootstrap_servers=broker.bootstrap_servers, **IN_ONE_BATCH) as producer:
        futures = [producer.send(compacted, b"v", **each) for each in fields]
        producer.flush(LATEST_S)
    assert [_fate(future) for future in futures] == ["0", NO_KEY, LATE, NO_KEY, "1"]
