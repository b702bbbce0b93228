"""House rules that a linter does not know, checked over the source text; each rule is itself tested on a text that breaks it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "simulation", "tests", "examples", "benchmarks")
FILES = sorted(path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

FUNCTION_LINES_MAX = 70
"""A screen a function. A file has no limit: it holds one idea."""
# "path::function": why it may be longer. Tables and matches that are read from top to bottom only.
LONG_FUNCTIONS: dict[str, str] = {
    "src/chaffinch/records/kernels/decode.py::_scan_records": "the fields of a record in their order, each with its check",
}
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
# What makes a test wait, or makes it pass on some days only. Seeded dice are fine: random.Random(7).
LUCK = {"time.sleep", "sleep", "asyncio.sleep", "random.random", "random.randint", "random.choice", "random.shuffle", "random.sample"}
LUCK |= {"random.seed", "random.randbytes", "os.urandom", "uuid.uuid1", "uuid.uuid4", "datetime.now", "datetime.datetime.now"}
LEFTOVERS = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")

Finding = tuple[str, int, str]


def findings_in(path: str, text: str) -> Iterator[Finding]:
    """(path, line, what is wrong) for one file."""
    tree = ast.parse(text)
    lines = text.splitlines()
    if Path(path).stem in VAGUE_NAMES or Path(path).parent.name in VAGUE_NAMES:
        yield path, 1, "a name that says nothing: call it after what it holds"
    if lines and ast.get_docstring(tree) is None:
        yield path, 1, "no module docstring"
    for number, line in enumerate(lines, 1):
        if LEFTOVERS.search(line):
            yield path, number, "a leftover: do it, or open an issue"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _long_function(path, node)
        if path.startswith("tests/") and isinstance(node, ast.Call) and _dotted(node.func) in LUCK:
            yield path, node.lineno, f"{_dotted(node.func)} in a test: time is a manual clock, dice have a seed"
        if path.startswith("tests/") and isinstance(node, ast.Call) and _dotted(node.func) == "random.Random" and not node.args:
            yield path, node.lineno, "dice without a seed"


def _long_function(path: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Finding]:
    # The docstring is not counted: it may be long.
    first = node.body[1] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body[0]
    signature = node.body[0].lineno - node.lineno
    count = signature + (node.end_lineno or first.lineno) - first.lineno + 1
    if count > FUNCTION_LINES_MAX and f"{path}::{node.name}" not in LONG_FUNCTIONS:
        yield path, node.lineno, f"{node.name} has {count} lines, limit {FUNCTION_LINES_MAX}: move branching up, computation down"


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


@pytest.mark.parametrize("path", FILES)
def test_house_rules(path: str) -> None:
    found = list(findings_in(path, (ROOT / path).read_text(encoding="utf-8")))
    assert not found, "\n".join(f"{where}:{line}: {what}" for where, line, what in found)


def test_exceptions_name_functions_that_exist() -> None:
    for name, reason in LONG_FUNCTIONS.items():
        path, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8")
        assert reason


LONG_BODY = "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX


@pytest.mark.parametrize(
    ("path", "text", "what"),
    [
        ("src/utils.py", '"""A."""\n', "a name that says nothing"),
        ("src/common/a.py", '"""A."""\n', "a name that says nothing"),
        ("src/a.py", "x = 1\n", "no module docstring"),
        ("src/a.py", '"""A."""\n# TO' + "DO later\n", "a leftover"),
        ("src/a.py", '"""A."""\n' + LONG_BODY, "f has 71 lines"),
        ("src/a.py", '"""A."""\nclass A:\n    async ' + LONG_BODY.replace("\n", "\n    "), "f has 71 lines"),
        ("tests/a.py", '"""A."""\nimport time\ntime.sleep(1)\n', "time.sleep in a test"),
        ("tests/a.py", '"""A."""\nfrom time import sleep\nsleep(1)\n', "sleep in a test"),
        ("tests/a.py", '"""A."""\nimport random\nrandom.shuffle([])\n', "random.shuffle in a test"),
        ("tests/a.py", '"""A."""\nimport random\nrandom.Random()\n', "dice without a seed"),
    ],
)
def test_each_rule_finds_what_breaks_it(path: str, text: str, what: str) -> None:
    found = list(findings_in(path, text))
    assert len(found) == 1
    assert what in found[0][2]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/__init__.py", ""),
        ("src/a.py", '"""A."""\nimport time\ntime.sleep(1)\n'),
        ("tests/a.py", '"""A."""\nimport random\nrandom.Random(7).random()\n'),
        ("src/a.py", '"""A."""\ndef f():\n    """' + "Long.\n" * 100 + '    """\n    return 1\n'),
    ],
)
def test_each_rule_lets_the_rest_pass(path: str, text: str) -> None:
    assert list(findings_in(path, text)) == []
