"""Chaffinch: precise Kafka writes from Python and Spark. One bad record never sinks its batch.

Everything a user needs is here: `from chaffinch import EmbeddedBroker, Producer, errors`. Names are imported on first use
(PEP 562), so that `import chaffinch` costs next to nothing and a broker never loads the producer. Not even `typing` is loaded: the
command comes through here, and until its own first line runs Ctrl-C is a traceback.
"""

from __future__ import annotations

from chaffinch.version import VERSION as __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from chaffinch import errors
    from chaffinch.broker.embedded import EmbeddedBroker, Faults
    from chaffinch.broker.option_types import BrokerOptions
    from chaffinch.consumer.async_consumer import AsyncConsumer
    from chaffinch.consumer.consumer import Consumer
    from chaffinch.consumer.core.lookups import FoundOffset
    from chaffinch.consumer.option_types import ConsumerOptions
    from chaffinch.consumer.records import ConsumerRecord
    from chaffinch.identifiers import ConsumerGroupMetadata, GroupMetadata, OffsetAndMetadata, TopicPartition
    from chaffinch.producer.async_producer import AsyncProducer
    from chaffinch.producer.async_sender import AsyncRecordFuture
    from chaffinch.producer.core.exception_handler import NonRetriableResponse, ProducerExceptionHandler, RetriableResponse
    from chaffinch.producer.futures import RecordFuture
    from chaffinch.producer.option_types import ProducerOptions
    from chaffinch.producer.producer import Producer
    from chaffinch.producer.records import ProducerRecord, RecordMetadata
    from chaffinch.producer.tables.result import SendTableResult
    from chaffinch.records.errors import InvalidColumn
    from chaffinch.settings import Settings
    from chaffinch.storage.files import StorageError
    from chaffinch.table_writes.option_types import WriteTableOptions
    from chaffinch.table_writes.writing import WriteTableResult, write_table

_MODULES: Final = {
    "AsyncConsumer": "chaffinch.consumer.async_consumer",
    "AsyncProducer": "chaffinch.producer.async_producer",
    "AsyncRecordFuture": "chaffinch.producer.async_sender",
    "BrokerOptions": "chaffinch.broker.option_types",
    "Consumer": "chaffinch.consumer.consumer",
    "ConsumerGroupMetadata": "chaffinch.identifiers",
    "ConsumerOptions": "chaffinch.consumer.option_types",
    "ConsumerRecord": "chaffinch.consumer.records",
    "EmbeddedBroker": "chaffinch.broker.embedded",
    "Faults": "chaffinch.broker.embedded",
    "FoundOffset": "chaffinch.consumer.core.lookups",
    "GroupMetadata": "chaffinch.identifiers",
    "InvalidColumn": "chaffinch.records.errors",
    "NonRetriableResponse": "chaffinch.producer.core.exception_handler",
    "OffsetAndMetadata": "chaffinch.identifiers",
    "Producer": "chaffinch.producer.producer",
    "ProducerExceptionHandler": "chaffinch.producer.core.exception_handler",
    "ProducerOptions": "chaffinch.producer.option_types",
    "ProducerRecord": "chaffinch.producer.records",
    "RecordFuture": "chaffinch.producer.futures",
    "RecordMetadata": "chaffinch.producer.records",
    "RetriableResponse": "chaffinch.producer.core.exception_handler",
    "SendTableResult": "chaffinch.producer.tables.result",
    "Settings": "chaffinch.settings",
    "StorageError": "chaffinch.storage.files",
    "TopicPartition": "chaffinch.identifiers",
    "WriteTableOptions": "chaffinch.table_writes.option_types",
    "WriteTableResult": "chaffinch.table_writes.writing",
    "write_table": "chaffinch.table_writes.writing",
}

__all__ = [
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncRecordFuture",
    "BrokerOptions",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerOptions",
    "ConsumerRecord",
    "EmbeddedBroker",
    "Faults",
    "FoundOffset",
    "GroupMetadata",
    "InvalidColumn",
    "NonRetriableResponse",
    "OffsetAndMetadata",
    "Producer",
    "ProducerExceptionHandler",
    "ProducerOptions",
    "ProducerRecord",
    "RecordFuture",
    "RecordMetadata",
    "RetriableResponse",
    "SendTableResult",
    "Settings",
    "StorageError",
    "TopicPartition",
    "WriteTableOptions",
    "WriteTableResult",
    "__version__",
    "errors",
    "write_table",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "errors":
        return import_module("chaffinch.errors")
    if name not in _MODULES:
        raise import_module("chaffinch.foreign_names").module_error(name)
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
