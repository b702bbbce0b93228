"""Cases: transactions of both protocol versions."""

from __future__ import annotations

from typing import Any

from tests.interop.differential.peer import Peer
from tests.interop.differential.requests import API_BY_NAME, fetch, list_offsets, produce, records, request


def init(name: str | None, *, timeout_ms: int = 60_000, producer: tuple[int, int] = (-1, -1)) -> Any:
    values = {"transaction_timeout_ms": timeout_ms, "producer_id": producer[0], "producer_epoch": producer[1]}
    return request("InitProducerId", transactional_id=name, **values)


def add(name: str, producer: tuple[int, int], topic: str = "orders", partition: int = 2) -> Any:
    values = {"v3_and_below_transactional_id": name, "v3_and_below_producer_id": producer[0], "v3_and_below_producer_epoch": producer[1]}
    return request("AddPartitionsToTxn", **values, v3_and_below_topics=[{"name": topic, "partitions": [partition]}])


def end(name: str, producer: tuple[int, int], *, commit: bool = True) -> Any:
    return request("EndTxn", transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], committed=commit)


def send(name: str | None, producer: tuple[int, int], sequence: int) -> Any:
    data = records(b"a", producer=producer, sequence=sequence, is_transactional=True)
    return produce("orders", data, partition=2, transactional_id=name)


def identity(answer: Any) -> tuple[int, int]:
    return answer.producer_id, answer.producer_epoch


def initialisation(peer: Peer) -> None:
    for version in API_BY_NAME["InitProducerId"].served:
        peer.ask(f"init v{version}", init(f"init-{version}"), version)
    peer.ask("init: idempotent", init(None), 4)
    peer.ask("init: empty id", init(""), 4)
    peer.ask("init: no time", init("t", timeout_ms=0), 4)
    peer.ask("init: too much time", init("t", timeout_ms=99_999_999), 4)
    given = identity(peer.quietly(init("t"), 4))
    peer.ask("init: own epoch", init("t", producer=given), 4)
    peer.ask("init: own epoch again", init("t", producer=given), 4)
    peer.ask("init: unknown producer", init("t", producer=(given[0] + 1000, 0)), 4)
    peer.ask("init: future epoch", init("t", producer=(given[0], 50)), 4)
    peer.ask("init: epoch without id", init("t", producer=(-1, 5)), 4)
    peer.ask("init: id without epoch", init("t", producer=(given[0], -1)), 4)


def version_1(peer: Peer) -> None:
    """AddPartitionsToTxn 3, Produce 11, EndTxn 4."""
    name = "one"
    me = identity(peer.quietly(init(name), 4))
    peer.ask("v1: commit nothing", end(name, me), 4)
    peer.ask("v1: abort nothing", end(name, me, commit=False), 4)
    peer.ask("v1: not added", send(name, me, 0), 11)
    peer.ask("v1: not added, Produce 9", send(name, me, 0), 9)
    peer.ask("v1: without a transactional id", send(None, me, 0), 9)
    peer.ask("v1: add, other id", add("nobody", me), 3)
    peer.ask("v1: add, old epoch", add(name, (me[0], me[1] - 1)), 3)
    peer.ask("v1: add, missing topic", add(name, me, "missing"), 3)
    peer.ask("v1: add, missing partition", add(name, me, "orders", 99), 3)
    peer.ask("v1: add", add(name, me), 3)
    peer.ask("v1: send", send(name, me, 0), 9)
    peer.ask("v1: not transactional", produce("orders", records(b"a", producer=me, sequence=1), partition=2), 9)
    peer.ask("v1: reader of committed", fetch("orders", 0, partition=2, isolation_level=1), 12)
    peer.ask("v1: last stable offset", list_offsets("orders", -1, partition=2, isolation_level=1), 7)
    peer.ask("v1: describe", request("DescribeTransactions", transactional_ids=[name, "nobody"]), 0)
    peer.ask("v1: list", request("ListTransactions", state_filters=["Ongoing"]), 1)
    peer.ask("v1: list, unknown state", request("ListTransactions", state_filters=["Nonsense"]), 0)
    peer.ask("v1: producers", request("DescribeProducers", topics=[{"name": "orders", "partition_indexes": [2, 99]}]), 0)
    peer.ask("v1: offsets of no transaction", _offsets(name, me, "v1-group"), 3)
    peer.ask("v1: add offsets", _add_offsets(name, me, "v1-group"), 3)
    peer.ask("v1: offsets", _offsets(name, me, "v1-group"), 3)
    peer.ask("v1: offsets, old epoch", _offsets(name, (me[0], me[1] - 1), "v1-group"), 3)
    peer.ask("v1: offsets, unknown member", _offsets(name, me, "v1-group", generation=3, member="nobody"), 3)
    peer.ask("v1: pending offsets, stable", _stable("v1-group"), 7)
    peer.ask("v1: commit, old epoch", end(name, (me[0], me[1] - 1)), 4)
    peer.ask("v1: commit, old version and epoch", end(name, (me[0], me[1] - 1)), 1)
    peer.ask("v1: commit", end(name, me), 4)
    peer.quietly(init("other"), 4)
    peer.ask("v1: abort after commit", end(name, me, commit=False), 4)
    fenced = identity(peer.quietly(init("fenced"), 4))
    peer.quietly(init("fenced"), 4)
    peer.ask("v1: add, fenced", add("fenced", fenced), 3)
    peer.ask("v1: add, fenced v1", add("fenced", fenced), 1)
    peer.ask("v1: end, fenced", end("fenced", fenced), 3)


def version_2(peer: Peer) -> None:
    """Produce 12, EndTxn 5, TxnOffsetCommit 5 (KIP-890)."""
    name = "two"
    me = identity(peer.quietly(init(name), 5))
    peer.ask("v2: commit nothing", end(name, me), 5)
    aborted = peer.ask("v2: abort nothing", end(name, me, commit=False), 5)
    peer.ask("v2: abort nothing, again", end(name, me, commit=False), 5)
    me = identity(aborted)
    peer.ask("v2: send", send(name, me, 0), 12)
    peer.ask("v2: offsets", _offsets(name, me, "v2-group"), 5)
    committed = peer.ask("v2: commit", end(name, me), 5)
    peer.ask("v2: commit, again", end(name, me), 5)
    peer.ask("v2: abort the committed", end(name, me, commit=False), 5)
    peer.ask("v2: send under the old epoch", send(name, me, 1), 12)
    me = identity(committed)
    peer.ask("v2: commit nothing after a commit", end(name, me), 5)
    peer.ask("v2: describe", request("DescribeTransactions", transactional_ids=[name]), 0)
    peer.ask("v2: wrong producer", end(name, (me[0] + 999, 0)), 5)
    peer.ask("v2: unknown id", end("nobody", me), 5)


def _add_offsets(name: str, producer: tuple[int, int], group: str) -> Any:
    return request("AddOffsetsToTxn", transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], group_id=group)


def _offsets(name: str, producer: tuple[int, int], group: str, generation: int = -1, member: str = "") -> Any:
    asked = {"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}
    values = {"transactional_id": name, "group_id": group, "producer_id": producer[0], "producer_epoch": producer[1]}
    topics = [{"name": "orders", "partitions": [asked]}]
    return request("TxnOffsetCommit", **values, generation_id=generation, member_id=member, topics=topics)


def _stable(group: str) -> Any:
    return request("OffsetFetch", group_id=group, topics=[{"name": "orders", "partition_indexes": [0]}], require_stable=True)


SCENARIOS = (initialisation, version_1, version_2)
