"""A request, or a part of one, that the broker refuses: the code and the reason, before they become fields of an answer."""

from __future__ import annotations

from chaffinch.errors import exception_for
from chaffinch.errors.codes import ErrorCode
from chaffinch.errors.exceptions import ApiException


class RequestRefused(Exception):
    """Raised inside the core and caught by handlers; `as_exception` is for the door to Python callers."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code.name, message)
        self.code = code
        self.message = message

    def as_exception(self, api: str | None = None) -> ApiException:
        return exception_for(self.code, message=self.message, api=api)
