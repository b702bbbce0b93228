"""`typings/` against the installed pyarrow: each module, class, function and attribute that it names is there, with those parameters and
base classes."""

import ast
import builtins
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

FOLDER = Path(__file__).parents[1] / "typings"
STUBS = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.pyi"))
BY_PYTHON = {"__buffer__"}
"""What memory views ask for: a method from Python 3.12 on only."""


def module_of(stub: str) -> ModuleType:
    return importlib.import_module(stub.removesuffix(".pyi").removesuffix("/__init__").replace("/", "."))


def named_in(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Names that a module or a class of a stub declares; aliases of types and protocols, which are the stub's own, are not among them."""
    for node in body:
        match node:
            case ast.ClassDef(name=name, bases=bases) if not any(isinstance(base, ast.Name) and base.id == "Protocol" for base in bases):
                yield name, node
            case ast.FunctionDef(name=name):
                yield name, node
            case ast.AnnAssign(target=ast.Name(id=name), value=None):
                yield name, node
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)) if value is ...:
                yield name, node


def has(found: object, name: str, node: ast.stmt) -> bool:
    """Whether a module or class has what a stub declares; attributes of instances are looked for in the text of their class."""
    if hasattr(found, name) or name in BY_PYTHON:
        return True
    return isinstance(node, ast.AnnAssign) and inspect.isclass(found) and f"self.{name} = " in inspect.getsource(found)


def missing_in(found: object, body: list[ast.stmt], at: str) -> Iterator[str]:
    for name, node in named_in(body):
        if not has(found, name, node):
            yield f"{at}.{name}"
        elif isinstance(node, ast.ClassDef):
            yield from bases_missing(getattr(found, name), node, f"{at}.{name}")
            yield from missing_in(getattr(found, name), node.body, f"{at}.{name}")
        elif isinstance(node, ast.FunctionDef) and name not in ("__init__", *BY_PYTHON):
            yield from parameters_missing(getattr(found, name), node, f"{at}.{name}")


def bases_missing(found: type, node: ast.ClassDef, at: str) -> Iterator[str]:
    """Base classes in pyarrow and Python; those of `typing` and `collections` only describe what a class does."""
    for name in (base.id for base in node.bases if isinstance(base, ast.Name)):
        known = next((vars(module)[name] for module in (pa.lib, pa, builtins) if name in vars(module)), object)
        if not issubclass(found, known):
            yield f"{at}({name})"


def parameters_missing(found: object, node: ast.FunctionDef, at: str) -> Iterator[str]:
    """Parameters that can be given by name, of functions that say what theirs are."""
    try:
        known = inspect.signature(found).parameters if callable(found) else {}
    except ValueError:
        return
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values()):
        named = [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs) if argument.arg not in ("self", "cls")]
        yield from (f"{at}({name}=)" for name in named if name not in known and known)


@pytest.mark.parametrize("stub", STUBS)
def test_names_in_stubs_exist(stub: str) -> None:
    tree = ast.parse((FOLDER / stub).read_text())
    assert list(named_in(tree.body))
    assert list(missing_in(module_of(stub), tree.body, stub)) == []


def test_missing_name_parameter_or_base_class_is_found() -> None:
    text = "class Table(Array):\n    def joined(self) -> int: ...\ndef nulls(size: int, kind: str) -> None: ...\ndef none() -> None: ...\n"
    missing = list(missing_in(module_of("pyarrow.pyi"), ast.parse(text).body, "pa"))
    assert missing == ["pa.Table(Array)", "pa.Table.joined", "pa.nulls(kind=)", "pa.none"]
