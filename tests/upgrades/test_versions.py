"""Formats carry a version: a later one is refused by name, with the version seen, those known, and what to do. Driver and executors of
different versions say so, whichever is the older one."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import WriterCommitMessage

from chaffinch.errors.codes import Group
from chaffinch.identifiers import TopicPartition
from chaffinch.records.checksum import crc32c
from chaffinch.spark.commit.marker import CheckpointState, Marker
from chaffinch.spark.kafka_sink import KafkaSink
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.sink import writers
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.snapshot import TargetSnapshot
from chaffinch.spark.source import batch_reader, stream_reader
from chaffinch.spark.source.fetching import TopicRange
from chaffinch.spark.source.topic_offsets import from_checkpoint, to_checkpoint
from chaffinch.spark.versions import NewerFormat
from chaffinch.storage.files import StorageError
from chaffinch.version import VERSION
from tests.upgrades.fixtures import fixtures_of, served, unpacked

LATER = 9
"""A format version that this tree does not know."""


class TestDataDirectories:
    """`chaffinch.meta` has the version of all files of the directory; those that could be read by mistake name theirs themselves."""

    @pytest.mark.parametrize(
        ("pattern", "change"),
        [
            ("chaffinch.meta", lambda text: re.sub(rb"format.version=\d+", b"format.version=%d" % LATER, text)),
            ("log.state", lambda text: text.replace(b"{", b'{"version":%d,"more":1,' % LATER, 1)),
            ("*.snapshot", lambda text: re.sub(rb'"format":\d+', b'"format":%d' % LATER, text)),
        ],
    )
    @pytest.mark.parametrize("name", fixtures_of("broker_stopped"))
    def test_later_format_is_refused(self, tmp_path: Path, name: str, pattern: str, change: Callable[[bytes], bytes]) -> None:
        fixture = unpacked(name, tmp_path)
        found = sorted((tmp_path / "broker").rglob(pattern))
        assert found
        for path in found:
            path.write_bytes(with_checksum(pattern, change(without_checksum(pattern, path.read_bytes()))))
        before = contents(tmp_path)
        with pytest.raises(StorageError) as caught, served(fixture):
            pass
        text = str(caught.value)
        assert any(f" {path}: " in text for path in found), text
        assert re.search(rf"format version {LATER}, this Chaffinch supports versions up to \d+: use a newer one$", text), text
        assert contents(tmp_path) == before, "nothing is changed"


def without_checksum(pattern: str, text: bytes) -> bytes:
    return text.partition(b"crc32c=")[0] if pattern == "chaffinch.meta" else text.partition(b"\n")[2]


def with_checksum(pattern: str, body: bytes) -> bytes:
    return body + b"crc32c=%08x\n" % crc32c(body) if pattern == "chaffinch.meta" else b"%08x\n" % crc32c(body) + body


def contents(folder: Path) -> dict[str, bytes]:
    """Of what counts: a start that is refused may remove the marks of closed journals, and leaves the lock."""
    found = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if not name.endswith((".closed", ".lock"))}


class TestCheckpoints:
    """What users read: tests/spark/sink/test_sink.py, tests/spark/commit/test_protocol.py."""

    def test_state_of_later_format_is_refused(self) -> None:
        with pytest.raises(NewerFormat, match=f"it has format version {LATER}, this Chaffinch supports versions up to 1"):
            CheckpointState.from_text(f'{{"version": {LATER}, "batches": []}}')

    def test_marker_of_later_format_is_refused(self) -> None:
        with pytest.raises(NewerFormat, match=f"it has format version {LATER}, this Chaffinch supports versions up to 1"):
            Marker.from_text(f'{{"version": {LATER}, "batches": [1]}}')
        assert Marker.from_text('{"batch":3,"writer":"w","digest":"d"}').batch_id == 3, "one without a version is of the first"


OPTIONS = SinkOptions.parse({"kafka.bootstrap.servers": "a:1", "topic": "rows"}, is_stream=False)
NO_TOPICS = TargetSnapshot(topics=())
MADE: dict[str, Callable[[], Any]] = {
    "stream_writer": lambda: writers.StreamWriter(OPTIONS, NO_TOPICS, None),
    "batch_writer": lambda: writers.BatchWriter(OPTIONS, NO_TOPICS, "write"),
    "stream_reader": lambda: stream_reader.TopicStreamReader(None),  # type: ignore[arg-type]
    "batch_reader": lambda: batch_reader.TopicReader(None),  # type: ignore[arg-type]
}
"""What a driver sends to executors, by its name in the fixtures."""
DRIVERS = {
    "an older driver": lambda sent: sent.replace(VERSION.encode(), b"0.0.9"),
    "a newer driver": lambda sent: sent.replace(VERSION.encode(), b"9.0.9"),
    "one of this version with other messages": lambda sent: re.sub(rb"messages [0-9a-f]{8}", b"messages 00000000", sent),
}


def work(received: Any) -> list[Any]:
    """What a task asks of what it has received."""
    if hasattr(received, "write"):
        return [received.write(iter([pa.record_batch({"value": [b"1"]})]))]
    return list(received.read(TopicRange("rows", 0, 0, 1)))


class TestExecutors:
    """They refuse the work of a driver of another version, before anything in it is looked at."""

    @pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
    @pytest.mark.parametrize("kind", MADE)
    def test_same_version_is_accepted(self, kind: str, dumps: Callable[[Any], bytes]) -> None:
        made = MADE[kind]()
        found = pickle.loads(dumps(made))
        assert (type(found), found.__dict__.keys()) == (type(made), made.__dict__.keys())
        found.check_version("host-b")

    @pytest.mark.parametrize("change", DRIVERS.values(), ids=DRIVERS)
    @pytest.mark.parametrize("kind", MADE)
    def test_other_driver_version_is_refused(self, kind: str, change: Callable[[bytes], bytes]) -> None:
        sent = pickle.dumps(MADE[kind](), protocol=0)  # A later protocol counts the bytes of the text.
        assert change(sent) != sent
        received = pickle.loads(change(sent).replace(b"_options", b"_neither"))
        with pytest.raises(
            Refusal, match=rf"VERSIONS_DIFFER: \S+ has chaffinch {VERSION} .*, the driver has .*: install the same"
        ) as caught:
            work(received)
        assert caught.value.group is Group.INVALID_CONFIGURATION

    @pytest.mark.parametrize("kind", MADE)
    @pytest.mark.parametrize("name", fixtures_of("messages"))
    def test_driver_of_earlier_tree_is_refused(self, tmp_path: Path, name: str, kind: str) -> None:
        sent = (unpacked(name, tmp_path).folder / "to_executors" / f"{kind}.pickle").read_bytes()
        with pytest.raises(Refusal, match=rf"VERSIONS_DIFFER: \S+ has chaffinch {VERSION} .*, the driver has "):
            work(pickle.loads(sent))

    @pytest.mark.parametrize("kind", ["stream_writer", "batch_writer"])
    def test_earlier_tree_reports_version_difference(self, kind: str) -> None:
        """It knows the name of this function, and compares its second argument with its own version."""
        function, (made, version, state) = MADE[kind]().__reduce__()
        assert (function.__module__, function.__qualname__) == ("chaffinch.spark.sink.writers", "_unpickled")
        assert (made.__module__, version != VERSION, type(state)) == ("chaffinch.spark.sink.writers", True, bytes)


class TestForeachBatch:
    """On Spark Connect a client pickles its sink for a process beside the server."""

    @pytest.mark.parametrize("change", [lambda fields: fields | {"_made_with": "0.0.9"}, lambda fields: {"_options": fields["_options"]}])
    def test_sink_of_other_version_is_refused(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        sink = pickle.loads(pickle.dumps(KafkaSink(kafka_bootstrap_servers="a:1", topic="rows")))
        fields = change(dict(sink.__dict__))
        sink.__dict__.clear()
        sink.__dict__.update(fields)
        with pytest.raises(Refusal, match=rf"VERSIONS_DIFFER: \S+ has chaffinch {VERSION}, the driver has (0.0.9|an earlier version): "):
            sink(SimpleNamespace(write=None, sparkSession=None), 0)


class TestOffsetsOfTheSource:
    def test_source_offsets_have_format_of_spark_kafka_source(self) -> None:
        """The ids of topics are beside them in a form that has no partitions, so that others pass over it."""
        offsets = {TopicPartition("orders", 0): 23, TopicPartition("orders", 1): 5, TopicPartition("paid", 0): 7}
        fields = to_checkpoint(offsets, {"orders": UUID(int=1), "paid": UUID(int=2)})
        # What Spark's source and earlier trees read: topic -> partition -> offset.
        read = {TopicPartition(topic, int(number)): offset for topic, found in fields.items() for number, offset in found.items()}
        assert read == offsets
        assert from_checkpoint({topic: found for topic, found in fields.items() if found}) == offsets, "those of others have no ids"


class TestDriver:
    """It refuses the messages of executors of another version: their rows would not be written."""

    @pytest.mark.parametrize("name", fixtures_of("messages"))
    @pytest.mark.parametrize("kind", ["outcome", "versions_differ"])
    def test_message_of_earlier_tree_is_refused(self, tmp_path: Path, name: str, kind: str) -> None:
        path = unpacked(name, tmp_path).folder / "to_driver" / f"{kind}.pickle"
        if not path.exists():
            pytest.skip("this tree raises it")
        message = pickle.loads(path.read_bytes())
        text = "VERSIONS_DIFFER: .*has chaffinch .*, the driver has .*: install the same version everywhere"
        with pytest.raises(Refusal, match=text):
            MADE["stream_writer"]().commit([message], 0)
        with pytest.raises(Refusal, match=text):
            MADE["batch_writer"]().commit([message])

    def test_message_of_later_tree_is_refused(self) -> None:
        message = writers.CommitMessage(None, "9.0.9 (messages 00000000)")  # type: ignore[arg-type]
        with pytest.raises(Refusal, match=rf"an executor has chaffinch 9.0.9 \(messages 0{{8}}\), the driver has {VERSION} "):
            MADE["stream_writer"]().commit([message], 0)

    def test_message_of_other_class_is_refused(self) -> None:
        with pytest.raises(Refusal, match="an executor has chaffinch an earlier version, the driver has"):
            MADE["stream_writer"]().commit([WriterCommitMessage()], 0)
