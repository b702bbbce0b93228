"""The culprits that a Produce answer lists (KIP-467), as columns: a batch may have a hundred, and nobody needs an object of each.

Reads and writes what `BatchIndexAndErrorMessage` describes in the versions of `produce_path`; whatever is unusual gives None, and the
compiled codec decides, which takes these columns for the list that they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import lt
from struct import Struct
from typing import Final, Self, overload

from chaffinch.errors import ErrorCode, codes
from chaffinch.protocol.messages.produce import CULPRIT_CODE_TAG, BatchIndexAndErrorMessage
from chaffinch.protocol.primitives import uvarint

_SHORT: Final = Struct(">iB")
"""The index, and the length of the words, one too high."""
_LONG: Final = Struct(">iBB")
"""The same for words whose length takes two bytes."""
_LONG_MAX: Final = (1 << 14) - 1
_CODE: Final = Struct(">h")
_CODE_HEAD: Final = b"\1" + uvarint(CULPRIT_CODE_TAG) + b"\2"
"""One tagged field: its tag, its two bytes."""


class RecordErrors(Sequence[BatchIndexAndErrorMessage]):
    """`indices` within the batch, the words about each and each one's own code, by its number; None where there is none."""

    __slots__ = ("indices", "messages", "numbers")

    def __init__(self, indices: Sequence[int], messages: Sequence[str | None], numbers: Sequence[int | None]) -> None:
        self.indices, self.messages, self.numbers = indices, messages, numbers

    @classmethod
    def of(cls, entries: Sequence[BatchIndexAndErrorMessage]) -> RecordErrors:
        """What is listed, as columns."""
        if isinstance(entries, RecordErrors):
            return entries
        return cls(
            [entry.batch_index for entry in entries],
            [entry.batch_index_error_message for entry in entries],
            [entry.chaffinch_error_code for entry in entries],
        )

    def ascending(self) -> RecordErrors:
        """In the order of their indices, each of them once: of two entries about one record the last one counts."""
        if all(map(lt, self.indices, self.indices[1:])):
            return self
        last = {index: at for at, index in enumerate(self.indices)}
        return RecordErrors.of([self[last[index]] for index in sorted(last)])

    def code(self, at: int) -> ErrorCode | None:
        """The own code of one of them; None where it has none, or success: then the batch's code is its own."""
        number = self.numbers[at]
        # A single record has no sequence of its own: 45 next to an index is always INVALID_COMPACTION_KEY.
        return codes.by_number(number, "kip", has_culprits=True) if number else None

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, at: int) -> BatchIndexAndErrorMessage: ...
    @overload
    def __getitem__(self, at: slice) -> RecordErrors: ...
    def __getitem__(self, at: int | slice) -> BatchIndexAndErrorMessage | RecordErrors:
        if isinstance(at, slice):
            return RecordErrors(self.indices[at], self.messages[at], self.numbers[at])
        return BatchIndexAndErrorMessage(
            batch_index=self.indices[at], batch_index_error_message=self.messages[at], chaffinch_error_code=self.numbers[at]
        )

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def write(self, out: bytearray) -> bool:
        """Append the array to `out`. False, and `out` is of no use, for anything unusual. struct.error for numbers that do not fit."""
        tails = {number: b"\0" if number is None else _CODE_HEAD + _CODE.pack(number) for number in set(self.numbers)}
        out += uvarint(len(self.indices) + 1)
        for index, message, number in zip(self.indices, self.messages, self.numbers, strict=True):
            if message is None:
                return False
            text = message.encode()
            size = len(text) + 1
            if size > _LONG_MAX:
                return False
            out += _SHORT.pack(index, size) if size < 128 else _LONG.pack(index, size & 127 | 128, size >> 7)
            out += text
            out += tails[number]
        return True

    @classmethod
    def read(cls, data: bytes, position: int, count: int) -> tuple[Self, int] | None:
        """(`count` elements that begin at `position`, the position after them). What is cut off may raise struct.error or IndexError."""
        indices: list[int] = []
        messages: list[str | None] = []
        numbers: list[int | None] = []
        for _ in range(count):
            index, size = _SHORT.unpack_from(data, position)
            position += _SHORT.size
            if size > 127:
                high = data[position]
                size, position = size & 127 | high << 7, position + 1
                if high > 127:
                    return None
            stop = position + size - 1
            if size == 0 or stop >= len(data):
                return None
            indices.append(index)
            messages.append(str(data[position:stop], "utf-8"))
            if data[stop] == 0:
                numbers.append(None)
                position = stop + 1
            elif data.startswith(_CODE_HEAD, stop):
                position = stop + len(_CODE_HEAD)
                numbers += _CODE.unpack_from(data, position)
                position += _CODE.size
            else:
                return None
        return cls(indices, messages, numbers), position
