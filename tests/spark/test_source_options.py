"""Options of the source: what is understood, what is refused and with which words."""

import pytest

from chaffinch.errors import ConfigException
from chaffinch.identifiers import OFFSET_EARLIEST, OFFSET_LATEST, TopicPartition
from chaffinch.spark.source_options import SourceOptions
from chaffinch.spark.topic_offsets import parse_assignment, parse_offsets


class TestOffsets:
    def test_words_and_json(self):
        assert parse_offsets("o", "Earliest", sentinel=OFFSET_EARLIEST).of(TopicPartition("a", 3), "o") == OFFSET_EARLIEST
        choice = parse_offsets("o", '{"a":{"0":5,"1":-1}}', sentinel=OFFSET_LATEST)
        assert [choice.of(TopicPartition("a", number), "o") for number in range(2)] == [5, -1]
        with pytest.raises(ConfigException, match="says nothing about a-2"):
            choice.of(TopicPartition("a", 2), "o")

    @pytest.mark.parametrize(
        "text", ["latest", "", "{}", "[]", '{"a":5}', '{"a":{"x":5}}', '{"a":{"0":-1}}', '{"a":{"0":-3}}', '{"a":{"0":"5"}}']
    )
    def test_what_cannot_be_a_beginning(self, text):
        with pytest.raises(ConfigException, match="startingOffsets"):
            parse_offsets("startingOffsets", text, sentinel=OFFSET_EARLIEST)

    def test_assignments(self):
        assert parse_assignment("assign", '{"b":[1,0],"a":[2]}') == (("a", 2), ("b", 0), ("b", 1))
        for text in ("", "{}", '{"a":0}', '{"a":[-1]}', '{"a":["0"]}'):
            with pytest.raises(ConfigException, match="assign"):
                parse_assignment("assign", text)

    def test_a_source_reads_one_thing(self):
        options = SourceOptions.parse({"kafka.bootstrap.servers": "a:1", "subscribe": "a, b"})
        assert options.topics == ("a", "b")
        with pytest.raises(ConfigException, match="neither is given"):
            SourceOptions.parse({"kafka.bootstrap.servers": "a:1"})
