"""The tag of an error: written by a refusal, found again in the texts that Spark makes of it."""

import json
import pickle
import traceback
from collections.abc import Callable
from typing import NoReturn

import pytest

from chaffinch.errors import (
    ConfigException,
    KafkaException,
    ProducerFencedException,
    TimeoutException,
    TopicAuthorizationException,
    codes,
    exception_for,
)
from chaffinch.errors.codes import ErrorCode, Group
from chaffinch.identifiers import TopicPartition
from chaffinch.spark.refusals import (
    ADVICE,
    REMEDIES,
    ErrorTag,
    Kind,
    Refusal,
    Remedy,
    advised,
    line_first,
    refusal_for,
    refusal_of,
    tag_in,
    worded_for,
)

REFUSAL = Refusal(Group.INVALID_CONFIGURATION, "CHECKPOINT_RESTORED", "batch 1 is older than batch 2: bring back the newest copy")
TAG = ErrorTag(group=REFUSAL.group, name=REFUSAL.name, text=REFUSAL.text)
RAISED = f"chaffinch.spark.Refusal: {REFUSAL}"


@pytest.mark.parametrize(
    "text",
    [
        str(REFUSAL),
        f"Traceback:\n  File \"x.py\", line 3, in commit\n{RAISED}\n\tat org.apache.spark.Runner.run(Runner.scala:1)\n",
        f"[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: {RAISED}\r\n SQLSTATE: 38000",
        f"Failed when the data source performs commit: Traceback\\n{RAISED}\\n SQLSTATE: 38000",
        f"terminated with exception: {RAISED} SQLSTATE: XXKST",
        f"{RAISED}\n\nThe above exception was the cause of:\nKAFKA[Retriable] REQUEST_TIMED_OUT: a later one",
    ],
    ids=["alone", "traceback", "Spark's state", "line ends written out", "state on the line", "the first of two"],
)  # fmt: skip
def test_tag_is_found_in_any_text(text: str) -> None:
    assert tag_in(text) == TAG


# As PySpark 4.3 says them: of a batch write, and of a query.
OF_A_WRITE = (
    "[PYTHON_DATA_SOURCE_ERROR] Failed to initialize Python data source writer: Traceback (most recent call last):\n"
    '  File "/site-packages/chaffinch/spark/data_source.py", line 56, in writer\n'
    "    raise invalid(error) from None\nchaffinch.spark.Refusal: {}\n SQLSTATE: 38000"
)
STATE = (
    "=== Streaming Query ===\nIdentifier: [id = a, runId = b]\nCurrent Committed Offsets: {{}}\nLogical Plan:\nWriteToMicroBatchDataSource"
)
OF_A_QUERY = f"[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: {OF_A_WRITE} SQLSTATE: XXKST\n{STATE}"


@pytest.mark.parametrize("quoted", [str, repr, lambda text: f"error: {json.dumps(text)}"], ids=["as it is", "repr", "JSON"])
@pytest.mark.parametrize("spark_s", [OF_A_WRITE, OF_A_QUERY], ids=["write", "query"])
@pytest.mark.parametrize(
    "reason",
    [
        f"option x: Init() raised {ValueError('no init' + chr(10) + 'second line')!r}",
        'option x: Init() raised ValueError("it\'s\\n\\n")',
        f"topic {'a' + chr(10) + 'b'!r} (option topic) is not a legal name",
        r"folder C:\new\\nested",
        "--repair key=x: [CAST_INVALID_INPUT] cannot be cast. SQLSTATE: 22018; nothing was written",
    ],
)
def test_quoted_line_end_does_not_end_tag(reason: str, spark_s: str, quoted: Callable[[str], str]) -> None:
    refusal = Refusal(Group.INVALID_CONFIGURATION, "CONFIG", reason, Remedy.CORRECT)
    found = tag_in(quoted(spark_s.format(refusal)))
    assert found == ErrorTag(group=refusal.group, name="CONFIG", text=refusal.text)
    assert found.text.endswith(f"; {ADVICE[Remedy.CORRECT][Kind.QUERY]}")


@pytest.mark.parametrize("group", [group for group in Group if group is not Group.NONE])
def test_every_group_is_found(group: Group) -> None:
    found = tag_in(str(Refusal(group, "REQUEST_TIMED_OUT", "a text: with a colon")))
    assert found == ErrorTag(group=group, name="REQUEST_TIMED_OUT", text="a text: with a colon")


@pytest.mark.parametrize("text", ["", "no tag", "KAFKA[Nonsense] X: y", "KAFKA[Retriable]: no name", "[PYTHON_VERSION_MISMATCH] 3.11"])
def test_text_without_tag_has_none(text: str) -> None:
    assert tag_in(text) is None


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            TopicAuthorizationException("no right", topic_partition=TopicPartition("orders", 1), api="Produce"),
            "KAFKA[InvalidConfiguration] TOPIC_AUTHORIZATION_FAILED: Produce for orders-1: no right; "
            "correct the data, the options or the topic; a restart alone does not help",
        ),
        (
            TimeoutException("not answered within 3 ms"),
            "KAFKA[Retriable] REQUEST_TIMED_OUT: not answered within 3 ms; start the query again",
        ),
        (
            ProducerFencedException("line one\nline two.", api="InitProducerId"),
            "KAFKA[ApplicationRecoverable] PRODUCER_FENCED: InitProducerId: line one line two; start the query again",
        ),
        (ConfigException("wrong"), "KAFKA[InvalidConfiguration] ConfigException: wrong; correct"),
    ],
)
def test_client_error_is_one_line_with_code_and_advice(error: KafkaException, text: str) -> None:
    refusal = refusal_of(error)
    assert str(refusal).startswith(text)
    assert str(refusal).count(refusal.name) == 1
    assert "producer" not in refusal.text


@pytest.mark.parametrize("group", [group for group in Group if group is not Group.NONE])
def test_every_group_has_advice(group: Group) -> None:
    assert advised(group, "X", "it failed;").text == f"it failed; {ADVICE[REMEDIES[group]][Kind.QUERY]}"


@pytest.mark.parametrize("code", [codes.OFFSET_OUT_OF_RANGE, codes.REBALANCE_IN_PROGRESS])
def test_error_without_kip_1050_group_is_recoverable(code: ErrorCode) -> None:
    assert code.group is Group.NONE
    for refusal in (refusal_for(code, "it failed"), refusal_of(exception_for(code, message="it failed"))):
        assert str(refusal) == f"KAFKA[ApplicationRecoverable] {code.name}: it failed; {ADVICE[Remedy.AGAIN][Kind.QUERY]}"


@pytest.mark.parametrize("remedy", Remedy)
def test_advice_mentions_query_only_for_streams(remedy: Remedy) -> None:
    refusal = pickle.loads(pickle.dumps(Refusal(Group.RETRIABLE, "X", "it failed.", remedy)))
    texts = {}
    for kind in Kind:
        with pytest.raises(Refusal) as caught, worded_for(kind):
            raise refusal
        texts[kind] = caught.value.text
        assert caught.value.reason == "it failed."
    assert texts[Kind.QUERY] == refusal.text
    assert [kind for kind, text in texts.items() if "query" in text or "restart" in text] == [Kind.QUERY]


def test_reason_with_own_advice_is_unchanged() -> None:
    assert REFUSAL.worded_for(Kind.BATCH).text == REFUSAL.text


def as_spark_shows(raises: Callable[[], NoReturn], *, shortened: bool) -> str:
    """The text that PySpark makes of an exception. A shortened traceback loses the cause."""
    try:
        with line_first():
            raises()
    except Refusal as refusal:
        if shortened:
            refusal.__cause__ = None
        return "".join(traceback.TracebackException(type(refusal), refusal, refusal.__traceback__, compact=True).format())


def refused(**given: bool) -> NoReturn:
    try:
        raise ValueError("within")
    except ValueError as error:
        refusal = Refusal(Group.INVALID_CONFIGURATION, "CONFIG", "option topic is missing")
        if given.get("keeps_cause"):
            raise refusal from error
        raise refusal from None


@pytest.mark.parametrize("shortened", [False, True])
@pytest.mark.parametrize("keeps_cause", [False, True])
def test_line_comes_before_the_frames(shortened: bool, keeps_cause: bool) -> None:
    text = as_spark_shows(lambda: refused(keeps_cause=keeps_cause), shortened=shortened)
    assert text.startswith("KAFKA[InvalidConfiguration] CONFIG: option topic is missing\n\n")
    tag = tag_in(text)
    assert tag is not None
    assert tag.text == "option topic is missing"
    assert ("ValueError: within" in text.rpartition("Refusal: KAFKA[")[2]) is keeps_cause, "what was not expected keeps its traceback, last"


def test_refusal_elsewhere_has_a_plain_traceback() -> None:
    with pytest.raises(Refusal) as caught:
        refused()
    assert caught.value.__suppress_context__
    caught.value.__suppress_context__ = False
    assert "ValueError: within" in "".join(traceback.format_exception(caught.value))
