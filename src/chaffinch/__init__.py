"""Chaffinch: precise Kafka writes from Python and Spark. One bad record never sinks its batch.

Everything a user needs is here: `from chaffinch import EmbeddedBroker, Producer, errors`. Names are imported on first use
(PEP 562), so that `import chaffinch` costs next to nothing and a broker never loads the producer.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from chaffinch.version import VERSION as __version__

if TYPE_CHECKING:
    from chaffinch import errors
    from chaffinch.broker.embedded import EmbeddedBroker
    from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
    from chaffinch.producer.producer import Producer
    from chaffinch.producer.records import ProducerRecord, RecordMetadata

_MODULES: Final = {
    "EmbeddedBroker": "chaffinch.broker.embedded",
    "OffsetAndMetadata": "chaffinch.identifiers",
    "Producer": "chaffinch.producer.producer",
    "ProducerRecord": "chaffinch.producer.records",
    "RecordMetadata": "chaffinch.producer.records",
    "TopicPartition": "chaffinch.identifiers",
}

__all__ = [
    "EmbeddedBroker",
    "OffsetAndMetadata",
    "Producer",
    "ProducerRecord",
    "RecordMetadata",
    "TopicPartition",
    "__version__",
    "errors",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("chaffinch.errors")
    if name not in _MODULES:
        raise AttributeError(f"module 'chaffinch' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
