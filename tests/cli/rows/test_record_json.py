"""Records as JSON lines: what is printed says what was there, and reads back as the same record."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.cli.rows.record_json import json_lines
from chaffinch.cli.rows.record_texts import keyed_object, record_of
from chaffinch.cli.rows.sinks import read_batch
from chaffinch.identifiers import TopicPartition
from chaffinch.records import batch
from chaffinch.records.columns import RecordColumns

TEXT = st.text(max_size=8).map(str.encode) | st.sampled_from([bytes([number]) for number in range(128)])
Content = bytes | None
Row = tuple[Content, Content, int, list[tuple[str, Content]]]
CONTENT = st.none() | TEXT | st.binary(max_size=4)
RECORDS = st.lists(
    st.tuples(CONTENT, CONTENT, st.integers(0, 2**40), st.lists(st.tuples(st.text(max_size=4), CONTENT), max_size=2)),
    min_size=1,
    max_size=6,
)


def field(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(value).decode(), f"{name}_encoding": "base64"}


@given(RECORDS)
def test_json_lines_have_all_fields(records: list[Row]) -> None:
    keys, values, times, headers = zip(*records, strict=True)
    columns = batch.decode(batch.encode(RecordColumns.from_lists(keys, values, times, headers), base_offset=7))
    lines = json_lines(read_batch(TopicPartition('t"', 3), columns)).to_pylist()
    for index, (line, (key, value, time, entries)) in enumerate(zip(lines, records, strict=True)):
        assert line.count("\n") == 1
        assert json.loads(line) == {
            "topic": 't"',
            "partition": 3,
            "offset": 7 + index,
            "timestamp": time,
            **field("key", key),
            **field("value", value),
            "headers": [{"key": name, **field("value", content)} for name, content in entries],
        }
        assert record_of(line.encode()) == (key, value, entries, time, 3)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "invalid JSON"),
        ("{", "invalid JSON"),
        ("[" * 100_000, "nested too deeply|no JSON"),
        ('{"value":', r"^invalid JSON: Expecting value at character 10$"),
        ('{"value":"\xff"}'.encode("latin-1"), r"^invalid JSON: not UTF-8 at byte 11$"),
        ('{"value":1e999}', r"^number 1e999 is too large$"),
        ('{"value":{"deep":[-1e999]}}', "number -1e999 is too large"),
        ('{"value":NaN}', r"^invalid JSON: NaN is not allowed$"),
        ('{"value":[-Infinity]}', "invalid JSON: -Infinity is not allowed"),
        ('{"value":1,"value":2}', "field 'value' is repeated"),
        ('{"value":{"a":1,"a":1}}', "field 'a' is repeated"),
        ("7", "7: expected an object"),
        ("{}", "field 'value' is missing"),
        ('{"valuee":1}', "unknown field 'valuee': the nearest is 'value'"),
        ('{"value":1,"colour":2}', "unknown field 'colour': known fields are key, value"),
        ('{"value":"x","value_encoding":"hex"}', "value_encoding \"hex\": expected 'base64'"),
        ('{"value":1,"value_encoding":"base64"}', "expected 'base64' with a string value"),
        ('{"value":"%","value_encoding":"base64"}', "value is not base64"),
        ('{"value":"\\ud800"}', "lone surrogate"),
        ('{"value":1,"timestamp":1.5}', "timestamp 1.5: expected milliseconds"),
        ('{"value":1,"timestamp":true}', "timestamp true"),
        ('{"value":1,"timestamp":"soon"}', "timestamp 'soon': expected milliseconds"),
        ('{"value":1,"timestamp":9223372036854775808}', "timestamp 9223372036854775808"),
        ('{"value":1,"partition":-1}', "partition -1: expected a number from 0"),
        ('{"value":1,"partition":"0"}', 'partition "0"'),
        ('{"value":1,"headers":7}', "headers 7: expected a list"),
        ('{"value":1,"headers":[{"value":"x"}]}', "expected an object with key and value"),
        ('{"value":1,"headers":[{"key":1,"value":"x"}]}', "expected an object with key and value"),
    ],
)
def test_invalid_json_records_are_refused(text: bytes | str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        record_of(text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"id":"a"}', b"a"),
        ('{"id":7}', b"7"),
        ('{"id":""}', b""),
        ('{"id":{"x":[1]}}', b'{"x":[1]}'),
        ('{"id":true}', b"true"),
    ],
)
def test_key_field_becomes_the_key(text: str, key: bytes) -> None:
    assert keyed_object("id")(text.encode()) == (key, text.encode(), [], None, None)


@pytest.mark.parametrize("text", ["{}", '{"id":null}', '{"ids":1}'])
def test_missing_key_field_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^no key: field 'id' is missing or null$"):
        keyed_object("id")(text.encode())
