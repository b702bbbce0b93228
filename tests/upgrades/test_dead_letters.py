"""Dead letters of earlier formats, in a topic with the notes of replays, and in Parquet files: a replay writes each letter once, and none
that is replayed already."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from chaffinch.spark.replay.replaying import ReplayPlan, replay
from tests.upgrades import query
from tests.upgrades.fixtures import fixtures_of, served, unpacked

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


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
