"""The examples of KIP-1038, with the outcome that the KIP states, inside and outside a transaction; and futures that are awaited."""

from __future__ import annotations

import asyncio
import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from chaffinch import EmbeddedBroker, Producer, RecordMetadata
from chaffinch.errors import InvalidCompactionKeyException, TransactionAbortableException, UnknownTopicOrPartitionException
from examples import asyncio_producer, drop_large_records, fail_unknown_topics
from examples.drop_large_records import LARGE, NORMAL

ROOT = Path(__file__).parents[2]
LATEST_S = 60
TOPICS = {"input-topic": {"partitions": 1}, "output-topic": {"partitions": 1}, "latest": {"cleanup.policy": "compact"}}
CONFIG = {"auto.create.topics.enable": False}


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics=TOPICS, config=CONFIG) as running:
        yield running


def values(broker: EmbeddedBroker, topic: str) -> list[bytes]:
    return broker.read(topic).column("value").to_pylist()


def interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


class TestExample1:
    """ "In this example we expect that the producer follows the custom handler and does not fail. It may make a batch of normal records
    and commit the transaction successfully."""

    def test_large_records_are_dropped_in_transactions(self, broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for value in (b"normal", b"large", b"normal", b"large", b"large"):
                producer.send("input-topic", value)
        drop_large_records.run(broker.bootstrap_servers, LATEST_S, 5)
        assert capsys.readouterr().out.splitlines() == [
            "reading input-topic until 5 records are read or 60 s pass without one",
            "5 records read: 2 written to output-topic, 3 too large and dropped",
        ]
        assert values(broker, "output-topic") == [NORMAL, NORMAL]
        # Everything that was read is done with: another run of the group finds nothing.
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send("input-topic", b"one more")
        drop_large_records.run(broker.bootstrap_servers, LATEST_S, 1)
        assert values(broker, "output-topic") == [NORMAL] * 3

    def test_interruption_aborts_the_transaction(self, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send("input-topic", b"normal")
        monkeypatch.setattr(Producer, "send_offsets_to_transaction", interrupt)
        monkeypatch.setattr(sys, "argv", ["drop_large_records", "--bootstrap-server", broker.bootstrap_servers])
        monkeypatch.delitem(sys.modules, "examples.drop_large_records")
        with pytest.raises(SystemExit, match="interrupted: uncommitted records are read again"):
            runpy.run_module("examples.drop_large_records", run_name="__main__")
        assert values(broker, "output-topic") == []

    def test_large_records_are_dropped_without_transactions(self, broker: EmbeddedBroker) -> None:
        dropped = drop_large_records.run_without_transactions(broker.bootstrap_servers, [NORMAL, LARGE, NORMAL])
        assert dropped == [False, True, False]
        assert values(broker, "output-topic") == [NORMAL, NORMAL]


class TestExample2:
    """ "If the record does NOT belong to the important-topic, the producer follows the custom handler and fails."""

    def test_unknown_topic_fails_with_the_root_cause(self, broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
        error = fail_unknown_topics.send(broker.bootstrap_servers, "some-topic")
        assert isinstance(error, UnknownTopicOrPartitionException)
        assert "some-topic" in capsys.readouterr().out

    def test_unknown_topic_fails_the_commit(self, broker: EmbeddedBroker) -> None:
        with pytest.raises(TransactionAbortableException) as raised:
            fail_unknown_topics.send(broker.bootstrap_servers, "some-topic", transactional_id="t")
        assert isinstance(raised.value.__cause__, UnknownTopicOrPartitionException)

    @pytest.mark.parametrize("transactional_id", [None, "t"])
    def test_important_topic_is_waited_for(
        self, broker: EmbeddedBroker, transactional_id: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = threading.Event()
        handle = fail_unknown_topics.WaitForImportantTopics.handle

        def noticed(self, record, exception):  # type: ignore[no-untyped-def]
            asked.set()
            return handle(self, record, exception)

        monkeypatch.setattr(fail_unknown_topics.WaitForImportantTopics, "handle", noticed)
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(fail_unknown_topics.send, broker.bootstrap_servers, fail_unknown_topics.IMPORTANT, transactional_id)
            assert asked.wait(LATEST_S)
            broker.create_topic(fail_unknown_topics.IMPORTANT, 1)
            assert sent.result(LATEST_S) is None
        assert values(broker, fail_unknown_topics.IMPORTANT) == [b"someMessage"]


def test_documented_commands_work() -> None:
    """Each prints its result, in the order of the page, with the topics of the broker in its first line."""
    page = (ROOT / "docs" / "how-to" / "run-examples.md").read_text()
    (block,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    start, _, *lines = block.splitlines()
    assert start.startswith(".venv/bin/chaffinch broker --config auto.create.topics.enable=false --topic ")
    ends = []
    with EmbeddedBroker(topics=re.findall(r"--topic (\S+)", start), config=CONFIG) as broker:
        for line in lines:
            command = line.replace("localhost:9092", broker.bootstrap_servers)
            command = command.replace(".venv/bin/python", sys.executable).replace(".venv/bin/chaffinch", f"{sys.executable} -m chaffinch")
            done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=LATEST_S * 3)
            ends.append((done.stderr or done.stdout).splitlines()[-1].split("UNKNOWN")[0])
    assert ends == [
        "orders: 3 written, 0 failed",
        "unheard-of: Metadata for unheard-of: ",
        "2 rows written to input-topic",
        "2 records read: 1 written to output-topic, 1 too large and dropped",
        "2 rows written to input",
        "committed 2 lines in all",
    ]


class TestAsyncio:
    def test_outcomes_are_in_order(self, broker: EmbeddedBroker) -> None:
        sent = [b"%d" % number for number in range(2_500)]
        outcomes = asyncio.run(asyncio_producer.main(broker.bootstrap_servers, "output-topic", sent))
        assert [outcome.offset for outcome in outcomes if isinstance(outcome, RecordMetadata)] == list(range(2_500))
        assert values(broker, "output-topic") == sent

    def test_summary_is_printed(self, broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "argv", ["asyncio_producer", "--bootstrap-server", broker.bootstrap_servers, "latest"])
        monkeypatch.delitem(sys.modules, "examples.asyncio_producer")
        for counts in ("3 written, 0 failed", "0 written, 3 failed"):
            runpy.run_module("examples.asyncio_producer", run_name="__main__")
            assert capsys.readouterr().out.splitlines()[-1] == f"latest: {counts}"
            broker.faults.add(api="Produce", error="TOPIC_AUTHORIZATION_FAILED")

    def test_errors_are_raised_where_awaited(self, broker: EmbeddedBroker) -> None:
        async def send() -> None:
            with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
                with pytest.raises(InvalidCompactionKeyException):
                    await producer.send("latest", b"v")
                assert (await producer.send("latest", b"v", key=b"k")).offset == 0
                # One that is done already, and one that is asked twice.
                future = producer.send("latest", b"v", key=b"k")
                assert future.result(LATEST_S) == await future == await future

        asyncio.run(send())

    def test_futures_are_awaited_in_another_loop(self, broker: EmbeddedBroker) -> None:
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer, ThreadPoolExecutor(2) as pool:

            async def send() -> int:
                return (await producer.send("output-topic", b"v")).offset

            assert sorted(pool.map(lambda _: asyncio.run(send()), range(2))) == [0, 1]


@pytest.mark.parametrize(
    ("program", "topics"),
    [("asyncio_producer", ["latest"]), ("fail_unknown_topics", ["latest"]), ("drop_large_records", []), ("transactional_word_count", [])],
)
def test_invalid_address_is_one_line(
    program: str, topics: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [program, "--bootstrap-server", "nowhere", *topics])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(ROOT / "examples" / f"{program}.py"), run_name="__main__")
    said = f"{stopped.value}\n{capsys.readouterr().out}"
    assert re.search(r"^stop: .*option bootstrap.servers cannot contain 'nowhere': each server must be host:port", said, re.MULTILINE)


@pytest.mark.parametrize(
    ("program", "option", "value", "says"),
    [("drop_large_records", "--count", value, "is not an integer of at least 1") for value in ("-1", "0", "1.5", "many", "²")]
    + [
        ("transactional_word_count", "--idle-seconds", value, "is not a number of seconds of at least 0") for value in ("-1", "nan", "long")
    ],
)
def test_invalid_number_is_one_line(
    program: str, option: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [program, "--bootstrap-server", "127.0.0.1:1", f"{option}={value}"])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(ROOT / "examples" / f"{program}.py"), run_name="__main__")
    assert capsys.readouterr().err.splitlines()[-1].endswith(f": error: argument {option}: {value!r} {says}")


@pytest.mark.parametrize(
    ("program", "call"), [("asyncio_producer", "chaffinch.AsyncProducer.start"), ("fail_unknown_topics", "chaffinch.Producer.send")]
)
def test_interruption_is_one_line(program: str, call: str, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [program, "--bootstrap-server", broker.bootstrap_servers, "latest"])
    monkeypatch.setattr(call, interrupt)
    with pytest.raises(SystemExit, match="interrupted: records that were not reported"):
        runpy.run_path(str(ROOT / "examples" / f"{program}.py"), run_name="__main__")
