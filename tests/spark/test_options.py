"""What the options of sink and source share, and what importing the modules of Spark's workers costs."""

import logging
import subprocess
import sys

import pytest

from chaffinch.client.options import METADATA_OPTIONS, WITHOUT_EFFECT, connection_options
from chaffinch.errors import ConfigException
from chaffinch.spark.options import parse
from chaffinch.spark.sink.option_tables import SINK
from chaffinch.spark.source.options import SOURCE

LEAST = {"kafka.bootstrap.servers": "a:1", "topic": "orders"}


def test_what_has_no_effect_is_said_once_in_the_log(caplog):
    with caplog.at_level(logging.WARNING):
        parse(SINK, {**LEAST, "kafka.linger.ms": "5", "checkpointLocation": "/c"})
    assert [record.message for record in caplog.records] == ["options without effect here: kafka.linger.ms"]


@pytest.mark.parametrize(
    ("table", "text"), [(SINK, "named by the option topic"), (SOURCE, "named by one of subscribe")], ids=["sink", "source"]
)
def test_a_path_is_refused(table, text):
    """What `.save(path)`, `.start(path)` and `.load(path)` make of it."""
    with pytest.raises(ConfigException, match=text):
        parse(table, {"kafka.bootstrap.servers": "a:1", "path": "/orders"})


def known_of_clients():
    """Every option of clients in general: those that all parts have, and those that Kafka knows and nothing here needs."""
    named = {option.name for option in (*connection_options("c"), *METADATA_OPTIONS)}
    return sorted(f"kafka.{name}" for name in named | WITHOUT_EFFECT)


@pytest.mark.parametrize("table", [SINK, SOURCE], ids=["sink", "source"])
def test_every_option_of_clients_is_known_whatever_its_case(table):
    accepted = {option.name for option in table.options} | table.without_effect
    assert [name for name in known_of_clients() if name not in accepted] == []
    idle = {"kafka.METADATA.recovery.strategy": "none", "kafka.metadata.recovery.rebootstrap.trigger.ms": "1"}
    assert sorted(parse(table, {**LEAST, **idle} if table is SINK else {"kafka.bootstrap.servers": "a:1", **idle}).ignored) == [
        "kafka.metadata.recovery.rebootstrap.trigger.ms",
        "kafka.metadata.recovery.strategy",
    ]


def test_every_option_is_documented():
    for table in (SINK, SOURCE):
        assert all(option.documentation for option in table.options)
        assert "| `kafka.bootstrap.servers` | list | (required) |" in table.table_markdown()


@pytest.mark.parametrize(
    "module", ["pyspark_chaffinch", "chaffinch.spark.session", "chaffinch.spark.sink.writers", "chaffinch.spark.source.stream_reader"]
)
def test_an_import_loads_nothing_heavy(module):
    """Spark imports these in every worker that it starts."""
    code = f"import sys, {module}; print(sorted({{'pandas', 'numba', 'pyarrow', 'numpy', 'confluent_kafka'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
