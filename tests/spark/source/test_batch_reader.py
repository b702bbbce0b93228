"""Plans of batches with a real broker, in this process: what Spark does around them is played by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from chaffinch import Producer
from chaffinch.admin.topics import delete_topics
from chaffinch.client.sync_client import SyncClient
from chaffinch.identifiers import TopicPartition
from chaffinch.runtime.clock import ManualClock
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.source.topic_discovery import TopicDiscovery
from tests.spark.source.reader_driver import plain, rows_of, wait_by
from tests.spark.source.source_topics import drop_first, numbers


class TestBatches:
    def test_ranges_are_divided_into_tasks(self, kafka: SimpleNamespace) -> None:
        kafka.fill("a", {0: 30, 1: 10})
        reader = kafka.stream(is_batch=True, minPartitions="7")
        parts = reader.partitions()
        assert len(parts) == 7
        assert rows_of(reader, parts) == {"a-0": numbers(30), "a-1": numbers(10)}

    def test_end_before_start_is_refused(self, kafka: SimpleNamespace) -> None:
        kafka.fill("a", {0: 9, 1: 9})
        positions = {"startingOffsets": {"a": {"0": 5, "1": 0}}, "endingOffsets": {"a": {"0": 4, "1": 0}}}
        with pytest.raises(Refusal, match="endingOffsets ends a-0 at offset 4, before its start 5 of startingOffsets; choose an end"):
            kafka.stream(is_batch=True, **positions).partitions()

    @pytest.mark.parametrize("is_batch", [True, False], ids=["batch", "stream"])
    def test_start_that_moves_during_planning_is_not_a_loss(
        self, kafka: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, is_batch: bool
    ) -> None:
        kafka.fill("a", {0: 10, 1: 2})
        ask, earliest = TopicDiscovery.starts, "earliest"

        def late(*asked: Any) -> dict[TopicPartition, int]:
            found = ask(*asked)
            drop_first(kafka.client, TopicPartition("a", 0), 4)
            return found

        monkeypatch.setattr(TopicDiscovery, "starts", late)
        reader = kafka.stream(is_batch=is_batch, startingOffsets=earliest)
        if is_batch:
            parts = reader.partitions()
            assert [(part.start, part.is_start_required) for part in parts] == [(4, False), (0, False)]
        else:
            assert plain(reader.initialOffset()) == {"a": {"0": 4, "1": 0}}

    def test_only_first_part_has_optional_start(self, kafka: SimpleNamespace) -> None:
        kafka.fill("a", {0: 4, 1: 2})
        chosen = {"startingOffsets": {"a": {"0": -2, "1": 0}}, "minPartitions": "3"}
        parts = kafka.stream(is_batch=True, **chosen).partitions()
        assert [(part.tp, part.start, part.is_start_required) for part in parts] == [
            (("a", 0), 0, False), (("a", 0), 2, True), (("a", 1), 0, True),
        ]  # fmt: skip

    def test_records_missing_at_planning_are_a_loss(self, kafka: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
        kafka.fill("a", {0: 9})
        drop_first(kafka.client, TopicPartition("a", 0), 4)
        positions = {"startingOffsets": {"a": {"0": 2, "1": 0}}}
        text = "startingOffsets: a-0 begins at offset 4, offset 2 was requested"
        for plan in (kafka.stream(is_batch=True, **positions).partitions, kafka.stream(**positions).initialOffset):
            with pytest.raises(Refusal, match=f"OFFSET_OUT_OF_RANGE: {text}; set failOnDataLoss=false"):
                plan()
        reader = kafka.stream(is_batch=True, failOnDataLoss="false", **positions)
        assert rows_of(reader, reader.partitions()) == {"a-0": numbers(9, 4)}
        assert f"{text}; reading the remaining records" in caplog.text

    @pytest.mark.parametrize("fails", ["true", "false"])
    def test_topic_deleted_before_read_is_a_loss(self, kafka: SimpleNamespace, fails: str, caplog: pytest.LogCaptureFixture) -> None:
        kafka.fill("a", {0: 3})
        kafka.fill("b", {0: 2})
        reader = kafka.stream(is_batch=True, subscribe="a,b", failOnDataLoss=fails)
        parts = reader.partitions()
        delete_topics(kafka.client, ["b"])
        text = "b-0 is missing, deleted after the read was planned: offsets up to 1 were to be read"
        if fails == "true":
            with pytest.raises(Refusal, match=rf"KAFKA\[InvalidConfiguration\] OFFSET_OUT_OF_RANGE: {text}; set failOnDataLoss=false"):
                rows_of(reader, parts)
        else:
            assert rows_of(reader, parts) == {"a-0": numbers(3)}
            assert f"{text}; reading the remaining records" in caplog.text

    @pytest.mark.parametrize("ends", ["in time", "never"])
    def test_end_after_open_transaction_is_waited_for(
        self, kafka: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, ends: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is no loss: what is committed a moment later would be left out for good by who lets losses pass."""
        clock = ManualClock()

        def pause(client: SyncClient, pause_ms: int) -> None:
            clock.advance(1_000)
            if ends == "in time":
                producer.commit_transaction()
                kafka.broker.read("a")

        wait_by(clock, monkeypatch)
        monkeypatch.setattr(SyncClient, "pause", pause)
        named = {"endingOffsets": {"a": {"0": 1, "1": -1}}, "failOnDataLoss": "false", "kafka.default.api.timeout.ms": "5000"}
        reader = kafka.stream(is_batch=True, **named)
        with Producer(bootstrap_servers=kafka.servers, transactional_id="t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("a", b"1", partition=0).result(60)
            if ends == "never":
                with pytest.raises(
                    Refusal, match="REQUEST_TIMED_OUT: a-0 has had an open transaction for 5000 ms, and later records cannot be read"
                ):
                    reader.partitions()
                said = "the end of open transactions, for 3000 ms: a-0 has an open transaction before offset 1; retrying"
                assert [text for text in caplog.messages if said in text], "with clocks of whole seconds"
                assert len([text for text in caplog.messages if "open transaction" in text]) == 1
            else:
                assert rows_of(reader, reader.partitions()) == {"a-0": [1]}
