"""Options of the source: what is understood, what is refused and with which words."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from chaffinch.errors import ConfigException
from chaffinch.identifiers import OFFSET_EARLIEST, OFFSET_LATEST, TopicPartition
from chaffinch.spark.source.options import SOURCE, STREAM_SOURCE, SourceOptions, includes_headers
from chaffinch.spark.source.topic_offsets import from_checkpoint, parse_assignment, parse_offsets, parse_times, to_checkpoint

A0, A1, A2 = (TopicPartition("a", number) for number in range(3))
EITHER = (OFFSET_LATEST, OFFSET_EARLIEST)


def parsed(*, is_stream: bool = False, **given: Any) -> SourceOptions:
    return SourceOptions.parse({"kafka.bootstrap.servers": "a:1", "subscribe": "a", **given}, is_stream=is_stream)


class TestOffsets:
    def test_offsets_are_parsed_from_words_and_json(self) -> None:
        assert parse_offsets("o", " Earliest", words=[OFFSET_EARLIEST]).of([A2]) == {A2: OFFSET_EARLIEST}
        choice = parse_offsets("o", '{"a":{"0":5,"1":-1}}', words=[OFFSET_LATEST])
        assert choice.of([A1, A0]) == {A0: 5, A1: -1}
        with pytest.raises(ConfigException, match="o lacks a-2: it must have every partition that is read; it has a-0, a-1"):
            choice.of([A0, A1, A2])
        with pytest.raises(ConfigException, match="o has a-1, not among the partitions that are read: a-0"):
            choice.of([A0])

    @pytest.mark.parametrize(
        "text",
        ["latest", "", "{}", "[]", '{"a":5}', '{"a":{"x":5}}', '{"a":{"0":-1}}', '{"a":{"0":-3}}', '{"a":{"0":"5"}}', '{"a":{"0":true}}'],
    )
    def test_wrong_offsets_are_refused(self, text: str) -> None:
        with pytest.raises(ConfigException, match="startingOffsets"):
            parse_offsets("startingOffsets", text, words=[OFFSET_EARLIEST])

    @pytest.mark.parametrize("text", ['{"a":{"00":5}}', f'{{"a":{{"{"9" * 5000}":5}}}}', '{"a":{"12345678901":5}}'])
    def test_partition_number_must_be_canonical(self, text: str) -> None:
        with pytest.raises(ConfigException, match="is not a partition number; allowed: earliest, or JSON"):
            parse_offsets("o", text, words=[OFFSET_EARLIEST])

    @pytest.mark.parametrize(("text", "name"), [('{"a":{"0":5,"1":6,"0":7}}', "0"), ('{"a":{"0":5},"a":{"1":6}}', "a")])
    def test_duplicate_json_keys_are_refused(self, text: str, name: str) -> None:
        """JSON takes the last, and who has written it by hand may have meant the other."""
        with pytest.raises(ConfigException) as caught:
            parse_offsets("o", text, words=[OFFSET_EARLIEST])
        assert str(caught.value) == f"o={text!r} has {name!r} twice: remove one of them"

    def test_stream_accepts_earliest_and_latest(self) -> None:
        choice = parse_offsets("o", '{"a":{"0":-2,"1":-1}}', words=EITHER)
        assert choice.of([A0, A1]) == {A0: OFFSET_EARLIEST, A1: OFFSET_LATEST}
        assert parse_offsets("o", "latest", words=EITHER).everywhere == OFFSET_LATEST

    @pytest.mark.parametrize("text", ["1700000000000", "{}", '{"a":{"0":-1}}', '{"a":{"0":1.5}}', '{"a":[0]}'])
    def test_wrong_times_are_refused(self, text: str) -> None:
        with pytest.raises(ConfigException, match="startingOffsetsByTimestamp"):
            parse_times("startingOffsetsByTimestamp", text)

    def test_assignments_are_parsed(self) -> None:
        assert parse_assignment("assign", '{"b":[1,0],"a":[2]}') == (("a", 2), ("b", 0), ("b", 1))
        for text in ("", "{}", '{"a":0}', '{"a":[-1]}', '{"a":["0"]}', '{"a":[true]}'):
            with pytest.raises(ConfigException, match="assign"):
                parse_assignment("assign", text)

    def test_checkpoint_json_has_fixed_order(self) -> None:
        kept = to_checkpoint({TopicPartition("b", 0): 1, TopicPartition("a", 10): 2, TopicPartition("a", 9): 3})
        assert str(kept) == "{'a': {'9': 3, '10': 2}, 'b': {'0': 1}}"
        assert from_checkpoint(kept) == {("b", 0): 1, ("a", 10): 2, ("a", 9): 3}


class TestPrecedence:
    """As in Spark's Kafka source: a time for all, times by partition, offsets; a batch from the earliest, a stream from the latest."""

    def test_defaults(self) -> None:
        assert (parsed().starting.everywhere, parsed().ending.everywhere) == (OFFSET_EARLIEST, OFFSET_LATEST)
        assert parsed(is_stream=True).starting.everywhere == OFFSET_LATEST

    @pytest.mark.parametrize("side", ["starting", "ending"])
    def test_time_options_override_offsets(self, side: str) -> None:
        offsets, times, time = f"{side}Offsets", f"{side}OffsetsByTimestamp", f"{side}Timestamp"
        given: dict[str, Any] = {offsets: '{"a":{"0":5}}', times: '{"a":{"0":6}}', time: "7"}
        for option, expected in ((time, {A0: 7}), (times, {A0: 6}), (offsets, {A0: 5})):
            choice = getattr(parsed(**given), side)
            assert (choice.option, choice.of([A0]), choice.is_time) == (option, expected, option != offsets)
            del given[option]


@pytest.mark.parametrize(
    ("given", "is_stream", "text"),
    [
        ({"subscribe": ""}, False, "give exactly one of subscribe, subscribePattern and assign: subscribe is empty"),
        ({"assign": '{"a":[0]}'}, False, "subscribe and assign are given"),
        ({"subscribePattern": "a.*"}, True, "subscribe and subscribePattern are given"),
        ({"subscribe": None, "subscribePattern": "a("}, True, r"subscribePattern cannot be 'a\(': it is not a regular expression"),
        ({"startingTimestamp": "now"}, False, "startingTimestamp cannot be 'now': it must be a whole number"),
        ({"startingTimestamp": "-1"}, False, "startingTimestamp cannot be '-1': it must be at least 0"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, False, "one of error, latest"),
        ({"minPartitions": "0"}, False, "minPartitions cannot be '0': it must be at least 1"),
        ({"maxRecordsPerPartition": "0"}, True, "maxRecordsPerPartition cannot be '0'"),
        ({"maxOffsetsPerTrigger": "0"}, True, "maxOffsetsPerTrigger cannot be '0'"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, True, "minOffsetsPerTrigger=6 is more than maxOffsetsPerTrigger=5"),
        ({"maxTriggerDelay": "soon"}, True, "maxTriggerDelay cannot be 'soon': it must be a number and one of ms, s, m"),
        ({"endingOffsets": "latest"}, True, "a stream has no end"),
        ({"endingtimestamp": "5"}, True, "a stream has no end"),
        ({"kafka.auto.offset.reset": "earliest"}, True, "set the start with startingOffsets"),
        ({"kafka.enable.auto.commit": "true"}, False, "Spark's checkpoint stores the offsets"),
        ({"startingOffsets": "latest"}, False, "startingOffsets cannot be 'latest'; allowed: earliest, or JSON"),
    ],
)
def test_wrong_options_are_refused(given: Mapping[str, str | None], is_stream: bool, text: str) -> None:
    if given.get("endingtimestamp") or given.get("endingOffsets"):
        given = {name.lower(): value for name, value in given.items()}
    with pytest.raises(ConfigException, match=text):
        parsed(is_stream=is_stream, **given)


@pytest.mark.parametrize(("text", "expected"), [("15m", 900_000), ("10 s", 10_000), ("250ms", 250), ("250", 250), ("2H", 7_200_000)])
def test_trigger_delays_are_parsed(text: str, expected: int) -> None:
    assert parsed(is_stream=True, maxTriggerDelay=text).trigger_delay_max_ms == expected


def test_spellings_of_spark_are_accepted() -> None:
    assert parsed(startingOffsetsByTimestampStrategy="LATEST").starts_with_latest
    assert includes_headers({"includeheaders": "TRUE"})
    assert not includes_headers({})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingTimestamp": "1795901875"}, "startingTimestamp=1795901875 is in 1970-01-21"),
        ({"endingOffsetsByTimestamp": '{"a":{"0":1795901875000,"1":1795901875}}'}, "endingOffsetsByTimestamp=1795901875 is in 1970-01-21"),
        ({"startingTimestamp": "0", "endingTimestamp": "1795901875000"}, None),
        ({"startingTimestamp": "1", "endingTimestamp": "86400000"}, None),
        ({"startingOffsets": '{"a":{"0":1795901875}}', "endingOffsets": '{"a":{"0":1795901876}}'}, None),
    ],
)
def test_times_that_look_like_seconds_are_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, options: Mapping[str, Any], said: str | None
) -> None:
    monkeypatch.setattr("chaffinch.spark.options._logged", set())
    for _ in range(2):
        parsed(**options)
    lines = [] if said is None else [f"{said}: times are milliseconds since 1970, and this one looks like seconds"]
    assert [record.message for record in caplog.records] == lines


def test_stream_options_of_batch_are_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaffinch.spark.options._logged", set())
    with caplog.at_level(logging.WARNING):
        parsed(maxOffsetsPerTrigger="5")
    assert "options without effect here: maxOffsetsPerTrigger" in caplog.text


def test_batch_and_stream_share_most_options() -> None:
    batch, stream = ({option.name for option in table.options} for table in (SOURCE, STREAM_SOURCE))
    assert batch - stream == {"endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"}
    assert stream - batch == {"maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffsetsByTimestampStrategy": "latest"},
         "without startingTimestamp or startingOffsetsByTimestamp: startingOffsetsByTimestampStrategy"),
        ({"maxTriggerDelay": "1m"}, "without minOffsetsPerTrigger: maxTriggerDelay"),
        ({"startingOffsetsByTimestampStrategy": "latest", "startingTimestamp": "0"}, None),
        ({"startingOffsetsByTimestampStrategy": "latest", "startingOffsetsByTimestamp": '{"t":{"0":0}}'}, None),
        ({"maxTriggerDelay": "1m", "minOffsetsPerTrigger": "5"}, None),
    ],
)  # fmt: skip
def test_dependent_option_without_its_other_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, options: Mapping[str, Any], said: str | None
) -> None:
    monkeypatch.setattr("chaffinch.spark.options._logged", set())
    SourceOptions.parse({"kafka.bootstrap.servers": "a:1", "subscribe": "t", **options}, is_stream=True)
    assert [record.message for record in caplog.records] == ([] if said is None else [f"options without effect {said}"])
