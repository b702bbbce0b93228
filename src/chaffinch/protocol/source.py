"""Shared by both compilers: source lines that remember which fields they handle.

A compiled codec is one flat function without bookkeeping. When it fails, the line that failed names the fields, and the function's
own variables give the array indices, so a precise error costs nothing as long as all goes well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

from chaffinch.protocol.primitives import Bytes, Field

NO_FIELD: Final = Field("", Bytes, 0, 0, None, None, 0, None, False)
"""Of a line that is about no single one."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A field as a compiled line sees it: `path` is a format string over the function's index variables, `owner` the variable
    that holds the structure."""

    path: str
    owner: str
    field: Field = NO_FIELD


@dataclass(slots=True)
class Source:
    """Lines of one generated function, each with the leaves it handles."""

    lines: list[str] = field(default_factory=list)
    leaves: list[tuple[Leaf, ...]] = field(default_factory=list)
    scope: dict[str, Any] = field(default_factory=dict)
    names: int = 0

    def add(self, depth: int, line: str, *leaves: Leaf) -> None:
        """Append a line, indented by `depth` steps, and the fields to blame when it fails: one at least."""
        assert leaves, line
        self.lines.append("    " * depth + line)
        self.leaves.append(leaves)

    def fresh(self, prefix: str) -> str:
        """A variable name not used before in this function."""
        self.names += 1
        return f"{prefix}{self.names}"

    def constant(self, prefix: str, value: Any) -> str:
        """A name under which the function sees `value`; the same value keeps its name."""
        for name, known in self.scope.items():
            if known is value and name.startswith(prefix):
                return name
        name = self.fresh(prefix)
        self.scope[name] = value
        return name

    def function(self, name: str, title: str) -> Any:
        """Compile the lines and return the function called `name`."""
        exec(compile("\n".join(self.lines), f"<{title}>", "exec"), self.scope)
        function = self.scope[name]
        function.lines = tuple(self.lines)
        return function

    def leaves_of(self, traceback: TracebackType | None) -> tuple[tuple[Leaf, ...], dict[str, Any]]:
        """The leaves of the line that raised, and the function's variables at that moment."""
        assert traceback is not None, "only for an exception caught in the compiled function"
        return self.leaves[traceback.tb_lineno - 1], traceback.tb_frame.f_locals
