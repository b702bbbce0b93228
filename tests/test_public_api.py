"""Public surface: exported names say from where they are imported, and their signatures contain exported types only."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import pickletools
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

import chaffinch
from chaffinch import errors
from chaffinch.public_names import exported_from

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/chaffinch"
PUBLIC = ("chaffinch", "chaffinch.admin", "chaffinch.errors", "chaffinch.spark", "chaffinch.testing")
NOTICE = "Internal; may change without notice."


def exported() -> dict[tuple[str, str], Any]:
    """Classes and functions by the first public module that exports them, and name; the others are values."""
    found: dict[tuple[str, str], Any] = {}
    for module in PUBLIC:
        package = importlib.import_module(module)
        for name in package.__all__:
            thing = getattr(package, name)
            if isinstance(thing, type | types.FunctionType) and thing not in found.values():
                found[module, name] = thing
    return found


EXPORTED = exported()
IDS = [".".join(key) for key in EXPORTED]


FOR_CHAFFINCH_ITSELF = {
    "InvalidColumn.__bases__": "`except RecordsError` is for readers of damaged batches",
    "RecordFuture.batch": "set by `send`, for which a plain attribute is faster than a method",
    "Refusal.__init__": "only the Spark format makes refusals",
    "Refusal.worded_for": "only the Spark format makes refusals",
    "SendTableResult.__init__": "only `send_table` makes results",
}
"""Parts of exported classes that users do not touch, with the reason."""


# Signatures ---------------------------------------------------------------------------------------------------------------------------


@cache
def names_in(module: str) -> dict[str, Any]:
    """Names in annotations of a module: also those that are only imported for type checkers."""
    loaded = importlib.import_module(module)
    names = dict(vars(loaded))
    for node in ast.parse(inspect.getsource(loaded)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            imports: list[ast.stmt] = [each for each in node.body if isinstance(each, ast.Import | ast.ImportFrom)]
            exec(compile(ast.Module(imports, []), module, "exec"), names)
    return names


def types_in(hint: Any, module: str) -> Iterator[type]:
    """Classes in an annotation, with those in its arguments."""
    if isinstance(hint, str):
        hint = eval(hint, names_in(module))
    if isinstance(hint, typing.ForwardRef):
        hint = eval(hint.__forward_arg__, names_in(hint.__forward_module__ or module))
    if isinstance(hint, TypeVar):
        parts: tuple[Any, ...] = (hint.__bound__, *hint.__constraints__)
    elif typing.get_origin(hint) is typing.Literal:
        parts = ()
    elif isinstance(hint, list | tuple):
        parts = tuple(hint)
    else:
        if isinstance(hint, type):
            yield hint
        parts = (typing.get_origin(hint), *typing.get_args(hint))
    for part in parts:
        if part is not None and part is not hint:
            yield from types_in(part, module)


def types_of_function(function: Callable[..., Any]) -> Iterator[type]:
    for parameter, hint in inspect.unwrap(function).__annotations__.items():
        if not parameter.startswith("_"):
            yield from types_in(hint, inspect.unwrap(function).__globals__["__name__"])


def members_of(cls: type) -> Iterator[tuple[str, Any]]:
    """Own public attributes and `__init__`, `__call__` and the like; those of internal bases are the class's own."""
    for base in cls.__mro__:
        if is_ours(base) and (base is cls or base not in EXPORTED.values()):
            yield from ((name, value) for name, value in vars(base).items() if not name.startswith("_") or name in SPECIAL)


SPECIAL = {"__init__", "__call__", "__iter__", "__enter__"}


def types_of_class(cls: type) -> Iterator[type]:
    """Types in the bases, fields, methods and properties of a class."""
    module = defining_module(cls)
    if f"{cls.__name__}.__bases__" not in FOR_CHAFFINCH_ITSELF:
        yield from cls.__bases__
        for base in getattr(cls, "__orig_bases__", ()):
            yield from types_in(base, module)
    for name, hint in vars(cls).get("__annotations__", {}).items():
        if not name.startswith("_") and f"{cls.__name__}.{name}" not in FOR_CHAFFINCH_ITSELF:
            yield from types_in(hint, module)
    for name, value in members_of(cls):
        if f"{cls.__name__}.{name}" in FOR_CHAFFINCH_ITSELF:
            continue
        if isinstance(value, property):
            yield from types_of_function(value.fget)  # type: ignore[arg-type]
        elif isinstance(value, cached_property):
            yield from types_of_function(value.func)
        elif isinstance(value, classmethod | staticmethod):
            yield from types_of_function(value.__func__)
        elif isinstance(value, types.FunctionType) and not is_generated(value):
            yield from types_of_function(value)


def is_generated(function: types.FunctionType) -> bool:
    """Whether `dataclass` made it: its annotations are those of the fields."""
    return function.__code__.co_filename == "<string>"


def defining_module(cls: type) -> str:
    """The module in which a class is written, which `__module__` does not say."""
    for module, names in DEFINITIONS.items():
        if cls.__qualname__ in names and getattr(importlib.import_module(module), cls.__qualname__, None) is cls:
            return module
    return cls.__module__


@cache
def definitions(path: Path) -> frozenset[str]:
    return frozenset(node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef))


DEFINITIONS = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): definitions(path) for path in sorted(SOURCE.rglob("*.py"))}


def is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "chaffinch"


def unexported(thing: Any) -> set[str]:
    found = types_of_class(thing) if isinstance(thing, type) else types_of_function(thing)
    return {f"{cls.__module__}.{cls.__qualname__}" for cls in found if is_ours(cls) and cls not in EXPORTED.values()}


@pytest.mark.parametrize("thing", EXPORTED.values(), ids=IDS)
def test_types_in_signatures_are_exported(thing: Any) -> None:
    assert unexported(thing) == set()


def test_exceptions_from_the_rule_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = dict(FOR_CHAFFINCH_ITSELF)
    monkeypatch.setattr(sys.modules[__name__], "FOR_CHAFFINCH_ITSELF", {})
    classes = {cls.__name__: cls for cls in EXPORTED.values()}
    for each in needed:
        assert unexported(classes[each.partition(".")[0]]), each


class Hidden:
    __module__ = "chaffinch.hidden"


Alias = dict[str, Hidden]


def takes_hidden(value: list[Hidden] | None) -> None: ...


def returns_hidden() -> Callable[[Hidden], int]:
    raise NotImplementedError


def takes_alias(value: Alias) -> None: ...


class DerivesFromHidden(Hidden): ...


class HasProperty:
    __module__ = "chaffinch.shown"

    @property
    def hidden(self) -> Hidden:
        raise NotImplementedError


class HasField(NamedTuple):
    hidden: Hidden


@dataclass(slots=True)
class HasAttribute:
    hidden: tuple[Hidden, ...]


@pytest.mark.parametrize("thing", [takes_hidden, returns_hidden, takes_alias, DerivesFromHidden, HasProperty, HasField, HasAttribute])
def test_unexported_type_is_found(thing: Any) -> None:
    assert unexported(thing) == {"chaffinch.hidden.Hidden"}


_RAISES = re.compile(r"^ *Raises:\n(.*?)(?:\n *\n|\Z)", re.MULTILINE | re.DOTALL)
_RAISED = re.compile(r"^ *([A-Z]\w+(?:, [A-Z]\w+)*):", re.MULTILINE)


def raised_by(docstring: str) -> list[str]:
    """Names of the exceptions in the section Raises."""
    sections = _RAISES.findall(inspect.cleandoc(docstring))
    return [name for section in sections for line in _RAISED.findall(section) for name in line.split(", ")]


def docstrings(thing: Any) -> list[str]:
    members = [value for _, value in members_of(thing)] if isinstance(thing, type) else []
    return [doc for each in [thing, *members] if isinstance(each, type | types.FunctionType | property) and (doc := each.__doc__)]


@pytest.mark.parametrize("thing", EXPORTED.values(), ids=IDS)
def test_documented_exceptions_are_exported(thing: Any) -> None:
    known = {name for _, name in EXPORTED} | set(dir(__import__("builtins")))
    assert {name for doc in docstrings(thing) for name in raised_by(doc)} <= known


def test_names_in_raises_are_found() -> None:
    text = "Do it.\n\n    Raises:\n        TypeError, ValueError: an argument is wrong.\n        Other: it\n            fails: so."
    assert raised_by(text) == ["TypeError", "ValueError", "Other"]


# Modules and pickles ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("module", "name"), EXPORTED, ids=IDS)
def test_exported_name_says_where_it_is_imported_from(module: str, name: str) -> None:
    thing = EXPORTED[module, name]
    assert (thing.__module__, getattr(importlib.import_module(module), thing.__qualname__)) == (module, thing)
    assert pickle.loads(pickle.dumps(thing)) is thing


PICKLED = [
    chaffinch.TopicPartition("orders", 1),
    chaffinch.OffsetAndMetadata(5),
    chaffinch.GroupMetadata("billing"),
    chaffinch.ProducerRecord("orders", b"tea"),
    chaffinch.RecordMetadata("orders", 0, 3),
    chaffinch.ConsumerRecord("orders", 0, 1, 2, 0, b"k", b"v"),
    chaffinch.Settings({"acks": "all"}),
    chaffinch.NonRetriableResponse.FAIL,
    errors.Stored.NO,
    errors.codes.CORRUPT_MESSAGE,
    errors.RecordTooLargeException("too large", topic_partition=chaffinch.TopicPartition("orders", 0)),
]


@pytest.mark.parametrize("value", PICKLED, ids=lambda value: type(value).__name__)
def test_pickle_names_public_modules_only(value: Any) -> None:
    data = pickle.dumps(value, protocol=2)  # This protocol has the module in the operation GLOBAL.
    modules = {str(argument).split()[0] for operation, argument, _ in pickletools.genops(data) if operation.name == "GLOBAL"}
    assert {module for module in modules if module.startswith("chaffinch")} <= {*PUBLIC, "chaffinch.errors.codes"}
    assert isinstance(value, errors.KafkaException) or pickle.loads(data) == value


@pytest.mark.parametrize("cls", [each for each in EXPORTED.values() if isinstance(each, type)], ids=lambda cls: cls.__name__)
def test_annotations_of_an_exported_class_can_be_evaluated(cls: type) -> None:
    hints = vars(cls).get("__annotations__", {})
    namespace = names_in(defining_module(cls))
    assert typing.get_type_hints(cls, localns=namespace).keys() >= hints.keys()


def test_annotations_are_evaluated_in_the_defining_module() -> None:
    sample = types.ModuleType("sample_of_annotations")
    sys.modules[sample.__name__] = sample
    try:
        source = """
from __future__ import annotations
from dataclasses import dataclass
from typing import NamedTuple

class Inner: ...

@dataclass(slots=True)
class Fields:
    inner: list[Inner]

class Named(NamedTuple):
    inner: Inner
"""
        exec(source, vars(sample))
        for cls, expected in ((sample.Fields, list[sample.Inner]), (sample.Named, sample.Inner)):  # type: ignore[name-defined]
            public = exported_from("chaffinch")(cls)
            assert (public.__module__, typing.get_type_hints(public)) == ("chaffinch", {"inner": expected})
    finally:
        del sys.modules[sample.__name__]


# Programs of users --------------------------------------------------------------------------------------------------------------------

_PYTHON_BLOCK = re.compile(r"^```(?:python|py)\b[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_IMPORT = re.compile(r"^\s*(?:from|import) (chaffinch[\w.]*)(?: import ([^\n#]+))?", re.MULTILINE)


def user_programs() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.py"))]


def internal_imports(text: str) -> list[str]:
    """Imports of modules that are not public."""
    return [found[0] for found in _IMPORT.finditer(text) if found[1] not in (*PUBLIC, "chaffinch.testing.plugin")]


@pytest.mark.parametrize("path", user_programs(), ids=lambda path: str(path.relative_to(ROOT)))
def test_user_program_imports_public_modules_only(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    programs = [text] if path.suffix == ".py" else _PYTHON_BLOCK.findall(text)
    assert [found for program in programs for found in internal_imports(program)] == []


def test_internal_import_is_found() -> None:
    text = "from chaffinch import Producer\nfrom chaffinch.spark.java import JavaNotFound\n    import chaffinch.settings\n"
    assert internal_imports(text) == ["from chaffinch.spark.java import JavaNotFound", "    import chaffinch.settings"]


# Everything else ----------------------------------------------------------------------------------------------------------------------


def internal() -> list[Path]:
    """Packages and top-level modules that are not public, and the packages in `chaffinch.spark`."""
    public = {SOURCE / "__main__.py", *(SOURCE.parent.joinpath(*name.split("."), "__init__.py") for name in PUBLIC)}
    found = {path for pattern in ("*.py", "*/__init__.py", "spark/*/__init__.py") for path in SOURCE.glob(pattern)}
    return sorted(found - public)


@pytest.mark.parametrize("path", internal(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_internal_module_says_that_it_may_change(path: Path) -> None:
    assert NOTICE in (ast.get_docstring(ast.parse(path.read_text())) or "")


@pytest.mark.parametrize("module", PUBLIC)
def test_public_module_does_not_say_that_it_may_change(module: str) -> None:
    assert NOTICE not in (importlib.import_module(module).__doc__ or "")
