"""A process that plays many worlds. In a file of its own: processes that are spawned cannot find what the program's own file defines."""

from __future__ import annotations

import gc
import logging
from typing import Final

from chaffinch.records import kernels

QUIET: Final = logging.WARNING
"""Torn ends that recovery reports are what these worlds are made of."""
GARBAGE_MANY: Final = 50_000
"""New objects before the next search for garbage: most of what a world makes goes by itself."""


def prepare(*, is_worth_it: bool = True) -> None:
    """Quiet; and for many worlds the compiled loops, and no search for garbage among what is there to stay."""
    logging.disable(QUIET)
    if is_worth_it:
        kernels.load()
        gc.freeze()
        gc.set_threshold(GARBAGE_MANY)
