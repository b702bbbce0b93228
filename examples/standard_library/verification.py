"""Verification of the demo with other clients: compares the topics file by file with the list of files.

The reader is confluent-kafka under `isolation.level=read_committed`; the size of a record in a batch is computed by
kafka-python's encoder. Nothing here uses Chaffinch.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.dataset as dataset
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition
from kafka.record.default_records import DefaultRecordBatchBuilder

from examples.standard_library.inputs import SourceFile
from examples.standard_library.workspace import DEAD_LETTER_TOPIC, MESSAGE_BYTES_MAX, Workspace

NULL_KEY = "INVALID_COMPACTION_KEY"
TOO_LARGE = "MESSAGE_TOO_LARGE"
REASON_HEADER = "chaffinch.error.name"
DIGEST_HEADER = "chaffinch.error.value.sha256"
POLL_SECONDS = 30.0


def batch_bytes(file: SourceFile) -> int:
    """The size of a record batch with only this file, computed by kafka-python's encoder."""
    builder = DefaultRecordBatchBuilder
    key = None if file.key is None else file.key.encode()
    return int(builder.header_size_in_bytes() + builder.size_in_bytes(0, 0, key, bytes(file.size), [("path", file.path.encode())]))


def reason(file: SourceFile) -> str | None:
    """The error for which the topic must refuse the file, None if it must accept it. The size is checked first, as in a broker."""
    if batch_bytes(file) > MESSAGE_BYTES_MAX:
        return TOO_LARGE
    return NULL_KEY if file.key is None else None


def messages(bootstrap_servers: str, topic: str) -> Iterator[Message]:
    """Every committed message of the topic, from the first to the last stable one, in order per partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "judge",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 8_388_608,
        }
    )
    partitions = consumer.list_topics(topic, timeout=POLL_SECONDS).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    waiting = set(partitions)
    try:
        while waiting:
            message = consumer.poll(POLL_SECONDS)
            if message is None:
                raise TimeoutError(f"{topic}: no response within {POLL_SECONDS:.0f} s from partitions {sorted(waiting)}")
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                waiting.discard(message.partition())
            else:
                raise RuntimeError(f"{topic}: {error}")
    finally:
        consumer.close()


def header(message: Message, name: str) -> str:
    value = dict(message.headers() or []).get(name)
    return value.decode() if isinstance(value, bytes) else ""


@dataclass(slots=True)
class Findings:
    """Number of records of each file, by its path, and the errors found."""

    seen: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    wrong: list[str] = field(default_factory=list)

    def note(self, path: str, problems: Iterable[str]) -> None:
        self.seen[path] += 1
        self.wrong.extend(f"{path or '(no path header)'}: {problem}" for problem in problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One line of the final table: expected and found files in one location."""

    location: str
    expected: int
    once: int
    missing: list[str]
    double: list[str]
    foreign: list[str]
    wrong: list[str]

    @property
    def is_exact(self) -> bool:
        return not (self.missing or self.double or self.foreign or self.wrong)


def compare(location: str, expected: Iterable[SourceFile], findings: Findings) -> Comparison:
    paths = {file.path for file in expected}
    return Comparison(
        location=location,
        expected=len(paths),
        once=sum(findings.seen.get(path, 0) == 1 for path in paths),
        missing=sorted(path for path in paths if findings.seen.get(path, 0) == 0),
        double=sorted(path for path, count in findings.seen.items() if count > 1),
        foreign=sorted(set(findings.seen) - paths),
        wrong=findings.wrong,
    )


def _differences(file: SourceFile | None, message: Message, content: bytes | None) -> Iterator[str]:
    if file is None:
        return
    if message.key() != (None if file.key is None else file.key.encode()):
        yield f"key is {message.key()!r}"
    if message.timestamp()[1] != file.modified_ms:
        yield f"timestamp is {message.timestamp()[1]} ms instead of {file.modified_ms} ms"
    if content is not None and message.value() != content:
        yield f"value differs from the file's {len(content)} bytes"


def read_topic(bootstrap_servers: str, topic: str, files: dict[str, SourceFile], root: Path) -> Findings:
    findings = Findings()
    for message in messages(bootstrap_servers, topic):
        path = header(message, "path")
        file = files.get(path)
        findings.note(path, _differences(file, message, None if file is None else (root / path).read_bytes()))
    return findings


def _dead_letter_problems(file: SourceFile | None, message: Message, root: Path) -> Iterator[str]:
    if file is None:
        return
    if header(message, REASON_HEADER) != reason(file):
        yield f"reason is {header(message, REASON_HEADER)!r} instead of {reason(file)!r}"
    content = (root / file.path).read_bytes()
    digest = header(message, DIGEST_HEADER)
    if digest and digest != hashlib.sha256(content).hexdigest():
        yield "SHA-256 of the value differs from the file's"
    yield from _differences(file, message, None if digest else content)


def read_dead_letter_topic(bootstrap_servers: str, files: dict[str, SourceFile], root: Path) -> Findings:
    findings = Findings()
    for message in messages(bootstrap_servers, DEAD_LETTER_TOPIC):
        path = header(message, "path")
        findings.note(path, _dead_letter_problems(files.get(path), message, root))
    return findings


def read_dead_letter_files(workspace: Workspace, files: dict[str, SourceFile], root: Path) -> Findings:
    """Verify the Parquet dead letters, read with pyarrow: the complete original row and its error."""
    findings = Findings()
    table = dataset.dataset(workspace.dead_letters, format="parquet", exclude_invalid_files=True)
    for row in table.to_batches():
        for letter in row.to_pylist():
            path = next((item["value"].decode() for item in letter["headers"] or [] if item["key"] == "path"), "")
            file = files.get(path)
            problems = [f"reason is {letter['error_name']!r}"] if file is not None and letter["error_name"] != reason(file) else []
            if file is not None and letter["value"] != (root / path).read_bytes():
                problems.append("value differs from the file's bytes")
            findings.note(path, problems)
    return findings
