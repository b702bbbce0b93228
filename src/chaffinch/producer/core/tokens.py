"""What the core's requests are known by when their answers come, beside `ProduceSent`; and a request without an answer, as an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chaffinch.client.connections import Failed
from chaffinch.errors import KafkaException, NetworkException, Stored, TimeoutException, UnsupportedVersionException
from chaffinch.producer.core.transactions.requests import Step


@dataclass(frozen=True, slots=True)
class MetadataAsked: ...


@dataclass(frozen=True, slots=True)
class IdentityAsked: ...


@dataclass(frozen=True, slots=True)
class FactsAsked:
    topic: str


@dataclass(frozen=True, slots=True)
class StepAsked:
    step: Step


METADATA_ASKED: Final = MetadataAsked()
IDENTITY_ASKED: Final = IdentityAsked()


def network_error(event: Failed) -> KafkaException:
    """A request without an answer, as an exception."""
    if event.error is not None:
        return event.error
    stored = Stored.POSSIBLY if event.was_sent else Stored.NO
    if event.is_unsupported:
        return UnsupportedVersionException(f"{event.address}: {event.reason}", stored=Stored.NO)
    if event.is_timeout:
        return TimeoutException(f"{event.address}: {event.reason}", stored=stored)
    return NetworkException(f"{event.address}: {event.reason}", stored=stored)
