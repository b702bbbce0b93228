"""Ctrl-C, or another signal, at a chosen moment of a call: the n-th of all the moments at which Python would call a signal handler.

CPython looks for signals where a function of Python begins, where one of C has returned, and where a loop goes round, in the main thread
alone; nothing comes between two statements without any of these. A wait that a signal ends is one of C that does not return. Here a trace
does what the handler does, once: it raises, or calls what a test wants. The library's own moments count, and those of the standard library
within its calls, but not those of `logging` and of packages that compute, whose locks and caches are not ours to guard.
"""

from __future__ import annotations

import dis
import logging
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, Final

LOOPS: Final = {number for name, number in dis.opmap.items() if name.startswith("JUMP_BACKWARD")}
BEGINS: Final = dis.opmap["RESUME"]
WAITS: Final = ("lock.acquire", "RLock.acquire", "lock.acquire_lock")
OTHERS: Final = ("/numba/", "/numpy/", "/pyarrow/")
TRIES_MAX: Final = 100
NOT_OURS: Final = (__file__, logging.__file__, dis.__file__)


def ctrl_c() -> None:
    raise KeyboardInterrupt


class Interrupt:
    """Calls `handler` at moment number `index` of what is done within; `left` is negative once it has."""

    def __init__(self, index: int, handler: Callable[[], object] = ctrl_c) -> None:
        self.left = index
        self.handler = handler
        self._before: Any = (None, None)
        self._outside: FrameType | None = None
        self.place = ""
        """Where it was called, for people."""
        self.is_elsewhere = False
        """What was done within is not what was meant."""

    def __enter__(self) -> None:
        self._before, self._outside = (sys.gettrace(), sys.getprofile()), sys._getframe(1)
        sys.settrace(self._called)
        sys.setprofile(self._profiled)

    def __exit__(self, *_: object) -> None:
        self._outside = None
        sys.setprofile(self._before[1])
        sys.settrace(self._before[0])

    @property
    def has_happened(self) -> bool:
        return self.left < 0

    def _called(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if _is_not_ours(frame):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "opcode" and frame.f_code.co_code[frame.f_lasti] in LOOPS and not self._is_apart(frame):
            self._moment(frame, "loop")
        return self._stepped

    def _profiled(self, frame: FrameType, event: str, argument: Any) -> None:
        name = getattr(argument, "__qualname__", "")
        # A generator that is closed is called, too, but no signal comes there.
        is_moment = {"call": frame.f_code.co_code[frame.f_lasti] == BEGINS, "c_call": name in WAITS, "c_return": True}.get(event, False)
        if is_moment and not self._is_apart(frame):
            self._moment(frame, f"{event} {name}")

    def _is_apart(self, frame: FrameType | None) -> bool:
        while frame is not None and frame is not self._outside:
            if _is_not_ours(frame):
                return True
            frame = frame.f_back
        return False

    def _moment(self, frame: FrameType, what: str) -> None:
        self.left -= 1
        if self.left < 0:
            sys.setprofile(None)
            sys.settrace(None)
            code: CodeType = frame.f_code
            self.place = f"{code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno} {code.co_qualname}: {what}"
            self.handler()


def moments() -> Iterator[Interrupt]:
    """An interrupt for each moment of a call, one after the other, until the call is over before it comes. A call that went another way,
    `is_elsewhere`, is made again for the same moment."""
    index = tries = 0
    while tries < TRIES_MAX:
        interrupt = Interrupt(index)
        yield interrupt
        if interrupt.has_happened:
            index, tries = index + 1, 0
        elif not interrupt.is_elsewhere:
            return
        else:
            tries += 1
    raise AssertionError(f"{index} moments, and then {tries} calls that went another way")


def _is_not_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename in NOT_OURS or any(name in frame.f_code.co_filename for name in OTHERS)
