"""DescribeUserScramCredentials: users with SCRAM credentials that administrators added, and their iteration counts (KIP-554)."""

from __future__ import annotations

from collections import Counter

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.errors import codes
from chaffinch.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


def handle(broker: BrokerState, event: RequestReceived, request: DescribeUserScramCredentialsRequest, steady_ms: int) -> Result:
    added = broker.authentication.credentials.added()
    infos: dict[str, list[CredentialInfo]] = {}
    for (user, mechanism), credential in sorted(added.items(), key=lambda entry: (entry[0][0], entry[0][1].value)):
        infos.setdefault(user, []).append(CredentialInfo(mechanism=mechanism.value, iterations=credential.iterations))
    times_named = Counter(user.name for user in request.users or ()) or dict.fromkeys(infos, 1)
    results = [_result(name, count, infos.get(name, [])) for name, count in times_named.items()]
    return DescribeUserScramCredentialsResponse(results=results)


def _result(name: str, times_named: int, infos: list[CredentialInfo]) -> DescribeUserScramCredentialsResult:
    if times_named > 1:
        code, message = codes.DUPLICATE_RESOURCE, f"user {name!r} is named {times_named} times in one request"
    elif not infos:
        code, message = codes.RESOURCE_NOT_FOUND, f"user {name!r} has no SCRAM credentials"
    else:
        return DescribeUserScramCredentialsResult(user=name, credential_infos=infos)
    return DescribeUserScramCredentialsResult(user=name, error_code=code.number, error_message=message)
