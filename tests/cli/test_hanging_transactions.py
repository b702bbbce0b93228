"""Transactions that hang: found by `chaffinch transactions find-hanging`, ended by `abort`.

Brokers that check each one with its coordinator (KIP-890) let none come into being, ours among them.
"""

from __future__ import annotations

from pathlib import Path

from chaffinch import EmbeddedBroker
from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.identifiers import ProducerIdentity
from chaffinch.records import batch
from chaffinch.records.columns import RecordColumns
from tests.cli.checks_records import TIME_MS, pairs
from tests.cli.shell import Shell


def hang(broker: EmbeddedBroker, topic: str) -> ProducerIdentity:
    """A transactional record in partition 0 whose transaction no coordinator knows, put there behind the broker's back."""
    identity = ProducerIdentity(4711, 3)
    columns = RecordColumns.from_lists(None, [b"hangs"], [TIME_MS])
    data = batch.encode(columns, identity=identity, base_sequence=0, is_transactional=True)

    def append(core: BrokerCore) -> None:
        found = core.topics.get(topic)
        assert found is not None
        found.partitions[0].log.append(data, steady_ms=TIME_MS, leader_epoch=0)

    broker._call(append)
    return identity


def test_hanging_transaction_is_found_and_aborted(tmp_path: Path) -> None:
    with EmbeddedBroker(topics={"orders": {}, "others": {}}) as broker:
        shell = Shell(broker.bootstrap_servers, tmp_path, "hanging")
        identity = hang(broker, "orders")
        shell.ok("produce", "--topic", "orders", stdin=b"behind it\n")
        assert pairs(shell, "orders") == []
        assert shell.ok("transactions", "find-hanging", "--max-transaction-timeout", str(10**9)).out == ""
        (found,) = shell.ok("transactions", "find-hanging", "--json").json
        assert (found["topic"], found["partition"], found["producer_id"]) == ("orders", 0, identity.producer_id)
        assert found["transaction_start_offset"] == 0
        row = shell.ok("transactions", "find-hanging", "--topic", "orders").lines[1].split()
        assert row == ["orders", "0", str(identity.producer_id), "3", str(found["coordinator_epoch"]), "0", "2023-11-14T22:13:20.000Z", "0"]
        shell.ok("transactions", "abort", "--topic", "orders", "--partition", "0", "--start-offset", "0")
        assert shell.ok("transactions", "find-hanging").out == ""
        assert pairs(shell, "orders") == [(None, "behind it")]


def test_abort_by_producer_reports_what_is_known(tmp_path: Path) -> None:
    """A broker writes an abort marker for any producer. Brokers before Kafka 2.8 cannot list open transactions."""
    with EmbeddedBroker(topics={"orders": {}}) as broker:
        shell = Shell(broker.bootstrap_servers, tmp_path, "hanging")
        producer = hang(broker, "orders").producer_id
        abort = ("transactions", "abort", "--topic", "orders", "--partition", "0", "--producer-epoch", "3", "--coordinator-epoch", "0")
        says = f"4712 has no open transaction in orders-0; open transactions belong to {producer}"
        shell.refused(*abort, "--producer-id", "4712", says=says)
        ended = shell.ok(*abort, "--producer-id", str(producer))
        assert ended.out == f"aborted the transaction of producer {producer} epoch 3 in orders-0\n"
        shell.refused(*abort, "--producer-id", str(producer), says="none is open there")
        broker.faults.add(api="DescribeProducers", error="UNSUPPORTED_VERSION")
        ended = shell.ok(*abort, "--producer-id", str(producer))
        assert ended.out == f"wrote an abort marker for producer {producer} epoch 3 in orders-0; its broker cannot list open transactions\n"
