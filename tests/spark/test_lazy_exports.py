"""What `chaffinch.spark` offers by name, each imported on first use."""

from pathlib import Path

import pytest

import chaffinch.spark


def test_every_export_is_importable() -> None:
    assert dir(chaffinch.spark) == sorted(chaffinch.spark.__all__)
    found = {name: getattr(chaffinch.spark, name) for name in chaffinch.spark.__all__}
    assert {name: value.__name__ for name, value in found.items()} == {name: name for name in found}


def test_submodule_does_not_replace_export() -> None:
    """An import of a module binds it in its package, over what had that name."""
    modules = {path.stem for path in Path(chaffinch.spark.__path__[0]).glob("*.py")}
    assert set(chaffinch.spark.__all__) & modules == {"session"}  # Bound when the package is imported, after its module.
    assert callable(chaffinch.spark.session)


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'chaffinch\.spark' has no attribute 'sessions'"):
        _ = chaffinch.spark.sessions
