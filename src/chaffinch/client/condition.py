"""Condition variable that is safe against Ctrl-C: the lock is neither kept forever nor released within a critical section.

CPython runs signal handlers on the main thread at the start of a Python function, after a C function returns, and at the end of a loop
iteration; not between two statements without one of these. `with lock` is safe for a lock implemented in C. `threading.Condition` is not:
its `__enter__` is a Python function, and a signal handler that raises within it leaves the lock held.
"""

from __future__ import annotations

import threading
from typing import Any


class Condition(threading.Condition):
    """Condition with a reentrant lock; a thread that waits must hold the lock exactly once."""

    # `with` looks these up as methods and gets those of the lock: no Python function is in between.
    __slots__ = ("__enter__", "__exit__")

    def __init__(self, lock: Any = None) -> None:
        """`lock`: a `threading.RLock`, by default a new one."""
        lock = threading.RLock() if lock is None else lock
        super().__init__(lock)
        self.__enter__, self.__exit__ = lock.__enter__, lock.__exit__  # type: ignore[method-assign]
        self.is_owned: Any = lock._is_owned
        """Whether the caller's thread holds the lock."""
        self._reacquire: Any = lock._acquire_restore

    def wait(self, timeout: float | None = None) -> bool:
        """Like `threading.Condition.wait`, but the lock is held again even if a signal interrupts it between release and wait."""
        if not self.is_owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        try:
            return super().wait(timeout)
        finally:
            if not self.is_owned():
                self._reacquire((1, threading.get_ident()))
