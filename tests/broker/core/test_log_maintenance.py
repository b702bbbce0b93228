"""Each option of topics and of the broker about old and repeated records does what it says, through the core and its clock."""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.broker.core.events import TimePassed
from chaffinch.broker.core.log_maintenance import WORK_OF_A_CHANGE, WORK_PER_CALL, LogMaintenance
from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.messages.incremental_alter_configs import (
    OPERATION_DELETE,
    OPERATION_SET,
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from chaffinch.records.batch import encode, read_header
from chaffinch.records.columns import RecordColumns
from chaffinch.storage.file_system import StorageError
from chaffinch.storage.partition_log import PartitionLog
from tests.broker.batches import NOW_MS, batch_of
from tests.broker.core.maintained_log import CLEANER_BACKOFF, DAY, HOUR, MINUTE, compacted, fill, log_of, offsets
from tests.broker.core_client import Cluster

RETENTION_CHECK = 5 * MINUTE
WEEKS = 10 * 7 * DAY


def altered(cluster: Cluster, name: str, value: str | None, *, kind: int = 2, resource: str = "orders") -> None:
    entry = AlterableConfig(name=name, config_operation=OPERATION_DELETE if value is None else OPERATION_SET, value=value)
    request = IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=kind, resource_name=resource, configs=[entry])], validate_only=False
    )
    assert cluster.client().ask(request).responses[0].error_code == 0


def refuses(operation: str, path: str, size: int) -> None:
    if operation == "sync directory":
        raise StorageError(path, operation, "Input/output error")


class TestRetention:
    def test_records_expire_after_a_week_by_default(self) -> None:
        cluster = Cluster()
        cluster.topic("orders", segment_ms="1")
        fill(cluster, 2 * HOUR, HOUR, 0)
        cluster.advance(7 * DAY - HOUR)
        assert log_of(cluster).log_start_offset == 1
        cluster.advance(HOUR)
        assert log_of(cluster).log_start_offset == 2
        cluster.advance(RETENTION_CHECK)
        assert (log_of(cluster).log_start_offset, log_of(cluster).size_bytes) == (3, 0)

    @pytest.mark.parametrize(
        ("broker", "topic", "lasts_ms"),
        [
            ({"log.retention.hours": 2}, {}, 2 * HOUR),
            ({"log.retention.hours": 2, "log.retention.minutes": 30}, {}, 30 * MINUTE),
            ({"log.retention.hours": 2, "log.retention.minutes": 30, "log.retention.ms": 10 * MINUTE}, {}, 10 * MINUTE),
            ({"log.retention.ms": 10 * MINUTE}, {"retention_ms": str(3 * HOUR)}, 3 * HOUR),
            ({"log.retention.minutes": -1}, {}, None),
            ({"log.retention.hours": 1}, {"retention_ms": "-1"}, None),
            ({"log.retention.hours": 1, "log.cleanup.policy": "compact"}, {}, None),
            ({"log.retention.hours": 1, "log.cleanup.policy": "compact"}, {"cleanup_policy": "delete,compact"}, HOUR),
        ],
    )
    def test_most_exact_retention_option_wins(self, broker: dict[str, Any], topic: dict[str, Any], lasts_ms: int | None) -> None:
        cluster = Cluster(broker)
        cluster.topic("orders", **topic)
        fill(cluster, 0)
        cluster.advance(WEEKS if lasts_ms is None else lasts_ms - MINUTE)
        assert log_of(cluster).log_start_offset == 0
        if lasts_ms is not None:
            cluster.advance(MINUTE + RETENTION_CHECK)
            assert log_of(cluster).log_start_offset == 1

    def test_oldest_segments_are_deleted_by_size(self) -> None:
        cluster = Cluster()
        cluster.topic("orders", segment_ms="1", retention_bytes="300")
        fill(cluster, 9, 6, 3, 0)
        cluster.advance(RETENTION_CHECK)
        assert log_of(cluster).log_start_offset == 2

    def test_retention_follows_options_set_at_run_time(self) -> None:
        cluster = Cluster()
        cluster.topic("orders", segment_ms="1")
        fill(cluster, HOUR, 0)
        cluster.advance(RETENTION_CHECK)
        assert log_of(cluster).log_start_offset == 0
        altered(cluster, "retention.ms", str(30 * MINUTE))
        cluster.advance(RETENTION_CHECK)
        assert log_of(cluster).log_start_offset == 1
        altered(cluster, "retention.ms", None)
        altered(cluster, "log.retention.ms", str(MINUTE), kind=4, resource="")
        cluster.advance(RETENTION_CHECK)
        assert log_of(cluster).log_start_offset == 2

    def test_records_expired_at_a_start_are_deleted_at_the_next_check(self) -> None:
        cluster = Cluster({"log.retention.ms": MINUTE, "log.retention.check.interval.ms": 7_000})
        cluster.topic("orders")
        fill(cluster, 0)
        cluster.steady_ms += HOUR
        cluster.restart()
        cluster.advance(6_999)
        assert log_of(cluster).log_start_offset == 0
        cluster.advance(1)
        assert log_of(cluster).log_start_offset == 1

    def test_records_after_a_full_expiry_expire_too(self) -> None:
        cluster = Cluster({"log.retention.ms": HOUR})
        cluster.topic("orders")
        fill(cluster, 0)
        log_of(cluster).roll(cluster.steady_ms)
        cluster.advance(2 * HOUR)
        assert log_of(cluster).log_start_offset == 1
        fill(cluster, 0)
        cluster.advance(2 * HOUR)
        assert log_of(cluster).log_start_offset == 2

    def test_records_above_the_high_watermark_are_checked_once_per_interval(self) -> None:
        cluster = Cluster({"log.retention.ms": HOUR})
        cluster.topic("orders")
        fill(cluster, 0)
        log_of(cluster).high_watermark = 0
        cluster.advance(1)
        cluster.steady_ms += DAY
        cluster.carry_out(cluster.core.handle(TimePassed(), cluster.steady_ms))
        assert log_of(cluster).log_start_offset == 0
        maintenance = next(task for task in cluster.core.state.scheduled_tasks if isinstance(task, LogMaintenance))
        next_ms = maintenance._retention.next_ms
        assert next_ms is not None
        assert cluster.steady_ms < next_ms <= cluster.steady_ms + RETENTION_CHECK

    def test_retention_is_retried_after_a_disk_error(self) -> None:
        cluster = Cluster({"log.retention.ms": MINUTE})
        cluster.topic("orders")
        fill(cluster, 0)
        cluster.file_system.hook = refuses
        cluster.advance(HOUR)
        assert any(line.startswith("old records of orders-0 cannot be deleted now: cannot sync") for line in cluster.lines)
        cluster.file_system.hook = None
        cluster.advance(RETENTION_CHECK)
        assert log_of(cluster).log_start_offset == 1


class TestRolling:
    @pytest.mark.parametrize(
        ("broker", "topic", "expected"),
        [
            ({}, {}, [0]),
            ({"log.roll.hours": 1}, {}, [0, 2]),
            ({"log.roll.hours": 1, "log.roll.ms": 1_000}, {}, [0, 1, 2]),
            ({"log.roll.ms": 1_000}, {"segment_ms": str(HOUR)}, [0, 2]),
        ],
    )
    def test_segments_roll_by_age(self, broker: dict[str, Any], topic: dict[str, Any], expected: list[int]) -> None:
        cluster = Cluster(broker)
        cluster.topic("orders", **topic)
        fill(cluster, 2 * HOUR, HOUR, 0)
        assert [segment.base_offset for segment in log_of(cluster).files.segments] == expected

    @pytest.mark.parametrize(("broker", "topic"), [({"log.roll.jitter.hours": 24}, {}), ({}, {"segment_jitter_ms": str(DAY)})])
    def test_jitter_rolls_segments_earlier(self, broker: dict[str, Any], topic: dict[str, Any]) -> None:
        cluster = Cluster(broker)
        for number in range(8):
            cluster.topic(f"t{number}", segment_ms=str(DAY), **topic)
            fill(cluster, *range(DAY, -1, -HOUR), topic=f"t{number}")
        assert len({log_of(cluster, f"t{number}").files.segments[0].end_offset for number in range(8)}) > 4


class TestCompaction:
    def test_compaction_keeps_the_last_of_each_key_and_the_open_segment(self) -> None:
        cluster = Cluster()
        log = compacted(cluster)
        assert offsets(log) == [0, 1, 2, 3, 4]
        cluster.advance(CLEANER_BACKOFF + 100)
        assert offsets(log) == [3, 4]
        assert cluster.lines == []

    def test_disabled_cleaner_compacts_nothing(self) -> None:
        cluster = Cluster({"log.cleaner.enable": False})
        log = compacted(cluster)
        cluster.advance(DAY)
        assert len(offsets(log)) == 5

    def test_cleaner_backoff_option_applies(self) -> None:
        cluster = Cluster({"log.cleaner.backoff.ms": 100})
        log = compacted(cluster)
        cluster.advance(200)
        assert offsets(log) == [3, 4]

    @pytest.mark.parametrize(("ratio", "expected"), [("0.7", [3, 4, 5]), ("0.5", [5])])
    def test_compaction_starts_at_the_dirty_ratio(self, ratio: str, expected: list[int]) -> None:
        cluster = Cluster()
        log = compacted(cluster, min_cleanable_dirty_ratio=ratio)
        cluster.advance(MINUTE)
        assert offsets(log) == [3, 4]
        fill(cluster, 0)
        cluster.advance(MINUTE)
        fill(cluster, 0)
        cluster.advance(MINUTE)
        assert offsets(log) == [*expected, 6]

    def test_compaction_waits_for_the_min_lag(self) -> None:
        cluster = Cluster()
        log = compacted(cluster, min_compaction_lag_ms=str(HOUR))
        cluster.advance(HOUR - MINUTE)
        assert len(offsets(log)) == 5
        cluster.advance(2 * MINUTE)
        assert offsets(log) == [3, 4]

    def test_max_lag_compacts_the_open_segment_too(self) -> None:
        cluster = Cluster()
        cluster.topic("orders", cleanup_policy="compact", max_compaction_lag_ms=str(HOUR), min_cleanable_dirty_ratio="1")
        fill(cluster, 0, 0, 0)
        cluster.advance(HOUR - MINUTE)
        assert offsets(log_of(cluster)) == [0, 1, 2]
        cluster.advance(2 * MINUTE)
        assert offsets(log_of(cluster)) == [2]

    def test_open_transaction_seals_no_segments(self) -> None:
        cluster = Cluster({"transaction.partition.verification.enable": False})
        cluster.topic("orders", cleanup_policy="compact", max_compaction_lag_ms=str(HOUR))
        log = log_of(cluster)
        log.append(batch_of(b"t", identity=ProducerIdentity(1, 0), sequence=0, transactional=True, timestamps=[NOW_MS]), steady_ms=NOW_MS)
        for _ in range(6):
            cluster.advance(HOUR // 2)
            fill(cluster, 0)
        assert len(log.files.segments) <= 3

    def test_tombstones_stay_for_delete_retention_ms(self) -> None:
        cluster = Cluster()
        cluster.topic("orders", cleanup_policy="compact", segment_ms="1", delete_retention_ms=str(HOUR), min_cleanable_dirty_ratio="0")
        client = cluster.client()
        client.produce("orders", encode(RecordColumns.from_lists([b"a"], [None], [NOW_MS])))
        for wait_ms in (MINUTE, HOUR - 2 * MINUTE):
            fill(cluster, 0, key=b"b%d" % wait_ms)
            cluster.advance(wait_ms)
            assert 0 in offsets(log_of(cluster))
        fill(cluster, 0, 0, key=b"c")
        cluster.advance(2 * MINUTE)
        fill(cluster, 0, 0, key=b"d")
        cluster.advance(2 * MINUTE)
        assert 0 not in offsets(log_of(cluster))

    def test_cleanup_policy_set_at_run_time_applies(self) -> None:
        cluster = Cluster()
        cluster.topic("orders", segment_ms="1")
        fill(cluster, 4, 2, 0)
        cluster.advance(MINUTE)
        assert offsets(log_of(cluster)) == [0, 1, 2]
        altered(cluster, "cleanup.policy", "compact")
        cluster.advance(MINUTE)
        assert offsets(log_of(cluster)) == [1, 2]

    def test_open_transaction_keeps_later_records(self) -> None:
        cluster = Cluster({"transaction.partition.verification.enable": False})
        cluster.topic("orders", cleanup_policy="compact", segment_ms="1")
        fill(cluster, 9, 7)
        log = log_of(cluster)
        one = ProducerIdentity(1, 0)
        log.append(batch_of(b"t", identity=one, sequence=0, transactional=True, timestamps=[NOW_MS]), steady_ms=NOW_MS)
        fill(cluster, -3, -5)
        cluster.advance(HOUR)
        assert offsets(log) == [1, 2, 3, 4]
        log.append_marker(False, one, 0, cluster.steady_ms)
        cluster.advance(MINUTE)
        assert offsets(log) == [4, 5]

    def test_end_of_a_transaction_allows_compaction_without_a_new_segment(self) -> None:
        cluster = Cluster({"transaction.partition.verification.enable": False})
        cluster.topic("orders", cleanup_policy="compact")
        fill(cluster, 9, 7)
        log = log_of(cluster)
        one = ProducerIdentity(1, 0)
        log.append(batch_of(b"t", identity=one, sequence=0, transactional=True, timestamps=[NOW_MS]), steady_ms=NOW_MS)
        log.roll(cluster.steady_ms)
        cluster.advance(HOUR)
        log.append_marker(True, one, 0, cluster.steady_ms)
        cluster.advance(MINUTE)
        assert offsets(log) == [2, 3]

    def test_changed_cleanup_policy_stops_compaction(self) -> None:
        cluster = Cluster({"log.cleaner.io.max.bytes.per.second": 1024})
        for name in ("first", "orders"):
            cluster.topic(name, cleanup_policy="compact", segment_ms="1")
            fill(cluster, *range(8, -1, -2), topic=name)
        cluster.advance(CLEANER_BACKOFF + 100)
        altered(cluster, "cleanup.policy", "delete")
        cluster.advance(DAY)
        assert offsets(log_of(cluster, "first")) == [3, 4]
        assert offsets(log_of(cluster)) == [0, 1, 2, 3, 4]

    def test_topic_deletion_ends_its_compaction(self) -> None:
        cluster = Cluster({"log.cleaner.io.max.bytes.per.second": 1 << 20})
        cluster.topic("orders", cleanup_policy="compact", segment_ms="1", max_message_bytes=str(10 << 20))
        client = cluster.client()
        for number in range(4):
            client.produce("orders", batch_of(b"v" * (2 << 20), timestamps=[NOW_MS + 2 * number]))
        cluster.advance(CLEANER_BACKOFF + 1_500)
        cluster.core.topics.delete("orders")
        cluster.topic("orders")
        cluster.advance(HOUR)
        assert cluster.lines == []

    def test_dirtiest_log_is_compacted_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cluster = Cluster()
        for name in ("few", "many"):
            cluster.topic(name, cleanup_policy="compact", segment_ms="1")
            fill(cluster, 5, 3, topic=name)
            cluster.advance(MINUTE)
            assert log_of(cluster, name).files.state.first_dirty_offset == 1
        seen: list[str] = []
        before = LogMaintenance._next_job

        def noting(self: LogMaintenance, *rest: Any) -> Any:
            job = before(self, *rest)
            if job is not None:
                seen.append(job.partition.topic_partition.topic)
            return job

        monkeypatch.setattr(LogMaintenance, "_next_job", noting)
        fill(cluster, *range(-1, -7, -2), topic="few")
        fill(cluster, *range(-1, -19, -2), topic="many")
        cluster.advance(MINUTE)
        assert seen[:2] == ["many", "few"]


class TestCost:
    def test_idle_partitions_are_not_checked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cluster = Cluster()
        cluster.topic("idle", 300)
        cluster.topic("orders")
        checked: list[object] = []

        def noting(_self: LogMaintenance, name: object, *_rest: object) -> int:
            checked.append(name)
            return 0

        monkeypatch.setattr(LogMaintenance, "_check_retention", noting)
        fill(cluster, 0)
        cluster.advance(DAY)
        assert checked == [("orders", 0)]

    @pytest.mark.parametrize(("age_ms", "most_checked"), [(0, WORK_PER_CALL), (DAY, WORK_PER_CALL // (WORK_OF_A_CHANGE + 2) + 1)])
    def test_one_call_checks_a_limited_number_of_partitions(self, monkeypatch: pytest.MonkeyPatch, age_ms: int, most_checked: int) -> None:
        """Ever fewer, the more there is to do: a log from which something goes has several files synced."""
        cluster = Cluster({"log.retention.ms": 6 * HOUR})
        cluster.topic("orders", 4 * WORK_PER_CALL)
        client = cluster.client()
        for number in range(4 * WORK_PER_CALL):
            client.produce("orders", batch_of(b"v", timestamps=[NOW_MS - age_ms]), partition=number)
        checked = 0
        most = 0
        run_due = LogMaintenance.run_due
        check = LogMaintenance._check_retention

        def counting(self: LogMaintenance, *rest: Any) -> int:
            nonlocal checked
            checked += 1
            return check(self, *rest)

        def watched(self: LogMaintenance, steady_ms: int) -> Any:
            nonlocal checked, most
            checked = 0
            lines = run_due(self, steady_ms)
            most = max(most, checked)
            return lines

        monkeypatch.setattr(LogMaintenance, "_check_retention", counting)
        monkeypatch.setattr(LogMaintenance, "run_due", watched)
        cluster.advance(HOUR)
        assert most == most_checked
        assert all(bool(partition.log.size_bytes) == (age_ms == 0) for partition in cluster.core.topics.partitions())

    def test_many_segments_of_one_log_are_deleted_in_immediate_slices(self) -> None:
        cluster = Cluster({"log.retention.ms": HOUR})
        cluster.topic("orders", segment_ms="1")
        log = log_of(cluster)
        fill(cluster, *range(DAY, DAY - 10 * WORK_PER_CALL, -2))
        left = [len(log.files.segments)]
        cluster.advance(1)
        cluster.steady_ms += RETENTION_CHECK
        while left[-1]:
            due_ms = cluster.core.next_deadline_ms
            assert due_ms is not None
            assert due_ms <= cluster.steady_ms
            cluster.carry_out(cluster.core.handle(TimePassed(), cluster.steady_ms))
            if len(log.files.segments) != left[-1]:
                left.append(len(log.files.segments))
        assert left == list(range(5 * WORK_PER_CALL, -1, -WORK_PER_CALL))
        assert log.log_start_offset == log.log_end_offset

    def test_failed_deletions_on_a_full_disk_are_rate_limited_in_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        cluster = Cluster({"log.retention.ms": HOUR})
        cluster.topic("orders")
        fill(cluster, 0)
        cluster.file_system.bytes_free = 0
        cluster.advance(2 * HOUR)
        assert [line for line in cluster.lines if line.startswith("old records of orders-0 cannot be deleted now: cannot append")]
        assert not [record for record in caplog.records if "stay" in record.message]
        cluster.file_system.bytes_free = None
        cluster.advance(RETENTION_CHECK)
        assert log_of(cluster).log_start_offset == 1

    def test_logs_sealed_by_age_are_sealed_a_few_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cluster = Cluster()
        cluster.topic("orders", 3 * WORK_PER_CALL, cleanup_policy="compact", max_compaction_lag_ms=str(HOUR))
        client = cluster.client()
        for number in range(3 * WORK_PER_CALL):
            client.produce("orders", batch_of(b"v", keys=[b"k"], timestamps=[NOW_MS]), partition=number)
        sealed: list[object] = []
        most = 0
        monkeypatch.setattr(PartitionLog, "roll", lambda log, _steady_ms: sealed.append(log))
        run_due = LogMaintenance.run_due

        def watched(self: LogMaintenance, steady_ms: int) -> Any:
            nonlocal most
            before = len(sealed)
            lines = run_due(self, steady_ms)
            most = max(most, len(sealed) - before)
            return lines

        monkeypatch.setattr(LogMaintenance, "run_due", watched)
        cluster.advance(HOUR + MINUTE)
        assert most == WORK_PER_CALL // (WORK_OF_A_CHANGE + 1) + 1
        assert len(set(sealed)) == 3 * WORK_PER_CALL


@pytest.mark.parametrize(
    ("codec", "fast", "small"),
    [("gzip", "1", "9"), ("zstd", "1", "19"), ("lz4", "9", "12")],
)
def test_compression_level_of_the_topic_is_used(codec: str, fast: str, small: str) -> None:
    sizes = []
    for level in (fast, small):
        cluster = Cluster()
        options: dict[str, Any] = {"compression.type": codec, f"compression.{codec}.level": level}
        cluster.topic("orders", **options)
        text = b"".join(b"%d,%d;" % (number * number % 9973, number) for number in range(20_000))
        assert cluster.client().produce("orders", batch_of(text)).error_code == 0
        sizes.append(read_header(log_of(cluster).read(0, 1)[0]).size)
    assert sizes[1] < sizes[0]


def test_contradicting_compaction_lags_are_refused() -> None:
    cluster = Cluster()
    with pytest.raises(Exception, match=r"min\.compaction\.lag\.ms is larger"):
        cluster.topic("orders", min_compaction_lag_ms="10", max_compaction_lag_ms="9")
