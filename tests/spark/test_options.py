"""Options that sink and source share, and the import cost of the modules of Spark workers."""

import logging
import subprocess
import sys
from collections.abc import Mapping

import pytest

from chaffinch.client.options import METADATA_OPTIONS, WITHOUT_EFFECT, connection_options
from chaffinch.consumer.core.options import CONSUMER_OPTIONS
from chaffinch.errors import ConfigException
from chaffinch.producer.core.options import PRODUCER_OPTIONS
from chaffinch.settings import OptionTable
from chaffinch.spark.options import parse
from chaffinch.spark.sink.option_tables import SINK, TABLES
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.source.options import SOURCE, STREAM_SOURCE
from chaffinch.spark.target import client_for
from chaffinch.spark.tasks.row_handler import handler_for
from tools.markdown_tables import options_table

LEAST = {"kafka.bootstrap.servers": "a:1", "topic": "orders"}


@pytest.fixture(autouse=True)
def nothing_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaffinch.spark.options._logged", set())


def test_option_without_effect_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Of a stream, options are read twice per micro-batch."""
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            parse(SINK, {**LEAST, "kafka.linger.ms": "5", "checkpointLocation": "/c"})
    assert [record.message for record in caplog.records] == ["options without effect here: kafka.linger.ms"]


@pytest.mark.parametrize("table", [*TABLES.values(), SOURCE, STREAM_SOURCE], ids=[*TABLES, "source", "stream"])
def test_option_given_in_two_cases_is_refused_without_value(table: OptionTable) -> None:
    given = {**LEAST, "kafka.sasl.password": "S3cret", "kafka.SASL.password": "other"}
    text = r"^option kafka.sasl.password is given twice, as 'kafka.sasl.password' and as 'kafka.SASL.password': give it once$"
    with pytest.raises(ConfigException, match=text):
        parse(table, given)


@pytest.mark.parametrize("guarantee", TABLES)
@pytest.mark.parametrize(
    ("codec", "said"),
    [
        (None, "none: kafka.compression.gzip.level, kafka.compression.zstd.level"),
        ("gzip", "gzip: kafka.compression.zstd.level"),
        ("snappy", "snappy: kafka.compression.gzip.level, kafka.compression.zstd.level"),
    ],
)
def test_level_of_other_codec_has_no_effect(guarantee: str, codec: str | None, said: str, caplog: pytest.LogCaptureFixture) -> None:
    given = {"deliveryGuarantee": guarantee, "kafka.compression.zstd.level": "7", "kafka.compression.gzip.level": "2"}
    chosen = {} if codec is None else {"kafka.compression.type": codec}
    with caplog.at_level(logging.WARNING):
        SinkOptions.parse({**LEAST, **given, **chosen}, is_stream=True)
    assert [record.message for record in caplog.records] == [f"options without effect with kafka.compression.type={said}"]


def test_level_of_codec_in_use_has_effect(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        SinkOptions.parse({**LEAST, "kafka.compression.type": "zstd", "kafka.compression.zstd.level": "7"}, is_stream=True)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("table", "text"), [(SINK, "name a topic with the option topic"), (SOURCE, "name topics with one of subscribe")], ids=["sink", "source"]
)
def test_path_option_is_refused(table: OptionTable, text: str) -> None:
    """What `.save(path)`, `.start(path)` and `.load(path)` make of it."""
    with pytest.raises(ConfigException, match=text):
        parse(table, {"kafka.bootstrap.servers": "a:1", "path": "/orders"})


@pytest.mark.parametrize("table", [SINK, SOURCE, STREAM_SOURCE], ids=["sink", "source", "stream source"])
def test_missing_options_error_names_sql_statements(table: OptionTable) -> None:
    """Spark hands the options of CREATE TABLE to no format in Python."""
    with pytest.raises(ConfigException, match=r"kafka\.bootstrap\.servers is missing: .*CREATE TEMPORARY VIEW"):
        parse(table, {})
    with pytest.raises(ConfigException, match=r"kafka\.bootstrap\.servers is missing: host:port of one or more brokers to start from$"):
        parse(table, {"failOnDataLoss": "true"} if table is not SINK else {"topic": "orders"})


def known_of_clients() -> list[str]:
    """Every option of clients in general: those that all parts have, and those that Kafka knows and nothing here needs."""
    named = {option.name for option in (*connection_options("c"), *METADATA_OPTIONS)}
    return sorted(f"kafka.{name}" for name in named | WITHOUT_EFFECT)


@pytest.mark.parametrize("table", [SINK, SOURCE], ids=["sink", "source"])
def test_client_options_are_case_insensitive(table: OptionTable) -> None:
    accepted = {option.name for option in table.options} | table.without_effect
    assert [name for name in known_of_clients() if name not in accepted] == []
    idle = {"kafka.METADATA.recovery.strategy": "none", "kafka.metadata.recovery.rebootstrap.trigger.ms": "1"}
    assert sorted(parse(table, {**LEAST, **idle} if table is SINK else {"kafka.bootstrap.servers": "a:1", **idle}).ignored) == [
        "kafka.metadata.recovery.rebootstrap.trigger.ms",
        "kafka.metadata.recovery.strategy",
    ]


@pytest.mark.parametrize(
    ("table", "clients"),
    [(SOURCE, CONSUMER_OPTIONS), (STREAM_SOURCE, CONSUMER_OPTIONS), *((table, PRODUCER_OPTIONS) for table in TABLES.values())],
    ids=["source", "stream source", *TABLES],
)
def test_client_options_are_never_unknown(table: OptionTable, clients: OptionTable) -> None:
    """Queries of the Kafka source and sink of Spark may have `kafka.session.timeout.ms`; wrong values are refused with the reason."""
    known = {option.name for option in table.options} | table.without_effect | table.hinted
    names = {option.name for option in clients.options} | clients.without_effect
    assert sorted(name for name in names if f"kafka.{name}" not in known) == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"kafka.bootstrap.servers": "a"}, "option kafka.bootstrap.servers cannot contain 'a'"),
        ({"kafka.sasl.username": "u"}, "option kafka.sasl.username cannot be used with kafka.security.protocol=PLAINTEXT"),
        ({"kafka.security.protocol": "SASL_SSL"}, "option kafka.sasl.mechanism is missing: kafka.security.protocol=SASL_SSL"),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.truststore.type": "JKS"}, "option kafka.ssl.truststore.type cannot be 'JKS'"),
        (
            {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/no/acks.ssl.key.password"},
            "option kafka.ssl.truststore.location: /no/acks.ssl.key.password: No such file",
        ),
        ({"kafka.custom.exception.handler.class": "no.such"}, "option kafka.custom.exception.handler.class cannot be 'no.such'"),
    ],
)
def test_client_error_names_option_as_typed(given: Mapping[str, str], text: str) -> None:
    def begin() -> None:
        options = SinkOptions.parse({**LEAST, **given}, is_stream=True)
        handler_for(options.handler)
        client_for(options.client)

    with pytest.raises(ConfigException) as caught:
        begin()
    assert str(caught.value).startswith(text)
    assert "kafka.kafka." not in str(caught.value)


def test_every_option_is_documented() -> None:
    for table in (SINK, SOURCE):
        assert all(option.documentation for option in table.options)
        assert "| `kafka.bootstrap.servers` | list | (required) |" in options_table(table.options)


@pytest.mark.parametrize(
    "module", ["pyspark_chaffinch", "chaffinch.spark.session", "chaffinch.spark.sink.writers", "chaffinch.spark.source.stream_reader"]
)
def test_import_loads_no_heavy_module(module: str) -> None:
    """Spark imports these in every worker that it starts. PySpark 4.1 itself loads NumPy."""
    heavy = "{'pandas', 'numba', 'pyarrow', 'numpy', 'confluent_kafka'}"
    code = f"import sys, pyspark; before = set(sys.modules); import {module}; print(sorted({heavy} & set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
