"""Where a cluster is looked for when those who are known do not answer: the two options of KIP-899 and KIP-1102."""

from __future__ import annotations

import pytest

from chaffinch.client.addresses import Address
from chaffinch.client.bootstrap import Bootstrap
from chaffinch.client.cluster import ClusterState
from chaffinch.consumer.core.options import CONSUMER_OPTIONS
from chaffinch.errors import ConfigException
from chaffinch.producer.core.options import PRODUCER_OPTIONS

FIRST, KNOWN = Address("first", 1), Address("known", 2)


def bootstrap_of(**options: str) -> tuple[Bootstrap, ClusterState]:
    cluster = ClusterState()
    settings = CONSUMER_OPTIONS.parse({"bootstrap.servers": "first:1", **{name.replace("_", "."): text for name, text in options.items()}})
    return Bootstrap(settings, cluster), cluster


@pytest.mark.parametrize(("strategy", "candidates"), [("rebootstrap", [KNOWN, FIRST]), ("none", [KNOWN])])
def test_whether_the_first_ones_are_asked_once_the_cluster_is_known(strategy, candidates):
    bootstrap, cluster = bootstrap_of(metadata_recovery_strategy=strategy)
    assert bootstrap.candidates() == [FIRST]
    cluster.learn_node(0, KNOWN)
    assert bootstrap.candidates() == candidates


def test_the_known_are_forgotten_after_a_time_without_an_answer():
    bootstrap, cluster = bootstrap_of(metadata_recovery_rebootstrap_trigger_ms="1000")
    cluster.learn_node(0, KNOWN)
    bootstrap.unanswered(5_000)
    bootstrap.unanswered(5_999)
    assert cluster.nodes
    bootstrap.answered()
    bootstrap.unanswered(6_000)
    assert cluster.nodes, "an answer begins the time anew"
    bootstrap.unanswered(7_000)
    assert not cluster.nodes
    assert bootstrap.candidates() == [FIRST]


def test_without_the_strategy_nothing_is_forgotten():
    bootstrap, cluster = bootstrap_of(metadata_recovery_strategy="none", metadata_recovery_rebootstrap_trigger_ms="0")
    cluster.learn_node(0, KNOWN)
    bootstrap.unanswered(5_000)
    bootstrap.begin_again()
    assert bootstrap.candidates() == [KNOWN]


@pytest.mark.parametrize("table", [PRODUCER_OPTIONS, CONSUMER_OPTIONS], ids=["producer", "consumer"])
def test_no_third_strategy(table):
    with pytest.raises(ConfigException, match="one of rebootstrap, none"):
        table.parse({"bootstrap.servers": "first:1", "metadata.recovery.strategy": "retry"})
