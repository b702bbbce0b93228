"""Counts the rows of a killed query, from outside: confluent-kafka with read_committed, and the Parquet files as they lie there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from pathlib import Path

import pyarrow.parquet as pq

from tests.soak.verdict import read_messages

SHOWN = 5


def keys_in_topic(bootstrap_servers: str, topic: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for messages in read_messages(bootstrap_servers, topic).values():
        found.update((message.key() or b"").decode() for message in messages)
    return found


def keys_in_files(folder: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for path in sorted(folder.glob("*.parquet")):
        found.update(key.decode() for key in pq.read_table(path, columns=["key"]).column("key").to_pylist())
    return found


def miscounted(where: str, found: Counter[str], expected: Set[str]) -> Iterator[str]:
    """Each expected key exactly once, and no other."""
    kinds = {
        "missing": expected - found.keys(),
        "there more than once": {key for key, count in found.items() if count > 1},
        "there, but ought not to be": found.keys() - expected,
    }
    for kind, keys in kinds.items():
        if keys:
            yield f"{where}: {len(keys)} of {len(expected)} keys are {kind}, for example {sorted(keys)[:SHOWN]}"


def lost(where: str, found: Counter[str], expected: Set[str]) -> list[str]:
    """Each expected key at least once, and no other."""
    return list(miscounted(where, Counter(found.keys()), expected))


def doubled(found: Counter[str]) -> str:
    """How many keys are there more than once."""
    return f"{sum(count > 1 for count in found.values())} of {len(found)} more than once, at most {max(found.values(), default=0)} times"


def verdict(bootstrap_servers: str, topic: str, dead_topic: str, dead_folder: Path, good: Set[str], bad: Set[str]) -> list[str]:
    """Everything that is wrong; empty when nothing is."""
    return [
        *miscounted(topic, keys_in_topic(bootstrap_servers, topic), good),
        *miscounted(dead_topic, keys_in_topic(bootstrap_servers, dead_topic), bad),
        *miscounted("Parquet files", keys_in_files(dead_folder), bad),
    ]
