"""How commands end when something comes between: a reader that goes away, Ctrl-C, a broker that is not there or says no."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chaffinch import EmbeddedBroker
from chaffinch.cli.produce_run import ProduceRun
from chaffinch.cli.rows.rejected import rejected_rows
from chaffinch.cli.rows.sources import Piece
from tests.cli.checks_records import pairs
from tests.cli.shell import Shell, run_bytes

COMMAND = [sys.executable, "-c", "from chaffinch.cli.main import main; main()"]
# Parquet shows nothing before its end: each request says how far those before it came.
PRINT_POSITION = """
from chaffinch.admin.reading import RecordReader
fetch = RecordReader._fetch
RecordReader._fetch = lambda reader, places: print(max(reader.positions.values()), flush=True) or fetch(reader, places)
"""
PRINT_SENT = """
from chaffinch.cli.produce_run import ProduceRun
send = ProduceRun._send
ProduceRun._send = lambda run, piece: send(run, piece) or print("sent", len(piece.table), flush=True)
"""
# The answer to what was sent is on its way, however slow this machine is.
WAIT_FOR_OUTCOMES = """
from chaffinch.producer import closing
closing.INTERRUPTED_SILENT_S = 60
"""
# More than any pipe holds.
ROWS = b"".join(b"%d %s\n" % (number, b"x" * 200) for number in range(50_000))


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"orders": {}, "lines": {}, "refused": {}, "early": {}}) as running:
        run_bytes(["produce", "--topic", "lines", "--bootstrap-server", running.bootstrap_servers], ROWS)
        yield running


@pytest.fixture
def shell(broker: EmbeddedBroker, tmp_path: Path) -> Shell:
    return Shell(broker.bootstrap_servers, tmp_path, "ends")


@contextmanager
def started(shell: Shell, *arguments: str, code: str = COMMAND[2]) -> Iterator[subprocess.Popen[bytes]]:
    command = [*COMMAND[:2], code, *arguments, "--bootstrap-server", shell.bootstrap_servers]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def test_closed_reader_ends_command_quietly(shell: Shell) -> None:
    with started(shell, "consume", "--topic", "lines") as process:
        assert pipe(process.stdout).readline().startswith(b"0 x")
        pipe(process.stdout).close()
        assert process.wait(timeout=60) == 1
        assert pipe(process.stderr).read() == b""


def test_list_with_closed_reader_ends_quietly(shell: Shell) -> None:
    with started(shell, "topics", "list") as process:
        pipe(process.stdout).close()
        assert process.wait(timeout=60) == 1
        assert pipe(process.stderr).read() == b""


def test_ctrl_c_while_following_commits_printed_records(shell: Shell) -> None:
    shell.ok("produce", "--topic", "orders", stdin=b"1\n2\n")
    with started(shell, "consume", "--topic", "orders", "--follow", "--from-beginning", "--group", "followers") as process:
        assert [pipe(process.stdout).readline() for _ in range(2)] == [b"1\n", b"2\n"]
        shell.ok("produce", "--topic", "orders", stdin=b"3\n")
        assert pipe(process.stdout).readline() == b"3\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert pipe(process.stderr).read() == b""
    assert shell.ok("consume", "--topic", "orders", "--group", "followers").out in ("", "3\n")


def test_sigterm_completes_the_file_and_commits_it(shell: Shell) -> None:
    shell.ok("topics", "create", "--topic", "ended")
    shell.ok("produce", "--topic", "ended", stdin=b"1\n2\n")
    file = shell.folder / "ended.parquet"
    arguments = ("consume", "--topic", "ended", "--follow", "--from-beginning", "--group", "enders", "--output", str(file))
    with started(shell, *arguments, code=PRINT_POSITION + COMMAND[2]) as process:
        assert b"2\n" in iter(pipe(process.stdout).readline, b"")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143
        assert pipe(process.stderr).read().decode() == f"chaffinch: interrupted: 2 records in {file}\n"
    assert pq.read_table(file)["value"].to_pylist() == [b"1", b"2"]
    assert shell.ok("consume", "--topic", "ended", "--group", "enders").out == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("consume --topic lines >&-", "stdout is closed: redirect it to /dev/null to discard the output"),
        ("topics list >&-", "stdout is closed: redirect it to /dev/null to discard the output"),
        ("produce --topic orders <&-", "stdin is closed: name a file, or redirect stdin"),
    ],
)
def test_closed_streams_are_reported_in_one_line(shell: Shell, words: str, says: str) -> None:
    name, _, rest = words.rpartition(" ")
    line = f'exec "$0" -c "$1" {name} --bootstrap-server {shell.bootstrap_servers} {rest}'
    done = subprocess.run(["sh", "-c", line, COMMAND[0], COMMAND[2]], stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr.decode()) == (1, f"chaffinch: {says}\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--help >/dev/full", "stdout: No space left on device"),
        ("errors 87 >/dev/full", "stdout: No space left on device"),
        ("topics list >/dev/full", "stdout: No space left on device"),
        ("errors --json >/dev/full", "stdout: No space left on device"),
        ("consume --topic lines >/dev/full", "stdout: No space left on device"),
        ("consume --topic lines --max-messages 1 >/dev/full", "stdout: No space left on device"),
        ("consume --topic lines --max-messages 1 --format parquet >/dev/full", "stdout: No space left on device"),
        ("consume --topic lines --output /dev/full >&2", "/dev/full: No space left on device"),
        ("consume --topic lines --format parquet --output /dev/full >&2", "/dev/full: No space left on device"),
        ("produce --topic refused --format json --rejected FULL.jsonl >&2 <<< {", "FULL.jsonl: No space left on device; nothing written"),
        (
            "produce --topic refused --format json --rejected FULL.parquet >&2 <<< {",
            "FULL.parquet: No space left on device; nothing written",
        ),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_full_disk_is_reported_with_the_file(shell: Shell, words: str, says: str, unbuffered: str) -> None:
    for name in ("FULL.jsonl", "FULL.parquet"):
        os.symlink("/dev/full", shell.folder / name)
    line = f'exec "$0" -c "$1" {words}'
    environment = {**os.environ, "CHAFFINCH_BOOTSTRAP_SERVER": shell.bootstrap_servers, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        ["bash", "-c", line, COMMAND[0], COMMAND[2]], stderr=subprocess.PIPE, timeout=60, cwd=shell.folder, env=environment
    )
    said = done.stderr.decode()
    reported = json.loads(said)["error"] if "--json" in words else said.removeprefix("chaffinch: ").removesuffix("\n")
    assert (done.returncode, reported) == (1, says)


def test_rejected_file_must_not_be_the_input(shell: Shell) -> None:
    file = shell.file("rows.jsonl", '{"value":"1"}\n')
    for name, link in (("rows.jsonl", None), ("soft.jsonl", os.symlink), ("hard.jsonl", os.link)):
        other = str(shell.folder / name)
        if link:
            link(file, other)
        shell.refused("produce", "--topic", "refused", "--rejected", other, file, says="is the input file", status=2)
    with open(file, "rb") as stdin:
        line = [*COMMAND, "produce", "--topic", "refused", "--rejected", file, "--bootstrap-server", shell.bootstrap_servers]
        assert subprocess.run(line, stdin=stdin, stderr=subprocess.DEVNULL, timeout=60).returncode == 2
    assert Path(file).read_text() == '{"value":"1"}\n'
    assert pairs(shell, "refused") == []


def test_typed_lines_are_sent_at_once(shell: Shell) -> None:
    shell.ok("topics", "create", "--topic", "typed")
    reading = ("consume", "--topic", "typed", "--follow", "--from-beginning", "--max-messages", "1")
    with started(shell, "produce", "--topic", "typed", code=WAIT_FOR_OUTCOMES + COMMAND[2]) as process, started(shell, *reading) as reader:
        pipe(process.stdin).write(b"typed\n")
        pipe(process.stdin).flush()
        assert pipe(reader.stdout).readline() == b"typed\n"
        assert reader.wait(timeout=60) == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        text = "chaffinch: interrupted: 1 row written (input lines 1 to 1), later ones were not sent\n"
        assert pipe(process.stderr).read().decode() == text


@pytest.mark.parametrize(
    ("number", "options", "says"),
    [
        (signal.SIGINT, (), "interrupted: 2 rows written (input lines 1 to 2), later ones were not sent"),
        (signal.SIGTERM, (), "interrupted: 2 rows written (input lines 1 to 2), later ones were not sent"),
        (signal.SIGINT, ("--transactional-id", "cut"), "interrupted: transaction aborted, nothing written"),
        (signal.SIGTERM, ("--transactional-id", "cut"), "interrupted: transaction aborted, nothing written"),
    ],
)
def test_interrupted_produce_reports_progress(shell: Shell, number: signal.Signals, options: tuple[str, ...], says: str) -> None:
    shell.ok("topics", "create", "--topic", "interrupted")
    with started(shell, "produce", "--topic", "interrupted", *options, code=WAIT_FOR_OUTCOMES + PRINT_SENT + COMMAND[2]) as process:
        pipe(process.stdin).write(b"1\n2\n")
        pipe(process.stdin).flush()
        assert pipe(process.stdout).readline() == b"sent 2\n"
        process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number
        assert pipe(process.stderr).read().decode() == f"chaffinch: {says}\n"
    assert (pairs(shell, "interrupted") == []) == bool(options)
    shell.ok("topics", "delete", "--topic", "interrupted")


@pytest.mark.parametrize("name", ["rejected.jsonl", "rejected.parquet"])
def test_rows_rejected_after_ctrl_c_are_in_the_file(shell: Shell, name: str) -> None:
    topic, file = f"kept-{name}", shell.folder / name
    shell.ok("topics", "create", "--topic", topic, "--config", "cleanup.policy=compact")
    arguments = ("produce", "--topic", topic, "--format", "json", "--rejected", str(file))
    with started(shell, *arguments, code=WAIT_FOR_OUTCOMES + PRINT_SENT + COMMAND[2]) as process:
        pipe(process.stdin).write(b'{"key":"k","value":"1"}\n{"value":"2"}\n')
        pipe(process.stdin).flush()
        assert pipe(process.stdout).readline() == b"sent 2\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        text = "chaffinch: interrupted: 1 row written, 1 rejected (input lines 1 to 2), later ones were not sent\n"
        assert pipe(process.stderr).read().decode() == text
    found = pq.read_table(file).to_pylist() if file.suffix == ".parquet" else [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["row"], row["error_name"]) for row in found] == [(2, "INVALID_COMPACTION_KEY")]


INTERRUPT_BEFORE_CONNECT = """
from chaffinch.admin import topics
def interrupt(*_):
    raise KeyboardInterrupt
topics.find_topics = interrupt
"""
INTERRUPT_AT_PRODUCER = """
from chaffinch.cli import produce
def interrupt(*_):
    raise SystemExit(130)
produce.Producer = interrupt
"""
INTERRUPT_AFTER_TWO = """
from chaffinch.cli.old_format_run import OldFormatRun
send = OldFormatRun._send
def interrupt(run, piece):
    if run._written >= 2:
        raise KeyboardInterrupt
    return send(run, piece)
OldFormatRun._send = interrupt
"""


@pytest.mark.parametrize(
    ("code", "options", "says"),
    [
        (INTERRUPT_BEFORE_CONNECT, (), "interrupted: nothing written"),
        (INTERRUPT_AT_PRODUCER, (), "interrupted: nothing written"),
        (INTERRUPT_BEFORE_CONNECT, ("--message-format", "1"), "interrupted: nothing written"),
        (
            INTERRUPT_AFTER_TWO,
            ("--message-format", "1", "--format", "arrow"),
            "interrupted: 2 rows written (input rows 1 to 2), rows 3 to 4 may be written in part, later ones were not sent",
        ),
    ],
    ids=["connecting", "producer", "connecting-old", "old"],
)
def test_early_interruption_and_old_formats_report_progress(
    shell: Shell, code: str, options: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.arrow"
    table = pa.table({"value": [b"v"] * 6})
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    arguments = ("produce", "--topic", "early", *options, *([str(path)] if "arrow" in options else []))
    with started(shell, *arguments, code=code + COMMAND[2]) as process:
        pipe(process.stdin).close()
        assert process.wait(timeout=60) == 130
        assert pipe(process.stderr).read().decode() == f"chaffinch: {says}\n"


def test_interrupted_produce_names_lines_without_outcome() -> None:
    class InterruptedProducer:
        """A producer that is interrupted, with a table without an outcome, while it takes the third."""

        outcomes: ClassVar = [Future[Any](), Future[Any]()]

        def send_table(self, topic: str, table: pa.Table) -> Future[Any]:
            if self.outcomes:
                return self.outcomes.pop(0)
            raise KeyboardInterrupt

    def piece(*numbers: int) -> Piece:
        return Piece(pa.table({"value": [b"v"] * len(numbers)}), np.array(numbers, dtype=np.int64), [], 0)

    written = SimpleNamespace(written=2, rejected=pa.table({"row": []}))
    InterruptedProducer.outcomes[0].set_result(written)
    with rejected_rows("t", "line", None) as bad:
        run = ProduceRun(InterruptedProducer(), "t", bad, lambda done: None)  # type: ignore[arg-type]
        with pytest.raises(KeyboardInterrupt):
            run.send(iter([piece(1, 2), piece(3), piece(4, 5)]))
        run.collect_done()
        assert (
            run.describe_progress() == "2 rows written (input lines 1 to 2), lines 3 to 5 may be written in part, later ones were not sent"
        )


def test_unreachable_broker_is_named_at_once(tmp_path: Path) -> None:
    options = tmp_path / "client.properties"
    options.write_text("bootstrap.servers=127.0.0.1:1\ndefault.api.timeout.ms=300\n")
    for command in (["topics", "list"], ["groups", "list"], ["transactions", "list"], ["consume", "--topic", "t"]):
        status, out, err = run_bytes([*command, "--command-config", str(options)])
        (line,) = err.splitlines()
        assert (status, out) == (1, b"")
        assert "no broker reachable at 127.0.0.1:1" in line


def test_broker_refusals_are_one_line(broker: EmbeddedBroker, shell: Shell) -> None:
    for api, error, command in [
        ("Metadata", "TOPIC_AUTHORIZATION_FAILED", ("topics", "describe", "--topic", "refused")),
        ("Metadata", "UNKNOWN_SERVER_ERROR", ("topics", "list")),
        ("CreateTopics", "POLICY_VIOLATION", ("topics", "create", "--topic", "refused-2")),
        ("ListOffsets", "TOPIC_AUTHORIZATION_FAILED", ("consume", "--topic", "refused")),
        ("Fetch", "TOPIC_AUTHORIZATION_FAILED", ("consume", "--topic", "lines")),
    ]:
        broker.faults.add(api=api, error=error, count=1)
        shell.refused(*command, says=error)
        broker.faults.clear()


def test_refused_produce_rejects_every_row(broker: EmbeddedBroker, shell: Shell) -> None:
    broker.faults.add(api="Produce", error="TOPIC_AUTHORIZATION_FAILED", count=1)
    file = str(shell.folder / "rejected.jsonl")
    shell.refused("produce", "--topic", "refused", "--rejected", file, says="2 rows rejected, 0 written", stdin=b"a\nb\n")
    rows = [json.loads(line) for line in (shell.folder / "rejected.jsonl").read_text().splitlines()]
    assert [(row["row"], row["value"], row["error_name"]) for row in rows] == [
        (1, "a", "TOPIC_AUTHORIZATION_FAILED"),
        (2, "b", "TOPIC_AUTHORIZATION_FAILED"),
    ]
    assert pairs(shell, "refused") == []


def test_changed_leaders_are_looked_up_again(broker: EmbeddedBroker, shell: Shell) -> None:
    for api in ("ListOffsets", "Fetch"):
        broker.faults.add(api=api, error="NOT_LEADER_OR_FOLLOWER", count=2)
    assert len(shell.ok("consume", "--topic", "lines", "--max-messages", "10").lines) == 10


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["topics", "list"], "--bootstrap-server HOST:PORT is missing"),
        (["topics", "list", "--bootstrap-server", "nowhere"], "host:port"),
        (["topics", "list", "--bootstrap-server", "a:1", "--command-config", "/nowhere"], "/nowhere: No such file"),
    ],
    ids=["no server", "no port", "no file"],
)
def test_bootstrap_server_is_required(arguments: list[str], says: str) -> None:
    status, out, err = run_bytes(arguments)
    (line,) = err.splitlines()
    assert (status, out) == (2, b"")
    assert says in line


def test_command_line_overrides_environment(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAFFINCH_BOOTSTRAP_SERVER", shell.bootstrap_servers)
    assert run_bytes(["topics", "list"])[0] == 0
    monkeypatch.setenv("CHAFFINCH_BOOTSTRAP_SERVER", "127.0.0.1:1")
    assert shell("topics", "list").status == 0


def test_option_names_in_config_file_are_checked(shell: Shell) -> None:
    file = shell.file("client.properties", "request.timeouts.ms=5\n")
    shell.refused(
        "topics", "list", "--command-config", file, says=f"--command-config {file}:1: unknown option 'request.timeouts.ms'", status=2
    )
    shell.refused("topics", "list", "--command-config", file, says="the nearest known one is 'request.timeout.ms'", status=2)
    shell.refused("produce", "--topic", "orders", "--command-config", shell.file("p.properties", "linger=5\n"), says="linger.ms", status=2)
    shell.ok("consume", "--topic", "orders", "--command-config", shell.file("c.properties", "isolation.level=read_uncommitted\n"))
