"""`chaffinch replay` without Spark: what it refuses before it starts one, and what it prints."""

import json

import pytest

from chaffinch.cli import replay as command
from chaffinch.spark.replay.replaying import ReplayPlan, ReplayReport
from tests.cli.shell import run_bytes

SERVER = ("--bootstrap-server", "broker:9092")
REPORT = ReplayReport(read=3, written=1, still_rejected={"INVALID_RECORD": 2}, examples=("topic orders: INVALID_RECORD: too old",))


@pytest.fixture
def replayed(monkeypatch):
    """The plans that were to be carried out; each comes to `report`."""
    plans = []

    def answer(plan):
        plans.append(plan)
        return answer.report

    answer.report, answer.plans = REPORT, plans
    monkeypatch.setattr(command, "_replayed", answer)
    return answer


def run(*arguments):
    status, out, err = run_bytes(["replay", *arguments], b"")
    return status, out.decode(), err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--bootstrap-server HOST:PORT is missing"),
        (SERVER, "what to replay is said by one of --topic and --parquet"),
        ((*SERVER, "--topic", "d", "--parquet", "p"), "what to replay is said by one of --topic and --parquet"),
        ((*SERVER, "--topic", "d", "--repair", "key"), "--repair 'key': expected name=value"),
        ((*SERVER, "--topic", "d", "--repair", "keys=1"), "--repair keys=...: a row has no such column; there are: key, value, headers"),
        ((*SERVER, "--topic", "d", "--repair", "topic='x'", "--to", "y"), "the topic is said twice: by --to and by --repair topic=..."),
        ((*SERVER, "--topic", "d", "--to", "d"), "--to cannot be d: that is the topic that the letters are read from"),
        ((*SERVER, "--topic", "d", "--token", " "), "--token is empty"),
        ((*SERVER, "--topic", "d", "--to", ""), "--to is empty"),
        ((*SERVER, "--topic", " "), "--topic is empty: say where the dead letters are"),
        ((*SERVER, "--parquet", ""), "--parquet is empty: say where the dead letters are"),
    ],
)
def test_refused_before_spark_starts(replayed, arguments, says):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert says in err
    assert replayed.plans == []


def test_what_the_options_come_to(replayed, tmp_path):
    (tmp_path / "f").write_text("security.protocol=SSL\n")
    run(*SERVER, "--command-config", str(tmp_path / "f"), "--topic", "d", "--to", "t", "--repair", "key = if(a=b, 1, 2)", "--token", "n")
    (plan,) = replayed.plans
    assert plan == ReplayPlan(
        client={"kafka.security.protocol": "SSL", "kafka.bootstrap.servers": "broker:9092"},
        topic="d", to="t", repairs={"key": "if(a=b, 1, 2)"}, token="n",
    )  # fmt: skip


def test_what_is_printed(replayed):
    lines = "d: 3 letters read, 1 {}, 2 {} (2 INVALID_RECORD)\n  topic orders: INVALID_RECORD: too old\n"
    assert run(*SERVER, "--topic", "d") == (1, lines.format("written", "still rejected"), "")
    assert run(*SERVER, "--topic", "d", "--dry-run") == (1, lines.format("would be written", "would still be rejected"), "")
    replayed.report = ReplayReport(read=1, written=1)
    assert run(*SERVER, "--parquet", "/p") == (0, "/p: 1 letter read, 1 written, 0 still rejected\n", "")
    replayed.report = ReplayReport(is_repetition=True)
    assert run(*SERVER, "--topic", "d", "--token", "n") == (0, "d: nothing written: it was replayed under the token n before\n", "")


def test_json(replayed):
    status, out, _ = run(*SERVER, "--topic", "d", "--json")
    assert (status, json.loads(out)) == (1, {
        "source": "d", "dry_run": False, "repetition": False, "read": 3, "written": 1, "still_rejected": {"INVALID_RECORD": 2},
        "examples": ["topic orders: INVALID_RECORD: too old"],
    })  # fmt: skip


def test_an_error_is_one_line(monkeypatch):
    def fail(*_):
        raise command_error

    from chaffinch.errors.codes import Group
    from chaffinch.spark.refusals import Refusal

    command_error = Refusal(Group.INVALID_CONFIGURATION, "UNKNOWN_TOPIC_OR_PARTITION", "topic 'd' (option subscribe) does not exist")
    monkeypatch.setattr(command, "_quiet_session", fail)
    status, out, err = run(*SERVER, "--topic", "d")
    assert (status, out) == (1, "")
    assert err == "chaffinch: KAFKA[InvalidConfiguration] UNKNOWN_TOPIC_OR_PARTITION: topic 'd' (option subscribe) does not exist\n"
