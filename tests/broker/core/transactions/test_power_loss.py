"""A loss of power with `flush.policy=os`, in which the coordinator's journal loses what logs and offsets keep."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from chaffinch.broker import embedded
from chaffinch.broker.core.transactions.coordinator import MARKER_RETRY_MS
from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from chaffinch.storage.file_system import StorageError
from tests.broker.batches import batch_of
from tests.broker.core.transactions.test_crashes import failing_at, readable_end
from tests.broker.core.transactions.test_transactions import add, add_group, commit_offset, committed, init
from tests.broker.core.transactions.transactional_ends import finish
from tests.broker.core_client import Client, Cluster

VERSIONS = {1: (11, 4), 2: (12, 5)}
"""Transaction version -> that of Produce, and of EndTxn and TxnOffsetCommit."""


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster({"flush.policy": "os"})
    cluster.topic("orders", 2)
    return cluster


def identity_of(client: Client) -> ProducerIdentity:
    answer = init(client)
    assert answer.error_code == 0
    return ProducerIdentity(answer.producer_id, answer.producer_epoch)


def write(client: Client, identity: ProducerIdentity, value: bytes, *, version: int, partition: int = 0, sequence: int = 0) -> int:
    if version == 1:
        add(client, identity, partition, version=3)
    records = bytes(batch_of(value, identity=identity, sequence=sequence, transactional=True))
    return client.produce("orders", records, partition=partition, txn="t", version=VERSIONS[version][0]).error_code


def mark_as_a_tool(client: Client, identity: ProducerIdentity, partition: int) -> int:
    """An abort, under the next epoch."""
    topic = WritableTxnMarkerTopic(name="orders", partition_indexes=[partition])
    marker = WritableTxnMarker(
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch + 1,
        transaction_result=False,
        topics=[topic],
        coordinator_epoch=0,
        transaction_version=2,
    )
    answer = client.ask(WriteTxnMarkersRequest(markers=[marker]), 2)
    code: int = answer.markers[0].topics[0].partitions[0].error_code
    return code


def lose_power(cluster: Cluster, *kept: str) -> Client:
    """All that was not synced goes, but in these directories and files."""
    cluster.core.abandon()
    cluster.file_system.crash(lambda path, unsynced: unsynced if path.startswith(kept) else 0)
    cluster.lines.clear()
    cluster.clients.clear()
    cluster.core = cluster._core()
    return cluster.client()


def sync_journals(cluster: Cluster) -> None:
    for journal in cluster.core._journals.values():
        journal.sync()


def values(cluster: Cluster) -> list[bytes]:
    table = embedded.to_table(embedded.collect(cluster.core, "orders", is_committed=True))
    found: list[bytes] = table["value"].to_pylist()
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("ends", [True, False], ids=["ended", "open"])
def test_epoch_is_not_reused(cluster: Cluster, version: int, ends: bool) -> None:
    """Else the log would take the second batch for the first one, sent again: acknowledged, and nowhere."""
    client = cluster.client()
    identity_of(client)
    sync_journals(cluster)
    old = identity_of(client)
    assert write(client, old, b"old", version=version) == 0
    if ends:
        assert finish(client, old, True, VERSIONS[version][1])[0] == 0
    client = lose_power(cluster, "logs")
    new = identity_of(client)
    assert new.epoch > old.epoch
    assert write(client, new, b"new", version=version) == 0
    assert finish(client, new, True, VERSIONS[version][1])[0] == 0
    assert values(cluster) == ([b"old", b"new"] if ends else [b"new"])


@pytest.mark.parametrize("version", VERSIONS)
def test_unknown_transaction_is_aborted_and_its_producer_fenced(cluster: Cluster, version: int) -> None:
    """Readers of what is committed go on; the producer, which has noticed nothing, must not commit the rest of its transaction."""
    client = cluster.client()
    identity = identity_of(client)
    sync_journals(cluster)
    assert [write(client, identity, b"%d" % partition, version=version, partition=partition) for partition in (0, 1)] == [0, 0]
    client = lose_power(cluster, "logs")
    for partition in cluster.core.topics.partitions():
        assert partition.log.last_stable_offset == partition.log.log_end_offset
    assert write(client, identity, b"rest", version=version, sequence=1) in (47, 90)
    assert finish(client, identity, True, VERSIONS[version][1])[0] == 90
    assert values(cluster) == []
    assert any("'t' is fenced" in line for line in cluster.lines)


@pytest.mark.parametrize("version", VERSIONS)
def test_transaction_with_one_unknown_partition_is_aborted(cluster: Cluster, version: int) -> None:
    client = cluster.client()
    identity = identity_of(client)
    assert write(client, identity, b"known", version=version) == 0
    sync_journals(cluster)
    assert write(client, identity, b"lost", version=version, partition=1) == 0
    client = lose_power(cluster, "logs")
    assert finish(client, identity, True, VERSIONS[version][1])[0] == 90
    assert init(client).error_code == 51
    assert identity_of(client).epoch > identity.epoch
    assert values(cluster) == []
    for partition in cluster.core.topics.partitions():
        assert partition.log.last_stable_offset == partition.log.log_end_offset


@pytest.mark.parametrize("version", VERSIONS)
def test_pending_offsets_of_an_unknown_transaction_are_dropped(cluster: Cluster, version: int) -> None:
    client = cluster.client()
    identity = identity_of(client)
    sync_journals(cluster)
    if version == 1:
        add_group(client, identity)
    assert commit_offset(client, identity, 5, version=VERSIONS[version][1]) == 0
    client = lose_power(cluster, "journals/offsets")
    assert committed(client, stable=True)[::2] == (-1, 0), "no reader waits for it"
    assert finish(client, identity, True, VERSIONS[version][1])[0] == 90


@pytest.mark.parametrize("version", VERSIONS)
def test_producer_with_an_uncompleted_decision_is_fenced(cluster: Cluster, version: int) -> None:
    client = cluster.client()
    identity = identity_of(client)
    first, second = (partition.log for partition in cluster.core.topics.partitions())
    assert write(client, identity, b"decided", version=version) == 0
    first.sync()
    refused = failing_at(first.directory, StorageError(first.directory, "write", "no space left"))
    cluster.file_system.hook = refused
    code, promised = finish(client, identity, True, VERSIONS[version][1])
    assert code == 0
    sync_journals(cluster)
    cluster.file_system.hook = None
    cluster.advance(MARKER_RETRY_MS)
    identity = promised if version == 2 else identity
    assert write(client, identity, b"lost", version=version, partition=1) == 0
    cluster.file_system.hook = refused
    client = lose_power(cluster, second.directory)
    cluster.file_system.hook = None
    cluster.advance(MARKER_RETRY_MS)
    assert values(cluster) == [b"decided"]
    assert write(client, identity, b"rest", version=version, sequence=1 if version == 1 else 0) == 47
    assert finish(client, identity, True, VERSIONS[version][1])[0] == 90


@pytest.mark.parametrize("verifies", ["true", "false"])
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_marker_is_not_repeated_behind_the_next_transaction(cluster: Cluster, is_commit: bool, verifies: str) -> None:
    """It would end what is left of that one. A partition that only has the records of the transaction gets its marker."""
    cluster.topic("others", 1)
    cluster.config["transaction.partition.verification.enable"] = verifies
    cluster.restart()
    identity, client = decided_and_followed(cluster, is_commit)
    first, unmarked = (cluster.partition("orders", partition).log for partition in (0, 1))
    decided = [b"decided", b"too"] if is_commit else []
    assert values(cluster) == decided
    assert unmarked.last_stable_offset == unmarked.log_end_offset == 2
    assert first.has_ongoing_transaction(identity.producer_id) == (verifies == "false"), "the coordinator need not have known of it then"
    if verifies == "true":
        assert first.last_stable_offset == first.log_end_offset == 4, "a batch, a marker, each twice"
        assert write(client, identity, b"rest", version=2, sequence=1) == 47
        assert finish(client, identity, True)[0] == 90
        assert values(cluster) == decided
    else:
        assert finish(client, identity, False)[0] == 0


@pytest.mark.parametrize("full", [{1}, {0, 1}], ids=["one is full", "both are full"])
def test_uncompleted_marker_keeps_its_epoch(cluster: Cluster, full: set[int]) -> None:
    """The transaction stays decided where the start cannot write a marker, and is fenced with what follows it. Its marker comes later."""
    cluster.topic("others", 1)
    identity, client = decided_and_followed(cluster, True, full=full)
    cluster.file_system.hook = None
    cluster.advance(MARKER_RETRY_MS)
    assert values(cluster) == [b"decided", b"too"]
    if 0 in full:
        cluster.restart()  # What follows it could not be aborted.
        client = cluster.client()
    assert values(cluster) == [b"decided", b"too"]
    for partition in cluster.core.topics.partitions():
        assert partition.log.last_stable_offset == partition.log.log_end_offset
    assert write(client, identity, b"rest", version=2, sequence=1) == 47
    assert finish(client, identity, True)[0] == 90
    assert values(cluster) == [b"decided", b"too"]


def decided_and_followed(cluster: Cluster, is_commit: bool, full: Iterable[int] = ()) -> tuple[ProducerIdentity, Client]:
    """Power is lost. Left are a transaction's decision, its records in both partitions, its marker in the first one, and what the next one
    has written there; what that one has written to "others" is lost. At the start the partitions `full` take nothing."""
    client = cluster.client()
    identity = identity_of(client)
    first, second = logs = [cluster.partition("orders", partition).log for partition in (0, 1)]
    for partition, value in enumerate((b"decided", b"too")):
        assert write(client, identity, value, version=2, partition=partition) == 0
    second.sync()
    cluster.file_system.hook = failing_at(second.directory, StorageError(second.directory, "write", "no space left"))
    code, identity = finish(client, identity, is_commit)
    assert code == 0
    sync_journals(cluster)
    cluster.file_system.hook = None
    cluster.advance(MARKER_RETRY_MS)
    for topic in ("orders", "others"):
        records = bytes(batch_of(b"half", identity=identity, sequence=0, transactional=True))
        assert client.produce(topic, records, txn="t", version=VERSIONS[2][0]).error_code == 0
    directories = tuple(logs[partition].directory for partition in full)

    def log_refusal(operation: str, path: str, _size: int) -> None:
        if operation == "append" and path.startswith(directories):
            raise StorageError(path, "write", "no space left")

    cluster.file_system.hook = log_refusal
    return identity, lose_power(cluster, first.directory)


def test_unknown_producer_leaves_no_open_transaction(cluster: Cluster) -> None:
    client = cluster.client()
    identity = identity_of(client)
    assert write(client, identity, b"a", version=2) == 0
    lose_power(cluster, "logs")
    partition = cluster.core.topics.partition("orders", 0)
    assert partition is not None
    assert partition.log.last_stable_offset == partition.log.log_end_offset == 2


def test_abort_at_a_start_is_synced_before_it_is_readable(cluster: Cluster) -> None:
    client = cluster.client()
    identity = identity_of(client)
    assert write(client, identity, b"lost", version=2) == 0
    cluster.config["flush.policy"] = "always"
    read_to = readable_end(lose_power(cluster, "logs"))
    assert read_to == 2, "a batch, a marker"
    first = cluster.partition("orders", 0)
    cluster.file_system.hook = failing_at(first.log.directory, StorageError(first.log.directory, "write", "no space left"))
    assert readable_end(lose_power(cluster)) == read_to, "it could not be written again"


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_abort_on_a_full_disk_is_left_to_the_next_start(cluster: Cluster, kill: bool) -> None:
    client = cluster.client()
    identity = identity_of(client)
    sync_journals(cluster)
    assert write(client, identity, b"lost", version=2) == 0

    def fill(operation: str, path: str, _size: int) -> None:
        if operation == "append":
            raise StorageError(path, operation, "No space left on device")

    cluster.file_system.hook = fill
    lose_power(cluster, "logs")
    (line,) = [line for line in cluster.lines if "power" in line]
    assert "at the next start: cannot append" in line
    assert "readers of committed records may wait" in line
    cluster.file_system.hook = None
    cluster.restart(kill=kill)
    assert identity_of(cluster.client()).epoch > identity.epoch + 1, "one for the fence"
    partition = cluster.core.topics.partition("orders", 0)
    assert partition is not None
    assert partition.log.last_stable_offset == partition.log.log_end_offset


@pytest.mark.parametrize("version", VERSIONS)
def test_kill_keeps_open_transactions(cluster: Cluster, version: int) -> None:
    client = cluster.client()
    identity = identity_of(client)
    assert write(client, identity, b"a", version=version) == 0
    if version == 1:
        add_group(client, identity)
    assert commit_offset(client, identity, 5, version=VERSIONS[version][1]) == 0
    cluster.lines.clear()
    cluster.restart()
    client = cluster.client()
    assert write(client, identity, b"b", version=version, sequence=1) == 0
    assert finish(client, identity, True, VERSIONS[version][1])[0] == 0
    assert (values(cluster), committed(client)[0]) == ([b"a", b"b"], 5)
    assert not any("power" in line for line in cluster.lines)


@pytest.mark.parametrize("end", ["killed", "stopped", "stopped, and the system restarted"])
def test_invented_epoch_fences_no_producer(cluster: Cluster, end: str) -> None:
    """Nothing was lost: an epoch that a log has and the coordinator has not was written by another tool."""
    client = cluster.client()
    identity = identity_of(client)
    assert [write(client, identity, b"%d" % partition, version=2, partition=partition) for partition in (0, 1)] == [0, 0]
    assert mark_as_a_tool(client, identity, 1) == 0
    cluster.lines.clear()
    if end == "stopped, and the system restarted":
        cluster.core.close()
        client = lose_power(cluster, "")  # It keeps all.
    else:
        cluster.restart(kill=end == "killed")
        client = cluster.client()
    assert finish(client, identity, True)[0] == 0
    assert values(cluster) == [b"0"]
    assert not any("power" in line for line in cluster.lines)


def test_loss_of_power_after_a_clean_restart_fences(cluster: Cluster) -> None:
    """That the journal was closed says nothing of what was put into it since."""
    client = cluster.client()
    identity = identity_of(client)
    cluster.core.close()
    cluster.file_system.sync_all()  # As the system does in time.
    assert write(lose_power(cluster), identity, b"lost", version=2) == 0
    client = lose_power(cluster, "logs")
    assert finish(client, identity, True)[0] == 90
    assert values(cluster) == []


def test_unverified_transaction_survives_a_kill(cluster: Cluster) -> None:
    """A kill is no loss of power: open transactions are not aborted, and no producer is fenced."""
    cluster.config["transaction.partition.verification.enable"] = "false"
    cluster.restart()
    client = cluster.client()
    identity = identity_of(client)
    records = bytes(batch_of(b"a", identity=identity, sequence=0, transactional=True))
    assert client.produce("orders", records, txn="t", version=11).error_code == 0
    cluster.lines.clear()
    cluster.restart()
    partition = cluster.core.topics.partition("orders", 0)
    assert partition is not None
    assert partition.log.has_ongoing_transaction(identity.producer_id)
    assert not any("power" in line for line in cluster.lines)
    assert add(cluster.client(), identity, 0, version=3) == [0]
