"""Users with SCRAM credentials: list them, set and delete their passwords (KIP-554).

A password never leaves this process: brokers get a salted hash of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from chaffinch.client import response_errors
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import codes, exception_for
from chaffinch.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from chaffinch.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from chaffinch.protocol.scram import ITERATIONS_MIN, ScramMechanism, salted_password
from chaffinch.public_names import exported_from

SALT_BYTES: Final = 16
Mechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]
MECHANISMS: Final = {mechanism.title: mechanism for mechanism in ScramMechanism}


@exported_from("chaffinch.admin")
@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """A credential of a user, without secrets: `SCRAM-SHA-256` or `SCRAM-SHA-512`, and the number of hash iterations."""

    mechanism: str
    iterations: int


@exported_from("chaffinch.admin")
@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user with the credentials that brokers store."""

    name: str
    credentials: tuple[ScramCredential, ...]


def describe_users(client: SyncClient, names: Iterable[str] | None = None) -> list[User]:
    """Users by name.

    Args:
        client: client of `options.connect`.
        names: names of users; None for all that have a SCRAM credential.

    Returns:
        The users in the order of their names.

    Raises:
        ResourceNotFoundException: a named user has no SCRAM credential.
    """
    wanted = None if names is None else [UserName(name=name) for name in names]
    if wanted == []:
        return []
    answer: DescribeUserScramCredentialsResponse = client.request(DescribeUserScramCredentialsRequest(users=wanted))
    for code, message in response_errors.codes_in(answer):
        missing = [found.user for found in answer.results if found.error_code == codes.RESOURCE_NOT_FOUND.number]
        text = f"user {missing[0]!r} has no SCRAM credential" if missing else message
        raise exception_for(code, message=text, api="DescribeUserScramCredentials")
    titles = {mechanism.value: mechanism.title for mechanism in ScramMechanism}
    users = [
        User(
            name=found.user,
            credentials=tuple(
                ScramCredential(mechanism=titles.get(info.mechanism, f"mechanism {info.mechanism}"), iterations=info.iterations)
                for info in found.credential_infos
            ),
        )
        for found in answer.results
    ]
    return sorted(users, key=lambda user: user.name)


def set_password(
    client: SyncClient, name: str, password: str, *, mechanism: Mechanism = "SCRAM-SHA-256", iterations: int = ITERATIONS_MIN
) -> None:
    """Create a user, or replace the password for one mechanism.

    Args:
        client: client of `options.connect`.
        name: name of the user.
        password: the new password.
        mechanism: `SCRAM-SHA-256` or `SCRAM-SHA-512`.
        iterations: number of hash iterations, from 4096 to 16384.

    Raises:
        UnacceptableCredentialException: the broker rejects name or iterations.
    """
    salt, kind = secrets.token_bytes(SALT_BYTES), MECHANISMS[mechanism]
    credential = ScramCredentialUpsertion(
        name=name,
        mechanism=kind.value,
        iterations=iterations,
        salt=salt,
        salted_password=salted_password(kind, password, salt, iterations),
    )
    response_errors.raise_for(client.controller_request(AlterUserScramCredentialsRequest(deletions=[], upsertions=[credential])))


def delete_password(client: SyncClient, name: str, *, mechanism: Mechanism = "SCRAM-SHA-256") -> None:
    """Delete the credential of a user for one mechanism; without any the user cannot log in.

    Args:
        client: client of `options.connect`.
        name: name of the user.
        mechanism: `SCRAM-SHA-256` or `SCRAM-SHA-512`.

    Raises:
        ResourceNotFoundException: there is no such credential.
    """
    deletion = ScramCredentialDeletion(name=name, mechanism=MECHANISMS[mechanism].value)
    response_errors.raise_for(client.controller_request(AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[])))
