"""Versions of what one process leaves for another: files and records for later ones, messages between driver and executors.

A file or record of a later format is refused by name. Driver and executors need the same Chaffinch; where they differ, the error says so:
a message names the version of its writer: the package's, and a checksum of the fields of the classes in it, so that two trees of one
version that have different messages differ too.
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
    """A file or record of a format that a later version of Chaffinch has written, and this one does not know."""

    def __init__(self, version: int, known: int) -> None:
        super().__init__(f"it has format version {version}, this Chaffinch knows versions up to {known}")

    def refusal(self, what: str) -> Refusal:
        """`what`: which file or record it is."""
        text = f"{what} cannot be read: {self}; use the version of Chaffinch that wrote it, or a newer one"
        return Refusal(Group.INVALID_CONFIGURATION, FORMAT_NEWER, text)


def check_format(fields: Mapping[str, Any], known: int) -> None:
    """Raises NewerFormat. What names no version has version 1."""
    version = fields.get("version", 1)
    if isinstance(version, int) and version > known:
        raise NewerFormat(version, known)


def version_of(*messages: type) -> str:
    """The version that a message names in which instances of these dataclasses travel."""
    described = ";".join(f"{kind.__name__}:" + ",".join(field.name for field in fields(kind)) for kind in messages)
    return f"{VERSION} (messages {zlib.crc32(described.encode()):08x})"


def versions_differ(host: str, version: str, drivers: str) -> Refusal:
    text = f"{host} has chaffinch {version}, the driver has {drivers}: install the same version everywhere"
    return Refusal(Group.INVALID_CONFIGURATION, "VERSIONS_DIFFER", text)


class SentToExecutors:
    """A base of what a driver pickles for executors. `_version`: of this process; `_planned_with`: of the one that has made it.

    The state is in bytes of its own: an executor with another version may not understand it, and only reports that.
    """

    _version: str
    _planned_with: str | None = None
    """None: the version of this process."""

    def __reduce__(self) -> tuple[object, ...]:
        return received, (type(self), self._version, pickle.dumps(self.__dict__))

    def __setstate__(self, state: object) -> None:
        """Called for a pickle of an earlier version only: it names no version, and its state may mean something else here."""
        self._planned_with = EARLIER

    def check_version(self, host: str) -> None:
        """Raises Refusal in a process of another version than the driver's."""
        if self._planned_with is not None:
            raise versions_differ(host, self._version, self._planned_with)


def received(kind: type[Any], version: str, state: bytes) -> Any:
    """Unpickles what `SentToExecutors` has pickled. Every version calls it so."""
    made: Any = object.__new__(kind)
    if version == made._version:
        made.__dict__.update(pickle.loads(state))
    else:
        made._planned_with = version
    return made
