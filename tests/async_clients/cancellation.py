"""Cancels a coroutine at its k-th suspension, and lists the await points of modules, so that tests can cancel at each of them."""

from __future__ import annotations

import ast
import asyncio
import types
from collections.abc import Coroutine, Generator, Iterable
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple


class AwaitPoint(NamedTuple):
    """An `await`, `async for` or `async with` in the source text."""

    file: str
    line: int
    text: str


def await_points(modules: Iterable[ModuleType]) -> set[AwaitPoint]:
    """All await points of these modules."""
    return {point for module in modules for point in _points_of(str(module.__file__)).values()}


def _points_of(path: str) -> dict[tuple[int, int], AwaitPoint]:
    """The await points of a file, by line and column."""
    found = {}
    for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Await):
            awaited: list[ast.expr] = [node.value]
            at = node.lineno, node.col_offset
        elif isinstance(node, ast.AsyncFor):
            awaited, at = [node.iter], (node.iter.lineno, node.iter.col_offset)
        elif isinstance(node, ast.AsyncWith):
            awaited, at = (
                [item.context_expr for item in node.items],
                (node.items[0].context_expr.lineno, node.items[0].context_expr.col_offset),
            )
        else:
            continue
        found[at] = AwaitPoint(Path(path).name, node.lineno, ", ".join(map(ast.unparse, awaited)))
    return found


class Cancelled(Exception):
    """The coroutine was cancelled. `passed`: the await points that the cancellation has passed through."""

    def __init__(self, passed: set[AwaitPoint]) -> None:
        super().__init__(passed)
        self.passed = passed


async def cancelled_at(suspension: int, coroutine: Coroutine[Any, Any, None]) -> bool:
    """Run a coroutine in the current task, which is cancelled at the coroutine's k-th suspension, counted from 0.

    Returns whether it ended before that. Raises Cancelled if it was cancelled.
    """
    driver = _Driver(suspension, coroutine)
    try:
        await driver.run()
    except asyncio.CancelledError as error:
        if not driver.has_cancelled:
            raise
        current = asyncio.current_task()
        assert current is not None
        current.uncancel()
        raise Cancelled(_passed(error)) from error
    return not driver.has_cancelled


class _Driver:
    def __init__(self, suspension: int, coroutine: Coroutine[Any, Any, None]) -> None:
        self.has_cancelled = False
        self._left = suspension
        self._coroutine = coroutine

    @types.coroutine
    def run(self) -> Generator[Any, Any, None]:
        send: Any = self._coroutine.send
        argument: Any = None
        while True:
            try:
                waited_for = send(argument)
            except StopIteration:
                return
            if self._left == 0:
                self.has_cancelled = True
                task = asyncio.current_task()
                assert task is not None
                task.cancel()  # Takes effect when the task suspends below.
            self._left -= 1
            try:
                argument = yield waited_for
                send = self._coroutine.send
            except BaseException as error:
                argument, send = error, self._coroutine.throw


def _passed(error: BaseException) -> set[AwaitPoint]:
    passed = set()
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "/chaffinch/" in code.co_filename:
            line, _, column, _ = next(islice(code.co_positions(), trace.tb_lasti // 2, None))
            point = _points_of(code.co_filename).get((line or 0, column or 0))
            if point is not None:
                passed.add(point)
        trace = trace.tb_next
    return passed
