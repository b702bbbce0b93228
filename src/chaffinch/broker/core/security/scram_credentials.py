"""Login credentials: users given at start with their passwords, and SCRAM credentials that administrators add (KIP-554).

Added credentials are stored in the cluster journal, as in Kafka without the password; they override a password given at start for the same
user.

A login does not reveal which users exist, nor how a credential is stored. For an unknown user it continues with a made-up credential and
fails at the end. The made-up salt and iterations are always the same, also after a restart: they are derived from a secret in the journal,
and look like those of an existing user. Both paths do the same work: expensive keys are derived at the start.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from chaffinch.broker.core.topics.registry import RandomSource
from chaffinch.protocol import scram
from chaffinch.protocol.scram import Credential, ScramMechanism
from chaffinch.storage.files import StorageError
from chaffinch.storage.journal import Journal

_PREFIX: Final = b"scram.credential/"
_SECRET: Final = b"scram.secret"
SALT_BYTES: Final = 16
SECRET_BITS: Final = 256
SALT_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
"""Apache Kafka's own tool creates salts of these characters."""


class _Shape(NamedTuple):
    """The properties of a credential that a client can observe."""

    iterations: int
    salt_bytes: int
    has_digits: bool

    @classmethod
    def of(cls, credential: Credential) -> _Shape:
        return cls(credential.iterations, len(credential.salt), not credential.salt.translate(None, SALT_DIGITS))


_OF_USERS: Final = _Shape(scram.ITERATIONS_MIN, SALT_BYTES, has_digits=False)
"""The shape of credentials for passwords given at start."""


class ScramCredentials:
    """See the module docstring."""

    def __init__(self, journal: Journal, users: Mapping[str, str], rng: RandomSource) -> None:
        self._journal = journal
        self._users = dict(users)
        self._rng = rng
        self._secret = b""  # The secret from which salts are derived; see `prepare`.
        self._digests: dict[str, bytes] = {}  # Password digests by user.
        self._of_users: dict[tuple[str, ScramMechanism], Credential] = {}
        self._shapes: dict[ScramMechanism, list[_Shape]] = {}
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

    def prepare(self, mechanisms: Iterable[str]) -> None:
        """Derive the keys for these mechanisms before the first login: some milliseconds for each user given at start."""
        self._secret = self._stored_secret()
        self._digests = {user: self._digest(password) for user, password in self._users.items()}
        for mechanism in ScramMechanism:
            if mechanism.title in mechanisms:
                self._of_users |= {(user, mechanism): self._derived(mechanism, user, password) for user, password in self._users.items()}
        self._note_shapes()

    def is_password(self, user: str, password: str) -> bool:
        """Whether the password is the one given at start for this user. Takes equally long for every user."""
        expected = self._digests.get(user, self._secret)
        return hmac.compare_digest(self._digest(password), expected) and user in self._digests

    def find(self, user: str, mechanism: ScramMechanism) -> Credential:
        """The credential to verify a proof with. For an unknown user no proof is valid. Takes equally long for every user."""
        made_up = self._made_up(user, mechanism)
        return self._added.get((user, mechanism)) or self._of_users.get((user, mechanism)) or made_up

    def _made_up(self, user: str, mechanism: ScramMechanism) -> Credential:
        nothing = bytes(hashlib.new(mechanism.hash_name).digest_size)
        number = int.from_bytes(self._bytes(f"shape {mechanism.title}", user, 8), "big")
        shape = self._shapes[mechanism][number % len(self._shapes[mechanism])]
        salt = self._bytes(mechanism.title, user, shape.salt_bytes)
        if shape.has_digits:
            salt = bytes(SALT_DIGITS[byte % len(SALT_DIGITS)] for byte in salt)
        return Credential(mechanism=mechanism, salt=salt, iterations=shape.iterations, stored_key=nothing, server_key=nothing)

    def added(self) -> Mapping[tuple[str, ScramMechanism], Credential]:
        """Credentials that administrators added. Read-only."""
        return self._added

    def alter(self, changes: Mapping[tuple[str, ScramMechanism], Credential | None]) -> None:
        """Add, replace or (with None) remove credentials, all or none. Raises StorageError."""
        self._journal.put({_key(*key): None if credential is None else _encoded(credential) for key, credential in changes.items()})
        for key, credential in changes.items():
            if credential is None:
                self._added.pop(key, None)
            else:
                self._added[key] = credential
        self._note_shapes()

    def _note_shapes(self) -> None:
        """Collect the distinct shapes of the existing credentials, which rarely change."""
        for mechanism in ScramMechanism:
            found = {_Shape.of(credential) for (_, of), credential in self._added.items() if of is mechanism}
            self._shapes[mechanism] = sorted(found | {_OF_USERS} if self._users or not found else found)

    def _derived(self, mechanism: ScramMechanism, user: str, password: str) -> Credential:
        salt = self._bytes(mechanism.title, user, SALT_BYTES)
        salted = scram.salted_password(mechanism, password, salt, scram.ITERATIONS_MIN)
        return Credential.of_salted(mechanism, salt, scram.ITERATIONS_MIN, salted)

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._secret, password.encode(), "sha256")

    def _bytes(self, purpose: str, user: str, count: int) -> bytes:
        """Deterministic bytes that cannot be guessed."""
        return hashlib.shake_256(self._secret + f"{purpose} {user}".encode()).digest(count)

    def _stored_secret(self) -> bytes:
        stored = self._journal.get(_SECRET)
        if stored is None:
            stored = self._rng.getrandbits(SECRET_BITS).to_bytes(SECRET_BITS // 8, "big")
            with suppress(StorageError):  # On a full disk the next start creates another one.
                self._journal.put({_SECRET: stored})
                self._journal.sync()
        return stored


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
