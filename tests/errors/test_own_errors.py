"""Errors of Chaffinch: every one raised by clients or on Spark has a row, and no row is unused."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaffinch import errors
from chaffinch.errors import codes, own_errors
from chaffinch.errors.codes import Group

SPARK = Path(__file__).parents[2] / "src" / "chaffinch" / "spark"
WITHOUT_TAG = {"NOT_A_DEAD_LETTER", "VALUE_CUT", "WORKER_LOST", "JavaNotFound", "WorkersUnfit", "SupervisionEnded"}
"""Counted by a replay, found in Spark's own words, or raised by what users call."""


def classes() -> Iterator[type[errors.KafkaException]]:
    for name in errors.exceptions.__all__:
        value = getattr(errors, name)
        if isinstance(value, type) and issubclass(value, errors.KafkaException):
            yield value


def own_classes() -> dict[str, type[errors.KafkaException]]:
    """Those that can be raised and belong neither to a code nor to several of them: a client's own."""
    of_codes = {code.exception_name for code in codes.ALL}
    shared = {errors.KafkaException, errors.ApiException, errors.AuthenticationException, errors.AuthorizationException}
    return {
        found.__name__: found
        for found in set(classes()) - shared
        if found.__name__ not in of_codes and not found.is_abstract and not issubclass(found, errors.InvalidTxnStateException)
    }


def names_raised(text: str) -> Iterator[tuple[str, str]]:
    """(name, group's member) of each `Refusal(Group.X, "NAME", ...)`; a constant of the module stands for its text."""
    tree = ast.parse(text)
    constants = {
        node.target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Refusal" and len(node.args) > 1:
            group, name = node.args[:2]
            value = name.value if isinstance(name, ast.Constant) else constants.get(getattr(name, "id", ""))
            if isinstance(value, str) and isinstance(group, ast.Attribute):
                yield value, group.attr


def raised_by_spark() -> set[tuple[str, str]]:
    return {found for path in SPARK.rglob("*.py") for found in names_raised(path.read_text(encoding="utf-8"))}


def test_every_class_without_a_code_has_a_row() -> None:
    rows = {row.name: row.group for row in own_errors.CLIENT_ERRORS}
    assert rows == {name: found.class_group for name, found in own_classes().items()}


def test_every_name_raised_on_spark_has_a_row() -> None:
    of_codes = {code.name for code in codes.ALL}
    raised = {(name, Group[group]) for name, group in raised_by_spark() if name not in of_codes}
    # STAGING_LOST is a constant of another module than the one that raises it.
    assert raised | {("STAGING_LOST", Group.APPLICATION_RECOVERABLE)} == {
        (row.name, row.group) for row in own_errors.SPARK_ERRORS if row.name not in WITHOUT_TAG
    }


@pytest.mark.parametrize("name", sorted(WITHOUT_TAG | {"STAGING_LOST"}))
def test_rows_without_a_class_exist_in_the_code(name: str) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in SPARK.rglob("*.py"))
    assert f'"{name}"' in text or f"class {name}(" in text


def test_a_name_in_a_refusal_is_found() -> None:
    text = 'A: Final = "NAME_A"\nRefusal(Group.RETRIABLE, A, "text")\nRefusal(Group.NONE, "NAME_B", text)\nRefusal(group, code.name, "")'
    assert list(names_raised(text)) == [("NAME_A", "RETRIABLE"), ("NAME_B", "NONE")]


def test_names_differ_and_have_advice() -> None:
    names = [row.name.upper() for row in own_errors.ALL]
    assert len(set(names)) == len(names)
    assert not set(names) & {name for code in codes.ALL for name in (code.name, code.exception_name.upper())}
    for row in own_errors.ALL:
        assert row.text.endswith(".")
        assert row.advice.endswith(".")
        assert "|" not in row.text + row.advice
