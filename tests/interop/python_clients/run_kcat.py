"""kcat in every scenario: its command lines, and what they print; see `scenario_program.py`. Runs with any Python."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

from scenario_program import COUNT, CULPRIT_KEYS, HEADERS, ROUND, TIMEOUT_S, Records, main, records, report, until

FORMAT = r"%k\t%s\n"
UNFINISHED = "x" * 16_384
"""A record that never ends: kcat reads its input in blocks, and would keep the records before it until the block is full."""


def kcat(servers: str, *arguments: str, stdin: str = "") -> str:
    """What it prints; an error when it fails."""
    done = subprocess.run(["kcat", "-b", servers, *arguments], input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"kcat {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def lines(rows: Records) -> str:
    return "".join(f"{key.decode()}\t{value.decode()}\n" for key, value in rows)


def produce_lines(servers: str, topic: str, rows: Records, *arguments: str) -> None:
    kcat(servers, "-P", "-t", topic, "-K", r"\t", *arguments, stdin=lines(rows))


def read(servers: str, topic: str, isolation: str = "read_committed") -> list[str]:
    """Everything that stands in the topic now, as lines."""
    printed = kcat(servers, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", FORMAT, "-X", f"isolation.level={isolation}")
    return printed.splitlines()


class Member:
    """A kcat in a group: how many partitions it has, and what it has read."""

    def __init__(self, servers: str, group: str, topic: str, seen: set[str]) -> None:
        self.assigned = 0
        self._seen = seen
        command = ["kcat", "-b", servers, "-G", group, "-u", "-f", FORMAT, "-X", "auto.offset.reset=earliest", topic]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._listeners = [threading.Thread(target=each) for each in (self._read, self._rebalance)]
        for listener in self._listeners:
            listener.start()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(TIMEOUT_S)
        for listener in self._listeners:
            listener.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._seen.add(line)

    def _rebalance(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if "revoked:" in line:
                self.assigned = 0
            elif "assigned:" in line:
                self.assigned = line.count("[")


@contextlib.contextmanager
def joined(servers: str, group: str, topic: str, seen: set[str]) -> Iterator[Member]:
    member = Member(servers, group, topic, seen)
    try:
        yield member
    finally:
        member.stop()


def produce(servers: str, name: str, codec: str) -> None:
    produce_lines(servers, name, records(), "-z", codec)
    found = read(servers, name)
    report(acknowledged=COUNT, read=len(found), same=sorted(found) == sorted(lines(records()).splitlines()))


def headers(servers: str, name: str, _: str) -> None:
    given = [argument for key, value in HEADERS for argument in ("-H", f"{key}={value.decode()}")]
    produce_lines(servers, name, records(1), *given)
    printed = kcat(servers, "-C", "-t", name, "-o", "beginning", "-e", "-q", "-f", "%h").strip()
    report(headers=[pair.split("=", 1) for pair in printed.split(",")])


def group(servers: str, name: str, _: str) -> None:
    seen: set[str] = set()

    def fill(label: str) -> None:
        rows = records(ROUND, label)
        for partition in range(4):
            produce_lines(servers, name, rows[partition::4], "-p", str(partition))

    fill("first")
    with joined(servers, f"{name}-group", name, seen) as one:
        until(lambda: len(seen) == ROUND)
        report(alone=one.assigned)
        with joined(servers, f"{name}-group", name, seen) as two:
            until(lambda: one.assigned == two.assigned == 2)
            report(together=[one.assigned, two.assigned])
            fill("second")
            until(lambda: len(seen) == 2 * ROUND)
        until(lambda: one.assigned == 4)
        fill("third")
        until(lambda: len(seen) == 3 * ROUND)
        report(after=one.assigned, records=len(seen))


def offsets(servers: str, name: str, _: str) -> None:
    def query(timestamp: int) -> int:
        found = re.search(r"offset (\d+)", kcat(servers, "-Q", "-t", f"{name}:0:{timestamp}"))
        assert found is not None
        return int(found[1])

    def read_in_group(count: int) -> list[int]:
        printed = kcat(servers, "-G", f"{name}-group", "-q", "-c", str(count), "-f", r"%o\n", "-X", "auto.offset.reset=earliest", name)
        return [int(line) for line in printed.split()]

    # Its records have the time at which they are produced: the second half is surely later than the first.
    produce_lines(servers, name, records()[:50])
    middle_ms = time.time_ns() // 1_000_000 + 1
    until(lambda: time.time_ns() // 1_000_000 > middle_ms)
    produce_lines(servers, name, records()[50:])
    read_in_group(30)
    report(resumed=read_in_group(1)[0])
    report(sought=int(kcat(servers, "-C", "-t", name, "-p", "0", "-o", "70", "-c", "1", "-q", "-f", "%o")))
    report(by_time=query(middle_ms), beginning=query(-2), end=query(-1))


def idempotent(servers: str, name: str, _: str) -> None:
    produce_lines(servers, name, records(), "-X", "enable.idempotence=true")
    report(acknowledged=COUNT)


def transactions(servers: str, name: str, _: str) -> None:
    transactional = ("-X", f"transactional.id={name}-id")
    produce_lines(servers, name, records(10, "round 0"), *transactional)
    command = ["kcat", "-b", servers, "-P", "-t", name, "-K", r"\t", *transactional]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as aborted:
        assert aborted.stdin is not None
        aborted.stdin.write(lines(records(10, "round 1")) + UNFINISHED)
        aborted.stdin.flush()
        until(lambda: len(read(servers, name, "read_uncommitted")) == 20)
        aborted.send_signal(signal.SIGINT)
        aborted.communicate(timeout=TIMEOUT_S)
    produce_lines(servers, name, records(10, "round 2"), *transactional)
    found = read(servers, name)
    rounds = sorted({int(line.split("\t")[1][6]) for line in found})
    report(committed=len(found), rounds=rounds, uncommitted=len(read(servers, name, "read_uncommitted")))


def culprits(servers: str, name: str, _: str) -> None:
    rows = "".join(f"{key.decode() if key else ''}\tv\n" for key in CULPRIT_KEYS)
    command = ["kcat", "-b", servers, "-P", "-t", name, "-K", r"\t", "-Z", "-X", "linger.ms=1000"]
    done = subprocess.run(command, input=rows, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    report(fates=re.findall(r"Delivery failed for message: (.*)", done.stderr))


def versions(*_: str) -> None:
    printed = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True).stdout
    program, library = re.search(r"Version ([\d.]+)", printed), re.search(r"librdkafka ([\d.]+)", printed)
    assert program is not None
    assert library is not None
    report(version=f"{program[1]} (librdkafka {library[1]})")


if __name__ == "__main__":
    main({each.__name__: each for each in (produce, headers, group, offsets, idempotent, transactions, culprits, versions)})
