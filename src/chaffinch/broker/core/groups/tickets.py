"""Answers that are promised now and given later: a member waits for the others."""

from __future__ import annotations

from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Ticket(Generic[Answer]):
    """One promised answer: None until it is there. Each ticket is a key of its own for those that wait."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: Answer | None = None
