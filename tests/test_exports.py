"""What `chaffinch` exports: every name, on first use, and nothing before."""

import ast
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

import chaffinch
import chaffinch.admin
import chaffinch.spark

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", chaffinch.__all__)
def test_every_name_can_be_imported(name: str) -> None:
    assert getattr(chaffinch, name) is getattr(chaffinch, name)
    assert name in dir(chaffinch)


def names_for_type_checkers(package: ModuleType) -> dict[str, str | None]:
    """Modules by the names that a package imports for type checkers."""
    tree = ast.parse(Path(str(package.__file__)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
        for alias in node.names
    }


def test_names_come_from_where_the_type_checker_finds_them() -> None:
    imported = names_for_type_checkers(chaffinch)
    assert imported == {**chaffinch._MODULES, "errors": "chaffinch"}
    assert set(chaffinch.__all__) == set(imported) | {"__version__"}


@pytest.mark.parametrize(("package", "eager"), [(chaffinch.admin, set()), (chaffinch.spark, {"session"})], ids=["admin", "spark"])
def test_names_of_packages_come_from_where_the_type_checker_finds_them(package: Any, eager: set[str]) -> None:
    imported = names_for_type_checkers(package)
    assert imported == {name: f"{package.__name__}.{module}" for name, module in package._MODULES.items()}
    assert set(package.__all__) == set(imported) | eager
    with pytest.raises(AttributeError, match="NoSuchThing"):
        package.NoSuchThing  # noqa: B018


def test_submodules_are_the_same_objects() -> None:
    assert chaffinch.errors is importlib.import_module("chaffinch.errors")


def test_an_unknown_name_is_an_import_error() -> None:
    with pytest.raises(ImportError, match="NoSuchThing"):
        exec("from chaffinch import NoSuchThing")
    with pytest.raises(AttributeError, match="NoSuchThing"):
        chaffinch.NoSuchThing  # noqa: B018


def test_the_import_itself_loads_nothing_but_the_version() -> None:
    code = "import sys, chaffinch; print([name for name in sys.modules if name.startswith('chaffinch.') or name in ('numpy', 'pyarrow')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['chaffinch.version']\n"


@pytest.mark.parametrize("package", ["chaffinch.admin", "chaffinch.spark"])
def test_import_of_a_public_package_loads_nothing_heavy(package: str) -> None:
    code = f"import sys, {package}; print([name for name in sys.modules if name in ('numpy', 'pyarrow', 'pyspark', 'chaffinch.client')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_version_is_the_package_s() -> None:
    assert chaffinch.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def undocumented(name: str, thing: Any) -> list[str]:
    """Names of what a user meets without a docstring of its own: the thing itself, its public methods and properties."""
    if not isinstance(thing, type):
        return [] if not callable(thing) or thing.__doc__ else [name]
    members = [(f"{name}.{key}", value) for key, value in vars(thing).items() if not key.startswith("_") or key == "__call__"]
    of_class = [] if "__doc__" in vars(thing) and vars(thing)["__doc__"] else [name]
    functions = (key for key, value in members if isinstance(value, FunctionType | property) and not value.__doc__)
    return [*of_class, *functions]


@pytest.mark.parametrize("package", [chaffinch, chaffinch.admin, chaffinch.spark], ids=lambda package: package.__name__)
def test_every_name_has_a_docstring(package: ModuleType) -> None:
    assert [found for name in package.__all__ for found in undocumented(name, getattr(package, name))] == []


def test_missing_docstring_is_found() -> None:
    class Bare:
        def documented_method(self) -> None:
            """Documented."""

        def undocumented_method(self) -> None: ...

    assert undocumented("Bare", Bare) == ["Bare", "Bare.undocumented_method"]
