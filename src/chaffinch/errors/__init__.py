"""Error codes, exceptions (KIP-1050), and how a client handles each code.

`from chaffinch import errors`: `errors.InvalidRecordException`, `errors.codes.by_number(87)`, `errors.group_of(exception)`.
"""

from chaffinch.errors import codes, exceptions
from chaffinch.errors.codes import ErrorCode, Group, Stored
from chaffinch.errors.exceptions import *  # noqa: F403 - the whole class tree is this package's surface.
from chaffinch.errors.exceptions import _restore as _restore  # Pickles refer to it.

__all__ = ["ErrorCode", "Group", "Stored", "codes"]
__all__ += exceptions.__all__
