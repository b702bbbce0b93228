"""Each culprit's own error: which record, its key, what is wrong with it, and what becomes of the others.

Made when somebody looks: a table with one bad row in a hundred has many culprits, and most of them are only counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from chaffinch.errors import ApiException, Culprit, ErrorCode, Stored, exception_for

if TYPE_CHECKING:
    from chaffinch.producer.core.culprits import BatchAnswer, Blamed, Situation

API: Final = "Produce"
KEY_BYTES_SHOWN: Final = 60


class CulpritErrors(Mapping[int, "ApiException"]):
    """The error of each record that was blamed, by its index, ascending. `blamed`: indices within the batch."""

    def __init__(self, blamed: Mapping[int, Blamed], answer: BatchAnswer, situation: Situation) -> None:
        self._blamed = blamed
        self._answer = answer
        # Of the keys as much as is shown: the batch itself must not live as long as its errors.
        keys = {index: key if key is None else key[: KEY_BYTES_SHOWN + 1] for index in blamed for key in (situation.key_of(index),)}
        self._situation = replace(situation, key_of=keys.get)
        self._indices = sorted(blamed)
        self._made: dict[int, ApiException] = {}
        others = situation.count - len(blamed)
        self._goes_on = _fate_of_others(others, situation) if others else ""

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)

    def __contains__(self, index: object) -> bool:
        return index in self._blamed

    def __getitem__(self, index: int) -> ApiException:
        made = self._made.get(index)
        if made is None:
            made = self._made[index] = self._error(culprit_of(self._blamed[index], self._answer))
        return made

    def _error(self, culprit: Culprit) -> ApiException:
        situation = self._situation
        return exception_for(
            culprit.code,
            message=f"{_named(culprit, situation)} ({_key_text(situation.key_of(culprit.batch_index))}){self._goes_on}",
            topic_partition=situation.topic_partition,
            culprits=(culprit,),
            stored=stored(culprit.code, situation) if situation.possibly_stored else Stored.NO,
            api=API,
            cause=situation.last_error if situation.possibly_stored else None,
        )


def culprit_of(entry: Blamed, answer: BatchAnswer) -> Culprit:
    """What was said about one record: with the batch's code and words where it has none of its own."""
    code = answer.code if entry.code is None else entry.code
    return Culprit(entry.batch_index, code, entry.message or answer.message or code.text)


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


def _named(culprit: Culprit, situation: Situation) -> str:
    """The broker's words, and which record they are about unless they say so themselves."""
    if culprit.message.startswith(f"record {culprit.batch_index} "):
        return culprit.message
    return f"record {culprit.batch_index} of {situation.count} rejected: {culprit.message}"


def _key_text(key: bytes | None) -> str:
    if key is None:
        return "no key"
    return "key " + repr(key[:KEY_BYTES_SHOWN])[1:] + ("..." if len(key) > KEY_BYTES_SHOWN else "")
