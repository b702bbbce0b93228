"""What the documents say, held against the tree: printed parts, links, files and names, make targets, options, and the examples."""

from __future__ import annotations

import ast
import inspect
import io
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, get_args

import pyarrow as pa
import pytest
import typer.models

from chaffinch.broker import connections
from chaffinch.broker.core.topics import topic_options
from chaffinch.cli import broker as broker_command
from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.options import PRODUCER_OPTIONS
from chaffinch.records.columns import RecordColumns
from chaffinch.spark.commit.messages import Rejection
from chaffinch.spark.sink.option_tables import SINK
from chaffinch.spark.snapshot import TopicSnapshot
from chaffinch.spark.source.options import SOURCE as SPARK_SOURCE
from chaffinch.spark.tasks.dead_letter_headers import Origin
from chaffinch.spark.tasks.dead_letters import dead_letter_records, parquet_name, rows_stream
from tools import print_documents

ROOT = Path(__file__).resolve().parents[1]
SOURCE, TESTS = ROOT / "src" / "chaffinch", ROOT / "tests"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("benchmarks/*.md")])
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
KIPS = sorted((ROOT / "docs" / "explanation" / "kips").glob("*.md"))
LINE_MAX = 160

_CODE = re.compile(r"`([^`\n]+)`")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", re.MULTILINE)
_MAKE = re.compile(r"(?:^|\s)make ([a-z-]+)")
_PATH = re.compile(r"[\w./-]*\w\.(?:py|md|toml|lock|ini)$")
_DEFAULT_TEST = re.compile(r"those without a file are in `([^`]+)`")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def each(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=name_of)


def blocks(path: Path) -> Iterator[tuple[str, str]]:
    """(language, text) of each fenced block."""
    yield from ((found[1], found[2]) for found in _FENCE.finditer(path.read_text(encoding="utf-8")))


def code_spans(path: Path) -> set[str]:
    return set(_CODE.findall(_FENCE.sub("", path.read_text(encoding="utf-8"))))


def table_rows(text: str) -> Iterator[list[str]]:
    """Cells of every row of every table, headings and rules left out."""
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|") and not line.startswith("|--") and not following.startswith("|--"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


# --- printed parts ---------------------------------------------------------------------------------------------------------


def test_printed_parts_are_fresh(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_documents.main(["--check"]) == 0, capsys.readouterr().err


def test_every_part_is_printed_somewhere() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    assert [part for part in print_documents.PARTS if f"<!-- printed: {part} -->" not in text] == []


def test_stale_part_is_reported_and_rewritten(tmp_path: Path) -> None:
    document = tmp_path / "some.md"
    document.write_text("before\n<!-- printed: broker counters -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")
    (found,) = print_documents.documents(tmp_path)
    assert found.is_stale
    assert found.expected.startswith("before\n<!-- printed: broker counters -->\n| counter |")
    assert found.expected.endswith("|\n<!-- end -->\nafter\n")
    document.write_text(found.expected, encoding="utf-8")
    assert not print_documents.documents(tmp_path)[0].is_stale


def test_unknown_part_is_an_error() -> None:
    with pytest.raises(KeyError):
        print_documents.with_printed_parts("<!-- printed: nothing -->\n<!-- end -->\n")


def test_topic_options_are_split_by_what_they_do() -> None:
    effective = print_documents.topic_options_with_effect()
    assert {"cleanup.policy", "max.message.bytes", "min.insync.replicas", "segment.bytes", "retention.ms"} <= effective
    assert not {"flush.ms", "file.delete.delay.ms", "unclean.leader.election.enable"} & effective
    assert effective == topic_options.WITH_EFFECT, "the broker's log says of all others that they have no effect"


# --- links, files, targets -------------------------------------------------------------------------------------------------


def links(path: Path) -> list[str]:
    """Targets of `[text](target)` and of `[name]: target`."""
    return ["".join(target) for target in _LINK.findall(path.read_text(encoding="utf-8"))]


@each(DOCUMENTS)
def test_links(path: Path) -> None:
    targets = [target for target in links(path) if "://" not in target or target.startswith(REPOSITORY)]
    assert [target for target in targets if not is_valid_link(path, target)] == []


def is_valid_link(path: Path, target: str) -> bool:
    """A file that is there and, behind a `#`, one of its headings."""
    found, anchor = linked_file(path, target)
    return found.exists() and (not anchor or anchor in anchors(found))


def linked_file(path: Path, target: str) -> tuple[Path, str]:
    """(file, anchor) of a link in a document: relative to it, or in the repository by its address."""
    file, _, anchor = target.partition("#")
    if file.startswith(REPOSITORY):
        kind, _, file = file.removeprefix(REPOSITORY).partition("/main/")
        assert kind in ("/blob", "/tree", "/raw"), target
        return (ROOT / file).resolve(), anchor
    return ((path.parent / file).resolve() if file else path), anchor


def test_links_of_the_readme_are_absolute() -> None:
    """So that they also work where a package index shows it."""
    found = links(ROOT / "README.md")
    assert found
    assert [target for target in found if not target.startswith(f"{REPOSITORY}/")] == []


def anchors(path: Path) -> set[str]:
    """Headings as links name them: small letters, hyphens for spaces, no punctuation."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("errors.md", True),
        ("errors.md#groups-kip-1050", True),
        ("errors.md#nowhere", False),
        ("no.md", False),
        (f"{REPOSITORY}/blob/main/docs/reference/errors.md#groups-kip-1050", True),
        (f"{REPOSITORY}/blob/main/docs/reference/errors.md#nowhere", False),
        (f"{REPOSITORY}/blob/main/docs/no.md", False),
    ],
)
def test_dead_link_is_found(target: str, expected: bool) -> None:
    assert is_valid_link(ROOT / "docs" / "reference" / "cli.md", target) is expected


def test_every_page_can_be_found() -> None:
    """README leads to `docs/index.md`, and that to every page."""
    index = ROOT / "docs" / "index.md"
    linked = {linked_file(index, target)[0] for target in links(index) if "://" not in target}
    assert set((ROOT / "docs").rglob("*.md")) - {index} - linked == set()
    assert index in {linked_file(ROOT / "README.md", target)[0] for target in links(ROOT / "README.md")}


@cache
def all_files() -> tuple[str, ...]:
    folders = ("src", "simulation", "tests", "docs", "tools", "examples", "benchmarks")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    return tuple(f"/{name_of(path)}" for path in [*found, *(path for path in ROOT.iterdir() if path.is_file())])


def missing_files(spans: set[str]) -> list[str]:
    """Of code spans that look like a file of the repository those that are none; `<api>` stands for anything."""
    named = [span.partition("::")[0] for span in spans if _PATH.match(span.partition("::")[0].replace("<", "").replace(">", ""))]
    return [name for name in named if "<" not in name and not any(file.endswith(f"/{name}") for file in all_files())]


@each(DOCUMENTS)
def test_files(path: Path) -> None:
    assert missing_files(code_spans(path)) == []


@pytest.mark.parametrize(("span", "is_missing"), [("broker/core/append.py", False), ("append.py", False), ("core/appendix.py", True)])
def test_missing_file_is_found(span: str, is_missing: bool) -> None:
    assert bool(missing_files({span})) is is_missing


@each(DOCUMENTS)
def test_make_targets(path: Path) -> None:
    text = "\n".join([*code_spans(path), *(block for language, block in blocks(path) if language != "python")])
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(_MAKE.findall(text)) <= known


@each(DOCUMENTS)
def test_lines_are_short(path: Path) -> None:
    """Tables cannot be wrapped."""
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    assert [number for number, line in lines if len(line) > LINE_MAX and not line.startswith("|")] == []


# --- the tables of the KIPs ------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Something named in a table: a file and a dotted name in it."""

    file: Path
    name: str


def places(cell: str, below: Path, default: str) -> list[Place]:
    found = []
    for span in _CODE.findall(cell):
        file, _, name = span.partition("::")
        found.append(Place(below / (file or default), name.replace("::", ".")))
    return found


@cache
def defined(file: Path) -> frozenset[str]:
    """Dotted names of a module: functions, classes and their methods, and what is assigned at its top."""
    return frozenset(_names_in(ast.parse(file.read_text(encoding="utf-8")).body, ""))


def _names_in(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from _names_in(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))


def is_there(place: Place) -> bool:
    return place.file.is_file() and (not place.name or place.name in defined(place.file))


def written_by_hand(path: Path) -> str:
    """A document without its printed parts: those are right by themselves."""
    return print_documents.without_parts(path.read_text(encoding="utf-8"))


@each(KIPS)
def test_names_in_kip_tables_exist(path: Path) -> None:
    text = written_by_hand(path)
    default = _DEFAULT_TEST.search(text)
    rows = [row for row in table_rows(text) if len(row) >= 3]
    assert rows
    for row in rows:
        code = places(row[1], SOURCE, "")
        tests = places(row[2], TESTS, default[1] if default else "")
        assert code or row[1] == "not there", row
        for place in [*code, *tests]:
            assert is_there(place), f"{row[0]}: {place.file}::{place.name}"
        for place in tests:
            assert place.file.name.startswith("test_"), row
            assert "test" in place.name.lower() or not place.name, row


@each([path for path in KIPS if path.stem != "1038"])
def test_notes_are_numbered_as_the_tables_name_them(path: Path) -> None:
    text = written_by_hand(path)
    named = {int(number) for row in table_rows(text) for number in row[3].replace(" ", "").split(",") if number}
    written = {int(number) for number in re.findall(r"^(\d+)\. ", text.partition("## Notes")[2], re.MULTILINE)}
    assert named == written == set(range(1, len(written) + 1))


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        ("broker/core/append.py::append", True),
        ("producer/core/batches/in_flight.py::PartitionQueue.failed", True),
        ("records/validation_rules.py::KEY_RULE", True),
        ("broker/core/append.py::appendix", False),
        ("broker/core/nowhere.py::append", False),
        ("producer/core/batches/in_flight.py::failed", False),
    ],
)
def test_missing_name_is_found(span: str, expected: bool) -> None:
    assert all(is_there(place) for place in places(f"`{span}`", SOURCE, "")) is expected


# --- options, columns, names -----------------------------------------------------------------------------------------------


def test_arguments_of_the_broker_command() -> None:
    """Those of the table, and no other."""
    parameters = inspect.signature(broker_command.broker, eval_str=True).parameters.values()
    declared = {
        declaration
        for parameter in parameters
        for info in get_args(parameter.annotation)
        if isinstance(info, typer.models.OptionInfo)
        for declaration in (info.default, *(info.param_decls or ()))  # Inside Annotated typer takes the first one for a default.
    }
    spans = code_spans(ROOT / "docs" / "reference" / "broker.md")
    assert {span.split()[0] for span in spans if span.startswith("--")} == declared


def test_limits_of_a_connection() -> None:
    text = " ".join((ROOT / "docs" / "reference" / "broker.md").read_text(encoding="utf-8").split())
    requests, waiting = connections.REQUESTS_WAITING_MAX, connections.BYTES_WAITING_MAX
    assert f"{requests} requests or {waiting >> 20} MiB of them wait per connection" in text


def test_dead_letter_columns_and_headers() -> None:
    columns = RecordColumns.from_lists([b"k"], [b"v"], [0], [[]])
    rejection = Rejection(row=0, topic_partition=TopicPartition("orders", 1), code=codes.INVALID_COMPACTION_KEY, message="why")
    origin = Origin(query="q", batch_id=3, task=0)
    target = TopicSnapshot(topic="dead", topic_id=bytes(16), partition_count=1)
    schema = pa.ipc.open_stream(io.BytesIO(rows_stream(columns, [rejection], origin))).schema
    headers = dict(dead_letter_records(columns, [rejection], origin, target, 0).headers(0))

    rows = [
        (_CODE.findall(row[0]), row[1]) for row in table_rows((ROOT / "docs" / "reference" / "spark-sink.md").read_text(encoding="utf-8"))
    ]
    at = next(index for index, (names, _) in enumerate(rows) if "error_code" in names)
    parquet = {name: kind for names, kinds in rows[at - 4 : at + 2] for name, kind in _with_types(names, kinds)}
    assert list(parquet) == schema.names
    for name, kind in parquet.items():
        assert str(schema.field(name).type).startswith(kind), name
    documented = {name for names, _ in rows for name in names if name.startswith(("__connect.", "chaffinch.error."))}
    assert documented == set(headers)
    assert parquet_name(origin) == "chaffinch-q-000000003.parquet"


def _with_types(names: list[str], kinds: str) -> Iterator[tuple[str, str]]:
    """Each column with the beginning of its Arrow type; one kind for all, or one each."""
    each_kind = [kind.strip() for kind in kinds.split(",")]
    if len(each_kind) == 1:
        each_kind *= len(names)
    yield from zip(names, (kind.partition(" of ")[0] for kind in each_kind), strict=True)


def test_error_names_of_the_spark_pages() -> None:
    text = "".join(path.read_text(encoding="utf-8").partition("## Errors")[2] for path in sorted((ROOT / "docs").rglob("spark*.md")))
    named = set(re.findall(r"\b[A-Z]{2,}(?:_[A-Z]+)+\b", text)) - {"CHAFFINCH_PAUSE_AT_STEP", "CHAFFINCH_PAUSE_FILE"}
    source = "".join(path.read_text(encoding="utf-8") for path in (SOURCE / "spark").rglob("*.py"))
    known = {code.name for code in codes.ALL} | set(re.findall(r'"([A-Z_]+)"', source))
    assert named
    assert named - known == set()


def test_options_in_the_examples_of_spark() -> None:
    known = {option.name for table in (SINK, SPARK_SOURCE) for option in table.options} | {"checkpointLocation"}
    found = {option for path in DOCUMENTS for _, block in blocks(path) for option in re.findall(r'\.option\("([^"]+)"', block)}
    assert found
    assert found <= known


# --- the examples ----------------------------------------------------------------------------------------------------------

PYTHON = [
    pytest.param(block, id=f"{name_of(path)}-{index}", marks=[pytest.mark.spark] if "chaffinch.spark" in block else [])
    for path in DOCUMENTS
    for index, (kind, block) in enumerate(blocks(path))
    if kind == "python"
]


@pytest.mark.parametrize("block", PYTHON)
def test_python_examples(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that bring a broker of their own are run; a number in a comment behind `print(...)` is what it prints."""
    code = compile(block, "example", "exec")
    if "EmbeddedBroker" not in block:
        return
    if "chaffinch.spark" in block:  # It ends its session, which may be that of other tests here.
        done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        printed = done.stdout.splitlines()
    else:
        exec(code, {"__name__": "example"})
        printed = capsys.readouterr().out.splitlines()
    for number in re.findall(r"print\(.*\)\s+# (\d+)$", block, re.MULTILINE):
        assert number in printed


def test_first_readme_example_prints_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    block = next(block for kind, block in blocks(ROOT / "README.md") if kind == "python")
    exec(compile(block, "README.md", "exec"), {"__name__": "example"})
    written, error, offset = capsys.readouterr().out.splitlines()
    assert written == "99"
    assert "INVALID_COMPACTION_KEY" in error
    assert int(offset) >= 0


def test_options_in_prose_are_options() -> None:
    """Dotted names on the producer's page are options of the producer, of topics, or said not to be there."""
    spans = code_spans(ROOT / "docs" / "reference" / "producer.md")
    dotted = {span for span in spans if re.fullmatch(r"[a-z]+(\.[a-z]+)+", span)}
    known = {option.name for option in PRODUCER_OPTIONS.options} | PRODUCER_OPTIONS.without_effect | {"min.insync.replicas"}
    assert dotted - known == {"concurrent.futures", "chaffinch.producer.records"} & dotted
