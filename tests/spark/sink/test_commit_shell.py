"""The shell over a served broker, without Spark: what the client may try again, and what it may not."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from chaffinch import Producer
from chaffinch.broker.core import handlers
from chaffinch.broker.core.broker_state import BrokerState
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.handlers import api_versions
from chaffinch.broker.core.response_size_limit import ResponseTooLarge
from chaffinch.broker.core.startup import TransactionParticipants
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.client import wait_log
from chaffinch.client.addresses import Address
from chaffinch.client.cluster import ClusterState
from chaffinch.client.pending_request import PendingRequest
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import NetworkException, codes
from chaffinch.errors.codes import Group
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.protocol.apis import api_of
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from chaffinch.protocol.messages.api_versions import ApiVersion
from chaffinch.protocol.messages.describe_producers import DescribeProducersRequest
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from chaffinch.protocol.messages.find_coordinator import FindCoordinatorRequest
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.protocol.messages.produce import ProduceRequest
from chaffinch.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from chaffinch.protocol.schema import Message
from chaffinch.records.compression import Compression
from chaffinch.spark.commit.complete_previous import OFFSETS_TOPIC
from chaffinch.spark.commit.messages import TaskOutcome
from chaffinch.spark.commit.operations import (
    Coordinator,
    FindHangingTransactions,
    HangingTransactions,
    NextResponse,
    SendBatch,
    SendRequest,
    Step,
    Wait,
)
from chaffinch.spark.commit.plan import Commit, CommitPlan, CommitResult
from chaffinch.spark.commit.protocol import commit_batch
from chaffinch.spark.folders import Folder
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.sink import commit_shell
from chaffinch.spark.sink.commit_shell import CommitShell
from chaffinch.spark.sink.leader_requests import find_hanging_transactions
from chaffinch.spark.sink.options import SinkOptions
from tests.spark.commit.commit_world import RETRY_POLICY, Broker, Query, counted, outcome

ROWS = {0: [(b"k1", b"a"), (b"k2", b"b")], 1: [(b"k3", b"c")]}
BLOCK_MAX_MS = 3_000
_numbers = itertools.count()


@pytest.fixture(scope="module")
def served() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def broker(served: EmbeddedBroker) -> Iterator[EmbeddedBroker]:
    yield served
    served.faults.clear()


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    """Of this test alone, also where other files have the same broker."""
    name = f"shell-{next(_numbers)}"
    broker.create_topic(name, 2, 1, {})
    return name


def committed(
    broker: EmbeddedBroker,
    topic: str,
    batch_id: int = 0,
    compression: Compression = Compression.NONE,
    rows: Mapping[int, Sequence[tuple[bytes, bytes]]] = ROWS,
    **changes: Any,
) -> CommitResult:
    """One commit of these rows under a transactional id and group of its own."""
    batches: list[tuple[TaskOutcome, ...]] = [(outcome(rows, topic=topic, compression=compression),)]
    query = Query(Broker(), batches, transactional_id=f"t-{topic}", has_checkpoint=False)
    fields: dict[str, Any] = {
        "group_id": f"g-{topic}",
        "marker_partition": TopicPartition(topic, 0),
        "retry_policy": replace(RETRY_POLICY, block_max_ms=BLOCK_MAX_MS),
    }
    plan = replace(query.plan(0, "run-1", **{**fields, **changes}), batch_id=batch_id)
    with SyncClient(broker.bootstrap_servers) as client:
        return shell(client, plan).run(commit_batch(plan))


OPTIONS = SinkOptions.parse({"kafka.bootstrap.servers": "a:1", "topic": "t", "kafka.request.timeout.ms": "10000"}, is_stream=True)


def shell(client: SyncClient, plan: CommitPlan | None = None, after_step: Callable[[Step, int], None] | None = None) -> CommitShell:
    plan = Query(Broker(), [()]).plan(0, "run-1") if plan is None else plan
    return CommitShell(plan, OPTIONS, client, staging=Folder("/none", "stagingLocation"), state=None, after_step=after_step)


def values(broker: EmbeddedBroker, topic: str) -> Counter[bytes | None]:
    return counted([(None, bytes(value)) for value in broker.read(topic).column("value").to_pylist()])


def test_a_batch_is_written(broker: EmbeddedBroker, topic: str) -> None:
    assert committed(broker, topic).outcome == "written"
    assert values(broker, topic) == {b"a": 1, b"b": 1, b"c": 1}


def test_partitions_share_connections_and_each_uses_one(broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start, lanes = SyncClient.start, dict[int, set[int]]()

    def noted(self: SyncClient, message: Message, address: Address, *args: Any, **options: Any) -> PendingRequest:
        if isinstance(message, ProduceRequest):
            lanes.setdefault(message.topics[0].partitions[0].index, set()).add(address.lane)
        return start(self, message, address, *args, **options)

    monkeypatch.setattr(SyncClient, "start", noted)
    broker.create_topic(f"{topic}-wide", 4, 1, {})
    rows = {index: [(b"k", b"%d-%d" % (index, number)) for number in range(9)] for index in range(4)}  # Five batches each.
    assert committed(broker, f"{topic}-wide", rows=rows).outcome == "written"
    assert lanes == {0: {0}, 1: {1}, 2: {0}, 3: {1}}
    stored = broker.read(f"{topic}-wide")
    for index, pairs in rows.items():
        assert [row["value"] for row in stored.to_pylist() if row["partition"] == index] == [value for _, value in pairs]


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("FindCoordinator", "GROUP_AUTHORIZATION_FAILED"),
        ("FindCoordinator", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
        ("Metadata", "TOPIC_AUTHORIZATION_FAILED"),
    ],
)
def test_final_lookup_error_is_not_retried(broker: EmbeddedBroker, topic: str, api: str, error: str) -> None:
    broker.faults.add(api=api, error=error, count=10_000)
    with pytest.raises(Refusal, match=error) as caught:
        committed(broker, topic)
    assert (caught.value.group, caught.value.name) == (Group.INVALID_CONFIGURATION, error)


@pytest.mark.parametrize("node", [0, 1], ids=["of the transaction", "of the group"])
def test_moved_coordinator_is_looked_up_again(node: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that starts again takes over from the one that stood in for it. No connection is lost: the answer alone says so."""
    request = SyncClient.request

    def moved(self: SyncClient, message: Message, *args: Any, **options: Any) -> object:
        if isinstance(message, AddPartitionsToTxnRequest):
            cluster.start_node(node)
        return request(self, message, *args, **options)

    with EmbeddedBroker(brokers=2, topics={"moved": {"partitions": 2, "replication": 2}}) as cluster:
        cluster.stop_node(node)
        monkeypatch.setattr(SyncClient, "request", moved)
        assert committed(cluster, "moved").outcome == "written"
        assert values(cluster, "moved") == {b"a": 1, b"b": 1, b"c": 1}


TRANSIENT = [
    {},
    {"error": "NOT_LEADER_OR_FOLLOWER", "count": 2},
    {"action": "drop_before", "count": 2},
    {"action": "drop_after", "count": 2},
]


@pytest.mark.parametrize("fault", TRANSIENT, ids=lambda fault: fault.get("error") or fault.get("action") or "no fault")
def test_hanging_transaction_of_earlier_attempt_stays_invisible(
    broker: EmbeddedBroker, topic: str, fault: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its coordinator said that it is aborted, and wrote that nowhere: Apache Kafka 4.3.1 does so after its only broker was away."""
    write_marker = TransactionParticipants.write_marker
    untold: list[TopicPartition] = []

    def loses_first_abort(self: TransactionParticipants, tp: TopicPartition, is_commit: bool, *rest: Any) -> None:
        if is_commit or untold:
            write_marker(self, tp, is_commit, *rest)
        else:
            untold.append(tp)

    monkeypatch.setattr(TransactionParticipants, "write_marker", loses_first_abort)
    if fault:
        broker.faults.add(api="DescribeProducers", **fault)
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=f"t-{topic}") as earlier:
        earlier.init_transactions()
        earlier.begin_transaction()
        earlier.send(topic, b"earlier", partition=1).result(60)
        assert committed(broker, topic).outcome == "written"
    assert untold == [TopicPartition(topic, 1)]
    assert values(broker, topic) == {b"a": 1, b"b": 1, b"c": 1}
    assert not broker.faults.list()
    said = [record.getMessage() for record in caplog.records if record.name == "chaffinch.spark.sink.commit_shell"]
    assert len(said) == 1
    assert said[0].startswith(f"batch 0: an earlier transaction of t-{topic} is still open in {topic}-1")


def without_end_markers(monkeypatch: pytest.MonkeyPatch, *who: str) -> None:
    """What ends a transaction comes to none of these participants."""
    for name in who:
        monkeypatch.setattr(TransactionParticipants, name, lambda *_: None)


def sent(monkeypatch: pytest.MonkeyPatch) -> list[type[Message]]:
    """The types of all requests from now on."""
    request, messages = SyncClient.request, list[type[Message]]()

    def noted(self: SyncClient, message: Message, *args: Any, **options: Any) -> object:
        messages.append(type(message))
        return request(self, message, *args, **options)

    monkeypatch.setattr(SyncClient, "request", noted)
    return messages


@pytest.mark.parametrize("fault", [{}, *TRANSIENT[1:]], ids=lambda fault: fault.get("error") or fault.get("action") or "no fault")
def test_markers_of_committed_transaction_are_written_to_leaders(
    broker: EmbeddedBroker, topic: str, fault: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        without_end_markers(patched, "write_marker")
        assert committed(broker, topic).outcome == "written"
    assert values(broker, topic) == {}
    if fault:
        broker.faults.add(api="WriteTxnMarkers", **fault)
    messages = sent(monkeypatch)
    assert committed(broker, topic, is_stream=False).outcome == "skipped"
    assert values(broker, topic) == {b"a": 1, b"b": 1, b"c": 1}
    assert WriteTxnMarkersRequest in messages
    assert not {AddPartitionsToTxnRequest, EndTxnRequest} & set(messages)
    said = [record.getMessage() for record in caplog.records if record.name == "chaffinch.spark.sink.commit_shell"]
    assert f"is still open in {topic}-0, {topic}-1: records of the last transaction" in said[0]


@pytest.mark.parametrize(
    ("error", "forget_push_rates"),
    [
        ("CLUSTER_AUTHORIZATION_FAILED", ["write_marker"]),
        ("UNSUPPORTED_VERSION", ["write_marker"]),
        ("UNKNOWN_TOPIC_OR_PARTITION", ["write_marker", "complete_offsets"]),
    ],
    ids=["without the right", "of a broker without it", "with unknown partitions of offsets"],
)
def test_short_transaction_commits_if_markers_are_denied(
    broker: EmbeddedBroker,
    topic: str,
    error: str,
    forget_push_rates: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """That is said once."""
    monkeypatch.setattr(commit_shell, "_warned", set())
    broker.faults.add(api="WriteTxnMarkers", error=error, count=10_000)
    for batch_id in (0, 1, 2):
        with monkeypatch.context() as patched:
            without_end_markers_of_batch(patched, forget_push_rates)
            assert committed(broker, topic, batch_id=batch_id, group_id=f"t-{topic}").outcome == "written"
    assert committed(broker, topic, batch_id=2, group_id=f"t-{topic}", is_stream=False).outcome == "skipped"
    assert values(broker, topic) == {b"a": 3, b"b": 3, b"c": 3}
    refused = [line for record in caplog.records if "commit markers of an earlier transaction" in (line := record.getMessage())]
    assert [error in line for line in refused] == [True]


@pytest.mark.parametrize(("of", "said"), [(OFFSETS_TOPIC, "commit markers of an earlier transaction"), ("orders", "cannot be found")])
def test_denied_describe_producers_is_logged(of: str, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """About the marker: that it is committed in another way."""
    monkeypatch.setattr(commit_shell, "_warned", set())
    refused = HangingTransactions(answered=frozenset([TopicPartition(of, 0)]), refused=codes.TOPIC_AUTHORIZATION_FAILED)
    monkeypatch.setattr(commit_shell, "find_hanging_transactions", lambda *_: refused)

    def asked() -> Commit:
        for _ in range(2):
            yield FindHangingTransactions(step=Step.FINISH_COMMIT, producer_id=1, partitions=(TopicPartition(of, 0),), refresh=False)
        return CommitResult(outcome="empty")

    with SyncClient("127.0.0.1:1") as client:
        shell(client).run(asked())
    assert [said in record.getMessage() for record in caplog.records] == [True]


def test_deleted_partitions_differ_from_those_without_leader(broker: EmbeddedBroker, topic: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send(topic, b"x", partition=0).result(60)  # A leader may know of its new partition only after the brokers report it.
    tps = (TopicPartition(topic, 0), TopicPartition(topic, 2), TopicPartition(f"{topic}-gone", 0))
    with SyncClient([broker.bootstrap_servers]) as client:
        operation = FindHangingTransactions(step=Step.FINISH_COMMIT, producer_id=1, partitions=tps, refresh=False)
        found = find_hanging_transactions(client, operation, 1_000, 1_000)
    assert (found.answered, found.unknown) == (frozenset(tps[:1]), frozenset(tps[1:]))


def without_end_markers_of_batch(monkeypatch: pytest.MonkeyPatch, who: Sequence[str]) -> None:
    """Not of what is finished before it."""
    request = SyncClient.request

    def forgetting(self: SyncClient, message: Message, *args: Any, **options: Any) -> object:
        with monkeypatch.context() as patched:
            if isinstance(message, EndTxnRequest) and any(kind is InitProducerIdRequest for kind in kinds):
                without_end_markers(patched, *who)
            kinds.append(type(message))
            return request(self, message, *args, **options)

    kinds: list[type] = []
    monkeypatch.setattr(SyncClient, "request", forgetting)


@pytest.mark.parametrize("error", ["TOPIC_AUTHORIZATION_FAILED", "UNSUPPORTED_VERSION"])
def test_brokers_without_describe_producers_do_not_delay(
    broker: EmbeddedBroker, topic: str, error: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That is said once."""
    monkeypatch.setattr(commit_shell, "_warned", set())
    broker.faults.add(api="DescribeProducers", error=error, count=10_000)
    assert committed(broker, topic).outcome == "written"
    assert committed(broker, topic).outcome == "skipped"
    said = [record.getMessage() for record in caplog.records if record.name == "chaffinch.spark.sink.commit_shell"]
    assert [error in line and f"t-{topic}" in line for line in said] == [True]
    assert values(broker, topic) == {b"a": 1, b"b": 1, b"c": 1}
    asked = 10_000 - broker.faults.list()[0]["count"]
    assert asked in (1, 2), (
        "the second commit, which finds its marker, sends no request to leaders where the first transaction is still ending"
    )


def test_wait_is_in_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(commit_shell, "time", SimpleNamespace(monotonic_ns=time.monotonic_ns, sleep=waits.append))

    def waiting() -> Commit:
        yield Wait(step=Step.PUSH, ms=70)
        return CommitResult(outcome="empty")

    with SyncClient("127.0.0.1:1") as client:
        assert shell(client).run(waiting()).outcome == "empty"
    assert waits == [0.07]


def test_response_is_waited_for_until_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    replies, pumped, times_ms = [], [], iter((60, 60, 90, 100, 100))
    monkeypatch.setattr(commit_shell, "_steady_ms", lambda: next(times_ms))
    monkeypatch.setattr(SyncClient, "pump", lambda _, timeout_ms: pumped.append(timeout_ms))

    def waiting() -> Commit:
        replies.append((yield NextResponse(step=Step.PUSH, until_ms=100)))
        return CommitResult(outcome="empty")

    with SyncClient("127.0.0.1:1") as client:
        shell(client).run(waiting())
    assert [reply.value for reply in replies] == [None]
    assert pumped == [40, 10]


def test_partition_without_leader_does_not_delay_others(broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaders are looked for once, and for many partitions of a topic at once."""
    asked, answers = [], []
    really = SyncClient.refresh_metadata

    def noted(client: SyncClient, topics: Iterable[str], *args: Any, **given: Any) -> None:
        asked.append(topics)
        really(client, topics, *args, **given)

    monkeypatch.setattr(SyncClient, "refresh_metadata", noted)
    monkeypatch.setattr(ClusterState, "leader_address", lambda *_: None)
    batches = outcome({number: [(b"k", b"v")] for number in range(2)}, topic=topic).batches

    def sending() -> Commit:
        for send_id, batch in enumerate(batches):
            yield SendBatch(
                step=Step.PUSH,
                send_id=send_id,
                batch=batch,
                record_indices=None,
                identity=ProducerIdentity(7, 0),
                base_sequence=0,
                refresh=True,
            )
            answers.append((yield NextResponse(step=Step.PUSH)).value)
        return CommitResult(outcome="empty")

    monkeypatch.setattr(commit_shell, "LOOKUP_INTERVAL_MS", 1 << 30)
    with SyncClient(broker.bootstrap_servers) as client:
        shell(client).run(sending())
    assert [(answer.lost.reason, answer.lost.was_sent) for answer in answers] == [
        (f"{topic}-{number} has no leader", False) for number in range(2)
    ]
    assert asked == [[topic]]
    monkeypatch.setattr(commit_shell, "LOOKUP_INTERVAL_MS", 0)
    with SyncClient(broker.bootstrap_servers) as client:
        shell(client).run(sending())
    assert asked == [[topic]] * 3


def test_failed_lookup_delays_one_partition_only(broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fails(*_: object, **__: object) -> None:
        asked.append(1)
        raise NetworkException("no broker")

    def sending() -> Commit:
        for send_id, batch in enumerate(outcome({number: [(b"k", b"v")] for number in range(2)}, topic=topic).batches):
            yield SendBatch(
                step=Step.PUSH,
                send_id=send_id,
                batch=batch,
                record_indices=None,
                identity=ProducerIdentity(7, 0),
                base_sequence=0,
                refresh=True,
            )
        return CommitResult(outcome="empty")

    monkeypatch.setattr(SyncClient, "refresh_metadata", fails)
    monkeypatch.setattr(commit_shell, "LOOKUP_INTERVAL_MS", 1 << 30)
    with SyncClient(broker.bootstrap_servers) as client:
        shell(client).run(sending())
    assert len(asked) == 1


def test_deleted_topic_is_reported_by_its_code(broker: EmbeddedBroker, topic: str) -> None:
    with pytest.raises(Refusal) as caught:
        committed(broker, f"{topic}-gone", marker_partition=TopicPartition(topic, 0))
    assert caught.value.name == "UNKNOWN_TOPIC_OR_PARTITION"


def test_request_timeout_applies_to_leader_requests(broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request, timeouts = SyncClient.request, dict[type[Message], int]()

    def noted(self: SyncClient, message: Message, *args: Any, **options: Any) -> object:
        timeouts[type(message)] = options["timeout_ms"]
        return request(self, message, *args, **options)

    monkeypatch.setattr(SyncClient, "request", noted)
    assert committed(broker, topic).outcome == "written"
    assert timeouts[DescribeProducersRequest] == timeouts[AddPartitionsToTxnRequest] == 10_000


def test_partitions_with_too_large_response_are_requested_one_by_one(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each producer is remembered for a day after its last record."""
    number, asked = api_of(DescribeProducersRequest()).key, []
    handle = handlers.HANDLERS[number]

    def limited(state: BrokerState, event: RequestReceived, message: DescribeProducersRequest, steady_ms: int) -> object:
        asked.append([index for found in message.topics for index in found.partition_indexes])
        if len(asked[-1]) > 1:
            raise ResponseTooLarge
        return handle(state, event, message, steady_ms)

    monkeypatch.setitem(handlers.HANDLERS, number, limited)
    assert committed(broker, topic).outcome == "written"
    assert asked == [[0, 1], [0], [1]]


def test_brokers_older_than_the_request_do_not_delay(broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Apache Kafka 2.8 there is no DescribeProducers."""
    offered = [version for version in api_versions._SERVED if version.api_key != api_of(DescribeProducersRequest()).key]
    monkeypatch.setattr(api_versions, "_SERVED", offered)
    broker.faults.add(api="DescribeProducers", action="drop_before", count=10_000)
    assert committed(broker, topic).outcome == "written"
    assert values(broker, topic) == {b"a": 1, b"b": 1, b"c": 1}
    assert broker.faults.list()[0]["count"] == 10_000


def test_unsupported_codec_is_not_retried(broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Apache Kafka 2.1 Produce ends with version 6, and zstd is unknown."""
    offered = [version for version in api_versions._SERVED if version.api_key != 0]
    monkeypatch.setattr(api_versions, "_SERVED", [ApiVersion(api_key=0, min_version=0, max_version=6), *offered])
    with pytest.raises(Refusal, match=r"compression\.type zstd \(it requires Apache Kafka 2\.1\): choose lz4") as caught:
        committed(broker, topic, compression=Compression.ZSTD)
    assert (caught.value.group, caught.value.name) == (Group.INVALID_CONFIGURATION, "UNSUPPORTED_COMPRESSION_TYPE")
    assert committed(broker, topic, compression=Compression.LZ4).outcome == "written"
    assert values(broker, topic) == {b"a": 1, b"b": 1, b"c": 1}


def test_wait_that_lasts_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """One attempt takes two seconds: the line does not come after the next one only."""
    steady_ms = [0]
    monkeypatch.setattr(commit_shell, "_steady_ms", lambda: steady_ms[0])
    monkeypatch.setattr(CommitShell, "_send_request", lambda *_: steady_ms.__setitem__(0, steady_ms[0] + 2_000))
    passing = SimpleNamespace(sleep=lambda s: steady_ms.__setitem__(0, steady_ms[0] + int(s * 1000)))
    monkeypatch.setattr(commit_shell, "time", passing)

    def asking() -> Commit:
        asked = SendRequest(step=Step.INIT_PRODUCER, message=FindCoordinatorRequest(), to=Coordinator(kind="group", key="g"))
        for _ in range(3):
            reply = yield asked
            wait_info = wait_log.Wait("c", "an answer", reply.steady_ms, "a:1 cannot be reached", until_ms=60_000, limit="limit")
            yield Wait(step=Step.INIT_PRODUCER, ms=100, wait_info=wait_info)
        return CommitResult(outcome="empty")

    with SyncClient("127.0.0.1:1") as client:
        shell(client).run(asking())
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "batch 0 waits for an answer, for 2000 ms: a:1 cannot be reached; retrying for up to 58000 ms more (limit)"
    ]
