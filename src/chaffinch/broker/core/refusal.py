"""Refused requests: error code and reason, before they become fields of a response."""

from __future__ import annotations

from chaffinch.errors import codes, exception_for
from chaffinch.errors.codes import ErrorCode
from chaffinch.errors.exceptions import ApiException
from chaffinch.storage.file_system import StorageError


class RequestRefused(Exception):
    """Raised inside the core and caught by handlers; `as_exception` converts it for Python callers.

    `message` is sent to the client; `logged` is written to the broker's log and may contain more.
    """

    def __init__(self, code: ErrorCode, message: str, logged: str | None = None) -> None:
        super().__init__(code.name, message)
        self.code = code
        self.message = message
        self.logged = message if logged is None else logged

    def as_exception(self, api: str | None = None) -> ApiException:
        return exception_for(self.code, message=self.message, api=api)


def to_refusal(error: RequestRefused | StorageError, what: object, code: ErrorCode = codes.KAFKA_STORAGE_ERROR) -> RequestRefused:
    """Convert an error to a refusal. `what` and `code` describe a disk failure, as in `disk_refusal`."""
    return error if isinstance(error, RequestRefused) else disk_refusal(what, error, code)


def disk_refusal(what: object, error: StorageError, code: ErrorCode = codes.KAFKA_STORAGE_ERROR) -> RequestRefused:
    """Refusal for a disk failure while reading or writing `what`, for example a topic-partition. File names and system errors are for the
    operator, so they are in the log only.
    """
    return RequestRefused(code, disk_failure_message(what), logged=str(error))


def disk_failure_message(what: object) -> str:
    """The text of a disk failure for clients."""
    return f"the broker's disk failed for {what}; ask the operator for the details in the broker's log"
