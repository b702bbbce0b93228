"""Worker process that runs many worlds. A module of its own, because spawned processes cannot import definitions from `__main__`."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import threading
from multiprocessing.process import BaseProcess
from typing import Final

from chaffinch.records import kernels

DISABLED_LOG_LEVEL: Final = logging.WARNING
"""Torn log ends reported by recovery are expected here."""
GC_THRESHOLD: Final = 50_000
"""New objects before the next garbage collection: reference counting frees most objects of a world."""


def prepare(*, for_many_worlds: bool = True) -> None:
    """Set up the process: no log lines; for many worlds also the compiled loops, and no garbage collection of the objects loaded so far."""
    logging.disable(DISABLED_LOG_LEVEL)
    parent = multiprocessing.parent_process()
    if parent is not None:  # A killed parent cannot end its workers: they would wait for the next world forever.
        threading.Thread(target=_exit_with, args=(parent,), name="end with the parent", daemon=True).start()
    if for_many_worlds:
        kernels.load()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)


def _exit_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
