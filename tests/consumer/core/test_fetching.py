"""Fetches, buffering and delivery, and sources of positions; with a manual clock and manual responses."""

from collections.abc import Generator
from itertools import islice

import pytest

from chaffinch import errors
from chaffinch.consumer.core.lookups import OffsetsCall
from chaffinch.consumer.core.positions import Position, Stage
from chaffinch.consumer.metrics import METRICS
from chaffinch.consumer.poller import begin_iteration, iterate_records
from chaffinch.errors import KafkaException
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.protocol.messages.fetch import FetchRequest, PartitionData
from chaffinch.protocol.messages.list_offsets import ListOffsetsRequest
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.protocol.messages.offset_fetch import OffsetFetchRequest
from chaffinch.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from chaffinch.protocol.messages.produce import LeaderIdAndEpoch, NodeEndpoint
from chaffinch.records.batch import encode
from chaffinch.records.columns import RecordColumns
from chaffinch.records.control_batch import encode_control_batch
from chaffinch.records.fetched import FetchedRecords, Piece, whole_batches
from tests.consumer.core.rig import WALL_MS, Rig, as_records, number_of, records

P0 = TopicPartition("t", 0)


def asked(rig: Rig) -> tuple[int, dict[int, int], list[int]]:
    """(session epoch, {partition: offset}, forgotten partitions) of the fetch that waits."""
    message = rig.pending(FetchRequest)[0].message
    offsets = {part.partition: part.fetch_offset for topic in message.topics for part in topic.partitions}
    return message.session_epoch, offsets, [number for topic in message.forgotten_topics_data for number in topic.partitions]


class TestSessions:
    def test_session_sends_only_changes(self) -> None:
        rig = Rig().assign(0, 1)
        assert asked(rig) == (0, {0: 0, 1: 0}, [])
        rig.answer_fetch(session=9, p0=records(0, b"a"))
        assert asked(rig) == (1, {0: 1}, [])
        assert rig.pending(FetchRequest)[0].message.session_id == 9
        rig.core.subscriptions.of(P0).is_paused = True
        rig.answer_fetch(session=9)
        assert asked(rig) == (2, {}, [0])

    @pytest.mark.parametrize(
        ("error", "session"), [("FETCH_SESSION_ID_NOT_FOUND", 0), ("INVALID_FETCH_SESSION_EPOCH", 9), ("FETCH_SESSION_TOPIC_ID_ERROR", 9)]
    )
    def test_lost_session_is_restarted(self, error: str, session: int) -> None:
        rig = Rig().assign(0, 1)
        rig.answer_fetch(session=9)
        rig.answer_fetch(error=number_of(error))
        assert asked(rig) == (0, {0: 0, 1: 0}, [])
        assert rig.pending(FetchRequest)[0].message.session_id == session

    def test_request_without_session_names_all_partitions(self) -> None:
        rig = Rig().assign(0, 1)
        rig.answer_fetch(session=0)
        assert asked(rig) == (0, {0: 0, 1: 0}, [])

    def test_session_restarts_after_a_lost_response(self) -> None:
        rig = Rig().assign(0)
        rig.answer_fetch(session=9)
        rig.fail(FetchRequest)
        rig.advance(1_000)
        rig.answer_metadata()
        rig.advance(1_000)
        assert asked(rig) == (0, {0: 0}, [])
        assert rig.pending(FetchRequest)[0].message.session_id == 9

    def test_topic_ids_or_names(self) -> None:
        from chaffinch.protocol.primitives import ZERO_UUID

        assert Rig().assign(0).pending(FetchRequest)[0].version_max == 18
        rig = Rig()
        rig.topic_id = ZERO_UUID
        assert rig.assign(0).pending(FetchRequest)[0].version_max == 12


class TestTake:
    def test_records_are_ordered_and_limited(self) -> None:
        rig = Rig().assign(0)
        rig.answer_fetch(p0=records(0, b"a", b"b") + records(2, b"c"))
        assert rig.poll(2) == [(0, b"a"), (0, b"b")]
        assert rig.position(P0).offset == 2
        assert rig.poll(2) == [(0, b"c")]
        assert rig.poll(2) == []

    def test_iteration_retains_prefetched_records(self) -> None:
        """A transaction marker lies between the last record and the position: nothing is returned."""
        rig = Rig().assign(0)
        rig.answer_fetch(p0=records(0, b"a", b"b") + encode_control_batch(True, ProducerIdentity(7, 0), 0, 0, base_offset=2))
        given = iterate_records(rig.core, begin_iteration(rig.core, as_records(rig.core.take(500))), rig.core.return_undelivered)
        consumed = [(record.value, rig.consumed(P0).offset) for record in islice(given, 2)]
        assert consumed == [(b"a", 1), (b"b", 3)]
        rig.answer_fetch(p0=records(3, b"c"))
        assert next(given, None) is None
        assert rig.poll() == [(0, b"c")]
        assert rig.consumed(P0).offset == 4

    def test_loop_that_ends_early_returns_the_rest(self) -> None:
        rig = Rig().assign(0)
        rig.answer_fetch(p0=records(0, b"a", b"b") + encode_control_batch(True, ProducerIdentity(7, 0), 0, 0, base_offset=2))
        given = iterate_records(rig.core, begin_iteration(rig.core, as_records(rig.core.take(2))), rig.core.return_undelivered)
        assert next(given).value == b"a"
        assert isinstance(given, Generator)
        given.close()
        assert rig.consumed(P0).offset == 1

    def test_records_skipped_while_paused_are_read_again(self) -> None:
        """Though another portion of the partition, behind those of others, comes after it is resumed."""
        rig = Rig().assign(0, 1)
        rig.answer_fetch(p0=records(0, b"a", b"b", b"c"), p1=records(0, b"x"))
        first, second, third, other = as_records(rig.core.take(500))
        given = iterate_records(rig.core, begin_iteration(rig.core, [first, second, other, third]), rig.core.return_undelivered)
        assert next(given).value == b"a"
        rig.core.subscriptions.of(P0).is_paused = True
        assert next(given).value == b"x"
        rig.core.subscriptions.of(P0).is_paused = False
        assert next(given, None) is None
        assert [rig.consumed(tp).offset for tp in (P0, TopicPartition("t", 1))] == [1, 1]

    def test_poll_unpacks_at_most_poll_bytes_max(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("chaffinch.consumer.core.fetcher.POLL_BYTES_MAX", 10)
        rig = Rig().assign(0, 1)
        rig.answer_fetch(p0=records(0, b"x" * 10), p1=records(0, b"y" * 9))
        rig.answer_fetch(p0=records(1, b"z"), p1=records(1, b"z"))
        assert rig.poll() == [(0, b"x" * 10)]
        assert rig.poll() == [(1, b"y" * 9), (0, b"z")]
        assert rig.poll() == [(1, b"z")]

    def test_headers_count_as_unpacked_bytes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("chaffinch.consumer.core.fetcher.POLL_BYTES_MAX", 10)
        rig = Rig().assign(0, 1)
        with_header = encode(RecordColumns.from_lists(None, [b"x"], [0], [[("name", b"sixsix")]]))
        rig.answer_fetch(p0=with_header, p1=records(0, b"y"))
        assert rig.poll() == [(0, b"x")]
        assert rig.poll() == [(1, b"y")]

    def test_paused_records_are_retained(self) -> None:
        rig = Rig().assign(0, 1)
        rig.answer_fetch(p0=records(0, b"a"), p1=records(0, b"b"))
        rig.core.subscriptions.of(P0).is_paused = True
        assert rig.poll() == [(1, b"b")]
        rig.core.subscriptions.of(P0).is_paused = False
        assert rig.poll() == [(0, b"a")]

    def test_seek_drops_fetched_and_in_flight_records(self) -> None:
        rig = Rig().assign(0)
        rig.answer_fetch(p0=records(0, b"a", b"b"))
        rig.core.seek(P0, Position(1))
        rig.step()
        assert rig.poll() == []
        rig.answer_fetch(p0=records(2, b"c"))
        assert rig.poll() == []
        assert asked(rig)[1] == {0: 1}
        rig.answer_fetch(p0=records(0, b"a", b"b"))
        assert rig.poll() == [(0, b"b")]

    def test_revoked_partition_is_dropped(self) -> None:
        rig = Rig().assign(0, 1)
        rig.answer_fetch(p0=records(0, b"a"), p1=records(0, b"b"))
        rig.core.assign([TopicPartition("t", 1)], rig.steady_ms)
        assert rig.poll() == [(1, b"b")]

    def test_corrupt_batch_raises_until_it_is_skipped(self) -> None:
        rig = Rig().assign(0)
        bad = records(1, b"b")
        bad[-1] ^= 1
        rig.answer_fetch(p0=records(0, b"a") + bad + records(2, b"c"))
        assert rig.poll() == [(0, b"a")]
        for _ in range(2):
            with pytest.raises(errors.CorruptRecordException, match=r"checksum of the batch at offset 1 .* seek to 2 or beyond") as caught:
                rig.poll()
        assert caught.value.topic_partition == P0
        rig.core.seek(P0, Position(2))
        rig.step()
        rig.answer_fetch(p0=b"")
        rig.answer_fetch(p0=records(2, b"c"))
        assert rig.poll() == [(0, b"c")]

    def test_incomplete_batch_raises(self) -> None:
        rig = Rig().assign(0)
        rig.answer_fetch(p0=records(0, b"a", b"b")[:40])
        assert not rig.pending(FetchRequest)
        with pytest.raises(errors.CorruptRecordException) as caught:
            rig.poll()
        assert caught.value.topic_partition == P0
        assert rig.poll() == []
        rig.answer_fetch(p0=records(0, b"a", b"b") + records(2, b"c")[:40])
        assert rig.poll() == [(0, b"a"), (0, b"b")]
        assert asked(rig)[1] == {0: 2}

    def test_records_of_an_interrupted_take_are_read_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rig = Rig().assign(0, 1)
        rig.answer_fetch(p0=records(0, b"a") + records(1, b"b", epoch=1), p1=records(0, b"c"))
        read, reads = FetchedRecords.read, []

        def interrupted(reader: FetchedRecords, records_max: int) -> Piece | None:
            reads.append(records_max)
            if len(reads) == 4:
                raise KeyboardInterrupt
            return read(reader, records_max)

        monkeypatch.setattr(FetchedRecords, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rig.poll()
        assert {tp.partition: offset.offset for tp, offset in rig.group.commits.positions().items()} == {0: 0, 1: 0}
        rig.step()
        assert rig.poll() == [(1, b"c")]
        rig.answer_fetch(p0=records(0, b"a", b"b"))
        rig.answer_fetch(p0=records(0, b"a", b"b"))
        assert rig.poll() == [(0, b"a"), (0, b"b")]

    def test_check_crcs_false(self) -> None:
        rig = Rig(**{"check.crcs": False}).assign(0)
        bad = records(0, b"b")
        bad[17] ^= 1
        rig.answer_fetch(p0=bad)
        assert rig.poll() == [(0, b"b")]


class TestErrors:
    @pytest.mark.parametrize(
        "name", ["NOT_LEADER_OR_FOLLOWER", "UNKNOWN_TOPIC_ID", "FENCED_LEADER_EPOCH", "OFFSET_NOT_AVAILABLE", "UNKNOWN_SERVER_ERROR"]
    )
    def test_transient_error_refetches_with_new_metadata(self, name: str) -> None:
        rig = Rig().assign(0)
        rig.answer_fetch(p0=number_of(name))
        assert not rig.pending(FetchRequest)
        rig.advance(1_000)
        assert len(rig.pending(MetadataRequest)) == 1
        assert asked(rig)[1] == {0: 0}
        assert rig.poll() == []

    def test_rejection_is_raised_while_another_partition_has_records(self) -> None:
        """Raised by the poll after the one that returns the other records, repeatedly."""
        rig = Rig(**{"group.id": None}).assign(0, 1)
        given: list[bytes] = []
        reported: list[TopicPartition | None] = []
        for offset in range(10):
            refused = {"p1": number_of("TOPIC_AUTHORIZATION_FAILED")} if 1 in asked(rig)[1] else {}
            rig.answer_fetch(p0=records(offset, b"%d" % offset), **refused)
            for _ in range(2):
                try:
                    given += [value for _, value in rig.poll()]
                except errors.TopicAuthorizationException as error:
                    reported.append(error.topic_partition)
        assert given == [b"%d" % offset for offset in range(10)]
        assert reported == [TopicPartition("t", 1)] * 5  # The next fetch is in flight before the poll that raises it.

    @pytest.mark.parametrize(("level", "lag"), [("read_committed", 2), ("read_uncommitted", 9)])
    def test_lag_ends_at_the_readable_end(self, level: str, lag: int) -> None:
        rig = Rig(**{"isolation.level": level}).assign(0)
        rig.answer_fetch(p0=PartitionData(high_watermark=10, last_stable_offset=3, records=memoryview(records(0, b"v"))))
        assert rig.poll() == [(0, b"v")]
        assert METRICS["records-lag-max"].read(rig.core, rig.steady_ms) == lag

    def test_leader_in_fetch_response_is_used_at_once(self) -> None:
        rig = Rig().assign(0)
        data = PartitionData(error_code=number_of("NOT_LEADER_OR_FOLLOWER"), current_leader=LeaderIdAndEpoch(leader_id=5, leader_epoch=4))
        sent = rig.take(FetchRequest)
        from chaffinch.protocol.messages.fetch import FetchableTopicResponse, FetchResponse

        topics = [FetchableTopicResponse(topic_id=rig.topic_id, partitions=[data])]
        rig.answer(sent, FetchResponse(responses=topics, node_endpoints=[NodeEndpoint(node_id=5, host="c", port=2)]))
        assert rig.pending(FetchRequest)[0].address[:2] == ("c", 2)

    @pytest.mark.parametrize(("reset", "timestamp"), [("earliest", -2), ("latest", -1), ("by_duration:PT1S", WALL_MS)])
    def test_offset_out_of_range_is_reset_after_earlier_records(self, reset: str, timestamp: int) -> None:
        rig = Rig(**{"auto.offset.reset": reset}).assign(0)
        rig.answer_fetch(p0=records(0, b"a"))
        rig.answer_fetch(p0=number_of("OFFSET_OUT_OF_RANGE"))
        assert not rig.pending(FetchRequest)
        assert rig.poll(1) == [(0, b"a")]
        assert rig.poll() == []
        listed = rig.pending(ListOffsetsRequest)[0].message.topics[0].partitions[0].timestamp
        assert listed == (timestamp + rig.steady_ms - 1_000 if timestamp > 0 else timestamp)
        rig.answer_list({0: 40})
        assert asked(rig)[1] == {0: 40}

    def test_response_for_an_earlier_assignment_is_ignored(self) -> None:
        """It was revoked and assigned again in the meantime: its end may differ. Found by the simulation."""
        rig = Rig(**{"auto.offset.reset": "latest", "group.id": None})
        rig.core.assign([P0], rig.steady_ms)
        rig.step()
        rig.answer_metadata()
        late = rig.take(ListOffsetsRequest)
        for tps in ([], [P0]):
            rig.core.assign(tps, rig.steady_ms)
            rig.step()
        rig.waiting.append(late)
        rig.answer_list({0: 40})
        assert rig.core.subscriptions.of(P0).stage is Stage.RESETTING
        rig.answer_list({0: 42})
        assert rig.position(P0).offset == 42

    def test_reset_without_newer_records_starts_at_the_end(self) -> None:
        rig = Rig(**{"auto.offset.reset": "by_duration:PT1S", "group.id": None})
        rig.assign(0, position=-1)
        assert rig.pending(ListOffsetsRequest)[0].message.topics[0].partitions[0].timestamp == -1

    def test_rejection_is_raised_once_and_retried(self) -> None:
        rig = Rig().assign(0)
        rig.answer_fetch(p0=number_of("TOPIC_AUTHORIZATION_FAILED"))
        with pytest.raises(errors.TopicAuthorizationException):
            rig.poll()
        rig.poll()
        assert asked(rig)[1] == {0: 0}

    def test_unauthorized_topic_raises(self) -> None:
        rig = Rig()
        rig.core.assign([P0], rig.steady_ms)
        rig.step()
        rig.answer_metadata(number_of("TOPIC_AUTHORIZATION_FAILED"))
        with pytest.raises(errors.TopicAuthorizationException):
            rig.poll()


class TestPreferredReplicas:
    def test_preferred_replica_is_used(self) -> None:
        rig = Rig(**{"client.rack": "r1"}).assign(0)
        assert rig.pending(FetchRequest)[0].message.rack_id == "r1"
        metadata = rig.metadata()
        metadata.brokers.append(type(metadata.brokers[0])(node_id=3, host="near", port=9))
        rig.core.context.refresh()
        rig.advance(1_000)
        rig.answer(MetadataRequest, metadata)
        rig.answer_fetch(p0=PartitionData(preferred_read_replica=3, high_watermark=5))
        assert rig.pending(FetchRequest)[0].address[:2] == ("near", 9)
        rig.answer_fetch(p0=number_of("OFFSET_OUT_OF_RANGE"))
        assert rig.pending(FetchRequest)[0].address[:2] == ("b", 1)


class TestLeaderEpochs:
    def moved(self, reset: str = "earliest") -> Rig:
        """One record of epoch 0 was read, and the leader is another one now."""
        rig = Rig(**{"auto.offset.reset": reset}).assign(0)
        rig.answer_fetch(p0=records(0, b"a", b"b"))
        assert len(rig.poll()) == 2
        rig.poll()
        rig.epoch = 1
        rig.core.context.refresh()
        rig.advance(1_000)
        rig.answer_metadata()
        return rig

    def answer_epochs(self, rig: Rig, epoch: int, end: int, code: int = 0) -> None:
        result = EpochEndOffset(partition=0, error_code=code, leader_epoch=epoch, end_offset=end)
        rig.answer(
            OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult(topic="t", partitions=[result])])
        )

    def test_epoch_is_checked_before_reading(self) -> None:
        rig = self.moved()
        state = rig.core.subscriptions.of(P0)
        part = rig.pending(OffsetForLeaderEpochRequest)[0].message.topics[0].partitions[0]
        assert (state.stage, part.leader_epoch, part.current_leader_epoch) == (Stage.VALIDATING, 0, 1)
        self.answer_epochs(rig, 0, 2)
        assert (state.stage, state.position) == (Stage.READING, Position(2, 0, 1))

    def test_position_at_the_end_is_valid(self) -> None:
        rig = self.moved("none")
        self.answer_epochs(rig, 0, 2)
        assert (rig.poll(), rig.reports) == ([], [])

    def test_epoch_of_a_committed_offset_is_checked(self) -> None:
        """The epoch is committed with the offset (KIP-320)."""
        rig = Rig()
        rig.core.assign([P0], rig.steady_ms)
        rig.step()
        rig.answer_metadata()
        rig.find_coordinator()
        rig.answer_offsets({0: 5}, epoch=0)
        assert rig.core.subscriptions.of(P0).stage is Stage.VALIDATING
        assert rig.pending(OffsetForLeaderEpochRequest)[0].message.topics[0].partitions[0].leader_epoch == 0
        assert not rig.pending(FetchRequest)

    def test_truncated_log_moves_the_position_back(self) -> None:
        rig = self.moved()
        self.answer_epochs(rig, 0, 1)
        assert rig.core.subscriptions.of(P0).position == Position(1, 0, 1)
        assert "ends at 1 for the epoch of the last record read, before the position 2" in rig.reports[-1]

    def test_no_common_epoch_resets_the_position(self) -> None:
        rig = self.moved()
        self.answer_epochs(rig, -1, -1)
        assert rig.core.subscriptions.of(P0).stage is Stage.RESETTING

    def test_truncation_with_reset_none_raises(self) -> None:
        rig = self.moved("none")
        self.answer_epochs(rig, 0, 1)
        with pytest.raises(errors.OffsetOutOfRangeException, match="ends at 1"):
            rig.poll()

    @pytest.mark.parametrize("name", ["FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "NOT_LEADER_OR_FOLLOWER"])
    def test_epoch_check_is_retried(self, name: str) -> None:
        rig = self.moved()
        self.answer_epochs(rig, -1, -1, number_of(name))
        rig.advance(1_000)
        assert len(rig.pending(OffsetForLeaderEpochRequest)) == 1

    def test_broker_without_epochs_is_trusted(self) -> None:
        rig = self.moved()
        rig.fail(OffsetForLeaderEpochRequest, is_unsupported=True)
        assert rig.core.subscriptions.of(P0).stage is Stage.READING

    def test_unknown_epoch_is_checked_later(self) -> None:
        """As in a cluster whose brokers have several versions."""
        rig = self.moved()
        state = rig.core.subscriptions.of(P0)
        rig.epoch = -1
        rig.core.context.refresh()
        rig.advance(1_000)
        rig.answer_metadata()
        self.answer_epochs(rig, -1, -1, number_of("NOT_LEADER_OR_FOLLOWER"))
        rig.advance(1_000)
        assert (state.stage, state.position) == (Stage.READING, Position(2, 0, 0))
        rig.epoch = 2
        rig.answer_metadata()
        assert state.stage is Stage.VALIDATING
        assert rig.pending(OffsetForLeaderEpochRequest)[-1].message.topics[0].partitions[0].leader_epoch == 0


class TestCommittedPositions:
    @pytest.mark.parametrize(
        ("name", "raised"),
        [
            ("NOT_COORDINATOR", None),
            ("COORDINATOR_LOAD_IN_PROGRESS", None),
            ("GROUP_AUTHORIZATION_FAILED", errors.GroupAuthorizationException),
        ],
    )
    def test_error_codes_of_offset_fetch(self, name: str, raised: type[KafkaException] | None) -> None:
        from chaffinch.protocol.messages.offset_fetch import OffsetFetchResponse, OffsetFetchResponseGroup

        rig = Rig()
        rig.core.assign([P0], rig.steady_ms)
        rig.step()
        rig.answer_metadata()
        rig.find_coordinator()
        rig.answer(OffsetFetchRequest, OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", error_code=number_of(name))]))
        if raised is not None:
            with pytest.raises(raised):
                rig.poll()
        elif name == "NOT_COORDINATOR":
            rig.find_coordinator()
        rig.advance(1_000)
        rig.answer_offsets({0: 12})
        assert asked(rig)[1] == {0: 12}

    def test_require_stable_where_supported(self) -> None:
        rig = Rig()
        rig.core.assign([P0], rig.steady_ms)
        rig.step()
        rig.answer_metadata()
        rig.find_coordinator()
        for _ in ("by id", "by name"):
            assert rig.pending(OffsetFetchRequest)[0].message.require_stable
            rig.fail(OffsetFetchRequest, is_unsupported=True)
        assert not rig.pending(OffsetFetchRequest)[0].message.require_stable


def test_offset_query_times_out() -> None:
    rig = Rig().assign(0)
    rig.core.lookups.add(OffsetsCall("call", {P0: -1, TopicPartition("u", 0): -1}, rig.steady_ms + 500))
    rig.step()
    rig.answer_list({0: 7})
    rig.advance(500)
    assert [done.call for done in rig.done] == ["call"]
    (error,) = rig.errors
    assert type(error) is errors.TimeoutException
    assert "u-0" in str(error)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", (None, 0)),
        (records(5, b"a", b"b"), (7, 77)),
        (records(5, b"a") + records(9, b"b", b"c"), (11, 146)),
        ((records(5, b"a") + records(9, b"b"))[:-1], (6, 69)),
        (records(5, b"a")[:-1], (None, 0)),
        (records(5, b"a")[:20], (None, 0)),
        (records(5, b"a")[:8] + b"\0" * 52, (5, 60)),
    ],
    ids=["nothing", "one batch", "two", "one and a half", "all but a byte", "a header", "a length that lies"],
)
def test_whole_batches(data: bytes | bytearray, expected: tuple[int | None, int]) -> None:
    assert whole_batches(bytes(data)) == expected
