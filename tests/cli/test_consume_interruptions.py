"""How `chaffinch consume` ends when something comes between: what its file has then, and what its group has committed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chaffinch import EmbeddedBroker
from tests.cli.shell import Shell

RUN = "from chaffinch.cli.main import main; main()"
# Ctrl-C, or another signal, in the midst of a write, so many times; not before so many writes.
SIGNALLED_WRITE = """
import signal
from {module} import {sink}
write, calls = {sink}.{method}, []
def interrupted(*arguments):
    calls.append(1)
    for _ in range({times} if len(calls) > {good} else 0):
        signal.raise_signal(signal.{name})
    return write(*arguments)
{sink}.{method} = interrupted
"""
# The records of one partition come, and then this.
INTERRUPTED_FETCH = """
from chaffinch.admin.reading import RecordReader
fetch, calls = RecordReader._fetch, []
def interrupted(reader, places):
    calls.append(1)
    if len(calls) > {answers}:
        {then}
    return fetch(reader, places)
RecordReader._fetch = interrupted
"""
CTRL_C = "raise KeyboardInterrupt"
PARTITIONS = ['{"partition":0}', '{"partition":1}']
TEXT_THEN_BYTES = b'{"value":"text","partition":0}\n{"value":"/w==","value_encoding":"base64","partition":1}\n'
REFUSED = "from chaffinch.errors import KafkaException; raise KafkaException('refused')"
SMALL_FILES = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"orders": {}, "large": {}, "two": {"partitions": 2}}) as running:
        shell = Shell(running.bootstrap_servers, Path(), "")
        shell.ok("produce", "--topic", "orders", stdin=b"1\n2\n")
        shell.ok("produce", "--topic", "large", stdin=b"".join(b"%d\n" % number for number in range(1000)))
        shell.ok("produce", "--topic", "two", "--format", "json", stdin=TEXT_THEN_BYTES)
        yield running


@pytest.fixture
def shell(broker: EmbeddedBroker, tmp_path: Path) -> Shell:
    return Shell(broker.bootstrap_servers, tmp_path, tmp_path.name)


def write_rows(path: Path, rows: list[str]) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"value": pa.array([row.encode() for row in rows])}), path)
    else:
        path.write_text("".join(f'"{text}"\n' for text in ["value", *rows]))


def rows_of(path: Path) -> list[str]:
    if path.suffix == ".parquet":
        return [value.decode() for value in pq.read_table(path)["value"].to_pylist()]
    return [line.strip('"') for line in path.read_text().splitlines()[1:]]


def consume(shell: Shell, code: str, path: Path, *options: str, topic: str = "orders") -> tuple[int, str]:
    """Status and stderr of one that writes the values to a file."""
    command = [sys.executable, "-c", code + RUN, "consume", "--topic", topic, "--output", str(path), "--fields", "value", *options]
    done = subprocess.run([*command, "--bootstrap-server", shell.bootstrap_servers], capture_output=True, timeout=60, text=True)
    return done.returncode, done.stderr


@pytest.fixture(params=["orders.parquet", "orders.csv"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file with a row from an earlier run, alone in its folder."""
    folder = tmp_path / "files"
    folder.mkdir()
    write_rows(folder / request.param, ["earlier"])
    return folder / str(request.param)


def signalled_write(path: Path, name: str, times: int, *, good: int = 0) -> str:
    module, sink, method = (
        ("pyarrow.parquet", "ParquetWriter", "write_table")
        if path.suffix == ".parquet"
        else ("chaffinch.cli.rows.sinks", "CsvSink", "write")
    )
    return SIGNALLED_WRITE.format(module=module, sink=sink, method=method, name=name, times=times, good=good)


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_signal_during_a_write_waits_for_it(shell: Shell, path: Path, name: str, status: int) -> None:
    said = consume(shell, signalled_write(path, name, 1), path, "--group", shell.name("writers"))
    assert said == (status, f"chaffinch: interrupted: 2 records in {path}\n")
    assert rows_of(path) == ["1", "2"]
    assert shell.ok("consume", "--topic", "orders", "--group", shell.name("writers")).out == ""


def test_second_signal_ends_at_once_and_keeps_the_old_file(shell: Shell, path: Path) -> None:
    said = consume(shell, signalled_write(path, "SIGINT", 2), path, "--group", shell.name("hasty"))
    assert said == (130, "chaffinch: interrupted: nothing written\n")
    assert rows_of(path) == ["earlier"]
    assert os.listdir(path.parent) == [path.name]
    assert shell.ok("consume", "--topic", "orders", "--group", shell.name("hasty")).lines == ["1", "2"]


def test_second_signal_leaves_no_partial_file(shell: Shell) -> None:
    path, group = shell.folder / "two.csv", shell.name("torn")
    assert consume(shell, signalled_write(path, "SIGINT", 2, good=1), path, "--group", group, topic="two")[0] == 130
    assert not path.exists()
    assert shell.ok("consume", "--topic", "two", "--group", group, "--json", "--fields", "partition").lines == PARTITIONS


def test_unwritable_record_keeps_records_before_it(shell: Shell) -> None:
    path, group = shell.folder / "two.csv", shell.name("texts")
    status, err = consume(shell, "", path, "--group", group, topic="two")
    assert (status, "two-1, offset 0: column value has bytes that are not UTF-8" in err) == (1, True)
    assert err.endswith(f"; 1 record in {path}; group {group!r} keeps its offset in two-1\n")
    assert rows_of(path) == ["text"]
    assert shell.ok("consume", "--topic", "two", "--group", group, "--json", "--fields", "partition").lines == PARTITIONS[1:]


def test_unwritable_record_reports_group_position(shell: Shell) -> None:
    path, group, topic = shell.folder / "mixed.csv", shell.name("mixed"), shell.name("mixed")
    shell.ok("topics", "create", "--topic", topic, "--partitions", "2")
    rows = b'{"value":"a","partition":1}\n{"value":"b","partition":1}\n{"value":"/w==","value_encoding":"base64","partition":1}\n'
    shell.ok("produce", "--topic", topic, "--format", "json", stdin=rows)
    status, err = consume(shell, "", path, "--group", group, topic=topic)
    assert (status, err.endswith(f"; 2 records in {path}; group {group!r} continues at {topic}-1, offset 2\n")) == (1, True)
    status, err = consume(shell, "", path, "--group", group, topic=topic)
    assert (status, err.endswith(f"; nothing written; group {group!r} keeps its offset in {topic}-1\n")) == (1, True)
    assert rows_of(path) == ["a", "b"]


def test_ctrl_c_between_writes_keeps_written_records(shell: Shell, path: Path) -> None:
    said = consume(
        shell, INTERRUPTED_FETCH.format(answers=1, then=CTRL_C), path, "--follow", "--from-beginning", "--group", shell.name("followers")
    )
    assert said == (130, f"chaffinch: interrupted: 2 records in {path}\n")
    assert rows_of(path) == ["1", "2"]
    assert os.listdir(path.parent) == [path.name]
    assert shell.ok("consume", "--topic", "orders", "--group", shell.name("followers")).out == ""


def test_followed_file_grows_in_place(shell: Shell) -> None:
    """As `tail -f` reads it."""
    path = shell.folder / "orders.csv"
    code = INTERRUPTED_FETCH.format(answers=1, then=f"print(open({str(path)!r}).read(), file=__import__('sys').stderr); {CTRL_C}")
    said = consume(shell, code, path, "--follow", "--from-beginning")
    assert said == (130, f'"value"\n"1"\n"2"\n\nchaffinch: interrupted: 2 records in {path}\n')


@pytest.mark.parametrize(
    ("then", "said"),
    [(CTRL_C, (130, "chaffinch: interrupted: nothing written\n")), (REFUSED, (1, "chaffinch: refused\n"))],
    ids=["Ctrl-C", "error"],
)
@pytest.mark.parametrize("is_there", [True, False])
def test_consume_without_records_keeps_the_old_file(shell: Shell, path: Path, then: str, said: tuple[int, str], is_there: bool) -> None:
    if not is_there:
        path.unlink()
    assert consume(shell, INTERRUPTED_FETCH.format(answers=0, then=then), path) == said
    assert os.listdir(path.parent) == [path.name] * is_there
    assert not is_there or rows_of(path) == ["earlier"]


def test_error_keeps_written_records(shell: Shell, path: Path) -> None:
    code = INTERRUPTED_FETCH.format(answers=1, then=REFUSED)
    said = consume(shell, code, path, "--follow", "--from-beginning", "--group", shell.name("refused"))
    assert said == (1, "chaffinch: refused\n")
    assert rows_of(path) == ["1", "2"]
    assert shell.ok("consume", "--topic", "orders", "--group", shell.name("refused")).out == ""


def test_empty_topic_writes_an_empty_file(shell: Shell, path: Path) -> None:
    assert consume(shell, "", path, "--offset", "latest") == (0, "")
    assert rows_of(path) == []


def test_full_disk_keeps_the_old_file_and_commits_nothing(shell: Shell, path: Path) -> None:
    said = consume(shell, SMALL_FILES, path, "--group", shell.name("full"), topic="large")
    assert said == (1, f"chaffinch: {path}: File too large\n")
    assert rows_of(path) == ["earlier"]
    assert os.listdir(path.parent) == [path.name]
    assert len(shell.ok("consume", "--topic", "large", "--group", shell.name("full")).lines) == 1000


def test_replaced_file_keeps_symlink_and_mode(shell: Shell, path: Path) -> None:
    path.chmod(0o640)
    link = shell.folder / f"link{path.suffix}"
    link.symlink_to(path)
    assert consume(shell, "", link) == (0, "")
    assert link.is_symlink()
    assert rows_of(path) == ["1", "2"]
    assert path.stat().st_mode & 0o777 == 0o640


def test_missing_directory_is_reported_with_the_given_path(shell: Shell) -> None:
    file = str(shell.folder / "nowhere" / "orders.csv")
    shell.refused("consume", "--topic", "orders", "--output", file, says=f"chaffinch: {file}: No such file or directory")


def test_dash_is_stdout(shell: Shell) -> None:
    assert shell.ok("consume", "--topic", "orders", "--output", "-").out == "1\n2\n"
    assert not Path("-").exists()


def test_pipe_is_written_directly(shell: Shell) -> None:
    fifo = shell.folder / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE) as reader:
        shell.ok("consume", "--topic", "orders", "--output", str(fifo))
        assert reader.communicate(timeout=60)[0] == b"1\n2\n"


# The second write is more than a pipe takes, and says that it begins.
WRITE_MUCH = """
import sys
from chaffinch.cli.rows import sinks
write, calls = sinks._write_all, []
def write_much(out, lines):
    calls.append(1)
    if len(calls) == 1:
        return write(out, lines)
    print("writing", file=sys.stderr, flush=True)
    out.write(bytes(1 << 20))
sinks._write_all = write_much
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_blocked_write_ends_at_first_signal(shell: Shell, number: signal.Signals, status: int) -> None:
    """Bytes in the pipe count as written; a write that does not fit would block until the other end reads."""
    options = ["--topic", "two", "--group", shell.name("unread"), "--json", "--fields", "partition"]
    command = [sys.executable, "-c", WRITE_MUCH + RUN, "consume", *options, "--bootstrap-server", shell.bootstrap_servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == b"writing\n"
            process.send_signal(number)
            assert process.wait(timeout=60) == status
            assert process.stderr.read() == b""
        finally:
            process.kill()
    assert shell.ok("consume", *options).lines == PARTITIONS[1:]


def test_ctrl_c_while_writing_rejected_row_leaves_readable_file(shell: Shell) -> None:
    shell.ok("topics", "create", "--topic", "compact", "--config", "cleanup.policy=compact")
    file = shell.folder / "rejected.parquet"
    command = [sys.executable, "-c", signalled_write(file, "SIGINT", 1) + RUN, "produce", "--topic", "compact", "--rejected", str(file)]
    done = subprocess.run([*command, "--bootstrap-server", shell.bootstrap_servers], input=b"keyless\n", stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr.count(b"\n")) == (130, 1)
    assert pq.read_table(file)["value"].to_pylist() == [b"keyless"]


@pytest.mark.parametrize(("suffix", "left"), [("parquet", PARTITIONS), ("csv", PARTITIONS[1:])])
def test_partial_write_to_pipe_commits_what_the_format_can_hold(shell: Shell, suffix: str, left: list[str]) -> None:
    """Half a file of Parquet is nothing."""
    fifo, group = shell.folder / f"fifo.{suffix}", shell.name(suffix)
    os.mkfifo(fifo)
    code = signalled_write(fifo, "SIGINT", 1, good=1) + "from chaffinch.cli.rows import sinks; sinks.GROUP_ROWS = 1\n"
    with subprocess.Popen(["cat", fifo], stdout=subprocess.DEVNULL):
        assert consume(shell, code, fifo, "--group", group, "--format", suffix, topic="two")[0] == 130
    assert shell.ok("consume", "--topic", "two", "--group", group, "--json", "--fields", "partition").lines == left


def test_ctrl_c_while_opening_sink_closes_it_before_its_file(shell: Shell) -> None:
    code = SIGNALLED_WRITE.format(module="pyarrow.parquet", sink="ParquetWriter", method="__init__", name="SIGINT", times=1, good=0)
    code = code.replace("    for _", "    write(*arguments)\n    for _").replace("    return write(*arguments)\n", "")
    path = shell.folder / "begun.parquet"
    assert consume(shell, code, path) == (130, "chaffinch: interrupted: nothing written\n")


def test_second_ctrl_c_ends_a_slow_commit(shell: Shell, path: Path) -> None:
    hangs = "from chaffinch.cli import consume as c; c._commit = lambda *_: print('committing') or __import__('signal').raise_signal(2) or "
    code = f"{hangs}print('committed')\n" + INTERRUPTED_FETCH.format(answers=1, then=CTRL_C)
    command = [sys.executable, "-c", code + RUN, "consume", "--topic", "orders", "--output", str(path), "--from-beginning", "--follow"]
    done = subprocess.run([*command, "--bootstrap-server", shell.bootstrap_servers], capture_output=True, timeout=60, text=True)
    assert (done.returncode, done.stdout) == (130, "committing\n")
