"""Decorator of the public API: `exported_from` names the module from which users import a class or function.

Internal; may change without notice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ForwardRef, TypeVar

Exported = TypeVar("Exported", bound=Callable[..., Any])


def exported_from(module: str) -> Callable[[Exported], Exported]:
    """Set the module in `repr`, tracebacks and pickles to the public one, so that the module with the code can change.

    Apply it last, above `dataclass`. `typing.get_type_hints` still finds the names in annotations. `inspect.getsource` finds the source of
    functions and methods, but not that of classes.
    """

    def export(thing: Exported) -> Exported:
        if isinstance(thing, type) and (hints := vars(thing).get("__annotations__")):
            for name, hint in hints.items():
                text = hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint  # NamedTuple has made it one, without a module.
                if isinstance(text, str):
                    hints[name] = ForwardRef(text, module=thing.__module__, is_class=True)
        thing.__module__ = module
        return thing

    return export
