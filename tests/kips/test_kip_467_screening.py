"""KIP-467, 3.b.ii, for tables: after a broker refused records without a key, their like fail without being sent; batches go once.

Each scenario is a table: what was handed over and when, what the broker answered, what was sent (values@base sequence/epoch), and the
fate of every record: its offset, `refused` by the broker, or `screened`. Capital letters have no key.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from chaffinch.errors import InvalidCompactionKeyException, Stored, codes
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core import events
from chaffinch.producer.core.exception_handler import NonRetriableResponse
from chaffinch.producer.core.refusals.screening import PROBE_AFTER_MS, SCREEN_MS_MAX, UNSCREENED_INTERVAL_MS
from tests.producer.core.rig import LOST, OK, ORDERS_0, ORDERS_1, RETURNS_0, Answer, Batch, Rig, _batch, _tps

NO_KEY = codes.INVALID_COMPACTION_KEY
LATER_MS = SCREEN_MS_MAX - PROBE_AFTER_MS


def refused(*indices: int) -> Answer:
    """Records without a key on a compacted topic."""
    return Answer(codes.INVALID_RECORD, [(index, NO_KEY) for index in indices], message="null key")


GAP = Answer(codes.OUT_OF_ORDER_SEQUENCE_NUMBER)


class Table(NamedTuple):
    """Ready-made batches, handed over at once; a millisecond later they may be sent."""

    batches: tuple[str, ...]
    tp: TopicPartition = ORDERS_0
    passes_ms: int = 1


def table(*batches: str, **more: Any) -> Table:
    return Table(batches, **more)


class Sent(NamedTuple):
    """Records of `send`, one batch."""

    values: str


Step = Table | Sent | int | Answer | str


class Scenario(NamedTuple):
    """`steps`: what is handed over, how long nothing happens (ms), and the answer to the oldest open request, in order."""

    name: str
    steps: list[Step]
    sent: list[str]
    fates: dict[str, str]
    rig: dict[str, Any] = {}  # noqa: RUF012 - only read


def play(rig: Rig, steps: list[Any]) -> None:
    for step in steps:
        match step:
            case Table():
                rig.step(events.TopicRequested(topic=step.tp.topic))
                rig.hand_over(*step.batches, tp=step.tp)
                rig.steady_ms += step.passes_ms
                rig.step(events.TimePassed())
            case Sent():
                rig.send(step.values)
            case int():
                rig.sleep(step)
            case _:
                rig.answer(step)


def fates(rig: Rig) -> dict[str, str]:
    """Of every record, in the order of the alphabet; those with one fate together."""
    screened_or_written: dict[str, str] = {}
    for value in sorted(rig.fates, key=str.lower):
        fate = rig._fate(value)
        if isinstance(rig.fates[value], InvalidCompactionKeyException):
            fate = "screened" if "was not sent" in rig.error(value).message else "refused"
        screened_or_written[value] = fate
    return screened_or_written


def written(*runs: str, **others: str) -> dict[str, str]:
    """The fates of records: in each of `runs`, of one partition, those written, from offset 0 on, and those of the others."""
    return {**{value: "0" for run in runs for value in run}, **others}


FIRST: list[Step] = [table("aBc", "dEf"), refused(1)]
ONE_IN_FLIGHT: dict[str, Any] = {"options": {"max.in.flight.requests.per.connection": 1}}
IN_HANDLER: dict[str, Any] = {"handler_responses": {"B": NonRetriableResponse.SWALLOW, "E": NonRetriableResponse.SWALLOW}}

# fmt: off
SCENARIOS = [
    Scenario("the next batch goes without its like", [*FIRST, OK, OK], ["aBc@0/0", "ac@0/0", "df@2/0"],
             written("acdf", B="refused", E="screened")),
    Scenario("a batch without them goes as it is", [table("aBc", "def"), refused(1), OK, OK], ["aBc@0/0", "ac@0/0", "def@2/0"],
             written("acdef", B="refused")),
    Scenario("one of nothing else is not sent", [table("aBc", "DE", "F", "gh"), refused(1), OK, OK], ["aBc@0/0", "ac@0/0", "gh@2/0"],
             written("acgh", B="refused", D="screened", E="screened", F="screened")),
    Scenario("nor are the last ones", [table("AB", "CD"), refused(0, 1)], ["AB@0/0"],
             written(A="refused", B="refused", C="screened", D="screened")),
    Scenario("compressed ones too", [*FIRST, OK, OK], ["aBc@0/0", "ac@0/0", "df@2/0"],
             written("acdf", B="refused", E="screened"), {"options": {"compression.type": "gzip"}}),
    Scenario("without idempotence", [*FIRST, OK, OK], ["aBc", "ac", "df"],
             written("acdf", B="refused", E="screened"),
             {"options": {**ONE_IN_FLIGHT["options"], "enable.idempotence": False}}),
    # By a refusal of what left after it was handed over, and no other.
    Scenario("handed over later", [table("aBc"), table("dEf"), refused(1), OK, refused(1), OK],
             ["aBc@0/0", "ac@0/0", "dEf@2/0", "df@2/0"], written("acdf", B="refused", E="refused")),
    Scenario("in the same moment", [table("aBc", "dEf", passes_ms=0), refused(1), OK, refused(1), OK],
             ["aBc@0/0", "ac@0/0", "dEf@2/0", "df@2/0"], written("acdf", B="refused", E="refused")),
    Scenario("when the first attempt had left", [table("aBc"), Answer(codes.NOT_LEADER_OR_FOLLOWER), table("dEf"), 200, refused(1), OK, OK],
             ["aBc@0/0", "aBc@0/0", "ac@0/0", "df@2/0"], written("acdf", B="refused", E="screened")),
    # For a limited time, during which the broker is asked again.
    Scenario("just in time", [table("aBc", "dEf"), PROBE_AFTER_MS - 1, refused(1), OK, OK],
             ["aBc@0/0", "ac@0/0", "df@2/0"], written("acdf", B="refused", E="screened")),
    Scenario("too late", [table("aBc", "dEf"), SCREEN_MS_MAX, refused(1), OK, refused(1), OK],
             ["aBc@0/0", "ac@0/0", "dEf@2/0", "df@2/0"], written("acdf", B="refused", E="refused")),
    Scenario("one asks, the others do not wait",
             [table("aBc", "dEf", "gHi"), refused(1), PROBE_AFTER_MS, OK, refused(1), GAP, OK, OK],
             ["aBc@0/0", "ac@0/0", "dEf@2/0", "gi@5/0", "df@2/0", "gi@4/0"], written("acdfgi", B="refused", E="refused", H="screened")),
    Scenario("the one that asks gets another answer", [table("aBc", "dEf", "gHi"), refused(1), PROBE_AFTER_MS, OK, OK, OK],
             ["aBc@0/0", "ac@0/0", "dEf@2/0", "gHi@5/0"], written("acdEfgHi", B="refused"), ONE_IN_FLIGHT),
    Scenario("no answer to who asks", [table("aBc", "dEf", "gHi", "jKl"), refused(1), PROBE_AFTER_MS, LATER_MS, OK, OK, OK, OK],
             ["aBc@0/0", "ac@0/0", "dEf@2/0", "gHi@5/0", "jKl@8/0"], written("acdEfgHijKl", B="refused")),
    Scenario("what was screened asks for no more time", [table("aBc", "dEf"), refused(1), 400, OK, OK, table("gHi"), 200, OK],
             ["aBc@0/0", "ac@0/0", "df@2/0", "gHi@4/0"], written("acdfgHi", B="refused", E="screened")),
    # Only what a broker says, and only of what it says that of.
    Scenario("another reason", [table("aBc", "dEf"), Answer(codes.INVALID_TIMESTAMP, [(1, codes.INVALID_TIMESTAMP)]), OK, OK],
             ["aBc@0/0", "ac@0/0", "dEf@2/0"], written("acdEf", B="InvalidTimestampException no")),
    Scenario("two reasons", [table("aBc", "dEf"), Answer(codes.INVALID_TIMESTAMP, [(0, codes.INVALID_TIMESTAMP), (1, NO_KEY)]), OK, OK],
             ["aBc@0/0", "c@0/0", "df@1/0"], written("cdf", a="InvalidTimestampException no", B="refused", E="screened")),
    Scenario("another reason, of a batch where all have keys",
             [table("aBc", "def", "gHi"), refused(1), OK, Answer(codes.INVALID_TIMESTAMP, [(0, codes.INVALID_TIMESTAMP)]), OK, OK],
             ["aBc@0/0", "ac@0/0", "def@2/0", "ef@2/0", "gi@4/0"],
             written("acefgi", B="refused", d="InvalidTimestampException no", H="screened"), ONE_IN_FLIGHT),
    Scenario("two reasons, one at a time",
             [table("aBc", "dEf"), Answer(codes.INVALID_TIMESTAMP, [(0, codes.INVALID_TIMESTAMP)]), refused(0), OK, OK],
             ["aBc@0/0", "Bc@0/0", "c@0/0", "df@1/0"], written("cdf", a="InvalidTimestampException no", B="refused", E="screened")),
    Scenario("a batch that is too large has it in one half",
             [table("aBcd", "eFg"), Answer(codes.MESSAGE_TOO_LARGE), refused(1), OK, OK, OK],
             ["aBcd@0/0", "aB@0/0", "a@0/0", "cd@1/0", "eg@3/0"], written("acdeg", B="refused", F="screened")),
    Scenario("a record with a key is blamed", [table("aBc", "dEf"), refused(0, 1), OK, OK], ["aBc@0/0", "c@0/0", "dEf@1/0"],
             written("cdEf", a="refused", B="refused")),
    Scenario("another one instead", [table("aBc", "dEf"), refused(0), OK, OK], ["aBc@0/0", "Bc@0/0", "dEf@2/0"],
             written("BcdEf", a="refused")),
    Scenario("one of two", [table("aBC", "dEf"), refused(1), OK, OK], ["aBC@0/0", "aC@0/0", "dEf@2/0"],
             written("aCdEf", B="refused")),
    Scenario("an index beyond the batch", [table("aBc", "dEf"), refused(1, 7), 1, OK], ["aBc@0/0", "dEf@0/1"],
             written("dEf", a="InvalidRecordException no", B="InvalidRecordException no", c="InvalidRecordException no")),
    Scenario("no record is named", [table("AB", "dEf"), Answer(codes.INVALID_RECORD), OK], ["AB@0/0", "dEf@0/1"],
             written("dEf", A="InvalidRecordException no", B="InvalidRecordException no")),
    Scenario("a later refusal does not name them",
             [table("aBc", "dEf", "gHi"), refused(1), PROBE_AFTER_MS, OK,
              Answer(codes.INVALID_TIMESTAMP, [(0, codes.INVALID_TIMESTAMP)]), GAP, OK, OK, table("jKl"), OK],
             ["aBc@0/0", "ac@0/0", "dEf@2/0", "gi@5/0", "Ef@2/0", "gi@4/0", "jKl@6/0"],
             written("acEfgijKl", B="refused", H="screened", d="InvalidTimestampException no")),
    Scenario("one code for all, and the topic is compacted", [table("aBc", "dEf"), Answer(codes.INVALID_RECORD, [1]), OK, OK],
             ["aBc@0/0", "ac@0/0", "df@2/0"], written("acdf", B="refused", E="screened"), {"configs": {"cleanup.policy": "compact"}}),
    Scenario("one code for all, and it is not", [table("aBc", "dEf"), Answer(codes.INVALID_RECORD, [1]), OK, OK],
             ["aBc@0/0", "ac@0/0", "dEf@2/0"], written("acdEf", B="InvalidRecordException no")),
    Scenario("a broker before 2.4 names no record", [table("aBc", "dEf"), Answer(codes.CORRUPT_MESSAGE), OK, OK],
             ["aBc@0/0", "ac@0/0", "dEf@2/0"], written("acdEf", B="refused"), {"configs": {"cleanup.policy": "compact"}}),
    Scenario("an earlier attempt may be stored", [table("aBc", "dEf"), LOST, 200, refused(1), OK],
             ["aBc@0/0", "aBc@0/0", "dEf@0/1"],
             written("dEf", a="NetworkException possibly", B="refused", c="NetworkException possibly")),
    # Where it is not done at all.
    Scenario("records of send", [Sent("a_c"), Sent("d"), refused(1), OK, OK], ["a_c@0/0", "ac@0/0", "d@2/0"],
             written("acd", _="refused")),
    Scenario("a handler gets each record", [*FIRST, OK, refused(1), OK], ["aBc@0/0", "ac@0/0", "dEf@2/0", "df@2/0"],
             written("acdf", B="dropped", E="dropped"), IN_HANDLER),
]
# fmt: on


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario_gives_requests_and_fates(scenario: Scenario) -> None:
    rig = Rig(**scenario.rig)
    free = rig.core.accumulator.memory_free
    play(rig, scenario.steps)
    assert rig.trace == scenario.sent
    screened_or_written = {value: "0" if fate.isdigit() else fate for value, fate in fates(rig).items()}
    assert screened_or_written == scenario.fates
    if not rig.open:
        assert rig.core.is_idle
        assert rig.core.accumulator.memory_free == free


class OtherPartition(NamedTuple):
    """Where else batches wait, and how many brokers there are; they lead partitions in turn."""

    name: str
    tp: TopicPartition
    nodes: int
    sent: str


OTHER_PARTITIONS = [
    OtherPartition("another partition of the same leader", ORDERS_1, 1, "df@3/0"),
    OtherPartition("another leader", ORDERS_1, 2, "dEf@3/0"),
    OtherPartition("another topic", RETURNS_0, 1, "dEf@3/0"),
]


@pytest.mark.parametrize("other", OTHER_PARTITIONS, ids=lambda other: other.name)
def test_refusal_applies_to_the_topic_at_its_broker(other: OtherPartition) -> None:
    """A refusal is the word of one broker about one topic."""
    rig = Rig(nodes=other.nodes)
    play(rig, [table("xyz", "dEf", tp=other.tp), table("aBc")])
    rig.answer(refused(1), request=1)
    rig.answer(OK)
    assert rig.trace == ["xyz@0/0", "aBc@0/0", "ac@0/0", other.sent]


def test_refusal_without_culprits_ends_screening_at_once() -> None:
    """Before any of them was written."""
    rig = Rig()
    play(rig, [table("uvw", "xYz", tp=ORDERS_1), table("aBc", "dEf")])
    rig.answer(refused(1), request=1)
    rig.sleep(PROBE_AFTER_MS)
    rig.answer(OK, request=1)
    rig.answer(Answer(codes.INVALID_TIMESTAMP, [(0, codes.INVALID_TIMESTAMP)]), request=1)
    rig.answer(OK)
    assert rig.trace == ["uvw@0/0", "aBc@0/0", "ac@0/0", "dEf@2/0", "Ef@2/0", "xYz@3/0"]


@pytest.mark.parametrize("rounds", [0, 1])
def test_batch_after_a_fully_screened_one_gets_its_full_request_size(rounds: int) -> None:
    """Whichever of two partitions is the first in that round: the room in it was counted for the batch that is not sent."""
    rig = Rig(options={**ONE_IN_FLIGHT["options"], "max.request.size": 250})
    play(rig, [table("aBc", "D", "efghijklmnopq"), refused(1), table("rstuvwxyz", tp=ORDERS_1)])
    for _ in range(rounds):
        rig.step(events.TimePassed())
    rig.answer(OK)
    assert rig.fates.keys() == set("BDac")
    assert [sent.token.size for sent in rig.open] in ([178], [142])
    rig.answer(OK)
    assert sorted(rig.trace[2:]) == ["efghijklmnopq@2/0", "rstuvwxyz@0/0"]


def test_new_leader_receives_records_without_key() -> None:
    rig = Rig(nodes=2)
    play(rig, [*FIRST, Answer(leader=(2, 1))])
    assert rig.trace[2] == "dEf@2/0"


def test_recreated_topic_receives_records_without_key() -> None:
    rig = Rig(topic_id=UUID(int=1))
    play(rig, FIRST)
    rig.topic_id = UUID(int=2)
    rig.step(events.TopicRequested(topic="orders", is_stale=True))
    rig.sleep(150)  # Metadata is not asked for twice in a moment.
    rig.answer(OK)
    assert rig.trace[2] == "dEf@2/0"


def test_first_culprit_aborts_the_transaction() -> None:
    rig = Rig(options={"transactional.id": "t"})
    for outcome in ("first", "second"):
        rig.call(events.InitTransactionsCalled, "init") if outcome == "first" else rig.call(events.AbortCalled, "abort")
        rig.call(events.BeginTransactionCalled, outcome)
        play(rig, [table("aBc", "dEf") if outcome == "first" else table("gHi"), refused(1)])
    assert rig.trace == ["aBc@0/0", "gHi@0/0"]
    assert {value for value, fate in fates(rig).items() if fate == "refused"} == {"B", "H"}
    assert {fate for fate in fates(rig).values() if fate != "refused"} == {"TransactionAbortableException no"}


def test_handler_in_a_transaction_is_called_for_each_culprit() -> None:
    rig = Rig(options={"transactional.id": "t"}, **IN_HANDLER)
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    play(rig, [*FIRST, OK, refused(1), OK])
    assert rig.handler_calls == ["B INVALID_COMPACTION_KEY", "E INVALID_COMPACTION_KEY"]
    assert rig.call(events.CommitCalled, "commit") == "done"


def test_acks_0_screens_nothing() -> None:
    rig = Rig(options={"acks": "0"})
    play(rig, [table("aBc", "dEf")])
    assert rig.trace == ["aBc", "dEf"]


def test_error_of_a_screened_record_names_the_refusal() -> None:
    rig = Rig()
    play(rig, [table("aBc", "dEf", "GH"), refused(1), 120, OK])
    first, last = rig.error("E"), rig.error("G")
    reason = "was not sent, because it has no key and the broker refused such records of topic 'orders' 120 ms earlier: bad 1"
    assert first.message == f"row 1 for orders-0 {reason}"
    assert (first.code, first.topic_partition, first.stored, first.api) == (NO_KEY, ORDERS_0, Stored.NO, "Produce")
    assert first is rig.error("E")
    assert last.message == f"row 0 for orders-0 {reason}"
    assert type(first) is type(rig.error("B"))


REASON = "the broker refused such records of topic 'orders' {} ms earlier: bad 1"


class Waiting(NamedTuple):
    """Rows that are not encoded yet, `passes_ms` after the refusal of a request that left one millisecond after they were handed over."""

    name: str
    passes_ms: int
    partitions: list[int]
    """For which such a row fails now."""
    handed_over_ms: int = -1
    """Compared with when that request left."""
    topic: str = "orders"
    topic_id: UUID = UUID(int=1)
    nodes: int = 1


WAITING = [
    Waiting("at once", 0, [0, 1]),
    Waiting("some are left, to ask later", UNSCREENED_INTERVAL_MS, [0]),
    Waiting("and at other times others", 2 * UNSCREENED_INTERVAL_MS, [1]),
    Waiting("in the end", SCREEN_MS_MAX - 1, [1]),
    Waiting("too late", SCREEN_MS_MAX, []),
    Waiting("handed over in the same moment", 0, [], handed_over_ms=0),
    Waiting("for another leader", 0, [0], nodes=2),
    Waiting("another topic", 0, [], topic="returns"),
    Waiting("a recreated topic", 0, [], topic_id=UUID(int=2)),
    Waiting("a topic that is unknown", 0, [], topic="unknown"),
]


@pytest.mark.parametrize("waiting", WAITING, ids=lambda waiting: waiting.name)
def test_rows_fail_before_they_are_encoded(waiting: Waiting) -> None:
    rig = Rig(nodes=waiting.nodes, topic_id=UUID(int=1))
    handed_over_ms = rig.steady_ms + waiting.handed_over_ms
    play(rig, [table("xyz", tp=RETURNS_0, passes_ms=0), OK, table("aBc", passes_ms=0), refused(1), OK])
    if waiting.topic_id != rig.topic_id:
        rig.sleep(150)
        rig.topic_id = waiting.topic_id
        rig.step(events.TopicRequested(topic="orders", is_stale=True))
    screening, steady_ms = rig.core.screening, rig.steady_ms + waiting.passes_ms
    screened_or_written = screening.of_rows(waiting.topic, handed_over_ms, steady_ms)
    assert screened_or_written == dict.fromkeys(waiting.partitions, REASON.format(waiting.passes_ms))


def test_rows_of_one_partition_are_left_unscreened_at_intervals() -> None:
    """And each of the leader's partitions in its turn."""
    rig = Rig(partitions=3)
    handed_over_ms, left = rig.steady_ms - 1, []
    play(rig, [table("aBc", passes_ms=0), refused(1), OK])
    for steady_ms in range(rig.steady_ms, rig.steady_ms + SCREEN_MS_MAX, UNSCREENED_INTERVAL_MS // 2):
        screened = rig.core.screening.of_rows("orders", handed_over_ms, steady_ms)
        left.append([partition for partition in range(3) if partition not in screened])
    assert left == [[], [], [0], [], [1], [], [2], [], [0], []]


def test_screened_records_are_counted_and_flush_completes() -> None:
    rig = Rig()
    play(rig, [table("aBc", "DE", "F")])
    assert rig.call(events.FlushCalled, "flush") is None
    rig.answer(refused(1))
    rig.answer(OK)
    assert rig.call(events.FlushCalled, "flush again") == rig.calls["flush"] == "done"
    counts = rig.core.context.counts
    assert (counts["records_failed"], counts["records_screened"], counts["records_written"]) == (4, 3, 2)
    assert (counts["batches_separated"], counts["batches_sent"], counts["records_sent"]) == (1, 2, 5)


def test_batch_is_kept_when_stripping_runs_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    play(rig, FIRST)
    with monkeypatch.context() as patch:
        patch.setattr("chaffinch.records.batch.remove_records_in_place", no_memory)
        with pytest.raises(MemoryError):
            rig.answer(OK)
    rig.step(events.TimePassed())
    assert rig.trace[2] == "df@2/0"
    assert fates(rig)["E"] == "screened"


def no_memory(*_arguments: Any) -> Any:
    raise MemoryError


# Mathematical letters: there are hundreds, small ones and capitals.
SMALL = [chr(code) for code in range(0x1D400, 0x1D7CB) if chr(code).islower()]
CAPITAL = [chr(code) for code in range(0x1D400, 0x1D7CB) if chr(code).isupper()]
assert min(len(SMALL), len(CAPITAL)) > 200


class Broker:
    """One that stores, refuses, and lies at times; the topic's policy changes at any moment."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.is_compacted = True
        self.is_honest = False
        self.logs: dict[TopicPartition, list[str]] = {ORDERS_0: [], ORDERS_1: []}
        self.sequences = dict.fromkeys(self.logs, 0)
        self.refusals: list[int] = []
        """When the requests left that were refused for exactly the records without a key."""

    def answer(self, batch: Batch, sent_ms: int) -> Answer:
        rng, keyless = self.rng, [index for index, value in enumerate(batch.values) if value.isupper()]
        if not self.is_honest and rng.random() < 0.05:
            return Answer(codes.NOT_LEADER_OR_FOLLOWER)
        if self.is_compacted and keyless:
            wrong_indices = rng.choice((keyless[1:] or [0], sorted({*keyless, rng.randrange(len(batch.values))})))
            named = keyless if self.is_honest or rng.random() < 0.9 else wrong_indices
            if named == keyless:
                self.refusals.append(sent_ms)
            return refused(*named)
        if batch.base_sequence != self.sequences[batch.tp]:
            return GAP
        log = self.logs[batch.tp]
        log += batch.values
        self.sequences[batch.tp] += len(batch.values)
        return Answer(base_offset=len(log) - len(batch.values))


class Story(Rig):
    """A producer of tables and such a broker. Each record that is screened is looked at in that very moment."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.broker = Broker(rng)
        self.handed_over: dict[str, int] = {}
        self.order: dict[TopicPartition, list[str]] = {ORDERS_0: [], ORDERS_1: []}
        self.screened_count = 0
        self._small, self._capital = iter(SMALL), iter(CAPITAL)
        super().__init__()

    def hand_over_some(self) -> None:
        rng, tp = self.rng, self.rng.choice((ORDERS_0, ORDERS_1))
        batches = ["".join(next(self._capital if rng.random() < 0.3 else self._small) for _ in range(rng.randint(1, 4))) for _ in range(3)]
        if len(self.handed_over) < RECORDS_MAX:
            self.hand_over(*batches, tp=tp)
            self.handed_over.update(dict.fromkeys("".join(batches), self.steady_ms))
            self.order[tp] += "".join(batches)

    def answer_one(self) -> None:
        if self.open:
            effect = self.open[0]
            sent_ms = min(batch.sent_ms for batch in effect.token.batches.values())
            self.answer(*[self.broker.answer(_batch(tp, data), sent_ms) for tp, data in _tps(effect.message)])

    def change_policy(self) -> None:
        self.broker.is_compacted = not self.broker.is_compacted

    def _end(self, value: str, fate: Any) -> None:
        super()._end(value, fate)
        if isinstance(fate, InvalidCompactionKeyException) and "was not sent" in fate.message:
            self.screened_count += 1
            assert value.isupper()
            handed_over_ms = self.handed_over[value]
            assert any(handed_over_ms < sent_ms and self.steady_ms - sent_ms < SCREEN_MS_MAX for sent_ms in self.broker.refusals)


RECORDS_MAX = 180


@pytest.mark.parametrize("seed", range(40))
def test_random_story_ends_each_record_once_and_in_order(seed: int) -> None:
    """Nothing is screened but by a refusal of what left after it was handed over, and a second before at most; all else as ever."""
    rng = random.Random(seed)
    story = Story(rng)
    for _ in range(150):
        rng.choices((story.hand_over_some, story.answer_one, story.change_policy), (4, 16, 1))[0]()
        story.sleep(rng.choice((0, 1, 5, 60)))
    story.broker.is_honest = True
    while not story.core.is_idle:
        story.answer_one()
        story.sleep(100)
    assert story.fates.keys() == story.handed_over.keys()
    assert {type(fate) for fate in story.fates.values()} <= {int, InvalidCompactionKeyException}
    for tp, log in story.broker.logs.items():
        assert log == [value for value in story.order[tp] if isinstance(story.fates[value], int)]
        assert [story.fates[value] for value in log] == list(range(len(log)))
