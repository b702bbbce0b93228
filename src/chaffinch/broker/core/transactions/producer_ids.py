"""Producer ids that are never given twice: taken from blocks whose end is on disk before the first of them is used.

A crash skips the rest of a block, as in Apache Kafka's ProducerIdManager. Whatever `flush.policy` is: after a loss of power a log may know
batches of an id that the journal has forgotten, and would take those of the next producer of this id for them, sent again.
"""

from __future__ import annotations

from chaffinch.storage.journal import Journal

BLOCK_SIZE = 1000
"""Ids per sync, Kafka's own figure."""

_KEY = b"producer.ids"


class ProducerIds:
    """Hands out producer ids, from 0 upwards."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._next = self._block_end = int(journal.items().get(_KEY, b"0"))

    def allocate(self) -> int:
        """The next id. Raises StorageError when a new block cannot be written down; nothing is handed out then."""
        if self._next == self._block_end:
            self._journal.put({_KEY: b"%d" % (self._block_end + BLOCK_SIZE)})
            self._journal.sync()
            self._block_end += BLOCK_SIZE
        self._next += 1
        return self._next - 1
