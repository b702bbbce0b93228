"""Each culprit's own error: which record, its key, what is wrong with it, and what becomes of the others.

Made when somebody looks: a table with one bad row in a hundred has many culprits, and most of them are only counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from chaffinch.errors import ApiException, Culprit, ErrorCode, Stored, exception_for
from chaffinch.producer.core.batches import KEY_BYTES_SHOWN

if TYPE_CHECKING:
    from chaffinch.producer.core.batch_answers import BatchAnswer
    from chaffinch.producer.core.culprits import Situation

API: Final = "Produce"


class CulpritErrors(Mapping[int, "ApiException"]):
    """The error of each record that was blamed, by its index, ascending; all of them lie within the batch."""

    def __init__(self, answer: BatchAnswer, situation: Situation) -> None:
        blamed = answer.blamed
        self._answer = answer
        self._at = {index: at for at, index in enumerate(blamed.indices)}
        # Keys, not what gives them: the batch itself must not live as long as its errors.
        self._keys = situation.keys_of(np.array(blamed.indices, np.int64))
        self._topic_partition = situation.topic_partition
        self._count = situation.count
        self._possibly_stored = situation.possibly_stored
        self._cause = situation.last_error if situation.possibly_stored else None
        self._made: dict[int, ApiException] = {}
        others = situation.count - len(blamed)
        self._goes_on = _fate_of_others(others, situation) if others else ""

    def __iter__(self) -> Iterator[int]:
        return iter(self._at)

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, index: object) -> bool:
        return index in self._at

    def __getitem__(self, index: int) -> ApiException:
        made = self._made.get(index)
        if made is None:
            made = self._made[index] = self._error(self._at[index])
        return made

    def _error(self, at: int) -> ApiException:
        culprit = culprit_of(self._answer, at)
        return exception_for(
            culprit.code,
            message=f"{self._named(culprit)} ({_key_text(self._keys.value(at))}){self._goes_on}",
            topic_partition=self._topic_partition,
            culprits=(culprit,),
            stored=Stored.POSSIBLY if self._possibly_stored else Stored.NO,
            api=API,
            cause=self._cause,
        )

    def _named(self, culprit: Culprit) -> str:
        """The broker's words, and which record they are about unless they say so themselves."""
        if culprit.message.startswith(f"record {culprit.batch_index} "):
            return culprit.message
        return f"record {culprit.batch_index} of {self._count} rejected: {culprit.message}"


def culprit_of(answer: BatchAnswer, at: int) -> Culprit:
    """What was said about one of those blamed: with the batch's code and words where it has none of its own."""
    blamed = answer.blamed
    own = blamed.codes[at]
    code = answer.code if own is None else own
    return Culprit(blamed.indices[at], code, blamed.messages[at] or answer.message or code.text)


def stored(code: ErrorCode, situation: Situation) -> Stored:
    """Whether what was refused may be in the log."""
    return Stored.POSSIBLY if situation.possibly_stored else code.stored


def _fate_of_others(others: int, situation: Situation) -> str:
    subject = f"the other {others} records" if others > 1 else "the other record"
    if situation.possibly_stored:
        return f"; an earlier attempt may have been stored, so {subject} cannot be sent again"
    if situation.in_transaction:
        return f"; {subject} abort{'' if others > 1 else 's'} with the transaction"
    return f"; {subject} {'are' if others > 1 else 'is'} sent again"


def _key_text(key: bytes | None) -> str:
    if key is None:
        return "no key"
    return "key " + repr(key[:KEY_BYTES_SHOWN])[1:] + ("..." if len(key) > KEY_BYTES_SHOWN else "")
