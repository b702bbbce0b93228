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
    """Those of one replay, one in each partition of which they speak. `ends`: partition -> up to where its letters are done with.

    `run`: tells this replay from another one that began where it did, under the same token. It is the value of each note.
    """

    ends: Mapping[int, int]
    run: str

    def to_option(self) -> str:
        """As the sink is told of them."""
        return json.dumps({"ends": self._by_name(), "run": self.run})

    @classmethod
    def of_option(cls, text: str) -> Notes | None:
        """From what `to_option` gave; None where it is anything else."""
        try:
            found = json.loads(text)
        except ValueError:
            return None
        match found:
            case {"ends": dict(ends), "run": str(run)} if len(found) == 2 and all(_is_end(*pair) for pair in ends.items()):
                return cls(ends={int(name): end for name, end in ends.items()}, run=run)
        return None

    def encoded(self, token: str, now_ms: int) -> bytes:
        """One of them as a record batch; they are all alike."""
        from chaffinch.records import batch as batches
        from chaffinch.records.columns import RecordColumns

        text = json.dumps(self._by_name(), separators=(",", ":"))
        headers = [(NOTE, text.encode()), (NOTE_TOKEN, token.encode())]
        record = RecordColumns.from_lists([None], [self.run.encode()], [now_ms], [headers])
        return bytes(batches.encode(record, is_transactional=True))

    def staged(self, topic: str, token: str, now_ms: int) -> tuple[StagedBatch, ...]:
        """All of them, so that none goes before the letters that it speaks of."""
        one = self.encoded(token, now_ms)
        staged = StagedBytes(data=one, byte_count=len(one))
        return tuple(StagedBatch(topic_partition=TopicPartition(topic, number), record_count=1, bytes=staged) for number in self.ends)

    def _by_name(self) -> dict[str, int]:
        return {str(number): end for number, end in self.ends.items()}


def _is_end(name: str, end: object) -> bool:
    return name.isascii() and name.isdecimal() and type(end) is int
