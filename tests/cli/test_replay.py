"""`chaffinch replay` without Spark: what it refuses before it starts one, and what it prints."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from chaffinch.cli import replay as command
from chaffinch.runtime.sockets import SocketFailed
from chaffinch.spark.replay import replaying, writing
from chaffinch.spark.replay.replaying import ReplayPlan, ReplayReport
from tests.cli.shell import run_bytes

SERVER = ("--bootstrap-server", "broker:9092")
REPORT = ReplayReport(read=3, written=1, still_rejected={"INVALID_RECORD": 2}, examples=("topic orders: INVALID_RECORD: too old",))


class FakeReplay:
    """The plans that were to be carried out; each comes to `report`."""

    def __init__(self) -> None:
        self.plans: list[ReplayPlan] = []
        self.report = REPORT

    def __call__(self, plan: ReplayPlan) -> ReplayReport:
        self.plans.append(plan)
        return self.report


@pytest.fixture
def fake_replay(monkeypatch: pytest.MonkeyPatch) -> FakeReplay:
    fake_replay = FakeReplay()
    monkeypatch.setattr(command, "_run_replay", fake_replay)
    return fake_replay


def run(*arguments: str) -> tuple[int, str, str]:
    status, out, err = run_bytes(["replay", *arguments], b"")
    return status, out.decode(), err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--bootstrap-server HOST:PORT is missing"),
        (SERVER, "give --topic, --parquet, or both for files whose letters are also in the topic"),
        ((*SERVER, "--topic", "d", "--repair", "key"), "--repair 'key': expected name=value"),
        ((*SERVER, "--topic", "d", "--repair", "keys=1"), "--repair keys=...: a row has no such column; its columns are: key, value"),
        ((*SERVER, "--topic", "d", "--repair", "topic='x'", "--to", "y"), "the topic is given twice: by --to and by --repair topic=..."),
        ((*SERVER, "--topic", "d", "--to", "d"), "--to cannot be d: that is the topic that the letters are read from"),
        ((*SERVER, "--topic", "d", "--token", " "), "--token is empty"),
        ((*SERVER, "--topic", "d", "--repair", "key="), "--repair key= is empty: give it an SQL expression"),
        ((*SERVER, "--topic", "d", "--token", "x" * 2000), "it must be printable characters, at most 1000 bytes"),
        ((*SERVER, "--topic", "d", "--to", ""), "--to is empty"),
        ((*SERVER, "--topic", " "), "--topic is empty"),
        (
            (*SERVER, "--topic", "d", "--only", "INVALID_RECRD"),
            "--only 'INVALID_RECRD': no error code is named 'INVALID_RECRD'; the nearest is",
        ),
        ((*SERVER, "--topic", "d", "--where", " "), "--where is empty: give it an SQL condition, or leave it out"),
        ((*SERVER, "--parquet", ""), "--parquet is empty: give the location of the dead letters"),
    ],
)
def test_invalid_arguments_are_refused_before_spark_starts(fake_replay: FakeReplay, arguments: tuple[str, ...], says: str) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert says in err
    assert fake_replay.plans == []


def test_options_become_a_replay_plan(fake_replay: FakeReplay, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("security.protocol=SSL\n")
    run(*SERVER, "--command-config", str(tmp_path / "f"), "--topic", "d", "--to", "t", "--repair", "key = if(a=b, 1, 2)", "--token", "n")
    (plan,) = fake_replay.plans
    assert plan == ReplayPlan(
        client={"kafka.security.protocol": "SSL", "kafka.bootstrap.servers": "broker:9092"},
        topic="d", to="t", repairs={"key": "if(a=b, 1, 2)"}, token="n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "servers"), [((), "file:9092"), (SERVER, "broker:9092")], ids=["in the file", "on the command line, which wins"]
)
def test_file_options_with_underscores_are_accepted(fake_replay: FakeReplay, tmp_path: Path, line: tuple[str, ...], servers: str) -> None:
    (tmp_path / "f").write_text("bootstrap_servers=file:9092\nsecurity_protocol=SSL\n")
    assert run(*line, "--command-config", str(tmp_path / "f"), "--topic", "d")[2] == ""
    (plan,) = fake_replay.plans
    assert plan.client == {"kafka.bootstrap.servers": servers, "kafka.security.protocol": "SSL"}


def test_writing_options_are_read_from_the_file(fake_replay: FakeReplay, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "f").write_text("compression.type=zstd\nmax_request_size=5000000\nlinger.ms=5\nclient.id=again\n")
    run(*SERVER, "--command-config", str(tmp_path / "f"), "--topic", "d")
    assert [record.message for record in caplog.records] == ["option linger.ms is known to Apache Kafka and without effect here"]
    (plan,) = fake_replay.plans
    assert plan.client == {"kafka.bootstrap.servers": "broker:9092", "kafka.client.id": "again"}
    assert plan.writing == {"kafka.compression.type": "zstd", "kafka.max.request.size": "5000000"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("transactional.id=mine", "a replay derives the names of its transactions from the letters or the token"),
        ("acks=1", "option acks cannot be '1': it must be one of all, -1"),
        ("compression.typ=zstd", "the nearest known one is 'compression.type'"),
    ],
)
def test_invalid_writing_options_are_refused(fake_replay: FakeReplay, tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "f").write_text(line)
    status, out, err = run(*SERVER, "--command-config", str(tmp_path / "f"), "--topic", "d")
    assert (status, out, fake_replay.plans) == (2, "", [])
    assert says in err


def test_report_is_printed(fake_replay: FakeReplay) -> None:
    lines = "d: 3 dead letters read: 1 {}, 2 {} (2 INVALID_RECORD)\n  topic orders: INVALID_RECORD: too old\n"
    assert run(*SERVER, "--topic", "d") == (1, lines.format("written now", "still rejected"), "")
    assert run(*SERVER, "--topic", "d", "--dry-run") == (1, lines.format("would be written", "would still be rejected"), "")
    fake_replay.report = ReplayReport(read=1, written=1)
    assert run(*SERVER, "--parquet", "/p") == (0, "/p: 1 dead letter read: 1 written now, 0 still rejected\n", "")
    fake_replay.report = ReplayReport(is_repetition=True)
    assert run(*SERVER, "--topic", "d", "--token", "n") == (0, "d: nothing written: already replayed under the token n\n", "")


def test_json_output(fake_replay: FakeReplay) -> None:
    status, out, _ = run(*SERVER, "--topic", "d", "--json")
    assert (status, json.loads(out)) == (1, {
        "source": "d", "dry_run": False, "repetition": False, "read": 3, "written": 1, "written_before": 0,
        "written_before_by": {}, "not_selected": 0, "dropped": {},
        "still_rejected": {"INVALID_RECORD": 2},
        "examples": ["topic orders: INVALID_RECORD: too old"],
    })  # fmt: skip


def test_error_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise command_error

    from chaffinch.errors.codes import Group
    from chaffinch.spark.refusals import Refusal

    command_error = Refusal(Group.INVALID_CONFIGURATION, "UNKNOWN_TOPIC_OR_PARTITION", "topic 'd' (option subscribe) does not exist")
    monkeypatch.setattr(replaying, "check_cluster", lambda plan: None)
    monkeypatch.setattr(command, "_quiet_session", fail)
    status, out, err = run(*SERVER, "--topic", "d")
    assert (status, out) == (1, "")
    assert err == "chaffinch: KAFKA[InvalidConfiguration] UNKNOWN_TOPIC_OR_PARTITION: topic 'd' (option subscribe) does not exist\n"


@pytest.mark.parametrize(
    ("interruption", "notes", "status", "says"),
    [
        (KeyboardInterrupt(), (), 130, "nothing was written"),
        (SystemExit(143), (), 143, "nothing was written"),
        (KeyboardInterrupt(), ("all letters replayed so far are written",), 130, "all letters replayed so far are written"),
        (KeyboardInterrupt(), ("b is written", "those before b are replayed"), 130, "b is written; those before b are replayed"),
    ],
)
def test_interruption_reports_what_is_written(
    monkeypatch: pytest.MonkeyPatch, interruption: BaseException, notes: tuple[str, ...], status: int, says: str
) -> None:
    def interrupted(plan: ReplayPlan) -> None:
        for note in notes:
            interruption.add_note(note)
        raise interruption

    monkeypatch.setattr(command, "_run_replay", interrupted)
    assert run(*SERVER, "--topic", "d") == (status, "", f"chaffinch: interrupted: {says}\n")


def test_failing_spark_stop_does_not_hide_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a call that SIGTERM has interrupted Py4J takes the answer for that of the next one."""

    def interrupted(spark: object, plan: ReplayPlan) -> None:
        raise SystemExit(143)

    monkeypatch.setattr("chaffinch.spark.session", lambda *_, **__: Mock(stop=Mock(side_effect=RuntimeError("no such class"))))
    monkeypatch.setattr(replaying, "check_cluster", lambda plan: None)
    monkeypatch.setattr(replaying, "replay_dead_letters", interrupted)
    assert run(*SERVER, "--topic", "d") == (143, "", "chaffinch: interrupted: nothing was written\n")


@pytest.mark.parametrize(
    ("more", "says"), [((), "replaying the dead letters of d"), (("--dry-run",), "replaying the dead letters of d (dry run)")]
)
def test_status_line_reports_each_phase(monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], says: str) -> None:
    """From before Spark starts, whose stderr is led elsewhere, to the result."""
    statuses = []

    @contextmanager
    def status_line(what: str) -> Iterator[Callable[[str], None]]:
        statuses.append(what)
        yield statuses.append
        statuses.append("the end")

    @contextmanager
    def quiet_session() -> Iterator[None]:
        statuses.append("Spark is there")
        yield None

    monkeypatch.setattr(command, "status_line", status_line)
    monkeypatch.setattr(command, "_quiet_session", quiet_session)
    monkeypatch.setattr(replaying, "check_cluster", lambda plan: None)
    monkeypatch.setattr(replaying, "replay_dead_letters", lambda spark, plan: REPORT)
    assert run(*SERVER, "--topic", "d", *more)[0] == 1
    assert statuses == ["starting Spark", "Spark is there", says, "the end"]


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(command, "_quiet_session", fail)


def test_unknown_host_fails_at_once(no_spark: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolved(host: str, port: int) -> list[object]:
        if host == "known":
            return []
        raise SocketFailed("name not known: no such host")

    monkeypatch.setattr(replaying, "resolve", resolved)
    status, out, err = run("--bootstrap-server", "nowhere:9092,elsewhere:9092", "--topic", "d")
    assert (status, out) == (2, "")
    assert err == (
        "chaffinch: option bootstrap.servers cannot be 'nowhere:9092,elsewhere:9092': "
        "nowhere: name not known: no such host; elsewhere: name not known: no such host\n"
    )
    monkeypatch.setattr(writing, "cluster_client", lambda client: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # One that is known is asked.
        replaying.check_cluster(ReplayPlan(client={"kafka.bootstrap.servers": "nowhere:9092,known:9092"}, topic="d"))


def test_silent_broker_fails_before_spark_starts(no_spark: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "CHECK_TIMEOUT_MS", 100)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # It does not listen, and no other process gets the port.
        address = "{}:{}".format(*taken.getsockname())
        status, out, err = run("--bootstrap-server", address, "--topic", "d")
    assert (status, out) == (1, "")
    assert err.startswith("chaffinch: KAFKA[Retriable] REQUEST_TIMED_OUT: ")
    assert f"no broker reachable at {address}" in err
    assert err.endswith("run it again\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "report", "says"),
    [
        ((), REPORT, "all letters replayed so far are written"),
        (("--dry-run",), REPORT, "nothing was written"),
        (("--token", "t"), ReplayReport(is_repetition=True), "nothing was written"),
        (("--token", "t"), ReplayReport(is_repetition=True) + REPORT, "all letters replayed so far are written"),
        ((), ReplayReport(), "nothing was written"),
    ],
)
def test_interruption_while_spark_stops_reports_what_is_written(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], report: ReplayReport, says: str
) -> None:
    monkeypatch.setattr("chaffinch.spark.session", lambda *_, **__: Mock(stop=Mock(side_effect=KeyboardInterrupt)))
    monkeypatch.setattr(replaying, "check_cluster", lambda plan: None)
    monkeypatch.setattr(replaying, "replay_dead_letters", lambda spark, plan: report)
    assert run(*SERVER, "--topic", "d", *arguments) == (130, "", f"chaffinch: interrupted: {says}\n")


def test_not_selected_rows_are_counted(fake_replay: FakeReplay) -> None:
    run(*SERVER, "--topic", "d", "--only", "INVALID_RECORD", "--only", "INVALID_TIMESTAMP", "--where", "query = 'q'", "--parquet", "p")
    (plan,) = fake_replay.plans
    assert (plan.only, plan.where, plan.topic, plan.path) == (("INVALID_RECORD", "INVALID_TIMESTAMP"), "query = 'q'", "d", "p")
    assert plan.selects


def test_earlier_replays_are_named(fake_replay: FakeReplay) -> None:
    by = {"replay 1f of d, 2026-01-01 00:00:00 UTC": 9}
    fake_replay.report = ReplayReport(read=11, written=11, written_before=9, written_before_by=by, not_selected=4)
    (before,) = (f"{count} by {name}" for name, count in by.items())
    assert run(*SERVER, "--parquet", "/p")[1] == (
        f"/p: 11 dead letters read: 2 written now, 9 written before ({before}), 0 still rejected; 4 not selected\n"
    )
    fake_replay.report = replace(fake_replay.report, written=10, dropped={"MESSAGE_TOO_LARGE": 1})
    assert run(*SERVER, "--parquet", "/p")[1] == (
        f"/p: 11 dead letters read: 1 written now, 9 written before ({before}), 1 left out by the handler (1 MESSAGE_TOO_LARGE), "
        "0 still rejected; 4 not selected\n"
    )
    fake_replay.report = replace(fake_replay.report, written=11, dropped={})
    assert run(*SERVER, "--parquet", "/p", "--dry-run")[1] == (
        f"/p: 11 dead letters read: 2 would be written, 9 were written before ({before}), 0 would still be rejected; 4 not selected\n"
    )


def test_rows_of_other_replays_are_reported(fake_replay: FakeReplay) -> None:
    fake_replay.report = ReplayReport(read=3, written=3, written_before=1)
    lines = "/p: 3 dead letters read: 2 {}, 1 {} before (by another replay), 0 {} rejected\n"
    assert run(*SERVER, "--parquet", "/p")[1] == lines.format("written now", "written", "still")
    assert run(*SERVER, "--parquet", "/p", "--dry-run")[1] == lines.format("would be written", "was written", "would still be")


def test_dry_run_does_not_count_earlier_rows(fake_replay: FakeReplay) -> None:
    fake_replay.report = ReplayReport(read=10, written=10, written_before=10)
    line = "/p: 10 dead letters read: 0 written now, 10 written before (by another replay), 0 still rejected\n"
    assert run(*SERVER, "--parquet", "/p") == (0, line, "")
    assert json.loads(run(*SERVER, "--parquet", "/p", "--json")[1])["written"] == 10
