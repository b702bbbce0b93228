"""Cases: every state of a transactional id x every request about it, in both versions; markers of others, and filters of lists."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.interop.differential.cases_transactions import add, end, identity, init, send
from tests.interop.differential.peer import READY_PAUSE_SECONDS, READY_TRIES, Peer
from tests.interop.differential.requests import request

END_VERSIONS = {1: 4, 2: 5}
Producer = tuple[int, int]


def bring(peer: Peer, name: str, state: str, version: int) -> Producer:
    """Bring a transactional id into a state; the identity it was given last. There was an epoch before it, so that one can be older."""
    peer.quietly(init(name), 4)
    me = identity(peer.quietly(init(name), 4))
    if state == "Empty":
        return me
    peer.quietly(add(name, me), 3)
    if state == "Ongoing":
        return me
    answer = peer.quietly(end(name, me, commit=state == "CompleteCommit"), END_VERSIONS[version])
    wait_for_markers(peer, name)
    return identity(answer) if version == 2 else me


def wait_for_markers(peer: Peer, name: str) -> None:
    """Apache Kafka answers the end of a transaction before its markers are written."""
    for _ in range(READY_TRIES):
        (state,) = peer.quietly(request("DescribeTransactions", transactional_ids=[name]), 0).transaction_states
        if state.transaction_state.startswith("Complete"):
            return
        threading.Event().wait(READY_PAUSE_SECONDS)


def older(me: Producer) -> Producer:
    return me[0], me[1] - 1


def newer(me: Producer) -> Producer:
    return me[0], me[1] + 1


def _verify(name: str, me: Producer) -> Any:
    transaction = {"transactional_id": name, "producer_id": me[0], "producer_epoch": me[1], "verify_only": True}
    return request("AddPartitionsToTxn", transactions=[{**transaction, "topics": [{"name": "orders", "partitions": [1, 2]}]}])


EVENTS: dict[str, Callable[[Peer, str, str, Producer, int], None]] = {
    "commit": lambda peer, label, name, me, version: peer.ask(label, end(name, me), END_VERSIONS[version]),
    "commit, older": lambda peer, label, name, me, version: peer.ask(label, end(name, older(me)), END_VERSIONS[version]),
    "commit, newer": lambda peer, label, name, me, version: peer.ask(label, end(name, newer(me)), END_VERSIONS[version]),
    "abort": lambda peer, label, name, me, version: peer.ask(label, end(name, me, commit=False), END_VERSIONS[version]),
    "abort, older": lambda peer, label, name, me, version: peer.ask(label, end(name, older(me), commit=False), END_VERSIONS[version]),
    "add": lambda peer, label, name, me, version: peer.ask(label, add(name, me, partition=1), 3),
    "add, older": lambda peer, label, name, me, version: peer.ask(label, add(name, older(me), partition=1), 3),
    "verify": lambda peer, label, name, me, version: peer.ask(label, _verify(name, me), 5),
    "init": lambda peer, label, name, me, version: peer.ask(label, init(name), 5),
    "init, current": lambda peer, label, name, me, version: peer.ask(label, init(name, producer=me), 5),
    "init, older": lambda peer, label, name, me, version: peer.ask(label, init(name, producer=older(me)), 5),
    "send": lambda peer, label, name, me, version: peer.ask(label, send(name, me, 0), 12),
    "send, older": lambda peer, label, name, me, version: peer.ask(label, send(name, older(me), 0), 12),
    "send, verified": lambda peer, label, name, me, version: peer.ask(label, send(name, me, 0), 11),
}


def every_state_and_event(peer: Peer) -> None:
    for version in END_VERSIONS:
        for state in ("Empty", "Ongoing", "CompleteCommit", "CompleteAbort"):
            for event, ask in EVENTS.items():
                name = f"{version} {state} {event}"
                ask(peer, f"state v{version}: {state}: {event}", name, bring(peer, name, state, version), version)


def markers_of_others(peer: Peer) -> None:
    """Responses to a tool that ends a hanging transaction."""
    name = "hanging"
    me = identity(peer.quietly(init(name), 4))
    peer.quietly(add(name, me, "compacted", 0), 3)

    def mark(producer: Producer, *, coordinator_epoch: int = 0, level: int = 0, partition: int = 0, topic: str = "compacted") -> Any:
        marker = {"producer_id": producer[0], "producer_epoch": producer[1], "transaction_result": False}
        places = [{"name": topic, "partition_indexes": [partition]}]
        return request(
            "WriteTxnMarkers",
            markers=[{**marker, "topics": places, "coordinator_epoch": coordinator_epoch, "transaction_version": level}],
        )

    peer.ask("marker: missing partition", mark(me, partition=77), 2)
    peer.ask("marker: missing topic", mark(me, topic="missing"), 2)
    peer.ask("marker: higher epoch", mark(newer(me), coordinator_epoch=3, level=2), 2)
    peer.ask("marker: the same again", mark(newer(me), coordinator_epoch=3, level=2), 2)
    peer.ask("marker: lower epoch", mark(me, coordinator_epoch=3), 1)
    peer.ask("marker: older coordinator", mark(newer(me), coordinator_epoch=2), 1)
    peer.ask("marker: the producers after it", request("DescribeProducers", topics=[{"name": "compacted", "partition_indexes": [0]}]), 0)


def filters(peer: Peer) -> None:
    peer.quietly(init("filter-a"), 4)
    peer.quietly(init("filter-bb"), 4)
    for pattern in ("filter-.*", "filter-(a|c)", "filter", "b+", "(", "(?=f)filter-a"):
        asked = request("ListTransactions", state_filters=["Empty"], transactional_id_pattern=pattern)
        peer.ask(f"list: pattern {pattern}", asked, 2)
    for duration_ms in (-1, 0, 10**9):
        asked = request("ListTransactions", duration_filter=duration_ms, transactional_id_pattern="filter-.*")
        peer.ask(f"list: longer than {duration_ms}", asked, 2)
    peer.ask("list: producer", request("ListTransactions", producer_id_filters=[10**12]), 0)
    peer.ask("describe: empty id", request("DescribeTransactions", transactional_ids=[""]), 0)


SCENARIOS = (every_state_and_event, markers_of_others, filters)
