"""Checkpoints of earlier formats, at rest or killed in the middle of a commit: the query goes on from each, and every row is counted.

The half-finished micro-batch is in Kafka once, whatever step it was killed at, and so is what comes after it. A checkpoint lies elsewhere
than where it was written, as does its broker."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from chaffinch.broker.embedded import EmbeddedBroker
from tests.upgrades import query
from tests.upgrades.fixtures import fixtures_of, served, unpacked
from tests.upgrades.make_fixtures import add_rows

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
ADDED = 40


def keys_in(broker: EmbeddedBroker, topic: str) -> Counter[str]:
    return Counter(key.decode() for key in broker.read(topic).column("key").to_pylist())


def keys_in_files(folder: Path) -> Counter[str]:
    return Counter(key.decode() for path in folder.glob("*.parquet") for key in pq.read_table(path).column("key").to_pylist())


@pytest.mark.parametrize("name", [*fixtures_of("query"), *fixtures_of("for_each_batch")])
def test_query_continues_from_checkpoint(spark: Any, tmp_path: Path, name: str) -> None:
    fixture = unpacked(name, tmp_path / "moved")
    good, bad = list(fixture.facts["good"]), list(fixture.facts["bad"])
    with served(fixture) as broker:
        add_rows(broker.bootstrap_servers, "added", ADDED, 10, good, bad)
        for _ in range(2):  # The second time there is nothing new.
            running = query.started(spark, broker.bootstrap_servers, fixture.folder, is_for_each_batch=fixture.facts["is_for_each_batch"])
            assert running.awaitTermination(280)
        assert keys_in(broker, query.ROWS) == Counter(good)
        assert keys_in(broker, query.DEAD) == Counter(bad)
        assert keys_in_files(fixture.folder / query.LETTERS) == Counter(bad)
    assert list((fixture.folder / query.CHECKPOINT).rglob("task-*")) == [], "what was staged before is cleaned up"
