"""Version checks: formats of files and records, and messages between driver and executors.

A file or record of a later format is refused by name. Driver and executors need the same Chaffinch version, and an error reports a
difference. For that, a message contains the version of its writer: the package version, and a checksum of the fields of the classes in
it, which distinguishes two source trees of one version.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from chaffinch.errors.codes import Group
from chaffinch.spark.refusals import Refusal
from chaffinch.version import VERSION

FORMAT_NEWER: Final = "FORMAT_NEWER"
EARLIER: Final = "an earlier version"


class NewerFormat(ValueError):
    """A file or record has a format of a later version of Chaffinch."""

    def __init__(self, version: int, known: int) -> None:
        super().__init__(f"it has format version {version}, this Chaffinch supports versions up to {known}")

    def refusal(self, what: str) -> Refusal:
        """The error as a Refusal. `what`: which file or record it is."""
        text = f"{what} cannot be read: {self}; use the version of Chaffinch that wrote it, or a newer one"
        return Refusal(Group.INVALID_CONFIGURATION, FORMAT_NEWER, text)


def check_format(fields: Mapping[str, Any], known: int) -> None:
    """Raises NewerFormat if the version is above `known`. Without a version it is 1."""
    version = fields.get("version", 1)
    if isinstance(version, int) and version > known:
        raise NewerFormat(version, known)


def version_of(*messages: type) -> str:
    """The version of messages that contain instances of these dataclasses."""
    described = ";".join(f"{kind.__name__}:" + ",".join(field.name for field in fields(kind)) for kind in messages)
    return f"{VERSION} (messages {zlib.crc32(described.encode()):08x})"


def versions_differ(host: str, version: str, drivers: str) -> Refusal:
    text = f"{host} has chaffinch {version}, the driver has {drivers}: install the same version everywhere"
    return Refusal(Group.INVALID_CONFIGURATION, "VERSIONS_DIFFER", text)


class SentToExecutors:
    """Base class of objects that a driver pickles for executors. `_version`: of this process; `_planned_with`: of the process that
    created it.

    The state is pickled separately, so that an executor with a different version can report VERSIONS_DIFFER instead of failing to unpickle.
    """

    _version: str
    _planned_with: str | None = None
    """None: the version of this process."""

    def __reduce__(self) -> tuple[object, ...]:
        return received, (type(self), self._version, pickle.dumps(self.__dict__))

    def __setstate__(self, state: object) -> None:
        """Called only for a pickle of an earlier version, which contains no version; its state may be incompatible."""
        self._planned_with = EARLIER

    def check_version(self, host: str) -> None:
        """Raises Refusal if the version of this process differs from the driver's."""
        if self._planned_with is not None:
            raise versions_differ(host, self._version, self._planned_with)


def received(kind: type[Any], version: str, state: bytes) -> Any:
    """Unpickle an object that `SentToExecutors` has pickled. Its name is fixed: pickles of every version refer to it."""
    made: Any = object.__new__(kind)
    if version == made._version:
        made.__dict__.update(pickle.loads(state))
    else:
        made._planned_with = version
    return made
