"""Who may log in: users given at start with their passwords, and SCRAM credentials that administrators add (KIP-554).

Added ones are kept in the journal of the cluster, as in Kafka without the password; they win over a password of the same user given at
start. For a user that nobody knows a login goes on with a made-up salt, the same each time, and fails at its end: who asks does not learn
which users there are.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Mapping
from typing import Final

from chaffinch.broker.core.topics.registry import Dice
from chaffinch.protocol import scram
from chaffinch.protocol.scram import Credential, ScramMechanism
from chaffinch.storage.journal import Journal

_PREFIX: Final = b"scram.credential/"
SALT_BYTES: Final = 16
SECRET_BITS: Final = 256


class ScramCredentials:
    """See the module."""

    def __init__(self, journal: Journal, users: Mapping[str, str], dice: Dice) -> None:
        self._journal = journal
        self._users = dict(users)
        self._dice = dice
        self._secret = b""  # Of this process: what salts are made of. Thrown when the first is needed.
        self._of_users: dict[tuple[str, ScramMechanism], Credential] = {}
        self._added: dict[tuple[str, ScramMechanism], Credential] = {}
        for key, value in journal.items().items():
            if key.startswith(_PREFIX):
                user, credential = _decoded(key, value)
                self._added[user, credential.mechanism] = credential

    def __len__(self) -> int:
        return len(self._users) + len(self._added)

    @property
    def has_users(self) -> bool:
        """Whether users were given at start."""
        return bool(self._users)

    def is_password(self, user: str, password: str) -> bool:
        """Whether it is the password that this user was given at start."""
        expected = self._users.get(user)
        return hmac.compare_digest(password.encode(), (expected or "").encode()) and expected is not None

    def find(self, user: str, mechanism: ScramMechanism) -> Credential | None:
        """What to check a proof of this user with; None when there is nothing."""
        added = self._added.get((user, mechanism))
        if added is not None or user not in self._users:
            return added
        known = self._of_users.get((user, mechanism))
        if known is None:
            known = self._of_users[user, mechanism] = self._derived(mechanism, user, self._users[user])
        return known

    def made_up(self, user: str, mechanism: ScramMechanism) -> Credential:
        """What nobody's proof fits."""
        nothing = bytes(len(hmac.digest(b"", b"", mechanism.hash_name)))
        salt = self._salt(mechanism, user)
        return Credential(mechanism=mechanism, salt=salt, iterations=scram.ITERATIONS_MIN, stored_key=nothing, server_key=nothing)

    def added(self) -> Mapping[tuple[str, ScramMechanism], Credential]:
        """Those that administrators added. To look at, not to change."""
        return self._added

    def alter(self, changes: Mapping[tuple[str, ScramMechanism], Credential | None]) -> None:
        """Add, replace and, with None, take away: all or nothing. Raises StorageError."""
        self._journal.put({_key(*place): None if credential is None else _encoded(credential) for place, credential in changes.items()})
        for place, credential in changes.items():
            if credential is None:
                self._added.pop(place, None)
            else:
                self._added[place] = credential

    def _derived(self, mechanism: ScramMechanism, user: str, password: str) -> Credential:
        salt = self._salt(mechanism, user)
        salted = scram.salted_password(mechanism, password, salt, scram.ITERATIONS_MIN)
        return Credential.of_salted(mechanism, salt, scram.ITERATIONS_MIN, salted)

    def _salt(self, mechanism: ScramMechanism, user: str) -> bytes:
        self._secret = self._secret or self._dice.getrandbits(SECRET_BITS).to_bytes(SECRET_BITS // 8, "big")
        return hmac.digest(self._secret, f"{mechanism.title} {user}".encode(), "sha256")[:SALT_BYTES]


def _key(user: str, mechanism: ScramMechanism) -> bytes:
    return _PREFIX + f"{mechanism.title}/{user}".encode()


def _encoded(credential: Credential) -> bytes:
    parts = {name: base64.b64encode(getattr(credential, name)).decode() for name in ("salt", "stored_key", "server_key")}
    return json.dumps({**parts, "iterations": credential.iterations}).encode()


def _decoded(key: bytes, value: bytes) -> tuple[str, Credential]:
    title, _, user = key.removeprefix(_PREFIX).decode().partition("/")
    fields = json.loads(value)
    parts = {name: base64.b64decode(fields[name]) for name in ("salt", "stored_key", "server_key")}
    mechanism = ScramMechanism[title.replace("-", "_")]
    return user, Credential(mechanism=mechanism, iterations=fields["iterations"], **parts)
