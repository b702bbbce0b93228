"""Options, Accumulator and record sizes of the producer core, and properties of `judge`."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.errors import ConfigException, ErrorCode, KafkaException, codes
from chaffinch.errors.copies import copy_for_raise
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core import events
from chaffinch.producer.core.batches.accumulator import Accumulator, Appended, record_size
from chaffinch.producer.core.batches.in_flight import PredecessorState
from chaffinch.producer.core.options import PRODUCER_OPTIONS, compression_level, delivery_timeout_ms, is_idempotent, parse_options
from chaffinch.producer.core.refusals import culprits
from chaffinch.producer.core.refusals.batch_responses import BatchResponse, RecordErrors, Situation, TopicConfig, read_response
from chaffinch.producer.core.refusals.culprits import judge
from chaffinch.producer.core.refusals.errors import as_abortable
from chaffinch.protocol.messages.produce import BatchIndexAndErrorMessage, PartitionProduceResponse
from chaffinch.records.batch import decode
from chaffinch.records.byte_columns import ByteColumn
from chaffinch.records.columns import RecordColumns
from chaffinch.records.compression import Compression
from tests.producer.core.rig import Rig, new_record

ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def options(**more: Any) -> Any:
    return parse_options({"bootstrap.servers": "localhost:9092", **more})


class TestOptions:
    def test_defaults_equal_kafka(self) -> None:
        settings = options()
        assert (settings["linger.ms"], settings["batch.size"], settings["acks"]) == (5, 16_384, "all")
        assert (settings["delivery.timeout.ms"], settings["request.timeout.ms"], settings["max.block.ms"]) == (120_000, 30_000, 60_000)
        assert is_idempotent(settings)

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"enable.idempotence": True, "acks": "1"}, "acks"),
            ({"enable.idempotence": "true", "retries": 0}, "retries"),
            ({"transactional.id": "t", "acks": "0"}, "acks"),
            ({"max.in.flight.requests.per.connection": 6}, r"max\.in\.flight.*at most 5"),
            ({"transactional.id": "t", "enable.idempotence": False}, r"enable\.idempotence"),
            ({"transactional.id": ""}, r"transactional\.id"),
            ({"delivery.timeout.ms": 1000}, r"delivery\.timeout\.ms"),
            ({"linger.ms": -1}, r"linger\.ms"),
            ({"compression.type": "brotli"}, "zstd"),
            ({"acks": "two"}, "acks"),
        ],
    )
    def test_contradicting_options_are_refused(self, given: dict[str, Any], text: str) -> None:
        with pytest.raises(ConfigException, match=text):
            options(**given)

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"transactional.id": "t", "acks": "0"}, "option acks cannot be '0' with a transactional.id: it must be all"),
            ({"transactional.id": "t", "retries": 0}, "option retries cannot be 0 with a transactional.id: it must be at least 1"),
            ({"enable.idempotence": True, "acks": "1"}, "option acks cannot be '1' with enable.idempotence=true: it must be all"),
            (
                {"transactional.id": "t", "max.in.flight.requests.per.connection": 6},
                "option max.in.flight.requests.per.connection cannot be 6 with a transactional.id: it must be at most 5",
            ),
            (
                {"max.in.flight.requests.per.connection": 6},
                "option max.in.flight.requests.per.connection cannot be 6 with idempotence, the default without enable.idempotence=false: "
                "it must be at most 5",
            ),
            (
                {"transactional.id": "t", "enable.idempotence": False},
                "option enable.idempotence cannot be false with a transactional.id: transactions need it",
            ),
        ],
    )
    def test_contradiction_error_names_the_given_options(self, given: dict[str, Any], text: str) -> None:
        """A transactional id implies idempotence, which is also the default: the error names the option that the user wrote."""
        with pytest.raises(ConfigException) as raised:
            options(**given)
        assert str(raised.value).startswith(text)

    def test_delivery_timeout_at_the_maximum_allows_any_linger(self) -> None:
        assert delivery_timeout_ms(options(**{"delivery.timeout.ms": 2**31 - 1, "linger.ms": 2**63 - 1})) == 2**31 - 1

    @pytest.mark.parametrize("given", [{"acks": "1"}, {"acks": 0}, {"retries": 0}, {"enable.idempotence": "false"}])
    def test_idempotence_is_off_if_not_requested_and_contradicted(self, given: dict[str, Any]) -> None:
        assert not is_idempotent(options(**given))

    def test_in_flight_limit_is_free_without_idempotence(self) -> None:
        assert options(**{"enable.idempotence": False, "max.in.flight.requests.per.connection": 1_000})

    def test_missing_bootstrap_servers_is_refused(self) -> None:
        with pytest.raises(ConfigException, match=r"bootstrap\.servers"):
            parse_options({})

    def test_compression_level_is_that_of_the_codec(self) -> None:
        given = {"compression.zstd.level": 7, "compression.gzip.level": 2}
        assert compression_level(options(**given, **{"compression.type": "zstd"})) == 7
        assert compression_level(options(**given)) is None

    @pytest.mark.parametrize(("codec", "level"), [("gzip", 9), ("lz4", 12), ("zstd", 19)])
    def test_compression_level_changes_the_batches(self, codec: str, level: int) -> None:
        """A high level compresses the batch differently than the codec's default."""
        made = []
        for chosen in ({}, {f"compression.{codec}.level": level}):
            rig = Rig(options={"compression.type": codec, "batch.size": 100_000, **chosen})
            for word in range(500):
                value = b"%d and %d" % (word * 37 % 101, word * word % 89)
                rig.core.append(ORDERS_0, new_record(None, value, "v"), rig.steady_ms)
            rig.core.accumulator.queue_of(ORDERS_0).close()
            rig.step(events.TimePassed())
            made.append(bytes(rig.open[0].token.batches[ORDERS_0].data))
        assert made[0] != made[1]

    def test_gzip_level_minus_1_is_the_default_and_0_is_refused(self) -> None:
        codec = {"compression.type": "gzip"}
        assert compression_level(options(**codec, **{"compression.gzip.level": -1})) == -1
        with pytest.raises(ConfigException, match=r"compression\.gzip\.level cannot be 0: it must be at least -1 and at most 9 and not 0$"):
            options(**{"compression.gzip.level": 0})

    def test_each_option_is_documented(self) -> None:
        assert all(option.documentation for option in PRODUCER_OPTIONS.options)


def accumulator(**more: Any) -> Accumulator:
    return Accumulator(**{"batch_bytes": 300, "linger_ms": 50, "memory_bytes": 10_000, **more})


def put(into: Accumulator, value: bytes, tp: TopicPartition = ORDERS_0, steady_ms: int = 0, **more: Any) -> Appended:
    headers = more.get("headers", ())
    key = more.get("key")
    return into.append(tp, new_record(key, value, value, tp.partition, headers=headers, timestamp_ms=5), steady_ms)[0]


@pytest.mark.parametrize("name", ["n" * 1000, "é" * 500, "😀" * 250])
def test_header_names_count_in_utf8_bytes(name: str) -> None:
    assert record_size(None, b"v", ((name, b""),)) - record_size(None, b"v", (("", b""),)) == 1000


class TestAccumulator:
    def test_batch_contains_the_appended_records(self) -> None:
        made = accumulator(batch_bytes=10_000)
        records = [(None, b"a", ()), (b"k", b"", [("h", b"1"), ("i", None)]), (b"", None, ()), (b"l", b"bb", [("h", b"")])]
        for key, value, headers in records:
            made.append(ORDERS_0, new_record(key, value, value, headers=headers, timestamp_ms=5), 0)
        batch = made.take(ORDERS_0)
        assert batch is not None
        columns = decode(batch.data)
        assert [(columns.key(i), columns.value(i), columns.headers(i)) for i in range(4)] == [
            (key, value, list(headers)) for key, value, headers in records
        ]
        assert batch.outcome_sink == [value for _, value, _ in records]

    def test_interrupted_append_leaves_no_partial_record(self) -> None:
        """Not even if a second KeyboardInterrupt arrives during the clean-up after the first."""

        class Interrupted(list[int]):
            def append(self, _: int) -> None:
                raise KeyboardInterrupt

            def __delitem__(self, _: Any) -> None:
                raise KeyboardInterrupt

        made = accumulator()
        put(made, b"before")
        growing = made.growing(ORDERS_0)
        assert growing is not None
        growing.timestamps = Interrupted(growing.timestamps)
        with pytest.raises(KeyboardInterrupt):
            put(made, b"interrupted", headers=[("h", b"1")])
        growing.timestamps = list(growing.timestamps)
        put(made, b"after")
        taken = [batch for batch in (made.take(ORDERS_0), made.take(ORDERS_0)) if batch is not None]
        assert [(decode(batch.data).value(0), batch.outcome_sink, batch.count) for batch in taken] == [
            (b"before", [b"before"], 1),
            (b"after", [b"after"], 1),
        ]
        assert [batch.position for batch in taken] == [0, 1]

    def test_full_batch_is_ready_and_growing_batch_lingers(self) -> None:
        made = accumulator()
        assert [put(made, bytes(50), steady_ms=7) for _ in range(4)] == [Appended.BEGAN, Appended.JOINED, Appended.FILLED, Appended.JOINED]
        assert made.ready_at_ms(ORDERS_0) == 7
        assert made.take(ORDERS_0) is not None
        assert made.ready_at_ms(ORDERS_0) == 57
        assert made.ready_at_ms(ORDERS_1) is None

    @pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
    def test_full_batch_encoded_ahead_equals_one_encoded_when_taken(self, compression: Compression) -> None:
        def filled() -> Accumulator:
            made = accumulator(compression=compression, batch_bytes=319)
            for tp in (ORDERS_0, ORDERS_0, ORDERS_1):
                for number in range(3):
                    put(made, bytes([number]) * 50, tp)
            put(made, b"growing", ORDERS_1)
            return made

        made, other = filled(), filled()
        for tp in (ORDERS_0, ORDERS_1):
            full = dict(made.full_heads()).get(tp)
            assert full is not None
            assert len(full.futures) == 3
            made.encode_ahead(full)
            assert dict(made.full_heads()).get(tp) is None
        for tp in (ORDERS_0, ORDERS_0, ORDERS_1, ORDERS_1):
            ahead, late = made.take(tp), other.take(tp)
            assert ahead is not None
            assert late is not None
            assert (ahead.data, ahead.timestamps.tolist(), ahead.outcome_sink) == (late.data, late.timestamps.tolist(), late.outcome_sink)
        assert made.is_empty

    def test_record_larger_than_batch_size_has_its_own_batch(self) -> None:
        made = accumulator()
        put(made, b"small")
        assert put(made, bytes(1000)) is Appended.FILLED
        counts = [batch.count for batch in iter(lambda: made.take(ORDERS_0), None)]
        assert counts == [1, 1]

    def test_memory_is_taken_and_released(self) -> None:
        made = accumulator()
        for _ in range(10):
            put(made, bytes(50))
        assert not made.has_memory_for(made.memory_bytes)
        while (batch := made.take(ORDERS_0)) is not None:
            made.release(batch.memory_bytes)
        assert made.memory_free == made.memory_bytes
        assert made.is_empty

    def test_freed_memory_is_reserved_for_the_longest_waiter(self) -> None:
        made = accumulator(memory_bytes=1_000)
        made.memory_free = 0
        much, little = made.claim(600), made.claim(100)
        for _ in range(5):
            made.release(100)
            assert not any((made.has_memory_for(36), made.is_granted(much), made.is_granted(little)))
        made.release(100)
        assert made.is_granted(much)
        made.settle(much)
        assert made.memory_free == 600, "for the waiter, which takes it at once"
        made.memory_free = 0
        made.release(150)
        assert made.is_granted(little)
        made.settle(little)
        assert made.memory_free == 150

    def test_settled_claim_leaves_its_memory_to_the_next_waiter(self) -> None:
        made = accumulator(memory_bytes=1_000)
        made.memory_free = 0
        first, second = made.claim(600), made.claim(300)
        made.release(400)
        assert (made.memory_free, made.memory_unused) == (0, 400)
        made.settle(first)
        assert (made.memory_free, made.memory_unused) == (100, 400)
        assert made.is_granted(second)
        made.settle(second)
        assert made.memory_free == made.memory_unused == 400

    def test_record_size_is_an_upper_bound(self) -> None:
        headers = [("ü" * 20, b"x" * 300), ("", None)]
        columns = RecordColumns.from_lists([b"k" * 200], [b"v" * 70_000], [2**62], [headers])
        assert columns.sizes()[0] <= record_size(b"k" * 200, b"v" * 70_000, headers)

    def test_take_expired_takes_only_expired_batches(self) -> None:
        made = accumulator()
        put(made, b"old", steady_ms=1)
        put(made, b"new", ORDERS_1, steady_ms=2)
        assert [batch.outcome_sink for batch in made.take_expired(1)] == [[b"old"]]
        assert made.partitions() == [ORDERS_1]
        assert made.oldest_ms() == 2


Entries: TypeAlias = dict[int, tuple[str | None, ErrorCode | None]]


def record_errors_of(entries: Entries) -> RecordErrors:
    indices = sorted(entries)
    own = [entries[index][1] for index in indices]
    numbers = [None if code is None else code.number_kip for code in own]
    return RecordErrors(indices, [entries[index][0] for index in indices], numbers)


def entries_of(record_errors: RecordErrors) -> Entries:
    return {
        index: (message, record_errors.code(at))
        for at, (index, message) in enumerate(zip(record_errors.indices, record_errors.messages, strict=True))
    }


def test_culprits_are_sorted_and_unique() -> None:
    """The last entry for an index counts, and each keeps its own error code."""
    entries = [(7, "first", None), (3, None, 45), (7, "last", 32), (-1, "out of range", 2), (8, "no error", 0)]
    errors = [BatchIndexAndErrorMessage(batch_index=i, batch_index_error_message=text, chaffinch_error_code=n) for i, text, n in entries]
    answer = read_response(PartitionProduceResponse(error_code=87, base_offset=-1, record_errors=errors), "apache")
    assert list(answer.record_errors.indices) == [-1, 3, 7, 8]
    assert entries_of(answer.record_errors) == {
        -1: ("out of range", codes.CORRUPT_MESSAGE),
        3: (None, codes.INVALID_COMPACTION_KEY),
        7: ("last", codes.INVALID_TIMESTAMP),
        8: ("no error", None),
    }


ANSWERS = st.builds(
    BatchResponse,
    code=st.one_of(st.sampled_from(codes.ALL), st.integers(-200, 3000).map(codes.by_number)),
    record_errors=st.dictionaries(
        st.integers(-3, 14),
        st.tuples(st.none() | st.text(max_size=5), st.none() | st.sampled_from(codes.ALL[2:])),
        max_size=5,
    ).map(record_errors_of),
    message=st.none() | st.text(max_size=5),
).filter(lambda answer: not answer.is_written)
SITUATIONS = st.builds(
    Situation,
    topic_partition=st.just(ORDERS_0),
    count=st.integers(1, 12),
    keys_of=st.sampled_from([lambda indices: ByteColumn.of([None] * len(indices)), lambda indices: ByteColumn.of([b"k"] * len(indices))]),
    possibly_stored=st.booleans(),
    in_transaction=st.booleans(),
    is_idempotent=st.booleans(),
    predecessors=st.sampled_from(PredecessorState),
    may_retry=st.booleans(),
    removals=st.integers(0, 20),
    topic_config=st.builds(
        TopicConfig, is_compacted=st.none() | st.booleans(), min_insync_replicas=st.none() | st.integers(1, 3), is_requested=st.booleans()
    ),
)


@given(ANSWERS, SITUATIONS)
def test_every_refusal_has_a_verdict_by_the_rules(answer: BatchResponse, situation: Situation) -> None:
    verdict = judge(answer, situation)
    match verdict:
        case culprits.RemoveCulprits():
            assert not situation.possibly_stored
            assert not situation.in_transaction
            assert set(verdict.errors) <= set(range(situation.count))
            assert verdict.errors
        case culprits.Split():
            assert not situation.possibly_stored
            assert situation.count > 1
        case culprits.Renumber():
            assert answer.code in culprits.GAP_CODES
            assert not situation.possibly_stored or situation.predecessors is PredecessorState.UNSTORED
        case culprits.Resend():
            assert situation.may_retry
            assert answer.code.is_retriable or (answer.code in culprits.GAP_CODES and situation.predecessors is PredecessorState.OPEN)
        case culprits.FailAll():
            assert set(verdict.errors) <= set(range(situation.count))
            if situation.in_transaction:
                assert not verdict.error.code.is_retriable
            if situation.possibly_stored:
                assert verdict.error.stored.value == "possibly"
                assert verdict.uses_up_sequences
        case culprits.NeedTopicConfig():
            assert not situation.topic_config.is_requested


def test_repeated_error_is_a_copy() -> None:
    error = KafkaException("first")
    other = copy_for_raise(error)
    assert other == error
    assert other is not error
    assert other.__cause__ is None, "a traceback would show the same error twice"
    error.__cause__ = ValueError("why")
    assert copy_for_raise(error).__cause__ is error.__cause__
    assert as_abortable(as_abortable(error)).message.count("has to be aborted") == 1
