"""Decision 13 to the end: a batch that a real broker refuses, after attempts whose answers were late, lost, unclear, or clear.

The rows are those of `test_kip_467_client.py`. Here with the broker of this package, in `make interop` with Apache Kafka and a proxy before
it that spoils the answers to the first attempts; the refusal is the broker's own. What is in the log is read by librdkafka there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.errors import (
    Group,
    InvalidCompactionKeyException,
    InvalidRecordException,
    KafkaException,
    RecordTooLargeException,
    Stored,
    TransactionAbortableException,
    codes,
    group_of,
)
from tests.kips.test_kip_467_client import FATES, UNCLEAR
from tests.producer.core.rig import LOST, NOT_SENT, TIMED_OUT, Answer

LATEST_S = 60
REQUEST_MS = 1_500  # Apache Kafka on a busy machine stores what came within this time; it is what the attempt without an answer waits.
LATE_MS = 60_000
VALUE_BYTES = 700
COMPACTED, PLAIN = {"cleanup.policy": "compact"}, {"cleanup.policy": "delete"}
TWO_FIT = {"max.message.bytes": str(2 * VALUE_BYTES + 300)}
A, B, C, D = (letter * VALUE_BYTES for letter in (b"a", b"b", b"c", b"d"))

# What never left is no business of a broker. A connection is lost before or after the broker has done its work.
ROWS = [
    pytest.param(fate.before, lost, fate.is_resent, id=f"{fate.name}, {lost}" if LOST in fate.before else fate.name)
    for fate in FATES
    if NOT_SENT not in fate.before
    for lost in (("drop_before", "drop_after") if LOST in fate.before else ("",))
]
EACH_ROW = pytest.mark.parametrize(("before", "lost", "is_resent"), ROWS)

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config={"auto.create.topics.enable": False}) as running:
        yield running


class Scene:
    """A topic of one partition, and a producer that sends in one batch what it is given at once."""

    def __init__(self, broker: EmbeddedBroker, config: dict[str, str], before: Sequence[Answer | str] = (), lost: str = "", **more: Any):
        self.topic = f"fates-{next(_numbers)}"
        self._broker = broker
        broker.create_topic(self.topic, 1, config=config)
        options = {"linger_ms": 1_000, "retry_backoff_ms": 10, "client_id": self.topic, "acks": "all", **more}
        if TIMED_OUT in before:
            options["request_timeout_ms"] = REQUEST_MS
        if "transactional_id" in options:
            options["transactional_id"] = self.topic
        self.producer = Producer(bootstrap_servers=broker.bootstrap_servers, **options)
        for answer in before:
            self.spoil(answer, lost)

    def spoil(self, answer: Answer | str, lost: str = "drop_after") -> None:
        """What becomes of the next attempt that nothing has become of yet."""
        if isinstance(answer, Answer):
            what: dict[str, Any] = {"error": answer.code.name}
        else:
            what = {"action": "delay", "delay_ms": LATE_MS} if answer == TIMED_OUT else {"action": lost}
        self._broker.faults.add(api="Produce", client_id=self.topic, **what)

    def send(self, *values: bytes, without_key: bytes = b"") -> list[Any]:
        """Each record's offset, or its error."""
        futures = [self.producer.send(self.topic, value, key=None if value == without_key else b"k") for value in values]
        self.producer.flush(LATEST_S)
        assert not self._broker.faults.list(), "every attempt was made"
        return [future.exception(0) or future.result(0).offset for future in futures]

    def values(self, **more: Any) -> list[bytes]:
        found: list[bytes] = self._broker.read(self.topic, **more).column("value").to_pylist()
        return found

    def go_on_after(self, error: type[KafkaException]) -> None:
        """The commit is refused for this; after an abort the next transaction is whole, and is all that is read."""
        with pytest.raises(error):
            self.producer.commit_transaction()
        self.producer.abort_transaction()
        self.producer.begin_transaction()
        self.send(D)
        self.producer.commit_transaction()
        assert self.values() == [D]


Make = Callable[..., Scene]


@pytest.fixture
def scene(broker: EmbeddedBroker) -> Iterator[Make]:
    made: list[Scene] = []

    def make(*arguments: Any, **more: Any) -> Scene:
        made.append(Scene(broker, *arguments, **more))
        return made[-1]

    yield make
    for each in made:
        each.producer.close()


def check_unclear(error: Any, cause: type[KafkaException]) -> None:
    """An innocent: it is unknown whether it is stored, and the refusal is only the cause."""
    assert (error.stored, error.code in UNCLEAR) == (Stored.POSSIBLY, True)
    assert group_of(error) in (Group.RETRIABLE, Group.REFRESH_RETRIABLE)
    assert isinstance(error.__cause__, cause)
    assert "unknown" in error.message


@EACH_ROW
def test_innocents_are_resent_only_if_surely_not_stored(scene: Make, before: list[Answer | str], lost: str, is_resent: bool) -> None:
    one = scene(COMPACTED, before, lost)
    a, b, c = one.send(A, B, C, without_key=B)
    assert type(b) is InvalidCompactionKeyException
    assert group_of(b) is Group.INVALID_CONFIGURATION
    if is_resent:
        assert (a, b.stored, c) == (0, Stored.NO, 1)
    else:
        assert b.stored is Stored.POSSIBLY
        for innocent in (a, c):
            check_unclear(innocent, InvalidRecordException)
    kept = [A, C] if is_resent else []
    assert one.send(D) == [len(kept)], "one bad record never kills a producer"
    assert one.values() == [*kept, D]


@EACH_ROW
def test_halves_are_resent_only_if_surely_not_stored(scene: Make, before: list[Answer | str], lost: str, is_resent: bool) -> None:
    one = scene(TWO_FIT, before, lost)
    found = one.send(A, B, C)
    if is_resent:
        assert found == [0, 1, 2]
    else:
        for error in found:
            assert not isinstance(error, RecordTooLargeException), "of none of them that is known"
            check_unclear(error, RecordTooLargeException)
    kept = [A, B, C] if is_resent else []
    assert one.send(D) == [len(kept)]
    assert one.values() == [*kept, D]


@EACH_ROW
def test_culprit_in_a_transaction_aborts_it(scene: Make, before: list[Answer | str], lost: str, is_resent: bool) -> None:
    """Whatever is known, the culprit ends it; the next one is whole, and is all that is read."""
    one = scene(COMPACTED, before, lost, transactional_id="its topic")
    one.producer.init_transactions()
    one.producer.begin_transaction()
    a, b, c = one.send(A, B, C, without_key=B)
    fate = Stored.NO if is_resent else Stored.POSSIBLY
    for innocent in (a, c):
        assert (type(innocent), innocent.stored) == (TransactionAbortableException, fate)
    assert (type(b), b.stored) == (InvalidCompactionKeyException, fate)
    one.go_on_after(InvalidCompactionKeyException)


class TestStoredThenRefused:
    """Why it is so: the answer that was lost said that they are stored. A refusal comes then, of which they know nothing."""

    @pytest.mark.parametrize("lost", [LOST, TIMED_OUT], ids=["connection lost", "time-out"])
    @pytest.mark.parametrize("refusal", ["INVALID_RECORD", "MESSAGE_TOO_LARGE"])
    def test_stored_records_are_possibly_stored_and_not_repeated(self, scene: Make, lost: str, refusal: str) -> None:
        one = scene(PLAIN, [lost], "drop_after")
        one.spoil(Answer(codes.by_name(refusal)))
        for error in one.send(A, B, C):
            assert error.stored is Stored.POSSIBLY
            assert isinstance(error, InvalidRecordException) is (refusal == "INVALID_RECORD")
            assert not isinstance(error, RecordTooLargeException)
        assert one.values() == [A, B, C]
        assert one.send(D) == [3]
        assert one.values() == [A, B, C, D]

    @pytest.mark.parametrize("lost", [LOST, TIMED_OUT], ids=["connection lost", "time-out"])
    def test_stored_then_refused_records_in_a_transaction_abort_it(self, scene: Make, lost: str) -> None:
        one = scene(PLAIN, [lost], "drop_after", transactional_id="its topic")
        one.spoil(Answer(codes.INVALID_RECORD))
        one.producer.init_transactions()
        one.producer.begin_transaction()
        assert {error.stored for error in one.send(A, B, C)} == {Stored.POSSIBLY}
        one.go_on_after(InvalidRecordException)
        assert one.values(isolation="read_uncommitted") == [A, B, C, D]

    def test_repeated_batch_returns_its_offsets(self, scene: Make) -> None:
        one = scene(PLAIN, [LOST], "drop_after")
        assert one.send(A, B, C) == [0, 1, 2]
        assert one.values() == [A, B, C]
