"""What `chaffinch produce` and `chaffinch consume` do against any cluster: every format out and in, and every row's outcome."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.cli.shell import Shell

TIME_MS = 1_700_000_000_000


def topic_of(shell: Shell, name: str, *config: str, partitions: int = 1) -> str:
    """A new topic."""
    topic = shell.name(name)
    shell.ok(
        "topics", "create", "--topic", topic, "--partitions", str(partitions), *(word for text in config for word in ("--config", text))
    )
    return topic


def records(shell: Shell, topic: str, *arguments: str) -> list[dict[str, object]]:
    """What is in a topic, as `consume --json` prints it."""
    return [json.loads(line) for line in shell.ok("consume", "--topic", topic, "--json", *arguments).lines]


def pairs(shell: Shell, topic: str, *arguments: str) -> list[tuple[Any, Any]]:
    return [(record["key"], record["value"]) for record in records(shell, topic, "--fields", "key,value", *arguments)]


def lines_become_values(shell: Shell) -> None:
    topic = topic_of(shell, "lines")
    made = shell.ok("produce", "--topic", topic, stdin=b"one\ntwo\r\n\nfour")
    assert made.out == f"4 rows written to {topic}\n"
    assert shell.ok("consume", "--topic", topic).lines == ["one", "two", "", "four"]
    assert shell.ok("produce", "--topic", topic, stdin=b"").out == f"0 rows written to {topic}\n"
    untold = f"2 rows sent to {topic}: with acks=0 the broker does not acknowledge them\n"
    assert shell.ok("produce", "--topic", topic, "--acks", "0", stdin=b"1\n2\n").out == untold


def lines_with_keys_and_nulls(shell: Shell) -> None:
    topic = topic_of(shell, "keys", "cleanup.policy=compact")
    made = shell(
        "produce", "--topic", topic, "--key-separator", "\\t", "--null-marker", "NULL", stdin=b"a\t1\nb\t2\tmore\nno key\nc\tNULL\n\t5\n"
    )
    assert made.status == 1
    assert "1 row rejected, 4 written; line 3: no key separator" in made.err
    assert pairs(shell, topic) == [("a", "1"), ("b", "2\tmore"), ("c", None), ("", "5")]
    assert shell.ok("consume", "--topic", topic, "--key-separator", "=", "--null-marker", "-").lines == ["a=1", "b=2\tmore", "c=-", "=5"]


def only_the_refused_row_is_rejected(shell: Shell) -> None:
    """KIP-135 over KIP-467: the neighbours of a record without a key are written, whichever broker it is."""
    topic = topic_of(shell, "compacted", "cleanup.policy=compact")
    rows = b"".join(b'{"key":%s,"value":"v%d"}\n' % (b"null" if n == 2 else b'"k%d"' % n, n) for n in range(5))
    file = str(shell.folder / "rejected.jsonl")
    made = shell("produce", "--topic", topic, "--format", "json", "--rejected", file, "--json", stdin=rows)
    assert made.status == 1
    assert (made.json["written"], made.json["rejected"], made.json["rejected_file"]) == (4, 1, file)
    assert "line 3: INVALID_COMPACTION_KEY" in made.err
    (row,) = [json.loads(line) for line in (shell.folder / "rejected.jsonl").read_text().splitlines()]
    assert (row["key"], row["value"], row["row"], row["topic"], row["error_name"]) == (None, "v2", 3, topic, "INVALID_COMPACTION_KEY")
    assert [value for _, value in pairs(shell, topic)] == ["v0", "v1", "v3", "v4"]


def unknown_partitions_are_rejected_at_once(shell: Shell) -> None:
    topic, file = topic_of(shell, "partitions", partitions=2), shell.folder / "rejected.jsonl"
    rows = [{"value": str(number), "partition": partition} for number, partition in enumerate([1, 99, 0, 2, None])]
    made = shell(
        "produce",
        "--topic",
        topic,
        "--format",
        "json",
        "--rejected",
        str(file),
        stdin="".join(f"{json.dumps(row)}\n" for row in rows).encode(),
    )
    assert made.status == 1
    assert "2 rows rejected, 3 written; line 2: UNKNOWN_TOPIC_OR_PARTITION (3): partition 99: the topic has partitions 0 to 1" in made.err
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["row"], row["value"], row["partition"], row["error_code"]) for row in kept] == [(2, "1", 99, 3), (4, "3", 2, 3)]
    assert sorted(value for _, value in pairs(shell, topic)) == ["0", "2", "4"]


def contradicting_formats_are_refused(shell: Shell) -> None:
    topic = topic_of(shell, "contradictions")
    output = str(shell.folder / "x.csv")
    for arguments, says in [
        (("--json", "--format", "csv"), "--json contradicts --format csv"),
        (("--json", "--output", output), f"--json contradicts --output {output}"),
        (("--json", "--key-separator", ":"), "--key-separator is for lines; the format is json"),
        (("--output", output, "--key-separator", ":"), "--key-separator is for lines; the format is csv"),
        (("--json", "--null-marker", "-"), "--null-marker is for lines; the format is json"),
        (("--output", output, "--null-marker", "null"), "--null-marker is for lines; the format is csv"),
        (("--key-separator", ""), "--key-separator is empty"),
        (("--group", ""), "--group is empty: give it a value, or leave it out"),
        (("--output", ""), "--output is empty: give it a value, or leave it out"),
    ]:
        shell.refused("consume", "--topic", topic, *arguments, says=says, status=2)
    assert not (shell.folder / "x.csv").exists()
    shell.ok("consume", "--topic", topic, "--json", "--output", str(shell.folder / "x.txt"))
    shell.ok("consume", "--topic", topic, "--json", "--format", "json", "--output", output)


def malformed_rows_are_reported_with_line_numbers(shell: Shell) -> None:
    topic = topic_of(shell, "broken")
    rows = b'{"value":"v1"}\n{"value":\n\n{"values":"v4"}\n[5]\n{"value":"v6","timestamp":"soon"}\n'
    rows += b'{"value":"v7","partition":-1}\n{"value":"v8"}\n'
    file = str(shell.folder / "rejected.parquet")
    made = shell("produce", "--topic", topic, "--format", "json", "--rejected", file, stdin=rows)
    assert made.status == 1
    assert "5 rows rejected, 2 written; line 2: invalid JSON: Expecting value at character 10; all" in made.err
    found = pq.read_table(file).to_pylist()
    assert [row["row"] for row in found] == [2, 4, 5, 6, 7]
    assert found[1]["value"] == b'{"values":"v4"}'
    assert [row["error_message"].partition(":")[0] for row in found[1:]] == [
        "unknown field 'values'",
        "[5]",
        "timestamp 'soon'",
        "partition -1",
    ]
    assert [value for _, value in pairs(shell, topic)] == ["v1", "v8"]


def json_round_trip_keeps_all_fields(shell: Shell) -> None:
    first, second = topic_of(shell, "json-1", partitions=2), topic_of(shell, "json-2", partitions=2)
    rows: list[dict[str, Any]] = [
        {
            "key": "k",
            "value": 'quote " backslash \\ line\nbell \a e\u0301',
            "timestamp": TIME_MS,
            "partition": 1,
            "headers": {"a": "b", "n": None},
        },
        {"key": None, "value": None, "timestamp": TIME_MS, "partition": 1},
        {"key": "/w==", "key_encoding": "base64", "value": "", "timestamp": "2023-11-14T22:13:20Z", "partition": 1},
        {"key": 7, "value": {"b": [1, 2]}, "timestamp": TIME_MS, "partition": 1},
    ]
    shell.ok("produce", "--topic", first, "--format", "json", stdin="".join(f"{json.dumps(row)}\n" for row in rows).encode())
    found = records(shell, first)
    assert [record["offset"] for record in found] == [0, 1, 2, 3]
    assert {(record["topic"], record["partition"], record["timestamp"]) for record in found} == {(first, 1, TIME_MS)}
    assert [record["value"] for record in found] == [rows[0]["value"], None, "", '{"b":[1,2]}']
    assert [record["key"] for record in found] == ["k", None, "/w==", "7"]
    assert found[0]["headers"] == [{"key": "a", "value": "b"}, {"key": "n", "value": None}]
    assert found[2]["key_encoding"] == "base64"
    shell.ok("produce", "--topic", second, "--format", "json", stdin=shell.ok("consume", "--topic", first, "--json").out.encode())
    assert records(shell, second) == [{**record, "topic": second} for record in found]


def table_files_round_trip(shell: Shell) -> None:
    first = topic_of(shell, "tables", partitions=2)
    rows = b'{"key":"a","value":"1","headers":{"h":"x"},"partition":0}\n{"key":"b","value":null,"partition":1}\n'
    rows += b'{"key":null,"value":"","partition":1}\n'
    shell.ok("produce", "--topic", first, "--format", "json", "--compression", "zstd", stdin=rows)
    before = records(shell, first)
    assert len(before) == 3
    for suffix in ("parquet", "arrow", "csv", "jsonl"):
        file, copy = str(shell.folder / f"records.{suffix}"), topic_of(shell, f"copy-{suffix}", partitions=2)
        assert shell.ok("consume", "--topic", first, "--output", file).out == ""
        assert shell.ok("produce", "--topic", copy, file).out == f"3 rows written to {copy}\n"
        assert records(shell, copy) == [{**record, "topic": copy} for record in before], suffix


def key_field_writes_whole_rows_as_json(shell: Shell) -> None:
    topic = topic_of(shell, "whole")
    pq.write_table(pa.table({"id": [9, None], "at": [b"bytes", None]}), shell.folder / "rows.parquet")
    file = str(shell.folder / "keyless.jsonl")
    for source, first, keyless in [
        ((shell.file("rows.jsonl", '{"id": 7, "x": [1]}\n{"x":2}\n'),), "line 2", '{"x":2}'),
        ((shell.file("rows.csv", 'id,name\n8,joe\n,"a,b"\n'),), "row 2", '{"id":null,"name":"a,b"}'),
        ((str(shell.folder / "rows.parquet"),), "row 2", '{"id":null,"at":null}'),
    ]:
        made = shell("produce", "--topic", topic, *source, "--key-field", "id", "--rejected", file)
        assert f"1 row rejected, 1 written; {first}: no key: field 'id' is missing or null; all" in made.err
        with open(file) as kept:
            (row,) = map(json.loads, kept)
        assert (made.status, row["row"], row["value"], row["error_name"]) == (1, 2, keyless, "INVALID_RECORD")
    assert pairs(shell, topic) == [("7", '{"id": 7, "x": [1]}'), ("8", '{"id":"8","name":"joe"}'), ("9", '{"id":9,"at":"bytes"}')]
    for rows, names in ((str(shell.folder / "rows.parquet"), "id, at"), (shell.file("ages.csv", "key,timestamp\na,1\n"), "key, timestamp")):
        shell.refused("produce", "--topic", topic, rows, says=f"there is no column 'value', the columns are {names}; --key-field NAME")
    shell.refused(
        "produce", "--topic", topic, str(shell.folder / "rows.parquet"), "--key-field", "ip", says="the columns are id, at", status=2
    )


def first_rejection_is_first_in_input_order(shell: Shell) -> None:
    """Though the broker's refusal comes later than what can be seen here."""
    topic = topic_of(shell, "first", "cleanup.policy=compact")
    rows = b'{"key":"a","value":"1"}\n{"value":"no key"}\n{"key":"c","value":"3","partition":7}\n{\n'
    made = shell("produce", "--topic", topic, "--format", "json", stdin=rows)
    assert "3 rows rejected, 1 written; line 2: INVALID_COMPACTION_KEY (87)" in made.err


def malformed_csv_rows_are_rejected(shell: Shell) -> None:
    topic = topic_of(shell, "csv")
    rows = b'key,value,timestamp\na,1,1700000000000\nb,2\n"c\nd",3,never\n,"",\ne\n'
    made = shell("produce", "--topic", topic, "--format", "csv", "--rejected", str(shell.folder / "r.jsonl"), stdin=rows)
    assert (made.status, "3 rows rejected, 2 written; row 2: 2 fields, the header line has 3" in made.err) == (1, True)
    kept = [json.loads(line) for line in (shell.folder / "r.jsonl").read_text().splitlines()]
    assert sorted((row["row"], row["value"]) for row in kept) == [(2, "b,2"), (3, "c\nd,3,never"), (5, "e")]
    assert [row["error_message"] for row in kept if row["row"] == 5] == ["1 field, the header line has 3"]
    assert pairs(shell, topic) == [("a", "1"), (None, "")]


def a_transaction_is_all_or_nothing(shell: Shell) -> None:
    topic = topic_of(shell, "transaction", "cleanup.policy=compact")
    transactional = ("--topic", topic, "--key-separator", ":", "--transactional-id", shell.name("id"))
    assert shell.ok("produce", *transactional, stdin=b"a:1\nb:2\n").out == f"2 rows written to {topic}\n"
    made = shell("produce", *transactional, "--rejected", str(shell.folder / "r.jsonl"), "--json", stdin=b"c:3\nno key\nd:4\n")
    assert (made.status, made.json["written"], made.json["rejected"]) == (1, 0, 1)
    assert "nothing was written: the transaction was aborted; line 2" in made.err
    kept = shell.folder / "kept.jsonl"
    refused = ("--transactional-id", shell.name("id"), "--format", "json", "--rejected", str(kept))
    made = shell("produce", "--topic", topic, *refused, stdin=b'{"key":"c","value":"3"}\n{"value":"4"}\n{"key":"d","value":"5"}\n')
    assert (made.status, "1 row rejected, nothing was written" in made.err) == (1, True)
    assert [json.loads(line)["row"] for line in kept.read_text().splitlines()] == [2], "the innocents are not in the file"
    assert pairs(shell, topic) == [("a", "1"), ("b", "2")]
    assert len(pairs(shell, topic, "--isolation-level", "read_uncommitted")) >= 2


def consume_reads_the_requested_range(shell: Shell) -> None:
    topic = topic_of(shell, "places", partitions=2)
    rows = [{"value": str(n), "timestamp": TIME_MS + n, "partition": n % 2} for n in range(10)]
    shell.ok("produce", "--topic", topic, "--format", "json", stdin="".join(f"{json.dumps(row)}\n" for row in rows).encode())
    cases = {
        (): set("0123456789"),
        ("--from-beginning",): set("0123456789"),
        ("--partition", "1"): set("13579"),
        ("--partition", "1", "--offset", "3"): set("79"),
        ("--partition", "1", "--offset", "5"): set(),
        ("--offset", "latest"): set(),
        ("--offset", "3"): set("6789"),
        ("--from-timestamp", str(TIME_MS + 6)): set("6789"),
        ("--from-timestamp", "2023-11-14T22:13:20.008Z"): set("89"),
        ("--from-timestamp", "2040-01-01"): set(),
        ("--partition", "0", "--max-messages", "2"): set("02"),
        ("--partition", "0", "--max-messages", "2", "--follow", "--from-beginning"): set("02"),
    }
    for arguments, expected in cases.items():
        assert set(shell.ok("consume", "--topic", topic, *arguments).lines) == expected, arguments
    shell.refused("consume", "--topic", topic, "--partition", "1", "--offset", "6", says="begins at 0 and ends at 5")
    shell.refused("consume", "--topic", topic, "--partition", "2", says="has partitions 0 to 1", status=2)
    shell.refused("consume", "--topic", topic, "--offset", "6", says="begins at 0 and ends at 5")
    shell.refused("consume", "--topic", topic, "--offset", "latest", "--from-beginning", says="contradict", status=2)
    shell.refused("consume", "--topic", topic, "--from-timestamp", "soon", says="expected milliseconds", status=2)


def group_resumes_at_committed_offset(shell: Shell) -> None:
    topic, group = topic_of(shell, "group"), shell.name("readers")
    shell.ok("produce", "--topic", topic, stdin=b"1\n2\n3\n4\n5\n")
    assert shell.ok("consume", "--topic", topic, "--group", group, "--max-messages", "2").lines == ["1", "2"]
    assert shell.ok("consume", "--topic", topic, "--group", group).lines == ["3", "4", "5"]
    assert shell.ok("consume", "--topic", topic, "--group", group).lines == []
    assert shell.ok("consume", "--topic", topic, "--group", group, "--from-beginning", "--max-messages", "1").lines == ["1"]
    assert shell.ok("consume", "--topic", topic, "--group", group, "--max-messages", "1").lines == ["2"]


def values_of(path: Path) -> list[str]:
    """Of a file of CSV."""
    return [row["value"] for row in csv.DictReader(path.read_text().splitlines())]


def non_utf8_values_are_refused_in_csv(shell: Shell) -> None:
    topic = topic_of(shell, "bytes")
    shell.ok("produce", "--topic", topic, "--format", "json", stdin=b'{"value":"a"}\n{"value":"/w==","value_encoding":"base64"}\n')
    says = f"{topic}-0, offset 1: column value has bytes that are not UTF-8"
    shell.refused("consume", "--topic", topic, "--output", str(shell.folder / "bytes.csv"), says=says)
    assert values_of(shell.folder / "bytes.csv") == ["a"]
    shell.ok("consume", "--topic", topic, "--output", str(shell.folder / "bytes.parquet"))
    assert pq.read_table(shell.folder / "bytes.parquet")["value"].to_pylist() == [b"a", b"\xff"]


def records_before_a_non_utf8_value_are_written(shell: Shell) -> None:
    """In the file, and in what is committed; whichever column refuses first."""
    topic, group, path = topic_of(shell, "mixed"), shell.name("mixed"), shell.folder / "mixed.csv"
    bytes_as = {"key": {"key": "/w==", "key_encoding": "base64", "value": "c"}, "value": {"value": "/w==", "value_encoding": "base64"}}
    rows = [{"value": "a"}, {"value": "b"}, bytes_as["key"], bytes_as["value"]]
    shell.ok("produce", "--topic", topic, "--format", "json", stdin="".join(json.dumps(row) + "\n" for row in rows).encode())
    consume = ("consume", "--topic", topic, "--group", group, "--output", str(path))
    shell.refused(*consume, "--fields", "value,key", says=f"{topic}-0, offset 2: column key has bytes that are not UTF-8")
    assert values_of(path) == ["a", "b"]
    shell.refused(*consume, says=f"{topic}-0, offset 2: column key")  # Nothing is before it, and the file stays.
    assert values_of(path) == ["a", "b"]
    shell.refused(*consume, "--fields", "value", says=f"{topic}-0, offset 3: column value")
    assert values_of(path) == ["c"]
    assert shell.ok("consume", "--topic", topic, "--group", group, "--json", "--fields", "offset").json == {"offset": 3}


def unknown_suffixes_are_refused(shell: Shell) -> None:
    topic = topic_of(shell, "suffixes")
    known = ".json, .jsonl, .ndjson, .csv, .parquet, .arrow, .feather, .ipc, .log, .txt"
    for name in ("b.avro", "b.csv.gz", "b.CVS"):
        path = shell.folder / name
        stands_for = f"{str(path)!r}: unknown suffix {path.suffix.lower()}, known: {known}; or give the format with --format"
        shell.refused("consume", "--topic", topic, "--output", str(path), says=f"--output {stands_for}", status=2)
        assert not path.exists()
        shell.ok("consume", "--topic", topic, "--output", str(path), "--format", "json")
        shell.refused("produce", "--topic", topic, str(path), says=f"FILE {stands_for}", status=2)
        shell.ok("produce", "--topic", topic, str(path), "--format", "json")
    for name in ("plain", "notes.txt", "app.LOG", ".hidden"):
        shell.ok("consume", "--topic", topic, "--output", str(shell.folder / name))
        shell.ok("produce", "--topic", topic, str(shell.folder / name))
    os.mkfifo(shell.folder / "pipe.avro")
    writer = os.open(shell.folder / "pipe.avro", os.O_RDWR)
    shell.ok("consume", "--topic", topic, "--output", str(shell.folder / "pipe.avro"))
    os.close(writer)


def missing_files_and_topics_are_reported(shell: Shell) -> None:
    topic = topic_of(shell, "files")
    folder = str(shell.folder)
    empty, text = shell.file("empty.parquet", b""), shell.file("text.parquet", b"hello, this is no Parquet file")
    for arguments, says, status in [
        (("produce", "--topic", topic, f"{folder}/nowhere.csv"), "nowhere.csv: No such file", 1),
        (("produce", "--topic", topic, folder), f"{folder}: Is a directory", 1),
        (("produce", "--topic", topic, empty), "empty.parquet: not readable as Parquet", 1),
        (("produce", "--topic", topic, text), "text.parquet: not readable as Parquet", 1),
        (("produce", "--topic", topic, text, "--format", "arrow"), "text.parquet: not readable as Arrow", 1),
        (("produce", "--topic", topic, shell.file("empty.csv", b"")), "empty.csv: not readable as CSV", 1),
        (("produce", "--topic", topic, "--rejected", f"{folder}/nowhere/r.jsonl"), "No such file", 1),
        (("produce", "--topic", topic, "--rejected", "r.txt"), "must end in", 2),
        (("produce", "--topic", topic, "--format", "xml"), "it must be one of", 2),
        (("produce", "--topic", topic, "--acks", "2"), "acks", 2),
        (("produce", "--topic", topic, "--format", "json", "--key-separator", ":"), "is for lines", 2),
        (("produce", "--topic", f"{topic}s"), f"the nearest is '{topic}'", 1),
        (("consume", "--topic", f"{topic}s"), f"the nearest is '{topic}'", 1),
        (("consume", "--topic", topic, "--output", folder), "Is a directory", 1),
        (("consume", "--topic", topic, "--format", "xml"), "it must be one of", 2),
        (("consume", "--topic", topic, "--json", "--fields", "key,size"), "'size' is not one of", 2),
        (("consume", "--topic", topic, "--fields", "key"), "--fields is for", 2),
    ]:
        shell.refused(*arguments, says=says, status=status)


CHECKS = [
    lines_become_values,
    lines_with_keys_and_nulls,
    only_the_refused_row_is_rejected,
    unknown_partitions_are_rejected_at_once,
    contradicting_formats_are_refused,
    malformed_rows_are_reported_with_line_numbers,
    json_round_trip_keeps_all_fields,
    table_files_round_trip,
    key_field_writes_whole_rows_as_json,
    first_rejection_is_first_in_input_order,
    malformed_csv_rows_are_rejected,
    a_transaction_is_all_or_nothing,
    consume_reads_the_requested_range,
    group_resumes_at_committed_offset,
    non_utf8_values_are_refused_in_csv,
    records_before_a_non_utf8_value_are_written,
    unknown_suffixes_are_refused,
    missing_files_and_topics_are_reported,
]
