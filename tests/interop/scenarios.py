"""The columns of docs/reference/interop.md: the task of a client program, the facts it must report, and the expected log.

A client reports facts (see `python_clients/scenario_program.py`); these are compared one by one. What was stored is read by
Chaffinch's own client as batch headers, so that a client that quietly leaves out a codec or a producer id is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chaffinch.records import batch
from chaffinch.records.batch import BatchHeader, Compression
from tests.broker.socket_client import SocketClient

FETCH_VERSION = 12
"""The last one that names topics."""

FETCH_BYTES = 4 << 20
CULPRITS = "culprits"
CODEC_BITS, TRANSACTIONAL_BIT, CONTROL_BIT = 0b111, 1 << 4, 1 << 5

Stored = list[list[BatchHeader]]
"""The batch headers of each partition, in the order of offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One column. `expected` are the facts; `stored` looks at the log and returns a complaint, or an empty text.

    `group_type`: what the group is afterwards, so that a client that quietly falls back to the classic protocol is found out.
    """

    name: str
    title: str
    expected: Mapping[str, Any]
    partitions: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    stored: Callable[[Stored], str] = lambda _: ""
    group_type: str = ""


def read_stored(bootstrap_servers: str, topic: str, partitions: int) -> Stored:
    """All batch headers of a topic of at most `FETCH_BYTES` per partition; the broker has one node."""
    asked = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=FETCH_BYTES) for index in range(partitions)]
    request = FetchRequest(max_wait_ms=0, topics=[FetchTopic(topic=topic, partitions=asked)])
    with SocketClient(bootstrap_servers) as client:
        answer = client.ask(request, FETCH_VERSION)
    found = {each.partition_index: each for each in answer.responses[0].partitions}
    return [[view.header for view in batch.views(memoryview(found[index].records or b""))] for index in range(partitions)]


def _data(stored: Stored) -> list[BatchHeader]:
    return [header for partition in stored for header in partition if not header.attributes & CONTROL_BIT]


def _codec(wanted: Compression) -> Callable[[Stored], str]:
    def check(stored: Stored) -> str:
        seen = {Compression(header.attributes & CODEC_BITS).name.lower() for header in _data(stored)}
        return "" if seen == {wanted.name.lower()} else f"batches are stored as {', '.join(sorted(seen))}"

    return check


def _sequences(stored: Stored) -> str:
    for partition in stored:
        next_sequence = 0
        for header in partition:
            if header.producer_id < 0 or header.base_sequence != next_sequence:
                return f"a batch of producer {header.producer_id} begins at sequence {header.base_sequence}, expected {next_sequence}"
            next_sequence += header.count
    return ""


def _markers(stored: Stored) -> str:
    control = sum(bool(header.attributes & CONTROL_BIT) for partition in stored for header in partition)
    plain = sum(not header.attributes & TRANSACTIONAL_BIT for header in _data(stored))
    return "" if (control, plain) == (3, 0) else f"{control} markers, expected 3, and {plain} batches outside a transaction"


def _nothing(stored: Stored) -> str:
    return f"{len(_data(stored))} batches are stored, expected none" if _data(stored) else ""


_GROUP = {"alone": 4, "together": [2, 2], "after": 4, "records": 120}

SCENARIOS: tuple[Scenario, ...] = (
    *(
        Scenario(
            name=f"produce-{codec.name.lower()}",
            title=codec.name.lower().replace("none", "uncompressed"),
            partitions=2,
            expected={"acknowledged": 100, "read": 100, "same": True},
            stored=_codec(codec),
        )
        for codec in Compression
    ),
    Scenario(name="headers", title="headers", expected={"headers": [["a", "1"], ["b", ""]]}),
    Scenario(name="group", title="group", partitions=4, expected=_GROUP, group_type="classic"),
    Scenario(name="group-consumer", title="group, KIP-848", partitions=4, expected=_GROUP, group_type="consumer"),
    Scenario(
        name="offsets",
        title="seek, offsets",
        config={"retention.ms": "-1"},  # The timestamps lie years back.
        expected={"committed": 30, "resumed": 30, "sought": 70, "by_time": 50, "beginning": 0, "end": 100},
    ),
    Scenario(name="idempotent", title="idempotent", partitions=2, expected={"acknowledged": 100}, stored=_sequences),
    Scenario(
        name="transactions",
        title="transactions",
        expected={"committed": 20, "rounds": [0, 2], "uncommitted": 30, "offset": 5},
        stored=_markers,
    ),
    Scenario(
        name="transactionstates",
        title="admin: transactions",
        expected={"open": "ongoing", "producers": 1, "ended": "completecommit", "listed": True},
    ),
    Scenario(
        name="topics",
        title="admin: topics",
        expected={
            "created": 2,
            "refused": True,
            "config": "7200000",
            "altered": "3600000",
            "partitions": 4,
            "records_deleted": 5,
            "deleted": True,
        },
    ),
    Scenario(name="groups", title="admin: groups", expected={"listed": True, "state": "empty", "offset": 10, "deleted": True}),
    Scenario(name=CULPRITS, title="culprits", config={"cleanup.policy": "compact"}, expected={"fates": []}, stored=_nothing),
)
"""The facts of `culprits` differ from client to client: `clients.py` has them."""
