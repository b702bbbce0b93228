"""Room for bytes that are all written anyway: a bytearray like any other, on every interpreter."""

from __future__ import annotations

import pytest

from chaffinch.records import room
from chaffinch.records.room import uninitialised


@pytest.mark.parametrize("is_of_the_interpreter", [True, False])
@pytest.mark.parametrize("size", [0, 1, 61, 1_000_000])
def test_it_is_a_bytearray_of_that_size(monkeypatch: pytest.MonkeyPatch, size: int, is_of_the_interpreter: bool) -> None:
    if not is_of_the_interpreter:
        monkeypatch.setattr(room, "_make", None)
    made = uninitialised(size)
    assert (type(made), len(made)) == (bytearray, size)
    made[:] = bytes(range(256)) * (size // 256) + bytes(size % 256)
    made += b"x"
    assert (len(made), made[-1]) == (size + 1, ord("x"))
    del made[size // 2 :]
    assert len(made) == size // 2


def test_of_what_no_memory_has_room_for_that_is_said() -> None:
    with pytest.raises(MemoryError):
        uninitialised(2**62)


def test_this_interpreter_has_it() -> None:
    """Else `bytearray` would be asked, and nobody would notice."""
    assert room._make is not None
