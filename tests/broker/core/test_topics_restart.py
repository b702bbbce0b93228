"""What a restart finds of topics, and what a death or a loss of power in the middle of their deletion leaves."""

from __future__ import annotations

import pytest

from chaffinch.broker.core.topics import registry
from chaffinch.storage.file_system import Interrupted, StorageError
from tests.broker.batches import batch_of
from tests.broker.core.test_topics import creatable, create
from tests.broker.core_client import Cluster


class TestRestart:
    def test_topics_options_and_records_survive_a_restart(self) -> None:
        cluster = Cluster(nodes=2)
        create(cluster.client(), creatable(partitions=2, replication=2, cleanup_policy="compact"))
        before = cluster.topic_named("orders")
        cluster.client(node=before.partitions[0].replicas.leader).produce("orders", batch_of(b"a"))
        cluster.restart()
        after = cluster.topic_named("orders")
        assert (after.topic_id, after.overrides, after.config) == (before.topic_id, before.overrides, before.config)
        assert [partition.replicas for partition in after.partitions] == [partition.replicas for partition in before.partitions]
        assert after.partitions[0].log.log_end_offset == 1

    def test_cluster_id_survives_a_restart(self) -> None:
        cluster = Cluster()
        before = cluster.core.state.cluster_id
        cluster._seed = 99
        cluster.restart()
        assert cluster.core.state.cluster_id == before

    def test_verified_bytes_of_all_logs_are_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Else a broker would take the longer to start the more partitions it has."""
        cluster, tps = Cluster(), [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
        for topic in ("a", "b"):
            cluster.topic(topic, 2)
        records = bytes(batch_of(bytes(10_000)))
        for topic, partition in tps:
            cluster.client().produce(topic, records, partition=partition)
        for fitting, verified in ((0, 0), (1, 1), (3, 3), (9, 4)):
            monkeypatch.setattr(registry, "VERIFY_BYTES_MAX", fitting * len(records))
            cluster.restart(kill=False)
            read = [partition.log.recovery_bytes_read for partition in cluster.core.topics.partitions()]
            assert read == [len(records)] * verified + [0] * (4 - verified)

    def test_missing_log_is_named_in_the_error(self) -> None:
        cluster = Cluster()
        cluster.topic("orders")
        directory = cluster.topic_named("orders").directory
        cluster.core.close()
        cluster.file_system.remove_tree(f"{directory}/0")
        with pytest.raises(StorageError, match="orders"):
            cluster._core()

    def test_missing_journal_is_named_in_the_error(self) -> None:
        cluster = Cluster()
        cluster.core.close()
        cluster.file_system.remove("journals/transactions.journal")
        with pytest.raises(StorageError, match=r"transactions\.journal"):
            cluster._core()

    def test_failed_start_releases_the_lock(self) -> None:
        cluster = Cluster()
        cluster.topic("orders")
        cluster.core.close()
        cluster.file_system.rename("journals/offsets.journal", "journals/kept")
        for _ in range(2):
            with pytest.raises(StorageError, match="missing"):
                cluster._core()

    def test_start_syncs_many_logs_at_once(self) -> None:
        cluster = Cluster({"flush.policy": "always"})
        cluster.topic("orders", 100)
        cluster.client().produce("orders", batch_of(b"a"))
        cluster.file_system.kill()
        syncs = 0

        def count(operation: str, path: str, size: int) -> None:
            nonlocal syncs
            syncs += operation in ("sync", "sync directory")

        cluster.file_system.hook = count
        cluster.core = cluster._core()
        cluster.file_system.hook = None
        assert syncs < 20
        cluster.file_system.crash(lambda path, unsynced: 0)
        cluster.core = cluster._core()
        assert cluster.partition("orders").log.log_end_offset == 1

    def test_interrupted_deletion_is_completed_by_the_next_start(self) -> None:
        cluster = Cluster()
        cluster.topic("orders", 3)
        directory = cluster.topic_named("orders").directory

        def die(operation: str, path: str, size: int) -> None:
            if operation.startswith("remove"):
                raise Interrupted

        cluster.file_system.hook = die
        with pytest.raises(Interrupted):
            cluster.core.topics.delete("orders")
        cluster.file_system.hook = None
        cluster.restart()
        assert cluster.core.topics.get("orders") is None
        assert not cluster.file_system.exists(directory)
        cluster.topic("orders")
        assert cluster.topic_named("orders").partitions[0].log.log_end_offset == 0

    @pytest.mark.parametrize("dies_first_in", ["nothing", "sync"])
    def test_directories_are_removed_only_after_the_deletion_is_durable(self, dies_first_in: str) -> None:
        cluster = Cluster()
        cluster.topic("orders", 3)
        cluster.core._metadata.sync()
        removed = 0

        def die(operation: str, path: str, size: int) -> None:
            nonlocal removed
            removed += operation.startswith("remove") and path.startswith("logs/")
            if operation == dies_first_in or removed == 2:
                raise Interrupted

        cluster.file_system.hook = die
        with pytest.raises(Interrupted):
            cluster.core.topics.delete("orders")
        if dies_first_in == "sync":
            cluster.file_system.kill()
            dies_first_in = "nothing"
            with pytest.raises(Interrupted):
                cluster._core()
        cluster.file_system.hook = None
        cluster.file_system.crash(lambda path, unsynced: 0 if path.endswith(".journal") else unsynced)
        assert cluster._core().topics.get("orders") is None
