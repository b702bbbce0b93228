"""Protocol errors have location and reason in one line, and can be pickled."""

from __future__ import annotations

import pickle

import pytest

from chaffinch.protocol.violations import CorrelationIdMismatch, MalformedMessage, ProtocolViolation, UnencodableMessage


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            MalformedMessage("FetchRequest", 12, "topics[0].topic", 9, "cut off"),
            "malformed FetchRequest v12: topics[0].topic at byte 9: cut off",
        ),
        (CorrelationIdMismatch(3, 4), "response with correlation id 4, expected 3"),
        (CorrelationIdMismatch(None, 4), "response with correlation id 4, but no request is open"),
        (UnencodableMessage("FetchRequest", 12, "max_bytes", "too large"), "cannot encode FetchRequest v12: max_bytes: too large"),
    ],
)
def test_errors_keep_text_and_fields_when_pickled(error: Exception, text: str) -> None:
    assert str(error) == text
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), text, vars(error))


def test_only_errors_of_the_peer_are_protocol_violations() -> None:
    assert issubclass(MalformedMessage, ProtocolViolation)
    assert issubclass(CorrelationIdMismatch, ProtocolViolation)
    assert not issubclass(UnencodableMessage, ProtocolViolation)
