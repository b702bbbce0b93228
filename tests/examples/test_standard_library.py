"""The main job's own parts: which file has which key, what Spark is given to read, and a judge that can say no."""

import json
from pathlib import Path

import pytest

from examples.standard_library import inputs
from examples.standard_library.inputs import SourceFile
from examples.standard_library.verification import NULL_KEY, TOO_LARGE, Findings, batch_bytes, compare, reason
from examples.standard_library.workspace import (
    BROKER_KILL_BATCH,
    MESSAGE_BYTES_MAX,
    QUERY_KILL_BATCH,
    batches_expected,
    files_per_trigger,
)

FILES_AND_KEYS = {
    "module.py": "module",
    "package/__init__.py": "package",
    "package/inner.py": "package.inner",
    "package/data.txt": None,
    "package/namespace/leaf.py": "package.namespace.leaf",
    "plain/leaf.py": "plain.leaf",
    "shadowed.py": None,  # The package of the same name is found first.
    "shadowed/__init__.py": "shadowed",
    "with-dash.py": "with-dash",  # importlib.import_module("with-dash") loads it.
    "dotted.directory/leaf.py": None,
    "dotted.name.py": None,
    "LICENSE": None,
    ".hidden.py": None,
    "compiled.cpython-00-unknown.so": None,
}


@pytest.fixture
def library(tmp_path: Path) -> Path:
    root = tmp_path / "library"
    for name in [*FILES_AND_KEYS, "__pycache__/module.pyc", "site-packages/other.py", "package/__pycache__/inner.pyc"]:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return root


def test_key_is_the_import_name_of_the_file(library: Path) -> None:
    assert {file.path: file.key for file in inputs.list_files(library)} == FILES_AND_KEYS


def test_keys_of_the_standard_library_are_unique_and_known() -> None:
    files = inputs.list_files(inputs.standard_library())
    keys = [file.key for file in files if file.key is not None]
    assert len(keys) == len(set(keys))
    assert {"json", "json.decoder", "os", "xml.etree.ElementTree"} <= set(keys)


def test_every_file_has_a_name_spark_reads(library: Path, tmp_path: Path) -> None:
    (library / "empty.py").write_text("")
    (library / "_private").mkdir()
    (library / "_private" / "~odd.py").write_text("x")
    files = inputs.list_files(library)
    inputs.create_input_tree(files, library, tmp_path / "links", tmp_path / "empty")
    links = [path.relative_to(tmp_path / "links") for path in (tmp_path / "links").rglob("*") if path.is_file()]
    assert not [part for link in links for part in link.parts if part.startswith(("_", "."))]
    listed = [json.loads(line)["path"] for line in (tmp_path / "empty" / "empty-files.json").read_text().splitlines()]
    assert sorted([inputs.original(link.as_posix()) for link in links] + listed) == [
        file.path for file in sorted(files, key=lambda f: f.path)
    ]
    assert listed == ["empty.py"]


def source_file(*, key: str | None = "k", size: int = 10) -> SourceFile:
    return SourceFile(path="p", key=key, size=size, modified_ms=0)


def test_reason_names_the_size_before_the_null_key() -> None:
    overhead = batch_bytes(source_file(size=MESSAGE_BYTES_MAX)) - MESSAGE_BYTES_MAX
    table = [
        (source_file(), None),
        (source_file(size=MESSAGE_BYTES_MAX - overhead), None),
        (source_file(size=MESSAGE_BYTES_MAX - overhead + 1), TOO_LARGE),
        (source_file(key=None), NULL_KEY),
        (source_file(key=None, size=MESSAGE_BYTES_MAX), TOO_LARGE),
    ]
    assert [reason(file) for file, _ in table] == [expected for _, expected in table]


@pytest.mark.parametrize(
    ("seen", "wrong", "field"),
    [
        ({}, [], "missing"),
        ({"p": 2}, [], "double"),
        ({"p": 1, "q": 1}, [], "foreign"),
        ({"p": 1}, ["p: value differs"], "wrong"),
    ],
)
def test_verification_finds_every_kind_of_fault(seen: dict[str, int], wrong: list[str], field: str) -> None:
    verdict = compare("place", [source_file()], Findings(seen=seen, wrong=wrong))
    assert not verdict.is_exact
    assert getattr(verdict, field)


def test_verification_accepts_each_expected_file_once() -> None:
    assert compare("place", [source_file()], Findings(seen={"p": 1})).is_exact


@pytest.mark.parametrize("count", [10, 725, 2_600])
def test_input_has_enough_batches_for_both_kills(count: int) -> None:
    files = [SourceFile(path=f"{n}.py", key=f"{n}", size=1, modified_ms=0) for n in range(count)]
    assert BROKER_KILL_BATCH < QUERY_KILL_BATCH < batches_expected(files)
    assert files_per_trigger(files) * batches_expected(files) >= count
