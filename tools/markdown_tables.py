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


def member_table() -> str:
    """The moves of a group's member: state, event, next state."""
    moves = membership_states.TRANSITIONS.items()
    rows = [(state.value, event.value, after.value) for (state, event), after in moves if state is not after]
    return _moves_table(rows)


def producer_transaction_table() -> str:
    """The moves of a producer's transactions; the fatal ones, possible everywhere, are left out."""
    moves = transaction_moves.MOVES.items()
    rows = [
        (state.name, move.value, after.name) for (state, move), after in moves if move is not Move.FAILED_FATALLY and state is not after
    ]
    return _moves_table(rows)


def _moves_table(rows: Iterable[tuple[str, str, str]]) -> str:
    """One row for each event and next state, with all states that it leads from."""
    sources: dict[tuple[str, str], list[str]] = {}
    for state, event, after in rows:
        sources.setdefault((event, after), []).append(f"`{state}`")
    lines = [f"| {', '.join(states)} | {event} | `{after}` |" for (event, after), states in sources.items()]
    return "\n".join(["| from | event | to |", "|---|---|---|", *lines]) + "\n"


def transaction_table() -> str:
    """The same transitions as a table: a row per state, a column per transition, the next state in each cell."""
    rows = ["| state | " + " | ".join(move.value for move in Move) + " |", "|---" * (len(Move) + 1) + "|"]
    for state in State:
        after = (transaction_moves.MOVES.get((state, move)) for move in Move)
        rows.append(f"| {state.value} | " + " | ".join("" if found is None else found.value for found in after) + " |")
    return "\n".join(rows) + "\n"
