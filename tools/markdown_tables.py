"""Markdown tables and Mermaid diagrams of options, metrics and state machines. Printed by `print_documents.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from chaffinch.consumer.core import membership_states
from chaffinch.producer.core.transactions import moves as transaction_moves
from chaffinch.producer.core.transactions.moves import Move, State
from chaffinch.settings import Option


def options_table(options: Iterable[Option]) -> str:
    """A row for each option."""
    rows = ["| option | type | default | allowed | meaning |", "|---|---|---|---|---|"]
    for option in options:
        default = "(required)" if option.required and option.default is None else _shown(option.default)
        cells = [f"`{option.name}`", option.kind, default, option.allowed, option.documentation]
        rows.append("|" + "".join(f" {cell} |" if cell else " |" for cell in cells))
    return "\n".join(rows) + "\n"


def _shown(default: Any) -> str:
    if default is None or default == ():
        return ""
    if isinstance(default, tuple):
        return "`" + ",".join(default) + "`"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def metrics_table(metrics: Mapping[str, Any]) -> str:
    """A row for each metric of a client."""
    rows = [f"| `{name}` | {metric.text} |" for name, metric in metrics.items()]
    return "\n".join(["| metric | |", "|---|---|", *rows]) + "\n"


def member_diagram() -> str:
    """The transitions of a group member, as a Mermaid state diagram."""
    moves = membership_states.TRANSITIONS.items()
    lines = [f"    {state.value} --> {after.value}: {event.value}" for (state, event), after in moves if state is not after]
    return "\n".join(["stateDiagram-v2", "    [*] --> out", *lines]) + "\n"


def transaction_diagram() -> str:
    """The transitions of a producer's transaction, as a Mermaid state diagram, without the fatal ones, which every state has."""
    lines = ["stateDiagram-v2", "    [*] --> UNINITIALIZED"]
    for (state, move), after in transaction_moves.MOVES.items():
        if move is not Move.FAILED_FATALLY and state is not after:
            lines.append(f"    {state.name} --> {after.name}: {move.value}")
    return "\n".join(lines) + "\n"


def transaction_table() -> str:
    """The same transitions as a table: a row per state, a column per transition, the next state in each cell."""
    rows = ["| state | " + " | ".join(move.value for move in Move) + " |", "|---" * (len(Move) + 1) + "|"]
    for state in State:
        after = (transaction_moves.MOVES.get((state, move)) for move in Move)
        rows.append(f"| {state.value} | " + " | ".join("" if found is None else found.value for found in after) + " |")
    return "\n".join(rows) + "\n"
