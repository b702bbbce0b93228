"""Copies of exceptions, so that one error can be raised several times.

An exception raised a second time keeps its first traceback below the new one. A loop that continues after a repeated error would hold more
frames, and the objects in them, with each round.
"""

from __future__ import annotations

from copy import copy
from typing import TypeVar

from chaffinch.errors.exceptions import KafkaException

AnyError = TypeVar("AnyError", bound=KafkaException)


def copy_for_raise(error: AnyError) -> AnyError:
    """A copy of the error to raise. Its cause is the original's cause, not the original, which would otherwise be printed twice."""
    return with_message(error, error.message)


def with_message(error: AnyError, message: str) -> AnyError:
    """A copy of the error with another message."""
    fresh = copy(error)
    fresh.message, fresh.args = message, (message,)
    fresh.__cause__ = error.__cause__
    return fresh
