"""Coordinators of groups and transactional ids: FindCoordinator requests, and a cache of their results.

Follows FindCoordinator (KIP-98; since version 4 a list of keys, KIP-699): key type 0 is a group, 1 a transactional id.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from chaffinch.client.addresses import Address
from chaffinch.errors import ErrorCode, codes
from chaffinch.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

CoordinatorKind = Literal["group", "transaction"]
KEY_TYPES: Final[dict[CoordinatorKind, int]] = {"group": 0, "transaction": 1}


class CoordinatorFound(NamedTuple):
    """Result of a FindCoordinator request: a node and its address, or a code other than NONE."""

    code: ErrorCode
    node_id: int
    address: Address
    message: str | None


def find_request(key: str, kind: CoordinatorKind) -> FindCoordinatorRequest:
    """A request for any version: it has the key as a single value and as a list of one."""
    return FindCoordinatorRequest(key=key, key_type=KEY_TYPES[kind], coordinator_keys=[key])


def parse_find_response(response: FindCoordinatorResponse) -> CoordinatorFound:
    """The coordinator in a response about one key, of any version."""
    found = response.coordinators[0] if response.coordinators else response
    return CoordinatorFound(codes.by_number(found.error_code), found.node_id, Address(found.host, found.port), found.error_message)


class Coordinators:
    """Cache of coordinators by key. Remove one that is no longer the coordinator or cannot be reached."""

    __slots__ = ("_addresses",)

    def __init__(self) -> None:
        self._addresses: dict[tuple[CoordinatorKind, str], Address] = {}

    def learn(self, key: str, kind: CoordinatorKind, address: Address) -> None:
        self._addresses[kind, key] = address

    def address_of(self, key: str, kind: CoordinatorKind) -> Address | None:
        """The coordinator's address; None if it must be looked up."""
        return self._addresses.get((kind, key))

    def forget(self, key: str, kind: CoordinatorKind) -> None:
        self._addresses.pop((kind, key), None)

    def forget_address(self, address: Address) -> None:
        """Remove every coordinator at an address: its connection was lost."""
        self._addresses = {key: known for key, known in self._addresses.items() if known != address}
