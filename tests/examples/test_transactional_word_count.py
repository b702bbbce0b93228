"""KIP-1050's demo under faults of each class, and with both processes killed: the committed counts are the truth, exactly."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import pytest

from chaffinch import Consumer, EmbeddedBroker, Producer, errors
from chaffinch.errors import codes
from examples.transactional_word_count import INPUT, OUTPUT, main, run

ROOT = Path(__file__).parents[2]
WORDS = ["one", "two", "three", "four", "five"]
TOPICS = {INPUT: {"partitions": 2}, OUTPUT: {"partitions": 2}}
IDLE_S = 0.1


def lines_of(count: int) -> tuple[list[str], Counter[str]]:
    dice = random.Random(1050)
    lines = [" ".join(dice.choices(WORDS, k=3)) for _ in range(count)]
    return lines, Counter(" ".join(lines).split())


def write(bootstrap_servers: str, lines: list[str]) -> None:
    with Producer(bootstrap_servers=bootstrap_servers) as producer:
        futures = [producer.send(INPUT, line) for line in lines]
    assert not [future for future in futures if future.exception(0)]


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    """Version 1 of transactions for who is to meet one of its requests."""
    version = getattr(request, "param", 2)
    with EmbeddedBroker(topics=TOPICS, config={"transaction.version": version}) as running:
        yield running


def counted(broker: EmbeddedBroker) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in broker.read(OUTPUT).to_pylist():
        found[row["key"].decode()] += int(row["value"])
    return found


UNKNOWN_NUMBER = 9_999


def add_fault(broker: EmbeddedBroker, api: str | None, fault: str | int | None) -> None:
    """None: none. A number is one that no Kafka has, which no script takes: it is put into a rule that is there."""
    if api is None or fault is None:
        return
    if isinstance(fault, str):
        options: dict[str, Any] = {"action": fault} if fault.startswith("drop") else {"error": fault}
        broker.faults.add(api=api, **options)
        return
    broker.faults.add(api=api, error="UNKNOWN_SERVER_ERROR")
    broker._call(lambda core: setattr(core.faults.rules[-1], "error", codes.by_number(fault)))


# fmt: off
FAULTS = [
    # api                   error or what happens                  what the application does
    (None,                  None,                                  None),
    # Retriable: retried without a report.
    ("Produce",             "NOT_LEADER_OR_FOLLOWER",              None),
    ("Produce",             "NOT_ENOUGH_REPLICAS",                 None),
    ("AddPartitionsToTxn",  "CONCURRENT_TRANSACTIONS",             None),
    ("TxnOffsetCommit",     "COORDINATOR_LOAD_IN_PROGRESS",        None),
    ("EndTxn",              "NOT_COORDINATOR",                     None),
    ("Produce",             "drop_after",                          None),
    ("TxnOffsetCommit",     "drop_after",                          None),
    ("EndTxn",              "drop_before",                         None),
    ("EndTxn",              "drop_after",                          None),
    # Abortable: abort and read again.
    ("Produce",             "TRANSACTION_ABORTABLE",               "abort"),
    ("Produce",             "INVALID_TXN_STATE",                   "abort"),
    ("AddPartitionsToTxn",  "TRANSACTION_ABORTABLE",               "abort"),
    ("TxnOffsetCommit",     "TRANSACTION_ABORTABLE",               "abort"),
    ("EndTxn",              "TRANSACTION_ABORTABLE",               "abort"),
    # Application-recoverable: restart.
    ("InitProducerId",      "PRODUCER_FENCED",                     "restart"),
    ("Produce",             "INVALID_PRODUCER_EPOCH",              "restart"),
    ("AddPartitionsToTxn",  "INVALID_PRODUCER_ID_MAPPING",         "restart"),
    ("AddOffsetsToTxn",     "INVALID_TXN_STATE",                   "restart"),
    ("TxnOffsetCommit",     "ILLEGAL_GENERATION",                  "restart"),
    ("TxnOffsetCommit",     "FENCED_INSTANCE_ID",                  "restart"),
    ("EndTxn",              "PRODUCER_FENCED",                     "restart"),
    # Unknown, which is application-recoverable: what the broker has no code for, and a code of tomorrow.
    ("Produce",             "UNKNOWN_SERVER_ERROR",                "restart"),
    ("Produce",             UNKNOWN_NUMBER,                        "restart"),
    ("TxnOffsetCommit",     UNKNOWN_NUMBER,                        "restart"),
    ("EndTxn",              UNKNOWN_NUMBER,                        "restart"),
    # Invalid configuration: stop.
    ("InitProducerId",      "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "stop"),
    ("Produce",             "TOPIC_AUTHORIZATION_FAILED",          "stop"),
    ("AddPartitionsToTxn",  "TOPIC_AUTHORIZATION_FAILED",          "stop"),
    ("TxnOffsetCommit",     "GROUP_AUTHORIZATION_FAILED",          "stop"),
]
# fmt: on


@pytest.mark.parametrize(
    ("broker", "api", "fault", "reaction"),
    [(1 if row[0] in ("AddPartitionsToTxn", "AddOffsetsToTxn") else 2, *row) for row in FAULTS],
    ids=str,
    indirect=["broker"],
)
def test_faults_lose_and_duplicate_nothing(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], api: str | None, fault: str | int | None, reaction: str | None
) -> None:
    lines, truth = lines_of(250)
    write(broker.bootstrap_servers, lines)
    add_fault(broker, api, fault)
    if reaction == "stop":
        with pytest.raises(errors.InvalidConfigurationException):
            run(broker.bootstrap_servers, IDLE_S)
        assert sum(counted(broker).values()) < truth.total()
        # The operator has granted the permission.
        assert main(["--bootstrap-server", broker.bootstrap_servers, "--idle-seconds", str(IDLE_S)]) == 0
    else:
        assert run(broker.bootstrap_servers, IDLE_S) == 250
    assert counted(broker) == truth
    lines_said = capsys.readouterr().out.splitlines()
    assert reaction != "stop" or lines_said[-1].endswith("lines in all")
    said = {line.partition(":")[0] for line in lines_said if not line.startswith("committed")}
    assert said == ({reaction} if reaction in ("abort", "restart") else set())


def test_interruption_aborts_the_transaction(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    write(broker.bootstrap_servers, ["one two"])
    with monkeypatch.context() as patch:
        patch.setattr(Producer, "send_offsets_to_transaction", interrupt)
        assert main(["--bootstrap-server", broker.bootstrap_servers]) == 130
    assert capsys.readouterr() == ("", "interrupted: uncommitted records are read again next time\n")
    assert not counted(broker)
    assert run(broker.bootstrap_servers, IDLE_S) == 1, "the line is read again"


def test_invalid_utf8_does_not_stop_the_count(broker: EmbeddedBroker) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send(INPUT, b"one \xff\xfe two").result()
    assert run(broker.bootstrap_servers, IDLE_S) == 1
    assert counted(broker) == Counter(["one", "two", "\ufffd\ufffd"])


class Process:
    """A process that is read line by line and killed."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def line(self) -> str:
        """The next line; empty at the end. A failing test shows it."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        print(line)
        return line

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def end(self) -> int:
        return self._process.wait()


class Killed:
    """A broker and the example as processes, each killed and started again."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.address = "127.0.0.1:0"
        self.broker = self._started("--topic", f"{INPUT}:2", "--topic", f"{OUTPUT}:2")
        self.example: Process | None = None

    def _started(self, *topics: str) -> Process:
        config = ("--config", "group.initial.rebalance.delay.ms=0")
        broker = Process("chaffinch", "broker", "--listen", self.address, "--data-dir", str(self._data_dir), *config, *topics)
        self.address = broker.line().partition("=")[2]
        return broker

    def restart_broker(self) -> None:
        self.broker.kill()
        self.broker = self._started()

    def restart_example(self) -> Process:
        if self.example is not None:
            self.example.kill()
        arguments = ("--bootstrap-server", self.address, "--idle-seconds", str(IDLE_S))
        self.example = Process("examples.transactional_word_count", *arguments)
        return self.example

    def close(self) -> None:
        for process in (self.broker, self.example):
            if process is not None:
                process.kill()


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Killed]:
    running = Killed(tmp_path / "data")
    yield running
    running.close()


def test_kills_lose_and_duplicate_nothing(killed: Killed) -> None:
    """Killed in the middle, several times, each of the two: after each restart it goes on where the last commit was."""
    lines, truth = lines_of(3_000)
    write(killed.address, lines)
    for kill in (killed.restart_example, killed.restart_broker, killed.restart_example, killed.restart_broker, killed.restart_broker):
        if killed.example is None:
            killed.restart_example()
        assert killed.example is not None
        for _ in range(2):
            assert killed.example.line()
        kill()
    assert killed.example is not None
    while killed.example.line():
        pass
    assert killed.example.end() == 0
    assert counts_by_consumer(killed.address) == truth


# One of each class, whose response is lost, and unknown ones.
KILLED_UNDER = [
    (None, None, None),
    ("Produce", "NOT_LEADER_OR_FOLLOWER", None),
    ("EndTxn", "drop_after", None),
    ("Produce", "TRANSACTION_ABORTABLE", "abort"),
    ("EndTxn", "PRODUCER_FENCED", "restart"),
    ("TxnOffsetCommit", "FENCED_INSTANCE_ID", "restart"),
    ("TxnOffsetCommit", UNKNOWN_NUMBER, "restart"),
    ("TxnOffsetCommit", "GROUP_AUTHORIZATION_FAILED", "stop"),
]


@pytest.mark.parametrize(("api", "fault", "reaction"), KILLED_UNDER)
def test_example_recovers_from_kill_during_error_handling(
    broker: EmbeddedBroker, api: str | None, fault: str | int | None, reaction: str | None
) -> None:
    """As it does what an error asks for, and at last the broker as well: what each kill leaves open is fenced and aborted."""
    lines, truth = lines_of(1_500)
    for number, kills_broker in enumerate((False, False, True)):
        # Before each: one that is not killed at once may have counted all that there was.
        write(broker.bootstrap_servers, lines[number * 500 : (number + 1) * 500])
        add_fault(broker, api, fault)
        with started_example(broker) as example:
            while line := example.line():
                if line.startswith(reaction or "committed"):
                    break
            assert line, "it has met the fault"
            assert not broker.faults.list()
            if kills_broker:
                broker.restart(kill=True)
                while example.line():
                    pass
    with started_example(broker) as example:
        while example.line():
            pass
        assert example.end() == 0
    assert counted(broker) == truth


def started_example(broker: EmbeddedBroker) -> Process:
    return Process("examples.transactional_word_count", "--bootstrap-server", broker.bootstrap_servers, "--idle-seconds", str(IDLE_S))


def counts_by_consumer(bootstrap_servers: str) -> Counter[str]:
    """What a consumer of committed records reads."""
    found: Counter[str] = Counter()
    with Consumer(bootstrap_servers=bootstrap_servers, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        places = consumer.partitions_for(OUTPUT)
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        while any(consumer.position(location) < end for location, end in ends.items()):
            for record in consumer.poll(1.0):
                assert record.key is not None
                assert record.value is not None
                found[record.key.decode()] += int(record.value)
    return found
