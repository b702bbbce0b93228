"""`chaffinch errors`: the tables for people, for machines, and as the documentation's page."""

import json
from pathlib import Path

import pytest

from chaffinch import errors
from chaffinch.cli.main import main
from chaffinch.errors import codes, own_errors
from chaffinch.errors.codes import Group

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["errors", *arguments])
    captured = capsys.readouterr()
    status = ended.value.code or 0
    assert isinstance(status, int)
    return status, captured.out, captured.err


def test_table_has_one_line_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys)
    lines = out.splitlines()
    assert (status, err, len(lines)) == (0, "", 1 + len(codes.ALL))
    assert lines[0].split() == ["number", "name", "class", "group", "stored", "what", "to", "do"]
    assert [line.split()[0] for line in lines[1:]] == [str(row.number) for row in codes.ALL]
    fenced = next(line for line in lines if "PRODUCER_FENCED" in line)
    assert fenced.split()[:5] == ["90", "PRODUCER_FENCED", "ProducerFencedException", "ApplicationRecoverable", "no"]
    assert fenced.rstrip().endswith("close this producer and start a new one")


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("32", ["INVALID_TIMESTAMP"]),
        ("-1", ["UNKNOWN_SERVER_ERROR"]),
        ("87", ["INVALID_RECORD", "INVALID_COMPACTION_KEY"]),
        ("85", ["NO_REASSIGNMENT_IN_PROGRESS", "INVALID_RECORD"]),
        ("45", ["OUT_OF_ORDER_SEQUENCE_NUMBER", "INVALID_COMPACTION_KEY"]),
        ("INVALID_RECORD", ["INVALID_RECORD"]),
        ("invalid_record", ["INVALID_RECORD"]),
        ("InvalidRecordException", ["INVALID_RECORD"]),
        ("INCONSISTENT_REPLICA_CONFIGURATION", ["INCONSISTENT_REPLICATION_FACTOR"]),
    ],
)
def test_error_is_found_by_number_name_class_or_alias(capsys: pytest.CaptureFixture[str], asked: str, names: list[str]) -> None:
    status, out, _ = run(capsys, asked)
    assert status == 0
    assert [line.split()[1] for line in out.splitlines() if line.startswith("name ")] == names
    assert codes.by_name(names[0]).text in out


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        ("87", [(87, 85), (87, 45)]),
        ("85", [85, (87, 85)]),
        ("45", [45, (87, 45)]),
        ("40", [40, (40, 89)]),
        ("89", [89, (40, 89)]),
        ("INVALID_COMPACTION_KEY", [(87, 45)]),
    ],
)
def test_ambiguous_number_names_both_numberings(
    capsys: pytest.CaptureFixture[str], asked: str, numbers: list[int | tuple[int, int]]
) -> None:
    words = "{} with error.numbering=apache, as in Apache Kafka; {} with error.numbering=kip, in Produce responses"
    _, out, _ = run(capsys, asked)
    said = [line.removeprefix("number").strip() for line in out.splitlines() if line.startswith("number ")]
    assert said == [words.format(*each) if isinstance(each, tuple) else str(each) for each in numbers]


@pytest.mark.parametrize(("asked", "name"), [("marker_missing", "MARKER_MISSING"), ("ConfigException", "ConfigException")])
def test_own_error_name_is_explained(capsys: pytest.CaptureFixture[str], asked: str, name: str) -> None:
    (row,) = (row for row in own_errors.ALL if row.name == name)
    status, out, _ = run(capsys, asked)
    assert (status, out.split()[:2]) == (0, ["name", name])
    assert row.text in out
    assert row.advice in out
    assert row.group is not None
    assert json.loads(run(capsys, asked, "--json")[1]) == [
        {"number": None, "name": name, "group": row.group.value, "text": row.text, "advice": row.advice}
    ]


@pytest.mark.parametrize(
    ("asked", "among", "not_among"),
    [
        ("Retriable", ["REQUEST_TIMED_OUT", "BufferExhaustedException"], "UNKNOWN_TOPIC_OR_PARTITION"),
        ("transactionabortable", ["INVALID_TXN_STATE", "TRANSACTION_ABORTABLE"], "NONE"),
        ("ApplicationRecoverable", ["INVALID_TXN_STATE", "PRODUCER_FENCED"], "OFFSET_OUT_OF_RANGE"),
        ("InvalidConfiguration", ["INVALID_RECORD", "ROWS_REJECTED"], "VALUE_CUT"),
        ("None", ["OFFSET_OUT_OF_RANGE"], "NONE"),
    ],
)
def test_group_lists_its_rows(capsys: pytest.CaptureFixture[str], asked: str, among: list[str], not_among: str) -> None:
    """It is what people have before their eyes who read `KAFKA[Retriable] ...`."""
    status, out, err = run(capsys, asked)
    named = [entry["name"] for entry in json.loads(run(capsys, asked, "--json")[1])]
    assert (status, err, out.split()[:2]) == (0, "", ["number", "name"])
    assert all(f" {name} " in line for name, line in zip(named, out.splitlines()[1:], strict=True))
    assert set(among) <= set(named)
    assert not_among not in named


@pytest.mark.parametrize("group", [group for group in Group if group is not Group.NONE])
def test_class_of_a_group_lists_the_group(capsys: pytest.CaptureFixture[str], group: Group) -> None:
    """Also where it is the class of a code, too: that one is among them."""
    name = f"{group.value}Exception"
    assert getattr(errors, name).class_group is group
    assert run(capsys, name) == run(capsys, name.lower()) == run(capsys, group.value)
    assert {code.name for code in codes.ALL if code.exception_name == name} <= set(run(capsys, name)[1].split())


@pytest.mark.parametrize("asked", ["NONE", "none"])
def test_code_none_is_not_the_group_none(capsys: pytest.CaptureFixture[str], asked: str) -> None:
    assert [entry["number"] for entry in json.loads(run(capsys, asked, "--json")[1])] == [0]


def test_own_error_without_group_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "VALUE_CUT")
    assert "group" not in out
    assert json.loads(run(capsys, "VALUE_CUT", "--json")[1])[0]["group"] is None


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("ROWS_REJECTD", "no error is called 'ROWS_REJECTD'; the nearest is ROWS_REJECTED"),
        ("configexeption", "no error is called 'configexeption'; the nearest is ConfigException"),
        ("INVALID_RECROD", "no error is called 'INVALID_RECROD'; the nearest is INVALID_RECORD"),
        ("Retriabel", "no error is called 'Retriabel'; the nearest is Retriable"),
        ("RetriableExeption", "no error is called 'RetriableExeption'; the nearest is RetriableException"),
        ("nonsense", "no error is called 'nonsense'; without an argument the command lists them all"),
        ("non", "no error is called 'non'; without an argument the command lists them all"),
        ("NOSUCH", "no error is called 'NOSUCH'; without an argument the command lists them all"),
        ("", "the name of the error is empty: give a number (87), a name (INVALID_RECORD) or a class (InvalidRecordException)"),
        (" ", "the name of the error is empty: give a number (87), a name (INVALID_RECORD) or a class (InvalidRecordException)"),
        ("200", "no error has the number 200; they run from -1 to 133"),
    ],
)
def test_unknown_error_names_the_nearest(capsys: pytest.CaptureFixture[str], asked: str, text: str) -> None:
    assert run(capsys, asked) == (2, "", f"chaffinch: {text}\n")


def test_json_lists_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--json")
    objects = json.loads(out)
    assert [entry["name"] for entry in objects] == [row.name for row in codes.ALL]


def test_json_of_one_error_is_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "INVALID_TXN_STATE", "--json")
    assert json.loads(out) == [
        {
            "number": 48,
            "number_kip": 48,
            "name": "INVALID_TXN_STATE",
            "class": "InvalidTxnStateException",
            "group": "TransactionAbortable",
            "group_produce": "TransactionAbortable",
            "group_transaction": "ApplicationRecoverable",
            "retriable": False,
            "refreshes_metadata": False,
            "stored": "no",
            "text": codes.INVALID_TXN_STATE.text,
            "advice": "abort the transaction and go on with the same producer",
        }
    ]


def test_errors_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    """When this fails: `chaffinch errors --markdown > docs/reference/errors.md`."""
    _, out, _ = run(capsys, "--markdown")
    assert PAGE.read_text() == out


def test_markdown_excludes_json_and_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for other in ("--json", "87"):
        status, out, err = run(capsys, "--markdown", other)
        assert (status, out) == (2, "")
        text = json.loads(err)["error"] if other == "--json" else err.removeprefix("chaffinch: ").removesuffix("\n")
        assert text == "--markdown prints the whole page: give neither --json nor a code with it"
