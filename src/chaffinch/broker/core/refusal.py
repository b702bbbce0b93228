"""A request, or a part of one, that the broker refuses: the code and the reason, before they become fields of an answer."""

from __future__ import annotations

from chaffinch.errors import codes, exception_for
from chaffinch.errors.codes import ErrorCode
from chaffinch.errors.exceptions import ApiException
from chaffinch.storage.file_system import StorageError


class RequestRefused(Exception):
    """Raised inside the core and caught by handlers; `as_exception` is for the door to Python callers.

    `message` is for whoever asked, `logged` for the broker's own log, which may say more.
    """

    def __init__(self, code: ErrorCode, message: str, logged: str | None = None) -> None:
        super().__init__(code.name, message)
        self.code = code
        self.message = message
        self.logged = message if logged is None else logged

    def as_exception(self, api: str | None = None) -> ApiException:
        return exception_for(self.code, message=self.message, api=api)


def to_refusal(error: RequestRefused | StorageError, what: object, code: ErrorCode = codes.KAFKA_STORAGE_ERROR) -> RequestRefused:
    """What a request is refused with that raised this; `what` and `code` for a failure of the disk, as in `disk_refusal`."""
    return error if isinstance(error, RequestRefused) else disk_refusal(what, error, code)


def disk_refusal(what: object, error: StorageError, code: ErrorCode = codes.KAFKA_STORAGE_ERROR) -> RequestRefused:
    """The broker's disk has failed at `what`: a topic-partition, or whatever else was to be read or written. Where on the disk that is, and
    what the system said, is the business of whoever runs the broker: it stands in the log only."""
    return RequestRefused(code, disk_failure_message(what), logged=str(error))


def disk_failure_message(what: object) -> str:
    """What peers are told."""
    return f"the broker's disk has failed at {what}: the broker's log says how, so ask whoever runs it"
