"""Where a cluster is looked for when those who are known do not answer: the two options of KIP-899 and KIP-1102."""

from __future__ import annotations

from random import Random

import pytest

from chaffinch.client.addresses import Address
from chaffinch.client.backoff import Backoff
from chaffinch.client.bootstrap import Bootstrap
from chaffinch.client.cluster import ClusterState
from chaffinch.consumer.core.options import CONSUMER_OPTIONS
from chaffinch.consumer.core.topic_watch import TopicWatch
from chaffinch.consumer.core.wiring import Wiring
from chaffinch.errors import ConfigException, NetworkException, codes
from chaffinch.producer.core.metadata_watch import MetadataWatch
from chaffinch.producer.core.options import PRODUCER_OPTIONS
from chaffinch.protocol.messages.metadata import MetadataResponse

FIRST, KNOWN = Address("first", 1), Address("known", 2)


def bootstrap_of(**options: str) -> tuple[Bootstrap, ClusterState]:
    cluster = ClusterState()
    settings = CONSUMER_OPTIONS.parse({"bootstrap.servers": "first:1", **{name.replace("_", "."): text for name, text in options.items()}})
    return Bootstrap(settings, cluster), cluster


@pytest.mark.parametrize(
    ("strategy", "candidates"), [("rebootstrap", [KNOWN, FIRST]), ("none", [KNOWN]), ("REBOOTSTRAP", [KNOWN, FIRST]), ("NONE", [KNOWN])]
)
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


def metadata_of_producer(**options: str) -> tuple[MetadataWatch, ClusterState]:
    bootstrap, cluster = bootstrap_of(**options)
    return MetadataWatch(cluster, bootstrap, age_ms_max=1, idle_ms_max=1, backoff=Backoff(initial_ms=1, max_ms=1), dice=Random(1)), cluster


def metadata_of_consumer(**options: str) -> tuple[TopicWatch, ClusterState]:
    given = {name.replace("_", "."): text for name, text in options.items()}
    wiring = Wiring(CONSUMER_OPTIONS.parse({"bootstrap.servers": "first:1", **given}), Random(1))
    return TopicWatch(wiring), wiring.cluster


@pytest.mark.parametrize("made", [metadata_of_producer, metadata_of_consumer])
def test_both_clients_look_for_their_cluster_anew(made):
    watch, cluster = made(metadata_recovery_rebootstrap_trigger_ms="1000")
    cluster.learn_node(0, KNOWN)
    watch.unanswered(NetworkException("gone"), 5_000)
    watch.answered(MetadataResponse(), 5_500)
    watch.unanswered(NetworkException("gone"), 6_000)
    watch.unanswered(NetworkException("gone"), 6_900)
    assert cluster.nodes
    watch.unanswered(NetworkException("gone"), 7_000)
    assert not cluster.nodes


@pytest.mark.parametrize(("strategy", "is_known"), [("rebootstrap", False), ("none", True)])
@pytest.mark.parametrize("made", [metadata_of_producer, metadata_of_consumer])
def test_a_broker_may_ask_them_to(made, strategy, is_known):
    watch, cluster = made(metadata_recovery_strategy=strategy)
    cluster.learn_node(0, KNOWN)
    watch.answered(MetadataResponse(error_code=codes.REBOOTSTRAP_REQUIRED.number), 5_500)
    assert bool(cluster.nodes) is is_known
