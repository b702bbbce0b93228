"""Apache Kafka's own command line tools in every scenario; see `scenario_program.py`. Each command is a Java machine of its own."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.interop import apache_kafka
from tests.interop.apache_kafka import TOOLS, java_command
from tests.interop.python_clients.scenario_program import (
    COUNT,
    CULPRIT_KEYS,
    HEADERS,
    ROUND,
    TIMEOUT_S,
    Records,
    main,
    records,
    report,
    until,
)

SILENCE_MS = 3000
"""The console consumer ends after so long without a record."""


def tool(name: str, servers: str, *arguments: str, stdin: str = "") -> str:
    """What it prints; an error when it fails."""
    done = apache_kafka.run_tool(name, "--bootstrap-server", servers, *arguments, stdin=stdin, timeout_s=TIMEOUT_S)
    if not done.succeeded:
        raise RuntimeError(f"{name} {' '.join(arguments)}: {done.output} {done.errors}")
    return done.output


def lines(rows: Records) -> str:
    return "".join(f"{key.decode()}\t{value.decode()}\n" for key, value in rows)


def send(servers: str, topic: str, text: str, *arguments: str, **properties: str) -> str:
    """Lines of key, tab, value; what went wrong is logged."""
    given = {"parse.key": "true", **{name.replace("_", "."): value for name, value in properties.items()}}
    reader = [argument for name, value in given.items() for argument in ("--reader-property", f"{name}={value}")]
    command = java_command(TOOLS["console-producer"], "--bootstrap-server", servers, "--topic", topic, *reader, *arguments)
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    return done.stderr


def read(servers: str, topic: str, *arguments: str, **formatter: str) -> list[str]:
    """Records as lines, up to a silence or `--max-messages`."""
    given = {"print.key": "true", **{name.replace("_", "."): value for name, value in formatter.items()}}
    shown = [argument for name, value in given.items() for argument in ("--formatter-property", f"{name}={value}")]
    ends = () if "--max-messages" in arguments else ("--timeout-ms", str(SILENCE_MS))
    starts = () if "--offset" in arguments else ("--from-beginning",)
    return tool("console-consumer", servers, "--topic", topic, *starts, *ends, *shown, *arguments).splitlines()


class Member:
    """A verifiable consumer: it prints its assignment and its records as JSON."""

    def __init__(self, servers: str, topic: str, protocol: str, seen: set[str]) -> None:
        self.assigned = 0
        self._seen = seen
        given = ("--bootstrap-server", servers, "--topic", topic, "--group-id", f"{topic}-group", "--group-protocol", protocol, "--verbose")
        self.process = subprocess.Popen(java_command(TOOLS["verifiable-consumer"], *given), stdout=subprocess.PIPE, text=True)
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(TIMEOUT_S)
        self._listener.join()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if event["name"] == "partitions_revoked":
                self.assigned -= len(event["partitions"])
            elif event["name"] == "partitions_assigned":
                self.assigned += len(event["partitions"])
            elif event["name"] == "record_data":
                self._seen.add(event["value"])


@contextlib.contextmanager
def joined(servers: str, topic: str, protocol: str, seen: set[str]) -> Iterator[Member]:
    member = Member(servers, topic, protocol, seen)
    try:
        yield member
    finally:
        member.stop()


def produce(servers: str, name: str, codec: str) -> None:
    problems = send(servers, name, lines(records()), "--compression-codec", codec)
    found = read(servers, name)
    same = sorted(found) == sorted(lines(records()).splitlines())
    report(acknowledged=COUNT - problems.count("Exception"), read=len(found), same=same)


def headers(servers: str, name: str, _: str) -> None:
    given = ",".join(f"{key}:{value.decode()}" for key, value in HEADERS)
    send(servers, name, f"{given}\t{lines(records(1))}", parse_headers="true")
    printed = read(servers, name, "--max-messages", "1", print_headers="true")[0].split("\t")[0]
    report(headers=[pair.split(":", 1) for pair in printed.split(",")])


def group(servers: str, name: str, protocol: str) -> None:
    protocol = protocol or "classic"
    seen: set[str] = set()

    def fill(label: str) -> None:  # The keys of two rounds are enough to reach all four partitions.
        send(servers, name, lines(records(ROUND, label)))

    fill("first")
    with joined(servers, name, protocol, seen) as one:
        until(lambda: len(seen) == ROUND)
        report(alone=one.assigned)
        with joined(servers, name, protocol, seen) as two:
            until(lambda: one.assigned == two.assigned == 2)
            report(together=[one.assigned, two.assigned])
            fill("second")
            until(lambda: len(seen) == 2 * ROUND)
        until(lambda: one.assigned == 4)
        fill("third")
        until(lambda: len(seen) == 3 * ROUND)
        report(after=one.assigned, records=len(seen))


def offset_at(servers: str, topic: str, timestamp: int | str, partition: int = 0) -> int:
    printed = tool("get-offsets", servers, "--topic-partitions", f"{topic}:{partition}", "--time", str(timestamp))
    return int(printed.strip().rpartition(":")[2])


def described_offset(servers: str, group_id: str, topic: str) -> int:
    printed = tool("consumer-groups", servers, "--describe", "--group", group_id, "--offsets")
    row = next(line.split() for line in printed.splitlines() if f" {topic} " in line)
    return int(row[row.index(topic) + 2])


def offsets(servers: str, name: str, _: str) -> None:
    # Its records have the time at which they are produced: the second half is surely later than the first.
    send(servers, name, lines(records()[:50]))
    middle_ms = time.time_ns() // 1_000_000 + 1
    send(servers, name, lines(records()[50:]))
    in_group = ("--group", f"{name}-group", "--max-messages")
    read(servers, name, *in_group, "30")
    report(committed=described_offset(servers, f"{name}-group", name))
    report(resumed=int(read(servers, name, *in_group, "1", print_offset="true")[0].split("\t")[0].removeprefix("Offset:")))
    sought = read(servers, name, "--partition", "0", "--offset", "70", "--max-messages", "1", print_offset="true")
    report(sought=int(sought[0].split("\t")[0].removeprefix("Offset:")))
    report(by_time=offset_at(servers, name, middle_ms), beginning=offset_at(servers, name, -2), end=offset_at(servers, name, -1))


def idempotent(servers: str, name: str, _: str) -> None:
    problems = send(servers, name, lines(records()), "--command-property", "enable.idempotence=true")
    report(acknowledged=COUNT - problems.count("Exception"))


def transactionstates(servers: str, name: str, _: str) -> None:
    transactional_id = f"{name}-id"
    load = ("--topic", name, "--num-records", "10", "--record-size", "10", "--throughput", "-1", "--transactional-id", transactional_id)
    tool("producer-perf-test", servers, *load)

    def state() -> str:
        printed = tool("transactions", servers, "describe", "--transactional-id", transactional_id)
        header, row = (line.split() for line in printed.splitlines()[-2:])
        return row[header.index("TransactionState")].lower()

    until(lambda: state().startswith("complete"))
    printed = tool("transactions", servers, "describe-producers", "--topic", name, "--partition", "0")
    report(producers=len(printed.splitlines()) - 1, ended=state())
    report(listed=transactional_id in tool("transactions", servers, "list").split())


def topics(servers: str, name: str, _: str) -> None:
    topic = f"{name}-made"
    entity = ("--entity-type", "topics", "--entity-name", topic)

    def partitions() -> int:
        found = re.search(r"PartitionCount: (\d+)", tool("topics", servers, "--describe", "--topic", topic))
        return int(found[1]) if found else -1

    def retention() -> str:
        found = re.search(r"retention\.ms=(\d+)", tool("configs", servers, "--describe", *entity))
        return found[1] if found else ""

    create = ("--create", "--topic", topic, "--partitions", "2", "--replication-factor", "1", "--config", "retention.ms=7200000")
    tool("topics", servers, *create)
    report(created=partitions())
    try:
        tool("topics", servers, *create)
    except RuntimeError as refused:
        report(refused="already exists" in str(refused))
    report(config=retention())
    tool("configs", servers, "--alter", *entity, "--add-config", "retention.ms=3600000")
    until(lambda: retention() == "3600000")
    report(altered=retention())
    tool("topics", servers, "--alter", "--topic", topic, "--partitions", "4")
    report(partitions=partitions())
    send(servers, topic, lines(records(COUNT)))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"version": 1, "partitions": [{"topic": topic, "partition": 3, "offset": 5}]}, file)
        file.flush()
        tool("delete-records", servers, "--offset-json-file", str(Path(file.name)))
    report(records_deleted=offset_at(servers, topic, -2, partition=3))
    tool("topics", servers, "--delete", "--topic", topic)
    report(deleted=topic not in tool("topics", servers, "--list").split())


def groups(servers: str, name: str, _: str) -> None:
    group_id = f"{name}-group"
    send(servers, name, lines(records(10)))
    read(servers, name, "--group", group_id, "--max-messages", "10")
    report(listed=group_id in tool("consumer-groups", servers, "--list").split())
    described = tool("consumer-groups", servers, "--describe", "--group", group_id, "--state")
    report(state="empty" if " Empty " in f"{described} " else described)
    report(offset=described_offset(servers, group_id, name))
    tool("consumer-groups", servers, "--delete", "--group", group_id)
    report(deleted=group_id not in tool("consumer-groups", servers, "--list").split())


def culprits(servers: str, name: str, _: str) -> None:
    rows = "".join(f"{key.decode() if key else 'none'}\tv\n" for key in CULPRIT_KEYS)
    problems = send(servers, name, rows, null_marker="none")
    report(fates=re.findall(r"^[\w.]*\.(\w+Exception)", problems, re.MULTILINE))


def versions(*_: str) -> None:
    report(version=apache_kafka.kafka_version())


if __name__ == "__main__":
    main(
        {
            each.__name__: each
            for each in (produce, headers, group, offsets, idempotent, transactionstates, topics, groups, culprits, versions)
        }
    )
