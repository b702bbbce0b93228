"""KIP-1038 for records that are in a batch already: what was sent, what was answered, what the handler said, the fate of every record.

Responses are letters: f(ail), s(wallow), r(etry). The batch is `abc` unless it says otherwise; the clock is the rig's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from chaffinch.client.connections import ResponseReceived
from chaffinch.errors import TimeoutException, TransactionAbortableException, UnknownTopicOrPartitionException, codes
from chaffinch.producer.core import events
from chaffinch.producer.core.exception_handler import NonRetriableResponse, RetriableResponse
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from tests.client.scripted_server import metadata
from tests.kips.refused_batches import rejected
from tests.producer.core.rig import LOST, OK, PORT, Answer, Rig, added

UNKNOWN = Answer(codes.UNKNOWN_TOPIC_OR_PARTITION)
WRITTEN_AND_DELETED = Answer(codes.UNKNOWN_TOPIC_OR_PARTITION, base_offset=1)
"""The topic was deleted while the batch, which readers may have seen, waited for replicas."""
TOO_LARGE = Answer(codes.MESSAGE_TOO_LARGE)
Said = NonRetriableResponse | RetriableResponse
RETRIABLE: dict[str, Said] = {
    "f": RetriableResponse.FAIL,
    "s": RetriableResponse.SWALLOW,
    "r": RetriableResponse.RETRY,
}
FOR_GOOD = {"f": NonRetriableResponse.FAIL, "s": NonRetriableResponse.SWALLOW}

UNKNOWN_NO = "UnknownTopicOrPartitionException no"
UNKNOWN_POSSIBLY = "UnknownTopicOrPartitionException possibly"
INVALID_NO = "InvalidRecordException no"
UNCLEAR = "NetworkException possibly"
ABORTABLE = "TransactionAbortableException no"


def run(
    says: str,
    answers: Sequence[Answer | str],
    *,
    options: dict[str, object] | None = None,
    values: str = "abc",
    kind: Mapping[str, Said] = RETRIABLE,
) -> Rig:
    rig = Rig(options={**(options or {})}, handler_responses={value: kind[letter] for value, letter in zip(values, says, strict=True)})
    if rig.core.transaction is not None:
        rig.call(events.InitTransactionsCalled, "init")
        rig.call(events.BeginTransactionCalled, "begin")
    rig.send(values)
    for answer in answers:
        rig.sleep(1_000)
        rig.answer(answer)
    return rig


class TestUnknownTopic:
    """ "if the handler says FAIL, we fail right away"; "if the handler says SWALLOW, we also break the retry loop"."""

    # fmt: off
    ROWS = (
        # said  answers                     sent                            fates
        ("rrr", [UNKNOWN, OK],              ["abc@0/0", "abc@0/0"],         ["0", "1", "2"]),
        ("rrr", [UNKNOWN, UNKNOWN, OK],     ["abc@0/0"] * 3,                ["0", "1", "2"]),
        ("fff", [UNKNOWN],                  ["abc@0/0"],                    [UNKNOWN_NO] * 3),
        ("sss", [UNKNOWN],                  ["abc@0/0"],                    ["dropped"] * 3),
        ("fsr", [UNKNOWN, OK],              ["abc@0/0", "c@0/0"],           [UNKNOWN_NO, "dropped", "0"]),
        ("rsr", [UNKNOWN, OK],              ["abc@0/0", "ac@0/0"],          ["0", "dropped", "1"]),
        # Of a batch that may be stored nothing is said to be dropped, and nothing goes again under new numbers (decision 13).
        ("rsr", [LOST, UNKNOWN],            ["abc@0/0", "abc@0/0"],         [UNKNOWN_POSSIBLY] * 3),
        ("fff", [WRITTEN_AND_DELETED],      ["abc@0/0"],                    [UNKNOWN_POSSIBLY] * 3),
        ("sss", [WRITTEN_AND_DELETED],      ["abc@0/0"],                    [UNKNOWN_POSSIBLY] * 3),
        ("rfr", [LOST, UNKNOWN],            ["abc@0/0", "abc@0/0"],         [UNKNOWN_POSSIBLY] * 3),
        ("rrr", [LOST, UNKNOWN, OK],        ["abc@0/0"] * 3,                ["0", "1", "2"]),
    )
    # fmt: on

    @pytest.mark.parametrize(("says", "answers", "sent", "fates"), ROWS)
    def test_responses_decide_the_fates(self, says: str, answers: Sequence[Answer | str], sent: list[str], fates: list[str]) -> None:
        rig = run(says, answers)
        assert (rig.trace, rig.fate("abc")) == (sent, fates)
        assert rig.handler_calls == ["abc UNKNOWN_TOPIC_OR_PARTITION"] * sum(answer in (UNKNOWN, WRITTEN_AND_DELETED) for answer in answers)
        assert rig.core.is_idle

    def test_retried_records_wait_for_the_backoff(self) -> None:
        rig = Rig(handler_responses={"a": RetriableResponse.RETRY, "b": RetriableResponse.SWALLOW})
        rig.send("ab")
        rig.answer(UNKNOWN)
        assert rig.trace == ["ab@0/0"]
        rig.sleep(150)
        assert rig.trace == ["ab@0/0", "a@0/0"]

    # fmt: off
    IN_TRANSACTION = (
        # said  answers           sent                          fates                                   the commit
        ("sss", [UNKNOWN],        ["abc@0/0"],                  ["dropped"] * 3,                        "done"),
        ("rsr", [UNKNOWN, OK],    ["abc@0/0", "ac@0/0"],        ["0", "dropped", "1"],                  "done"),
        ("rsf", [UNKNOWN],        ["abc@0/0"],                  [ABORTABLE, "dropped", ABORTABLE],      TransactionAbortableException),
    )
    # fmt: on

    @pytest.mark.parametrize(("says", "answers", "sent", "fates", "commit"), IN_TRANSACTION)
    def test_responses_in_a_transaction_decide_the_commit(
        self, says: str, answers: list[Answer], sent: list[str], fates: list[str], commit: object
    ) -> None:
        rig = run(says, answers, options={"transactional.id": "t"})
        rig.call(events.CommitCalled, "commit")
        assert (rig.trace, rig.fate("abc")) == (sent, fates)
        outcome = rig.calls["commit"]
        assert outcome == commit or type(outcome) is commit
        assert outcome == "done" or isinstance(outcome.__cause__, UnknownTopicOrPartitionException)


class TestTimeLimit:
    """ "whichever timeout hits first will stop the retry loop": decision 26, for records that are in a batch."""

    @pytest.mark.parametrize("says", [None, {"a": RetriableResponse.RETRY}])
    def test_retry_limit_ends_the_retries(self, says: dict[str, Said] | None) -> None:
        rig = Rig(options={"retry.unknown.topic.partition.ms": 1_000}, handler_responses=says)
        rig.send("a")
        began_ms = rig.steady_ms
        while rig.fate("a") == ["open"]:
            rig.answer(UNKNOWN)
            rig.sleep(1_300)
        assert rig.fate("a") == [UNKNOWN_NO]
        assert len(rig.trace) == 2
        assert rig.steady_ms - began_ms < 3_000

    def test_delivery_timeout_ends_the_retries_earlier(self) -> None:
        options = {"retry.unknown.topic.partition.ms": 60_000, "delivery.timeout.ms": 2_000, "request.timeout.ms": 1_000}
        rig = Rig(options=options, handler_responses={"a": RetriableResponse.RETRY})
        rig.send("a")
        while rig.fate("a") == ["open"]:
            if rig.open:
                rig.answer(UNKNOWN)
            rig.sleep(700)
        assert isinstance(rig.error("a"), TimeoutException)
        assert isinstance(rig.error("a").__cause__, UnknownTopicOrPartitionException)

    def test_expired_record_in_a_transaction_is_abortable(self) -> None:
        rig = run("r", [UNKNOWN], options={"transactional.id": "t", "retry.unknown.topic.partition.ms": 0}, values="a")
        assert rig.fate("a") == [ABORTABLE]
        assert isinstance(rig.error("a").__cause__, UnknownTopicOrPartitionException)


def unknown_topic() -> MetadataResponse:
    gone = metadata({}, {1: PORT})
    gone.topics += [MetadataResponseTopic(name="orders", error_code=codes.UNKNOWN_TOPIC_OR_PARTITION.number)]
    return gone


def topic_gone(rig: Rig) -> None:
    """Brokers remove the topic, and the producer's metadata says so."""
    rig.scripted[MetadataRequest] = [unknown_topic()] * 10_000
    rig.core.context.metadata.refresh()
    rig.sleep(1_100)


WITHIN_4_S = {"retry.unknown.topic.partition.ms": 4_000}


class TestWaitingBatches:
    """A topic that is deleted while records wait to be sent to it: no Produce response fails them, metadata does."""

    # fmt: off
    ROWS = (
        ("fff", [UNKNOWN_NO] * 3),
        ("sss", ["dropped"] * 3),
        ("rfs", ["open", UNKNOWN_NO, "dropped"]),
    )
    # fmt: on

    @pytest.mark.parametrize(("says", "fates"), ROWS)
    def test_handler_is_called_for_waiting_records(self, says: str, fates: list[str]) -> None:
        rig = Rig(
            options={"linger.ms": 60_000, "retry.backoff.ms": 1_000},
            handler_responses={value: RETRIABLE[letter] for value, letter in zip("abc", says, strict=True)},
        )
        rig.append("abc")
        topic_gone(rig)
        assert rig.fate("abc") == fates
        rig.scripted.clear()
        rig.step(events.FlushCalled(call="flush"))
        rig.sleep(3_000)
        if rig.open:
            rig.answer(OK)
        assert rig.fate("abc") == ["0" if fate == "open" else fate for fate in fates]
        assert rig.calls["flush"] == "done"

    @pytest.mark.parametrize(("says", "fates"), ROWS)
    def test_resent_batch_calls_the_handler_once(self, says: str, fates: list[str]) -> None:
        """A broker may know its number: it did not say that the batch is not stored."""
        rig = Rig(
            options={"retry.backoff.ms": 1_000, "retry.backoff.max.ms": 1_000},
            handler_responses={value: RETRIABLE[letter] for value, letter in zip("abc", says, strict=True)},
        )
        rig.sleep(1_500)  # Since metadata was last asked for.
        rig.send("abc")
        rig.hold.add(MetadataRequest)
        rig.answer(Answer(codes.NOT_LEADER_OR_FOLLOWER))
        (request,) = rig.held
        rig.step(ResponseReceived(address=request.address, token=request.token, message=unknown_topic(), numbering="apache"))
        assert rig.fate("abc") == fates
        assert rig.handler_calls == ["abc UNKNOWN_TOPIC_OR_PARTITION"]

    def test_retry_limit_applies_without_a_handler(self) -> None:
        rig = Rig(options={"linger.ms": 60_000, "retry.unknown.topic.partition.ms": 3_000})
        rig.append("a")
        topic_gone(rig)
        assert rig.fate("a") == ["open"]
        rig.sleep(5_000)
        assert rig.fate("a") == [UNKNOWN_NO]

    def test_retry_limit_applies_without_new_metadata(self) -> None:
        """Not with the next answer about the cluster, which may come much later."""
        rig = Rig(options={"linger.ms": 60_000, "retry.unknown.topic.partition.ms": 700, "retry.backoff.ms": 1_000})
        rig.append("a")
        rig.hold.add(MetadataRequest)
        rig.core.context.metadata.refresh()
        rig.sleep(1_100)
        (request,) = rig.held
        rig.step(ResponseReceived(address=request.address, token=request.token, message=unknown_topic(), numbering="apache"))
        rig.sleep(699)
        assert rig.fate("a") == ["open"]
        assert rig.core.next_deadline_ms == rig.steady_ms + 1
        rig.sleep(1)
        assert rig.fate("a") == [UNKNOWN_NO]

    @pytest.mark.parametrize(
        ("options", "limit"),
        [({}, "117500 ms more (delivery.timeout.ms)"), (WITHIN_4_S, "1500 ms more (retry.unknown.topic.partition.ms)")],
        ids=["delivery", "unknown topics"],
    )
    def test_wait_log_names_topic_and_limit(self, options: dict[str, int], limit: str) -> None:
        rig = Rig(options={"linger.ms": 60_000, **options})
        rig.append("a")
        topic_gone(rig)
        rig.sleep(3_000)
        assert rig.reports == [
            "orders-0, for 2500 ms: UNKNOWN_TOPIC_OR_PARTITION (no broker knows the topic 'orders'); "
            f"1 record without an outcome, retrying for up to {limit}"
        ]

    def test_topic_recreated_in_time_is_written_to(self) -> None:
        rig = Rig(options={"retry.unknown.topic.partition.ms": 700, "retry.backoff.ms": 1_000, "retry.backoff.max.ms": 1_000})
        rig.send("a")
        rig.answer(UNKNOWN)
        rig.sleep(1_300)
        rig.answer(OK)
        assert rig.fate("a") == ["0"]

    def test_without_handler_and_limit_delivery_timeout_applies(self) -> None:
        rig = Rig(options={"linger.ms": 60_000})
        rig.append("a")
        topic_gone(rig)
        rig.sleep(100_000)
        assert rig.fate("a") == ["open"]
        rig.sleep(30_000)
        assert rig.fate("a") == ["TimeoutException no"]

    def test_dropped_partition_is_not_added_to_the_transaction(self) -> None:
        """It was to be added, and the coordinator knows the topic as little: it would be asked for ever."""
        rig = Rig(options={"transactional.id": "t"}, handler_responses={"a": RetriableResponse.SWALLOW})
        joining = AddPartitionsToTxnRequest(v3_and_below_topics=[AddPartitionsToTxnTopic(name="orders", partitions=[0])])
        rig.scripted[AddPartitionsToTxnRequest] = [added(joining, codes.UNKNOWN_TOPIC_OR_PARTITION)] * 10_000
        rig.call(events.InitTransactionsCalled, "init")
        rig.call(events.BeginTransactionCalled, "begin")
        rig.send("a")
        topic_gone(rig)
        assert rig.fate("a") == ["dropped"]
        rig.call(events.CommitCalled, "commit")
        rig.sleep(1_000)
        assert rig.calls["commit"] == "done"


class TestRejected:
    """The opt-in of decision 24: records that a broker rejected for good."""

    # fmt: off
    ROWS = (
        # values said  answers                          sent                        fates
        ("abc", "fsf", [rejected(1), OK],               ["abc@0/0", "ac@0/0"],      ["0", "dropped", "1"]),
        ("abc", "fsf", [rejected(0, 1), OK],            ["abc@0/0", "c@0/0"],       [INVALID_NO, "dropped", "0"]),
        ("abc", "sss", [rejected(0, 1, 2)],             ["abc@0/0"],                ["dropped"] * 3),
        ("abc", "fff", [rejected(1), OK],               ["abc@0/0", "ac@0/0"],      ["0", INVALID_NO, "1"]),
        ("a",   "s",   [TOO_LARGE],                     ["a@0/0"],                  ["dropped"]),
        ("a",   "f",   [TOO_LARGE],                     ["a@0/0"],                  ["RecordTooLargeException no"]),
        ("ab",  "sf",  [TOO_LARGE, TOO_LARGE, OK],      ["ab@0/0", "a@0/0", "b@0/0"], ["dropped", "0"]),
        # The handler is not called when it is unknown which record is at fault, or whether the batch is stored.
        ("ab",  "ss",  [Answer(codes.INVALID_RECORD)],  ["ab@0/0"],                 [INVALID_NO] * 2),
        ("ab",  "ss",  [LOST, rejected(0)],             ["ab@0/0", "ab@0/0"],       ["InvalidRecordException possibly", UNCLEAR]),
        # Other codes are no matter for a handler, not even with culprits.
        ("ab",  "ss",  [Answer(codes.by_number(2467), [0]), OK], ["ab@0/0", "b@0/0"], ["UnknownServerException no", "0"]),
    )
    IN_TRANSACTION = (
        ("abc", "fsf", [rejected(1), OK],               ["abc@0/0", "ac@0/0"],      ["0", "dropped", "1"], "done"),
        ("abc", "fsf", [rejected(0, 1)],["abc@0/0"], [INVALID_NO, "dropped", ABORTABLE], "InvalidRecordException"),
        ("a",   "s",   [TOO_LARGE],                     ["a@0/0"],                  ["dropped"], "done"),
        ("ab",  "ff",  [rejected(0)],   ["ab@0/0"], [INVALID_NO, ABORTABLE], "InvalidRecordException"),
    )
    # fmt: on

    @pytest.mark.parametrize(("values", "says", "answers", "sent", "fates"), ROWS)
    def test_responses_decide_the_fates(
        self, values: str, says: str, answers: Sequence[Answer | str], sent: list[str], fates: list[str]
    ) -> None:
        rig = run(says, answers, values=values, kind=FOR_GOOD)
        assert (rig.trace, rig.fate(values)) == (sent, fates)
        assert rig.core.is_idle
        assert rig.core.accumulator.memory_free == rig.core.accumulator.memory_bytes

    @pytest.mark.parametrize(("values", "says", "answers", "sent", "fates", "commit"), IN_TRANSACTION)
    def test_responses_in_a_transaction_decide_the_commit(
        self, values: str, says: str, answers: list[Answer], sent: list[str], fates: list[str], commit: str
    ) -> None:
        rig = run(says, answers, values=values, kind=FOR_GOOD, options={"transactional.id": "t"})
        outcome = rig.call(events.CommitCalled, "commit")
        assert (rig.trace, rig.fate(values)) == (sent, fates)
        assert (outcome if outcome == "done" else type(outcome).__name__) == commit


class TestWhileTheHandlerRuns:
    """It is asked outside the lock, so anything may happen before it answers."""

    def rig(self, **options: object) -> Rig:
        rig = Rig(options=options, handler_responses={"a": RetriableResponse.SWALLOW})
        rig.defers_handler = True
        rig.send("a")
        return rig

    def test_batch_that_expires_during_the_call_fails(self) -> None:
        rig = self.rig(**{"delivery.timeout.ms": 2_000, "request.timeout.ms": 1_000})
        rig.answer(UNKNOWN)
        rig.sleep(2_000)
        assert rig.fate("a") == ["TimeoutException possibly"]
        rig.complete_handler_call()
        assert rig.core.is_idle

    def test_expired_records_do_not_call_the_handler(self) -> None:
        rig = self.rig(**{"delivery.timeout.ms": 2_000, "request.timeout.ms": 1_000})
        rig.sleep(2_000)
        rig.answer(UNKNOWN)
        assert rig.fate("a") == ["TimeoutException possibly"]
        assert rig.pending_handler_calls == []
        assert rig.core.is_idle

    def test_waiting_batch_that_expires_during_the_call_fails(self) -> None:
        options = {"linger.ms": 1_000, "delivery.timeout.ms": 3_000, "request.timeout.ms": 1_000}
        rig = Rig(options=options, handler_responses={"a": RetriableResponse.SWALLOW})
        rig.defers_handler = True
        rig.append("a")
        topic_gone(rig)
        rig.sleep(5_000)
        assert rig.fate("a") == ["TimeoutException no"]
        rig.complete_handler_call()
        assert rig.core.is_idle

    def test_close_during_the_call_fails_the_records(self) -> None:
        rig = self.rig()
        rig.answer(UNKNOWN)
        rig.step(events.CloseCalled(call="close", deadline_ms=rig.steady_ms))
        assert rig.calls["close"] == "done"
        rig.complete_handler_call()
        assert rig.fate("a") == ["TimeoutException possibly"]

    def test_topic_recreated_during_the_call_is_written_to(self) -> None:
        rig = Rig(options={"linger.ms": 1_500}, handler_responses={"a": RetriableResponse.SWALLOW})
        rig.defers_handler = True
        rig.append("a")
        topic_gone(rig)
        rig.scripted.clear()
        rig.sleep(3_000)
        assert rig.trace == ["a@0/0"], "it went to a broker, who decides now"
        rig.complete_handler_call()
        rig.answer(OK)
        assert rig.fate("a") == ["0"]

    @pytest.mark.parametrize(("options", "fate"), [({}, "dropped"), (WITHIN_4_S, UNKNOWN_NO)], ids=["delivery", "unknown topics"])
    def test_handler_is_called_once_per_response(self, options: dict[str, int], fate: str) -> None:
        rig = Rig(options={"linger.ms": 60_000, **options}, handler_responses={"a": RetriableResponse.SWALLOW})
        rig.defers_handler = True
        rig.append("a")
        topic_gone(rig)
        rig.sleep(5_000)
        assert len(rig.pending_handler_calls) == 1
        assert rig.fate("a") == ["open"]
        rig.complete_handler_call()
        assert rig.fate("a") == [fate]
