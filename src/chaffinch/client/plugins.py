"""Plugins named by options, such as serializers and exception handlers: given as an object or as a dotted name to import."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from chaffinch.errors import ConfigException


def callable_name(function: Callable[..., object]) -> str:
    """The name of a callable of the application, for messages."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def import_plugin(option: str, value: Any) -> Any:
    """Import the object with a dotted name. A value that is not a str is returned unchanged."""
    if not isinstance(value, str):
        return value
    module, _, attribute = value.rpartition(".")
    if not module.strip("."):
        example = f"package.module.{attribute or 'Name'}"
        raise ConfigException(f"option {option} cannot be {value!r}: it must be a dotted name, such as {example}")
    try:
        return getattr(import_module(module), attribute)
    except (Exception, SystemExit) as failure:  # Code of the application may raise anything, even exit.
        reason = failure if isinstance(failure, ImportError | AttributeError) else repr(failure)
        raise ConfigException(f"option {option} cannot be {value!r}: it cannot be imported ({reason})") from failure
