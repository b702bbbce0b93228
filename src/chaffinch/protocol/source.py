"""Source builder of both compilers: generated lines that know which fields they handle.

A compiled codec is one flat function without bookkeeping. When it fails, the failed line identifies the fields, and the function's
variables give the array indices, so precise errors have no cost in the normal case.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

from chaffinch.protocol.primitives import Bytes, Field

NO_FIELD: Final = Field("", Bytes, 0, 0, None, None, 0, None, False)
"""For a line that handles no particular field."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A field in a compiled line: `path` is a format string over the function's index variables, `owner` the variable with the
    structure.
    """

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
        """Append a line, indented by `depth` steps, and the fields to report if it fails (at least one)."""
        assert leaves, line
        self.lines.append("    " * depth + line)
        self.leaves.append(leaves)

    def fresh(self, prefix: str) -> str:
        """A variable name not used before in this function."""
        self.names += 1
        return f"{prefix}{self.names}"

    def constant(self, prefix: str, value: Any) -> str:
        """The name of `value` in the function; the same value has the same name."""
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
