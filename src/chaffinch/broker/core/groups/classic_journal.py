"""What a broker remembers of a classic group over a restart: the generation, and its members with their assignments.

One entry per group, written when a generation is stable, when the group becomes empty and when a static member is replaced, as in Apache
Kafka; of a member's protocols only the chosen one. A group in the middle of a rebalance is, after a restart, what it was before it.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping

from chaffinch.broker.core.groups.classic_group import ClassicGroup, ClassicMember, Client
from chaffinch.broker.core.groups.classic_states import ClassicState
from chaffinch.storage.journal import Journal

KIND = "group"


def key_of(group_id: str) -> bytes:
    return json.dumps([KIND, group_id]).encode()


class ClassicJournal:
    """Writes entries. Every method raises StorageError; then nothing has changed."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def put(self, group: ClassicGroup, members: Iterable[ClassicMember], assignments: Mapping[str, bytes]) -> None:
        """The group as it is to be: with these members and assignments."""
        value = {
            "type": "classic",
            "protocol_type": group.protocol_type,
            "protocol": group.protocol,
            "generation": group.generation,
            "leader": group.leader,
            "since_ms": group.state_since_ms,
            "members": [_member_value(member, group.protocol, assignments.get(member.member_id, b"")) for member in members],
        }
        self._journal.put({key_of(group.group_id): json.dumps(value).encode()})

    def remove(self, group_id: str) -> None:
        self._journal.put({key_of(group_id): None})


def _member_value(member: ClassicMember, protocol: str | None, assignment: bytes) -> list[object]:
    return [
        member.member_id,
        member.instance_id,
        member.client.client_id,
        member.client.host,
        member.rebalance_timeout_ms,
        member.session_timeout_ms,
        b64encode(member.metadata(protocol)).decode(),
        b64encode(assignment).decode(),
    ]


def group_from(group_id: str, value: Mapping[str, object]) -> ClassicGroup:
    """The group of an entry's value, stable or empty."""
    fields = dict(value)
    rows = fields.pop("members")
    assert isinstance(rows, list)
    group = ClassicGroup(
        group_id=group_id,
        state=ClassicState.STABLE if rows else ClassicState.EMPTY,
        state_since_ms=_int(fields["since_ms"]),
        generation=_int(fields["generation"]),
        protocol_type=_text(fields["protocol_type"]),
        protocol=_text(fields["protocol"]),
    )
    for member_id, instance_id, client_id, host, rebalance_ms, session_ms, metadata, assignment in rows:
        member = ClassicMember(
            member_id=member_id,
            instance_id=instance_id,
            client=Client(client_id=client_id, host=host),
            rebalance_timeout_ms=rebalance_ms,
            session_timeout_ms=session_ms,
            protocols=((group.protocol or "", b64decode(metadata)),),
            assignment=b64decode(assignment),
        )
        group.add(member, group.protocol_type or "")
    group.leader = _text(fields["leader"])
    group.remember_topics()
    return group


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def _text(value: object) -> str | None:
    assert value is None or isinstance(value, str)
    return value
