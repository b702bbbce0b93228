"""Options and columns of the sink: what is understood, what is refused and with which words."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from pyspark.sql import types

from chaffinch.errors import ConfigException
from chaffinch.spark.commit.tolerance import Tolerance
from chaffinch.spark.kafka_sink import KafkaSink
from chaffinch.spark.sink.option_tables import EXACTLY_ONCE, TABLES
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.tasks.row_codec import check_schema

LEAST = {"kafka.bootstrap.servers": "a:1", "topic": "orders"}


def sink(is_stream: bool = True, **options: str) -> SinkOptions:
    return SinkOptions.parse({**LEAST, **{name.replace("__", "."): value for name, value in options.items()}}, is_stream=is_stream)


def test_defaults() -> None:
    options = sink()
    assert options.client.bootstrap_servers == ("a:1",)
    assert options.marker_topic == "orders"
    assert options.tolerance == Tolerance(tolerates=False)
    assert (options.compression_type, options.batch_bytes, options.checkpoint_location) == ("none", 1_000_000, None)


def test_names_are_found_without_regard_to_case() -> None:
    options = sink(STAGINGLOCATION="/s", errors__dead__letter__path="/d", Errors__Tolerance="all", checkpointlocation="/c", queryname="q")
    assert (options.staging_location, options.dead_letter_path, options.checkpoint_location) == ("/s", "/d", "/c")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topics": "x"}, "unknown option 'topics': the nearest known one is 'topic'"),
        ({"kafka__bach__size": "1"}, "'kafka.batch.size'"),
        ({"errors__tolerence": "all"}, "'errors.tolerance'"),
        ({"kafka__foo": "x"}, "unknown option 'kafka.foo': no known option is similar"),
        ({"kafka__topics": "x"}, "unknown option 'kafka.topics': the nearest known one is 'topic'"),
        ({"bootstrap__server": "x"}, "unknown option 'bootstrap.server': the nearest known one is 'kafka.bootstrap.servers'"),
        ({"deliveryGuarantee": "twice"}, "option deliveryGuarantee cannot be 'twice': it must be one of exactly-once, at-least-once, none"),
        (
            {"deliveryGuarantee": "none", "DELIVERYguarantee": "none"},
            "option deliveryGuarantee is given twice, as 'deliveryGuarantee' and as",
        ),
        (
            {"deliveryGuarantee": "twice", "DELIVERYguarantee": "none"},
            "option deliveryGuarantee is given twice, as 'deliveryGuarantee' and",
        ),
        ({"deliveryGuarantee": "none", "kafka__acks": "all"}, "option kafka.acks cannot be 'all': it must be one of 0"),
        ({"deliveryGuarantee": "none", "kafka__enable__idempotence": "true"}, "unknown option 'kafka.enable.idempotence'"),
        ({"deliveryGuarantee": "at-least-once", "kafka__acks": "1"}, "option kafka.acks cannot be '1'"),
        ({"deliveryGuarantee": "at-least-once", "idempotencyToken": "t"}, "it belongs to deliveryGuarantee=exactly-once, leave it out"),
        ({"deliveryGuarantee": "at-least-once", "markerTopic": "m"}, "it belongs to deliveryGuarantee=exactly-once, leave it out"),
        ({"deliveryGuarantee": "at-least-once", "kafka__transactional__id": "t"}, "it belongs to deliveryGuarantee=exactly-once"),
        (
            {"deliveryGuarantee": "at-least-once", "kafka__retries": "0", "kafka__enable__idempotence": "true"},
            "option kafka.retries cannot be 0 with kafka.enable.idempotence=true",
        ),
        (
            {"deliveryGuarantee": "at-least-once", "kafka__delivery__timeout__ms": "1"},
            "option kafka.delivery.timeout.ms cannot be 1: it must be at least kafka.linger.ms + kafka.request.timeout.ms",
        ),
        ({"kafka__acks": "1"}, "option kafka.acks cannot be '1': it must be one of all, -1"),
        ({"kafka__enable__idempotence": "false"}, "needs it"),
        ({"kafka__batch__size": "big"}, "must be a whole number"),
        ({"onMissingMarker": "skip"}, "one of fail, write"),
        ({"errors__tolerance": "all"}, "needs a destination for the bad rows"),
        ({"errors__tolerance__max": "5"}, "needs errors.tolerance=all"),
        ({"stagingLocation": "~/s"}, "option stagingLocation cannot be '~/s': ~ has no meaning here; give the full path"),
        (
            {"errors__tolerance": "all", "errors__dead__letter__path": "~"},
            "option errors.dead.letter.path cannot be '~': ~ has no meaning here",
        ),
        ({"errors__dead__letter__path": "/d"}, "errors.dead.letter.path needs errors.tolerance=all"),
        ({"errors__dead__letter__queue__topic__name": "d"}, "errors.dead.letter.queue.topic.name needs errors.tolerance=all"),
        ({"kafka__compression__level": "3"}, "each codec has its own option, such as kafka.compression.zstd.level"),
        ({"kafka__compression__gzip__level": "99"}, "it must be at least -1 and at most 9 and not 0"),
        ({"kafka__compression__gzip__level": "0"}, "it must be at least -1 and at most 9 and not 0"),
        ({"errors__dead__letter__queue__topic__name": "orders"}, "it is the target topic itself"),
        ({"idempotencyToken": "t"}, "is for batch writes"),
        (
            {"topic": "a,b"},
            "option topic cannot be 'a,b': it must be a single topic; leave it out if rows name their topics in a topic column",
        ),
        ({"kafka__ssl__truststore__password": "x"}, "truststores are PEM files, which have no password"),
        ({"kafka__key__serializer": "x"}, "unknown option 'kafka.key.serializer'"),
    ],
)
def test_refused_options(options: Mapping[str, Any], text: str) -> None:
    with pytest.raises(ConfigException) as caught:
        sink(**options)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("cap", "tolerance"),
    [
        ("100", Tolerance(tolerates=True, count_max=100)),
        ("5%", Tolerance(tolerates=True, percent_max=Fraction(5))),
        (None, Tolerance(tolerates=True)),
    ],
)
def test_caps(cap: str | None, tolerance: Tolerance) -> None:
    options: dict[str, Any] = {} if cap is None else {"errors__tolerance__max": cap}
    assert sink(errors__tolerance="all", errors__dead__letter__path="/d", **options).tolerance == tolerance


@pytest.mark.parametrize("cap", ["-1", "101%", "-1%", "many", "5.5", ""])
def test_invalid_caps(cap: str) -> None:
    with pytest.raises(ConfigException, match="neither a count"):
        sink(errors__tolerance="all", errors__dead__letter__path="/d", errors__tolerance__max=cap)


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize(("codec", "level"), [("zstd", 7), ("gzip", 2), ("snappy", None), ("none", None)])
def test_compression_level_of_the_codec(guarantee: str, codec: str, level: int | None) -> None:
    given: dict[str, Any] = {
        "kafka__compression__zstd__level": "7",
        "kafka__compression__gzip__level": "2",
        "kafka__compression__type": codec,
    }
    assert sink(deliveryGuarantee=guarantee, **given).compression_level == level


def test_a_batch_write_needs_no_marker() -> None:
    with pytest.raises(ConfigException, match="onMissingMarker is for streams"):
        sink(is_stream=False, onMissingMarker="write")
    assert sink(onMissingMarker="write").writes_without_marker


@pytest.mark.parametrize("guarantee", TABLES)
def test_a_batch_write_has_no_checkpoint(guarantee: str) -> None:
    """The user would expect it to be written once, which nothing ensures."""
    with pytest.raises(ConfigException, match=r"checkpointLocation is for streams: .* in foreachBatch write with .*KafkaSink") as caught:
        sink(is_stream=False, checkpointLocation="/c", deliveryGuarantee=guarantee)
    assert ("idempotencyToken" in str(caught.value)) == (guarantee == EXACTLY_ONCE)  # The others have none.


def test_invalid_guarantee_is_reported_with_all_other_errors() -> None:
    """`kafka.acks` is not: one of the guarantees takes it."""
    with pytest.raises(ConfigException) as caught:
        sink(topics="x", deliveryGuarantee="at-most-once", kafka__acks="0", errors__tolerance="some")
    assert str(caught.value) == (
        "unknown option 'topics': the nearest known one is 'topic'; option deliveryGuarantee cannot be 'at-most-once': it must be one of "
        "exactly-once, at-least-once, none; option errors.tolerance cannot be 'some': it must be one of none, all"
    )


@pytest.mark.parametrize("token", ["", "  "])
def test_an_empty_token_is_refused(token: str) -> None:
    with pytest.raises(ConfigException, match="idempotencyToken is empty"):
        sink(is_stream=False, idempotencyToken=token)


@pytest.mark.parametrize(
    "name",
    ["topic", "markerTopic", "stagingLocation", "errors.dead.letter.queue.topic.name", "errors.dead.letter.path", "kafka.transactional.id"],
)
def test_a_name_left_empty_is_refused(name: str) -> None:
    options: dict[str, Any] = {"errors.tolerance": "all", "errors.dead.letter.path": "/dead", name: ""}
    with pytest.raises(ConfigException, match=f"option {name} is empty: give it a value, or leave it out"):
        sink(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"deliveryguarantee": "none", "idempotencytoken": "x"}, "'idempotencyToken': it belongs to deliveryGuarantee=exactly-once"),
        ({"subscribe": "orders"}, "'subscribe': this is an option of the source"),
        ({"kafka.key.serializer": "x"}, "keys and values are written as they are"),
        ({"kafka.group.id": "x"}, "a sink does not join a group"),
        ({"kafka.transaction.timeout.ms": str(2**31)}, "at least 1 and at most 2147483647"),
    ],
)
def test_hints_for_unknown_options(options: Mapping[str, str], text: str) -> None:
    with pytest.raises(ConfigException) as caught:
        sink(is_stream=False, **options)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("bad", "all_rows", "cap"), [(29, 100, "29%"), (7, 100, "7%"), (1, 1000, "0.1%"), (57, 100, "57%"), (333, 1000, "33.3%")]
)
def test_a_share_is_exact(bad: int, all_rows: int, cap: str) -> None:
    tolerance = Tolerance.parse("all", cap)
    assert not tolerance.is_exceeded(bad, all_rows)
    assert tolerance.is_exceeded(bad + 1, all_rows)


def test_without_a_topic_the_marker_needs_one() -> None:
    with pytest.raises(ConfigException, match="set markerTopic to an existing topic"):
        SinkOptions.parse({"kafka.bootstrap.servers": "a:1"}, is_stream=True)
    assert SinkOptions.parse({"kafka.bootstrap.servers": "a:1", "markerTopic": "m"}, is_stream=True).topic is None


def test_batch_write_without_token_needs_no_marker_topic(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaffinch.spark.options._logged", set())
    servers = {"kafka.bootstrap.servers": "a:1"}
    assert SinkOptions.parse(servers, is_stream=False).marker_topic is None
    assert SinkOptions.parse({**servers, "topic": "t"}, is_stream=False).marker_topic is None
    assert not caplog.records
    assert SinkOptions.parse({**servers, "markerTopic": "m"}, is_stream=False).marker_topic is None
    assert "options without effect on a batch write without idempotencyToken, which has no marker: markerTopic" in caplog.text
    with pytest.raises(ConfigException, match="set markerTopic to an existing topic"):
        SinkOptions.parse({**servers, "idempotencyToken": "x"}, is_stream=False)
    assert SinkOptions.parse({**servers, "idempotencyToken": "x", "markerTopic": "m"}, is_stream=False).marker_topic == "m"


def test_the_bootstrap_servers_are_required() -> None:
    with pytest.raises(ConfigException, match=r"kafka\.bootstrap\.servers is missing"):
        SinkOptions.parse({"topic": "orders"}, is_stream=True)


BYTES_PAIR = types.StructType([types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())])
TYPES = {
    "string": types.StringType(), "binary": types.BinaryType(), "int": types.IntegerType(), "bigint": types.LongType(),
    "timestamp": types.TimestampType(), "headers": types.ArrayType(BYTES_PAIR),
    "map<string,string>": types.MapType(types.StringType(), types.StringType()),
}  # fmt: skip


def schema_of(text: str) -> types.StructType:
    """A schema from `name type, ...`; the type `headers` is the array of pairs."""
    pairs = (column.split() for column in text.split(", "))
    return types.StructType([types.StructField(name, TYPES[kind]) for name, kind in pairs])


class TestColumns:
    @pytest.mark.parametrize(
        "schema",
        [
            "value binary", "value string, key string", "value string, headers headers",
            "value string, timestamp timestamp, partition int, topic string",
            "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int",
        ],
    )  # fmt: skip
    def test_accepted_schemas(self, schema: str) -> None:
        check_schema(schema_of(schema), has_topic=True)

    @pytest.mark.parametrize(
        ("schema", "text"),
        [
            ("key string", "column 'value' is missing (columns: key); it must be string or binary"),
            ("value int", "column 'value' has type int; allowed: string, binary"),
            ("value string, key bigint", "column 'key' has type bigint; allowed: string, binary"),
            ("value string, timestamp bigint", "column 'timestamp' has type bigint; allowed: timestamp, timestamp_ntz"),
            ("value string, partition string", "column 'partition' has type string; allowed: int"),
            ("value string, headers map<string,string>", "column 'headers' has type map<string,string>; allowed: array<struct"),
            ("value string, key string, value string", "column 'value' occurs 2 times: keep one of them"),
            ("values string", "column 'values' would not be written, the nearest known one is 'value'; select among: key, value, headers"),
            ("Value string", "column 'Value' would not be written, the nearest known one is 'value'; select among: key"),
            (
                "id int, foo int, value string",
                "column 'id' would not be written; column 'foo' would not be written; select among: key, value, headers, timestamp",
            ),
        ],
    )
    def test_refused_schemas(self, schema: str, text: str) -> None:
        with pytest.raises(ConfigException) as caught:
            check_schema(schema_of(schema), has_topic=True)
        assert text in str(caught.value)

    def test_reason_column_is_not_written(self) -> None:
        check_schema(schema_of("value string, why string"), has_topic=True, reason_column="why")
        check_schema(schema_of("value string, offset string"), has_topic=True, reason_column="offset")

    @pytest.mark.parametrize(
        ("schema", "text"),
        [
            ("value string, wy string", "option errors.column cannot be 'why': no such column; the columns are value, wy"),
            ("value string, why int", "column 'why', which errors.column names, has type int; allowed: string"),
            ("value string, why string, why string", "column 'why' occurs 2 times: keep one of them"),
            ("why string", "column 'value' is missing"),
            ("value string, why string, other string", "column 'other' would not be written"),
        ],
    )
    def test_refused_reason_columns(self, schema: str, text: str) -> None:
        with pytest.raises(ConfigException) as caught:
            check_schema(schema_of(schema), has_topic=True, reason_column="why")
        assert text in str(caught.value)

    @pytest.mark.parametrize("name", ["key", "value", "headers", "timestamp", "partition", "topic"])
    def test_reason_column_is_no_part_of_the_record(self, name: str) -> None:
        given = {"kafka.bootstrap.servers": "a:1", "topic": "t", "errors.column": name}
        with pytest.raises(ConfigException, match=f"errors.column cannot be '{name}': that column is part of the record; choose another"):
            SinkOptions.parse(given, is_stream=True)

    def test_topic_option_or_column_is_required(self) -> None:
        with pytest.raises(ConfigException, match="neither the option topic nor a column 'topic'"):
            check_schema(schema_of("value string"), has_topic=False)


NOTES, LETTERS = '{"ends": {"0": 23}, "run": "r"}', "errors.dead.letter.queue.topic.name"


@pytest.mark.parametrize(
    ("is_stream", "given"),
    [
        (False, {"chaffinch.batch.id": "x", "chaffinch.sink": "s"}),
        (False, {"chaffinch.batch.id": "-1", "chaffinch.sink": "s"}),
        (False, {"chaffinch.batch.id": "1", "chaffinch.sink": ""}),
        (False, {"chaffinch.batch.id": "1"}),
        (False, {"Chaffinch.Sink": "s"}),
        (True, {"chaffinch.batch.id": "1", "chaffinch.sink": "s"}),
        (False, {"chaffinch.batch.id": "1", "chaffinch.sink": "s", "chaffinch.notes": NOTES}),
        (False, {"chaffinch.notes": NOTES}),
        (False, {"chaffinch.notes": NOTES, "idempotencyToken": "once", LETTERS: "dead"}),
        (False, {"chaffinch.notes": NOTES, "idempotencyToken": "replay-d"}),
        *(
            (False, {"chaffinch.notes": text, "idempotencyToken": "replay-d", LETTERS: "dead"})
            for text in ("1", "{", '{"run": "r"}', *(NOTES.replace('"0": 23', ends) for ends in ('"-1": 5', '"0": "5"', '"0": true')))
        ),
        (True, {"chaffinch.notes": NOTES, "idempotencyToken": "replay-d", LETTERS: "dead"}),
        (False, {"chaffinch.writer": "0123456789abcdef"}),
        (False, {"chaffinch.writer": "0123456789abcdef", "idempotencyToken": "once"}),
        (False, {"chaffinch.writer": "me", "idempotencyToken": "replay-d"}),
        (False, {"chaffinch.batch.id": "1", "chaffinch.sink": "s", "chaffinch.writer": "0123456789abcdef"}),
        (False, {"chaffinch.kept": '{"name": "x", "ranges": []}', "idempotencyToken": "replay-d"}),
        (False, {"chaffinch.kept": '{"name": "x", "ranges": []}', "errors.dead.letter.path": "/d", "idempotencyToken": "once"}),
        (False, {"chaffinch.kept": '{"name": "/x", "ranges": []}', "errors.dead.letter.path": "/d", "idempotencyToken": "replay-d"}),
    ],
)
def test_internal_options_are_refused(is_stream: bool, given: Mapping[str, str]) -> None:
    with pytest.raises(ConfigException, match="Chaffinch sets it for its own writes, leave it out"):
        SinkOptions.parse({**LEAST, **given}, is_stream=is_stream)
    with pytest.raises(ConfigException, match="leave it out"):
        KafkaSink({**LEAST, **given})


def test_options_of_foreach_batch_write() -> None:
    given = {**LEAST, "checkpointlocation": "/c", "chaffinch.sink": "audit", "chaffinch.batch.id": "7"}
    options = SinkOptions.parse(given, is_stream=False)
    assert (options.sink_name, options.batch_id, options.checkpoint_location) == ("audit", 7, "/c")
    assert options.qualified_name("q") == "q-audit"
    alone = SinkOptions.parse(LEAST, is_stream=False)
    assert (alone.sink_name, alone.batch_id, alone.checkpoint_location, alone.qualified_name("q")) == (None, None, None, "q")
