"""Errors told again: a fresh exception for each caller, and each time.

One that is raised a second time keeps its first traceback below the new one. A loop that goes on after an error which comes with every call
would hold more frames, and what lies in them, with each round.
"""

from __future__ import annotations

from copy import copy
from typing import TypeVar

from chaffinch.errors.exceptions import KafkaException

AnyError = TypeVar("AnyError", bound=KafkaException)


def copy_for_raise(error: AnyError) -> AnyError:
    """The same error as a fresh exception. It has the first one's cause, not the first one: that would be told twice."""
    return with_message(error, error.message)


def with_message(error: AnyError, message: str) -> AnyError:
    """The same error in other words."""
    fresh = copy(error)
    fresh.message, fresh.args = message, (message,)
    fresh.__cause__ = error.__cause__
    return fresh
