"""Where a cluster is looked for when those who are known do not answer: the two options of KIP-899 and KIP-1102."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from chaffinch.client.addresses import Address, Attempts
from chaffinch.client.backoff import Backoff
from chaffinch.client.bootstrap import Bootstrap, first_response_timeout_ms
from chaffinch.client.cluster import ClusterState
from chaffinch.client.connections import Disconnected, RequestFailed
from chaffinch.client.effects import SendRequest
from chaffinch.client.options import ConnectionSettings
from chaffinch.client.sync_client import SyncClient
from chaffinch.consumer.core.context import ConsumerContext
from chaffinch.consumer.core.metadata_watch import MetadataWatch as ConsumerMetadataWatch
from chaffinch.consumer.core.options import CONSUMER_OPTIONS
from chaffinch.errors import ConfigException, NetworkException, codes
from chaffinch.producer.core.events import TimePassed, TopicRequested
from chaffinch.producer.core.metadata_watch import MetadataWatch
from chaffinch.producer.core.options import PRODUCER_OPTIONS
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.protocol.messages.find_coordinator import FindCoordinatorRequest
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataResponse
from chaffinch.settings import OptionTable
from tests.client.scripted_server import STAY_SILENT, ScriptedServer
from tests.consumer.core.rig import Rig as ConsumerRig

FIRST, KNOWN = Address("first", 1), Address("known", 2)


def bootstrap_of(**options: str) -> tuple[Bootstrap, ClusterState]:
    cluster = ClusterState()
    settings = CONSUMER_OPTIONS.parse({"bootstrap.servers": "first:1", **{name.replace("_", "."): text for name, text in options.items()}})
    return Bootstrap(settings, cluster, limit_ms=60_000), cluster


@pytest.mark.parametrize(
    ("strategy", "candidates"), [("rebootstrap", [KNOWN, FIRST]), ("none", [KNOWN]), ("REBOOTSTRAP", [KNOWN, FIRST]), ("NONE", [KNOWN])]
)
def test_bootstrap_servers_stay_candidates_with_rebootstrap_only(strategy: str, candidates: list[Address]) -> None:
    bootstrap, cluster = bootstrap_of(metadata_recovery_strategy=strategy)
    assert bootstrap.candidates() == [FIRST]
    cluster.learn_node(0, KNOWN)
    assert bootstrap.candidates() == candidates


def test_known_brokers_are_forgotten_after_the_trigger_time() -> None:
    bootstrap, cluster = bootstrap_of(metadata_recovery_rebootstrap_trigger_ms="1000")
    cluster.learn_node(0, KNOWN)
    bootstrap.metadata_failed(5_000)
    bootstrap.metadata_failed(5_999)
    assert cluster.nodes
    bootstrap.metadata_received()
    bootstrap.metadata_failed(6_000)
    assert cluster.nodes, "a response restarts the trigger time"
    bootstrap.metadata_failed(7_000)
    assert not cluster.nodes
    assert bootstrap.candidates() == [FIRST]


def test_strategy_none_forgets_nothing() -> None:
    bootstrap, cluster = bootstrap_of(metadata_recovery_strategy="none", metadata_recovery_rebootstrap_trigger_ms="0")
    cluster.learn_node(0, KNOWN)
    bootstrap.metadata_failed(5_000)
    bootstrap.rebootstrap()
    assert bootstrap.candidates() == [KNOWN]


@pytest.mark.parametrize("table", [PRODUCER_OPTIONS, CONSUMER_OPTIONS], ids=["producer", "consumer"])
def test_unknown_strategy_is_rejected(table: OptionTable) -> None:
    with pytest.raises(ConfigException, match="one of rebootstrap, none"):
        table.parse({"bootstrap.servers": "first:1", "metadata.recovery.strategy": "retry"})


def metadata_of_producer(**options: str) -> tuple[MetadataWatch, ClusterState]:
    bootstrap, cluster = bootstrap_of(**options)
    return MetadataWatch(cluster, bootstrap, age_ms_max=1, idle_ms_max=1, backoff=Backoff(initial_ms=1, max_ms=1), rng=Random(1)), cluster


def metadata_of_consumer(**options: str) -> tuple[ConsumerMetadataWatch, ClusterState]:
    given = {name.replace("_", "."): text for name, text in options.items()}
    context = ConsumerContext(CONSUMER_OPTIONS.parse({"bootstrap.servers": "first:1", **given}), Random(1))
    return ConsumerMetadataWatch(context), context.cluster


Made = Callable[..., tuple[MetadataWatch | ConsumerMetadataWatch, ClusterState]]


@pytest.mark.parametrize("made", [metadata_of_producer, metadata_of_consumer])
def test_both_clients_rebootstrap(made: Made) -> None:
    watch, cluster = made(metadata_recovery_rebootstrap_trigger_ms="1000")
    cluster.learn_node(0, KNOWN)
    watch.request_failed(NetworkException("gone"), 5_000)
    watch.response_received(MetadataResponse(), 5_500)
    watch.request_failed(NetworkException("gone"), 6_000)
    watch.request_failed(NetworkException("gone"), 6_900)
    assert cluster.nodes
    watch.request_failed(NetworkException("gone"), 7_000)
    assert not cluster.nodes


@pytest.mark.parametrize(("strategy", "is_known"), [("rebootstrap", False), ("none", True)])
@pytest.mark.parametrize("made", [metadata_of_producer, metadata_of_consumer])
def test_rebootstrap_required_code_rebootstraps(made: Made, strategy: str, is_known: bool) -> None:
    watch, cluster = made(metadata_recovery_strategy=strategy)
    cluster.learn_node(0, KNOWN)
    watch.response_received(MetadataResponse(error_code=codes.REBOOTSTRAP_REQUIRED.number), 5_500)
    assert bool(cluster.nodes) is is_known


A, B, C = (Address(host, 1) for host in "abc")


@pytest.mark.parametrize(
    ("setup_ms", "limit_ms", "timeout_ms"),
    [(10_000, 60_000, 2_000), (10_000, 6_000, 1_000), (10_000, 0, 100), (400_000, 600_000, 30_000)],
    ids=["a part of a connection's time", "a part of the callers' time", "not too little", "at most the request timeout"],
)
def test_silent_bootstrap_server_does_not_delay_the_next(setup_ms: int, limit_ms: int, timeout_ms: int) -> None:
    attempts = Attempts(Backoff(initial_ms=50, max_ms=1_000), Random(1))

    def first_timeout(address: Address) -> int:
        return first_response_timeout_ms(address, [A, B, C], attempts, setup_ms=setup_ms, request_ms=30_000, limit_ms=limit_ms)

    assert first_timeout(A) == timeout_ms
    attempts.failed(A, "no answer", 0)
    assert first_timeout(B) == timeout_ms
    attempts.failed(B, "no answer", 0)
    assert (first_timeout(C), first_timeout(A)) == (30_000, 30_000), "the last one may just be slow, and so may the others be"


def test_known_broker_has_the_request_timeout() -> None:
    bootstrap, cluster = bootstrap_of(bootstrap_servers="first:1,second:1")
    attempts = Attempts(Backoff(initial_ms=50, max_ms=1_000), Random(1))
    assert bootstrap.response_timeout_ms(FIRST, attempts) == 2_000
    cluster.learn_node(0, KNOWN)
    assert bootstrap.response_timeout_ms(KNOWN, attempts) == 30_000


def test_single_bootstrap_server_has_the_request_timeout() -> None:
    assert bootstrap_of()[0].response_timeout_ms(FIRST, Attempts(Backoff(initial_ms=50, max_ms=1_000), Random(1))) == 30_000


SERVERS = {"bootstrap.servers": "a:1,b:1"}


def test_consumer_tries_the_next_bootstrap_server() -> None:
    rig = ConsumerRig(**SERVERS)
    rig.core.subscribe(["t"])
    rig.step()
    assert {(type(sent.message), sent.address, sent.timeout_ms) for sent in rig.waiting} == {
        (MetadataRequest, A, 2_000),
        (FindCoordinatorRequest, A, 2_000),
    }
    lost = [RequestFailed(address=A, token=sent.token, reason="no answer", was_sent=True, is_timeout=True) for sent in rig.waiting]
    rig.waiting.clear()
    assert "at a:1 (no response yet), b:1 (not tried yet)" in str(rig.core.context.timeout_error("late"))
    rig.step(*lost, Disconnected(address=A, reason="no answer"))
    rig.advance(200)
    assert {(type(sent.message), sent.address, sent.timeout_ms) for sent in rig.waiting} == {
        (MetadataRequest, B, 30_000),
        (FindCoordinatorRequest, B, 30_000),
    }


def test_producer_tries_the_next_bootstrap_server() -> None:
    core = ProducerCore(PRODUCER_OPTIONS.parse(SERVERS), Random(1))
    sent = [effect for effect in core.handle(TopicRequested(topic="t"), 0) if isinstance(effect, SendRequest)]
    assert {(request.address, request.timeout_ms) for request in sent} == {(A, 2_000)}
    lost = [RequestFailed(address=A, token=request.token, reason="no answer", was_sent=True, is_timeout=True) for request in sent]
    again = [*core.handle_all([*lost, Disconnected(address=A, reason="no answer")], 2_000), *core.handle(TimePassed(), 2_200)]
    assert {(effect.address, effect.timeout_ms) for effect in again if isinstance(effect, SendRequest)} == {(B, 30_000)}


def test_blocking_client_tries_the_next_bootstrap_server() -> None:
    """With a connection's time of half a second it takes a tenth, with the whole of a request the test would be too late."""
    with ScriptedServer(lambda server, message: STAY_SILENT) as silent, ScriptedServer() as server:
        servers = [silent.bootstrap_servers, server.bootstrap_servers]
        with SyncClient(servers, connections=ConnectionSettings(setup_timeout_ms=500, request_timeout_ms=600_000)) as client:
            assert client.refresh_metadata().nodes
        assert silent.connection_count == 1
