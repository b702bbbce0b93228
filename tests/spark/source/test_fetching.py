"""Fetching ranges: what is asked for and when, with a cluster whose answers are written down beforehand; and losses with a real broker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import TypeAlias, cast
from uuid import UUID

import pytest

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.client.addresses import Address
from chaffinch.client.connections import RequestFailed, ResponseReceived
from chaffinch.client.pending_request import Deadline, PendingRequest
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import NetworkException, Stored, codes
from chaffinch.identifiers import NO_PRODUCER, OFFSET_LATEST, TopicPartition
from chaffinch.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from chaffinch.records import batch as batches
from chaffinch.records.columns import RecordColumns
from chaffinch.runtime.clock import ManualClock
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.source.fetching import FETCH_BYTES_MIN, TopicRange, bytes_wanted, read_range
from chaffinch.spark.source.options import SourceOptions
from chaffinch.spark.target import client_for, forget_client
from tests.spark.source.source_topics import drop_first, fill


def options(**given: str) -> SourceOptions:
    return SourceOptions.parse({"kafka.bootstrap.servers": "a:1", "subscribe": "t", "kafka.default.api.timeout.ms": "1000", **given})


def records(start: int, count: int) -> bytes:
    columns = RecordColumns.from_lists(None, [b"%d" % number for number in range(start, start + count)], [0] * count)
    out = batches.encode(columns, identity=NO_PRODUCER, base_sequence=-1)
    batches.patch_offset(out, 0, start, 0)
    return bytes(out)


LEADER = Address("leader", 9092)
Answer: TypeAlias = bytes | int | codes.ErrorCode | Exception


class Cluster:
    """Answers Fetch with `script`: per request, in order, what is sent back. A prefetch is answered by the next pump."""

    def __init__(self, *script: Answer) -> None:
        self.script = list(script)
        self.log: list[tuple[str, int]] = []
        self.clock = ManualClock()
        self.lock = contextlib.nullcontext()
        self.cluster = SimpleNamespace(leader_address=lambda tp: LEADER)
        self._ahead: list[PendingRequest] = []

    def deadline(self, timeout_ms: int, what: str) -> Deadline:
        return Deadline(self.clock, timeout_ms, what)

    def start(self, request: FetchRequest, address: Address, *, version_max: object) -> PendingRequest:
        self.log.append(("ahead", position_of(request)))
        self._ahead.append(PendingRequest(request, address))
        return self._ahead[-1]

    def pump(self, wait_ms: int) -> None:
        if not self._ahead:
            self.clock.advance(wait_ms)
        while self._ahead:
            exchange, answer = self._ahead.pop(0), self._next()
            if isinstance(answer, Exception):
                exchange.outcome = RequestFailed(address=LEADER, token=exchange, reason="gone", was_sent=True)
            else:
                exchange.outcome = ResponseReceived(address=LEADER, token=exchange, message=response(answer))

    def _next(self) -> Answer:
        return self.script.pop(0) if self.script else b""

    def leader_request(
        self, tp: TopicPartition, request: FetchRequest, *, timeout_ms: int, version_max: object, topic_id: UUID
    ) -> FetchResponse:
        self.log.append(("asked", position_of(request)))
        answer = self._next()
        if isinstance(answer, Exception):
            raise answer
        return response(answer)


def position_of(request: FetchRequest) -> int:
    return request.topics[0].partitions[0].fetch_offset


def response(answer: bytes | int | codes.ErrorCode) -> FetchResponse:
    """An int: no record, from a leader that knows of no more than this offset."""
    if isinstance(answer, int):
        code, data, high = 0, b"", answer
    else:
        code, data, high = (0, answer, 100) if isinstance(answer, bytes) else (answer.number, b"", 100)
    part = PartitionData(partition_index=0, error_code=code, high_watermark=high, records=memoryview(data))
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[part])])


def read(
    cluster: SyncClient | Cluster, start: int, end: int, given: Mapping[str, str] = MappingProxyType({}), *, is_start_required: bool = True
) -> list[int]:
    found = read_range(cast(SyncClient, cluster), TopicRange("t", 0, start, end, is_start_required), options(**given))
    return [offset for batch in found for offset in batch["offset"].to_pylist()]


GONE = NetworkException("gone", stored=Stored.NO, api="Fetch")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ([records(0, 3), records(3, 4)], [("asked", 0), ("ahead", 3)]),
        ([b"", b"", records(0, 7)], [("asked", 0)] * 3),
        ([records(0, 3), GONE, records(3, 4)], [("asked", 0), ("ahead", 3), ("asked", 3)]),
        ([records(0, 3), codes.NOT_LEADER_OR_FOLLOWER, records(3, 4)], [("asked", 0), ("ahead", 3), ("asked", 3)]),
        ([records(0, 3), b"", records(3, 4)], [("asked", 0), ("ahead", 3), ("asked", 3)]),
        ([records(0, 9)], [("asked", 0)]),
    ],
    ids=["ahead", "nothing at first", "lost", "moved", "nothing ahead", "more than the range"],
)
def test_fetch_request_has_options(
    script: Sequence[bytes | NetworkException | codes.ErrorCode], expected: Sequence[tuple[str, int]]
) -> None:
    cluster = Cluster(*script)
    assert read(cluster, 0, 7) == list(range(7))
    assert (cluster.log, cluster.script) == (expected, [])


def test_partition_without_records_times_out() -> None:
    cluster = Cluster(records(0, 3))
    with pytest.raises(Refusal, match=r"REQUEST_TIMED_OUT: t-0 returned no record at offset 3 for 1000 ms; offsets up to 6 existed"):
        read(cluster, 0, 7)
    assert cluster.clock.steady_ms() == 1000


def test_partition_without_records_is_logged_within_3_seconds(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Refusal, match="REQUEST_TIMED_OUT"):
        read(Cluster(records(0, 3)), 0, 7, {"kafka.default.api.timeout.ms": "9000"})
    assert caplog.messages == [
        "reading t-0, for 2500 ms: the leader returns no record at offset 3, and its high watermark is 100; "
        "retrying for up to 6500 ms more (kafka.default.api.timeout.ms)"
    ]


def test_missing_response_is_logged_within_3_seconds(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the request that was sent ahead."""
    cluster = Cluster(records(0, 3))
    monkeypatch.setattr(cluster, "pump", cluster.clock.advance)
    with pytest.raises(Refusal, match="REQUEST_TIMED_OUT"):
        read(cluster, 0, 7, {"kafka.default.api.timeout.ms": "9000"})
    assert caplog.messages[0] == (
        "reading t-0, for 2500 ms: no response from leader:9092 yet; retrying for up to 6500 ms more (kafka.default.api.timeout.ms)"
    )


def test_late_record_restarts_deadline() -> None:
    """Patience is for each stretch without progress, not for all of the range."""
    silence = [b""] * 15
    assert read(Cluster(records(0, 1), *silence, records(1, 1), *silence, records(2, 1)), 0, 3) == [0, 1, 2]


def test_range_with_offset_gaps_ends_at_its_end() -> None:
    assert read(Cluster(records(0, 2) + records(5, 2)), 0, 6) == [0, 1, 5]
    assert read(Cluster(records(5, 2)), 2, 4) == []


def test_corrupt_batch_is_reported() -> None:
    damaged = bytearray(records(0, 3))
    damaged[-1] ^= 1
    with pytest.raises(Refusal, match=r"KAFKA\[ApplicationRecoverable\] CORRUPT_MESSAGE: t-0: .*checksum"):
        read(Cluster(bytes(damaged)), 0, 3)


@pytest.mark.parametrize(
    ("count", "seen", "expected"),
    [
        (1, (0, 0), FETCH_BYTES_MIN),
        (1000, (0, 0), 1000 << 10),
        (10**9, (0, 0), 16 << 20),
        (1000, (400, 4), 125_000),
        (10, (8 << 20, 1), 16 << 20),
    ],
)
def test_request_size_is_limited_to_range(count: int, seen: tuple[int, int], expected: int) -> None:
    assert bytes_wanted(count, *seen, 16 << 20) == max(expected, FETCH_BYTES_MIN)


class TestLoss:
    """Offsets that are gone when a task comes for them."""

    @pytest.fixture
    def found(self) -> Iterator[tuple[SyncClient, str]]:
        with EmbeddedBroker(topics={"t": {"partitions": 1}}) as broker:
            fill(broker.bootstrap_servers, "t", {0: 10})
            chosen = options(**{"kafka.bootstrap.servers": broker.bootstrap_servers})
            client = client_for(chosen.client)
            drop_first(client, TopicPartition("t", 0), 4)
            yield client, broker.bootstrap_servers
            forget_client(chosen.client)

    def test_missing_start_fails(self, found: tuple[SyncClient, str]) -> None:
        client, servers = found
        with pytest.raises(
            Refusal, match=r"InvalidConfiguration\] OFFSET_OUT_OF_RANGE: t-0 begins at offset 4, offset 0 was requested; set"
        ):
            read(client, 0, 10, {"kafka.bootstrap.servers": servers})

    def test_moved_optional_start_is_not_a_loss(self, found: tuple[SyncClient, str], caplog: pytest.LogCaptureFixture) -> None:
        """As in Spark's source, where tasks look up the earliest offset themselves."""
        client, servers = found
        assert read(client, 0, 10, {"kafka.bootstrap.servers": servers}, is_start_required=False) == [4, 5, 6, 7, 8, 9]
        assert read(client, 0, 3, {"kafka.bootstrap.servers": servers}, is_start_required=False) == []
        assert "reading the remaining records" not in caplog.text

    def test_records_missing_after_first_are_a_loss(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("chaffinch.admin.offsets.list_offsets", lambda *asked, **given: {TopicPartition("t", 0): 8})
        gone = [codes.OFFSET_OUT_OF_RANGE] * 2
        with pytest.raises(Refusal, match="t-0 begins at offset 8, offset 6 was requested"):
            read(Cluster(records(4, 2), *gone), 4, 10, is_start_required=False)
        assert read(Cluster(gone[0], b"", records(8, 2)), 4, 10, is_start_required=False) == [8, 9]

    @pytest.mark.parametrize(
        ("ends_at", "name"), [(3, "OFFSET_OUT_OF_RANGE: t-0 ends before offset 3, offsets up to 6 existed"), (7, "TIMED_OUT")]
    )
    def test_end_within_range_is_a_loss_after_deadline(
        self, monkeypatch: pytest.MonkeyPatch, ends_at: int, name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Not before: the first leader knows of all only at the fifth question. Nor where what is there is only not given."""
        asked = []

        def listed(_: object, wanted: Mapping[TopicPartition, int], **__: object) -> dict[TopicPartition, int]:
            asked.append(wanted)
            return {TopicPartition("t", 0): ends_at}

        monkeypatch.setattr("chaffinch.admin.offsets.list_offsets", listed)
        assert read(Cluster(records(0, 3), *[3] * 4, records(3, 4)), 0, 7) == list(range(7))
        assert asked == []
        cluster = Cluster(records(0, 3), *[3] * 99)
        with pytest.raises(Refusal, match=name):
            read(cluster, 0, 7)
        assert (cluster.clock.steady_ms(), asked) == (1000, [{TopicPartition("t", 0): OFFSET_LATEST}])
        lenient = Cluster(records(0, 3), *[3] * 99)
        if ends_at == 3:
            assert read(lenient, 0, 7, {"failOnDataLoss": "false"}) == [0, 1, 2]
            assert "t-0 ends before offset 3" in caplog.text
        else:
            with pytest.raises(Refusal, match=name):
                read(lenient, 0, 7, {"failOnDataLoss": "false"})

    def test_end_before_optional_start_is_a_loss(self, found: tuple[SyncClient, str]) -> None:
        client, servers = found
        with pytest.raises(Refusal, match="t-0 ends before offset 12"):
            read(client, 12, 15, {"kafka.bootstrap.servers": servers}, is_start_required=False)

    @pytest.mark.parametrize(("start", "end", "left"), [(0, 10, [4, 5, 6, 7, 8, 9]), (0, 3, []), (12, 15, [])])
    def test_remaining_records_are_read_without_fail_on_data_loss(
        self, found: tuple[SyncClient, str], start: int, end: int, left: Sequence[int], caplog: pytest.LogCaptureFixture
    ) -> None:
        client, servers = found
        assert read(client, start, end, {"kafka.bootstrap.servers": servers, "failOnDataLoss": "false"}) == left
        assert "reading the remaining records" in caplog.text
