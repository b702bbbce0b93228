"""A condition that Ctrl-C leaves whole: neither kept for ever by who entered it, nor let go in the midst of what it guards.

CPython lets a signal handler raise in the main thread where a function of Python begins, where one of C has returned, and where a loop
goes round; between two statements without any of these nothing comes. `with lock` is safe for a lock that is made in C; that of
`threading.Condition` is a function of Python, which has the lock before its caller knows.
"""

from __future__ import annotations

import threading
from typing import Any


class Condition(threading.Condition):
    """Of a lock that the same thread may take again; it is held once by who waits."""

    # `with` finds these as it finds methods, and gets those of the lock itself: nothing of Python's lies between.
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
        """As that of the standard class, which holds the lock no more if it was interrupted just after it had let it go."""
        if not self.is_owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        try:
            return super().wait(timeout)
        finally:
            if not self.is_owned():
                self._reacquire((1, threading.get_ident()))
