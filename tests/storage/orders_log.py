"""A partition log of small batches on the memory disk, shared by the recovery tests."""

from typing import Any

from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.storage.file_system import MemoryFileSystem
from chaffinch.storage.partition_log import LogConfig, PartitionLog
from tests.storage.batches import batch

ORDERS = TopicPartition("orders", 0)
DIRECTORY = "orders-0"
ONE = ProducerIdentity(1, 0)
SIZE = len(batch())
FIRST = f"{DIRECTORY}/{0:020d}"


def opened(files: MemoryFileSystem, **config: Any) -> PartitionLog:
    return PartitionLog.open(files, DIRECTORY, ORDERS, LogConfig(**config), 1000)


def filled(files: MemoryFileSystem, count: int = 6, **config: Any) -> PartitionLog:
    """`count` batches of one record; nothing closed."""
    log = opened(files, **config)
    for _ in range(count):
        log.append(batch(), steady_ms=0)
    return log
