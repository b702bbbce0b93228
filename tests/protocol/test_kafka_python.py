"""Random messages against kafka-python, an independent implementation: its bytes are ours, and each reads the other's."""

from __future__ import annotations

from copy import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaffinch.protocol.messages.api_versions import ApiVersionsResponse
from chaffinch.protocol.schema import Message
from tests.protocol.instances import CASES, from_kafka_python, is_standard, kafka_python_class, leaves, messages, name_of, to_kafka_python

pytestmark = pytest.mark.long


def make_standard(message: Message, version: int) -> None:
    """Remove what is Chaffinch's own, and what kafka-python reads differently on purpose."""
    for structure in leaves(message):
        for field in type(structure).FIELDS:
            if not is_standard(field, version):
                setattr(structure, field.name, copy(field.default))
            elif field.name == "records" and structure.records is None:
                structure.records = b""
    if isinstance(message, ApiVersionsResponse):
        message.error_code = 0


@pytest.mark.parametrize(("cls", "version"), CASES, ids=map(name_of, CASES))
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_same_bytes_and_same_reading(cls: type[Message], version: int, data: st.DataObject) -> None:
    message = data.draw(messages(cls, version))
    make_standard(message, version)
    encoded = b"".join(message.encode(version))
    assert bytes(to_kafka_python(message, version).encode(version=version)) == encoded
    assert from_kafka_python(cls, kafka_python_class(cls).decode(encoded, version=version), version) == message
