"""Objects that options name: given themselves, or as a dotted name to import."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from chaffinch.errors import ConfigException


def callable_name(function: Callable[..., object]) -> str:
    """How messages call somebody's function, or an object that is called like one."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def import_plugin(option: str, value: Any) -> Any:
    """The object that a dotted name stands for; anything but a str is the object itself."""
    if not isinstance(value, str):
        return value
    module, _, attribute = value.rpartition(".")
    if not module.strip("."):
        example = f"package.module.{attribute or 'Name'}"
        raise ConfigException(f"option {option} cannot be {value!r}: it must be a dotted name, such as {example}")
    try:
        return getattr(import_module(module), attribute)
    except (Exception, SystemExit) as failure:  # The module is somebody's, and may raise anything; a program ends itself.
        reason = failure if isinstance(failure, ImportError | AttributeError) else repr(failure)
        raise ConfigException(f"option {option} cannot be {value!r}: no such thing can be imported ({reason})") from failure
