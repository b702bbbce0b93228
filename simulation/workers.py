"""A process that plays many worlds. In a file of its own: processes that are spawned cannot find what the program's own file defines."""

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
"""Torn ends that recovery reports are what these worlds are made of."""
GC_THRESHOLD: Final = 50_000
"""New objects before the next search for garbage: most of what a world makes goes by itself."""


def prepare(*, for_many_worlds: bool = True) -> None:
    """Quiet; and for many worlds the compiled loops, and no search for garbage among what is there to stay."""
    logging.disable(DISABLED_LOG_LEVEL)
    parent = multiprocessing.parent_process()
    if parent is not None:  # Who is killed cannot tell its processes to end: they would wait for the next world for ever.
        threading.Thread(target=_exit_with, args=(parent,), name="end with the parent", daemon=True).start()
    if for_many_worlds:
        kernels.load()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)


def _exit_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
