"""The fixtures of all formats: found, unpacked, and served by a broker to which no time has gone by since they were made."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.runtime.clock import SystemClock
from tests.upgrades.make_fixtures import FACTS

STORED = Path(__file__).parent
LATER_MS = 1_000
"""How long after a fixture was made it is opened, by the broker's clock."""
INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
CONFIG = {
    # The clients' clocks go on: what they write is later than the broker's time, and the sink reads how long markers are kept.
    "log.message.timestamp.after.max.ms": LONG_MAX,
    "offsets.retention.minutes": INT_MAX,
    "group.initial.rebalance.delay.ms": 0,
    # A new member waits until the sessions of those that were killed end.
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.heartbeat.interval.ms": 300,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": 1_000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixture:
    """One that lies unpacked in `folder`. `facts`: what its maker says must be there."""

    folder: Path
    facts: dict[str, Any]


class EarlierClock(SystemClock):
    """The machine's clock, whose wall time is behind by so much."""

    __slots__ = ("_behind_ms",)

    def __init__(self, wall_ms: int) -> None:
        self._behind_ms = super().wall_ms() - wall_ms

    def wall_ms(self) -> int:
        return super().wall_ms() - self._behind_ms


def fixtures_of(kind: str) -> list[str]:
    """`<format>/<name>` of all fixtures whose names begin so."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in STORED.glob(f"*/{kind}*.zip"))


def unpacked(name: str, folder: Path) -> Fixture:
    with zipfile.ZipFile(STORED / f"{name}.zip") as archive:
        archive.extractall(folder)
    facts = json.loads((folder / FACTS).read_text())
    for path, time_ns in facts["times_ns"].items():
        os.utime(folder / path, ns=(time_ns, time_ns))
    return Fixture(folder=folder, facts=facts)


@contextmanager
def served(fixture: Fixture) -> Iterator[EmbeddedBroker]:
    """A broker of this tree on the fixture's data directory."""
    clock = EarlierClock(fixture.facts["made_ms"] + LATER_MS)
    with (
        mock.patch("chaffinch.broker.server.SystemClock", return_value=clock),
        EmbeddedBroker(data_dir=fixture.folder / "broker", config=CONFIG) as broker,
    ):
        yield broker
