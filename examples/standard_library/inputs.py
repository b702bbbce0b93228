"""Input of the demo: every file of this interpreter's standard library, with its expected outcome.

One row per file: key = the dotted name under which the import system would load the file (null where it would not),
value = its bytes, timestamp = its modification time, one header `path`. The input has invalid rows by nature: tests, data,
licences and archives have no key, and some files are larger than the topic's `max.message.bytes`.

Spark's file sources would lose files silently: they skip names that begin with `_` or `.`,
and they skip empty files. So `create_input_tree` gives Spark a tree of links in which such names carry a leading `~`, and a list
(JSON lines) of the empty files. Both are read by Spark itself.
"""

import json
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path

EXCLUDED_DIRECTORIES = frozenset({"__pycache__", "site-packages", "dist-packages"})
VISIBLE_MARK = "~"
"""Prefix for a name that Spark would skip; a name that already begins with it gets a second one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file of the standard library. `path` is relative to it, with `/`; `modified_ms` is in ms since 1970."""

    path: str
    key: str | None
    size: int
    modified_ms: int


def standard_library() -> Path:
    return Path(sysconfig.get_path("stdlib")).resolve()


def walk(root: Path) -> Iterator[Path]:
    """Every regular file below `root`, in the order of its path, without the excluded directories."""
    for directory, directories, names in os.walk(root):
        directories[:] = sorted(name for name in directories if name not in EXCLUDED_DIRECTORIES)
        for name in sorted(names):
            path = Path(directory) / name
            if path.is_file():
                yield path


@cache
def import_roots(root: Path) -> tuple[str, ...]:
    """The directories of the import path that lie in the standard library: itself and that of its compiled modules."""
    candidates = (root, Path(sysconfig.get_path("platstdlib")).resolve(), root / "lib-dynload")
    return tuple(dict.fromkeys(str(path) for path in candidates if path.is_dir() and path.is_relative_to(root)))


@cache
def finder(directory: str) -> FileFinder:
    """The import system's own finder for one directory, with its own order: compiled modules, sources, bytecode."""
    loaders = (ExtensionFileLoader, EXTENSION_SUFFIXES), (SourceFileLoader, SOURCE_SUFFIXES), (SourcelessFileLoader, BYTECODE_SUFFIXES)
    return FileFinder(directory, *loaders)


@cache
def locate(dotted: str, root: Path) -> tuple[str | None, tuple[str, ...]]:
    """(the file that `dotted` would be loaded from, where its submodules would be looked for), by name alone.

    `importlib.util.find_spec` would answer the same but runs the code of every parent package on its way.
    """
    parent, _, _ = dotted.rpartition(".")
    portions: list[str] = []
    for directory in locate(parent, root)[1] if parent else import_roots(root):
        spec = finder(directory).find_spec(dotted)
        if spec is not None and spec.loader is not None:
            return spec.origin, tuple(spec.submodule_search_locations or ())
        if spec is not None:  # A directory without __init__: a portion of a namespace package (PEP 420).
            portions.extend(spec.submodule_search_locations or ())
    return None, tuple(portions)


def import_name(path: Path, root: Path) -> str | None:
    """The dotted name whose module the import system would load from `path`, None where there is none.

    A file counts only if the import system finds it under the name that follows from its path.
    """
    for base in sorted(import_roots(root), key=len, reverse=True):
        if path.is_relative_to(base):
            *packages, name = path.relative_to(base).parts
            return _loaded_from(path, packages, name, root)
    return None


def _loaded_from(path: Path, packages: list[str], name: str, root: Path) -> str | None:
    stem = name.split(".", 1)[0]
    parts = packages if stem == "__init__" and packages else [*packages, stem]
    if not stem or any("." in part for part in parts):
        return None
    dotted = ".".join(parts)
    return dotted if locate(dotted, root)[0] == str(path) else None


def modified_ms(path: Path) -> int:
    return path.stat().st_mtime_ns // 1_000_000


def list_files(root: Path) -> list[SourceFile]:
    """All files with their keys: the expected content of the topics."""
    return [
        SourceFile(
            path=path.relative_to(root).as_posix(), key=import_name(path, root), size=path.stat().st_size, modified_ms=modified_ms(path)
        )
        for path in walk(root)
    ]


def visible(name: str) -> str:
    return VISIBLE_MARK + name if name.startswith(("_", ".", VISIBLE_MARK)) else name


def original(linked_path: str) -> str:
    """The path below the standard library that belongs to a path below the tree of links."""
    return "/".join(part.removeprefix(VISIBLE_MARK) for part in linked_path.split("/"))


def create_input_tree(files: list[SourceFile], root: Path, links: Path, empties: Path) -> None:
    """Create the tree of links to non-empty files, and the list of empty files."""
    links.mkdir(parents=True)
    empties.mkdir(parents=True)
    without_bytes = [file for file in files if file.size == 0]
    for file in files:
        if file.size:
            link = links.joinpath(*map(visible, file.path.split("/")))
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(root / file.path)
    lines = (json.dumps({"path": file.path, "modified_ms": file.modified_ms}) for file in without_bytes)
    (empties / "empty-files.json").write_text("".join(line + "\n" for line in lines))
