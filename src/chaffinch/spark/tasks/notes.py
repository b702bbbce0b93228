"""Notes that a replay leaves in a dead letter topic: up to where its letters are done with. Pure.

They are no rows. The committing process writes them, in the transaction of the rows: no option limits them, none ever becomes a dead
letter, and a topic that refuses one ends the transaction. So rows are never written without their notes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chaffinch.identifiers import TopicPartition
from chaffinch.spark.commit.messages import StagedBatch, StagedBytes

NOTE: Final = "chaffinch.replayed"
"""Header of a note: up to which offset letters are done with, of each partition.

JSON, `{"0":23}`. Each note speaks of all partitions, so that it does not matter which of a replay's notes can be seen already.
"""
NOTE_TOKEN: Final = "chaffinch.replayed.by"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """Those of one replay, one in each partition of which they speak. `ends`: partition -> up to where its letters are done with."""

    ends: Mapping[int, int]

    @property
    def text(self) -> str:
        """What each of them says."""
        return json.dumps({str(number): end for number, end in self.ends.items()}, separators=(",", ":"))

    @classmethod
    def of_text(cls, text: str) -> Notes | None:
        """Those that say this; None where it is nothing that a note says."""
        try:
            found = json.loads(text)
        except ValueError:
            return None
        if not isinstance(found, dict) or not all(name.isascii() and name.isdecimal() and type(found[name]) is int for name in found):
            return None
        return cls(ends={int(name): end for name, end in found.items()})

    def encoded(self, token: str, now_ms: int) -> bytes:
        """One of them as a record batch; they are all alike."""
        from chaffinch.records import batch as batches
        from chaffinch.records.columns import RecordColumns

        headers = [(NOTE, self.text.encode()), (NOTE_TOKEN, token.encode())]
        record = RecordColumns.from_lists([None], [None], [now_ms], [headers])
        return bytes(batches.encode(record, is_transactional=True))

    def staged(self, topic: str, token: str, now_ms: int) -> tuple[StagedBatch, ...]:
        """All of them, so that none goes before the letters that it speaks of."""
        one = self.encoded(token, now_ms)
        staged = StagedBytes(data=one, byte_count=len(one))
        return tuple(StagedBatch(topic_partition=TopicPartition(topic, number), record_count=1, bytes=staged) for number in self.ends)
