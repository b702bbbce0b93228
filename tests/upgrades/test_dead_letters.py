"""Dead letters of earlier formats, in a topic with the notes of replays, and in Parquet files: a replay writes each letter once, and none
that is replayed already."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaffinch.spark.replay.replaying import ReplayPlan
from chaffinch.spark.replay.replaying import replay_dead_letters as replay
from tests.spark.test_spark_write import alter
from tests.upgrades import query
from tests.upgrades.fixtures import fixtures_of, served, unpacked

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.mark.parametrize("is_topic_first", [True, False])
@pytest.mark.parametrize("name", fixtures_of("query_stopped"))
def test_letter_in_topic_and_file_is_written_once(spark: Any, tmp_path: Path, name: str, *, is_topic_first: bool) -> None:
    """Files of the first format do not name the topic, and letters in it have no row: the topic is named."""
    fixture = unpacked(name, tmp_path / "moved")
    good, bad = fixture.facts["good"], fixture.facts["bad"]
    with served(fixture) as broker:
        alter(broker, query.ROWS, "max.message.bytes", str(2 * query.TOO_LARGE))
        client = {"kafka.bootstrap.servers": broker.bootstrap_servers}
        in_topic = ReplayPlan(client=client, topic=query.DEAD)
        plans = [in_topic, replace(in_topic, path=str(fixture.folder / query.LETTERS))]
        first, second = plans if is_topic_first else reversed(plans)
        assert replay(spark, replace(first, where=f"cast(key as string) <= '{min(bad)}'")).written == 1
        assert Counter(key.decode() for key in broker.read(query.ROWS).column("key").to_pylist()) == Counter([*good, min(bad)])
        for plan in (second, first, second):
            replay(spark, plan)
        assert Counter(key.decode() for key in broker.read(query.ROWS).column("key").to_pylist()) == Counter([*good, *bad])


@pytest.mark.parametrize("order", ["topic files topic", "files topic files"])
@pytest.mark.parametrize("name", fixtures_of("both_places"))
def test_topic_and_file_replays_continue(spark: Any, tmp_path: Path, name: str, order: str) -> None:
    """Some are replayed from the topic, some from a file that was not moved behind that; some are in the topic by a digest alone."""
    fixture = unpacked(name, tmp_path / "moved")
    with served(fixture) as broker:
        client, keyed = {"kafka.bootstrap.servers": broker.bootstrap_servers}, {"key": "'k'"}
        places: dict[str, dict[str, Any]] = {"topic": {"topic": "dead"}, "files": {"path": str(fixture.folder / query.LETTERS)}}
        for place in order.split():
            replay(spark, ReplayPlan(client=client, repairs=keyed, **places[place]))
        found = Counter(value.decode()[:20] for value in broker.read("rows").column("value").to_pylist())
        assert found == Counter(fixture.facts["all"])


@pytest.mark.parametrize("name", fixtures_of("letters"))
def test_each_letter_is_written_once(spark: Any, tmp_path: Path, name: str) -> None:
    fixture = unpacked(name, tmp_path / "moved")
    facts = fixture.facts
    with served(fixture) as broker:

        def values() -> Counter[str]:
            return Counter(value.decode() for value in broker.read("rows").column("value").to_pylist())

        assert values() == Counter(facts["written"])
        client, keyed = {"kafka.bootstrap.servers": broker.bootstrap_servers}, {"key": "value"}
        for _ in range(2):  # The second time everything is written.
            replay(spark, ReplayPlan(client=client, topic="dead", repairs=keyed))
            assert values() == Counter([*facts["written"], *facts["in_topic"]])
        for _ in range(2):
            replay(spark, ReplayPlan(client=client, path=str(fixture.folder / query.LETTERS), repairs=keyed))
            assert values() == Counter([*facts["written"], *facts["in_topic"], *facts["in_files"]])
