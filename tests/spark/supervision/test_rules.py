"""Which errors of a query ask for a restart, how long it waits, and when it is enough."""

from collections.abc import Sequence
from typing import Any

import pytest

from chaffinch.errors import ConfigException
from chaffinch.errors.codes import Group
from chaffinch.spark.error_texts import UNUSABLE_OUTPUT_MODE, first_line, tag_of
from chaffinch.spark.refusals import ErrorTag
from chaffinch.spark.supervision.rules import Limits, Restart, Stop, decide

LIMITS = Limits(restarts_max=4, window_s=100, pause_s=2, pause_max_s=9)


def tag(group: Group, name: str = "NAME") -> ErrorTag:
    return ErrorTag(group=group, name=name, text="a text")


@pytest.mark.parametrize(
    ("group", "name", "is_started_again"),
    [
        (Group.TRANSACTION_ABORTABLE, "SNAPSHOT_CHANGED", True),
        (Group.APPLICATION_RECOVERABLE, "STAGING_LOST", True),
        (Group.RETRIABLE, "REQUEST_TIMED_OUT", True),
        (Group.REFRESH_RETRIABLE, "NOT_LEADER_OR_FOLLOWER", True),
        (Group.INVALID_CONFIGURATION, "ROWS_REJECTED", False),
        (Group.APPLICATION_RECOVERABLE, "ANOTHER_WRITER", False),
        (Group.NONE, "UNKNOWN_SERVER_ERROR", True),
    ],
)
def test_decision_by_error_group(group: Group, name: str, is_started_again: bool) -> None:
    assert isinstance(decide(tag(group, name), [], 0, LIMITS), Restart) is is_started_again


def test_every_group_has_decision() -> None:
    assert {type(decide(tag(group), [], 0, LIMITS)) for group in Group} == {Restart, Stop}


def test_other_error_stops() -> None:
    assert decide(None, [], 0, LIMITS) == Stop("this is not an error of Kafka, and a restart may not help")


@pytest.mark.parametrize(
    ("restarts", "now_s", "expected"),
    [
        ([], 0, Restart(2)),
        ([0], 1, Restart(4)),
        ([0, 1], 2, Restart(8)),
        ([0, 1, 2], 3, Restart(9)),
        ([0, 1, 2, 3], 4, Stop("4 restarts within 100 s are the limit (restarts_max=4)")),
        ([0, 1, 2, 3], 99.9, Stop("4 restarts within 100 s are the limit (restarts_max=4)")),
        ([0, 1, 2, 3], 100, Restart(9)),
        ([0, 1, 2, 3], 103, Restart(2)),
        ([-500, -400, -300, -200, 0], 1, Restart(4)),
    ],
)
def test_pauses_grow_and_restarts_count_within_window(restarts: Sequence[int], now_s: float, expected: Restart | Stop) -> None:
    assert decide(tag(Group.RETRIABLE), restarts, now_s, LIMITS) == expected


def test_restarts_max_0_never_restarts() -> None:
    assert decide(tag(Group.RETRIABLE), [], 0, Limits(restarts_max=0)) == Stop("0 restarts within 3600 s are the limit (restarts_max=0)")


def test_pause_is_bounded_for_many_restarts() -> None:
    assert decide(tag(Group.RETRIABLE), [0.0] * 10_000, 1, Limits(restarts_max=20_000)) == Restart(60)


@pytest.mark.parametrize("name", ["restarts_max", "window_s", "pause_s", "pause_max_s"])
@pytest.mark.parametrize("value", [-1, float("nan"), "1"])
def test_wrong_limits_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigException, match=rf"{name} cannot be .*: it must be a (whole )?number, 0 or more"):
        Limits(**{name: value})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[STREAM_FAILED] KAFKA[Retriable] REQUEST_TIMED_OUT: no answer SQLSTATE: X", "KAFKA[Retriable] REQUEST_TIMED_OUT: no answer"),
        ("Job aborted\n  org.apache.spark.SparkException: Python worker exited unexpectedly (crashed): null\n at x",
         "KAFKA[ApplicationRecoverable] WORKER_LOST: Python worker exited unexpectedly (crashed): null"),
        ("ExecutorLostFailure (executor 1 exited)", "KAFKA[ApplicationRecoverable] WORKER_LOST: ExecutorLostFailure (executor 1 exited)"),
        ("[STREAM_FAILED] An exception was raised by the Python Proxy.\nchaffinch.errors.ConfigException: name is empty\n\n SQL",
         "KAFKA[InvalidConfiguration] CONFIG: name is empty"),
        ("[STREAM_FAILED] Query terminated with exception: requirement failed: chaffinch does not support Update mode. SQLSTATE: XXKST\n==",
         f"KAFKA[InvalidConfiguration] CONFIG: {UNUSABLE_OUTPUT_MODE}"),
        ('[UNSUPPORTED_DATA_SOURCE_SAVE_MODE] The data source "chaffinch" cannot be written in the "Ignore" mode. Please use either',
         'KAFKA[InvalidConfiguration] CONFIG: mode Ignore cannot be used with format("chaffinch"), which only appends to a topic: call '
         '.mode("append") before .save(); without a mode Spark uses errorifexists'),
        ("requirement failed: parquet does not support Update mode.", "requirement failed: parquet does not support Update mode."),
        ("\n[DIVIDE_BY_ZERO] Division by zero.\n more", "[DIVIDE_BY_ZERO] Division by zero."),
        ("An error occurred while calling o9.start.\n: java.io.IOException: mkdir failed\n at y", "java.io.IOException: mkdir failed"),
        ("", "an error without a message"),
        ("x" * 1000, "x" * 297 + "..."),
    ],
)  # fmt: skip
def test_first_line_of_error(text: str, expected: str) -> None:
    assert first_line(tag_of(text), text) == expected
