"""Round trip of every message in every version, without remaining bytes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaffinch.protocol.schema import Message
from tests.protocol.instances import CASES, messages, name_of, sample


@pytest.mark.parametrize(("cls", "version"), CASES, ids=map(name_of, CASES))
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_round_trip(cls: type[Message], version: int, data: st.DataObject) -> None:
    message = data.draw(messages(cls, version))
    encoded = b"".join(message.encode(version))
    assert cls.decode_from(memoryview(encoded), 0, version) == (message, len(encoded))


@pytest.mark.parametrize(("cls", "version"), CASES, ids=map(name_of, CASES))
def test_defaults_round_trip(cls: type[Message], version: int) -> None:
    assert cls.decode(b"".join(cls().encode(version)), version) == cls()


@pytest.mark.parametrize(("cls", "version"), CASES, ids=map(name_of, CASES))
def test_fields_of_other_versions_have_their_defaults(cls: type[Message], version: int) -> None:
    message = cls.decode(b"".join(sample(cls, version).encode(version)), version)
    for field in cls.FIELDS:
        if not field.exists_in(version):
            assert getattr(message, field.name) == field.default
