"""Repairs of dead letters with a real Spark: what it does not take, and what fails while it runs."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.errors import ConfigException
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.replay import topic_replay, writing
from chaffinch.spark.replay.replaying import replay_dead_letters as replay
from tests.spark.test_spark_replay import bad_rows, outcome, plan
from tests.spark.test_spark_write import values, write

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("nothing + 1", r"--repair key=nothing \+ 1: a letter has no column `nothing`; its columns are: key, .*, query, batch$"),
        ("is_cut", r"--repair key=is_cut: a letter has no column `is_cut`; its columns are: key, "),
        ("if(", r"--repair key=if\(: \[PARSE_SYNTAX_ERROR\]"),
        ("1", "column 'key' has type int; allowed: string, binary"),
        ("explode(array('a', 'b'))", r"UNSUPPORTED_GENERATOR"),
    ],
)
def test_invalid_repair_is_refused_before_read(
    spark: SparkSession, broker: EmbeddedBroker, dead: str, monkeypatch: pytest.MonkeyPatch, expression: str, says: str
) -> None:
    monkeypatch.setattr(topic_replay, "read_ledger", None)
    with pytest.raises(ConfigException, match=says):
        replay(spark, plan(broker, topic=dead, repairs={"key": expression}))


FAILS = "cast(cast(cast(value as string) as int) as string)"
FAILED = (
    r"^KAFKA\[InvalidConfiguration\] CONFIG: --repair key=cast\(cast\(cast\(value as string\) as int\) as string\): \[CAST_INVALID_INPUT\] "
    r"The value 'v0' of the type \"STRING\" cannot be cast to \"INT\" [^\n]* return NULL instead; "
)


@pytest.mark.parametrize("is_dry_run", [True, False])
def test_failing_repair_is_named_with_written_state(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str, tmp_path: Path, is_dry_run: bool
) -> None:
    """Not those before it, which do not fail by themselves, nor those behind it."""
    write(
        bad_rows(spark, 1), broker, topic, errors__tolerance="all", errors__dead__letter__queue__topic__name=dead,
        errors__dead__letter__path=str(tmp_path),
    )  # fmt: skip
    repairs = {"headers": "array(named_struct('key', 'mine', 'value', value))", "key": FAILS, "value": "key"}
    for letters_of in ({"topic": dead}, {"path": str(tmp_path)}):
        with pytest.raises(Refusal, match=rf"{FAILED}nothing was written$"):
            replay(spark, plan(broker, **letters_of, repairs=repairs, is_dry_run=is_dry_run))
    assert broker.read(topic).num_rows == 0
    assert outcome(replay(spark, plan(broker, topic=dead, repairs={"key": "value"}))) == (1, 1, {})


def test_repair_failing_for_later_file_is_named(spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    good = spark.sql("SELECT cast(null as string) as key, cast('1' as binary) as value")
    for rows_of, name in ((bad_rows(spark, 1), "b.parquet"), (good, "a.parquet")):
        write(rows_of, broker, topic, errors__tolerance="all", errors__dead__letter__path=str(tmp_path))
        (made,) = tmp_path.glob("*-*.parquet")
        made.rename(tmp_path / name)
    left = r"no letters of b\.parquet were written; the files before it, by name, are replayed$"
    with pytest.raises(Refusal, match=FAILED + left):
        replay(spark, plan(broker, path=str(tmp_path), repairs={"key": FAILS}))
    assert values(broker, topic) == {"1": 1}
    assert [path.name for path in tmp_path.glob("*.parquet")] == ["b.parquet"]


def test_other_failure_is_raised_unchanged(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(bad_rows(spark, 1), broker, topic, errors__tolerance="all", errors__dead__letter__queue__topic__name=dead)

    def fails(*_: object) -> None:
        raise RuntimeError("no disk")

    monkeypatch.setattr(writing, "write", fails)
    with pytest.raises(RuntimeError, match=r"^no disk$"):
        replay(spark, plan(broker, topic=dead, repairs={"key": "value"}))
