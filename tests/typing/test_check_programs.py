"""Comparison of type errors with the marks in user programs."""

from __future__ import annotations

import ast

from chaffinch.settings import Option
from tests.typing import check_programs
from tools import option_types


def test_marked_line_without_error_and_error_in_other_line_are_differences() -> None:
    found = {("a.py", 1): "wrong type", ("a.py", 3): "no such option"}
    assert check_programs.differences({("a.py", 1), ("b.py", 2)}, found) == [
        "b.py:2: no error, though the line is marked as wrong",
        "a.py:3: no such option",
    ]
    assert check_programs.differences({("a.py", 1), ("a.py", 3)}, found) == []


def test_every_program_has_wrong_lines() -> None:
    assert {name for name, _ in check_programs.expected()} == {path.name for path in check_programs.PROGRAMS.glob("*.py")}


def test_every_option_has_a_type() -> None:
    for part in option_types.PARTS:
        (made,) = [node for node in ast.parse(option_types.module_text(part)).body if isinstance(node, ast.ClassDef)]
        names = {node.target.id for node in made.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
        wanted = {option.name.replace(".", "_") for option in part.options} - {name.replace(".", "_") for name in part.left_out}
        assert names == wanted | {line.partition(":")[0] for line in part.extra}


def test_type_of_an_option_follows_its_kind() -> None:
    assert option_types.python_type(Option("linger.ms", "int", 5, "")) == "int"
    assert option_types.python_type(Option("ssl.ca.location", "string", None, "")) == "str | PathLike[str]"
    assert option_types.python_type(Option("acks", "string", "all", "", choices=("all", "1"))) == "Literal['all', '1', 1]"
    strategies = Option("s", "list", ("range",), "", choices=("range",), synonyms=(("Range", "range"),))
    assert option_types.python_type(strategies) == "str | Sequence[Literal['range', 'Range']]"
    assert option_types.spark_type(strategies) == "str"
