"""What `chaffinch` exports: every name, on first use, and nothing before."""

import ast
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import chaffinch

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", chaffinch.__all__)
def test_every_name_can_be_had(name):
    assert getattr(chaffinch, name) is getattr(chaffinch, name)
    assert name in dir(chaffinch)


def test_names_come_from_where_the_type_checker_finds_them():
    tree = ast.parse((ROOT / "src/chaffinch/__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
        for alias in node.names
    }
    assert imported == {**chaffinch._MODULES, "errors": "chaffinch"}
    assert set(chaffinch.__all__) == set(imported) | {"__version__"}


def test_submodules_are_the_same_objects():
    assert chaffinch.errors is importlib.import_module("chaffinch.errors")


def test_an_unknown_name_is_an_import_error():
    with pytest.raises(ImportError, match="NoSuchThing"):
        exec("from chaffinch import NoSuchThing")
    with pytest.raises(AttributeError, match="NoSuchThing"):
        chaffinch.NoSuchThing  # noqa: B018


def test_the_import_itself_loads_nothing_but_the_version():
    code = "import sys, chaffinch; print([name for name in sys.modules if name.startswith('chaffinch.') or name in ('numpy', 'pyarrow')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['chaffinch.version']\n"


def test_the_version_is_the_package_s():
    assert chaffinch.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
