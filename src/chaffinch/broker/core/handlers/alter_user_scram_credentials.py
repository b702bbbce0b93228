"""AlterUserScramCredentials: adds, replaces and removes SCRAM credentials (KIP-554). Each user is processed separately.

Refusals and their order follow ScramControlManager.java.
"""

from __future__ import annotations

from collections import Counter

from chaffinch.broker.core.broker_state import BrokerState, Result, log_refusal
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.refusal import RequestRefused, disk_refusal
from chaffinch.broker.core.security.scram_credentials import ScramCredentials
from chaffinch.errors import codes
from chaffinch.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from chaffinch.protocol.scram import ITERATIONS_MAX, ITERATIONS_MIN, Credential, ScramMechanism
from chaffinch.storage.file_system import StorageError

Change = ScramCredentialDeletion | ScramCredentialUpsertion
CredentialKey = tuple[str, ScramMechanism]


def handle(broker: BrokerState, event: RequestReceived, request: AlterUserScramCredentialsRequest, steady_ms: int) -> Result:
    credentials = broker.authentication.credentials
    requested: list[Change] = [*request.deletions, *request.upsertions]
    times_named = Counter(change.name for change in requested)
    accepted: dict[CredentialKey, Credential | None] = {}
    results: dict[str, AlterUserScramCredentialsResult] = {}
    for change in requested:
        try:
            if times_named[change.name] > 1:
                text = f"user {change.name!r} is named {times_named[change.name]} times in one request"
                raise RequestRefused(codes.DUPLICATE_RESOURCE, text)
            key = _key(change)
            accepted[key] = _credential(change, key, credentials)
            results[change.name] = AlterUserScramCredentialsResult(user=change.name)
        except RequestRefused as refused:
            results[change.name] = _failed(change.name, refused)
    try:
        credentials.alter(accepted)
    except StorageError as error:
        for user, _ in accepted:
            failed = disk_refusal(f"the credentials of user {user}", error)
            log_refusal(broker, event, steady_ms, subject=f"user {user}", code=failed.code, reason=failed.logged)
            results[user] = _failed(user, failed)
    return AlterUserScramCredentialsResponse(results=list(results.values()))


def _failed(user: str, refused: RequestRefused) -> AlterUserScramCredentialsResult:
    return AlterUserScramCredentialsResult(user=user, error_code=refused.code.number, error_message=refused.message)


def _key(change: Change) -> CredentialKey:
    if not change.name:
        raise RequestRefused(codes.UNACCEPTABLE_CREDENTIAL, "the user name is empty")
    try:
        return change.name, ScramMechanism(change.mechanism)
    except ValueError:
        known = ", ".join(f"{mechanism.value} ({mechanism.title})" for mechanism in ScramMechanism)
        raise RequestRefused(codes.UNSUPPORTED_SASL_MECHANISM, f"mechanism {change.mechanism} is not known, only {known}") from None


def _credential(change: Change, key: CredentialKey, credentials: ScramCredentials) -> Credential | None:
    """The credential to store; None removes it."""
    if isinstance(change, ScramCredentialDeletion):
        if key not in credentials.added():
            raise RequestRefused(codes.RESOURCE_NOT_FOUND, f"user {change.name!r} has no {key[1].title} credential to remove")
        return None
    if not ITERATIONS_MIN <= change.iterations <= ITERATIONS_MAX:
        text = f"{change.iterations} iterations are not allowed: expected {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        raise RequestRefused(codes.UNACCEPTABLE_CREDENTIAL, text)
    return Credential.of_salted(key[1], bytes(change.salt), change.iterations, bytes(change.salted_password))
