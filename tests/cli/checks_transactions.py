"""What `chaffinch transactions` does against any cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from chaffinch.errors import KafkaException
from chaffinch.producer.producer import Producer
from tests.cli.checks_records import pairs, topic_of
from tests.cli.shell import Shell


@contextmanager
def open_transaction(shell: Shell, topic: str, transactional_id: str) -> Iterator[Producer]:
    """A producer whose transaction has a record in the topic."""
    producer = Producer(bootstrap_servers=shell.bootstrap_servers, transactional_id=transactional_id)
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0)
        producer.flush()
        yield producer
    finally:
        producer.close()


def open_transactions_are_listed_and_described(shell: Shell) -> None:
    topic, name = topic_of(shell, "described", partitions=2), shell.name("id")
    with open_transaction(shell, topic, name) as producer:
        listed = {entry["transactional_id"]: entry for entry in shell.ok("transactions", "list", "--json").json}
        assert listed[name]["state"] == "Ongoing"
        by_producer = shell.ok("transactions", "list", "--producer-id", str(listed[name]["producer_id"]), "--state", "Ongoing").lines
        assert [line.split()[0] for line in by_producer[1:]] == [name]
        assert name not in shell.ok("transactions", "list", "--duration-filter", "3600000").out
        described = shell.ok("transactions", "describe", "--transactional-id", name, "--json").json
        assert (described["state"], described["partitions"]) == ("Ongoing", [{"topic": topic, "partition": 0}])
        assert (described["producer_id"], described["timeout_ms"]) == (listed[name]["producer_id"], 60_000)
        assert described["started_ms"] > 0
        lines = shell.ok("transactions", "describe", "--transactional-id", name).lines
        assert lines[0].startswith(f"{name}: Ongoing, producer {described['producer_id']} epoch ")
        assert lines[-1] == f"  {topic}-0"
        (found,) = shell.ok("transactions", "describe-producers", "--topic", topic, "--partition", "0", "--json").json
        assert (found["producer_id"], found["transaction_start_offset"], found["last_sequence"]) == (described["producer_id"], 0, 0)
        producer.commit_transaction()
    described = shell.ok("transactions", "describe", "--transactional-id", name, "--json").json
    assert (described["partitions"], described["state"] in ("PrepareCommit", "CompleteCommit", "Empty")) == ([], True)
    if described["state"] != "PrepareCommit":
        assert described["started_ms"] is None, "no transaction is open"


def live_transaction_is_not_hanging_and_can_be_terminated(shell: Shell) -> None:
    topic, name = topic_of(shell, "terminated"), shell.name("id")
    with open_transaction(shell, topic, name) as producer:
        assert shell.ok("transactions", "find-hanging", "--topic", topic, "--max-transaction-timeout", "0").out == ""
        assert shell.ok("transactions", "terminate", "--transactional-id", name).out == f"terminated {name}\n"
        try:
            producer.commit_transaction()
        except KafkaException as error:
            refusal = error
        assert refusal.name == "PRODUCER_FENCED", refusal
    assert pairs(shell, topic) == []


def transaction_is_aborted_in_one_partition(shell: Shell) -> None:
    topic, name = topic_of(shell, "aborted"), shell.name("id")
    place = ("--topic", topic, "--partition", "0")
    with open_transaction(shell, topic, name):
        shell.refused("transactions", "abort", *place, "--start-offset", "7", says="open transactions start at 0")
        (found,) = shell.ok("transactions", "describe-producers", *place, "--json").json
        stranger = ("--producer-id", "987654321", "--producer-epoch", "0", "--coordinator-epoch", "0")
        shell.refused("transactions", "abort", *place, *stranger, says=f"open transactions belong to {found['producer_id']}")
        aborted = shell.ok("transactions", "abort", *place, "--start-offset", "0", "--json").json
        assert (aborted["producer_id"], aborted["producer_epoch"]) == (found["producer_id"], found["producer_epoch"])
        (found,) = shell.ok("transactions", "describe-producers", *place, "--json").json
        assert found["transaction_start_offset"] is None
        shell.ok("produce", "--topic", topic, stdin=b"behind it\n")
        assert pairs(shell, topic) == [(None, "behind it")]


def invalid_transaction_arguments_are_refused(shell: Shell) -> None:
    topic, name = topic_of(shell, "wrong"), shell.name("unknown")
    place = ("--topic", topic, "--partition", "0")
    shell.refused("transactions", "describe", "--transactional-id", name, says=f"transactional id '{name}'")
    shell.refused("transactions", "terminate", "--transactional-id", name, says="TRANSACTIONAL_ID_NOT_FOUND")
    for command in ("describe", "terminate"):
        shell.refused("transactions", command, "--transactional-id", "", says="--transactional-id is empty", status=2)
    shell.refused("transactions", "list", "--state", "Running", says="--state 'Running': it must be one of Empty, Ongoing,", status=2)
    shell.refused("transactions", "abort", *place, says="give --start-offset", status=2)
    shell.refused("transactions", "abort", *place, "--producer-id", "7", says="needs --producer-epoch", status=2)
    for option in ("--producer-epoch", "--coordinator-epoch"):
        shell.refused("transactions", "abort", *place, "--start-offset", "7", option, "0", says="--start-offset looks up the", status=2)
    for option in ("--producer-id", "--duration-filter"):
        shell.refused("transactions", "list", option, str(2**63), says=f"{option}: '{2**63}' is more than {2**63 - 1}", status=2)
    shell.refused("transactions", "abort", *place, "--start-offset", "7", says="none is open there")
    stranger = ("--producer-id", "987654321", "--producer-epoch", "0", "--coordinator-epoch", "0")
    shell.refused("transactions", "abort", *place, *stranger, says=f"has no open transaction in {topic}-0; none is open there")
    shell.refused("transactions", "describe-producers", "--topic", topic, "--partition", "3", says="has partition 0 alone", status=2)
    shell.refused("transactions", "find-hanging", "--partition", "3", says="needs --topic", status=2)


CHECKS = [
    open_transactions_are_listed_and_described,
    live_transaction_is_not_hanging_and_can_be_terminated,
    transaction_is_aborted_in_one_partition,
    invalid_transaction_arguments_are_refused,
]
